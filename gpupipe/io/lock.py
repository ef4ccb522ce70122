"""A hidden folder beside what is to be written, which one process has at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpupipe.errors import BadFile

__all__ = ["draft_folder"]

_LOCK = "lock"
_log = logging.getLogger("gpupipe")


@contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """The folder of drafts for `path`; what is left in it stays for the next call, and without that the folder goes.

    The system gives the folder free when the process ends, however it does.

    Raises:
        BadFile: another process has it, or there is no folder to put it in.

    Example:
        >>> import tempfile
        >>> parent = Path(tempfile.mkdtemp())
        >>> with draft_folder(parent / "scores") as drafts:
        ...     drafts.name
        '.scores.draft'
        >>> list(parent.iterdir())
        []
    """
    if not path.parent.is_dir():
        raise BadFile(
            str(path), "its folder does not exist", expected="an existing folder", remedy=f"mkdir -p {path.parent}"
        )
    folder = path.parent / f".{path.name}.draft"
    handle = _locked(folder, path)
    try:
        yield folder
    finally:
        if [inside.name for inside in folder.iterdir()] == [_LOCK]:
            (folder / _LOCK).unlink()
            folder.rmdir()
        os.close(handle)


def _locked(folder: Path, path: Path) -> int:
    """An open file that locks the folder until it is closed."""
    lock = folder / _LOCK
    while True:
        folder.mkdir(exist_ok=True)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # whoever had the folder has just removed it: again
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                return handle
            os.close(handle)
        except BlockingIOError:
            os.close(handle)
            raise BadFile(
                str(path), "another process is writing it", expected="one at a time", remedy="waiting until it is done"
            ) from None
        except OSError as error:
            _log.warning(
                "%s: this file system has no locks (%s); see to it that one process writes at a time", path, error
            )
            return handle
