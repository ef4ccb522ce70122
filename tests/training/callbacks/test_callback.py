"""What callbacks are told, and what is made of it: files, a bar, a trace, figures of the GPU."""

from __future__ import annotations

import csv
import importlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpupipe.errors import BackendMissing, BadConfig
from gpupipe.models import MLP
from gpupipe.training import Callback, Checkpoints, CSVLogger, JSONLinesLogger, TensorBoardLogger, Trainer, TrainState
from gpupipe.training.callbacks.callback import GpuStats
from tests.raising import raises

Problem = Callable[..., Any]


def trainer_for(loader: Any, **arguments: Any) -> Trainer:
    model = MLP.from_schema(loader.schema, hidden=(8,), seed=1)
    return Trainer(model, **{"max_epochs": 2, "device": "cpu", "lr": 0.01, **arguments})


class Told(Callback):
    """Writes down what it hears."""

    def __init__(self, name: str = "", heard: list[str] | None = None) -> None:
        self.name, self.heard = name, [] if heard is None else heard

    def on_fit_start(self, run: TrainState) -> None:
        self.heard.append(f"{self.name}fit")

    def on_epoch_start(self, run: TrainState) -> None:
        self.heard.append(f"{self.name}epoch {run.epoch}")

    def on_step_end(self, run: TrainState) -> None:
        self.heard.append(f"{self.name}step {run.step}")

    def on_log(self, run: TrainState) -> None:
        self.heard.append(f"{self.name}log {run.step}")

    def on_epoch_end(self, run: TrainState) -> None:
        self.heard.append(f"{self.name}end of {run.epoch}, {len(run.history)} rows")

    def on_fit_end(self, run: TrainState) -> None:
        self.heard.append(f"{self.name}done {run.epoch}")

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        self.heard.append(f"{self.name}{type(error).__name__}")


def test_the_order_of_events(problem: Problem) -> None:
    train, told = problem("binary", 3 * 64), Told()
    trainer_for(train, callbacks=[told], log_every=2).fit(train)
    assert told.heard == [
        *("fit", "epoch 1", "step 1", "log 2", "step 2", "step 3", "log 3", "end of 1, 1 rows"),
        *("epoch 2", "step 4", "log 5", "step 5", "step 6", "log 6", "end of 2, 2 rows", "done 2"),
    ]


def test_an_error_reaches_those_who_have_started(problem: Problem) -> None:
    class Failing(Told):
        def on_fit_start(self, run: TrainState) -> None:
            raise KeyError("no")

    class Worse(Told):
        def on_exception(self, run: TrainState, error: BaseException) -> None:
            raise OSError("disk")

    train, heard = problem("binary", 64), []  # type: ignore[var-annotated]
    callbacks = [Told("a ", heard), Worse("b ", heard), Failing("c ", heard), Told("d ", heard)]
    with pytest.raises(KeyError, match="no") as caught:
        trainer_for(train, callbacks=callbacks).fit(train)
    assert heard == ["a fit", "b fit", "a KeyError", "c KeyError"]
    assert caught.value.__notes__ == ["and then Worse.on_exception: disk"]


def test_a_callback_can_end_a_fit(problem: Problem) -> None:
    class Enough(Callback):
        def on_epoch_end(self, run: TrainState) -> None:
            run.stop = run.epoch == 2

    train = problem("binary", 64)
    assert len(trainer_for(train, max_epochs=9, callbacks=[Enough()]).fit(train)) == 2


def test_what_is_no_callback_is_refused(problem: Problem) -> None:
    train = problem("binary", 64)
    with raises(BadConfig, where="Trainer(callbacks=)", got=["csv"]):
        trainer_for(train, callbacks=["csv"]).fit(train)


def test_figures_of_a_look(problem: Problem) -> None:
    class Figures(Callback):
        seen: list[dict[str, float]] = []  # noqa: RUF012

        def on_log(self, run: TrainState) -> None:
            self.seen.append(run.metrics)

    train = problem("binary", 4 * 64)
    trainer_for(train, callbacks=[Figures()], schedule="constant", log_every=2).fit(train)
    for figures in Figures.seen:
        assert figures["lr"] == pytest.approx(0.01) and figures["rows_per_second"] >= 0
        assert 0 <= figures["data_wait"] <= 1 and math.isfinite(figures["loss"])


