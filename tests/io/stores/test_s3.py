"""Tables in a real S3 server on this machine."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile
from gpupipe.io import stores
from gpupipe.io.planning.table import identify_job
from gpupipe.io.stores import find_files
from tests.io.s3_server import KEY, KEYS_AT_ONCE, NO_RETRIES, SECRET, Proxy, options_for
from tests.io.tables import DATA, plain, values


@pytest.fixture(scope="module")
def store(s3: str) -> Any:
    store = fsspec.filesystem("s3", **options_for(s3))
    store.makedirs("tables", exist_ok=True)
    return store


@pytest.fixture(scope="module")
def wide(store: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four row groups of 20,000 rows; four columns of random bytes, 160 KB each per row group, and a sorted one."""
    path = tmp_path_factory.mktemp("wide") / "wide.parquet"
    noise = np.random.default_rng(0).random((4, 80_000))
    columns = {"n": np.arange(80_000), **{f"x{number}": noise[number] for number in range(4)}}
    pq.write_table(pa.table(columns), path, row_group_size=20_000, use_dictionary=False, compression="none")
    store.put_file(str(path), "tables/wide.parquet", ACL="public-read")  # one test asks without credentials
    return "s3://tables/wide.parquet"


def test_the_flights_are_the_same_from_there(store: Any, s3: str) -> None:
    store.put_file(str(DATA / "flights.parquet"), "tables/flights/flights.parquet")
    names = ["origin", "distance", "dep_delay", "time_hour"]
    there = gp.read_parquet("s3://tables/flights/", storage_options=options_for(s3), filters="month == 2")
    here = gp.read_parquet(DATA / "flights.parquet", filters="month == 2")
    assert pa.Table.from_pandas(there.select(names).compute()).equals(
        pa.Table.from_pandas(here.select(names).compute())
    )


def test_more_files_than_a_listing_has(store: Any, s3: str) -> None:
    assert KEYS_AT_ONCE * 4 < 210
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2]}), content)
    store.pipe({f"tables/many/{number:03d}.parquet": content.getvalue().to_pybytes() for number in range(210)})
    names = [f"s3://tables/many/{number:03d}.parquet" for number in range(210)]
    for path, count in (("many", 210), ("many/*.parquet", 210), ("many/0*", 100)):
        assert [one.path for one in find_files(f"s3://tables/{path}", [".parquet"], options_for(s3))] == names[:count]
    assert len(gp.read_parquet("s3://tables/many/20*.parquet", storage_options=options_for(s3))) == 20


def test_only_the_footer_and_the_needed_chunks_are_fetched(proxy: Proxy, wide: str) -> None:
    dataset = gp.read_parquet(wide, storage_options=options_for(proxy.url))
    opening = proxy.of("GET", "wide.parquet")
    assert len(opening) == 1 and opening[0].num_bytes == 64 << 10
    proxy.requests.clear()
    assert len(dataset.select(["x1"]).compute()) == 80_000
    fetched = sum(request.num_bytes for request in proxy.of("GET", "wide.parquet"))
    assert 4 * 160_000 <= fetched == dataset.reads.num_bytes < 4 * 160_000 + 1_000


