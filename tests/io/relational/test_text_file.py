"""The expressions that parse text: the same times by formats and by arithmetic, and what neither takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe.errors import SchemaMismatch
from gpupipe.io.relational import csv, ndjson, text_file
from gpupipe.io.relational.text_file import LEAP, Column, cut_lines, infer, infer_time, parse, read_lines
from gpupipe.io.relational.time_formats import TimeFormats
from tests.raising import raises

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
    "2016-12-31 23:59:60",
    "2016-12-31T23:59:60.5",
    "2016-12-31T23:59:60Z",
    "2016-12-31T23:59:60.25+01:00",
    "2020-01-01T12:60",
    "2020-01-01 12:30:15.1234567",
    "soon",
    "",
    "2020-01-01 1",
]


def parsed(texts: list[str], column: Column, *, strict: bool, on_gpu: bool) -> list[object]:
    frame = pl.DataFrame({"t": texts}, schema={"t": pl.String})
    return frame.select(parse(pl.col("t"), column, strict=strict, on_gpu=on_gpu)).to_series().to_list()


@pytest.mark.slow
@pytest.mark.parametrize(("times", "others"), [(TIMES, ZONED), (ZONED, TIMES)])
def test_times_are_the_same_by_formats_and_by_arithmetic(times: list[str], others: list[str]) -> None:
    texts = pl.Series(times)
    column = infer(texts, texts, None, TimeFormats())
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
    column = infer(texts, texts, "timestamp", TimeFormats(("%d/%m/%Y",)))
    for on_gpu in (False, True):
        found = parsed(texts.to_list(), column, strict=True, on_gpu=on_gpu)
        assert [str(time) for time in found] == ["2020-04-03 00:00:00", "2020-04-05 12:00:00.500000"]


def test_hours_without_minutes_and_months_without_days() -> None:
    texts = pl.Series(["2020/03 05h"])
    column = infer(texts, texts, "timestamp", TimeFormats(("%Y/%m %Hh",)))
    (found,) = parsed(texts.to_list(), column, strict=True, on_gpu=False)
    assert str(found) == "2020-03-01 05:00:00"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "leap", "times"),
    [
        ("%d.%m.%Y %H:%M:%S", "31.12.2016 23:59:60", ["1.2.1960 3:04:05", "31.12.2016 23:59:06"]),
        ("%Y%m%d%H%M%S", "20161231235960", ["20200101120605", "19600101000000", "20160601060600"]),
        ("%T %F", "23:59:60 2016-12-31", ["23:59:06 1960-06-01"]),
        ("%H.%M.%S %d.%m.%y", "23.59.60 31.12.16", ["23.06.06 01.02.60"]),
        ("%I:%M:%S %p %d/%m/%Y", "11:59:60 PM 31/12/2016", ["11:06:06 PM 06/06/1960"]),
        ("%Y-%m-%d %H:%M:%S%.f", "2016-12-31 23:59:60.500", ["2016-12-31 23:59:59.600"]),
        ("%d/%m/%Y %H:%M:%S%z", "31/12/2016 23:59:60+0100", ["06/06/1960 06:06:06+0030"]),
    ],
)
def test_a_leap_second_in_any_format_is_no_time(form: str, leap: str, times: list[str]) -> None:
    texts = pl.Series(times)
    column = infer(texts, texts, "timestamp", TimeFormats((form,)))
    assert None not in parsed(times, column, strict=True, on_gpu=False)
    assert parsed([leap], column, strict=False, on_gpu=False) == [None]
    for others in (times, []):
        with_leap = infer_time(pl.Series([*others, leap]), TimeFormats((form,)))
        assert with_leap is None


@pytest.mark.slow
@pytest.mark.parametrize("read", [gp.read_csv, gp.read_json])
@pytest.mark.parametrize("block", [64, 8 << 20])
def test_a_leap_second_is_kept_as_text_with_a_note_or_an_error(
    read: Any, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (csv, ndjson):
        monkeypatch.setattr(module, "BLOCK_BYTES", block)
    times = ["2016-12-31 23:59:59"] * 10 + ["2016-12-31 23:59:60", "2017-01-01 00:00:00"]
    lines = ["at", *times] if read is gp.read_csv else [json.dumps({"at": time}) for time in times]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    if block == 64:
        with raises(SchemaMismatch, where="a", got="2016-12-31 23:59:60"):
            read(tmp_path / "a")
        return
    dataset = read(tmp_path / "a")
    assert dataset.to_pandas()["at"].tolist() == times
    assert [LEAP in note.reason for note in dataset.conversions] == [True]
    with raises(SchemaMismatch, where="a", got="2016-12-31 23:59:60"):
        read(tmp_path / "a", dtypes={"at": "timestamp"})


@pytest.mark.parametrize("part", [1, 3, 5, 64, 4 << 20])
@pytest.mark.parametrize("text", ["a\nbc\n\nd\n", "a\nbc", "a\r", "x" * 63, "x" * 64, "x" * 64 + "\n"])
def test_a_file_is_cut_behind_lines(part: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "_PART_BYTES", part)
    (tmp_path / "a").write_bytes(text.encode())
    parts = [read_lines(tmp_path / "a", *cut).tobytes() for cut in cut_lines(tmp_path / "a")]
    assert all(len(one) % 64 == 0 for one in parts)
    lines = [one.rstrip(b"\0") for one in parts]
    assert b"".join(lines).decode() == text + ("" if text.endswith(("\n", "\r")) else "\n")
    assert all(one.endswith(b"\n") for one in lines[:-1])
    assert len(lines) == (1 if part > len(text) else len(text.splitlines()) if part == 1 else len(lines))
