"""A Dataset's transformed rows in parts that are read again each epoch: what a loader streams."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial

from gpupipe.backend import Backend, Column, select
from gpupipe.cluster import LocalThreads
from gpupipe.fitted_rows import FittedRows
from gpupipe.io import Dataset, in_halves, over_partitions
from gpupipe.transformation import Transformation

__all__ = ["StreamedParts", "loaded"]

Loaded = tuple[Mapping[str, Column], FittedRows]


class StreamedParts:
    """The row groups of a Dataset, transformed.

    Where steps leave out rows, one pass counts those that stay.

    Args:
        run: a fitted pipeline bound to the dataset.
        dataset: is read again each epoch.
        backend: what does it.
        dtype: of the numbers in the loader's windows.

    Raises:
        PartitionFailed: a partition that cannot be counted.
    """

    def __init__(self, run: Transformation, dataset: Dataset, backend: Backend, dtype: str) -> None:
        self.schema, self.backend, self.dtype = run.schema, backend, dtype
        self._run, self._dataset = run, dataset
        self._pieces = [part.keep([span]) for part in dataset.partitions for span in part.spans if span.num_rows]
        self.names: Sequence[str] = [piece.description for piece in self._pieces]
        self.rows: Sequence[int] = [piece.num_rows for piece in self._pieces]
        self.seen: FittedRows | None = None
        if not (run.keeps_rows and dataset.query.keeps_rows) or run.draws_rows:
            self._count()

    def read(self, parts: Sequence[int]) -> Generator[Iterable[Mapping[str, Column]]]:
        """The columns of these parts, in order, of each in one piece, or several where memory does not suffice.

        Raises:
            PartitionFailed: names the part; errors of ours pass with its name as a note.
        """
        work = partial(loaded, self._run, self.backend.name)

        def pieces(number: int) -> list[Mapping[str, Column]]:
            part = self._dataset.of_partitions([self._pieces[number]])
            return [columns for columns, _ in in_halves(work, part)]

        yield from LocalThreads().map(pieces, parts, at_once=1 if self.backend.name == "gpu" else None)

    def _count(self) -> None:
        work, rows, seen = partial(_counted, self._run, self.backend.name), [0] * len(self._pieces), FittedRows()
        dataset, number, looked_at = self._dataset.of_partitions(self._pieces), 0, 0
        with closing(over_partitions(work, dataset, self.backend.name, "count")) as counts:
            for given, kept, told in counts if self._pieces else ():  # a part in halves gives two counts
                rows[number], seen, looked_at = rows[number] + kept, seen + told, looked_at + given
                if looked_at == self._pieces[number].num_rows:
                    number, looked_at = number + 1, 0
        self.rows, self.seen = rows, seen


def loaded(run: Transformation, backend_name: str, part: Dataset) -> Loaded:
    """The output columns of one partition, and what tells its rows from others, on a worker."""
    backend, partition = select(backend_name), part.partitions[0]
    row_ids = partition.row_ids(backend.xp) if run.draws_rows else None
    return run.load(part.read(partition, run.reads, backend), backend, row_ids)


def _counted(run: Transformation, backend_name: str, part: Dataset) -> tuple[int, int, FittedRows]:
    """Rows that went in, rows that came out, and what tells them from others."""
    columns, seen = loaded(run, backend_name, part)
    return part.partitions[0].num_rows, len(next(iter(columns.values()))), seen
