"""Formats of times in text: no value depends on others, and each is what Python's strptime makes of it."""

from __future__ import annotations

import itertools
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe.errors import BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io.relational import csv, ndjson
from gpupipe.io.relational.text_file import Column, parse
from tests.raising import raises

AMERICAN, EUROPEAN = "%m/%d/%Y", "%d/%m/%Y"
DAYS = pd.date_range("2020-01-01", periods=60).as_unit("us")


def write(folder: Path, name: str, *values: str, header: str = "d") -> Path:
    path = folder / f"{name}.csv"
    path.write_text("\n".join([header, *values]) + "\n")
    return path


def read(path: Any, formats: Any, **options: Any) -> list[Any]:
    return gp.read_csv(path, timestamp_formats=formats, **options).to_pandas()["d"].tolist()


@pytest.mark.parametrize("formats", [[AMERICAN, EUROPEAN], [EUROPEAN, AMERICAN]])
def test_a_text_with_two_times_is_an_error_whose_remedy_reads_each_column(tmp_path: Path, formats: list[str]) -> None:
    frame = pd.DataFrame({"us": DAYS.strftime(AMERICAN), "eu": DAYS.strftime(EUROPEAN), "iso": DAYS.strftime("%F")})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(SchemaMismatch, match=r"row 3, column 'us'") as caught:
        gp.read_csv(tmp_path / "a.csv", timestamp_formats=formats)
    assert caught.value.got == "01/02/2020"
    assert "2020-01-02 00:00:00 by '%m/%d/%Y'" in str(caught.value.expected)
    assert "2020-02-01 00:00:00 by '%d/%m/%Y'" in str(caught.value.expected)
    (arguments, _, _) = str(caught.value.remedy).rpartition(", as")
    made = eval(f"gp.read_csv(path, {arguments})", {"gp": gp, "path": tmp_path / "a.csv"}).to_pandas()
    assert all(made[name].tolist() == DAYS.tolist() for name in frame)


def test_no_time_depends_on_other_rows_or_files(tmp_path: Path) -> None:
    other, both = write(tmp_path, "a", "05/05/2024", "05/13/2024"), write(tmp_path, "b", "13/05/2024", "01/02/2024")
    for files in ([both], [other, both], [both, other]):
        with raises(SchemaMismatch, where="b.csv", got="01/02/2024"):
            gp.read_csv(files, timestamp_formats=[AMERICAN, EUROPEAN])
    assert read(other, [EUROPEAN, AMERICAN]) == [pd.Timestamp("2024-05-05"), pd.Timestamp("2024-05-13")]


def test_a_text_with_two_times_is_an_error_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 200)
    path = write(tmp_path, "a", *["13/05/2024"] * 40, "01/02/2024")
    with raises(SchemaMismatch, where="a.csv", match=r"row 42(.|\n)*timestamp_formats=\{'d': '%d/%m/%Y'\}"):
        gp.read_csv(path, timestamp_formats=[AMERICAN, EUROPEAN])


def test_a_column_in_two_formats_at_odds_is_offered_as_text(tmp_path: Path) -> None:
    values = ["13/05/2024", "05/13/2024", "01/02/2024"]
    path = write(tmp_path, "a", *values)
    for formats in ([AMERICAN, EUROPEAN], {"d": [AMERICAN, EUROPEAN]}):
        with raises(SchemaMismatch, where="a.csv", match=r"dtypes=\{'d': 'string'\}", got="01/02/2024"):
            gp.read_csv(path, timestamp_formats=formats)
    assert read(path, [AMERICAN, EUROPEAN], dtypes={"d": "string"}) == values


@pytest.mark.parametrize("of_column", [False, True])
@pytest.mark.parametrize(
    ("formats", "values"),
    [
        (["%d.%m.%Y", "%Y-%m-%d"], ["01.02.2020", "2020-02-01", "01.02.2020"]),
        ([EUROPEAN, f"{EUROPEAN} %H:%M"], ["01/02/2020", "01/02/2020 00:00"]),
        ([EUROPEAN, "%d/%m/%y"], ["01/02/2020", "01/02/20"]),
        (["%d %b %Y", "%d %B %Y", "%b %d, %Y"], ["1 Feb 2020", "1 February 2020", "Feb 1, 2020"]),
    ],
)
def test_formats_that_never_disagree_may_be_in_one_column(
    tmp_path: Path, formats: list[str], values: list[str], of_column: bool
) -> None:
    for forms in itertools.permutations(formats):
        path = write(tmp_path, "a", *(f'"{value}"' for value in values))
        assert read(path, {"d": forms} if of_column else forms) == [pd.Timestamp("2020-02-01")] * len(values)


