"""Folders for temporary files."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from gpupipe.config import settings
from gpupipe.errors import BadFile, GpupipeError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO)


class ScratchFolder:
    """Temporary folder on a disk of this machine, removed with the object, a `with` block or the process."""

    def __init__(self) -> None:
        parent = local_scratch()
        try:
            self.path = Path(tempfile.mkdtemp(prefix="gpupipe-", dir=parent))
        except OSError as cause:
            raise _unwritable(parent or "TMPDIR", cause) from cause
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def local_scratch() -> str | None:
    """Return the folder of this machine for temporary files; None for TMPDIR, or the system's own default."""
    place = settings().scratch
    return None if place is None or "://" in place else place


@contextmanager
def writing_scratch(folder: Path) -> Iterator[None]:
    """Raise `BadFile` naming the folder for an error that says that its disk is full, or that it is gone."""
    try:
        yield
    except GpupipeError:
        raise
    except Exception as cause:
        # Polars and pyarrow hand on what the system says in words.
        number = re.search(r"(?:os error|errno) ([0-9]+)", str(cause), re.IGNORECASE)
        code = cause.errno if isinstance(cause, OSError) and cause.errno else int(number[1]) if number else None
        if code not in _FULL and folder.is_dir():
            raise
        raise _unwritable(str(folder), cause) from cause


def _unwritable(folder: str, cause: Exception) -> BadFile:
    problem = f"temporary files cannot be written there ({' '.join(str(cause).split())})"
    remedy = "gp.configure(scratch='/a/large/disk'), or TMPDIR= in the environment"
    return BadFile(folder, problem, expected="a folder that stays, with space for the rows", remedy=remedy)


def _remove(folder: Path, owner: int) -> None:
    # A forked child runs this too, and must not take the files from under its parent.
    if os.getpid() != owner:
        return
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:  # Ctrl-C may arrive here too
        shutil.rmtree(folder, ignore_errors=True)
