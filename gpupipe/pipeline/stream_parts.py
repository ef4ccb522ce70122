"""Streamed parts: a Dataset's transformed rows, read again each epoch by a streaming loader."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial

from gpupipe.backend import Backend, Column, select
from gpupipe.cluster import LocalThreads
from gpupipe.io import Dataset, in_halves, run_partitions
from gpupipe.pipeline.apply import BoundPipeline

__all__ = ["StreamedParts", "load_columns"]


class StreamedParts:
    """Row groups of a Dataset, transformed on demand.

    Where steps leave out rows, one pass counts those that stay.

    Args:
        run: a fitted pipeline bound to the dataset.
        dataset: is read again each epoch.
        backend: what does it.
        dtype: of the numbers in the loader's windows.

    Raises:
        PartitionFailed: a partition that cannot be counted.
    """

    def __init__(self, run: BoundPipeline, dataset: Dataset, backend: Backend, dtype: str) -> None:
        self.schema, self.backend, self.dtype = run.schema, backend, dtype
        self._run, self._dataset = run, dataset
        self._pieces = [part.keep([span]) for part in dataset.partitions for span in part.spans if span.num_rows]
        self.names: Sequence[str] = [piece.description for piece in self._pieces]
        self.rows: Sequence[int] = [piece.num_rows for piece in self._pieces]
        if not (run.keeps_rows and dataset.query.keeps_rows) or run.draws_rows:
            self._count()

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Mapping[str, Column]]]:
        """Yield the columns of these parts in order, each in one piece, or in several where memory does not suffice.

        Raises:
            PartitionFailed: names the part; errors of ours pass with its name as a note.
        """
        work = partial(load_columns, self._run, self.backend.name)

        def pieces(number: int) -> list[Mapping[str, Column]]:
            return list(in_halves(work, self._dataset.of_partitions([self._pieces[number]])))

        yield from LocalThreads().map(pieces, parts, at_once=1 if self.backend.name == "gpu" else None)

    def _count(self) -> None:
        work, rows = partial(_count_rows, self._run, self.backend.name), [0] * len(self._pieces)
        dataset, number, looked_at = self._dataset.of_partitions(self._pieces), 0, 0
        with closing(run_partitions(work, dataset, self.backend.name, "count")) as counts:
            for given, kept in counts if self._pieces else ():  # a part in halves gives two counts
                rows[number], looked_at = rows[number] + kept, looked_at + given
                if looked_at == self._pieces[number].num_rows:
                    number, looked_at = number + 1, 0
        self.rows = rows


def load_columns(run: BoundPipeline, backend_name: str, part: Dataset) -> Mapping[str, Column]:
    """Compute the output columns of one partition, on a worker."""
    backend, partition = select(backend_name), part.partitions[0]
    row_ids = partition.row_ids(backend.xp) if run.draws_rows else None
    return run.load(part.read(partition, run.reads, backend), backend, row_ids)


def _count_rows(run: BoundPipeline, backend_name: str, part: Dataset) -> tuple[int, int]:
    """Count a partition's rows before and after the transforms."""
    return part.partitions[0].num_rows, len(next(iter(load_columns(run, backend_name, part).values())))
