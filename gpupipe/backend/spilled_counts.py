"""Spilled value counts: temporary files of distinct values on the host, merged one hash bucket at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gpupipe.backend.dictionaries import Dictionary, filter_frequent, merge_counts
from gpupipe.backend.hashing import hash_strings, splitmix64
from gpupipe.errors import BadFile
from gpupipe.scratch import ScratchFolder

_BUCKETS = 64


@dataclass(frozen=True)
class SpilledCounts:
    """Spilled value counts: files of values and counts, each in buckets by the values' hashes.

    Args:
        runs: a folder for each file, which goes with the last object that knows it.
    """

    runs: tuple[ScratchFolder, ...] = field(default=(), repr=False)

    def with_run(self, values: Dictionary, counts: Any) -> Self:
        """Write distinct values (Arrow) and their counts (int64) to a new file.

        Raises:
            BadFile: there is no room for it.

        Memory: the values once more, by bucket.

        Example:
            >>> spilled = SpilledCounts().with_run(pa.array([7, 9]), np.array([1, 2]))
            >>> values, counts = spilled.with_run(pa.array([7]), np.array([5])).merge(min_count=3)
            >>> values.to_pylist(), counts.tolist()
            ([7], [6])
        """
        buckets = _assign_buckets(values)
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=_BUCKETS))
        batch = pa.record_batch({"value": values.take(pa.array(order)), "count": pa.array(np.asarray(counts)[order])})
        folder = ScratchFolder()
        try:
            with pa.ipc.new_file(_get_file(folder), batch.schema) as file:
                for start, end in zip([0, *ends[:-1]], ends, strict=True):
                    file.write_batch(batch.slice(start, end - start))
        except OSError as cause:
            raise BadFile(
                str(folder.path),
                f"distinct values cannot be set down there ({cause})",
                expected=f"room for {batch.nbytes:,} bytes more",
                remedy="TMPDIR= or gp.configure(scratch=...) with a larger disk, or min_frequency= and fewer columns",
            ) from cause
        return type(self)((*self.runs, folder))

    def __add__(self, other: Self) -> Self:
        return type(self)((*self.runs, *other.runs))

    def merge(self, min_count: int) -> tuple[Dictionary, Any]:
        """Merge the files: the distinct values that occur at least `min_count` times and their counts, unordered.

        Memory: what it gives twice, and a 64th of what was written.
        """
        files = [pa.ipc.open_file(pa.memory_map(_get_file(folder))) for folder in self.runs]
        found = []
        for bucket in range(_BUCKETS):
            batches = [file.get_batch(bucket) for file in files]
            parts = [(batch["value"], batch["count"].to_numpy()) for batch in batches]
            found.append(filter_frequent(*merge_counts(parts), min_count))
        values, counts = zip(*found, strict=True)
        return pa.concat_arrays(values), np.concatenate(counts)


def _get_file(folder: ScratchFolder) -> str:
    return str(folder.path / "counts.arrow")


def _assign_buckets(values: Dictionary) -> Any:
    """Assign each value to a bucket: strings by their text, numbers by their bits."""
    text = pa.types.is_large_string(values.type)
    bits = hash_strings(values) if text else values.to_numpy().view("uint64")
    return (splitmix64(0, bits) >> np.uint64(58)).astype(np.int64)
