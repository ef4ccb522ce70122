"""Folders that others are still writing to."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from gpupipe import files


@pytest.mark.parametrize("reason", [errno.ENOTEMPTY, errno.ENOENT])
def test_a_folder_that_others_still_write_to_is_removed(
    reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the folder is removed, a worker's last file arrives, or the worker removes a file of its own."""
    folder, remove, pauses = tmp_path / "draft", shutil.rmtree, list[float]()

    def remove_while_writing(path: Path) -> None:
        if not pauses:
            raise OSError(reason, os.strerror(reason), str(path / "scratch"))
        remove(path)

    folder.mkdir()
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    monkeypatch.setattr(files.shutil, "rmtree", remove_while_writing)
    files.remove_folder(folder)
    assert not folder.exists() and len(pauses) == 1
    with pytest.raises(FileNotFoundError):
        files.remove_folder(folder)
