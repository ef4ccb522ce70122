"""What texts stand for; and that the steps which are suggested parse them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.support.text_kinds import explain_texts, recognise_texts, suggest_parsing


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2.5", "1e3", " .5 ", ""], "numbers"),
        (["12%", "7.5 %"], "percentages"),
        (["1,234", "12,345,678.9", "7"], "numbers with commas"),
        (["12,34", "5,6", "", "-7", "1,5e-3"], "numbers like 1.234,5"),
        (["12.345,67", "1,234", "8.000"], "numbers like 1.234,5"),
        (["12,5 %", "1.000,25%", "7 %"], "percentages like 1.234,5 %"),
        (["12,50 €", "1.234 €", "-€3,5"], "amounts of money like 1.234,5"),
        (["3.450,00 EUR"], "amounts of money like 1.234,5"),
        (["$1,234.50", "$7", "-$3"], "amounts of money"),
        (["12.50 EUR", "3 EUR"], "amounts of money"),
        (["($1,234.50)", "(3 EUR)", "$7"], "amounts of money, negative in parentheses"),
        (["2024-01-05", "2024-01-06T05:00:00Z", "2024-01-06 05:00"], "times in ISO format"),
        (["05/01/2024", "6/1/24"], "dates"),
        (["5 Jan 2024"], "dates"),
        (["2016/01/01 00:47:36", "2016/1/2 13:05:00"], "dates"),
        (["Feb 04, 2017 1:28 PM"], "dates"),
        (["1939 Jan", "1940 Feb"], "dates"),
        (["January 2020", "May 2021", ""], "dates"),
        (["2020-01", "2021-12"], "dates"),
        (["Jan-80", "Dec-12"], "dates"),
        (["01/1990", "12/2024"], "dates"),
        (["01.1990", "10.1990"], "dates"),
        (["Monday 5 January 2024", "Tue, Feb 6, 2024"], "dates"),
        (["05-JAN-24"], "dates"),
        (["10.1990", "11.2005"], "numbers"),
        (["13/1990"], None),
        (["00/1990"], None),
        (["1/2100"], None),
        (["10-Jan"], None),
        (["Max-80"], None),
        (["Marker-12"], None),
        (["Route 1234"], None),
        (["2024-13"], None),
        (["1200-05"], None),
        (["11:38:36"], None),
        (["007", "012"], None),
        (["1234567890123456"], None),
        (["1234567890123456", "1,5"], None),
        (["123456789012345", "0.12345678901234567"], "numbers"),
        (["1,2", "1,2,3"], None),
        (["1.5", "5,6"], None),
        (["1.2.3", "1,5"], None),
        (["05,6"], None),
        (["1", "x"], None),
        (["", " "], None),
        ([], None),
    ],
)
def test_kinds(texts: list[str], kind: str | None) -> None:
    assert recognise_texts(texts) == kind


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "-2.5"], [1.0, -2.5]),
        (["12%", "7.5 %"], [12.0, 7.5]),
        (["1,234", "7.5"], [1234.0, 7.5]),
        (["$1,234.50", "-$3"], [1234.5, -3.0]),
        (["($1,234.50)", "$7"], [-1234.5, 7.0]),
        (["12,5 %", "1.000,25%"], [12.5, 1000.25]),
        (["-1.234,50 €", "12,345 €", "7 EUR"], [-1234.5, 12.345, 7.0]),
        (["2024-01-05", "2024-01-06"], [pd.Timestamp("2024-01-05"), pd.Timestamp("2024-01-06")]),
        (["", "12.5", " "], [np.nan, 12.5, np.nan]),
        (["$1,200.50", "", "$7"], [1200.5, np.nan, 7.0]),
        (["2024-01-05", ""], [pd.Timestamp("2024-01-05"), pd.NaT]),
    ],
)
def test_the_suggested_steps_parse(texts: list[str], values: list[Any]) -> None:
    kind = recognise_texts(texts)
    assert kind is not None
    steps = eval(f"[{suggest_parsing('x', kind, texts).replace(', then ', ', ')}]", {"T": T})
    frame = pd.DataFrame({"x": texts})
    parsed = gp.Pipeline(steps).fit(frame).transform(frame)["x"]
    pd.testing.assert_series_equal(parsed, pd.Series(values, name="x"), check_dtype=False)


@pytest.mark.parametrize(
    ("texts", "readings"),
    [
        (["€1.200", "€350", "-€12.000"], [[1200.0, 350.0, -12000.0], [1.2, 350.0, -12.0]]),
        (["1.200 €", "3.400 €", ""], [[1200.0, 3400.0], [1.2, 3.4]]),
        (["(€1.200)", "€3.400"], [[-1200.0, 3400.0], [-1.2, 3.4]]),
        (["€0.500", "€1.200"], [[0.5, 1.2]]),
        (["€1.20", "€1.200"], [[1.2, 1.2]]),
        (["$1,200", "$3,400"], [[1200.0, 3400.0]]),
        (["€0,500", "(€1,200)"], [[0.5, -1.2]]),
        (["0,500", "1,234", "0,075"], [[0.5, 1.234, 0.075]]),
        (["1,234", "-7"], [[1234.0, -7.0], [1.234, -7.0]]),
        (["1,234", "1,234,567"], [[1234.0, 1234567.0]]),
        (["1,234", "7.5"], [[1234.0, 7.5]]),
    ],
)
def test_numbers_that_can_be_read_in_two_ways_are_offered_both(texts: list[str], readings: list[list[float]]) -> None:
    kind = recognise_texts(texts)
    assert kind is not None
    note, *others = suggest_parsing("x", kind, texts).split("; ")
    first, cast = note.split(", then ")
    filled = pd.DataFrame({"x": [text for text in texts if text]})
    steps = [first, *(other.partition(" instead where its ")[0] for other in others)]
    values = [gp.Pipeline([eval(step), eval(cast)]).fit(filled).transform(filled)["x"].tolist() for step in steps]
    assert values == readings


@pytest.mark.parametrize(
    ("texts", "values", "options"),
    [
        (["12,34", "-5,6", "7"], [12.34, -5.6, 7.0], "decimal=','"),
        (["12.345,67", "8.000", ""], [12345.67, 8000.0, np.nan], "decimal=',', thousands='.'"),
    ],
)
def test_decimal_commas_are_offered_steps_and_the_reader_of_files(
    texts: list[str], values: list[float], options: str, tmp_path: Path
) -> None:
    steps, of_files = suggest_parsing("x", "numbers like 1.234,5", texts).split("; or ")
    frame = pd.DataFrame({"x": texts, "y": 1})
    parsed = gp.Pipeline([eval(step) for step in steps.split(", then ")]).fit(frame).transform(frame)["x"]
    np.testing.assert_array_equal(parsed, values)
    assert of_files == f"gp.read_csv(..., {options})"
    frame.to_csv(tmp_path / "a.csv", index=False, sep=";")
    read = eval(of_files.replace("...", "path, sep=';', backend='cpu'"), {"gp": gp, "path": tmp_path / "a.csv"})
    np.testing.assert_array_equal(read.compute()["x"], values)
    assert "read_csv" not in explain_texts("x", {**dict.fromkeys(map("{},5".format, range(20)), 1), "-": 1})


@pytest.mark.parametrize(
    ("counts", "said", "values"),
    [
        ({**{str(number): 300 for number in range(1, 11)}, "-": 1}, "numbers, but for '-' (1 row), which", 10 * [0]),
        ({"1": 700, "2": 200, " nil ": 60}, "numbers, but for ' nil ' (60 rows), which", [0, 0]),
        ({**{str(number): 9 for number in range(20)}, "W/m2": 1}, "numbers, but for 'W/m2' (1 row), which", 20 * [0]),
        ({**{f"{number}%": 1 for number in range(30)}, "n/a ": 9, "": 5}, "percentages, but for 'n/a ' (9", 30 * [0]),
        (
            {**{f"${number},000": 2 for number in range(1, 60)}, "?": 7, "N.A.": 9, "-": 7, "x": 1, "y": 1},
            "amounts of money, but for 'N.A.' (9 rows), '-' (7 rows), '?' (7 rows) and 2 more, which become missing: ",
            59 * [0],
        ),
        ({**{f"2024-01-{day}": 1 for day in range(10, 29)}, "unknown": 1}, "times in ISO format, but for", 19 * [0]),
        (
            {**{f"2024-01-{day}": 1 for day in range(10, 29)}, "0000-00-00": 1, "0000-00-00 00:00:00": 1},
            "times in ISO format, but for '0000-00-00' (1 row), '0000-00-00 00:00:00' (1 row), which become missing",
            19 * [0],
        ),
    ],
)
def test_a_few_texts_that_are_marks_are_named_and_become_missing(
    counts: dict[str, int], said: str, values: list[int]
) -> None:
    kind, _, steps = explain_texts("x", counts).partition(": ")
    assert f"{kind}: ".startswith(said)
    frame = pd.DataFrame({"x": list(counts)})
    parsed = gp.Pipeline([eval(step) for step in steps.split(", then ")]).fit(frame).transform(frame)["x"]
    assert parsed.notna().tolist() == len(values) * [True] + (len(counts) - len(values)) * [False]


@pytest.mark.parametrize("mark", ["-", "00.00.0000"])
def test_a_few_dates_that_are_marks_are_named_and_become_missing(mark: str, tmp_path: Path) -> None:
    texts = [f"{day}.1.2024" for day in range(2, 30)]
    said = explain_texts("x", {**dict.fromkeys(texts, 1), mark: 1})
    kind, _, steps = said.partition(": ")
    assert kind == f"dates, but for {mark!r} (1 row), which becomes missing"
    of_files, of_frames = steps.split(", or ")
    frame = pd.DataFrame({"x": [*texts, mark], "y": 1})
    frame.to_csv(tmp_path / "a.csv", index=False)
    read = eval(of_files.replace("...", "path, backend='cpu'"), {"gp": gp, "path": tmp_path / "a.csv"}).compute()["x"]
    parsed = eval(of_frames, {"pd": pd, "frame": frame})
    assert read.tolist()[:-1] == parsed.tolist()[:-1] == list(pd.date_range("2024-01-02", periods=28))
    assert read.isna().tolist() == parsed.isna().tolist() == 28 * [False] + [True]
    marks = explain_texts("x", {**dict.fromkeys(texts * 2, 9), **dict.fromkeys(["-", "?", "n/a", "nil"], 1)})
    assert marks == "" and "read_csv" not in suggest_parsing("x", "dates", [*texts, "-", "?", "n/a", "nil"])


@pytest.mark.parametrize(
    "texts",
    [
        ["007", "012"] + 30 * ["-"],
        ["A1", "B2", "3"],
        ["S", "M", "XL", "38", "40"],
        [*map(str, range(1, 200)), "12b"],
        [*map(str, range(10000, 10200)), "02134"],
        ["Golf", "Polo", "3", "5", "911"],
        ["2", "4", "more"],
        [*map(str, range(1, 13)), "K", "PK"],
        ["1", "x"] + 30 * ["1"],
        ["-", "?"],
        [],
    ],
)
def test_codes_and_words_are_no_numbers(texts: list[str]) -> None:
    assert explain_texts("x", dict.fromkeys(texts, 1)) == ""


@pytest.mark.parametrize(
    ("texts", "formats"),
    [
        (["27/01/2024", "3/2/2024", ""], "{'x': '%d/%m/%Y'}"),
        (["01-27-24", "02-03-24"], "{'x': '%m-%d-%y'}"),
        (["01.02.2024"], "{'x': '%d.%m.%Y'} or {'x': '%m.%d.%Y'}"),
        (["5 Jan 2024", "17 Dec 2023"], "{'x': '%d %b %Y'}"),
        (["27/01/2024", "01/27/2024"], "{'x': [...]}"),
        (["2016/01/01 00:47:36", "2016/01/02 13:05:00"], "{'x': '%Y/%m/%d %H:%M:%S'}"),
        (["9/30/1990 0:00:00", "10/1/1990 12:30:00"], "{'x': '%m/%d/%Y %H:%M:%S'}"),
        (["27/04/2017 01:28:59 PM"], "{'x': '%d/%m/%Y %I:%M:%S %p'}"),
        (["Feb 04, 2017", "Mar 5, 2018"], "{'x': '%b %d, %Y'}"),
        (["1939 Jan", "1940 Feb"], "{'x': '%Y %b'}"),
        (["January-2020", "March-2021"], "{'x': '%B-%Y'}"),
        (["2020-01", "2021-12", ""], "{'x': '%Y-%m'}"),
        (["Jan-80", "Dec-12"], "{'x': '%b-%y'}"),
        (["June-80", "March-12"], "{'x': '%B-%y'}"),
        (["1/1990", "12/2024"], "{'x': '%m/%Y'}"),
        (["01-1990", "12-2024"], "{'x': '%m-%Y'}"),
        (["01.1990", "12.2024"], "{'x': '%m.%Y'}"),
        (["05-JAN-24", "06-FEB-24"], "{'x': '%d-%b-%y'}"),
        (["Friday 05 January 2024", "Tuesday 6 February 2024"], "{'x': '%A %d %B %Y'}"),
        (["Fri, Jan 05, 2024", "Tue, Feb 6, 2024"], "{'x': '%a, %b %d, %Y'}"),
        (["2024-1-5 10:00 +0100", "2024-2-6 11:30 +0200"], "{'x': '%Y-%m-%d %H:%M %z'}"),
    ],
)
def test_dates_are_offered_their_format(texts: list[str], formats: str, tmp_path: Path) -> None:
    kind = recognise_texts(texts)
    assert kind == "dates"
    of_files, of_frames = suggest_parsing("x", kind, texts).split(", or ")
    assert of_files == f"gp.read_csv(..., timestamp_formats={formats})"
    if "..." in formats:
        return
    pd.DataFrame({"x": texts, "y": 1}).to_csv(tmp_path / "a.csv", index=False)
    form = eval(formats.partition(" or ")[0])
    read = gp.read_csv(tmp_path / "a.csv", timestamp_formats=form, backend="cpu").compute()["x"]
    assert read.tolist() == [pd.to_datetime(text or None, format=form["x"]) for text in texts]
    frame = pd.DataFrame({"x": [text or None for text in texts]})
    assert eval(of_frames, {"pd": pd, "frame": frame}).tolist() == read.tolist()
    with pytest.raises(errors.BadData) as caught:
        T.Cast({"x": "timestamp"}).transform(pd.DataFrame({"x": [*texts, "n/a"]}))
    assert caught.value.remedy == f"{of_files}, or {of_frames}"


def test_known_marks_may_be_in_many_rows() -> None:
    """Of Stata's tables "." is a missing value, here of every fifth row."""
    counts = {"1": 5554, ".": 1460, "0": 416}
    assert explain_texts("x", counts).startswith("numbers, but for '.' (1,460 rows), which becomes missing: T.Cast(")
    assert explain_texts("x", {"1": 5554, "open": 1460, "0": 416}) == explain_texts("x", {"1": 9, ".": 2}) == ""
