"""Files that appear whole: drafts, scratch, what killed jobs left, and disks that cannot be written to."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import files
from gpupipe.errors import BadFile
from gpupipe.support.owner import name_owner


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


def test_scratch_that_an_engine_still_writes_to_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the threads of a plan that has failed do, for a moment."""
    remove, pauses = shutil.rmtree, list[float]()

    def remove_while_writing(path: Path, ignore_errors: bool = False) -> None:
        if pauses:
            remove(path)
        elif not ignore_errors:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))

    monkeypatch.setattr(files.time, "sleep", pauses.append)
    with files.ScratchFolder() as scratch:
        monkeypatch.setattr(files.shutil, "rmtree", remove_while_writing)
    assert not scratch.path.exists() and len(pauses) == 1


def left_by(name: str, path: Path) -> Path:
    """A folder with a file at a path, as a process left it that has a name."""
    folder = path.with_name(path.name.replace("OWNER", name))
    folder.mkdir()
    (folder / "half").write_text("x")
    return folder


def test_what_killed_jobs_left_is_removed_by_the_next_at_the_same_place(tmp_path: Path) -> None:
    machine, process, start = name_owner().split("-")
    gone, lives = f"{machine}-{process}-{int(start) - 1}-0123abcd", f"{name_owner()}-0123abcd"
    kept = [left_by(lives, tmp_path / ".run.OWNER.tmp"), left_by(gone, tmp_path / ".other.OWNER.tmp")]
    left = left_by(gone, tmp_path / ".run.OWNER.tmp")
    with files.replacing(tmp_path / "run") as draft:
        draft.mkdir()
    assert (tmp_path / "run").is_dir() and not left.exists() and all(folder.exists() for folder in kept)


def test_scratch_that_killed_jobs_left_is_removed_an_hour_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "local_scratch", lambda: str(tmp_path))
    machine, process, start = name_owner().split("-")
    names = [f"{machine}-{process}-{int(start) - 1}-{letter}" for letter in "ab"]
    old, new = (left_by(name, tmp_path / "gpupipe-OWNER") for name in names)
    lives = left_by(name_owner(), tmp_path / "gpupipe-OWNER")
    for folder in (old, lives):
        os.utime(folder, (0, 0))
    with files.ScratchFolder() as scratch:
        assert {*tmp_path.iterdir()} == {new, lives, scratch.path}
    assert {*tmp_path.iterdir()} == {new, lives}


def test_a_long_name_has_a_draft_too(tmp_path: Path) -> None:
    with files.replacing(tmp_path / ("é" * 120)) as draft:
        draft.write_text("x")
    assert (tmp_path / ("é" * 120)).read_text() == "x"


def test_a_disk_that_cannot_be_written_to_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that is read-only the removal of a draft fails too, even of none."""

    def refuse(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(files.Path, "unlink", refuse)
    with pytest.raises(BadFile, match="x: it cannot be written"), files.replacing(tmp_path / "x") as draft:
        refuse(draft)


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/x")
    for text in ("new", "newer"):  # at first it leads to nothing
        with files.replacing(tmp_path / "link", overwrite=True) as draft:
            draft.write_text(text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "x").read_text() == text


def test_links_in_a_circle_are_no_place_to_write_to(tmp_path: Path) -> None:
    data = gp.from_frame(pd.DataFrame({"x": [1]}))
    for name in ("a", "a.parquet"):
        (tmp_path / name).symlink_to(f"b{name}")
        (tmp_path / f"b{name}").symlink_to(name)
        with pytest.raises(BadFile, match="its links lead in a circle"):
            data.write_parquet(tmp_path / name, overwrite=True)
        assert (tmp_path / name).is_symlink()
