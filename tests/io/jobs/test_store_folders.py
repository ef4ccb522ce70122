"""Folders that are written to a store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe.errors import BadConfig, BadFile
from gpupipe.io.jobs.destination import StoreFolder
from gpupipe.io.planning.table import map_frames
from gpupipe.io.stores import Manifest
from tests.io.s3_server import KEY, SECRET, Proxy, Request, options_for
from tests.io.tables import values
from tests.raising import raises


@pytest.fixture(scope="module")
def store(s3: str) -> Any:
    store = fsspec.filesystem("s3", **options_for(s3))
    store.makedirs("out", exist_ok=True)
    return store


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """A folder of two files of three row groups, which make a partition each."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    add(folder, "a", 0)
    add(folder, "b", 30)
    return folder


def add(folder: Path, name: str, first: int) -> None:
    n = np.arange(first, first + 30)
    pq.write_table(pa.table({"n": n, "month": n % 3}), folder / f"{name}.parquet", row_group_size=10)


def read(path: Path | str, **options: Any) -> gp.Dataset:
    return gp.read_parquet(path, partition_bytes=1, **options)


def names(store: Any, folder: str) -> list[str]:
    """What is there."""
    store.invalidate_cache()
    return sorted(name.removeprefix(f"{folder}/") for name in store.find(folder))


def test_a_folder_is_written_and_read_again(store: Any, s3: str, inputs: Path) -> None:
    url, options = "s3://out/plain", options_for(s3)
    manifest = read(inputs).write_parquet(url, storage_options=options)
    assert names(store, "out/plain") == ["_manifest.json", *manifest.files]
    assert [name.rpartition("-")[0] for name in manifest.files] == [f"part-{n:05d}" for n in range(6)]
    assert (manifest.rows_out, manifest.num_done, len(manifest.inputs)) == (60, 0, 2)
    assert Manifest.read(url, options) == manifest
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(60))
    assert pq.read_table("out/plain", filesystem=store, columns=["n"]).column("n").to_pylist() == list(range(60))


def test_files_and_folders_of_values(store: Any, s3: str, inputs: Path) -> None:
    url, options = "s3://out/months", options_for(s3)
    manifest = read(inputs).write_parquet(url, files=2, partition_by="month", storage_options=options)
    assert [name.partition("/")[0] for name in manifest.files] == [f"month={n}" for n in (0, 1, 2)] * 2
    again = gp.read_parquet(url, storage_options=options, filters="month == 1")
    assert sorted(values(again, "n")) == list(range(1, 60, 3))


def test_again_adds_what_is_new(store: Any, s3: str, inputs: Path) -> None:
    url, options = "s3://out/growing", options_for(s3)
    first = read(inputs).write_parquet(url, storage_options=options)
    before = {name: store.info(f"{url}/{name}")["LastModified"] for name in first.files}
    same = read(inputs).write_parquet(url, storage_options=options)
    assert (same.parts, same.num_done) == (first.parts, 6)
    add(inputs, "c", 60)
    more = read(inputs).write_parquet(url, storage_options=options)
    assert (len(more.parts), more.num_done, more.files[:6]) == (9, 6, first.files)
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(90))
    store.invalidate_cache()
    assert {name: store.info(f"{url}/{name}")["LastModified"] for name in first.files} == before
    store.rm(f"{url}/{first.files[0]}")
    with pytest.raises(BadFile, match=r"growing/part-00000-.*: it is missing, though the manifest beside it lists it"):
        read(inputs).write_parquet(url, storage_options=options)
    add(inputs, "a", 100)
    with pytest.raises(BadFile, match="growing: 1 of its input files have changed since"):
        read(inputs).write_parquet(url, storage_options=options)