def test_slow_data_shows_in_the_share_of_waiting(problem: Problem) -> None:
    """The clock is the test's own: a batch takes nine ticks to come, an update one."""

    class Share(Callback):
        def on_log(self, run: TrainState) -> None:
            shares.append(run.metrics["data_wait"])

    class Slow:
        def __init__(self, loader: Any) -> None:
            self.loader, self.schema = loader, loader.schema

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Any:
            for batch in self.loader:
                clock.now += 9
                yield batch
                clock.now += 1

    clock, shares = SimpleNamespace(now=100.0), []  # type: ignore[var-annotated]
    train = Slow(problem("binary", 10 * 64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: clock.now)

        class Work(Callback):
            def on_step_end(self, run: TrainState) -> None:
                clock.now += 10

        trainer_for(train, max_epochs=1, callbacks=[Work(), Share()], log_every=5).fit(train)
    assert shares[0] == pytest.approx(49 / 89) and shares[1] == pytest.approx(50 / 100)


def test_the_bar_shows_speed_and_waiting(problem: Problem, capsys: pytest.CaptureFixture[str]) -> None:
    train = problem("binary", 256)
    trainer_for(train, progress=True).fit(train)
    shown = capsys.readouterr().err
    assert "epoch 2/2" in shown and "8/8" in shown and "rows/s=" in shown and "data wait=" in shown and "%" in shown


# files ----------------------------------------------------------------------------------------------------------------


def test_lines_of_json(problem: Problem, tmp_path: Path) -> None:
    train, path = problem("binary", 256), tmp_path / "new" / "log.jsonl"
    trainer = trainer_for(train, callbacks=[JSONLinesLogger(path)], log_every=2)
    history = trainer.fit(train)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["event"], row["step"]) for row in rows] == [
        *(("log", 2), ("log", 4), ("epoch", 4)),
        *(("log", 6), ("log", 8), ("epoch", 8)),
    ]
    assert {k: v for k, v in rows[2].items() if k not in ("event", "step")} == history.rows[0]
    trainer.fit(train)  # another run: another file
    assert len(path.read_text().splitlines()) == len(rows)


def test_a_fit_that_goes_on_appends_and_a_link_to_a_file_stays_one(problem: Problem, tmp_path: Path) -> None:
    train, path = problem("binary", 256), tmp_path / "log.jsonl"
    path.symlink_to(tmp_path / "own.jsonl")
    arguments = {"callbacks": [JSONLinesLogger(path)], "checkpoints": tmp_path / "saved"}
    trainer_for(train, max_epochs=1, **arguments).fit(train)
    assert path.is_symlink() and json.loads((tmp_path / "own.jsonl").read_text().splitlines()[-1])["event"] == "epoch"
    trainer_for(train, max_epochs=2, **arguments).fit(train, resume="latest")
    rows = [json.loads(line) for line in (tmp_path / "own.jsonl").read_text().splitlines()]
    assert path.is_symlink() and [row["step"] for row in rows if row["event"] == "epoch"] == [4, 8], "it goes on"


FILES = ("log.jsonl", "whole.jsonl")


@pytest.mark.parametrize("saved", [5, 8])
def test_what_was_logged_after_the_checkpoint_is_taken_back(problem: Problem, tmp_path: Path, saved: int) -> None:
    train, path = problem("binary", 256), tmp_path / "log.jsonl"

    class Lost(Callback):
        def on_step_end(self, run: TrainState) -> None:
            if run.step == 11:
                raise KeyboardInterrupt

    saves = Checkpoints(tmp_path / "saved", every_steps=saved, every_epochs=None)
    arguments = {"callbacks": [JSONLinesLogger(path)], "checkpoints": saves, "log_every": 1, "max_epochs": 3}
    with pytest.raises(KeyboardInterrupt):
        trainer_for(train, **arguments | {"callbacks": [JSONLinesLogger(path), Lost()]}).fit(train)
    with path.open("a") as file:
        file.write('{"note": "of another program"}\n')
        file.write('{"event": "log", "st')  # as a kill may leave it
    trainer_for(train, **arguments).fit(train, resume="latest")
    trainer_for(train, callbacks=[JSONLinesLogger(tmp_path / "whole.jsonl")], log_every=1, max_epochs=3).fit(train)
    assert path.read_text().count("of another program") == 1
    path.write_text(path.read_text().replace('{"note": "of another program"}\n', ""))
    told, whole = ([json.loads(line) for line in (tmp_path / name).read_text().splitlines()] for name in FILES)
    assert [(row["event"], row["step"]) for row in told] == [(row["event"], row["step"]) for row in whole]
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".tmp"] == []


