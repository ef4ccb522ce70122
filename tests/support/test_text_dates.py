"""Dates that are text, such as 31.12.2023 before 01.02.2024, put no rows in order."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import BadConfig, BadData, ExpressionError, GpupipeError
from gpupipe.support.text_dates import find_formats, find_misordered_dates, find_misordered_periods, is_date

DAYS = pd.date_range("2023-01-01", "2024-06-30")
FRAME = pd.DataFrame({"date": DAYS, "sales": range(len(DAYS))})
MISORDERED = {
    "%d.%m.%Y": "29.02.2024",
    "%m/%d/%Y": "02/29/2024",
    "%d-%b-%y": "29-Feb-24",
    "%d.%m.%Y %H:%M": "29.02.2024 00:00",
    "%A %d %B %Y": "Thursday 29 February 2024",
    "%b-%y": "Feb-24",
    "%m/%Y": "02/2024",
    "%m-%Y": "02-2024",
    "%m.%Y": "02.2024",
}
IN_ORDER = {
    "%Y/%m/%d": "2024/02/29",
    "%Y.%m.%d %H:%M": "2024.02.29 00:00",
    "day %j": "day 060",
    "%Y week %W": "2024 week 09",
}


def read(form: str, folder: Path) -> gp.Dataset:
    FRAME.assign(date=FRAME.date.dt.strftime(form)).to_csv(folder / "sales.csv", index=False)
    return gp.read_csv(folder / "sales.csv", dtypes={"date": "string"})  # 02.2024 would be a number


def lag(data: gp.Dataset, *before: T.Transform) -> Any:
    return gp.Pipeline([*before, T.Lag("sales", 7, order_by="date")]).fit(data).transform(data).compute()


ORDERED: dict[str, Callable[[gp.Dataset, str], Any]] = {
    "lag": lambda data, day: lag(data),
    "lag after a step": lambda data, day: lag(data, T.Derive(date="coalesce(date, date)")),
    "window of a frame": lambda data, day: T.Rolling("sales", 7, "mean", order_by="date").transform(data.compute()),
    "cut": lambda data, day: data.split(by="date", at=day),
    "folds": lambda data, day: data.kfold(2, by="date", forward=True),
    "sort": lambda data, day: data.sort("date"),
    "sort of two": lambda data, day: data.sort(["sales", "date"], ascending=False),
    "filter": lambda data, day: data.filter(f"date < {day!r}"),
    "filter, the other way": lambda data, day: data.filter(f"{day!r} >= date"),
    "rows": lambda data, day: gp.Pipeline([], gp.Features(["sales"])).fit(data, rows=f"date < {day!r}"),
}


@pytest.mark.parametrize("verb", ORDERED)
@pytest.mark.parametrize("form", MISORDERED)
def test_they_put_no_rows_in_order(form: str, verb: str, tmp_path: Path) -> None:
    data, day = read(form, tmp_path), MISORDERED[form]
    with pytest.raises(GpupipeError, match="letters") as caught:
        ORDERED[verb](data, day)
    assert isinstance(caught.value, BadData | ExpressionError) and repr(form) in str(caught.value)
    parsed = gp.read_csv(tmp_path / "sales.csv", timestamp_formats={"date": form})
    ORDERED[verb](parsed, "2024-02-29")


@pytest.mark.parametrize("verb", ORDERED)
@pytest.mark.parametrize("form", IN_ORDER)
def test_other_texts_do(form: str, verb: str, tmp_path: Path) -> None:
    ORDERED[verb](read(form, tmp_path), IN_ORDER[form])


def test_days_without_zeros_are_no_texts_in_order(tmp_path: Path) -> None:
    texts = [f"{day.year}-{day.month}-{day.day}" for day in DAYS]
    FRAME.assign(date=texts).to_csv(tmp_path / "sales.csv", index=False)
    with pytest.raises(BadData, match="'%Y-%m-%d'"):
        lag(gp.read_csv(tmp_path / "sales.csv"))
    parsed = gp.read_csv(tmp_path / "sales.csv", timestamp_formats={"date": "%Y-%m-%d"})
    assert lag(parsed).sales_lag_7.tolist()[7:] == FRAME.sales.tolist()[:-7]


def test_they_may_be_equal(tmp_path: Path) -> None:
    data = read("%d.%m.%Y", tmp_path)
    assert data.filter("date == '29.02.2024' or date in ['01.03.2024']").compute().sales.tolist() == [424, 425]


TESTED: dict[str, Callable[[gp.Dataset, str], Any]] = {
    "filter": lambda data, condition: data.filter(condition),
    "filter of derived text": lambda data, condition: data.assign(date="coalesce(date, date)").filter(condition),
    "filter step": lambda data, condition: T.Filter(condition).transform(data.compute()),
    "filter step of a pipeline": lambda data, condition: (
        gp.Pipeline([T.Filter(condition)]).fit(data).transform(data).compute()
    ),
    "derived": lambda data, condition: T.Derive(late=condition).transform(data.compute()),
    "rows": lambda data, condition: gp.Pipeline([], gp.Features(["sales"])).fit(data, rows=condition),
}
CONDITIONS = [
    "date >= '2024-01-20'",
    "'2024-01-20' > date",
    "date == '2024-01-20'",
    "sales > 1 or date in ['2024-01-20']",
]


@pytest.mark.parametrize("verb", TESTED)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("form", ["%m/%d/%Y", "%Y/%m/%d", "%A %d %B %Y"])
def test_they_are_not_compared_with_dates_in_another_format(
    form: str, condition: str, verb: str, tmp_path: Path
) -> None:
    with pytest.raises(ExpressionError, match="letters") as caught:
        TESTED[verb](read(form, tmp_path), condition)
    assert repr(form) in str(caught.value) and "column 'date'" in str(caught.value)
    TESTED[verb](gp.read_csv(tmp_path / "sales.csv", timestamp_formats={"date": form}), condition)


@pytest.mark.parametrize("verb", [*TESTED, "cut"])
def test_months_are_not_compared_with_the_day_that_they_begin_with(verb: str, tmp_path: Path) -> None:
    """All of 2024-01 comes before 2024-01-01 by its letters."""
    data = read("%Y-%m", tmp_path)
    with pytest.raises(GpupipeError, match="letters") as caught:
        ORDERED["cut"](data, "2024-01-01") if verb == "cut" else TESTED[verb](data, "date >= '2024-01-01'")
    assert "Try: at='2024-01'; or" in str(caught.value) if verb == "cut" else "Try: '2024-01'; or" in str(caught.value)
    assert "'%Y-%m'" in str(caught.value)


MIXED = [("%m/%d/%Y", "%Y-%m-%d"), ("%d.%m.%Y", "%Y-%m-%d %H:%M"), ("%d-%b-%y", "%m/%d/%Y"), ("%m/%d/%Y", "%d.%m.%Y")]


@pytest.mark.parametrize("verb", ORDERED)
@pytest.mark.parametrize("step", [3, 500])
@pytest.mark.parametrize("forms", MIXED)
@pytest.mark.slow
def test_neither_do_dates_in_several_formats(forms: tuple[str, str], step: int, verb: str, tmp_path: Path) -> None:
    """One date in another format had ended the notice of all."""
    texts = [DAYS.strftime(form).to_series(index=FRAME.index) for form in forms]
    mixed = FRAME.assign(date=texts[0].where(FRAME.index % step > 0, texts[1]))
    mixed.to_csv(tmp_path / "sales.csv", index=False)
    data = gp.read_csv(tmp_path / "sales.csv")
    with pytest.raises(GpupipeError, match="letters") as caught:
        ORDERED[verb](data, "2024-01-20")
    call, to_datetime = re.findall(r"(gp.read_csv\(.*?\)), or (pd.to_datetime.*)", str(caught.value))[0]
    parsed = eval(call.replace("...", "path"), {"gp": gp, "path": tmp_path / "sales.csv"})
    assert parsed.compute()["date"].tolist() == DAYS.tolist()
    assert eval(to_datetime, {"pd": pd, "frame": mixed}).tolist() == DAYS.tolist()
    ORDERED[verb](parsed, "2024-01-20")


@pytest.mark.parametrize("verb", ORDERED)
@pytest.mark.parametrize("forms", [("%m/%d/%Y", "%d/%m/%Y"), ("%Y-%m-%d", "%Y/%m/%d")])
@pytest.mark.slow
def test_neither_do_those_whose_order_or_signs_differ(forms: tuple[str, str], verb: str) -> None:
    texts = [DAYS.strftime(form).to_series(index=FRAME.index) for form in forms]
    with pytest.raises(GpupipeError, match="letters"):
        ORDERED[verb](gp.from_frame(FRAME.assign(date=texts[0].where(FRAME.index % 2 > 0, texts[1]))), "2024-01-20")


@pytest.mark.parametrize("verb", ORDERED)
def test_neither_do_dates_beside_spans_of_dates(verb: str) -> None:
    dates = DAYS.strftime("%m/%d/%Y").to_series(index=FRAME.index)
    spans = dates.where(FRAME.index % 6 > 0, dates + " - " + dates.shift(-5).fillna("?"))
    with pytest.raises(GpupipeError, match="letters") as caught:
        ORDERED[verb](gp.from_frame(FRAME.assign(date=spans)), "01/20/2024")
    assert "Try: pd.to_datetime(frame['date'], format='%m/%d/%Y', errors='coerce')" in str(caught.value)


@pytest.mark.parametrize("at", ["2024-01-20", "01/20/2024"])
def test_they_are_not_cut_at_a_date_in_another_format(at: str, tmp_path: Path) -> None:
    data = read("%Y/%m/%d", tmp_path)
    with pytest.raises(BadConfig, match=r"split\(by='date', at=\): dates as text are cut") as caught:
        data.split(by="date", at=at)
    assert repr(at) in str(caught.value) and "'date': '%Y/%m/%d'" in str(caught.value)
    assert [len(part) for part in data.split(by="date", at="2024/01/20")] == [384, 163]


def test_statistics_of_files_do_not_hide_them(tmp_path: Path) -> None:
    read("%m/%d/%Y", tmp_path).write_parquet(tmp_path / "parquet")
    with pytest.raises(ExpressionError, match="letters"):
        gp.read_parquet(tmp_path / "parquet").filter("date >= '2024-01-20'").sort("sales")


@pytest.mark.parametrize(
    ("form", "condition", "num_rows"),
    [
        ("%Y-%m-%d", "date >= '2024-01-20'", 163),
        ("%Y-%m-%d %H:%M", "date >= '2024-01-20'", 163),
        ("%Y-%m", "date >= '2024-01'", 182),
        ("%Y/%m/%d", "date < '2024/01'", 365),
        ("%m/%d/%Y", "date != '01/20/2024'", 546),
        ("%m/%d/%Y", "date in ['01/20/2024', 'x']", 1),
        ("%m/%d/%Y", "date == 'A1'", 0),
        ("day %j", "date == '2024-01-20'", 0),
    ],
)
def test_others_are(form: str, condition: str, num_rows: int, tmp_path: Path) -> None:
    assert len(read(form, tmp_path).filter(condition).compute()) == num_rows


UNPARSED: dict[str, Callable[[gp.Dataset], Any]] = {
    "parts": lambda data: gp.Pipeline([T.DateParts("date", "month")]).fit(data),
    "month": lambda data: data.filter("month(date) > 1"),
    "floor": lambda data: data.assign(week="floor(date, '7 days')"),
    "encoder": lambda data: gp.Pipeline([], gp.Features({"date": pre.DatetimeEncoder(["month"])})).fit(data),
    "join": lambda data: data.join_asof(data.assign(z="sales"), on="date"),
    "join step": lambda data: gp.Pipeline([T.JoinAsOf(data, on="date")]).fit(data),
    "window": lambda data: T.Rolling("sales", "3 days", order_by="date").transform(data.compute()),
    "gap": lambda data: data.split(by="date", at="2024-01-20", gap="1 day"),
}


@pytest.mark.parametrize("verb", UNPARSED)
def test_where_no_text_is_known_both_ways_to_parse_are_offered(verb: str, tmp_path: Path) -> None:
    data = read("%m/%d/%Y", tmp_path)
    with pytest.raises(GpupipeError) as caught:
        UNPARSED[verb](data)
    (cast,) = re.findall(r"T.Cast\(.*?\)", str(caught.value))
    call, to_datetime = re.findall(r"(?:gp.read_csv|pd.to_datetime)\(.*?\)", str(caught.value))
    with pytest.raises(BadData, match="timestamp_formats"):
        eval(cast, {"T": T}).transform(data.compute())
    parsed = eval(call.replace("...", "path"), {"gp": gp, "path": tmp_path / "sales.csv"})
    UNPARSED[verb](parsed)
    assert eval(to_datetime, {"pd": pd, "frame": data.compute()}).tolist() == parsed.compute()["date"].tolist()


CLOCK = pd.DataFrame({"date": ["6:30", "10:00", "9:45", "12:15"], "sales": range(4)})


@pytest.mark.parametrize("verb", ["lag", "lag after a step", "window of a frame", "cut", "folds"])
@pytest.mark.parametrize("end", ["", ":30"])
def test_neither_do_times_of_day_without_zeros(verb: str, end: str) -> None:
    data = gp.from_frame(CLOCK.assign(date=CLOCK.date + end))
    with pytest.raises(BadData, match="letters") as caught:
        ORDERED[verb](data, "09:00")
    assert caught.value.remedy is not None
    padded = gp.Pipeline([eval(caught.value.remedy, {"T": T})]).fit(data).transform(data)
    assert padded.sort("date").compute()["sales"].tolist() == [0, 2, 1, 3]
    ORDERED[verb](padded, "09:00")


@pytest.mark.parametrize(
    ("texts", "condition", "remedy"),
    [
        (["2023-9", "2023-10"], "date >= '2023-10'", "T.Derive("),
        (["2023-8", "2023-9"], "date < '2023-10'", "T.Derive("),
        (["2023-09", "2023-10"], "'2023-9' <= date", "a text like '2023-09'"),
        (["Q1 2023", "Q3 2023"], "date < 'Q1 2024'", "T.Derive("),
        (["09/23", "10/23"], "date < '01/24'", "timestamp_formats={'date': '%m/%y'}"),
        (["9:30", "10:00"], "date < '12:00'", "T.Derive("),
        (["09:30", "10:00"], "date >= '9:30'", "a text like '09:30'"),
    ],
)
def test_months_and_times_of_day_are_compared_in_their_order_alone(
    texts: list[str], condition: str, remedy: str
) -> None:
    data = gp.from_frame(pd.DataFrame({"date": texts}))
    for compare in (data.filter, lambda text: T.Filter(text).transform(data.compute())):
        with pytest.raises(ExpressionError, match="as text are compared by their letters") as caught:
            compare(condition)
        assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "condition", "num_rows"),
    [
        (["2023-9", "2023-10"], "date == '2023-9'", 1),
        (["2023-09", "2023-10"], "date >= '2023-10'", 1),
        (["Q1 2023", "Q3 2023"], "date <= 'Q2 2023'", 1),
        (["9:30", "8:00"], "date < '9:00'", 1),
        (["09:30", "10:00"], "date < '12:00'", 2),
        (["x", "y"], "date < '2023-9'", 0),
    ],
)
def test_those_in_order_are_compared(texts: list[str], condition: str, num_rows: int) -> None:
    assert len(gp.from_frame(pd.DataFrame({"date": texts})).filter(condition)) == num_rows


def test_times_of_day_of_one_length_are_in_order() -> None:
    for texts in (["1:30", "2:45", "9:59", "7:00"], ["01:30", "12:45", "09:59", "17:00"], ["6:30", "10:00", "x", "y"]):
        lag(gp.from_frame(CLOCK.assign(date=texts)))


def test_neither_do_times_whose_offset_changes() -> None:
    times = pd.date_range("2023-10-28 22:00", periods=6, freq="h", tz="UTC").tz_convert("Europe/Berlin")
    texts = T.Cast({"date": "string"}).transform(pd.DataFrame({"date": times, "sales": range(6)}))
    remedy = "pd.to_datetime(frame['date'], format='ISO8601', utc=True)"
    for verb in ("lag", "cut", "folds", "filter", "rows"):
        with pytest.raises(GpupipeError, match=re.escape(remedy)):
            ORDERED[verb](gp.from_frame(texts), "2023-10-29 02:00:00+0100")
    with pytest.raises(BadData, match=re.escape(remedy)):
        T.Cast({"date": "timestamp"}).transform(texts)
    parsed = texts.assign(date=eval(remedy, {"pd": pd, "frame": texts}))
    assert lag(gp.from_frame(parsed)).sales.tolist() == [*range(6)]
    data = gp.from_frame(texts)
    assert data.filter("date == '2023-10-29 02:00:00.000000+0100'").compute()["sales"].tolist() == [3]
    alike = gp.from_frame(texts[:3])
    assert lag(alike).sales.tolist() == [0, 1, 2] and len(alike.filter("date < '2023-10-29 01:30'").compute()) == 2


@pytest.mark.parametrize(
    "form", ["%d%b%Y", "%d%b%y", "%d/%b/%Y", "%Y-%b-%d", "%Y%b%d", "%d%b%Y:%H:%M:%S", "%a, %d %b %Y"]
)
@pytest.mark.parametrize("case", [str, str.upper, str.lower])
def test_dates_with_a_months_name_are_read_however_they_are_written(form: str, case: Any, tmp_path: Path) -> None:
    """As SAS writes them, 01JAN2015 and 01JAN2015:06:30:00, or a log of a server, 01/Jan/2015."""
    days = pd.date_range("2015-01-01", periods=400)
    texts = [case(text) for text in days.strftime(form)]
    assert find_formats(texts) == [form] and find_misordered_dates(texts) == texts
    pd.DataFrame({"day": texts}).to_csv(tmp_path / "days.csv", index=False)
    data = gp.read_csv(tmp_path / "days.csv")
    with pytest.raises(BadData, match="in the order of their letters") as caught:
        data.sort("day")
    formats = eval(caught.value.remedy.partition("timestamp_formats=")[2].partition("), or")[0])
    assert gp.read_csv(tmp_path / "days.csv", timestamp_formats=formats).compute()["day"].tolist() == list(days)


OTHER_FORMS = {  # and the first day in each
    "%b %d %Y": "Jan 02 2006",
    "%B %d %Y": "January  2 2006",
    "%b %d %Y %I:%M%p": "Jan  2 2006  1:30AM",
    "%b %d, %Y, %I:%M:%S %p": "Jan 2, 2006, 1:30:00 AM",
    "%a %b %d %H:%M:%S %Y": "Mon Jan  2 01:30:00 2006",
    "%a %b %d %H:%M:%S %z %Y": "Mon Jan 02 01:30:00 +0000 2006",
    "%a %b %d %H:%M:%S %Y %z": "Mon Jan 2 01:30:00 2006 +0000",
    "%a %b %d %H:%M:%S UTC %Y": "Mon Jan  2 01:30:00 UTC 2006",
    "%a, %d %b %Y %H:%M:%S GMT": "Mon, 02 Jan 2006 01:30:00 GMT",
    "%d/%b/%Y:%H:%M:%S %z": "02/Jan/2006:01:30:00 +0000",
    "%b %d %H:%M:%S %Y": "Jan  2 01:30:00 2006",
    "%b. %d, %Y": "Jan. 02, 2006",
    "%d %b, %Y": "02 Jan, 2006",
    "%d. %B %Y": "02. January 2006",
    "%d. %b. %Y": "2. Jan. 2006",
    "%d_%m_%Y": "02_01_2006",
    "%m %d %Y": "01 02 2006",
    "%m/%d/%Y %I:%M%p": "01/02/2006 1:30AM",
    "%Y-%m-%d %I:%M %p": "2006-01-02 01:30 AM",
}


def write_dates(form: str, first: str) -> tuple[list[pd.Timestamp], list[str]]:
    """Return times of two years, and their texts in a form, padded as the first one is."""
    has_clock = "%M" in form
    times = list(pd.date_range(f"2006-01-02 {'01:30' if has_clock else '00:00'}", periods=600, freq="29h"))
    times = times if has_clock else [time.normalize() for time in times]
    texts = [time.tz_localize("UTC").strftime(form) for time in times]
    if first != texts[0]:
        space = "  " if "  " in first else " "
        texts = [re.sub(r"(^| )0(?=\d[ :.,])", lambda match: match[1] and space, text) for text in texts]
    return times, texts


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.slow
def test_dates_in_other_common_forms_are_refused_with_the_format_that_reads_them(form: str, tmp_path: Path) -> None:
    """Of SQL Server, ctime, git, mails and logs, and with a full stop or without a comma: none had been seen."""
    times, texts = write_dates(form, OTHER_FORMS[form])
    frame = pd.DataFrame({"date": texts, "sales": range(len(texts))})
    frame.to_csv(tmp_path / "sales.csv", index=False)
    data = gp.read_csv(tmp_path / "sales.csv")
    assert "dates: gp.read_csv(" in " ".join(str(data.describe()).split())
    for verb in ("lag", "sort", "cut", "filter"):
        with pytest.raises(GpupipeError, match="letters") as caught:
            ORDERED[verb](data, texts[400])
        assert repr(form) in str(caught.value)
    with pytest.raises(BadData) as refused:
        data.sort("date")
    assert refused.value.remedy is not None
    call, to_datetime = refused.value.remedy.split(", or ")
    read = eval(call.replace("...", "path"), {"gp": gp, "path": tmp_path / "sales.csv"})
    for parsed in (read.compute()["date"], eval(to_datetime, {"pd": pd, "frame": frame})):
        assert parsed.dt.tz_localize(None).tolist() == times
    assert read.sort("date").compute()["sales"].tolist() == list(range(len(texts)))


def test_times_whose_offset_changes_are_read_in_utc(tmp_path: Path) -> None:
    times = pd.date_range("2024-10-26 22:00", periods=60, freq="h", tz="UTC")
    texts = times.tz_convert("Europe/Berlin").strftime("%a %b %d %H:%M:%S %z %Y")
    frame = pd.DataFrame({"date": texts})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(BadData, match="letters") as caught:
        gp.read_csv(tmp_path / "a.csv").sort("date")
    assert caught.value.remedy is not None
    call, to_datetime = caught.value.remedy.split(", or ")
    read = eval(call.replace("...", "path"), {"gp": gp, "path": tmp_path / "a.csv"})
    assert read.compute()["date"].tolist() == list(times) == eval(to_datetime, {"pd": pd, "frame": frame}).tolist()


def write_ordinal(day: pd.Timestamp) -> str:
    return f"{day.day}{'th' if 10 < day.day < 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day.day % 10, 'th')}"


@pytest.mark.parametrize(
    "write",
    [
        lambda day: f"{write_ordinal(day)} {day:%B %Y}",
        lambda day: f"{day:%B} {write_ordinal(day)}, {day:%Y}".upper(),
        lambda day: f"{'Sept' if day.month == 9 else f'{day:%b}'} {day.day}, {day.year}",
        lambda day: f"{day.day} {'Sept.' if day.month == 9 else f'{day:%b}.'} {day.year}",
    ],
)
def test_what_no_format_reads_is_taken_away_before(write: Callable[[pd.Timestamp], str]) -> None:
    frame = FRAME.assign(date=FRAME.date.map(write))
    with pytest.raises(BadData, match="letters") as caught:
        gp.from_frame(frame).sort("date")
    assert caught.value.remedy is not None
    assert eval(caught.value.remedy, {"pd": pd, "frame": frame}).tolist() == list(DAYS)


@pytest.mark.parametrize(
    "texts",
    [
        ["Jan Smith", "April Jones", "May Parker", "June Carter"],
        ["March 12", "Jan 2", "May 30"],
        ["Mar 12 1200", "Jan 10 3000", "Dec 99 2006"],
        ["Mark 12 2006", "Jana 2 2006", "Decor 1 2006"],
        ["12 34 5678", "01 13 2006 7", "99 01 2006", "10 11 1234"],
        ["12_34_2006", "07_2006", "55_01_2006", "01_02_06"],
        ["01022006", "31122006", "15061999"],
        ["5th Street 2006", "2nd May", "3rd 2006"],
        ["Jan. 2006 edition", "Mon Jan 02", "Mon Jan 02 2006 again"],
        ["Sun 10:00", "Mon 9:30", "Fri 12:00"],
    ],
)
def test_names_and_codes_are_no_dates(texts: list[str]) -> None:
    assert not any(map(is_date, texts)) and find_misordered_dates(texts) == []
    data = gp.from_frame(pd.DataFrame({"date": texts, "sales": range(len(texts))}))
    data.sort("date")


def test_halves_of_a_day_are_not_compared_by_their_letters() -> None:
    """12:30 AM is before 01:30 AM."""
    data = gp.from_frame(pd.DataFrame({"date": ["2024-01-31 01:30 AM", "2024-01-31 12:30 AM"] * 4}))
    for condition in ("date < '2024-01-31 02:00 AM'", "date < '2024-01-31 02:00'"):
        with pytest.raises(ExpressionError, match="letters"):
            data.filter(condition)
    assert len(data.filter("date >= '2024-01-20'").compute()) == 8


MONTHS = pd.period_range("2021-03", "2023-12", freq="M")
QUARTERS = pd.period_range("2020-02", "2023-12", freq="Q")
PERIODS = {
    "2023-9": [f"{month.year}-{month.month}" for month in MONTHS],
    "2023/9": [f"{month.year}/{month.month}" for month in MONTHS],
    "1812-9": [f"{month.year - 211}-{month.month}" for month in MONTHS],
    "09/1812": [f"{month.month:02}/{month.year - 211}" for month in MONTHS],
    "9-1899": [f"{month.month}-{month.year - 123}" for month in MONTHS],
    "09/23": MONTHS.strftime("%m/%y").tolist(),
    "Q3 2023": QUARTERS.strftime("Q%q %Y").tolist(),
    "Q3-2023": QUARTERS.strftime("Q%q-%Y").tolist(),
    "3Q2023": QUARTERS.strftime("%qQ%Y").tolist(),
}


@pytest.mark.parametrize("verb", ["lag", "lag after a step", "window of a frame", "cut", "folds", "sort"])
@pytest.mark.parametrize("form", PERIODS)
@pytest.mark.slow
def test_neither_do_months_and_quarters_whose_letters_are_in_another_order(
    form: str, verb: str, tmp_path: Path
) -> None:
    """A lag by 2023-9 had been that of a later month."""
    texts = PERIODS[form]
    frame = pd.DataFrame({"date": texts, "sales": range(len(texts))}).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "sales.csv", index=False)
    data = gp.read_csv(tmp_path / "sales.csv")
    with pytest.raises(BadData, match="these dates are text, in the order of their letters") as caught:
        ORDERED[verb](data, texts[9])
    assert caught.value.remedy is not None
    for remedy in re.split("[;,] or ", caught.value.remedy.replace("...", "path")):
        result = eval(remedy, {"T": T, "gp": gp, "pd": pd, "frame": frame, "path": tmp_path / "sales.csv"})
        if isinstance(result, T.Transform):
            result = result.transform(frame)["date"]
        parsed = result if isinstance(result, gp.Dataset) else gp.from_frame(frame.assign(date=result))
        assert parsed.sort("date").compute()["sales"].tolist() == list(range(len(texts)))
        ORDERED[verb](parsed, str(sorted(parsed.compute()["date"])[9]))


@pytest.mark.parametrize(
    "texts",
    [
        MONTHS.strftime("%Y-%m").tolist(),
        QUARTERS.strftime("%Y-Q%q").tolist(),
        QUARTERS.strftime("%YQ%q").tolist(),
        ["Q1 2023", "Q2 2023", "Q4 2023"],
        ["2023-1", "2023-2", "2023-9"],
        ["2023-1", "2023-2", "2023-10", "2023-13"],
        ["1001-2", "1001-10"],
        ["Q3 2023", "Q1 2024", "soon"],
        ["1/12", "10/11", "2/10"],
        ["01/12", "13/11", "02/10"],
        pd.date_range("2024-01-01", "2024-12-31").strftime("%m/%d").tolist(),
        pd.date_range("2024-01-01", "2024-12-31", freq="W").strftime("%m/%d").tolist(),
        pd.date_range("2024-01-01", "2024-12-31", freq="QE").strftime("%m/%d").tolist(),
        pd.date_range("2024-09-25", "2024-10-05").strftime("%m/%d").tolist(),
        ["01/00", "12/01"],
    ],
)
def test_texts_like_months_do(texts: list[str]) -> None:
    assert find_misordered_periods(texts) == []
    data = gp.from_frame(pd.DataFrame({"date": texts, "sales": range(len(texts))}))
    lag(data)
    data.sort("date")
