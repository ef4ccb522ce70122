"""Where temporary results go, and what is said where they cannot."""

from __future__ import annotations

import gc
import gzip
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import config
from gpupipe import transforms as T
from gpupipe.errors import BadConfig, BadFile
from gpupipe.io.relational import gathering
from tests.io.s3_server import KEY, SECRET
from tests.io.tables import values

ROWS = 20_000
FRAME = pd.DataFrame({"x": np.random.default_rng(0).permutation(ROWS), "s": [f"row {n}" for n in range(ROWS)]})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder for temporary results, of which nothing is kept in memory."""
    found = tmp_path / "scratch"
    found.mkdir()
    before = config._in_force[:]
    gp.configure(scratch=found)
    yield found
    config._in_force[:] = before


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "get_table_limit", lambda: 0)


def csv(tmp_path: Path, text: str = "", packed: bool = False) -> gp.Dataset:
    path = tmp_path / f"a.csv{'.gz' if packed else ''}"
    text = FRAME.to_csv(index=False) + text
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return gp.read_csv(path)


def lines(tmp_path: Path) -> gp.Dataset:
    path = tmp_path / "a.jsonl"
    FRAME.to_json(path, orient="records", lines=True)
    return gp.read_json(path)


def stream(_: Path) -> gp.Dataset:
    table = gp.from_frame(FRAME).to_polars().collect().to_arrow()
    return gp.from_frame(table.to_reader(max_chunksize=1000))


def lagged(_: Path) -> gp.Dataset:
    data = gp.from_frame(FRAME, num_partitions=3)
    return gp.Pipeline([T.Lag("s", order_by="x")]).fit(data).transform(data)


def in_order(_: Path) -> gp.Dataset:
    found = gp.from_frame(FRAME, num_partitions=3).sort("x")
    assert len(found) == ROWS  # the plan runs when rows are asked for
    return found


WAYS: dict[str, Callable[[Path], gp.Dataset]] = {
    "csv": csv,
    "packed csv": lambda path: csv(path, packed=True),
    "rewritten csv": lambda path: csv(path, "\n1,x\n"),
    "json": lines,
    "stream": stream,
    "sort": in_order,
    "deduplicate": lambda _: gp.from_frame(FRAME, num_partitions=3).deduplicate("s"),
    "lag": lagged,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_temporary_results_go_to_that_folder_and_with_the_dataset(
    tmp_path: Path, folder: Path, tight: None, way: str
) -> None:
    found = WAYS[way](tmp_path)
    assert [each for each in folder.rglob("*") if each.is_file()]
    assert len(found) >= ROWS
    del found
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path, folder: Path, tight: None, way: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    WAYS[way](tmp_path)
    gc.collect()
    paths = [each for each in tmp_path.iterdir() if each.is_file()]  # what is read is there
    read = gp.read_json if way == "json" else gp.read_csv
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(BadFile) as caught:
            read(paths) if paths else WAYS[way](tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.where.startswith(str(folder))
    assert "scratch=" in caught.value.remedy
    del caught
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_folder_that_has_gone_is_one_error(tmp_path: Path, folder: Path, tight: None, way: str) -> None:
    folder.rmdir()
    with pytest.raises(BadFile) as caught:
        WAYS[way](tmp_path)
    assert caught.value.where == str(folder)
    assert "scratch=" in caught.value.remedy


def test_a_folder_that_goes_while_a_file_is_parsed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpupipe.io.relational import text_file as module

    sink = module.sink

    def vanishing(*args: Any) -> None:
        shutil.rmtree(folder)
        sink(*args)

    monkeypatch.setattr(module, "sink", vanishing)
    with pytest.raises(BadFile) as caught:
        csv(tmp_path)
    assert caught.value.where.startswith(str(folder))
    assert "scratch=" in caught.value.remedy


@pytest.mark.parametrize("wrong", ["nowhere", "", 5, "a.csv"])
def test_a_bad_folder_is_refused(tmp_path: Path, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(BadConfig):
        gp.configure(scratch=wrong)
    assert config.settings().scratch is None


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_temporary_results_in_a_store(
    tmp_path: Path, tight: None, way: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = WAYS[way](tmp_path).to_pandas()
    gc.collect()
    (tmp_path / "own").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "own"))
    gp.configure(scratch="memory://scratch")
    store = fsspec.filesystem("memory")
    found = WAYS[way](tmp_path)
    assert store.find("scratch")
    assert not [each for each in (tmp_path / "own").rglob("*") if each.is_file()]
    pd.testing.assert_frame_equal(found.to_pandas(), wanted)
    again = found.filter("x >= 0").sort("x")
    assert values(again, "x") == sorted(wanted["x"])
    del found, again
    gc.collect()
    assert store.find("scratch") == []


@pytest.mark.slow
def test_workers_need_no_shared_folder(
    tmp_path: Path, tight: None, s3: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": s3,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir("scratch")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    gp.configure(scratch="s3://scratch/temporary")
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    with gp.Cluster(n_workers=2, gpu=False):
        data = gp.read_csv(tmp_path / "a.csv", partition_bytes=100_000)
        assert data.num_partitions > 1
        for each in folder.glob("gpupipe-*"):
            shutil.rmtree(each)  # as another machine sees it
        pipeline = gp.Pipeline([T.Lag("s", order_by="x")]).fit(data)
        found = pipeline.transform(data.deduplicate("s")).to_pandas()
    assert found.sort_values("x")[found.columns[-1]].tolist()[1:] == FRAME.sort_values("x")["s"].tolist()[:-1]
    del data, pipeline
    gc.collect()
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    assert json.dumps(store.find("scratch")) == "[]"
