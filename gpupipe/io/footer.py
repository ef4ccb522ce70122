"""One Parquet file: its footer, and a part of it without the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

from gpupipe.errors import BadFile
from gpupipe.io.paths import open_file, peek

__all__ = ["File", "local_part", "one_line", "open_footer"]


@dataclass(frozen=True)
class File:
    """One Parquet file and its footer.

    Args:
        path: a local path or a URL.
        name: what messages call it.
        metadata: the footer.
    """

    path: str
    name: str
    metadata: pq.FileMetaData

    @property
    def arrow_schema(self) -> pa.Schema:
        return self.metadata.schema.to_arrow_schema()

    @property
    def chunks(self) -> dict[str, int]:
        """Where each flat column's chunk stands in a row group."""
        columns = (self.metadata.schema.column(position) for position in range(self.metadata.num_columns))
        return {c.path: position for position, c in enumerate(columns) if c.max_repetition_level == 0}


def open_footer(path: str, name: str | None = None) -> File:
    """Read a file's footer.

    Raises:
        BadFile: it cannot be read, or is no whole Parquet file; says what was seen.
    """
    try:
        with open_file(path) as source:
            return File(path, name or path, pq.read_metadata(source))
    except (OSError, pa.ArrowException) as cause:
        raise _unreadable(path, cause) from cause


@contextmanager
def local_part(file: File, groups: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """Name a temporary local file that reads like `file` for these row groups and columns, and fetch no more than that.

    It is as long as `file` and has its bytes where the columns' chunks and the footer are; between them are holes,
    which take no room. It is removed when the block ends.

    Raises:
        OSError: the bytes cannot be fetched, or are fewer than the footer says.

    Memory: the compressed bytes of those chunks, on the host and on the local disk.
    """
    fs, inner = url_to_fs(file.path)
    size, chunks = int(fs.size(inner)), file.chunks
    ranges = [_chunk_range(file, group, chunks[name]) for group in groups for name in names]
    # Page indexes lie between the last row group and the footer.
    last = file.metadata.num_row_groups - 1
    ranges.append((max(_chunk_range(file, last, chunk)[1] for chunk in range(file.metadata.num_columns)), size))
    ranges = _joined(ranges)
    starts, stops = map(list, zip(*ranges, strict=True))
    parts = fs.cat_ranges([inner] * len(ranges), starts, stops, on_error="raise")
    with NamedTemporaryFile(prefix="gpupipe-", suffix=".parquet") as local:
        local.truncate(size)
        for (start, stop), part in zip(ranges, parts, strict=True):
            if len(part) != stop - start:
                raise OSError(f"{len(part)} bytes from {start} to {stop}")
            local.seek(start)
            local.write(part)
        local.flush()
        yield local.name


def _chunk_range(file: File, group: int, chunk: int) -> tuple[int, int]:
    """First byte of a column chunk, and the one after its last."""
    found = file.metadata.row_group(group).column(chunk)
    start = min(found.dictionary_page_offset or found.data_page_offset, found.data_page_offset)
    return start, start + found.total_compressed_size


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in ascending order, those that touch as one.

    Example:
        >>> _joined([(7, 9), (0, 3), (3, 5)])
        [(0, 5), (7, 9)]
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def one_line(cause: Exception) -> str:
    """A library's words for what failed, to be put into a sentence."""
    return " ".join(str(cause).split())


def _unreadable(path: str, cause: Exception) -> BadFile:
    try:
        size, head, tail = peek(path)
    except OSError:
        return BadFile(
            path,
            f"cannot be opened ({one_line(cause)})",
            expected="a file this process may read",
            remedy="its permissions",
        )
    if size == 0:
        return BadFile(path, "the file is empty (0 bytes)", expected="a Parquet file", remedy="write it again")
    if head[:4] != b"PAR1":
        remedy = (
            "gp.read_csv(...)" if head.isascii() and b"\0" not in head else "the right path; or write it as Parquet"
        )
        return BadFile(path, "not a Parquet file, its first bytes differ", got=head, expected="b'PAR1'", remedy=remedy)
    return BadFile(
        path,
        f"damaged or cut off: {size} bytes, the footer cannot be read ({one_line(cause)})",
        got=tail[-4:],
        expected="a footer that ends in b'PAR1'",
        remedy="copy or write the file again",
    )
