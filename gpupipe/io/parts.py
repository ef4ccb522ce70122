"""The parts a dataset is written as, wherever they go: which there are, what is left to do, what was done."""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tqdm import tqdm

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.device.out_of_memory import is_out_of_memory
from gpupipe.backend.hashing import shuffle_bits
from gpupipe.cluster import active
from gpupipe.errors import BadFile
from gpupipe.io.formats.spill_source import from_all_files
from gpupipe.io.manifest import Manifest, Part
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.planning.query import EVERYTHING
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.planned import Planned
from gpupipe.io.relational.sort import shuffle
from gpupipe.io.run import in_halves, in_partition, over_partitions
from gpupipe.io.writer import ParquetOptions, file_types, group_rows, with_dates, write_file, write_hive
from gpupipe.schema import Schema

__all__ = [
    "PartWriter",
    "check_same_job",
    "digest_of",
    "in_order",
    "in_parts",
    "only_new",
    "write_parts",
    "write_whole",
]

_log = logging.getLogger("gpupipe")


@dataclass(frozen=True, kw_only=True)
class PartWriter(ABC):
    """Writes one partition's rows, on a worker; what it leaves is whole or has no record.

    A worker that is no longer waited for may do the same at the same time: then one takes the other's place.

    Args:
        where: the folder that is written, for messages.
        options: how files are written.
        backend: whose frames are read.
        piece_rows: rows that are held at a time.
        names: of the parts, by partition.
        mark: what files' names have behind the part's.
    """

    where: str
    options: ParquetOptions
    backend: str
    piece_rows: int
    names: Mapping[int, str]
    mark: str = ""

    def __call__(self, part: Table) -> Part:
        """Write the dataset's one partition, if need be in pieces."""
        (partition,) = part.partitions
        record = Part(self.names[partition.index], {}, partition.num_rows, part.source.files_of(partition))
        table, pieces = partial(_table_of, self.backend, self.options), list(self._pieces(part))
        frames = [partial(_frame_of, select(self.backend), self.options, p, p.partitions[0]) for p in pieces]
        tables = (t for piece in pieces for t in in_halves(table, piece, record.halved.append))
        return self.write(record, tables, part.schema, frames)

    def write(
        self, record: Part, tables: Iterable[pa.Table], schema: Schema, frames: Sequence[Callable[[], Frame]] = ()
    ) -> Part:
        """Write the rows of one part.

        Args:
            record: of the part; its files are still to come.
            tables: the rows.
            schema: of the columns.
            frames: the same rows, for a backend that writes them itself.
        """
        with self.scratch() as folder:
            file = folder / f"{record.name}{self.mark}.parquet"
            if not _write_on_device(frames, schema, self.backend, self.options, file, record.halved.append):
                if self.options.partition_by:
                    write_hive(tables, schema, folder, file.stem, self.options)
                else:
                    write_file(tables, schema, file, self.options)
            written = sorted(folder.rglob("*.parquet"))
            record = replace(record, files={str(path.relative_to(folder)): group_rows(path) for path in written})
            self.keep(folder, record)
        return record

    @abstractmethod
    def scratch(self) -> AbstractContextManager[Path]:
        """A folder on this machine that goes when the block ends."""

    @abstractmethod
    def keep(self, scratch: Path, record: Part) -> None:
        """Put the part's files where they belong, and only then its record."""

    @abstractmethod
    def records(self) -> list[Part]:
        """The parts that are whole."""

    def _pieces(self, part: Table) -> Iterator[Table]:
        """The partition in parts that are no larger than it was before files were counted."""
        (rest,) = part.partitions
        while rest.num_rows > self.piece_rows:
            piece, rest = rest.split_at(self.piece_rows)
            yield part.of_partitions([piece])
        yield part.of_partitions([rest])


