"""The expressions that parse text: the same times by formats and by arithmetic, and what neither takes."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from gpupipe.io.relational.text_values import Column, infer, parse

TIMES = [
    "2020-01-01",
    "1969-12-31",
    "2020-02-29 23:59:59",
    "1960-01-01T00:00:00.5",
    "2020-01-01 12:30",
    "2020-01-01T12:30:15.123456",
    "0001-01-01 00:00:00",
    "9999-12-31T23:59:59.999999",
]
ZONED = [
    "2020-01-01T00:00:00Z",
    "2020-01-01 00:00:00.25-03:30",
    "2020-01-01T12:30+0530",
    "1969-12-31T23:59:59.999999+14",
    "2020-01-01T00:00Z",
]
WRONG = [
    "2020-02-30",
    "2020-01-01 24:00:00",
    "2020-01-01T12:60",
    "2020-01-01 12:30:15.1234567",
    "soon",
    "",
    "2020-01-01 1",
]


def parsed(texts: list[str], column: Column, *, strict: bool, on_gpu: bool) -> list[object]:
    frame = pl.DataFrame({"t": texts}, schema={"t": pl.String})
    return frame.select(parse(pl.col("t"), column, strict=strict, on_gpu=on_gpu)).to_series().to_list()


@pytest.mark.parametrize(("times", "others"), [(TIMES, ZONED), (ZONED, TIMES)])
def test_times_are_the_same_by_formats_and_by_arithmetic(times: list[str], others: list[str]) -> None:
    texts = pl.Series(times)
    column = infer(texts, texts, None, ())
    assert pa.types.is_timestamp(column.kind)
    by_formats, by_arithmetic = (parsed(times, column, strict=True, on_gpu=on_gpu) for on_gpu in (False, True))
    assert by_formats == by_arithmetic
    assert None not in by_formats
    for wrong in (*others, *WRONG):
        for on_gpu in (False, True):
            assert parsed([wrong], column, strict=False, on_gpu=on_gpu) == [None], wrong
            with pytest.raises(pl.exceptions.PolarsError):
                parsed([times[0], wrong], column, strict=True, on_gpu=on_gpu)


def test_formats_of_the_caller_come_first() -> None:
    texts = pl.Series(["03/04/2020", "2020-04-05 12:00:00.5"])
    column = infer(texts, texts, "timestamp", ["%d/%m/%Y"])
    for on_gpu in (False, True):
        found = parsed(texts.to_list(), column, strict=True, on_gpu=on_gpu)
        assert [str(time) for time in found] == ["2020-04-03 00:00:00", "2020-04-05 12:00:00.500000"]


def test_hours_without_minutes_and_months_without_days() -> None:
    texts = pl.Series(["2020/03 05h"])
    column = infer(texts, texts, "timestamp", ["%Y/%m %Hh"])
    (found,) = parsed(texts.to_list(), column, strict=True, on_gpu=False)
    assert str(found) == "2020-03-01 05:00:00"
