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
from gpupipe.support.text_kinds import recognise_texts, suggest_parsing


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2.5", "1e3", " .5 ", ""], "numbers"),
        (["12%", "7.5 %"], "percentages"),
        (["1,234", "12,345,678.9", "7"], "numbers with commas"),
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
        (["Route 1234"], None),
        (["2024-13"], None),
        (["1200-05"], None),
        (["11:38:36"], None),
        (["007", "012"], None),
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
    ("texts", "formats"),
    [
        (["27/01/2024", "3/2/2024", ""], "{'x': '%d/%m/%Y'}"),
        (["01-27-24", "02-03-24"], "{'x': '%m-%d-%y'}"),
        (["01.02.2024"], "{'x': '%d.%m.%Y'} or {'x': '%m.%d.%Y'}"),
        (["5 Jan 2024", "17 Dec 2023"], "{'x': '%d %b %Y'}"),
        (["5/1/2024", "5 Jan 2024"], "{'x': [...]}"),
        (["2016/01/01 00:47:36", "2016/01/02 13:05:00"], "{'x': '%Y/%m/%d %H:%M:%S'}"),
        (["9/30/1990 0:00:00", "10/1/1990 12:30:00"], "{'x': '%m/%d/%Y %H:%M:%S'}"),
        (["27/04/2017 01:28:59 PM"], "{'x': '%d/%m/%Y %I:%M:%S %p'}"),
        (["Feb 04, 2017", "Mar 5, 2018"], "{'x': '%b %d, %Y'}"),
        (["1939 Jan", "1940 Feb"], "{'x': '%Y %b'}"),
        (["January-2020", "March-2021"], "{'x': '%B-%Y'}"),
        (["2020-01", "2021-12", ""], "{'x': '%Y-%m'}"),
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
