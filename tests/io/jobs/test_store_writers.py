"""Two writers at a time, and stores that are not S3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile
from gpupipe.io.jobs.destination import StoreFolder
from tests.io.s3_server import NO_RETRIES, Proxy, options_for
from tests.io.tables import values


@pytest.fixture(scope="module")
def store(s3: str) -> Any:
    store = fsspec.filesystem("s3", **options_for(s3))
    store.makedirs("writers", exist_ok=True)
    return store


@pytest.fixture
def source(store: Any, s3: str, request: pytest.FixtureRequest) -> gp.Dataset:
    """A dataset of known files, so that its jobs have a name."""
    url = f"s3://writers/in-{abs(hash(request.node.name))}"
    gp.from_frame(pa.table({"n": range(40)}), num_partitions=4).write_parquet(url, storage_options=options_for(s3))
    return gp.read_parquet(url, storage_options=options_for(s3), partition_bytes=1)


def before_publishing(monkeypatch: pytest.MonkeyPatch, method: str, action: Any) -> None:
    """Let something happen before the first call of a method of `StoreFolder`."""
    original, waiting = getattr(StoreFolder, method), [action]

    def patched(folder: StoreFolder, *args: Any) -> Any:
        if waiting:
            waiting.pop()()
        return original(folder, *args)

    monkeypatch.setattr(StoreFolder, method, patched)


def names(store: Any, folder: str) -> list[str]:
    store.invalidate_cache()
    return sorted(name.removeprefix(f"{folder}/") for name in store.find(folder))


def test_two_that_do_the_same_end_well(
    store: Any, s3: str, source: gp.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = "s3://writers/twins", options_for(s3)
    other = []
    before_publishing(monkeypatch, "publish", lambda: other.append(source.write_parquet(url, storage_options=options)))
    one = source.write_parquet(url, storage_options=options)
    assert [one] == other
    assert names(store, "writers/twins") == ["_manifest.json", *one.files]
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(40))


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_jobs_the_later_publishes_nothing(
    store: Any, s3: str, source: gp.Dataset, monkeypatch: pytest.MonkeyPatch, caplog: Any, overwrite: bool
) -> None:
    url, options = f"s3://writers/two-{overwrite}", options_for(s3)
    if overwrite:
        source.filter("n < 5").write_parquet(url, storage_options=options)

    def other() -> None:
        source.filter("n < 20").write_parquet(url, storage_options=options, overwrite=overwrite)

    before_publishing(monkeypatch, "publish", other)
    with pytest.raises(BadFile, match=r"two-.*/part-0000.*: it was written, and is gone"):
        source.filter("n < 30").write_parquet(url, storage_options=options, overwrite=overwrite)
    assert f"{url}: another job was begun there; if it still runs" in caplog.text
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(20))


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_is_lost_is_no_other_writer(store: Any, proxy: Proxy, source: gp.Dataset) -> None:
    """The server has the manifest, the writer hears of no success and sends it again."""
    url, options = "s3://writers/unheard", options_for(proxy.url, **NO_RETRIES)
    proxy.first(1, "503", "PUT", "_manifest.json")
    source.write_parquet(url, storage_options=options)
    assert len(proxy.of("PUT", "_manifest.json")) == 2
    assert values(gp.read_parquet(url, storage_options=options), "n") == list(range(40))


@pytest.fixture
def memory() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


def test_any_store_of_fsspec(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    frame = pa.table({"n": range(40), "kind": ["a", "b"] * 20})
    gp.from_frame(frame, num_partitions=4).write_parquet("memory://in/flights", partition_by="kind")
    dataset = gp.read_parquet("memory://in/flights", filters="kind == 'a'", partition_bytes=1)
    assert values(dataset, "n") == list(range(0, 40, 2))
    out = "memory://out/numbers"
    first = dataset.write_parquet(out)
    assert dataset.write_parquet(out).num_done == len(first.parts)
    memory.pipe_file("/out/numbers/foreign.txt", b"mine")
    last = dataset.filter("n < 10").write_parquet(out, overwrite=True)
    assert sorted(memory.find("/out/numbers")) == sorted(
        f"/out/numbers/{name}" for name in ["_manifest.json", "foreign.txt", *last.files]
    )
    assert values(gp.read_parquet(out), "n") == list(range(0, 10, 2))
    dataset.write_parquet("memory://out/one.parquet")
    assert values(gp.read_parquet("memory://out/*.parquet"), "n") == list(range(0, 40, 2))
    memory.pipe_file("/in/t.csv", b"n,s\n1,a\n2,b\n")
    assert values(gp.read_csv("memory://in/t.csv"), "s") == ["a", "b"]
    assert not caplog.records