def test_a_remedy_has_all_formats_that_a_column_needs(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "13/05/2024", "2024-05-13", "01/02/2024")
    with raises(SchemaMismatch, where="a.csv", match=r"timestamp_formats=\{'d': \['%d/%m/%Y', '%Y-%m-%d'\]\}"):
        gp.read_csv(path, timestamp_formats=[AMERICAN, EUROPEAN])
    assert read(path, {"d": [EUROPEAN, "%Y-%m-%d"]})[1:] == [pd.Timestamp("2024-05-13"), pd.Timestamp("2024-02-01")]


def test_a_format_that_reads_iso_otherwise_stands_alone(tmp_path: Path) -> None:
    assert read(write(tmp_path, "a", "2020-01-02"), "%Y-%d-%m") == [pd.Timestamp("2020-02-01")]
    assert read(write(tmp_path, "b", "2020-01-02", "2020-01-13"), "%Y-%d-%m") == ["2020-01-02", "2020-01-13"]
    with raises(SchemaMismatch, where="c.csv", got="2020-01-02"):
        read(write(tmp_path, "c", "2020-01-02"), ["%Y-%d-%m", "%Y-%m-%d"])


def test_formats_of_a_column_are_for_it_alone(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "01/02/2020,01/02/2020,2020-02-01", header="d,text,iso")
    data = gp.read_csv(path, timestamp_formats={"d": EUROPEAN})
    assert data.to_pandas().iloc[0].tolist() == [pd.Timestamp("2020-02-01"), "01/02/2020", pd.Timestamp("2020-02-01")]
    with raises(SchemaMismatch, where="a.csv", match=r"'iso'(.|\n)*dtypes=\{'iso': 'string'\}", got="2020-02-01"):
        gp.read_csv(path, timestamp_formats={"iso": EUROPEAN})


def test_formats_by_column_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "01/02/2020")
    with pytest.raises(ColumnNotFound, match="'e'"):
        gp.read_csv(path, timestamp_formats={"e": EUROPEAN})
    (tmp_path / "e=20200102").mkdir()
    with pytest.raises(ColumnNotFound, match="'e'"):
        gp.read_csv(write(tmp_path / "e=20200102", "a", "1").parent.parent, timestamp_formats={"e": "%Y%m%d"})
    bad: list[Any] = [{"d": []}, {"d": None}, {1: EUROPEAN}, {"d": [EUROPEAN, EUROPEAN]}, {"d": "%Q"}, {"d": "%H"}]
    for formats in bad:
        with pytest.raises(BadConfig):
            gp.read_csv(path, timestamp_formats=formats)
    with raises(BadConfig, where="read_csv", match=r"dtypes=\{'d': 'timestamp'\}", got="string"):
        gp.read_csv(path, timestamp_formats={"d": EUROPEAN}, dtypes={"d": "string"})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%d/%m/%Y %H:%M:%S.%f", "02/01/2020 01:02:03.5"),
        ("%d/%m/%Y %H:%M:%S.%f", "02/01/2020 01:02:03.123456"),
        ("%d/%m/%Y %H:%M:%S,%f", "02/01/2020 01:02:03,25"),
        ("%Y%m%d%H%M%S%f", "20200102010203999999"),
        ("%f %H:%M:%S %d/%m/%Y", "75 01:02:03 02/01/2020"),
        ("%m/%d/%y", "6/15/68"),
        ("%m/%d/%y", "6/15/69"),
        ("%d%m%y", "311299"),
        ("%d/%m/%y %H:%M:%S.%f", "31/12/69 23:59:59.25"),
        ("%x", "12/31/69"),
    ],
)
def test_fractions_and_years_are_those_of_strptime(tmp_path: Path, form: str, text: str) -> None:
    assert read(write(tmp_path, "a", f'"{text}"'), {"d": form}) == [datetime.strptime(text, form)]  # noqa: DTZ007


