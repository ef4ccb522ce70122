"""Files that appear whole or not at all, and folders for temporary ones."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import platform
import re
import secrets
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import Self

from gpupipe.config import settings
from gpupipe.errors import BadFile, GpupipeError
from gpupipe.support.owner import is_owner_gone, name_owner

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_log = logging.getLogger("gpupipe")
_LONGEST_STEM = 180  # bytes
_LEFT_FOR_S = 3600
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO)


@contextmanager
def replacing(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path` for a file or folder, and move it to `path` when the block succeeds.

    A process that is killed inside leaves what was at `path` before, and a hidden draft next to it, which the next call
    for the same path removes. Everything is on the disk before it gets its name. A folder takes the place of another in
    one step where the system can exchange two names (Linux); elsewhere for a moment neither has the name. What a link
    leads to is replaced, and the link stays.
    """
    if os.path.lexists(path) and not overwrite:
        raise BadFile(str(path), "something is there already", expected="a new path", remedy="overwrite=True")
    path = follow_links(path) if path.is_symlink() else path
    if not path.parent.is_dir():
        remedy = f"mkdir -p {path.parent}"
        raise BadFile(str(path), "its folder does not exist", expected="an existing folder", remedy=remedy)
    # Names of files have 255 bytes at most.
    stem = path.name if len(path.name.encode()) <= _LONGEST_STEM else sha256(path.name.encode()).hexdigest()
    draft = path.parent / f".{stem}.{name_owner()}-{uuid.uuid4().hex[:8]}.tmp"
    try:
        with writing(path):
            for left in path.parent.glob(f".{escape(stem)}.*.tmp"):
                if is_owner_gone(left.name):
                    _remove(left)
            yield draft
            publish(draft, path)
    finally:
        with suppress(OSError):  # of a disk that nothing can be written to, which has no draft; or the next call does
            _remove(draft)


def follow_links(path: str | Path) -> Path:
    """Return the absolute path that a path's links lead to; raise `BadFile` where they lead in a circle."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        remedy = f"rm {path}, or another path"
        raise BadFile(str(path), "its links lead in a circle", expected="links that end somewhere", remedy=remedy)
    return target


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the path in errors of the system about writing it: `BadFile` where the disk is full and the like."""
    try:
        yield
    except GpupipeError:
        raise
    except OSError as cause:
        problem, expected = f"it cannot be written ({' '.join(str(cause).split())})", "free space, and write permission"
        remedy = "the same call again when there is; a folder's parts that are done are kept till then"
        raise BadFile(str(path), problem, expected=expected, remedy=remedy) from cause


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """Lock a folder until the block ends or the process does; BadFile names the process that has it."""
    path = folder / ".lock"
    with ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("a+"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as cause:
                file.seek(0)
                owner, remedy = file.read() or "another process", "another folder, or the same call once that has ended"
                raise BadFile(str(folder), f"{owner} writes to it", expected="one at a time", remedy=remedy) from cause
            except OSError as error:
                _log.warning("%s: no locks there (%s); let one process write at a time", folder, error)
            if os.fstat(file.fileno()).st_nlink:  # else whoever had it has just removed it
                break
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # somebody took the folder away
                path.unlink()


def remove_folder(folder: Path) -> None:
    """Remove a folder, in several attempts where another process still writes or removes files in it."""
    for pause in (0.1, 0.3, 1.0, 3.0):
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or not folder.exists():
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


def _exchange(path: Path, other_path: Path) -> bool:
    """Swap two names atomically; return whether the system could."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(_AT_FDCWD, bytes(path), _AT_FDCWD, bytes(other_path), _RENAME_EXCHANGE) == 0


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


class ScratchFolder:
    """Temporary folder on a disk of this machine, removed with the object, a `with` block or the process.

    What a killed process left is removed by the next folder made at the same place, an hour after it was written.
    """

    def __init__(self) -> None:
        parent = local_scratch()
        try:
            self.path = Path(parent or tempfile.gettempdir()) / f"gpupipe-{name_owner()}-{secrets.token_hex(8)}"
            # Before the folder is there: a Ctrl-C behind its making would leave it, as mkdtemp may.
            weakref.finalize(self, _remove_own, self.path, os.getpid())
            self.path.mkdir(mode=0o700)
            _remove_left(self.path.parent)
        except OSError as cause:
            raise _unwritable(parent or "TMPDIR", cause) from cause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _remove_scratch(self.path)


def _remove_left(parent: Path) -> None:
    """Remove the folders of killed processes; not at once, as others may still read what one of a cluster wrote."""
    for folder in parent.glob("gpupipe-*"):
        with suppress(OSError):
            if is_owner_gone(folder.name) and time.time() - folder.lstat().st_mtime > _LEFT_FOR_S:
                shutil.rmtree(folder)


def local_scratch() -> str | None:
    """Return the folder of this machine for temporary files; None for TMPDIR, or the system's own default."""
    scratch = settings().scratch
    return None if scratch is None or "://" in scratch else scratch


@contextmanager
def writing_scratch(folder: Path) -> Iterator[None]:
    """Raise `BadFile` naming the folder for an error that says that its disk is full, or that it is gone."""
    try:
        yield
    except GpupipeError:
        raise
    except Exception as cause:
        # Polars and pyarrow hand on what the system says in words; but of a Parquet file's headers only this is told.
        reason = _try_to_write(folder) or cause if "transport error" in str(cause) else cause
        number = re.search(r"(?:os error|errno) ([0-9]+)", str(reason), re.IGNORECASE)
        code = reason.errno if isinstance(reason, OSError) and reason.errno else int(number[1]) if number else None
        if code not in _FULL and folder.is_dir():
            raise
        raise _unwritable(str(folder), reason) from cause


def _try_to_write(folder: Path) -> OSError | None:
    """Write a MiB to a file that has no name, and return what the system says against it."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        return error
    return None


def _unwritable(folder: str, cause: Exception) -> BadFile:
    problem = f"temporary files cannot be written there ({' '.join(str(cause).split())})"
    remedy = "gp.configure(scratch='/a/large/disk'), or TMPDIR= in the environment"
    return BadFile(folder, problem, expected="a folder that stays, with space for the rows", remedy=remedy)


def _remove_own(folder: Path, owner: int) -> None:
    # A forked child runs this too, and must not take the files from under its parent.
    if os.getpid() != owner:
        return
    try:
        _remove_scratch(folder)
    finally:  # Ctrl-C may arrive here too
        _remove_scratch(folder)


def _remove_scratch(folder: Path) -> None:
    with suppress(OSError):  # an engine's threads go on for a moment when its plan has failed, and add files
        remove_folder(folder)
