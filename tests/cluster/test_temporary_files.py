"""Workers that do not see the program's folder for temporary files say so before they work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpupipe as gp
from gpupipe import errors, files
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.cluster.executor import use_executor
from tests.io.meeting import few_bytes


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders that are made meanwhile."""
    made: list[Path] = []
    make = files.ScratchFolder.__init__

    def recorded(self: Any) -> None:
        make(self)
        made.append(self.path)

    monkeypatch.setattr(files.ScratchFolder, "__init__", recorded)
    return made


def check(caught: errors.BadFile, folder: Path, file: str) -> None:
    assert caught.where == str(folder) and "all its workers share" in caught.expected and "TMPDIR" in caught.remedy
    assert any(file in note for note in caught.__notes__) and any(
        "on worker tcp://" in note for note in caught.__notes__
    )


def test_files_that_the_program_parsed(
    flights: gp.Dataset, cluster: gp.Cluster, tmp_path: Path, folders: list[Path]
) -> None:
    flights.head(100).to_csv(tmp_path / "flights.csv", index=False)
    parsed = gp.read_csv(tmp_path / "flights.csv")
    shutil.rmtree(folders[0])  # as another machine sees it
    with pytest.raises(errors.BadFile) as caught:
        gp.Pipeline([], gp.Features((["distance"], pre.StandardScaler()))).fit(parsed, executor=cluster)
    check(caught.value, folders[0], "flights.csv")


def test_files_that_a_step_writes(
    flights: gp.Dataset, cluster: gp.Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folders: list[Path]
) -> None:
    few_bytes(monkeypatch, 1000)
    with use_executor(cluster):
        steps = [T.Lag("distance", by="tailnum", order_by="day")]
        made = gp.Pipeline(steps, backend="cpu").fit(flights).transform(flights)
        (folder,) = [path for path in folders if path.is_dir()]
        shutil.rmtree(folder)
        with pytest.raises(errors.BadFile) as caught:
            made.write_parquet(tmp_path / "out")
    check(caught.value, folder, "day01.parquet")
