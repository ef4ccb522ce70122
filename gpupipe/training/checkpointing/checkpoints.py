"""Checkpoints of a fit: state as tensors and JSON in folders, written in the background, and read to resume.

runs/flights/step-0000012000/state.json             numbers, history, shapes, checksums
runs/flights/step-0000012000/tensors.safetensors    weights, moments, random states
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from gpupipe.errors import ArtifactError, BadConfig, GpupipeError, SchemaMismatch
from gpupipe.files import locking, replacing, writing
from gpupipe.schema import Schema
from gpupipe.support.calls import answer_calls
from gpupipe.support.strict_json import check_shape, parse_json
from gpupipe.support.validation import check_integer, check_number, check_path, refuse_argument
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.loop.batches import join_tensors, split_tensors
from gpupipe.training.loop.train_state import TrainState

FORMAT = 3
STATE, TENSORS = "state.json", "tensors.safetensors"
EXIT_CODE = 128 + signal.SIGTERM  # 143, as of any program that SIGTERM ends

logger = logging.getLogger(__name__)

# Shapes of `strict_json`: of the file, and of the state in its text with the tensors in place.
_NUMBER = (int, float)
_ABOUT = {
    "digest": str,
    "step": int,
    "tensors": str,
    "text": str,
    "weights": {str: str},
    "optimizer": str,
    "trained parameters": [(str, None)],
    **dict.fromkeys(("rows", "batches per epoch"), (int, None)),
    "schema": (str, None),
    "figure": (int, float, None),
    "higher_is_better": bool,
}
_STATE = {
    **dict.fromkeys(("epoch", "step_in_epoch", "rows", "offset"), int),
    **dict.fromkeys(("seconds", "fallen"), _NUMBER),
    "lengths": [int],
    "model": {str: object},
    "update": {str: Tensor},
    "losses": Tensor,
    "history": [{str: object}],
    "rng": [[Tensor]],
    "rng_of_epoch": [([Tensor], None)],
    **dict.fromkeys(("best", "loader"), object),  # their own checks follow
}


@answer_calls
@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoint settings: where and how often a fit saves, in the background; the next save waits for the one before.

    With checkpoints a fit also handles SIGTERM: it saves and exits with code 143. A second fit in the folder is a
    BadFile that names the process of the first, until that has ended.

    Args:
        folder: of this run alone; made where it is not there.
        every_steps: batches between two; with accumulation at the next update.
        every_epochs: epochs between two, saved after validation; None for none but the last epoch's.
        every_seconds: seconds between two, at the least.
        keep: how many of the last stay; the best by the history's monitored figure stays too.

    Memory: a copy of weights, moments and best weights on the host, pinned for a model on a GPU.

    Example:
        >>> Checkpoints("runs/flights", every_steps=1000, keep=2)
        Checkpoints(folder='runs/flights', every_steps=1000, every_epochs=1, every_seconds=None, keep=2)
    """

    folder: str | Path
    every_steps: int | None = None
    every_epochs: int | None = 1
    every_seconds: float | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        check_path(self, folder=self.folder)
        if Path(self.folder).is_file():
            raise refuse_argument(self, "folder", self.folder, "a folder, not a file", "folder='runs/flights'")
        check_integer(self, "[1, inf)", None, every_steps=self.every_steps, every_epochs=self.every_epochs)
        check_number(self, "(0, inf)", None, every_seconds=self.every_seconds)
        check_integer(self, "[1, inf)", keep=self.keep)


class Terminated(SystemExit):
    """Exit after SIGTERM, once the fit has saved."""


