"""The rows of a report as a loader gives them: kept columns as groups, several ranks, outputs that do not fit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor, nn

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.tensors.batch import Batch
from gpupipe.training.loop import report_rows
from tests.raising import raises
from tests.training import reported

ROOT = Path(__file__).parents[3]


class First(nn.Module):
    """The first number as it is, `width` times."""

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.width, self.one = width, nn.Parameter(torch.ones(()))

    def forward(self, batch: Batch) -> Tensor:
        x = batch.numeric[:, 0] * self.one
        return x[:, None].expand(-1, self.width) if self.width else x


def trainer(model: nn.Module | None = None, **options: Any) -> gp.Trainer:
    return gp.Trainer(model or First(), max_epochs=1, device="cpu", progress=False, **options)


def pipeline(frame: pd.DataFrame, target: Any = "late", keep: Any = (), **options: Any) -> gp.Pipeline:
    return gp.Pipeline([], gp.Features(["x"], target=target, keep=keep, **options), backend="cpu").fit(frame)


def table(count: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.standard_normal(count)
    frame = pd.DataFrame({"x": x, "late": x + draw.standard_normal(count) > 0, "w": draw.random(count) + 0.1})
    frame["carrier"] = draw.choice(["UA", "AA", None], count)
    frame["hour"] = pd.array(draw.choice([5, 6, None], count), dtype="Int16")
    frame["night"] = frame["hour"] == 5
    frame["share"] = draw.choice([0.25, 0.5, np.nan], count)
    frame["day"] = pd.to_datetime(draw.choice(["2013-01-02", "2013-01-01"], count))
    frame["zoned"] = frame["day"].dt.tz_localize("Europe/Berlin")
    return frame


@pytest.mark.slow
@pytest.mark.parametrize("residency", ["device", "stream"])
@pytest.mark.parametrize("by", ["carrier", "hour", "night", "share", "day", "zoned"])
def test_a_kept_columns_values_are_the_groups(by: str, residency: str) -> None:
    frame = table()
    loader = pipeline(frame, keep=[by]).loader(
        gp.from_frame(frame, partition_bytes=500), batch_size=7, residency=residency
    )
    found = trainer().evaluate(loader, by=by).by
    assert found is not None
    sizes = frame[by].value_counts(dropna=False).sort_index()
    labels = [None if pd.isna(label) else label for label in sizes.index]
    assert [row[by] for row in found.rows] == labels and [row["rows"] for row in found.rows] == sizes.tolist()
    assert isinstance(found.rows[0][by], {"day": datetime, "night": bool}.get(by, object))
    for row in found.rows:
        rows = frame[frame[by].isna() if row[by] is None else frame[by] == row[by]]
        assert row["auc"] == pytest.approx(sk.roc_auc_score(rows["late"], rows["x"].astype("float32")), abs=1e-9)


def test_a_column_that_has_a_features_name_is_found() -> None:
    frame = table()
    loader = pipeline(frame, keep=["x", "hour"]).loader(frame.assign(x=frame["x"].round()))
    assert trainer().evaluate(loader, by="x").by is not None


def test_batches_without_a_schema_have_groups_too() -> None:
    batch = Batch(
        torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 0), torch.tensor([1.0, 0.0]), keep={"g": torch.tensor([3, 1])}
    )
    found = trainer(loss="bce").evaluate([batch, batch], by="g")
    assert found.by is not None and [(row["g"], row["rows"]) for row in found.by.rows] == [(1, 2), (3, 2)]
    assert found.labels == [0, 1]
    with raises(ColumnNotFound, where="Trainer.evaluate(by=)", column="h"):
        trainer(loss="bce").evaluate([batch], by="h")


def test_what_cannot_be_groups_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    loader = pipeline(frame, keep=["hour", "carrier"]).loader(frame)
    with raises(ColumnNotFound, where="Trainer.evaluate(by=)", column="day", got=["hour", "carrier"]):
        trainer().evaluate(loader, by="day")
    with raises(BadConfig, where="Trainer.evaluate(by=)", got=3):
        trainer().evaluate(loader, by=3)  # type: ignore[arg-type]
    monkeypatch.setattr(report_rows, "MAX_GROUPS", 2)
    with raises(BadData, where="Trainer.evaluate(by=)"):
        trainer().evaluate(loader, by="hour")


def test_outputs_and_rows_are_those_of_predict(problem: Callable[..., Any]) -> None:
    valid = problem("binary", 130, shuffle=False, weighted=True)
    table, report = valid.table, trainer().evaluate(valid)
    expected = sk.confusion_matrix(table.target, table.numeric[:, 0] >= 0, sample_weight=table.weight)
    np.testing.assert_allclose(report.confusion_matrix(), expected)
    assert report.labels == [False, True] and report.num_rows == 130


def test_a_buffer_that_is_used_again_is_not_kept() -> None:
    frame = table()
    reused = pipeline(frame, keep=["hour"], weight="w").loader(frame, batch_size=8, reuse_buffers=True)
    fresh = pipeline(frame, keep=["hour"], weight="w").loader(frame, batch_size=8)
    one, other = (trainer().evaluate(loader, by="hour") for loader in (reused, fresh))
    assert one.to_dict() == other.to_dict()


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_other_tasks_have_their_report(task: str, problem: Callable[..., Any]) -> None:
    valid = problem(task, 130)
    report = trainer(First(3) if task == "multiclass" else None).evaluate(valid)
    assert report.task == task and report.num_rows == 130
    assert report.labels == (["S", "M", "L"] if task == "multiclass" else ["delay"])


def test_several_targets_have_their_report() -> None:
    frame = table()
    loader = pipeline(frame, target=["late", "night"], keep=["carrier"]).loader(frame)
    report = trainer(First(2)).evaluate(loader, by="carrier", threshold={"night": 0.7})
    assert report.task == "multilabel" and report.decision_threshold == {"late": 0.5, "night": 0.7}
    assert report.confusion_matrix().shape == (2, 2, 2)
    numbers = pipeline(frame, target=["share", "w"]).loader(frame.dropna())
    report = trainer(First(2)).evaluate(numbers)
    assert report.task == "regression" and set(report.residual_quantiles(label="w")) == {0.05, 0.25, 0.5, 0.75, 0.95}


def test_a_regression_is_told_in_its_own_units() -> None:
    frame = table().assign(delay=lambda rows: 40 + 100 * rows["x"])
    made = pipeline(frame, target="delay")  # standardised by default
    loader = made.loader(frame)
    report = trainer().evaluate(loader)
    predicted = trainer().predict(loader).numpy()
    assert report["mae"] == pytest.approx(np.abs(predicted - frame["delay"]).mean(), rel=1e-5)
    expected = np.quantile(frame["delay"] - predicted, 0.25)
    assert report.residual_quantiles([0.25])[0.25] == pytest.approx(expected, rel=1e-4)
    assert float(report.calibration(1).observed) == pytest.approx(frame["delay"].mean(), rel=1e-4)


def test_a_loss_by_its_name_tells_the_task_of_plain_batches() -> None:
    two = Batch(torch.tensor([[1.0], [-1.0]]), torch.zeros(2, 0), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert trainer(First(2), loss="bce").evaluate([two]).task == "multilabel"
    number = Batch(two.numeric, two.codes, torch.tensor([1.0, 5.0]))
    assert trainer(loss="huber").evaluate([number]).task == "regression"
    own = trainer(loss=lambda output, batch: output).evaluate([number])
    assert (own.task, dict(own)) == (None, {"loss": 0.0})


def test_outputs_that_do_not_fit_leave_the_metrics() -> None:
    frame = table()
    loader = pipeline(frame, keep=["hour"]).loader(frame)
    wide = trainer(First(4), loss=lambda output, batch: output.mean(1))
    report = wide.evaluate(loader)
    assert list(report) == ["loss"] and report.num_rows == 0
    with raises(BadConfig, where="Report.curve"):
        report.curve("roc")
    with raises(BadConfig, where="Trainer.evaluate(by=)"):
        wide.evaluate(loader, by="hour")


def test_a_threshold_of_another_task_is_refused(problem: Callable[..., Any]) -> None:
    for task, model in (("multiclass", First(3)), ("regression", First())):
        with raises(BadConfig, where="Trainer.evaluate(threshold=)", got=0.3):
            trainer(model).evaluate(problem(task, 20), threshold=0.3)


def test_figures_by_name_are_taken_at_the_threshold(problem: Callable[..., Any]) -> None:
    valid = problem("binary", 200)
    chosen = trainer(metrics=["accuracy", "f1"])
    found = [chosen.evaluate(valid, threshold=limit)["accuracy"] for limit in (0.2, 0.8)]
    taken = [valid.table.numeric[:, 0].sigmoid() >= limit for limit in (0.2, 0.8)]
    assert found == pytest.approx([sk.accuracy_score(valid.table.target, each) for each in taken])


def test_no_rows_make_an_empty_report(problem: Callable[..., Any]) -> None:
    report = trainer().evaluate(problem("binary", 0))
    assert report == {} and report.num_rows == 0 and report.task == "binary"
    with raises(BadData, where="Report.threshold"):
        report.threshold()


@pytest.mark.slow
def test_ranks_report_what_one_does(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.reported", str(tmp_path)]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | group | {"PYTHONPATH": str(ROOT), "RANK": str(rank)})
        for rank in range(2)
    ]
    assert [rank.wait(300) for rank in ranks] == [0, 0]
    for name, report in reported.evaluate().items():
        first, second = (json.loads((tmp_path / f"{name}{rank}.json").read_text()) for rank in range(2))
        assert first == second
        alone = json.loads(report.to_json())
        assert first["confusion_matrix"] == alone["confusion_matrix"] and first["rows"] == alone["rows"] == 101
        assert first["metrics"] == pytest.approx(alone["metrics"], rel=1e-6)
        for mine, theirs in zip(first["by"], alone["by"], strict=True):
            numbers = {name: value for name, value in theirs.items() if isinstance(value, float)}
            assert mine == theirs | {name: pytest.approx(value, rel=1e-6) for name, value in numbers.items()}
