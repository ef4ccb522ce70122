"""Checkpoint callback: saves a fit periodically and on SIGTERM, and resumes it."""

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

from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.files import writing
from gpupipe.schema import Schema
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.checkpointing.checkpoints import (
    Checkpoints,
    find_latest,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    snapshot,
    split_tensors,
    write_checkpoint,
)
from gpupipe.training.loop.train_state import TrainState

EXIT_CODE = 128 + signal.SIGTERM  # 143, as of any program that SIGTERM ends

logger = logging.getLogger(__name__)


class Terminated(SystemExit):
    """Exit after SIGTERM, once the fit has saved."""


class CheckpointCallback(Callback):
    """Checkpoint callback: writes in a thread of its own, and saves a last checkpoint on SIGTERM.

    Rank 0 writes. At the next log all ranks agree on saving or ending after a clock or a signal of one of them.
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

    def on_fit_start(self, run: TrainState) -> None:
        run.ranks.broadcast_object(self._make_folder)
        self._about, self._last_step = _describe_run(run), run.step
        self._takes_signals = threading.current_thread() is threading.main_thread()
        if self._takes_signals:  # no other thread gets any

            def handle(_number: int, _frame: FrameType | None) -> None:
                self._terminated = True
                if run.validating and run.ranks.size == 1:  # nothing is half done there, and it may take long
                    raise Terminated(EXIT_CODE)

            self._outer = signal.signal(signal.SIGTERM, handle)

    def _make_folder(self) -> None:
        there = list_checkpoints(self._folder)
        if there and not self._resumed:
            problem = "the folder holds checkpoints of another run"
            expected = "a folder of its own for each run, or a fit that goes on from there"
            remedy = "fit(..., resume='latest'), or another folder"
            raise BadConfig("Trainer(checkpoints=)", problem, got=str(there[-1].path), expected=expected, remedy=remedy)
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for draft in self._folder.glob(".step-*.tmp"):  # of a process that was killed while it wrote
                shutil.rmtree(draft)

    def on_log(self, run: TrainState) -> None:
        if run.ranks.size > 1:
            end, due = run.ranks.all_gather_scalar(torch.tensor([self._terminated, self._due])).any(0).tolist()
            self._agreed = end, due

    def on_step_end(self, run: TrainState) -> None:
        end, due = (self._terminated, self._due) if run.ranks.size == 1 else self._agreed
        if end:
            raise Terminated(EXIT_CODE)
        steps = self.checkpoints.every_steps
        # Passed, not met: with accumulation not every batch ends an update.
        passed = steps is not None and run.step // steps > self._last_step // steps
        self._last_step = run.step
        if passed or due:
            self._save(run)

    def on_epoch_end(self, run: TrainState) -> None:
        if run.ranks.any(self._terminated):
            raise Terminated(EXIT_CODE)
        every = self.checkpoints.every_epochs
        if run.finished or (every is not None and run.epoch % every == 0):
            self._save(run)

    def on_fit_end(self, run: TrainState) -> None:
        try:
            self._wait_for_save()
        finally:
            self._writer.shutdown()
            if self._takes_signals:
                signal.signal(signal.SIGTERM, self._outer)

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        try:
            if isinstance(error, Terminated):
                self._save(run)
                logger.warning("SIGTERM: saved after batch %d in %s", run.step, self._folder)
        finally:
            self.on_fit_end(run)
        if isinstance(error, Terminated) and callable(self._outer):
            self._outer(signal.SIGTERM, None)  # the program has its own way to end

    def _save(self, run: TrainState) -> None:
        """Copy the state, and write it in the background."""
        self._wait_for_save()
        state = run.state_dict()
        self._last, self._agreed = time.monotonic(), (False, False)
        if not run.ranks.is_main:
            return
        text, tensors = split_tensors(state)
        copies, event = snapshot(tensors)
        ended = len(run.history) >= run.epoch
        figure = run.history.rows[-1].get(run.history.monitor) if ended else None
        described = {**self._about, "figure": figure, "higher_is_better": run.history.higher_is_better}
        learned = {text["model"][name]["$tensor"] for name, _ in run.model.named_parameters()}
        step = run.step  # which moves on meanwhile

        def write() -> None:
            if event is not None:
                event.synchronize()
            if not all(bool(copies[name].isfinite().all()) for name in learned):
                logger.warning("no checkpoint after batch %d: the weights are not finite", step)
                return
            write_checkpoint(self._folder, step, text, copies, described)
            with writing(self._folder):
                prune_checkpoints(self._folder, self.checkpoints.keep)

        self._pending = self._writer.submit(write)

    @property
    def _due(self) -> bool:
        seconds = self.checkpoints.every_seconds
        return seconds is not None and time.monotonic() - self._last >= seconds

    def _wait_for_save(self) -> None:
        """Wait for the save in progress, and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def resume(run: TrainState, wanted: str | Path, checkpoints: Checkpoints | None) -> bool:
    """Restore a run from a checkpoint, and return whether there was one.

    `wanted` is "latest" for the last one of `checkpoints`, a checkpoint's folder, or a folder of checkpoints.
    """
    if wanted == "latest" and checkpoints is None:
        problem = "the trainer has no folder of checkpoints"
        remedy = "Trainer(..., checkpoints='runs/flights'), or a checkpoint's path"
        raise BadConfig("Trainer.fit(resume='latest')", problem, expected="a folder to read from", remedy=remedy)
    place = Path(checkpoints.folder) if wanted == "latest" and checkpoints is not None else Path(wanted)

    def find_checkpoint() -> tuple[str, dict[str, Any], dict[str, Any]] | None:
        found = find_latest(place)
        return (str(place), *read_checkpoint(place)) if found is None and wanted != "latest" else found

    found = run.ranks.broadcast_object(find_checkpoint)  # the folder need not be there where the other ranks are
    if found is None:
        logger.info("no checkpoint in %s: the fit starts from the beginning", place)
        return False
    path, state, described = found
    here = _describe_run(run)
    if not state["step_in_epoch"] and here["rows"] is not None:
        del here["batches per epoch"]  # between epochs the same rows may be dealt anew
    _check_same(path, described, here)
    run.load_state_dict(state)
    logger.info("the fit goes on after batch %d, from %s", run.step, path)
    return True


def _describe_run(run: TrainState) -> dict[str, Any]:
    """Describe what a run trains on: a checkpoint fits a run where all of this is the same."""
    schema = getattr(run.train, "schema", None)
    digest = None
    if isinstance(schema, Schema):
        digest = hashlib.sha256(json.dumps(schema.to_json(), sort_keys=True).encode()).hexdigest()
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    return {
        "weights": {name: f"{value.dtype} {tuple(value.shape)}" for name, value in run.model.state_dict().items()},
        "optimizer": type(run.update.optimizer).__name__,
        "trained parameters": [names.get(id(p)) for p in run.update.parameters],  # in the order of moments
        "rows": getattr(run.train, "total_rows", None),
        "schema": digest,
        "batches per epoch": run.steps_per_epoch,
    }


def _check_same(path: str, saved: dict[str, Any], here: dict[str, Any]) -> None:
    differ = [what for what, now in here.items() if saved.get(what) != now]
    if not differ:
        return
    what = differ[0]
    kind = "data set" if what in ("rows", "schema", "batches per epoch") else "model"
    problem = f"the checkpoint is of another {kind}: {what}"
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
