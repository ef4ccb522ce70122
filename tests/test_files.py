"""Folders that others are still writing to."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from gpupipe import files


def test_a_folder_that_is_still_written_to_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's last file arrives while the folder is removed: the first attempt finds it not empty."""
    folder, remove, pauses = tmp_path / "draft", shutil.rmtree, list[float]()

    def remove_while_writing(path: Path) -> None:
        if not pauses:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        remove(path)

    folder.mkdir()
    monkeypatch.setattr(files.time, "sleep", pauses.append)
    monkeypatch.setattr(files.shutil, "rmtree", remove_while_writing)
    files.remove_folder(folder)
    assert not folder.exists() and len(pauses) == 1
    with pytest.raises(FileNotFoundError):
        files.remove_folder(folder)
