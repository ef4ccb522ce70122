"""A fit that saves where it stands, in time and when it is told to end; and one that goes on from there."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import Schema
from gpupipe.support.files import writing
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.checkpointing.checkpoint_format import parted, snapshot
from gpupipe.training.checkpointing.checkpoints import Checkpoints, find, folders, prune, read, write
from gpupipe.training.loop.train_state import Run

__all__ = ["EXIT_CODE", "Saving", "Terminated", "resume"]

EXIT_CODE = 128 + signal.SIGTERM
"""Of a program whose fit was told to end by SIGTERM and has saved: 143, as of any program that SIGTERM ends."""

OF_DATA = ("rows", "schema", "batches per epoch")

logger = logging.getLogger(__name__)


class Terminated(SystemExit):
    """SIGTERM came; the fit has saved when this leaves it."""


class Saving(Callback):
    """Writes checkpoints in a thread of its own, and saves a last one on SIGTERM.

    Of several ranks the first one writes. What a clock or a signal says to one of them, all agree on when they next
    look at the figures.

    Args:
        checkpoints: where and how often.
        resumed: whether the fit goes on from one of them.

    Raises:
        BadConfig: the folder holds checkpoints of another run.
        BadFile: the folder cannot be made, or the one before could not be written.
    """

    every_rank = True

    def __init__(self, checkpoints: Checkpoints, *, resumed: bool) -> None:
        self.checkpoints, self._resumed = checkpoints, resumed
        self._folder = Path(checkpoints.folder)
        self._last = time.monotonic()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="gpupipe-checkpoint")
        self._pending: Future[None] | None = None
        self._terminated = self._takes_signals = False
        self._agreed = False, False  # to end, to save
        self._outer: Any = None

    def on_fit_start(self, run: Run) -> None:
        """Make the folder, and take over SIGTERM where signals reach this thread."""
        run.together.from_first(self._make_folder)
        self._about, self._last_step = about(run), run.step
        self._takes_signals = threading.current_thread() is threading.main_thread()
        if self._takes_signals:

            def handle(_number: int, _frame: FrameType | None) -> None:
                self._terminated = True
                if run.validating and run.together.size == 1:  # nothing is half done there, and it may take long
                    raise Terminated(EXIT_CODE)

            self._outer = signal.signal(signal.SIGTERM, handle)

    def _make_folder(self) -> None:
        there = folders(self._folder)
        if there and not self._resumed:
            raise BadConfig(
                "Trainer(checkpoints=)",
                "the folder holds checkpoints of another run",
                got=str(there[-1].path),
                expected="a folder of its own for each run, or a fit that goes on from there",
                remedy="fit(..., resume='latest'), or another folder",
            )
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for draft in self._folder.glob(".step-*.tmp"):  # of a process that was killed while it wrote
                shutil.rmtree(draft)

    def on_log(self, run: Run) -> None:
        """Agree with the other ranks, where there are some."""
        if run.together.size > 1:
            end, due = run.together.each(torch.tensor([self._terminated, self._due])).any(0).tolist()
            self._agreed = end, due

    def on_step_end(self, run: Run) -> None:
        """Save where it is time; end where that was asked for."""
        end, due = (self._terminated, self._due) if run.together.size == 1 else self._agreed
        if end:
            raise Terminated(EXIT_CODE)
        steps = self.checkpoints.every_steps
        # Passed, not met: with accumulation not every batch ends an update.
        passed = steps is not None and run.step // steps > self._last_step // steps
        self._last_step = run.step
        if passed or due:
            self.save(run)

    def on_epoch_end(self, run: Run) -> None:
        """Save where it is time; end where that was asked for."""
        if run.together.any(self._terminated):
            raise Terminated(EXIT_CODE)
        every = self.checkpoints.every_epochs
        if run.over or (every is not None and run.epoch % every == 0):
            self.save(run)

    def on_fit_end(self, run: Run) -> None:
        """Wait until all is on the disk."""
        try:
            self._settled()
        finally:
            self._close()

    def on_exception(self, run: Run, error: BaseException) -> None:
        """Save if SIGTERM was the reason; in any case wait for what is being written."""
        try:
            if isinstance(error, Terminated):
                self.save(run)
                logger.warning("SIGTERM: saved after batch %d in %s", run.step, self._folder)
            self._settled()
        finally:
            self._close()
        if isinstance(error, Terminated) and callable(self._outer):
            self._outer(signal.SIGTERM, None)  # the program has its own way to end

    def save(self, run: Run) -> None:
        """Copy the state, and have it written."""
        self._settled()
        state = run.state_dict()
        self._last, self._agreed = time.monotonic(), (False, False)
        if not run.together.first:
            return
        text, tensors = parted(state)
        copies, event = snapshot(tensors)
        ended = len(run.history) >= run.epoch
        figure = run.history.rows[-1].get(run.history.monitor) if ended else None
        described = {**self._about, "figure": figure, "higher_is_better": run.history.higher_is_better}
        learned = {text["model"][name]["$tensor"] for name, _ in run.model.named_parameters()}
        self._pending = self._writer.submit(self._write, run.step, text, copies, event, described, learned)

    @property
    def _due(self) -> bool:
        seconds = self.checkpoints.every_seconds
        return seconds is not None and time.monotonic() - self._last >= seconds

    def _write(
        self,
        step: int,
        text: Any,
        copies: dict[str, Tensor],
        event: torch.cuda.Event | None,
        described: dict[str, Any],
        learned: set[str],
    ) -> None:
        if event is not None:
            event.synchronize()
        if not all(bool(copies[name].isfinite().all()) for name in learned):
            logger.warning("no checkpoint after batch %d: the weights are not finite", step)
            return
        write(self._folder, step, text, copies, described)
        with writing(self._folder):
            prune(self._folder, self.checkpoints.keep)

    def _settled(self) -> None:
        """Wait for the save under way; what went wrong in it is raised here."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _close(self) -> None:
        self._writer.shutdown()
        if self._takes_signals:
            signal.signal(signal.SIGTERM, self._outer)