def write_parts(
    dataset: Table,
    writer: PartWriter,
    job: str | None,
    inputs: Mapping[str, str] | None,
    before: Manifest | None,
) -> Manifest:
    """Write the parts that have no record yet; tells what the folder will hold."""
    old = () if before is None else before.parts
    first = 1 + max((int(part.name.rpartition("-")[2]) for part in old), default=-1)
    done = {part.name: part for part in writer.records()}
    num_done, plan = len(old) + len(done), _plan_of(dataset, writer.options, writer.backend)
    if plan is not None:
        names = {}
        with closing(plan.batches()) as batches:
            for index, tables in enumerate(_cut_rows(batches, plan.partition_rows)):
                names[index] = name = f"part-{first + index:05d}"
                if name not in done:
                    record = Part(name, {}, sum(table.num_rows for table in tables), [])
                    done[name] = writer.write(record, tables, dataset.schema)
    else:
        names = {part.index: f"part-{first + part.index:05d}" for part in dataset.partitions}
        missing = [partition for partition in dataset.partitions if names[partition.index] not in done]
        work = replace(writer, names=names)
        made = over_partitions(work, dataset.of_partitions(missing), writer.backend, "write", whole=True)
        for part in made if missing else ():
            done[part.name] = part
            for told in part.halved:
                _log.warning(told)
    keys = writer.options.partition_by
    return Manifest(
        job,
        {**(before.inputs if before else {}), **(inputs or {})},
        (*old, *(done[name] for name in names.values())),
        notes=tuple(dataset.source.notes),
        partition_by={item.name: item.written_as or item.dtype for item in dataset.schema.select(keys)},
        num_done=num_done,
    )


def check_same_job(
    before: Manifest | None,
    where: str,
    job: str | None,
    inputs: Mapping[str, str] | None,
    is_there: Callable[[str], bool],
) -> Manifest:
    """The manifest of what is there, if this job wrote it and can add to it.

    Args:
        before: the manifest, if there is one.
        where: the folder, for messages.
        job: see `Manifest`.
        inputs: see `Manifest`.
        is_there: whether a file that the manifest lists is.

    Raises:
        BadFile: something else is there, or the inputs have changed.
    """
    if before is None or job is None or inputs is None:
        raise BadFile(where, "something is there already", expected="a new path", remedy="overwrite=True")
    if before.job != job:
        raise BadFile(
            where,
            "it was written by another pipeline, or with other options",
            expected="the same job, which would add what is new",
            remedy="another path, or overwrite=True",
        )
    changed = sorted(name for name, stamp in before.inputs.items() if inputs.get(name, stamp) != stamp)
    if changed:
        raise BadFile(
            where,
            f"{len(changed)} of its input files have changed since",
            got=changed[0],
            expected="new files beside the old ones",
            remedy="overwrite=True, which writes everything again",
        )
    for name in before.files:
        if not is_there(name):
            raise BadFile(
                f"{where}/{name}",
                "it is missing, though the manifest beside it lists it",
                expected="all that was written",
                remedy="overwrite=True, which writes everything again",
            )
    return before