class CheckpointCallback(Callback):
    """Checkpoint callback: rank 0 writes in a thread; at a log all agree on a clock or SIGTERM of one of them."""

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
        self._lock = ExitStack()

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
        if (folders := list_checkpoints(self._folder)) and not self._resumed:
            problem = "the folder holds checkpoints of another run"
            remedy = "fit(..., resume='latest'), or another folder"
            expected = "a folder of its own for each run, or a fit that goes on from there"
            raise refuse_argument("Trainer", "checkpoints", str(folders[-1].path), expected, remedy, problem=problem)
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(locking(self._folder))
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
        run.stop = run.ranks.any(run.stop)
        every = self.checkpoints.every_epochs
        if run.finished or (every is not None and run.epoch % every == 0):
            self._save(run)

    def on_fit_end(self, run: TrainState) -> None:
        try:
            self._wait_for_save()
        finally:
            self._writer.shutdown()
            self._lock.close()
            if self._takes_signals:
                signal.signal(signal.SIGTERM, self._outer)

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        try:
            if isinstance(error, Terminated):
                self._save(run)
                logger.warning("SIGTERM: saved after batch %d in %s", run.step, self._folder)
        finally:
            self.on_fit_end(run)
        if isinstance(error, KeyboardInterrupt) and (folders := list_checkpoints(self._folder)):
            error.add_note(f"last checkpoint: {folders[-1].path}, go on with fit(..., resume='latest')")
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
            _write_checkpoint(self._folder, step, text, copies, described)
            with writing(self._folder):
                _prune_checkpoints(self._folder, self.checkpoints.keep)

        self._pending = self._writer.submit(write)

    @property
    def _due(self) -> bool:
        return time.monotonic() - self._last >= (self.checkpoints.every_seconds or math.inf)

    def _wait_for_save(self) -> None:
        """Wait for the save in progress, and raise its error."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def snapshot(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
    """Copy tensors to the host, which does not wait; return the event after which the copies are complete.

    They are pinned where they come from a GPU, contiguous, and never shared: safetensors writes neither ties nor views.
    """
    copies = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda) for name, t in tensors.items()}
    for name, tensor in tensors.items():
        copies[name].copy_(tensor, non_blocking=True)
    on_gpu = any(tensor.is_cuda for tensor in tensors.values())
    return copies, torch.cuda.current_stream().record_event() if on_gpu else None


def _write_checkpoint(folder: Path, step: int, text: Any, tensors: dict[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the state after `step` batches, as `split_tensors` gives it, and what it is of."""
    content, inside = bytes_of(tensors), json.dumps(text)
    described = {"format": FORMAT, "step": step, "tensors": _digest(content), **about, "text": inside}
    with replacing(folder / f"step-{step:010d}", overwrite=True) as draft:
        draft.mkdir()
        (draft / TENSORS).write_bytes(content)
        (draft / STATE).write_text(json.dumps({**described, "digest": _digest_items(described)}))


def _read_about(path: Path) -> dict[str, Any]:
    """Read a checkpoint's description and text; ValueError for one that is altered or of another format."""
    content = (path / STATE).read_bytes()
    version = parse_json(content, {"format": int}, finite=False)["format"]
    if version != FORMAT:
        raise ValueError(f"its format is {version}, not {FORMAT}")
    about: dict[str, Any] = parse_json(content, _ABOUT, finite=False)
    if about.pop("digest") != _digest_items(about):
        raise ValueError("its content is not what was written")
    return about


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a checkpoint's state and its description; refuse one that is damaged or of another format."""
    with _blame_checkpoint(str(path)):
        about, content = _read_about(path), (path / TENSORS).read_bytes()
        if _digest(content) != about["tensors"]:
            raise ValueError("its content is not what was written")
        state = join_tensors(parse_json(about["text"], object, finite=False), tensors_from(content))
        check_shape(state, _STATE)
        for generators in filter(None, [*state["rng"], *state["rng_of_epoch"]]):
            torch.Generator().set_state(generators[0])  # which refuses what is no state
        return state, about


@contextmanager
def _blame_checkpoint(path: str) -> Iterator[None]:
    """Report exceptions raised inside as a fault of the checkpoint, except those of the family."""
    try:
        yield
    except GpupipeError:
        raise
    except Exception as cause:
        reason = str(cause) if isinstance(cause, ValueError) else f"{type(cause).__name__}: {cause}"
        problem = f"it is no whole checkpoint ({reason})"
        expected = f"a folder with {STATE} and {TENSORS} as a fit wrote them"
        remedy = "resume='latest', which takes the last whole one; where none is, another folder for Checkpoints"
        raise ArtifactError(path, problem, expected=expected, remedy=remedy) from cause


class CheckpointFolder(NamedTuple):
    """Checkpoint on disk, not yet read; `figure` is the monitored one of its last epoch, if an epoch had ended."""

    step: int
    path: Path
    figure: float | None
    higher_is_better: bool


def list_checkpoints(folder: Path) -> list[CheckpointFolder]:
    """List the checkpoints in a folder, first to last; other files are left out."""
    checkpoints = []
    for path in folder.glob("step-" + 10 * "[0-9]"):
        try:
            about = _read_about(path)
            figure, higher = about["figure"], about["higher_is_better"]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError):  # found out, and said, when it is read
            figure, higher = None, False
        checkpoints.append(CheckpointFolder(int(path.name[-10:]), path, figure, higher))
    return sorted(checkpoints)


