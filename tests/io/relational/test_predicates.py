"""Filters as a plan's own: they keep the rows that array code keeps, or are evaluated by it."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import ExpressionError
from gpupipe.io.relational.scan import scan, translate_query
from gpupipe.schema import ROW
from tests.examples import examples

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [-128, -1, 0, 1, 127]),
    "n": (pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1]),
    "m": (pa.int64(), [-1, 0, 1, 2**53 + 1]),
    "u": (pa.uint64(), [0, 1, 2**53 + 1, 2**64 - 1]),
    "single": (pa.float32(), [0.0, -0.0, 0.5, 0.1, 16777216.0, float("nan"), float("inf")]),
    "x": (pa.float64(), [0.0, -0.0, 0.5, 0.1, 1e300, float("nan"), float("inf"), float("-inf")]),
    "y": (pa.float64(), [0.0, -0.0, 0.5, float("nan")]),
    "ok": (pa.bool_(), [False, True]),
    "also": (pa.bool_(), [False, True]),
    "text": (pa.string(), ["", "JFK", "jfk", "é", "\uffff", "\U00010000"]),
    "other": (pa.string(), ["JFK", "\U00010000"]),
    "day": (pa.date32(), [date(1969, 12, 31), date(2013, 10, 1)]),
    "at": (pa.timestamp("us"), [*map(datetime.fromisoformat, ("1970-01-01", "2013-10-01T06:00:00.000001"))]),
}
CONSTANTS = {
    "i": ["-129", "-128", "0", "1", "127", "128", str(2**53), str(2**53 + 1), str(2**63 - 1), str(2**64 - 1), "1.0"],
    "f": ["0", "-0.0", "0.5", "0.1", "1e300", "16777217", "0.10000000149011612", str(2**53 + 1)],
    "b": ["True", "False"],
    "s": ["''", "'JFK'", "'é'", "'\uffff'", "'\U00010000'"],
    "t": ["'2013-10-01'", "'2013-10-01T06:00:00.000001'", "'1969-12-31T23:00'", "timestamp('1969-12-31')"],
}
KINDS = {
    **dict.fromkeys(("tiny", "n", "m", "u"), "i"),
    **dict.fromkeys(("single", "x", "y"), "f"),
    **dict.fromkeys(("ok", "also"), "b"),
    **dict.fromkeys(("text", "other"), "s"),
    **dict.fromkeys(("day", "at"), "t"),
}
SIGNS = ["==", "!=", "<", "<=", ">", ">="]


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(KINDS)))
    alike = [other for other, kind in KINDS.items() if kind == KINDS[name]]
    value = st.sampled_from([*CONSTANTS[KINDS[name]], *alike])
    constants = st.lists(st.sampled_from(CONSTANTS[KINDS[name]]), min_size=1, max_size=3)
    sign = st.sampled_from(SIGNS)
    return draw(
        st.one_of(
            st.builds("{} {} {}".format, st.just(name), sign, value),
            st.builds("{} {} {}".format, value, sign, st.just(name)),
            st.builds("{} {} {} {} {}".format, value, sign, st.just(name), sign, value),
            st.builds(lambda values: f"{name} in [{', '.join(values)}]", constants),
            st.just(f"isnull({name})"),
            st.just(f"notnull({name})"),
            st.just("ok"),
        )
    )


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds("not ({})".format, inner),
        st.builds("({}) and ({})".format, inner, inner),
        st.builds("({}) or ({})".format, inner, inner),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(4)
    columns = {
        name: pa.array([None if place == len(values) else values[place] for place in places], kind)
        for name, (kind, values) in TYPES.items()
        for places in [random.integers(0, len(values) + 1, 1200)]
    }
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=100)
    return path


def kept(data: gp.Dataset) -> list[int]:
    """The rows that array code keeps."""
    ids = []
    for partition in data.partitions:
        frame = data.read(partition, [])
        ids += partition.row_ids(np)[gp.backend.select("cpu").positions(frame)].tolist()
    return ids


@pytest.mark.slow
def test_a_filter_keeps_the_rows_that_array_code_keeps(path: Path) -> None:
    translated = []

    @examples(150, suppress_health_check=[HealthCheck.too_slow])
    @given(text=CONDITIONS)
    def keeps_the_same(text: str) -> None:
        try:
            data = gp.read_parquet(path, columns=["x", *sorted({*TYPES} - {"x"})], backend="cpu").filter(text)
        except ExpressionError:
            return
        found = scan(data.select(["x"]), ["x"], "test")
        by_files = found.owner is data.source
        translated.append(by_files)
        assert by_files == (translate_query(data.query, data.source.schema) is not None)
        rows = found.frame.collect()
        assert rows[ROW].to_list() == kept(data)
        assert rows.columns == ["x", ROW] and not rows["x"].is_nan().any()

    keeps_the_same()
    assert sum(translated) > len(translated) // 3


@pytest.mark.parametrize(
    "text",
    [
        "tiny + 1 > 0",
        "tiny > 0.5",
        "tiny < 128",
        "single > 0.1",
        "n == x",
        "ok == 1",
        "lower(text) == 'jfk'",
        "hour(at) == 6",
        "isnull(n) and n % 2 == 0",
        f"text in {[str(number) for number in range(101)]}",
    ],
)
def test_what_polars_would_evaluate_otherwise_is_not_translated(path: Path, text: str) -> None:
    data = gp.read_parquet(path, backend="cpu").filter(text)
    assert translate_query(data.query, data.source.schema) is None
    found = scan(data.select(["x"]), ["x"], "test").frame.collect()
    assert found[ROW].to_list() == kept(data)


def test_parts_of_a_table_are_scanned_with_it(path: Path) -> None:
    """A share drawn by identity, a range of time, and what is left of both."""
    data = gp.read_parquet(path, backend="cpu")
    drawn = [*data.split(fraction=(0.3, 0.5, 0.2), seed=4), *(side for pair in data.kfold(3, seed=2) for side in pair)]
    cut = data.filter("notnull(at) and notnull(tiny)").split(by="at", at=["1971-01-01", "2014-01-01"])
    nested = cut[0].split(by="tiny", at=1)[0].split(fraction=0.5)
    for part in (*drawn, *cut, *nested):
        found = scan(part, ["text"], "test")
        assert found.owner is data.source
        assert found.frame.collect()[ROW].to_list() == kept(part)
    by_value = data.split(fraction=0.5, by="text")[0]
    stratified = data.split(fraction=0.5, stratify="text")[0]
    for part in (by_value, stratified):
        assert translate_query(part.query, data.schema) is None


def test_row_groups_that_a_filter_excludes_are_not_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000), "x": [0.5] * 1000}), tmp_path / "a.parquet", row_group_size=100)
    data = gp.read_parquet(tmp_path / "a.parquet", backend="cpu").filter("n >= 950")
    plan = scan(data, ["x"], "test").frame.explain()
    assert "SELECTION" in plan and 'col("n")' in plan.split("SELECTION")[1]
    assert data.sort("x").to_pandas()["n"].tolist() == list(range(950, 1000))


def test_few_rows_of_a_large_table_are_not_cut_into_buckets(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("gathering", "engine", "scan"):
        monkeypatch.setattr(f"gpupipe.io.relational.{module}.get_memory_limit", lambda: 60_000)
    with caplog.at_level("INFO", "gpupipe"):
        few = gp.read_parquet(path, backend="cpu").filter("n == 0 and tiny == 1").select(["n", "text"]).sort("text")
    assert 0 < len(few) < 60 and "are cut into" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "floor(at, '1h') == '2013-10-01T06:00'",
        "text + other == 'JFKJFK'",
        "coalesce(m, n, 0) > 0",
        "where(ok, n, None) > 0",
        "isnull(where(ok, text, None))",
        "sin(x) > 0 or cos(y) > 0.5",
        "dayofweek(at) == 1",
        "contains(split(text, 'F'), 'J')",
        "max(tags) > 1 or contains(tags, n)",
    ],
)
def test_functions_choose_the_same_rows_in_a_plan(text: str, tmp_path: Path) -> None:
    """What Polars is not asked to evaluate is computed by partitions, some of which are left without a row."""
    rng = np.random.default_rng(5)
    columns = {
        name: pa.array([None if rng.random() < 0.3 else values[rng.integers(len(values))] for _ in range(90)], kind)
        for name, (kind, values) in TYPES.items()
    }
    columns["tags"] = pa.array([None, [], [1, 2], [None, 3], [0]] * 18, pa.list_(pa.int64()))
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=10)
    chosen = gp.read_parquet(tmp_path, partition_bytes=1).filter(text)
    lengths = [len(frame) for frame in chosen]
    planned = chosen.to_polars().collect()
    assert planned["text"].to_list() == [
        None if value is None else value for value in pa.Table.from_pandas(chosen.to_pandas())["text"].to_pylist()
    ]
    assert 0 < planned.height == sum(lengths) and min(lengths) < max(lengths)
