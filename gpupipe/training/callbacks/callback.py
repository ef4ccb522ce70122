"""Callbacks: the hooks of a fit and their order; loggers; the trainer's own bar, profile and GPU statistics."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import math
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from operator import methodcaller
from pathlib import Path
from typing import IO, Any

import pynvml
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from gpupipe.errors import BackendMissing
from gpupipe.files import replacing, writing
from gpupipe.progress import Progress
from gpupipe.support.calls import answer_calls, answer_constructor
from gpupipe.support.strict_json import parse_json
from gpupipe.support.validation import check_path
from gpupipe.training.loop.train_state import TrainState

EVERY = 1.0  # seconds between two looks at the GPU
# The reasons that slow a busy GPU down. Source: nvml.h, "Clocks Event Reasons".
SLOWDOWNS = {0x4: "software power cap", 0x8: "hardware slowdown", 0x20: "software thermal slowdown"}
SLOWDOWNS |= {0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}
SKIPPED, WARMING, TRACED = 10, 2, 20  # updates of a profile

logger = logging.getLogger(__name__)


class Callback:
    """Base class of callbacks: methods that a fit calls with its `TrainState`; override those you need.

    Figures are read once per `log_every` batches, and `on_step_end` should read nothing from the device: the host would
    wait. Rank 0 alone calls them; those with `every_rank = True` are called on each rank.

    Example:
        >>> class Shout(Callback):
        ...     def on_epoch_end(self, run):
        ...         print(f"epoch {run.epoch} of {run.max_epochs}!")
    """

    every_rank = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        answer_constructor(cls)

    @answer_calls
    def __init__(self) -> None:
        """Take no argument; a callback that has some says so."""

    def on_fit_start(self, run: TrainState) -> None:
        """Run before the first epoch, or before the first one of a resumed fit."""

    def on_epoch_start(self, run: TrainState) -> None:
        """Run before an epoch's first update."""

    def on_step_end(self, run: TrainState) -> None:
        """Run after each update; called only where a class has it."""

    def on_log(self, run: TrainState) -> None:
        """Run once per `log_every` batches and at an epoch's end, when `run.metrics` is new."""

    def on_epoch_end(self, run: TrainState) -> None:
        """Run after validation, with the epoch's row in `run.history`; `run.stop = True` ends the fit after it."""

    def on_fit_end(self, run: TrainState) -> None:
        """Run at the end of a fit that succeeded, with the best weights restored under early stopping."""

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Run instead of `on_fit_end` after an exception, which is raised again afterwards."""


class Callbacks:
    """Callbacks of a fit as one; each event reaches them in order. The `first` rank calls all of them."""

    def __init__(self, callbacks: Iterable[Callback], *, first: bool = True) -> None:
        self._all = [callback for callback in callbacks if first or callback.every_rank]
        # The only event of every update: only callbacks that define it are called.
        self.on_step_end = [c.on_step_end for c in self._all if type(c).on_step_end is not Callback.on_step_end]

    @contextmanager
    def around(self, run: TrainState) -> Iterator[None]:
        """Call `on_fit_start`, then `on_fit_end` or `on_exception` of the callbacks that started."""
        started: list[Callback] = []
        try:
            for callback in self._all:
                started.append(callback)
                callback.on_fit_start(run)
            yield
            while started:
                started[0].on_fit_end(run)
                del started[0]
        except BaseException as error:
            for callback in started:
                try:
                    callback.on_exception(run, error)
                except Exception as second:  # noqa: BLE001 - the first is what went wrong
                    error.add_note(f"and then {type(callback).__name__}.on_exception: {second}")
            raise

    def call(self, event: str, run: TrainState) -> None:
        """Call this method of each callback."""
        for callback in self._all:
            getattr(callback, event)(run)


class _Closing(Callback):
    """Callback that ends a fit that failed as one that succeeded."""

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        self.on_fit_end(run)


class ProgressBar(_Closing):
    """Bar with epoch, loss, rows a second and the fraction of time spent waiting for data; see `Progress`."""

    def __init__(self, show: str | bool) -> None:
        self._hidden = None if show == "auto" else not show
        self._bar: Any = None

    def on_fit_start(self, run: TrainState) -> None:
        self._bar = Progress(total=run.last_step, initial=run.step, disable=self._hidden, unit=" batches")

    def on_epoch_start(self, run: TrainState) -> None:
        self._bar.set_description(f"epoch {run.epoch}/{run.max_epochs}")

    def on_log(self, run: TrainState) -> None:
        speed, waiting = run.metrics["rows_per_second"], run.metrics["data_wait"]
        figures = {"loss": run.metrics.get("loss"), "rows/s": f"{speed:,.0f}", "data wait": f"{waiting:.0%}"}
        self._bar.set_postfix(figures, refresh=False)
        self._bar.update(run.step - self._bar.n)

    def on_fit_end(self, run: TrainState) -> None:
        if self._bar is not None:
            self._bar.close()


class Profiling(_Closing):
    """Trace of twenty updates (after ten if there are enough) in a folder's trace.json, which Perfetto opens."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._profile: profile | None = None

    def on_fit_start(self, run: TrainState) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        left = (run.last_step - run.step) // run.update.accumulate  # of updates, at the least
        skipped = SKIPPED if left > SKIPPED + WARMING + TRACED else 0
        plan = schedule(wait=skipped, warmup=WARMING, active=TRACED, repeat=1)
        on_gpu, trace = run.device.type == "cuda", str(self.folder / "trace.json")
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        export = methodcaller("export_chrome_trace", trace)
        # There is one cycle, whose events are kept either way: `acc_events` spares a warning of torch 2.11.
        profiler = profile(activities=activities, schedule=plan, on_trace_ready=export, acc_events=True)
        profiler.start()
        self._profile = profiler
        run.range = run.update.range = _record_nvtx_range if on_gpu else record_function

    def on_step_end(self, run: TrainState) -> None:
        if self._profile is not None:
            self._profile.step()

    def on_fit_end(self, run: TrainState) -> None:
        if self._profile is not None:  # one that never started ends the process where it is stopped
            self._profile.stop()
        run.range = run.update.range = nullcontext