def _find_latest(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """Read the last whole checkpoint of a folder: its path, state and description; None if there are none at all."""
    trouble = None
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            return str(checkpoint.path), *_read_checkpoint(checkpoint.path)
        except ArtifactError as error:
            logger.warning("%s; the one before is tried", str(error).splitlines()[0])
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    return None


def _prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last few and the best."""
    checkpoints = list_checkpoints(folder)
    scored = [(c.figure if c.higher_is_better else -c.figure, c.step) for c in checkpoints if c.figure is not None]
    best = max(scored, default=(0.0, -1))[1]
    for checkpoint in [checkpoint for checkpoint in checkpoints[:-keep] if checkpoint.step != best]:
        hidden = folder / f".{checkpoint.path.name}.old.tmp"  # or half a checkpoint could be seen
        checkpoint.path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_items(items: Mapping[str, Any]) -> str:
    return _digest(json.dumps(items, sort_keys=True).encode())


def resume_run(run: TrainState, resume: str | Path, checkpoints: Checkpoints | None) -> bool:
    """Restore a run from "latest", a checkpoint's folder, or a folder of checkpoints; return whether there was one."""
    if resume == "latest" and checkpoints is None:
        where, problem = "Trainer.fit(resume='latest')", "the trainer has no folder of checkpoints"
        remedy = "Trainer(..., checkpoints='runs/flights'), or a checkpoint's path"
        raise BadConfig(where, problem, expected="a folder to read from", remedy=remedy)
    location = Path(checkpoints.folder) if resume == "latest" and checkpoints is not None else Path(resume)

    def find_checkpoint() -> tuple[str, dict[str, Any], dict[str, Any]] | None:
        if resume != "latest" and not location.exists():
            expected = "a checkpoint's folder, or a folder of checkpoints"
            remedy = "a path that is there, or resume='latest' with Trainer(..., checkpoints='runs/flights')"
            raise ArtifactError(str(location), "there is no such folder", expected=expected, remedy=remedy)
        checkpoint = _find_latest(location)
        return (str(location), *_read_checkpoint(location)) if checkpoint is None and resume != "latest" else checkpoint

    checkpoint = run.ranks.broadcast_object(find_checkpoint)  # the folder need not be there where the other ranks are
    if checkpoint is None:
        logger.info("no checkpoint in %s: the fit starts from the beginning", location)
        return False
    path, state, described = checkpoint
    description = _describe_run(run)
    if not state["step_in_epoch"] and description["rows"] is not None:
        del description["batches per epoch"]  # between epochs the same rows may be dealt anew
    _check_same(path, described, description)
    with _blame_checkpoint(path):
        run.load_state_dict(state)
    logger.info("the fit goes on after batch %d, from %s", run.step, path)
    return True


def _describe_run(run: TrainState) -> dict[str, Any]:
    """Describe what a run trains on: a checkpoint fits a run where all of this is the same."""
    schema = getattr(run.train, "schema", None)
    content = json.dumps(schema.to_json(), sort_keys=True).encode() if isinstance(schema, Schema) else None
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    keys = getattr(run.model, "id_keys", None)  # a fit anew gives values other ids, and leaves the sizes as they are
    return {
        "weights": {name: f"{value.dtype} {tuple(value.shape)}" for name, value in run.model.state_dict().items()},
        "optimizer": type(run.update.optimizer).__name__,
        "trained parameters": [names.get(id(p)) for p in run.update.parameters],  # in the order of moments
        "rows": getattr(run.train, "total_rows", None),
        "schema": None if content is None else _digest(content),
        "vocabularies": None if keys is None else _digest(keys.cpu().numpy().tobytes()),
        "batches per epoch": run.steps_per_epoch,
    }


def _check_same(path: str, saved: dict[str, Any], current: dict[str, Any]) -> None:
    what = next((what for what, now in current.items() if saved.get(what) != now), None)
    if what is None:
        return
    kind = "data set" if what in ("rows", "schema", "vocabularies", "batches per epoch") else "model"
    problem = f"the checkpoint is of another {kind}: {what}"
    remedy = "the model, optimiser and loader it was made with; gp.training.load_weights for weights alone"
    then, now = saved.get(what), current[what]
    if what == "weights" and isinstance(then, dict):
        name = next(name for name in [*now, *then] if now.get(name) != then.get(name))
        problem = problem.replace(what, f"weight {name!r}")
        then, now = then.get(name, "none"), now.get(name, "none")
    elif what == "trained parameters" and then is not None:
        then, now = next((a, b) for a, b in zip_longest(then, now, fillvalue="none") if a != b)
        remedy = "freeze(), unfreeze() and param_groups= as they were; gp.training.load_weights for weights alone"
    elif what == "batches per epoch" and current["rows"] is not None:
        problem = f"the checkpoint is from the middle of an epoch of other batches: {what}"
        remedy = "as many ranks, and the batch size, as then; or a checkpoint from the end of an epoch"
    raise SchemaMismatch(path, problem, got=then, expected=f"{now!r}, as in this fit", remedy=remedy)
