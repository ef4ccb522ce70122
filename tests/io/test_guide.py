"""The table of bad files in docs/guide-files.md: every row is tried, and says what the guide says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe.errors import GpupipeError
from tests.io.tables import damage, values

GUIDE = (Path(__file__).parents[2] / "docs" / "guide-files.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", GUIDE.partition("\n### Bad files\n")[2], re.MULTILINE)
TABLE = {name: (outcome, message.strip("` ")) for name, outcome, message in ROWS if set(name) != {"-"}}
TABLE.pop("file", None)

GOOD = pa.table({"n": np.arange(100), "s": ["a", "b"] * 50})
OTHER = GOOD.set_column(0, "n", pa.array(np.arange(100) + 1_000))  # takes as many bytes


def replaced(change: Callable[[Path], object]) -> Callable[[Path], gp.Dataset]:
    """A file that changes between planning and reading."""

    def make(path: Path) -> gp.Dataset:
        pq.write_table(GOOD, path, compression="none")
        dataset = gp.read_parquet(path.parent)
        change(path)
        return dataset

    return make


def written(table: pa.Table, **options: int) -> Callable[[Path], gp.Dataset]:
    def make(path: Path) -> gp.Dataset:
        pq.write_table(table, path, **options)
        return gp.read_parquet(path.parent, partition_bytes=1_000 if "row_group_size" in options else None)

    return make


def filled(content: bytes) -> Callable[[Path], gp.Dataset]:
    def make(path: Path) -> gp.Dataset:
        path.write_bytes(content)
        return gp.read_parquet(path.parent)

    return make


def damaged(path: Path) -> gp.Dataset:
    pq.write_table(GOOD, path)
    damage(path, 0, "n")
    return gp.read_parquet(path.parent)


def many(path: Path) -> gp.Dataset:
    for number in range(299):
        pq.write_table(GOOD.slice(0, 1), path.with_name(f"c{number}.parquet"))
    return gp.read_parquet(path.parent)


def whole() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(GOOD, sink)
    return sink.getvalue().to_pybytes()


CASES: dict[str, Callable[[Path], gp.Dataset]] = {
    "cut off": filled(whole()[:-30]),
    "of another kind": filled(b"n,s\n1,a\n"),
    "of zero bytes": filled(b""),
    "not there": gp.read_parquet,
    "with damaged values": damaged,
    "with another type": written(GOOD.set_column(0, "n", GOOD["n"].cast(pa.float64()))),
    "without a column": written(GOOD.drop_columns(["n"])),
    "with another column": written(GOOD.append_column("x", GOOD["n"])),
    "with two columns of one name": written(pa.Table.from_arrays([GOOD["n"], GOOD["n"]], ["n", "n"])),
    "deleted after planning": replaced(Path.unlink),
    "cut off after planning": replaced(lambda path: path.write_bytes(path.read_bytes()[:40])),
    "replaced after planning": replaced(lambda path: pq.write_table(OTHER, path, compression="none")),
    "of zero rows": written(GOOD.slice(0, 0)),
    "with its columns in another order": written(GOOD.select(["s", "n"])),
    "whose dictionary overflows its page": written(GOOD, dictionary_pagesize_limit=64),
    "whose row group is over the limit": written(GOOD, row_group_size=100),
    "very small, and many of them": many,
}


def test_every_row_of_the_guide_is_tried() -> None:
    assert list(TABLE) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_bad_file_does_what_the_guide_says(tmp_path: Path, name: str) -> None:
    outcome, message = TABLE[name]
    pq.write_table(GOOD, tmp_path / "a.parquet")
    bad = tmp_path / "b.parquet"
    if outcome.startswith("no fault"):
        dataset = CASES[name](bad)
        assert values(dataset, "n")[:100] == GOOD["n"].to_pylist()
        assert message in "\n".join(part.description for part in dataset.partitions)
        return
    with pytest.raises(GpupipeError) as caught:
        CASES[name](bad).compute()
    assert type(caught.value).__name__ == outcome.strip("`").partition("`")[0]
    told = " ".join(str(caught.value).split())
    assert told.startswith(f"{bad}: ")
    assert re.search(re.escape(message).replace(r"\.\.\.", r"\d+"), told), told
