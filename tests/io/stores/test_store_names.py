"""Objects with the names that people give, and whatever else lies in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile
from tests.io.s3_server import NO_RETRIES, Proxy, Request, options_for
from tests.io.tables import values
from tests.raising import raises

TABLE = pa.table({"n": [1, 2, 3], "city": ["New York", "Zürich 100%", None]})
PIECE = 5 << 20
"""Bytes; S3 takes no smaller ones, but the last."""
NAMES = ["a b", "50%25", "Zürich-日本", "a+b&c=d;e", "a#b", "a?b", "run[1]", "star*", "a//b"]


@pytest.fixture(scope="module")
def store(s3: str) -> Any:
    store = fsspec.filesystem("s3", **options_for(s3))
    store.makedirs("names", exist_ok=True)
    return store


@pytest.fixture(scope="module")
def content() -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(TABLE, buffer)
    return bytes(buffer.getvalue().to_pybytes())


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(store: Any, s3: str, content: bytes, name: str) -> None:
    options = options_for(s3)
    store.pipe_file(f"names/odd/{name}.parquet", content)
    store.pipe_file(f"names/odd-{name}/one.parquet", content)
    for path in (f"s3://names/odd/{name}.parquet", f"s3://names/odd-{name}", f"s3://names/odd-{name}/"):
        dataset = gp.read_parquet(path, storage_options=options)
        assert values(dataset, "n") == [1, 2, 3]
    out = f"s3://names/out-{name}/to"
    dataset.write_parquet(out, storage_options=options)
    manifest = dataset.filter("n > 1").write_parquet(out, storage_options=options, overwrite=True)
    assert values(gp.read_parquet(out, storage_options=options), "n") == [2, 3]
    store.invalidate_cache()
    assert sorted(store.find(out[5:])) == sorted(f"{out[5:]}/{file}" for file in ["_manifest.json", *manifest.files])


def test_odd_values_that_become_folders(store: Any, s3: str, content: bytes) -> None:
    options = options_for(s3)
    table = pa.table({"n": range(6), "city [x]": ["a/b", "50%25", "*", "Zürich", "a b?#", None]})
    dataset = gp.from_frame(table, num_partitions=2)
    for _ in range(2):
        dataset.write_parquet("s3://names/folders", partition_by="city [x]", storage_options=options, overwrite=True)
    again = gp.read_parquet("s3://names/folders", storage_options=options).to_pandas()
    found = dict(zip(again["n"].tolist(), again["city [x]"].astype(object).tolist(), strict=True))
    assert [None if text != text else text for _, text in sorted(found.items())] == table["city [x]"].to_pylist()
    store.invalidate_cache()
    assert len(store.find("names/folders")) == 7


def test_empty_objects_where_folders_begin(store: Any, s3: str, content: bytes) -> None:
    options = options_for(s3)
    for name in ("marked/", "marked/month=1/", "marked/empty/"):
        store.call_s3("put_object", Bucket="names", Key=name, Body=b"")
    store.pipe_file("names/marked/month=1/a.parquet", content)
    for path in ("s3://names/marked", "s3://names/marked/", "s3://names/marked/*/*.parquet"):
        dataset = gp.read_parquet(path, storage_options=options)
        assert values(dataset, "month") == [1, 1, 1]
    store.call_s3("put_object", Bucket="names", Key="to-fill/", Body=b"")
    dataset.write_parquet("s3://names/to-fill", storage_options=options)
    assert values(gp.read_parquet("s3://names/to-fill/", storage_options=options), "n") == [1, 2, 3]
    with raises(BadFile, where="s3://names/marked/empty", got=[""]):
        gp.read_parquet("s3://names/marked/empty", storage_options=options)


def test_an_object_and_a_folder_of_one_name(store: Any, s3: str, content: bytes) -> None:
    options = options_for(s3)
    store.pipe_file("names/both", content)
    store.pipe_file("names/both/a.parquet", content)
    store.pipe_file("names/both/b.parquet", content)
    one = gp.read_parquet("s3://names/both", storage_options=options)
    assert values(one, "n") == [1, 2, 3]
    assert values(gp.read_parquet("s3://names/both/", storage_options=options), "n") == [1, 2, 3] * 2
    for overwrite in (False, True):
        with pytest.raises(BadFile, match="s3://names/both: an object has this name"):
            one.write_parquet("s3://names/both/", storage_options=options, overwrite=overwrite)


def test_folders_whose_names_begin_alike(store: Any, s3: str, content: bytes) -> None:
    options = options_for(s3)
    for name in ("alike/a", "alike-2/a", "alike/deep/a"):
        store.pipe_file(f"names/{name}.parquet", content)
    dataset = gp.read_parquet("s3://names/alike", storage_options=options)
    assert len(dataset) == 6
    dataset.write_parquet("s3://names/alike-3", storage_options=options)
    dataset.write_parquet("s3://names/alike-3/inside", storage_options=options)
    before = set(store.find("names/alike-3/inside", refresh=True))
    dataset.write_parquet("s3://names/alike-3", storage_options=options)
    dataset.filter("n < 3").write_parquet("s3://names/alike-3", storage_options=options, overwrite=True)
    assert set(store.find("names/alike-3/inside", refresh=True)) == before
    assert values(gp.read_parquet("s3://names/alike-3", storage_options=options), "n") == [1, 2] * 2
    assert len(gp.read_parquet("s3://names/alike-3/inside", storage_options=options)) == 6


def test_what_others_have_put_there_stays(store: Any, s3: str, content: bytes) -> None:
    url, options = "s3://names/shared", options_for(s3)
    foreign = ["notes.txt", "part-00000.parquet", "sub/part-1.parquet", "_SUCCESS", "part-00000-0123.parquet"]
    dataset = gp.from_frame(TABLE)
    for name in foreign:
        store.pipe_file(f"{url}/{name}", content)
    for number in (3, 2):
        last = dataset.filter(f"n < {number}").write_parquet(url, storage_options=options, overwrite=True)
    store.invalidate_cache()
    there = sorted(name.removeprefix("names/shared/") for name in store.find("names/shared"))
    assert there == sorted([*foreign, "_manifest.json", *last.files])
    assert all(store.cat_file(f"{url}/{name}") == content for name in foreign)
    assert values(gp.read_parquet(url, storage_options=options), "n") == [1]


def test_what_an_older_manifest_lists_is_replaced(store: Any, s3: str, tmp_path: Path) -> None:
    url, options = "s3://names/copied", options_for(s3)
    here = gp.from_frame(TABLE).write_parquet(tmp_path / "out")
    for name in [*here.files, "_manifest.json"]:
        store.put_file(str(tmp_path / "out" / name), f"{url}/{name}")
    assert values(gp.read_parquet(url, storage_options=options), "n") == [1, 2, 3]
    last = gp.from_frame(TABLE).filter("n < 2").write_parquet(url, storage_options=options, overwrite=True)
    store.invalidate_cache()
    assert store.find("names/copied") == sorted(f"names/copied/{name}" for name in ["_manifest.json", *last.files])
    store.pipe_file(f"{url}/_manifest.json", b"{")
    with pytest.raises(BadFile, match=r"copied/_manifest\.json: damaged"):
        gp.read_parquet(url, storage_options=options)
    gp.from_frame(TABLE).write_parquet(url, storage_options=options, overwrite=True)
    assert values(gp.read_parquet(url, storage_options=options), "n") == [1, 2, 3]


@pytest.mark.usefixtures("impatient")
def test_a_large_part_is_sent_in_pieces(store: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a piece does not arrive, the upload is given up, nothing of it stays, and all of it is sent again."""
    url, options = "s3://names/large", options_for(proxy.url, max_concurrency=1, **NO_RETRIES)
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: PIECE)
    broken = iter(range(1))

    def fault(request: Request) -> str | None:
        return "503" if request.num_sent >= PIECE and next(broken, None) == 0 else None

    proxy.fault = fault
    dataset = gp.from_frame(pa.table({"n": range(1_400_000)}))
    (name,) = dataset.write_parquet(url, storage_options=options, compression="none").files
    assert [request.num_sent for request in proxy.of("PUT", name)].count(PIECE) >= 3
    assert len(proxy.of("DELETE", name)) == 1
    assert store.list_multipart_uploads("names") == []
    assert len(gp.read_parquet(url, storage_options=options_for(proxy.endpoint)).filter("n == 1399999")) == 1
