"""Checkpoints of a fit: nested state as named tensors and plain JSON in folders, written atomically, in the background.

runs/flights/step-0000012000/state.json             numbers, history, shapes, checksums
runs/flights/step-0000012000/tensors.safetensors    weights, moments, random states
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from gpupipe.errors import ArtifactError, BadConfig
from gpupipe.files import replacing
from gpupipe.support.validation import check_integer, check_number, check_path, refuse_argument

FORMAT = 2
STATE, TENSORS = "state.json", "tensors.safetensors"
NAME = re.compile(r"step-(\d{10})")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoint settings: where and how often a fit saves.

    Saving runs in the background: the state is copied, and a thread writes the copy while updates go on. The next
    save waits for the one before. With checkpoints a fit also handles SIGTERM: it saves and exits with code 143.

    Args:
        folder: of this run alone; made where it is not there.
        every_steps: batches between two; with accumulation at the next update.
        every_epochs: epochs between two, saved after validation; None for none but the last epoch's.
        every_seconds: seconds between two, at the least.
        keep: how many of the last stay; the best by the history's monitored figure stays too.

    Raises:
        BadConfig: an argument that makes no sense.

    Memory:
        One copy of weights, moments and best weights on the host while it is written, pinned for a model on a GPU.

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


def split_tensors(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a tree into plain JSON with numbers for the tensors, and the tensors by these numbers."""
    tensors: dict[str, Tensor] = {}

    def split(node: Any) -> Any:
        if isinstance(node, Tensor):
            name = str(len(tensors))
            tensors[name] = node.detach()
            return {"$tensor": name}
        if isinstance(node, Mapping):
            if all(isinstance(key, str) and not key.startswith("$") for key in node):
                return {key: split(value) for key, value in node.items()}
            return {"$pairs": [[split(key), split(value)] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {"$tuple": [split(value) for value in node]}
        if isinstance(node, list):
            return [split(value) for value in node]
        if node is None or isinstance(node, str | bool | int | float):
            return node
        problem = "the state of the loader or optimiser holds something that cannot be written without pickle"
        expected = "tensors, numbers, strings, None, and lists, tuples and mappings of them"
        remedy = "a loader without state_dict, whose batches are passed over when a fit goes on"
        raise BadConfig("checkpoint", problem, got=type(node).__name__, expected=expected, remedy=remedy)

    return split(tree), tensors


def join_tensors(text: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Rebuild the tree that `split_tensors` split."""
    if isinstance(text, list):
        return [join_tensors(value, tensors) for value in text]
    match text:
        case {"$tensor": name}:
            return tensors[name]
        case {"$pairs": pairs}:
            return {join_tensors(key, tensors): join_tensors(value, tensors) for key, value in pairs}
        case {"$tuple": values}:
            return tuple(join_tensors(values, tensors))
        case dict():
            return {key: join_tensors(value, tensors) for key, value in text.items()}
    return text


def snapshot(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], torch.cuda.Event | None]:
    """Copy tensors to the host as of this point of the stream; return the event after which the copies are complete.

    The host does not wait: what follows on the stream may change the originals. Copies are pinned where they come from
    a GPU, contiguous, and never shared: safetensors writes neither tied weights nor views.
    """
    copies = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=t.is_cuda) for name, t in tensors.items()}
    for name, tensor in tensors.items():
        copies[name].copy_(tensor, non_blocking=True)
    on_gpu = any(tensor.is_cuda for tensor in tensors.values())
    return copies, torch.cuda.current_stream().record_event() if on_gpu else None


def write_checkpoint(folder: Path, step: int, text: Any, tensors: dict[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write the state after `step` batches, as `split_tensors` gives it, and what it is of."""
    content, inside = bytes_of(tensors), json.dumps(text)
    described = {"format": FORMAT, "step": step, "state": _digest(inside.encode()), "tensors": _digest(content)}
    with replacing(folder / f"step-{step:010d}", overwrite=True) as draft:
        draft.mkdir()
        (draft / TENSORS).write_bytes(content)
        (draft / STATE).write_text(json.dumps({**described, **about, "text": inside}))


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a checkpoint's state and its description; refuse one that is damaged or of another format."""
    try:
        about = json.loads((path / STATE).read_text())
        content = (path / TENSORS).read_bytes()
        if about["format"] != FORMAT:
            raise _refuse_damaged(path, f"its format is {about['format']}, not {FORMAT}")
        if _digest(about["text"].encode()) != about["state"] or _digest(content) != about["tensors"]:
            raise _refuse_damaged(path, "its content is not what was written")
        return join_tensors(json.loads(about["text"]), tensors_from(content)), about
    except ArtifactError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as cause:
        raise _refuse_damaged(path, f"{type(cause).__name__}: {cause}") from cause


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """Checkpoint on disk, not yet read; `figure` is the monitored one of its last epoch, if an epoch had ended."""

    path: Path
    step: int
    figure: float | None
    higher_is_better: bool


def list_checkpoints(folder: Path) -> list[CheckpointFolder]:
    """List the checkpoints in a folder, first to last; other files are left out."""
    found = []
    for path in folder.glob("step-*") if folder.is_dir() else ():
        if named := NAME.fullmatch(path.name):
            try:
                about = json.loads((path / STATE).read_text())
                figure, higher = about["figure"], about["higher_is_better"]
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError, KeyError, TypeError):  # found out, and said, when it is read
                figure, higher = None, False
            found.append(CheckpointFolder(path, int(named[1]), figure, higher))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def find_latest(folder: Path) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """Read the last whole checkpoint of a folder: its path, state and description; None if there are none at all."""
    trouble = None
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            return str(checkpoint.path), *read_checkpoint(checkpoint.path)
        except ArtifactError as error:
            logger.warning("%s; the one before is tried", str(error).splitlines()[0])
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    return None


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the last few and the best."""
    found = list_checkpoints(folder)
    scored = [(c.figure if c.higher_is_better else -c.figure, c.step) for c in found if c.figure is not None]
    best = max(scored, default=(0.0, -1))[1]
    for checkpoint in found[:-keep]:
        if checkpoint.step != best:
            hidden = folder / f".{checkpoint.path.name}.old.tmp"  # or half a checkpoint could be seen
            checkpoint.path.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _refuse_damaged(path: Path, problem: str) -> ArtifactError:
    expected = f"a folder with {STATE} and {TENSORS} as a fit wrote them"
    remedy = "resume='latest', which takes the last whole one; where none is, another folder for Checkpoints"
    return ArtifactError(str(path), f"it is no whole checkpoint ({problem})", expected=expected, remedy=remedy)