def test_csv_is_the_history(problem: Problem, tmp_path: Path) -> None:
    train, path = problem("binary", 256), tmp_path / "history.csv"
    history = trainer_for(train, callbacks=[CSVLogger(path)]).fit(train, train)
    with path.open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == history.rows


def test_tensorboard(problem: Problem, tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train = problem("binary", 256)
    history = trainer_for(train, callbacks=[TensorBoardLogger(tmp_path)]).fit(train, train)
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    losses = [(event.step, event.value) for event in read.Scalars("epoch/train_loss")]
    assert losses == [(row["epoch"], pytest.approx(row["train_loss"])) for row in history]
    assert [event.step for event in read.Scalars("log/rows_per_second")] == [4, 8]


def test_tensorboard_that_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(BackendMissing, match="pip install tensorboard"):
        TensorBoardLogger(tmp_path)


# a trace --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "accumulate"), [(3, 1), (40, 1), (40, 4)])
@pytest.mark.slow
def test_a_trace_names_the_parts_of_an_update(problem: Problem, tmp_path: Path, batches: int, accumulate: int) -> None:
    train = problem("binary", batches * 8, batch_size=8)
    trainer_for(train, profile=tmp_path / "trace", max_epochs=1, accumulate=accumulate).fit(train)
    events = json.loads((tmp_path / "trace" / "trace.json").read_text())["traceEvents"]
    seen = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    wanted = 20 if (batches, accumulate) == (40, 1) else 1
    for name in ("data", "forward", "backward", "optimizer"):
        assert seen.count(name) >= wanted, (name, seen)


# the GPU --------------------------------------------------------------------------------------------------------------


def test_a_machine_without_a_driver_says_so_in_one_line(problem: Problem, caplog: pytest.LogCaptureFixture) -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        train = problem("binary", 64)
        history = trainer_for(train, gpu_stats=True).fit(train)
        assert [r.message for r in caplog.records if "NVML" in r.message] == [
            "no figures of the GPU: NVML does not answer (NVML Shared Library Not Found)"
        ]
        assert history.gpu == {} and "gpu" not in history.to_dict() and "gpu" not in repr(history)
    else:
        pytest.skip("NVML answers here")


class Driver:
    """NVML's answers, one set for each look; called with the real functions' names."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = pynvml.NVML_CLOCK_SM, pynvml.NVML_TEMPERATURE_GPU

    def __init__(self) -> None:
        self.looks, self.open = 0, 0

    def __getattr__(self, name: str) -> Any:
        getattr(pynvml, name)  # or the real one lacks it
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: setattr(self, "open", self.open + 1),
            "nvmlShutdown": lambda: setattr(self, "open", self.open - 1),
            "nvmlDeviceGetHandleByIndex": lambda index: f"gpu {index}",
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=[10, 30, 50][self.looks % 3]),
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=7 << 30),
            "nvmlDeviceGetClockInfo": lambda handle, kind: {pynvml.NVML_CLOCK_SM: 1980}[kind],
            "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
            "nvmlDeviceGetCurrentClocksEventReasons": self._reasons,
        }
        if name not in answers:
            return self._unsupported
        return answers[name]

    def _unsupported(self, *_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _reasons(self, handle: str) -> int:
        self.looks += 1
        hot = pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
        return int(pynvml.nvmlClocksThrottleReasonGpuIdle | (hot if self.looks % 3 == 1 else 0))


def test_what_the_driver_tells_is_in_the_history(problem: Problem, caplog: pytest.LogCaptureFixture) -> None:
    class Until(Callback):
        def on_epoch_end(self, run: TrainState) -> None:
            for _ in range(10_000):
                if driver.looks >= 6:
                    return
                time.sleep(0.001)

    driver = Driver()
    stats, train = GpuStats(driver, every=0.001), problem("binary", 64)
    history = trainer_for(train, max_epochs=1, callbacks=[stats, Until()]).fit(train)
    assert history.gpu["utilization_percent"] == {"min": 10, "median": 30, "max": 50}
    assert history.gpu["memory_bytes"]["max"] == 7 << 30 and history.gpu["power_watts"]["min"] == 350.5
    assert history.gpu["sm_clock_mhz"]["median"] == 1980 and "temperature_celsius" not in history.gpu
    share = -(-driver.looks // 3) / driver.looks
    assert history.throttled == {"hardware thermal slowdown": pytest.approx(share)}
    assert "the GPU was throttled" in caplog.text and "hardware thermal slowdown" in repr(history)
    assert driver.open == 0 and history.to_dict()["gpu"] == history.gpu
