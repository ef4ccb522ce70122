"""Files that change between planning and reading: an error that names them, never fewer or other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import gpupipe as gp
import gpupipe.preprocessing as pre
from gpupipe.errors import BadFile
from tests.io.tables import values

ROWS = 40_000


def table(first: int = 0, rows: int = ROWS) -> pa.Table:
    return pa.table({"n": np.arange(first, first + rows), "x": np.random.default_rng(first).random(rows)})


def write_parquet(content: pa.Table, path: Path) -> None:
    pq.write_table(content, path, row_group_size=10_000)


def write_orc(content: pa.Table, path: Path) -> None:
    orc.write_table(content, path, batch_size=10_000, stripe_size=1)


def write_ipc(content: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, content.schema) as writer:
        writer.write_table(content, max_chunksize=10_000)


def as_dataset(folder: Path, **options: int) -> gp.Dataset:
    return gp.from_frame(pads.dataset(folder, format="parquet"), **options)


LAZY = {
    "parquet": (write_parquet, gp.read_parquet),
    "orc": (write_orc, gp.read_orc),
    "arrow": (write_ipc, gp.read_ipc),
    "dataset": (write_parquet, as_dataset),
}


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_rows(path: Path) -> None:
    """As many rows, in as many groups, with other values."""
    write = next(write for kind, (write, _) in LAZY.items() if kind == path.suffix[1:] or path.suffix == ".parquet")
    write(table(10**9), path)


CHANGES: list[Callable[[Path], None]] = [cut, empty, Path.unlink, other_rows]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=["cut off", "empty", "gone", "replaced"])
@pytest.mark.parametrize("kind", LAZY)
def test_a_file_that_changes_after_planning(tmp_path: Path, kind: str, change: Callable[[Path], None]) -> None:
    write, read = LAZY[kind]
    suffix = "parquet" if kind == "dataset" else kind
    inputs = tmp_path / "in"
    inputs.mkdir()
    for number in range(3):
        write(table(number * ROWS), inputs / f"{number}.{suffix}")
    dataset = read(inputs, partition_bytes=200_000)
    assert dataset.num_partitions > 6
    change(inputs / f"1.{suffix}")
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler())))
    for work in (dataset.compute, lambda: pipeline.fit(dataset), lambda: dataset.write_parquet(tmp_path / "out")):
        with pytest.raises(BadFile, match=rf"1\.{suffix}: ") as caught:
            work()
        assert "Try: " in str(caught.value)
    assert not (tmp_path / "out" / "_manifest.json").exists()
    # The others' rows are still to be had.
    rest = replace(dataset, source=dataset.source.of_files({str(inputs / f"{number}.{suffix}") for number in (0, 2)}))
    assert values(rest, "n") == [*range(ROWS), *range(2 * ROWS, 3 * ROWS)]


def test_text_is_read_once_and_may_go_then(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    with pa.ipc.new_stream(tmp_path / "a.arrows", pa.schema([("n", pa.int64())])) as writer:
        writer.write_table(pa.table({"n": [1, 2]}))
    datasets = [gp.read_csv(tmp_path), gp.read_json(tmp_path), gp.read_ipc(tmp_path)]
    for path in tmp_path.iterdir():
        path.unlink()
    for dataset in datasets:
        assert values(dataset, "n") == [1, 2]