def test_what_is_there_stays_until_the_new_is_whole(
    store: Any, s3: str, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://out/replaced", options_for(s3)
    read(inputs).write_parquet(url, storage_options=options)
    with pytest.raises(BadFile, match=r"it was written by another pipeline, with other options or types"):
        read(inputs).filter("n < 20").write_parquet(url, storage_options=options)
    seen = []
    publish = StoreFolder.publish

    def look(folder: Any, manifest: Manifest, seen_before: str | None) -> None:
        seen.append(values(gp.read_parquet(url, storage_options=options), "n"))
        publish(folder, manifest, seen_before)
        seen.append(values(gp.read_parquet(url, storage_options=options), "n"))

    monkeypatch.setattr(StoreFolder, "publish", look)
    for number in (20, 20, 10):
        last = read(inputs).filter(f"n < {number}").write_parquet(url, storage_options=options, overwrite=True)
    assert seen == [list(range(n)) for n in (60, 20, 20, 20, 20, 10)]
    assert names(store, "out/replaced") == ["_manifest.json", *last.files]


def test_a_place_that_is_not_empty(store: Any, s3: str, inputs: Path) -> None:
    options = options_for(s3)
    store.pipe("out/foreign/note.txt", b"mine")
    with raises(BadFile, where="s3://out/foreign", remedy="overwrite=True"):
        read(inputs).write_parquet("s3://out/foreign/", storage_options=options)
    assert names(store, "out/foreign") == ["note.txt"]
    read(inputs).write_parquet("s3://out/foreign/", storage_options=options, overwrite=True)
    assert len(names(store, "out/foreign")) == 8
    assert store.cat("out/foreign/note.txt") == b"mine"
    with raises(BadConfig, where="write_parquet", got="s3://out"):
        read(inputs).write_parquet("s3://out", storage_options=options, overwrite=True)
    with pytest.raises(BadFile, match="no-such-bucket"):
        read(inputs).write_parquet("s3://no-such-bucket/x", storage_options=options)


def test_one_file(store: Any, s3: str, inputs: Path) -> None:
    url, options = "s3://out/one.parquet", options_for(s3)
    assert read(inputs).write_parquet(url, storage_options=options).files == ["one.parquet"]
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(60))
    with raises(BadFile, where="s3://out/one.parquet", remedy="overwrite=True"):
        read(inputs).write_parquet(url, storage_options=options)
    read(inputs).filter("n < 5").write_parquet(url, storage_options=options, overwrite=True)
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(5))
    with pytest.raises(BadConfig, match=r"one\.parquet is one file"):
        read(inputs).write_parquet(url, files=2, storage_options=options)


def test_a_job_without_a_name_leaves_nothing(store: Any, s3: str, inputs: Path) -> None:
    dataset = read(inputs)

    def fail(frame: Any, backend: Any) -> Any:
        if 40 in frame["n"].to_numpy():
            raise RuntimeError("no")
        return frame

    mapped = map_frames(dataset, fail, dataset.schema, ["n", "month"])
    with pytest.raises(RuntimeError, match="no"):
        mapped.write_parquet("s3://out/nameless", storage_options=options_for(s3))
    assert names(store, "out/nameless") == []


