"""Folders for temporary files."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Self

__all__ = ["ScratchFolder"]


class ScratchFolder:
    """A temporary folder, removed with the object or at the end of the process, whichever comes first.

    As a context manager it is removed at the end of the block, however that ends.

    Attributes:
        path: where it is; under TMPDIR, or the system's own place.

    Example:
        >>> folder = ScratchFolder()
        >>> folder.path.is_dir()
        True
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="gpupipe-"))
        weakref.finalize(self, _remove, self.path, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    # A forked child runs this too, and must not take the files from under its parent.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
