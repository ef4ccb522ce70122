from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpupipe.errors import BadFile
from gpupipe.io import stores
from gpupipe.io.formats import parquet
from gpupipe.io.formats.parquet import local_part, open_footer
from gpupipe.io.stores import Input

TABLE = pa.table(
    {
        "n": np.arange(4_000),
        "text": [f"t{i % 7}" for i in range(4_000)],
        "tags": [["a"], []] * 2_000,
        "noise": np.random.default_rng(0).random(4_000),
    }
)


@pytest.fixture
def remote() -> Iterator[str]:
    """Four row groups in a place that is not local."""
    path = "memory://part.parquet"
    with fsspec.open(path, "wb") as file:
        pq.write_table(TABLE, file, row_group_size=1_000, write_page_index=True)
    yield path
    fsspec.filesystem("memory").rm("/part.parquet")


@pytest.mark.parametrize("groups", [[0], [3], [1, 2], [3, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize("names", [["n"], ["text", "n"], ["noise"], ["n", "text", "noise"]])
def test_a_part_reads_like_the_whole(remote: str, groups: list[int], names: list[str]) -> None:
    file = open_footer(Input(remote))
    with local_part(file, groups, names) as path, pq.ParquetFile(path) as part:
        assert part.metadata.equals(file.metadata)
        expected = pa.concat_tables(TABLE.slice(1_000 * group, 1_000).select(names) for group in groups)
        assert part.read_row_groups(groups, columns=names).select(names).equals(expected)
    assert not Path(path).exists()


def test_only_what_is_asked_for_is_there(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_GAP", 0)
    file = open_footer(Input(remote))
    with fsspec.open(remote, "rb") as opened:
        whole = opened.read()
    with local_part(file, [1, 2], ["text"]) as path:
        part = Path(path).read_bytes()
    assert len(part) == len(whole)
    for group in range(4):
        for number in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(number)
            start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            place = slice(start, start + chunk.total_compressed_size)
            asked = group in (1, 2) and chunk.path_in_schema == "text"
            assert part[place] == (whole[place] if asked else bytes(chunk.total_compressed_size))
    assert part[place.stop :] == whole[place.stop :]


def test_a_file_that_has_become_shorter(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FIRST_WAIT", 0.0)
    file = open_footer(Input(remote))
    with fsspec.open(remote, "wb") as opened:
        opened.write(b"PAR1")
    with pytest.raises(BadFile, match="bytes from"), local_part(file, [0], ["n"]):
        pass