def test_parts_that_somebody_takes_away(store: Any, s3: str, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = StoreFolder.publish

    def lose(folder: Any, manifest: Manifest, seen: str | None) -> None:
        store.rm(f"out/lost/{manifest.files[3]}")
        publish(folder, manifest, seen)

    monkeypatch.setattr(StoreFolder, "publish", lose)
    with pytest.raises(BadFile, match=r"s3://out/lost/part-00003-.*\.parquet: it was written, and is gone"):
        read(inputs).write_parquet("s3://out/lost", storage_options=options_for(s3))
    monkeypatch.setattr(StoreFolder, "publish", publish)
    assert read(inputs).write_parquet("s3://out/lost", storage_options=options_for(s3)).num_done == 5


def test_what_cannot_be_removed_is_told(
    proxy: Proxy, inputs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(proxy.url, config_kwargs={"retries": {"max_attempts": 0}})
    monkeypatch.setattr("gpupipe.io.stores.FIRST_WAIT", 0.0)
    proxy.fault = lambda request: "503" if request.method == "POST" else None
    manifest = read(inputs).write_parquet("s3://out/kept", storage_options=options)
    assert "s3://out/kept: 7 files that its manifest does not list cannot be removed" in caplog.text
    proxy.fault = lambda request: None
    assert values(gp.read_parquet("s3://out/kept", storage_options=options), "n") == list(range(60))
    assert read(inputs).write_parquet("s3://out/kept", storage_options=options).parts == manifest.parts
    assert len(fsspec.filesystem("s3", **options).find("s3://out/kept", refresh=True)) == 7


WRITER = """
import sys
import gpupipe as gp
gp.read_parquet(sys.argv[1], partition_bytes=1).filter("n >= 5").write_parquet(sys.argv[2])
"""


MOMENTS = ("part-00002", "part-00002.json", "part-00005.json", "_manifest.json", "delete")
SOAKED = [pytest.param(moment, marks=pytest.mark.soak) for moment in (*MOMENTS * 2, *range(1, 24, 2))]
"""The number of a request is a moment too."""


@pytest.mark.parametrize("moment", [MOMENTS[0], *MOMENTS[3:], *SOAKED])
def test_a_writer_that_is_killed_and_the_next_that_goes_on(
    proxy: Proxy, store: Any, inputs: Path, moment: str | int
) -> None:
    url, options = f"s3://out/killed-{uuid.uuid4().hex[:8]}", options_for(proxy.url)
    reached, released = threading.Event(), threading.Event()

    def hold(request: Request) -> str | None:
        if is_at(moment, request, len(proxy.requests)):
            reached.set()
            released.wait(150)
        return None

    proxy.fault = hold
    with start(url, inputs, proxy.url) as writer:
        for _ in range(1200):
            if reached.wait(0.1) or writer.poll() is not None:
                break
        writer.kill()
    assert reached.is_set() and writer.returncode == -signal.SIGKILL
    proxy.fault = lambda request: None
    released.set()
    recorded = {Path(request.path).stem for request in proxy.of("PUT", ".json") if "_records" in request.path}
    if "_manifest.json" in names(store, url[5:]):
        assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(5, 60))
    else:
        with pytest.raises(BadFile, match=r"it is being written, or was left unfinished|no such file"):
            gp.read_parquet(url, storage_options=options)
    proxy.requests.clear()
    again = gp.read_parquet(inputs, partition_bytes=1).filter("n >= 5").write_parquet(url, storage_options=options)
    assert again.num_done >= len(recorded) >= (isinstance(moment, str))
    rewritten = {part.name for part in again.parts for file in part.files if proxy.of("PUT", file)}
    assert not rewritten & recorded
    assert len(rewritten) == 6 - again.num_done
    undisturbed = f"{url}-undisturbed"
    gp.read_parquet(inputs, partition_bytes=1).filter("n >= 5").write_parquet(undisturbed, storage_options=options)
    assert names(store, url[5:]) == names(store, undisturbed[5:]) == ["_manifest.json", *again.files]
    for name in again.files:
        assert store.cat(f"{url}/{name}") == store.cat(f"{undisturbed}/{name}")
    one, other = (json.loads(store.cat(f"{folder}/_manifest.json")) for folder in (url, undisturbed))
    assert one == other


def is_at(moment: str | int, request: Request, number: int) -> bool:
    """Whether a request, which the server has answered and the writer hears nothing of yet, is the moment."""
    if isinstance(moment, int):
        return number >= moment
    if moment == "delete":
        return request.method == "POST"
    return request.method == "PUT" and (request.path.endswith(f"/{moment}") or f"/{moment}-" in request.path)


def start(url: str, inputs: Path, endpoint: str) -> subprocess.Popen[bytes]:
    """A process that writes, with credentials from its environment."""
    repository = Path(__file__).parents[3]
    found = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": endpoint}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(inputs), url],
        cwd=repository,
        env={**os.environ, **found, "PYTHONPATH": str(repository)},
    )
