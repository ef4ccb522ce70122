"""The rows of a run, and their three forms: data, text, picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from gpupipe.errors import BadConfig, BadData, ColumnNotFound, NotFitted
from gpupipe.training import History
from tests.raising import raises


@pytest.fixture
def history() -> History:
    made = History("valid_auc", higher_is_better=True)
    for epoch, auc in ((1, 0.5), (2, 0.75), (3, 0.75), (4, None)):
        row = {"epoch": epoch, "train_loss": 1 / epoch}
        if auc is not None:
            row["valid_auc"] = auc
        made.append({**row, "lr": 3e-3, "seconds": 0.5, "rows_per_second": 250_000.7})
    return made


def test_the_best_row_is_the_first_of_the_best(history: History) -> None:
    assert history.best["epoch"] == 2
    assert History("train_loss", rows=history.rows).best["epoch"] == 4


def test_a_figure_of_the_best_row_that_is_not_there(history: History) -> None:
    best = history.best
    with raises(ColumnNotFound, where="History.best", column="auc", remedy="'valid_auc' (the closest name)"):
        best["auc"]
    assert best.get("auc") is None and "auc" not in best
    assert dict(best) == dict(**best) == json.loads(json.dumps(best)) == history.rows[1]


@pytest.mark.parametrize("key", [0, -4, slice(-2, None), "valid_auc", "auc", "nothing", 4])
def test_a_history_has_no_items_but_says_what_has(history: History, key: Any) -> None:
    with raises(BadConfig, where="History[...]", got=key) as caught:
        history[key]
    eval(caught.value.remedy, {"history": history})


def test_an_empty_history_has_no_best() -> None:
    with pytest.raises(NotFitted, match="no epoch has 'train_loss'"):
        _ = History().best
    assert repr(History()) == "History of no epochs"
    assert "<table>" in History()._repr_html_()


def test_a_monitored_figure_that_is_missing_is_an_error(history: History) -> None:
    with raises(
        BadData,
        where="the monitored figure 'valid_auc'",
        got=["epoch", "train_loss", "lr", "seconds", "rows_per_second"],
    ):
        _ = history.monitored
    assert History("train_loss", rows=history.rows).monitored == 0.25


def test_it_survives_json(history: History) -> None:
    again = History(**json.loads(history.to_json()))
    assert again == history
    assert again.best == history.best
    history.to_dict()["rows"][0]["epoch"] = 9
    assert history.rows[0]["epoch"] == 1


def test_the_text_has_a_line_per_epoch_the_best_marked_and_a_curve_per_figure(history: History) -> None:
    lines = str(history).splitlines()
    assert len(history) == len(list(history)) == 4
    assert lines[0].split() == ["epoch", "train_loss", "valid_auc", "lr", "seconds", "rows_per_second"]
    assert [line.endswith("best valid_auc") for line in lines[1:5]] == [False, True, False, False]
    assert lines[4].split() == ["4", "0.25", "0.003", "0.5", "250001"]
    assert lines[5:] == ["train_loss  █▃▂▁  1 to 0.25", "valid_auc   ▁██  0.5 to 0.75"]


def test_the_picture_is_well_formed_with_a_panel_per_figure(history: History) -> None:
    history.append({"epoch": 5, "train_loss": 0.1, "valid_loss": 0.2, "valid_<b>&": 1.0})
    tree = ET.fromstring(f"<page>{history._repr_html_()}</page>")
    panels = tree.findall(".//{http://www.w3.org/2000/svg}svg")
    assert [panel[0].text for panel in panels] == ["loss", "auc", "<b>&"]
    lines = panels[0].iter("{http://www.w3.org/2000/svg}polyline")
    _, train, valid = (line.get("points").split() for line in lines)  # after the axes
    assert (len(train), len(valid)) == (5, 1)
    heights = [float(point.split(",")[1]) for point in train]
    assert heights == sorted(heights)  # y grows downwards: a falling loss falls
    assert len(tree.findall("table/tbody/tr")) == 5
    bold = [row.get("style") for row in tree.findall("table/tbody/tr")]
    assert bold.index("font-weight:bold") == 1


def test_the_rows_as_a_frame(history: History) -> None:
    frame = history.to_frame()
    assert frame["epoch"].tolist() == [row["epoch"] for row in history.rows]
    assert frame.iloc[0].dropna().to_dict() == history.rows[0]
    assert History().to_frame().empty


def test_the_curves_as_a_drawing(history: History, tmp_path: Path) -> None:
    drawing = history.plot()
    panels = ET.fromstring(drawing.svg).findall("{http://www.w3.org/2000/svg}svg")
    assert len(panels) == history._repr_html_().count("<svg")
    drawing.save(tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text() == drawing.svg
    with raises(NotFitted, where="History.plot"):
        History().plot()