def resume(run: Run, wanted: str | Path, checkpoints: Checkpoints | None) -> bool:
    """Put a run where a checkpoint stands; whether there was one.

    Args:
        run: at its start.
        wanted: "latest" for the last one of `checkpoints`, a checkpoint's folder, or a folder of checkpoints.
        checkpoints: where the run saves.

    Raises:
        BadConfig: "latest" without `checkpoints`.
        ArtifactError: no checkpoint, or a damaged one.
        SchemaMismatch: it is of another model, optimiser or data.
    """
    if wanted == "latest" and checkpoints is None:
        raise BadConfig(
            "Trainer.fit(resume='latest')",
            "the trainer has no folder of checkpoints",
            expected="a folder to look in",
            remedy="Trainer(..., checkpoints='runs/flights'), or a checkpoint's path",
        )
    place = Path(checkpoints.folder) if wanted == "latest" and checkpoints is not None else Path(wanted)

    def looked_for() -> tuple[str, dict[str, Any], dict[str, Any]] | None:
        found = find(place)
        return (str(place), *read(place)) if found is None and wanted != "latest" else found

    found = run.together.from_first(looked_for)  # the folder need not be there where the other ranks are
    if found is None:
        logger.info("no checkpoint in %s: the fit starts from the beginning", place)
        return False
    path, state, described = found
    here = about(run)
    if not state["step_in_epoch"] and here["rows"] is not None:
        del here["batches per epoch"]  # between epochs the same rows may be dealt anew
    _check_same(path, described, here)
    run.load_state_dict(state)
    logger.info("the fit goes on after batch %d, from %s", run.step, path)
    return True


def about(run: Run) -> dict[str, Any]:
    """What a run is of: a checkpoint fits a run where all of this is the same."""
    schema = getattr(run.train, "schema", None)
    digest = None
    if isinstance(schema, Schema):
        digest = hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    return {
        "weights": _shapes(run.model),
        "optimizer": type(run.update.optimizer).__name__,
        "trained parameters": [names.get(id(p)) for p in run.update.parameters],  # in the order of moments
        "rows": getattr(run.train, "total_rows", None),
        "schema": digest,
        "batches per epoch": run.steps_per_epoch,
    }


def _shapes(model: nn.Module) -> dict[str, str]:
    return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in model.state_dict().items()}


def _check_same(path: str, saved: dict[str, Any], here: dict[str, Any]) -> None:
    differ = [what for what, now in here.items() if saved.get(what) != now]
    if not differ:
        return
    what = differ[0]
    problem = f"the checkpoint is of another {'data set' if what in OF_DATA else 'model'}: {what}"
    remedy = "the model, optimiser and loader it was made with; model.load_state_dict for weights alone"
    then, now = saved.get(what), here[what]
    if what == "weights" and isinstance(then, dict):
        name = next(name for name in [*now, *then] if now.get(name) != then.get(name))
        problem = problem.replace(what, f"weight {name!r}")
        then, now = then.get(name, "none"), now.get(name, "none")
    elif what == "trained parameters" and then is not None:
        then, now = next((a, b) for a, b in zip_longest(then, now, fillvalue="none") if a != b)
        remedy = "freeze(), unfreeze() and param_groups= as they were; model.load_state_dict for weights alone"
    elif what == "batches per epoch" and here["rows"] is not None:
        problem = f"the checkpoint is from the middle of an epoch of other batches: {what}"
        remedy = "as many ranks, and the batch size, as then; or a checkpoint from the end of an epoch"
    raise SchemaMismatch(path, problem, got=then, expected=f"{now!r}, as in this fit", remedy=remedy)
