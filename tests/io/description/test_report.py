"""The report of `describe`: as text, as a page, as a file, as a frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound
from tests.raising import raises

FRAME = pd.DataFrame(
    {
        "<b>": ["x & y", None, "<i>z</i>", "x & y"],
        "delay": [1.0, 2.0, None, 5.0],
        "at": pd.to_datetime(["2013-01-01", "2013-01-03", None, "2013-01-05"]),
    }
)


def test_text() -> None:
    lines = repr(gp.from_frame(FRAME).describe("delay")).splitlines()
    assert lines[0] == "4 rows, 3 columns"
    assert " ".join(lines[2].split()) == "numbers dtype missing distinct mean std min 25% 50% 75% max V"
    assert " ".join(lines[3].split()[:11]) == "delay float64 25.0% 3 2.66667 2.08167 1 1.5 2 3.5 5"
    assert lines[6].split()[:6] == ["at", "25.0%", "3", "2013-01-01", "2013-01-03", "2013-01-05"]
    assert lines[9].split()[:4] == ["<b>", "string", "25.0%", "2"] and "x & y 50.0%" in lines[9]
    assert lines[-1].startswith("V: Cramér's V with delay, 0 to 1, over 4 rows;")


def test_a_column_without_a_name_is_quoted() -> None:
    text = repr(gp.from_frame(pd.DataFrame({"": range(100)})).describe())
    assert "\n''       int64" in text and "\n'': an id" in text


def test_a_page_escapes_what_is_in_the_table(tmp_path: Path) -> None:
    gp.from_frame(FRAME).describe().to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>") and page.count("<svg") == 3
    assert "<b>" not in page and "<i>" not in page and "&lt;i&gt;z&lt;/i&gt;" in page
    assert "<script" not in page and "src=" not in page and "href=" not in page and "url(" not in page


def test_a_file_is_not_written_over_unless_asked(tmp_path: Path) -> None:
    report, path = gp.from_frame(FRAME).describe(), tmp_path / "report.html"
    path.write_text("mine")
    with raises(BadFile, where="report.html", remedy="overwrite=True"):
        report.to_html(path)
    assert path.read_text() == "mine"
    report.to_html(path, overwrite=True)
    assert "4 rows, 3 columns" in path.read_text() and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", [None, 7, ""])
def test_no_path(path: Any) -> None:
    with raises(BadConfig, where="to_html(path=)"):
        gp.from_frame(FRAME).describe().to_html(path)


def test_a_frame_of_the_figures() -> None:
    found = gp.from_frame(FRAME).describe("delay").to_frame()
    expected = FRAME["delay"].describe()
    assert found.index.tolist() == list(FRAME.columns)
    assert found.loc["delay", list(expected.index)].tolist() == pytest.approx(expected.tolist())
    assert found.loc["<b>", ["top", "freq", "distinct", "missing"]].tolist() == ["x & y", 2, 2, 0.25]
    assert found.loc["at", "50%"] == np.datetime64("2013-01-03") and "association" in found.columns
    assert gp.from_frame(pd.DataFrame(index=range(3))).describe().to_frame().empty


def test_a_column_by_name() -> None:
    report = gp.from_frame(FRAME).describe()
    assert report["delay"].max == 5.0 and len(report) == 3
    with raises(ColumnNotFound, where="describe()", column="delays", remedy="'delay' (the closest name)"):
        report["delays"]
