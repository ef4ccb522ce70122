"""Casts against Python's exact numbers and Arrow's texts: every value as it was, or an error that names it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.backend import Backend
from gpupipe.backend.arrow import arrow_type
from gpupipe.backend.cast import cast_column, require_castable
from gpupipe.backend.columns import Column
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, LISTS, Field, is_passenger
from tests.examples import examples
from tests.raising import raises

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive, as timestamps are here
EDGES = sorted(
    {sign * 2**power + near for sign in (-1, 1) for power in (0, 7, 15, 24, 31, 53, 62) for near in (-1, 0, 1)}
)
EDGES += [2**63 - 1, -(2**63), 2**63, 2**63 + 1, 2**63 + 2**40, 2**64 - 1, 2**64 - 2**11, 0]
REALS = [0.1, -0.5, 1e39, -1e300, 3.5e38, 1e-300, 5e-324, float("inf"), -float("inf"), 2.0**63, 2.0**64, 2.0**31, -0.0]
TEXTS = [
    "",
    "a",
    " 7 ",
    "0.1",
    "007",
    "0xFF",
    "0x10",
    "+5",
    "-0",
    "1e300",
    "1e400",
    "inf",
    "-Infinity",
    "TRUE",
    "0",
    "no",
]
TEXTS += ["1_0", "2013-01-01", "2013-01-01 05:00", "2013-01-01T05:00:00.000001", "2013-01-01 05:00:00.1234567"]


class Unfit(Exception):
    """What the oracle says to a value that would not be the same."""


def values_of(dtype: str) -> st.SearchStrategy[Any]:
    if dtype in INTEGERS:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        return st.sampled_from([edge for edge in EDGES if low <= edge <= high]) | st.integers(low, high)
    if dtype in FLOATS:
        wide = st.sampled_from(REALS) | st.integers(-300, 300).map(float) | st.sampled_from(EDGES).map(float)
        return wide.map(narrowed) if dtype == "float32" else wide | st.floats(allow_nan=False)
    if dtype == "bool":
        return st.booleans()
    if dtype == "timestamp":
        return st.integers(-(10**15), 10**15) | st.sampled_from([0, 1, -1, 999_999])
    numbers = st.one_of(st.sampled_from(EDGES), st.sampled_from(REALS), st.integers(-(2**65), 2**65))
    return st.sampled_from(TEXTS) | numbers.map(str)


def narrowed(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def meant(value: Any, source: str, dtype: str) -> Any:
    """The value as another type, in Python's own arithmetic."""
    if value is None or source == dtype:
        return value
    if dtype == "string":
        return written(value, source)
    if source == "string":
        return parsed(value.strip(), dtype)
    if "timestamp" in (source, dtype):
        return fitting(value, dtype == "int64" or value != -(2**63))
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            made = float(np.dtype(dtype).type(value))
        return fitting(made, np.isinf(made) == np.isinf(float(value)) and (source in FLOATS or int(made) == value))
    if dtype == "bool":
        return fitting(bool(value), value in (0, 1))
    return whole(value, dtype)


def whole(value: Any, dtype: str) -> int:
    fits = not np.isinf(float(value)) and value == int(value)
    return int(fitting(value, fits and np.iinfo(dtype).min <= int(value) <= np.iinfo(dtype).max))


def written(value: Any, source: str) -> str:
    if source == "timestamp":
        text = str(pa.scalar(value, pa.int64()).cast(pa.timestamp("us")).cast(pa.string()))
        return str(fitting(text, "out of range" not in text))
    if source in FLOATS:
        return repr(np.dtype(source).type(value) + np.dtype(source).type(0)).split("(")[1][:-1]
    return str(value)