def test_row_groups_without_a_row_are_not_fetched(proxy: Proxy, wide: str) -> None:
    dataset = gp.read_parquet(wide, storage_options=options_for(proxy.url), columns=["x2"], filters="n >= 60000")
    proxy.requests.clear()
    assert len(dataset.compute()) == 20_000
    fetched = sum(request.num_bytes for request in proxy.of("GET", "wide.parquet"))
    assert 2 * 160_000 <= fetched == dataset.reads.num_bytes < 2 * 160_000 + 1_000


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["503", "500", "cut"])
def test_a_store_that_stumbles(
    proxy: Proxy, wide: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = gp.read_parquet(wide, storage_options=options_for(proxy.url, **NO_RETRIES))
    proxy.first(2, kind, "GET", "wide.parquet")
    expected = gp.read_parquet(wide, storage_options=options_for(proxy.endpoint)).compute()
    assert dataset.compute().equals(expected)
    assert "wide.parquet: attempt 2 of 4 failed" in caplog.text
    monkeypatch.setattr(stores, "ATTEMPTS", 2)
    proxy.fault = lambda request: kind if request.method == "GET" else None
    with pytest.raises(
        BadFile, match=r"wide\.parquet: row groups 0-3 cannot be read .*2 attempts failed, the last with"
    ):
        dataset.compute()
    proxy.fault = lambda request: "503"
    with pytest.raises(
        BadFile, match=r"s3://tables/wide\.parquet: it cannot be read: 2 attempts failed, the last with"
    ):
        gp.read_parquet(wide, storage_options=options_for(proxy.url, **NO_RETRIES))


@pytest.mark.parametrize("kind", ["503", "cut"])
def test_the_same_object_over_plain_http(
    proxy: Proxy, wide: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that tries nothing again by itself."""
    monkeypatch.setattr(stores, "FIRST_WAIT", 0.01)
    dataset = gp.read_parquet(f"{proxy.url}/tables/wide.parquet", columns=["n"], filters="n >= 60000")
    proxy.requests.clear()
    proxy.first(3, kind, "GET", "wide.parquet")
    assert values(dataset, "n") == list(range(60_000, 80_000))
    assert [record.getMessage().partition(" failed")[0][-14:] for record in caplog.records] == [
        f"attempt {number} of 4" for number in (1, 2, 3)
    ]
    assert sum(request.num_bytes for request in proxy.of("GET", "wide.parquet")[-1:]) == dataset.reads.num_bytes


def test_an_object_that_is_replaced_or_removed(store: Any, s3: str, tmp_path: Path) -> None:
    url, options = "s3://tables/changing.parquet", options_for(s3)
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "one.parquet")
    pq.write_table(pa.table({"n": [4, 5, 6]}), tmp_path / "two.parquet")
    assert (tmp_path / "one.parquet").stat().st_size == (tmp_path / "two.parquet").stat().st_size
    store.put_file(str(tmp_path / "one.parquet"), url)
    dataset = gp.read_parquet(url, storage_options=options)
    assert values(dataset, "n") == [1, 2, 3]
    store.put_file(str(tmp_path / "two.parquet"), url)
    with pytest.raises(BadFile, match=r"row group 0 may be of two versions of the file: it was replaced .*\nExpected"):
        dataset.compute()
    assert values(gp.read_parquet(url, storage_options=options), "n") == [4, 5, 6]
    store.rm(url)
    with pytest.raises(BadFile, match=r"changing\.parquet: row group 0 cannot be read \(it is gone\)"):
        dataset.compute()
    with pytest.raises(BadFile, match=r"changing\.parquet: no such file"):
        gp.read_parquet(url, storage_options=options)


def test_a_file_here_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3]}), path)
    dataset = gp.read_parquet(path)
    pq.write_table(pa.table({"n": [4, 5, 6]}), path)
    with pytest.raises(BadFile, match="row group 0 may be of two versions of the file: it was replaced"):
        dataset.compute()


def test_every_format_is_read_from_there(store: Any, s3: str, tmp_path: Path) -> None:
    table, options = pa.table({"n": [1, 2, 3], "s": ["a", None, "c"]}), options_for(s3)
    pa.csv.write_csv(table, tmp_path / "t.csv")
    pa.orc.write_table(table, tmp_path / "t.orc")
    pa.feather.write_feather(table, tmp_path / "t.feather")
    (tmp_path / "t.jsonl").write_text('{"n": 1, "s": "a"}\n{"n": 2}\n{"n": 3, "s": "c"}\n')
    for reader, name in ((gp.read_csv, "csv"), (gp.read_orc, "orc"), (gp.read_ipc, "feather"), (gp.read_json, "jsonl")):
        store.put_file(str(tmp_path / f"t.{name}"), f"tables/formats/t.{name}")
        url = f"s3://tables/formats/t.{name}"
        dataset = reader(url, storage_options=options)
        assert plain(dataset.compute()) == table.to_pylist()
        assert dataset.source.inputs() == {url: stores.get_stamp(url, options)}


def test_secrets_show_nowhere(store: Any, s3: str, wide: str, tmp_path: Path) -> None:
    options = options_for(s3)
    dataset = gp.read_parquet(wide, storage_options=options, columns=["n"])
    manifest = dataset.write_parquet(tmp_path / "out")
    shown = [repr(dataset), dataset._repr_html_(), repr(dataset.source), repr(dataset.source.files), repr(manifest)]
    shown += [repr(dataset.partitions), str(identify_job(dataset))]
    shown += [repr(dataset.of_partitions([part])) for part in dataset.partitions]
    shown += [(tmp_path / "out" / "_manifest.json").read_text()]
    shown += [repr(dataset.write_parquet("s3://tables/secretive", storage_options=options))]
    shown += [store.cat("s3://tables/secretive/_manifest.json").decode()]
    for wrong in ("s3://tables/none.parquet", "s3://tables/none/*.parquet", "s3://no-such-bucket/"):
        with pytest.raises(BadFile) as raised:
            gp.read_parquet(wrong, storage_options=options)
        shown.append(str(raised.value))
    assert not [text for text in shown if SECRET in text or KEY in text]
    assert SECRET.encode() in pickle.dumps(dataset)  # workers need it


def test_a_cluster_reads_and_writes_there(s3: str, wide: str, store: Any) -> None:
    options = options_for(s3)
    dataset = gp.read_parquet(wide, storage_options=options, partition_bytes=1 << 20)
    with gp.Cluster(n_workers=1):
        assert len(dataset.filter("x0 < 0.5 and n < 30000")) > 10_000
        dataset.select(["n"]).write_parquet("s3://tables/by-cluster", storage_options=options)
    again = gp.read_parquet("s3://tables/by-cluster", storage_options=options)
    assert values(again, "n") == list(range(80_000))
    assert again.num_partitions > 1 or len(again.source.files_of(again.partitions[0])) > 1