def test_a_year_of_the_last_century_with_an_offset(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "31/12/69 23:30 -0100", "01/01/69 00:30 +0100")
    times = [pd.Timestamp("1970-01-01 00:30", tz="UTC"), pd.Timestamp("1968-12-31 23:30", tz="UTC")]
    assert read(path, "%d/%m/%y %H:%M %z") == times


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%m/%d/%Y", "1/2/20"),
        ("%m/%d/%Y", "1/2/+2020"),
        ("%d/%m/%Y %H:%M:%S.%f", "02/01/2020 01:02:03"),
        ("%d/%m/%Y %H:%M:%S.%f", "02/01/2020 01:02:03.1234567"),
        ("%d %m %Y", "1 0220 10"),
        ("%Y-%m-%d", "20-01-02"),
    ],
)
def test_what_strptime_refuses_is_no_time(tmp_path: Path, form: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"match|remains"):
        datetime.strptime(text, form)  # noqa: DTZ007
    assert read(write(tmp_path, "a", text), form) == [text]
    with raises(SchemaMismatch, where="a.csv", got=text):
        read(write(tmp_path, "a", text), {"d": form})


@pytest.mark.parametrize("reader", [gp.read_csv, gp.read_json])
@pytest.mark.parametrize("later", ["20-01-02", "20-01-02 10:00:00.5"])
def test_a_year_of_two_digits_among_dates_of_iso_is_an_error(
    tmp_path: Path, reader: Any, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 200)
    monkeypatch.setattr(ndjson, "BLOCK_BYTES", 200)
    times = [*[f"2020-01-02{later[8:]}"] * 40, later]
    lines = ["d", *times] if reader is gp.read_csv else [json.dumps({"d": time}) for time in times]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    with raises(SchemaMismatch, where="a", got=later):
        reader(tmp_path / "a")


@pytest.mark.parametrize("form", ["%H:%M", "%d/%m", "%B %d", "%d/%m/%Y %I:%M"])
def test_a_format_of_no_time_is_refused(tmp_path: Path, form: str) -> None:
    for formats in (form, {"d": form}):
        with raises(BadConfig, where="read_csv", got=form):
            gp.read_csv(write(tmp_path, "a", "12:30"), timestamp_formats=formats)


def test_times_in_digits_are_asked_for_by_column(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "a", "20200102,20200103", "20200103,17", header="d,amount")
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert read(path, "%Y%m%d") == [20200102, 20200103]
    assert "timestamp_formats={'d': '%Y%m%d'}" in caplog.text
    assert "'amount'" not in caplog.text
    data = gp.read_csv(path, timestamp_formats={"d": "%Y%m%d"}).to_pandas()
    assert data["d"].tolist() == [pd.Timestamp("2020-01-02"), pd.Timestamp("2020-01-03")]
    assert data["amount"].tolist() == [20200103, 17]
    assert read(write(tmp_path, "b", "01022020"), {"d": "%d%m%Y"}) == [pd.Timestamp("2020-02-01")]


def test_many_formats_make_a_plan_of_some_size() -> None:
    forms = tuple(f"%d{sign}%m{sign}%Y{clock}" for sign in "/.-_:" for clock in ("", " %H:%M"))
    column = Column(pa.timestamp("us"), None, forms, forms)
    assert len(parse(pl.col("d"), column).meta.serialize()) < 1_000_000


@pytest.mark.parametrize("on_gpu", [False, True])
def test_plans_of_both_backends_refuse_two_times_in_one_text(on_gpu: bool) -> None:
    frame = pl.DataFrame({"d": ["05/05/2020", "13/05/2020", "05/13/2020", "01/02/2020", "1/2/20"]})
    column = Column(pa.timestamp("us"), None, (AMERICAN, EUROPEAN), (AMERICAN, EUROPEAN))
    parsed = frame.select(parse(pl.col("d"), column, strict=False, on_gpu=on_gpu)).to_series()
    assert parsed.is_null().to_list() == [False, False, False, True, True]


def test_a_day_of_the_week_that_is_not_the_dates_is_named(tmp_path: Path) -> None:
    """September 5 of 2002 is a Thursday; Python reads it with any day of the week."""
    form, path = "%a, %d %b %Y %H:%M:%S %z", tmp_path / "mails.csv"
    path.write_text("d\n" + '"Fri, 06 Sep 2002 09:22:32 +0100"\n' * 9 + '"Fri, 05 Sep 2002 09:22:32 +0100"\n')
    with raises(SchemaMismatch, where="mails.csv", match="row 11, column 'd': invalid value") as caught:
        gp.read_csv(path, timestamp_formats={"d": form})
    assert caught.value.remedy == (
        f"dtypes={{'d': 'string'}} in place of {form}: the day of the week is another than the date's"
    )
    assert gp.read_csv(path, dtypes={"d": "string"}).schema["d"].dtype == "string"