@contextmanager
def _record_nvtx_range(name: str) -> Iterator[None]:
    """Open a range of torch's profiler and an NVTX range for Nsight Systems."""
    with torch.cuda.nvtx.range(name), record_function(name):
        yield


class GpuStats(_Closing):
    """NVML's figures, sampled in a thread, in `history.gpu`; a warning if the GPU was throttled or does not answer."""

    def __init__(self, nvml: Any = pynvml, *, every: float = EVERY) -> None:
        self.nvml, self.every = nvml, every
        self._thread: threading.Thread | None = None

    def on_fit_start(self, run: TrainState) -> None:
        self._samples: dict[str, list[float]] = {}
        self._throttled: Counter[str] = Counter()
        try:
            self.nvml.nvmlInit()
            handle = self._get_handle(run.device)
        except self.nvml.NVMLError as error:
            logger.warning("no figures of the GPU: NVML does not answer (%s)", error)
            return
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(handle,), name="gpupipe-nvml", daemon=True)
        self._thread.start()

    def on_fit_end(self, run: TrainState) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            thread.join(timeout=10)
            self.nvml.nvmlShutdown()
        total = max(map(len, self._samples.values()), default=0)
        run.history.gpu = {
            name: {"min": min(values), "median": statistics.median(values), "max": max(values)}
            for name, values in self._samples.items()
        }
        run.history.throttled = {reason: count / total for reason, count in self._throttled.items()}
        for reason, share in run.history.throttled.items():
            logger.warning("the GPU was throttled for %.0f %% of the fit: %s", 100 * share, reason)

    def _get_handle(self, device: torch.device) -> Any:
        """Find a device by its UUID: NVML counts all GPUs, CUDA the visible ones."""
        if device.type != "cuda":
            return self.nvml.nvmlDeviceGetHandleByIndex(0)
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return self.nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    def _sample(self, handle: Any) -> None:
        nvml, stopped = self.nvml, False
        figures: dict[str, Callable[[], Any]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        while not stopped:
            for name, ask in figures.items():
                with suppress(nvml.NVMLError):  # not every GPU answers every question
                    value = float(ask())
                    self._samples.setdefault(name, []).append(value)
            with suppress(nvml.NVMLError):
                reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
                self._throttled.update(reason for bit, reason in SLOWDOWNS.items() if reasons & bit)
            stopped = self._ended.wait(self.every)


class _FileLogger(Callback):
    """Logger to a file, whose folder is made."""

    def __init__(self, path: str | Path) -> None:
        check_path(self, path=path)
        self.path = Path(path)

    @contextmanager
    def _open(self, mode: str) -> Iterator[IO[str]]:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8", newline="") as file:
                yield file


class JSONLinesLogger(_FileLogger):
    """JSON lines logger: `{"step": 100, "epoch": 1, "loss": 0.41, ...}`, and `"event": "epoch"` at an epoch's end.

    A figure that is not finite is null. Each line is written at once; the file's folder is made.

    Example:
        >>> JSONLinesLogger("runs/flights/log.jsonl").path.name
        'log.jsonl'
    """

    def on_fit_start(self, run: TrainState) -> None:
        """Make the folder and the file; a resumed fit keeps the lines before its checkpoint."""
        if not run.step or not self.path.is_file():
            with self._open("w"):  # in place: it may be a pipe
                return
        with writing(self.path):
            lines = self._read_lines_until(run)
        with replacing(self.path, overwrite=True) as draft:
            draft.write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def on_log(self, run: TrainState) -> None:
        self._write({"event": "log", "step": run.step, "epoch": run.epoch, **run.metrics})

    def on_epoch_end(self, run: TrainState) -> None:
        self._write({"event": "epoch", "step": run.step, **run.history.rows[-1]})

    def _write(self, row: dict[str, Any]) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with self._open("a") as file:
            file.write(json.dumps(plain) + "\n")

    def _read_lines_until(self, run: TrainState) -> list[str]:
        """Read the lines that an earlier run had logged before the checkpoint, and somebody else's."""
        lines = []
        for line in self.path.read_text("utf-8").splitlines():
            with suppress(ValueError):  # cut short by the end of that run
                match parse_json(line, object):
                    case {"event": "epoch", "epoch": int(epoch)} if epoch > len(run.history):
                        continue
                    case {"event": "log", "step": int(step)} if step > run.step:
                        continue
                lines.append(line)
        return lines


class CSVLogger(_FileLogger):
    """CSV logger: the history as a file, a line per epoch, columns as in the history; the file's folder is made.

    Example:
        >>> CSVLogger("runs/flights/history.csv").path.name
        'history.csv'
    """

    def on_epoch_end(self, run: TrainState) -> None:
        """Write all epochs: a metric may be missing in some, and all lines need the same columns."""
        names = list(dict.fromkeys(name for row in run.history for name in row))
        with self._open("w") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(run.history)


class TensorBoardLogger(_Closing):
    """TensorBoard logger: scalars `log/...` over updates, `epoch/...` over epochs, in a folder for `--logdir`.

    Raises `BackendMissing`: TensorBoard is not installed.

    Example:
        >>> TensorBoardLogger("runs/flights").folder.name  # doctest: +SKIP
        'flights'
    """

    def __init__(self, folder: str | Path) -> None:
        check_path(self, folder=folder)
        self.folder = Path(folder)
        try:
            # torch.utils.tensorboard imports TensorBoard, which is optional.
            self._module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as cause:
            problem, expected = "TensorBoard is not installed", "the package tensorboard"
            remedy = "pip install tensorboard"
            raise BackendMissing("TensorBoardLogger", problem, expected=expected, remedy=remedy) from cause

    def on_fit_start(self, run: TrainState) -> None:
        """Open a file; what an earlier run logged after the checkpoint is hidden."""
        with writing(self.folder):
            self._writer = self._module.SummaryWriter(self.folder, purge_step=run.step or None)

    def on_log(self, run: TrainState) -> None:
        for name, value in run.metrics.items():
            self._writer.add_scalar(f"log/{name}", value, run.step)

    def on_epoch_end(self, run: TrainState) -> None:
        for name, value in run.history.rows[-1].items():
            if name != "epoch":
                self._writer.add_scalar(f"epoch/{name}", value, run.epoch)
        self._writer.flush()

    def on_fit_end(self, run: TrainState) -> None:
        self._writer.close()
