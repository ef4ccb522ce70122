"""Atomic writes: files and folders that appear whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpupipe.errors import BadFile, GpupipeError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def replacing(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path` for a file or folder, and move it to `path` when the block succeeds.

    A process that is killed inside leaves what was at `path` before (and a hidden draft next to it). Everything
    is on the disk before it gets its name. A folder takes the place of another in one step where the system can
    exchange two names (Linux); elsewhere there is a moment in which neither has the name.
    """
    if os.path.lexists(path) and not overwrite:
        raise BadFile(str(path), "something is there already", expected="a new path", remedy="overwrite=True")
    if not path.parent.is_dir():
        remedy = f"mkdir -p {path.parent}"
        raise BadFile(str(path), "its folder does not exist", expected="an existing folder", remedy=remedy)
    draft = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with writing(path):
            yield draft
            publish(draft, path)
    finally:
        _remove(draft)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the path in errors of the system about writing it: `BadFile` where the disk is full and the like."""
    try:
        yield
    except GpupipeError:
        raise
    except OSError as cause:
        problem, expected = f"it cannot be written ({' '.join(str(cause).split())})", "room on that disk, and leave to"
        remedy = "the same call again when there is; a folder's parts that are done are kept till then"
        raise BadFile(str(path), problem, expected=f"{expected} write there", remedy=remedy) from cause


def remove_folder(folder: Path) -> None:
    """Remove a folder, in several attempts where another process is still writing to it."""
    for pause in (0.1, 0.3, 1.0, 3.0):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            time.sleep(pause)
        else:
            return
    shutil.rmtree(folder)


def publish(draft: Path, path: Path) -> None:
    """Sync a file or folder to disk, then rename it to `path`; an earlier file of that name is removed."""
    for inside in [*draft.rglob("*"), draft, draft.parent]:
        if inside.is_file() or inside.is_dir():  # no link to nothing
            sync(inside)
    _swap(draft, path)
    sync(path.parent)
    _remove(draft)


def _swap(draft: Path, path: Path) -> None:
    if not path.is_dir() and not draft.is_dir():
        draft.replace(path)
    elif not os.path.lexists(path):
        draft.rename(path)
    elif not _exchange(draft, path):
        old = draft.with_suffix(".old")
        path.rename(old)
        draft.rename(path)
        _remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; return whether the system could."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) == 0


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
