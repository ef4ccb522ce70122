"""One instance of every transform, found by `transforms.__all__`, and partitions that are awkward in every way."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from gpupipe import transforms as T

RIGHT = pd.DataFrame({"s": ["a", "b", "c"], "n": [1, 2, 3], "price": [1.5, 2.5, 3.5], "word": ["x", "y", "x"]})
PAIRS = pd.DataFrame({"s": ["a", "a", "b"], "size": [1, 2, 3]})


def doubled(frame: Any) -> Any:
    frame["twice"] = frame["x"] * 2
    return frame


HISTORY = pd.DataFrame(
    {
        "t": pd.to_datetime(["2013-01-05", "2013-01-01", "2013-01-05", None]).astype("datetime64[us]"),
        "s": ["a", "b", "a", "a"],
        "n": [1, 2, 3, 4],
        "price": [1.5, None, 3.5, 4.5],
        "word": ["x", "y", None, "x"],
    }
)


SAMPLES: dict[str, list[T.Transform]] = {
    "Cast": [T.Cast({"n": "float64", "b": "int8", "t": "string"}), T.Cast({"s": "float64"}, errors="coerce")],
    "Clip": [T.Clip(["x", "n"], 0, 3), T.Clip("t", high="2013-01-10")],
    "CumulativeCount": [T.CumulativeCount("s", order_by="t"), T.CumulativeCount(["n", "b"])],
    "DateParts": [
        T.DateParts("t", ["year", "week", "is_weekend", "hour"], cyclic=["hour", "day"], since="2013-01-05"),
        T.DateParts(["t"], since="t", unit="hours"),
        T.DateParts("t", "hour", tz="America/New_York"),
    ],
    "Derive": [
        T.Derive(sum="x + n", known="s in ['a', 'c']", late="hour(t) >= 12", up="upper(s)", x="coalesce(x, 0.0)"),
        T.Derive(
            first="extract(s, '^([ab])')", part="split(s, 'z', 1)", end="is_month_end(t)", found="search(s, 'z+')"
        ),
        T.Derive(
            both="s + '-' + s", hour="floor(t, '1h')", wave="sin(x)", some="where(b, n, None)", one="coalesce(n, 7)"
        ),
        T.Derive(parts="split(s, 'b')", has="contains(split(s, 'b'), 'a')", count="len(split(s, 'a'))"),
    ],
    "Difference": [T.Difference(["x", "n", "t", "b"], [1, -1], by="s", order_by="t"), T.Difference("x", 2)],
    "Drop": [T.Drop(["x", "s"])],
    "DropMissing": [
        T.DropMissing(),
        T.DropMissing(["x", "s"], when="always"),
        T.DropMissing(["n", "t", "b"], how="all"),
    ],
    "Expanding": [
        T.Expanding(["x", "n"], ["count", "sum", "mean", "std", "max"], by=["s", "b"], order_by="n"),
        T.Expanding("x", "min", closed="left"),
    ],
    "Expect": [T.Expect(["x", "n"], min=0), T.Expect("t", min="1900-01-01", on_violation="raise")],
    "Filter": [T.Filter("x > 0 or s == 'b'"), T.Filter("isnull(n)", when="always")],
    "Join": [
        T.Join(RIGHT, on="s", columns=["price", "word"]),
        T.Join(RIGHT, on=["s", "n"], how="inner"),
        T.Join(PAIRS, on="s", many=True),
    ],
    "JoinAsOf": [
        T.JoinAsOf(HISTORY, on="t"),
        T.JoinAsOf(HISTORY, on="t", by="s", columns=["price", "word", "t"], tolerance="4 days", lag="36h"),
        T.JoinAsOf(HISTORY, on="n", tolerance=1, columns=["s", "t"], allow_exact_matches=False),
    ],
    "Lag": [T.Lag(["x", "s", "t", "n"], [1, -2], by="s", order_by="t"), T.Lag("b")],
    "Log1p": [T.Log1p(["n", "b"])],
    "Map": [T.Map(doubled, reads=["x"], adds=["twice"]), T.Map(doubled)],
    "Rename": [T.Rename({"x": "y", "s": "text"})],
    "Replace": [
        T.Replace({"s": {"a": "b", "b": "a", "zz": None}, "n": {1: 2, 2: None}, "b": {None: False}}),
        T.Replace({"s": {None: "?"}, "n": {None: 9, 0: 1}, "x": {None: 0.5}, "t": {None: "2013-01-01"}}),
    ],
    "Rolling": [
        T.Rolling(["x", "b"], 3, ["count", "mean", "var"], by="s", order_by="t", min_periods=1, closed="left"),
        T.Rolling("n", "5 days", ["sum", "min", "count"], by=["b"], order_by="t"),
        T.Rolling("x", 2),
    ],
    "Sample": [T.Sample(0.5), T.Sample(0.3, seed=7, when="always")],
    "Select": [T.Select(["s", "t", "x"])],
}


WORDS = pd.ArrowDtype(pa.large_list(pa.large_string()))


def frame_of(text: list[str | None], seed: int = 0) -> pd.DataFrame:
    """As many rows as there are strings, with gaps in every column but the strings as given."""
    rng, rows = np.random.default_rng(seed), len(text)

    def gaps(values: list[Any]) -> list[Any]:
        return [None if hole else value for value, hole in zip(values, rng.random(rows) < 0.3, strict=True)]

    days = [datetime(2013, 1, 1 + int(day), int(hour)) for day, hour in rng.integers(0, 24, (rows, 2))]  # noqa: DTZ001
    return pd.DataFrame(
        {
            "x": pd.array(gaps(rng.normal(size=rows).tolist()), dtype="float64"),
            "n": pd.array(gaps(rng.integers(0, 5, rows).tolist()), dtype="Int64"),
            "b": pd.array(gaps((rng.random(rows) < 0.5).tolist()), dtype="boolean"),
            "s": pd.array(text, dtype="str"),
            "t": pd.array(gaps(days), dtype="datetime64[us]"),
            "l": pd.array(gaps([["a", None][:number] for number in rng.integers(0, 3, rows)]), dtype=WORDS),
        }
    )


PARTS = [
    frame_of(["a", "b", None, "a", "c", "b"], 1),
    frame_of(["b", "b", "zz"], 2),  # lacks values that others have, has one of its own
    frame_of([None, None], 3),
    frame_of([], 4),
    frame_of(["c"], 5),
]
