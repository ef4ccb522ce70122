"""How files are cut and packed into partitions, which no result depends on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import gpupipe as gp
import gpupipe.preprocessing as pre
import gpupipe.transforms as T
from gpupipe.backend import select
from gpupipe.errors import BadFile
from gpupipe.io.formats import parquet
from gpupipe.io.planning import partitions
from gpupipe.io.planning.partitions import partition_limit
from tests.examples import examples
from tests.io.tables import arrow, plain, tables, values

several = examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def whole(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.slow
@several
@given(
    parts=st.lists(tables(12), min_size=1, max_size=4),
    group=st.integers(1, 9),
    limit=st.sampled_from([1, 200, 900, 1 << 30]),
)
def test_nothing_depends_on_partition_bytes(tmp_path: Path, parts: list[pa.Table], group: int, limit: int) -> None:
    for old in tmp_path.glob("in/*"):
        old.unlink()
    (tmp_path / "in").mkdir(exist_ok=True)
    for number, table in enumerate(parts):
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=group)
    steps = [T.Filter("not (tiny < 0)"), T.Derive(twice="tiny * 2")]
    features = gp.Features(
        (["tiny", "twice"], [pre.SimpleImputer(strategy="constant", fill_value=0)]), ("名", pre.Categorify())
    )

    def job(partition_bytes: int | None) -> list[object]:
        dataset = gp.read_parquet(tmp_path / "in", partition_bytes=partition_bytes)
        drawn = plain(dataset.split(fraction=0.4, seed=5)[0].compute())
        if not any(table.num_rows for table in parts):
            return [drawn]
        pipeline = gp.Pipeline(steps, features).fit(dataset)
        pipeline.transform(dataset).write_parquet(tmp_path / "out", overwrite=True)
        ids = [row for part in dataset.partitions for row in part.row_ids(np).tolist()]
        return [len(dataset), plain(dataset.compute()), drawn, ids, plain(gp.read_parquet(tmp_path / "out").compute())]

    assert job(limit) == job(None)


def test_a_dictionary_that_overflows_its_page(tmp_path: Path) -> None:
    words = [f"word {n * 7919 % 3000:05d}" if n % 11 else None for n in range(20_000)]
    table = pa.table({"s": words, "n": pa.array([n % 1000 for n in range(20_000)])})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, dictionary_pagesize_limit=1_000, data_page_size=4_000, row_group_size=7_000)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    assert {"RLE_DICTIONARY", "PLAIN"} <= set(chunk.encodings)
    dataset = gp.read_parquet(path, partition_bytes=1)
    assert plain(dataset.compute()) == table.to_pylist()
    assert values(dataset.filter("s == 'word 02999'"), "s") == [word for word in words if word == "word 02999"]


def test_a_row_group_larger_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(10_000)}), path)
    dataset = gp.read_parquet(path, partition_bytes=8_000)
    (partition,) = dataset.partitions
    assert partition.description == (
        f"{path} row group 0 (80,000 bytes, over the limit of 8,000: one row group is the least)"
    )
    pieces, rest = [], partition
    while rest.num_rows > 3_000:
        piece, rest = rest.split_at(3_000)
        pieces.append(piece)
    assert [values(dataset.of_partitions([piece]), "n")[0] for piece in (*pieces, rest)] == [0, 3_000, 6_000, 9_000]


@pytest.mark.slow
def test_thousands_of_tiny_files(tmp_path: Path) -> None:
    one = whole(pa.table({"n": [0], "s": ["a"]}))
    (tmp_path / "00000.parquet").write_bytes(one)
    for number in range(1, 2_000):
        (tmp_path / f"{number:05d}.parquet").write_bytes(one)
    dataset = gp.read_parquet(tmp_path)
    assert (dataset.num_partitions, len(dataset)) == (1, 2_000)
    assert "(2000 files)" in dataset.partitions[0].description
    few = gp.read_parquet(tmp_path, partition_bytes=40_000)
    assert 1 < few.num_partitions < 100
    assert arrow(few.compute()).num_rows == 2_000
    ids = np.concatenate([part.row_ids(np) for part in few.partitions])
    assert (ids == np.arange(2_000, dtype="uint64") << np.uint64(40)).all()
    # A footer is kept as bytes, and the schema once.
    files = few.source.files.values()
    assert len({id(file.schema) for file in files}) == 1
    assert max(len(file.footer) for file in files) < 1_000
    part = few.of_partitions(few.partitions[:1])
    assert len(part.source.files) == len(few.partitions[0].spans) < 2_000


def test_an_error_among_many_files_is_not_waited_for(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03d}.parquet").write_bytes(whole(pa.table({"n": [1]})) if number else b"")
    opened = []
    real = parquet.read_tail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "read_tail", lambda one: opened.append(1) or real(one))
        with pytest.raises(BadFile, match=r"000\.parquet: the file is empty"):
            gp.read_parquet(tmp_path)
    assert len(opened) < 300


def test_partitions_of_small_files_keep_the_rows_in_order(tmp_path: Path) -> None:
    n = 0
    expected = []
    for number, rows in enumerate([3, 0, 5, 1, 40, 2, 2]):
        pq.write_table(pa.table({"n": np.arange(n, n + rows)}), tmp_path / f"{number}.parquet", row_group_size=10)
        expected += [(number << 40) + row for row in range(rows)]
        n += rows
    for limit in (1, 80, 200, 1 << 20):
        dataset = gp.read_parquet(tmp_path, partition_bytes=limit)
        assert values(dataset, "n") == list(range(n))
        assert [row for part in dataset.partitions for row in part.row_ids(np).tolist()] == expected
    backend = select("cpu")
    (partition,) = dataset.partitions
    left, right = partition.split_at(7)
    assert dataset.of_partitions([left]).read(left, ["n"], backend)["n"].tolist() == list(range(7))
    assert dataset.of_partitions([right]).read(right, ["n"], backend)["n"].tolist() == list(range(7, n))


@pytest.mark.parametrize(
    ("gibibytes", "mebibytes"), [((80,), 1024), ((24,), 768), ((140, 16), 512), ((2,), 128), ((0,), 1024), ((), 1024)]
)
def test_a_partition_is_a_share_of_the_gpus_memory(
    gibibytes: tuple[int, ...], mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [SimpleNamespace(memory_total=size << 30) for size in gibibytes]
    monkeypatch.setattr(partitions, "this_machine", lambda: SimpleNamespace(gpus=gpus))
    partitions._device_bytes.cache_clear()
    assert partition_limit(None, "gpu") == mebibytes << 20
    assert partition_limit(None, "cpu") <= 64 << 20
    assert partition_limit(5, "gpu") == 5
    partitions._device_bytes.cache_clear()