def in_parts(dataset: Table, options: ParquetOptions, files: int | None, backend: str) -> Table:
    """Cut the rows into a partition for each part that a folder gets."""
    if files is None and options.layout == "gpu" and backend == "cpu":  # a GPU's partitions are as large
        num_rows = sum(partition.num_rows for partition in dataset.partitions)
        files = max(1, -(-num_rows // options.lay_out(dataset.schema).rows_per_group))
    return dataset if files is None else dataset.of_partitions(_cut(dataset.partitions, files))


def _cut(partitions: Sequence[Partition], num_parts: int) -> list[Partition]:
    """The same rows in as many partitions of nearly equal size."""
    rest = Partition(0, tuple(span for partition in partitions for span in partition.spans), "")
    total, found = rest.num_rows, []
    for index in range(num_parts):
        first, last = total * index // num_parts, total * (index + 1) // num_parts
        part, rest = rest.split_at(last - first)
        found.append(replace(part, index=index, description=f"rows {first:,} to {last:,}"))
    return found


def digest_of(dataset: Table, job: str | None, inputs: Mapping[str, str] | None, before: Manifest | None) -> str:
    """What tells a job on these inputs, cut into these parts, apart from any other."""
    source = dataset.source
    cuts: Any = (
        source.partition_rows
        if isinstance(source, Planned)
        else [[astuple(span) for span in partition.spans] for partition in dataset.partitions]
    )
    facts = [job, inputs, None if before is None else before.to_json(), cuts]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def write_whole(dataset: Table, path: Path, options: ParquetOptions, backend: str) -> int:
    """Write all rows to one local file; by the device's own writer where partitions are read in this process.

    Returns:
        How many rows were read.

    Memory: a partition per worker, and as many tables as make a row group; of a plan what it takes instead.
    """
    plan = _plan_of(dataset, options, backend)
    if plan is not None:
        with closing(plan.batches()) as batches:
            write_file(batches, dataset.schema, path, options)
        return sum(group_rows(path))
    num_rows = sum(partition.num_rows for partition in dataset.partitions)
    with tqdm(dataset.partitions, "write", disable=None, leave=False) as bar:

        def frame_of(partition: Partition) -> Frame:
            with in_partition(partition):
                frame = _frame_of(select(backend), options, dataset, partition)
            bar.update()
            return frame

        frames = [partial(frame_of, partition) for partition in dataset.partitions]
        if active().in_process and _write_on_device(frames, dataset.schema, backend, options, path, _log.warning):
            return num_rows
    with closing(over_partitions(partial(_table_of, backend, options), dataset, backend, "write")) as tables:
        write_file(tables, dataset.schema, path, options)
    return num_rows


def _plan_of(dataset: Table, options: ParquetOptions, backend: str) -> Planned | None:
    """The plan whose rows are written as they come; None where rows are read by partitions."""
    source = dataset.source
    is_whole = dataset.query == EVERYTHING and options.shuffle != "partition"
    return source if backend == "cpu" and is_whole and isinstance(source, Planned) else None


def _cut_rows(tables: Iterable[pa.Table], num_rows: int) -> Iterator[list[pa.Table]]:
    """The same rows, so many at a time; the last apart."""
    waiting: list[pa.Table] = []
    missing = num_rows
    for table in tables:
        while table.num_rows > missing:
            yield [*waiting, table.slice(0, missing)]
            table, waiting, missing = table.slice(missing), [], num_rows  # noqa: PLW2901
        waiting.append(table)
        missing -= table.num_rows
    yield waiting


def _write_on_device(
    frames: Sequence[Callable[[], Frame]],
    schema: Schema,
    backend: str,
    options: ParquetOptions,
    path: Path,
    tell: Callable[[str], None],
) -> bool:
    """Write frames to one file where the backend has a writer for it; without enough memory say so and write nothing.

    Returns:
        Whether it is written.
    """
    if options.partition_by or not frames:
        return False
    device, types = select(backend), file_types(schema)
    checked = [lambda frame=frame: with_dates(frame(), types, device) for frame in frames]
    try:
        return device.write_parquet(checked, types, path, options.lay_out(schema))
    except Exception as cause:
        if not is_out_of_memory(cause):
            raise
        tell(f"{path.name}: the device has not enough memory to write it ({cause}), written on the host")
    path.unlink(missing_ok=True)
    return False


def _table_of(backend_name: str, options: ParquetOptions, part: Table) -> pa.Table:
    """The rows of one partition on the host, in the order they are written in.

    On the CPU columns that no function has made never become a frame.
    """
    backend, (partition,) = select(backend_name), part.partitions
    if backend.name != "cpu" or part.query.stages:
        return backend.to_arrow(_frame_of(backend, options, part, partition))
    table = part.source.table(partition, list(part.schema))
    ids = partition.row_ids(backend.xp) if options.shuffle == "partition" else None
    if part.query.draws:
        kept = part.query.drawn(partition, backend)
        table, ids = table.filter(pa.array(kept)), None if ids is None else ids[kept]
    return table if ids is None else table.take(pa.array(_shuffled(options.seed, ids, backend)))


def _frame_of(backend: Backend, options: ParquetOptions, dataset: Table, partition: Partition) -> Frame:
    """The rows of one partition in the order they are written in."""
    frame = dataset.read(partition, None, backend)
    if options.shuffle == "partition":
        ids = partition.row_ids(backend.xp)[backend.positions(frame)]
        frame = backend.take(frame, _shuffled(options.seed, ids, backend))
    return frame


def _shuffled(seed: int, row_ids: Array, backend: Backend) -> Array:
    """The random order of the rows of a partition."""
    return backend.xp.argsort(shuffle_bits(seed, row_ids), kind="stable")


def in_order(dataset: Table, options: ParquetOptions) -> Table:
    """The rows in the order they are written in, but for what `_frame_of` does."""
    return shuffle(dataset, options.seed) if options.shuffle == "full" else dataset


def only_new(dataset: Table, before: Manifest, inputs: Mapping[str, str], options: ParquetOptions) -> Table | None:
    """The rows of the input files that were not there before; None if there is no such file.

    Raises:
        BadConfig: these rows cannot be told from the others.
    """
    new = inputs.keys() - before.inputs.keys()
    if new and options.shuffle == "full":
        raise from_all_files()
    return dataset.of_files(new) if new else None
