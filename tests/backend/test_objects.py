"""Columns of Python's objects, as `read_csv` and databases give them, are read as what their values are."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe.backend import select
from tests.raising import raises

UTC = dt.UTC
NAIVE = dt.datetime.fromisoformat("2024-01-01 05:00")


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False, None], "bool"),
        ([1, None, 2**53 + 1], "int64"),
        ([2**64 - 1, None], "uint64"),
        ([1.5, None], "float64"),
        ([Decimal("1.50"), None], "decimal128(38, 2)"),
        ([dt.date(2024, 1, 1), None], "timestamp"),
        ([NAIVE, None], "timestamp"),
        ([pd.Timedelta(3, "us"), None], "duration[us]"),
        ([dt.time(1, 2, 3, 4), None], "time64[us]"),
        ([b"x", None], "binary"),
        ([{"city": "Oslo"}, None], "struct<city: string>"),
        ([["a"], None], "list<string>"),
        ([[["a"]], None], "list<item: list<item: string>>"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_objects_are_read_as_what_they_are(values: list[Any], dtype: str) -> None:
    dataset = gp.from_frame(pd.DataFrame({"x": pd.Series(values, dtype=object)}), backend="cpu")
    assert dataset.schema["x"].dtype == dtype
    assert dataset.conversions == ()
    cpu = select("cpu")
    found = cpu.to_arrow(dataset.read(dataset.partitions[0]))["x"].to_pylist()
    date = isinstance(values[0], dt.date) and not isinstance(values[0], dt.datetime)
    assert found == ([NAIVE.replace(hour=0), None] if date else values)
    assert dataset.schema["x"].written_as == ("date32[day]" if date else "")


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        *(
            (values, "frame.astype({'x': 'str'}), or the frame without it")
            for values in ([object(), None], [1, "a"], [["a"], "b"], [1 + 2j], [dt.date(2024, 1, 1), NAIVE])
        ),
        ([NAIVE, NAIVE.replace(tzinfo=UTC)], "pd.to_datetime(frame['x'], utc=True)"),
        ([2**64, None], "frame.astype({'x': 'float64'}), or 'str' for all digits of an id"),
    ],
)
def test_objects_of_no_one_type_are_left_out_and_named(
    values: list[Any], remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object), "y": range(len(values))})
    with caplog.at_level("WARNING", "gpupipe"):
        dataset = gp.from_frame(frame, backend="cpu")
    assert [(note.action, note.column) for note in dataset.conversions] == [("left out", "x")]
    assert "column 'x': left out" in caplog.text
    assert all(type(value).__name__ in caplog.text for value in values if value is not None)
    assert dataset.columns == ["y"]
    with raises(errors.SchemaMismatch, where="column 'x'", got="object"):
        dataset.select("x")
    with pytest.raises(errors.SchemaMismatch) as caught:
        select("cpu").encode(frame)
    assert caught.value.where == "column 'x'"
    assert caught.value.remedy == remedy


def test_a_type_of_pandas_that_arrow_has_otherwise() -> None:
    frame = pd.DataFrame(
        {
            "half": pd.Series([0.5, 1.0], dtype="float16"),
            "sparse": pd.arrays.SparseArray([0.0, 2.0]),
            "swapped": pd.Series([1, 2], dtype=">i4"),
            "numbers": pd.Categorical([3, None], categories=[3, 1]),
            "order": pd.Categorical(["b", None], categories=["b", "a"], ordered=True),
            "zoned": pd.Series([0, None], dtype=pd.ArrowDtype(pa.timestamp("us", "America/New_York"))),
            "month": pd.period_range("2024-01", periods=2, freq="M"),
        }
    )
    dataset = gp.from_frame(frame)
    assert {note.column: note.action for note in dataset.conversions} == {
        **dict.fromkeys(("half", "sparse", "order"), "converted"),
        "month": "left out",
    }
    assert {item.name: item.dtype for item in dataset.schema} == {
        "half": "float32",
        "sparse": "float64",
        "swapped": "int32",
        "numbers": "int64",
        "order": "string",
        "zoned": "timestamp",
    }
    found = dataset.compute()
    assert str(found["zoned"].dtype) == "datetime64[us, America/New_York]"
    assert found["zoned"][0] == pd.Timestamp(0, tz="UTC")
    assert found["swapped"].tolist() == [1, 2]
    assert found["numbers"].tolist() == [3, pd.NA]


@pytest.mark.parametrize(
    ("given", "found"),
    [([True, False], [2, 3]), ([1.0, 0.0], [2, 3]), ([1.5, 0.0], errors.BadData), (["1", "0"], errors.SchemaMismatch)],
)
def test_a_pipeline_takes_equal_values_of_another_type_than_in_fit(given: list[Any], found: Any) -> None:
    learned = gp.Pipeline([], gp.Features((["x"], gp.preprocessing.Categorify()))).fit(pd.DataFrame({"x": [1, 1, 0]}))
    frame = pd.DataFrame({"x": given})
    if isinstance(found, list):
        assert learned.transform(frame)["x"].tolist() == found
    else:
        with pytest.raises(found, match="column 'x'"):
            learned.transform(frame)
