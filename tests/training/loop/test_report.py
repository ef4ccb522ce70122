"""A report is the mapping of its metrics, with every metric of the task, groups, text, page and plain data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

from gpupipe import errors
from gpupipe.tensors.batch import Batch
from gpupipe.training import Report
from gpupipe.training.loop import report as module
from gpupipe.training.loop.metrics import METRICS, METRICS_OF_TASK


def draw(task: str, count: int = 300) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if task == "multiclass":
        output = torch.randn(count, 3, generator=generator)
        return output, torch.multinomial(output.softmax(1), 1, generator=generator)[:, 0].int()
    shape = (count, 2) if task == "multilabel" else (count,)
    output = torch.randn(shape, generator=generator)
    noise = torch.randn(shape, generator=generator)
    return output, output + noise if task == "regression" else (output + noise > 0.5).float()


LABELS = {"binary": ["no", "yes"], "multiclass": ["S", "M", "<L>"], "multilabel": ["late", "gone"], "regression": ["y"]}


def report_of(task: str, weight: Tensor | None = None, **options: Any) -> Report:
    output, target = draw(task)
    return Report({"loss": 0.5}, output, target, weight, task=task, labels=LABELS[task], **options)


@pytest.mark.parametrize("task", list(LABELS))
def test_it_is_a_mapping_of_every_metric_of_the_task(task: str) -> None:
    report = report_of(task)
    assert list(report) == ["loss", *METRICS_OF_TASK[task]] and len(report) == len(dict(report))
    assert report == dict(report) and dict(report) == report and report != {} and "loss" in report
    output, target = draw(task)
    for name in METRICS_OF_TASK[task]:
        metric = METRICS[name]()
        metric.update(output, Batch(torch.zeros(300, 0), torch.zeros(300, 0), target))
        assert report[name] == metric.compute()


def test_metrics_that_are_there_are_kept_and_undefined_ones_left_out() -> None:
    one_class = Report({"auc": 2.0}, torch.zeros(3), torch.zeros(3), task="binary")
    assert one_class["auc"] == 2.0 and "average_precision" not in one_class and one_class["accuracy"] == 0.0
    assert dict(Report({"loss": 1.0}, task="binary")) == {"loss": 1.0}


def test_rows_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dict(report_of("binary"))
    monkeypatch.setattr(module, "CHUNK_ROWS", 7)
    assert dict(report_of("binary")) == pytest.approx(whole, rel=1e-6)


def test_rows_of_weight_0_are_not_there() -> None:
    output, target = draw("binary")
    weight = (torch.arange(300) % 3 > 0).float()
    some, there = Report({}, output, target, weight, task="binary"), weight > 0
    fewer = Report({}, output[there], target[there], weight[there], task="binary")
    assert some == fewer and some.num_rows == 200
    assert torch.equal(some.confusion_matrix(), fewer.confusion_matrix())
    nothing = Report({}, output, target, torch.zeros(300), task="binary", groups=("g", [1], torch.zeros(300).long()))
    assert (dict(nothing), nothing.num_rows) == ({}, 0)
    assert nothing.by is not None and nothing.by.rows == []


def test_metrics_of_decisions_are_taken_at_the_threshold() -> None:
    output, target = draw("binary")
    report = report_of("binary", threshold=0.7)
    taken = output.sigmoid() >= 0.7
    assert report["f1"] == pytest.approx(sk.f1_score(target, taken))
    assert report["mcc"] == pytest.approx(sk.matthews_corrcoef(target, taken))
    np.testing.assert_array_equal(report.confusion_matrix(), sk.confusion_matrix(target, taken))
    several = report_of("multilabel", threshold={"gone": 0.7})
    output, target = draw("multilabel")
    scores = [sk.f1_score(target[:, i], output[:, i].sigmoid() >= limit) for i, limit in enumerate((0.5, 0.7))]
    assert several["f1"] == pytest.approx(np.mean(scores))


def test_units_are_those_of_the_target() -> None:
    output, target = draw("regression")
    report = Report({}, output, target, task="regression", units=lambda values: values.double() * 10)
    assert report["mae"] == pytest.approx(10 * sk.mean_absolute_error(target, output), rel=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_groups_have_the_metrics_of_their_rows(weighted: bool) -> None:
    output, target = draw("binary")
    weight = torch.rand(300, generator=torch.Generator().manual_seed(1)) + 0.1 if weighted else None
    places = torch.arange(300) % 7 % 3
    places[places == 2] = 0
    places[-1] = 2  # a group of one row; the fourth has none
    report = report_of("binary", weight, groups=("carrier", ["AA", "UA", "DL", "B6"], places))
    assert report.by is not None and [row["carrier"] for row in report.by.rows] == ["AA", "UA", "DL"]
    assert [row["rows"] for row in report.by.rows] == [int((places == place).sum()) for place in range(3)]
    inside = places == 1
    alone = Report({}, output[inside], target[inside], None if weight is None else weight[inside], task="binary")
    assert {name: report.by["UA"][name] for name in alone} == alone
    assert [*report.by] == ["AA", "UA", "DL"] and "UA" in report.by and "B6" not in report.by
    for get in (lambda: report.by["DAL"], lambda: report["acuracy"]):
        with pytest.raises(errors.GpupipeError, match=r"Try: .*\['(DL|accuracy)'\]"):
            get()
    assert report.get("acuracy") is None
    assert report.by["DL"]["auc"] is None and report.by["DL"]["accuracy"] in (0.0, 1.0)


def test_many_classes_are_not_ranked_by_default() -> None:
    output, target = torch.randn(5, module.MAX_RANKED_CLASSES + 1), torch.arange(5).int()
    report = Report({}, output, target, task="multiclass")
    assert "auc" not in report and "accuracy" in report and report.labels == [*range(101)]
    assert "true / predicted" not in repr(report) and "confusion" not in report._repr_html_()


@pytest.mark.parametrize("task", list(LABELS))
def test_it_becomes_json(task: str) -> None:
    report = report_of(task, groups=("month", [1, None], torch.arange(300) % 2))
    content = json.loads(report.to_json())
    assert content["rows"] == 300 and content["metrics"] == dict(report) and content["task"] == task
    assert [row["month"] for row in content["by"]] == [1, None]
    assert [each["label"] for each in content["calibration"]] == report.columns
    assert ("confusion_matrix" in content) == (task != "regression")


@pytest.mark.parametrize("task", [*LABELS, None])
def test_it_shows_itself_without_rows_and_with_one(task: str | None) -> None:
    none = Report({}, task=task)
    assert repr(none).startswith("metrics alone") and "<svg" not in none._repr_html_()
    if task is not None:
        output, target = draw(task, 1)
        one = Report({}, output, target, task=task, labels=LABELS[task])
        assert repr(one).startswith("1 row, ") and "<svg" in one._repr_html_()
        empty = Report({}, output[:0], target[:0], task=task, labels=LABELS[task])
        assert repr(empty).startswith("0 rows") and json.loads(empty.to_json())["rows"] == 0
        assert "<svg" not in empty._repr_html_()


def test_names_are_escaped_on_the_page() -> None:
    assert "<L>" not in report_of("multiclass")._repr_html_() and "&lt;L&gt;" in report_of("multiclass")._repr_html_()


def test_a_page_stays_small_whatever_the_rows() -> None:
    output = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    target = (torch.rand(50_000, generator=torch.Generator().manual_seed(1)) < output.sigmoid()).float()
    assert len(Report({}, output, target, task="binary")._repr_html_()) < 30_000