def parsed(text: str, dtype: str) -> Any:
    if dtype == "bool":
        return fitting(text.lower() in ("1", "true"), text.lower() in ("0", "1", "true", "false"))
    if dtype == "timestamp":
        form = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?"
        return (datetime.fromisoformat(fitting(text, re.fullmatch(form, text))) - EPOCH) // timedelta(microseconds=1)
    if dtype in INTEGERS:
        return whole(int(fitting(text, re.fullmatch("[0-9]+" if dtype[0] == "u" else "-?[0-9]+", text))), dtype)
    if re.fullmatch("[-+]?(inf|infinity)", text, re.IGNORECASE):
        return float(text)
    with np.errstate(over="ignore"):
        made = float(np.dtype(dtype).type(fitting(text, re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?", text))))
    survives = not np.isinf(made) and ("e" in text or "." in text or int(made) == int(text))
    return fitting(made, survives)


def fitting(value: Any, fits: Any) -> Any:
    if not fits:
        raise Unfit
    return value


def column_of(values: list[Any], dtype: str, backend: Backend) -> Any:
    array = pa.array(values, pa.int64() if dtype == "timestamp" else arrow_type(dtype)).cast(arrow_type(dtype))
    field = Field("x", dtype)
    return backend.column(backend.from_arrow(pa.table({"x": array}), [field]), "x")


def plain(column: Any, backend: Backend) -> list[Any]:
    """Values as Python has them, None where missing; times in microseconds."""
    data, missing = backend.to_host(column.data), column.missing(backend.xp)
    gaps = np.zeros(len(data), bool) if missing is None else backend.to_host(missing)
    values = data.tolist() if column.dictionary is None else np.array([*column.dictionary.to_pylist(), ""])[data]
    return [None if gap else value for value, gap in zip(values, gaps, strict=True)]


def apart(source: str, dtype: str) -> bool:
    return "timestamp" in (source, dtype) and not {source, dtype} <= {"timestamp", "int64", "string"}


PAIRS = [(source, dtype) for source in DTYPES for dtype in DTYPES if not apart(source, dtype)]


@pytest.mark.slow
@pytest.mark.parametrize(("source", "dtype"), PAIRS)
@examples(15)
@given(data=st.data())
def test_a_cast_keeps_every_value_or_names_one(backend: Backend, source: str, dtype: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | values_of(source), max_size=4))
    column = column_of(values, source, backend)
    wanted, unfit = [], []
    for value in values:
        try:
            wanted.append(meant(value, source, dtype))
        except Unfit:
            unfit.append(value.strip() if source == "string" else value)
    if not unfit:
        made = cast_column(column, dtype, "x", backend)
        assert made.dtype == dtype and plain(made, backend) == wanted
        return
    with raises(errors.BadData, where="Cast of column 'x'", match=" not fit ") as refused:
        cast_column(column, dtype, "x", backend)
    assert refused.value.got in unfit


@pytest.mark.parametrize("source", DTYPES)
def test_what_is_missing_is_never_in_the_way(backend: Backend, source: str) -> None:
    for dtype in DTYPES:
        if not apart(source, dtype):
            gaps = cast_column(column_of([None, None], source, backend), dtype, "x", backend)
            assert plain(gaps, backend) == [None, None]
            assert len(cast_column(column_of([], source, backend), dtype, "x", backend)) == 0


@pytest.mark.parametrize(
    ("source", "value", "dtype", "said"),
    [
        ("float64", 1e300, "float32", r"a value does not fit float32, got 1e\+300"),
        ("int64", 2**53 + 1, "float64", r"got 9007199254740993.*\n.*2\*\*53 only if exactly.\nTry: leave it int64"),
        ("int32", 2**24 + 1, "float32", r"got 16777217.*\n.*beyond 2\*\*24"),
        ("int64", 2**63 - 1, "float64", "got 9223372036854775807"),
        ("uint64", 2**64 - 1, "float32", "got 18446744073709551615"),
        ("string", "9007199254740993", "float64", "got '9007199254740993'.*\n.*\nTry: leave it string"),
        ("string", "1e400", "float64", "got '1e400'"),
        ("string", "0xFF", "int8", "got '0xFF'"),
        ("float64", 1.5, "int8", r"got 1.5(.|\n)*Derive\(x='round\(x\)'\)"),
        ("float64", float("inf"), "int8", r"got inf(.|\n)*a Filter"),
        ("int64", -(2**63), "timestamp", "got -9223372036854775808"),
        ("timestamp", 2**62, "string", r"got 4611686018427387904(.|\n)*Cast\(\{'x': 'int64'\}\)"),
    ],
)
def test_the_message_helps(backend: Backend, source: str, value: Any, dtype: str, said: str) -> None:
    with pytest.raises(errors.BadData, match=said):
        cast_column(column_of([None, value], source, backend), dtype, "x", backend)


CARRIED = ("decimal128(9, 2)", "duration[us]", "time64[us]", "binary", "fixed_size_binary[4]", "struct<a: int64>")


def remedy_of(source: str, dtype: str) -> str | None:
    try:
        require_castable(source, dtype, "x")
    except errors.SchemaMismatch as error:
        return error.remedy
    return None


@pytest.mark.parametrize("source", [*DTYPES, *LISTS, *CARRIED])
def test_the_remedy_of_a_cast_that_does_not_exist_works(source: str) -> None:
    for dtype in (*DTYPES, *LISTS):
        remedy = remedy_of(source, dtype)
        if remedy is None:
            continue
        if found := re.match(r"Cast\(\{'x': '(.+?)'\}\)", remedy):
            assert found[1] not in (source, dtype)
            require_castable(source, found[1], "x")
            require_castable(found[1], dtype, "x")
        elif remedy.startswith("Derive(x='int(x * 1000000)')"):
            assert source in FLOATS and dtype == "timestamp"
        elif remedy.startswith("Derive(x_length='len(x)')"):
            assert source in LISTS and dtype not in LISTS
        elif remedy.startswith("Map(fn, reads=['x'], adds=['x'])"):
            assert dtype in LISTS and source not in LISTS
        else:
            assert is_passenger(source) and remedy.startswith("keep=['x']")


def test_the_remedy_for_bytes_that_are_no_text_works() -> None:
    data = gp.from_frame(pa.table({"x": [b"\xff", b"a"], "n": [1, 2]}))
    with pytest.raises(errors.BadData) as caught:
        gp.Pipeline([T.Cast({"x": "string"})]).fit(data).transform(data).compute()
    assert caught.value.remedy.startswith("leave it binary, or Map(fn, reads=['x'], adds=['x'])")
    step = T.Map(decode, reads=["x"], adds=["x"])
    assert gp.Pipeline([step]).fit(data).transform(data).compute()["x"].tolist() == ["ÿ", "a"]


def decode(frame: Any) -> Any:
    return frame.assign(x=[item.decode("latin-1") for item in frame["x"]])


@pytest.mark.parametrize("texts", [["1975-10-1", "1975-06-27"], ["2020-1-5 6:30", "2020-11-25 16:30"]])
def test_the_remedy_for_dates_without_zeros_works_for_any_column(texts: list[str]) -> None:
    data, cast = gp.from_frame(pd.DataFrame({"x": texts})), T.Cast({"made": "timestamp"})
    with pytest.raises(errors.BadData) as caught:
        gp.Pipeline([T.Derive(made="x"), cast]).fit(data).transform(data).compute()
    step = eval(caught.value.remedy.removesuffix(" before it"), {"T": T})
    times = gp.Pipeline([T.Derive(made="x"), step, cast]).fit(data).transform(data).compute()["made"]
    assert times.tolist() == [pd.Timestamp(text) for text in texts]


def test_the_remedy_for_values_of_a_list_is_one_for_lists(backend: Backend) -> None:
    numbers = column_of([1.5, 2.0], "float64", backend)
    column = Column("list<float64>", backend.to_device(np.array([0, 1, 2])), None, None, numbers)
    with pytest.raises(errors.BadData) as caught:
        cast_column(column, "list<int64>", "x", backend)
    assert caught.value.row == 0 and caught.value.remedy == "leave it list<float64>"


def test_times_that_differ_are_texts_that_differ(backend: Backend) -> None:
    column = column_of([1_000_000, 1_000_001, None], "timestamp", backend)
    texts = cast_column(column, "string", "t", backend)
    assert plain(texts, backend) == ["1970-01-01 00:00:01.000000", "1970-01-01 00:00:01.000001", None]
    assert plain(cast_column(texts, "timestamp", "t", backend), backend) == plain(column, backend)


def test_ordinary_rounding_is_no_loss(backend: Backend) -> None:
    column = column_of([0.1, 16_777_217.0, 1e-300], "float64", backend)
    assert plain(cast_column(column, "float32", "x", backend), backend) == [float(np.float32(0.1)), 16_777_216.0, 0.0]


@pytest.mark.parametrize("values", [[0.0, -0.0], [-0.0, 0.0]])
def test_zero_has_one_text(backend: Backend, values: list[float]) -> None:
    assert plain(cast_column(column_of(values, "float64", backend), "string", "x", backend), backend) == ["0.0"] * 2


@pytest.mark.parametrize("source", ["string", "int64", "float32", "bool", "timestamp", "list<string>"])
def test_nothing_becomes_a_type_that_is_only_carried(source: str) -> None:
    for dtype in CARRIED:
        with raises(errors.SchemaMismatch, where="column 'x'", match=f"^column 'x': {source} cannot become"):
            require_castable(source, dtype, "x")


@pytest.mark.parametrize("dtype", ["float64", "bool", "int32"])
def test_times_are_no_other_numbers(backend: Backend, dtype: str) -> None:
    with pytest.raises(errors.SchemaMismatch, match=f"timestamp cannot become {dtype}"):
        cast_column(column_of([0], "timestamp", backend), dtype, "t", backend)


def test_a_text_of_two_words_is_offered_the_condition(backend: Backend) -> None:
    column = column_of(["N", "Y", None], "string", backend)
    with raises(errors.BadData, where="Cast of column 'late'", remedy="""T.Derive(late="late == 'Y'") in its place"""):
        cast_column(column, "bool", "late", backend)


def test_all_texts_that_are_no_numbers_are_counted() -> None:
    texts = ["12.5"] * 50 + ["n.a."] * 3 + [f"€ {number}" for number in range(47)]
    with pytest.raises(errors.BadData, match=r"50 values do not fit float64, got 'n\.a\.'") as caught:
        gp.Pipeline([T.Cast({"x": "float64"})]).fit(pd.DataFrame({"x": texts})).transform(pd.DataFrame({"x": texts}))
    assert caught.value.row == 50
