"""A part of one Parquet file in a store without the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from gpupipe.io.stores.find_files import Input
from gpupipe.io.stores.remote_file import fetch, look_at
from gpupipe.support.scratch import local_scratch

if TYPE_CHECKING:
    from gpupipe.io.formats.parquet import ParquetFile

__all__ = ["end_of", "local_part"]

END_BYTES = 64 << 10
"""Fetched of a file's end at first; most footers are shorter."""
MAX_GAP = 16 << 10
"""Bytes between two ranges that cost less than another request."""


def end_of(one: Input) -> bytes:
    """The bytes of a Parquet file from somewhere before its footer.

    Memory: the footer.
    """
    size = look_at(one.path, one.storage_options).size if one.size is None else one.size
    (end,) = fetch(one.path, [(max(0, size - END_BYTES), size)], one.storage_options)
    length = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < length <= size:
        (end,) = fetch(one.path, [(size - length, size)], one.storage_options)
    return end


@contextmanager
def local_part(
    file: ParquetFile, groups: Sequence[int], names: Sequence[str], *, with_footer: bool = True
) -> Iterator[str]:
    """Name a temporary local file that reads like `file` for these row groups and columns, and fetch no more than that.

    It has the bytes of `file` where the columns' chunks and the footer are; between them are holes, which take no room.
    It is removed when the block ends.

    Raises:
        BadFile: the bytes cannot be fetched, or are fewer than the footer says.

    Memory: the compressed bytes of those chunks, on the host and on the local disk.
    """
    one, chunks = file.stored, file.chunks
    ranges = [_chunk_range(file, group, chunk) for group in groups for name in names for chunk in chunks[name]]
    if with_footer:
        # Page indexes lie between the last row group and the footer.
        last = file.metadata.num_row_groups - 1
        stop = max(_chunk_range(file, last, chunk)[1] for chunk in range(file.metadata.num_columns))
        ranges.append((stop, look_at(one.path, one.storage_options).size))
    ranges = _joined(ranges)
    with NamedTemporaryFile(prefix="gpupipe-", suffix=".parquet", dir=local_scratch()) as local:
        for (start, _), part in zip(ranges, fetch(one.path, ranges, one.storage_options), strict=True):
            local.seek(start)
            local.write(part)
        local.flush()
        yield local.name


def _chunk_range(file: ParquetFile, group: int, chunk: int) -> tuple[int, int]:
    """First byte of a column chunk, and the one after its last."""
    found = file.metadata.row_group(group).column(chunk)
    start = min(found.dictionary_page_offset or found.data_page_offset, found.data_page_offset)
    return start, start + found.total_compressed_size


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in ascending order, those that touch or nearly do as one.

    Example:
        >>> _joined([(90_000, 90_009), (0, 3), (3, 5)])
        [(0, 5), (90000, 90009)]
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1] + MAX_GAP:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined
