"""Dataset writer: to a folder part by part, resumable and visible only when complete; or to one file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.device.host_memory import is_out_of_memory
from gpupipe.backend.hashing import shuffle_seed, splitmix64
from gpupipe.cluster import get_executor
from gpupipe.errors import BadConfig, BadFile
from gpupipe.io.jobs.destination import Destination, create_file, open_destination, write_quarantine
from gpupipe.io.jobs.manifest import Manifest, Part
from gpupipe.io.jobs.parquet_writer import (
    ParquetOptions,
    cut_rows,
    get_file_types,
    group_rows,
    with_dates,
    write_file,
    write_hive,
)
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.planning.table import EVERYTHING, Mapped, Table
from gpupipe.io.relational.planned import PlanSource, count_largest_partition
from gpupipe.io.relational.side_columns import Attach
from gpupipe.io.relational.sort import shuffle
from gpupipe.io.run import in_halves, run_partitions
from gpupipe.io.stores.remote_file import StorageOptions, is_remote, locate

_log = logging.getLogger("gpupipe")


def write_dataset(
    dataset: Table,
    path: str | os.PathLike[str],
    options: ParquetOptions,
    *,
    files: int | None,
    overwrite: bool,
    storage_options: StorageOptions | None,
) -> Manifest:
    """Write a dataset to a file or a folder, here or in a store; see `Dataset.write_parquet`.

    Raises:
        BadConfig: a single file cannot have these options.
        BadFile: it cannot be written there.
    """
    where = os.fspath(path)
    if "://" in where and not is_remote(where):
        where = locate(where)[1]
    is_file = where.endswith(".parquet")
    if is_file and (files is not None or options.partition_by):
        raise BadConfig(
            "write_parquet",
            f"{where.rpartition('/')[2]} is one file",
            expected="a folder for files= and partition_by=",
            remedy=f"write_parquet({where.removesuffix('.parquet')!r}, ...)",
        )
    backend = get_executor().resolve(dataset.backend)
    dataset = shuffle(dataset, options.seed) if options.shuffle == "full" else dataset
    if is_file:
        with create_file(where, storage_options, overwrite=overwrite) as draft:
            part = Part(Path(where).name, {}, _write_whole(dataset, draft, options, backend), [])
            part.files[part.name] = group_rows(draft)
        notes = tuple(dataset.source.notes)
        write_quarantine(notes, f"{where.removesuffix('.parquet')}.quarantine.jsonl", storage_options)
        return Manifest(None, {}, (part,), notes)
    with open_destination(where, storage_options) as folder:
        return _write_folder(dataset, folder, options, backend, files=files, overwrite=overwrite)


def _write_folder(
    dataset: Table, folder: Destination, options: ParquetOptions, backend: str, *, files: int | None, overwrite: bool
) -> Manifest:
    """Write the missing parts, and publish them together.

    The same call again after a crash goes on with the parts that have no record; on a folder that it has finished it
    writes parts for those input files only that are new. With `overwrite`, the files that the old manifest lists go.
    """
    job, inputs = dataset.job_id(options, files), dataset.source.inputs()
    found = folder.find(overwrite=overwrite)
    before = found if not overwrite else None
    old = before.parts if before else ()
    if before is not None:
        _check_same_job(before, folder, job, inputs)
        new = (inputs or {}).keys() - before.inputs.keys()
        if not new:
            folder.clean(before)
            return replace(before, notes=tuple(dataset.source.notes), num_done=len(old))
        dataset = dataset.of_files(new)
    writer = _PartWriter(
        folder, options, backend, count_largest_partition(dataset), 1 + max(map(_number, old), default=-1)
    )
    dataset = _cut_parts(dataset, options, files, backend)
    is_resumable = job is not None and inputs is not None
    # With the manifest that is there, so that what it lists is never written over.
    is_plan = isinstance(dataset.source, PlanSource)
    cuts = writer.piece_rows if is_plan else [partition.spans for partition in dataset.partitions]
    facts = [job, inputs, found and found.to_json(), repr(cuts)]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    try:
        done = folder.begin((digest if is_resumable else uuid.uuid4().hex)[:16])
        written = [*done, *_write_parts(dataset, writer, {part.name for part in done})]
        manifest = Manifest(
            job,
            {**(before.inputs if before else {}), **(inputs or {})},
            (*old, *sorted(written, key=_number)),
            notes=tuple(dataset.source.notes),
            partition_by={
                item.name: item.written_as or item.dtype for item in dataset.schema.select(options.partition_by)
            },
            num_done=len(old) + len(done),
        )
        folder.publish(manifest, found.files if found and overwrite else ())
    except BaseException:
        if not is_resumable:
            folder.clean(found)
        raise
    return manifest


@dataclass(frozen=True)
class _PartWriter:
    """Partition task that writes parts to a folder; a retry on another worker may write the same part again."""

    folder: Destination
    options: ParquetOptions
    backend: str
    piece_rows: int  # that are held at a time
    first: int  # part's number

    def name(self, index: int) -> str:
        """Return the name of the part of the partition with this index."""
        return f"part-{self.first + index:05d}"

    def __call__(self, part: Table) -> Part:
        """Write the dataset's one partition, in pieces if it is large."""
        (partition,) = part.partitions
        record = Part(self.name(partition.index), {}, partition.num_rows, part.source.files_of(partition))
        cuts = _cut_before(partition, range(self.piece_rows, partition.num_rows, self.piece_rows))
        pieces = [part.of_partitions([piece]) for piece in cuts]
        frames = [partial(_read_frame, self.backend, self.options, piece) for piece in pieces]
        read = partial(_read_table, self.backend, self.options)
        tables = (table for piece in pieces for table in in_halves(read, piece, record.halved.append))
        return self.write(record, tables, part, frames)

    def write(
        self, record: Part, tables: Iterable[pa.Table], dataset: Table, frames: Sequence[Callable[[], Frame]] = ()
    ) -> Part:
        """Write the rows of one part, as tables or frames; return its record with its files."""
        options, schema = self.options, dataset.schema
        with self.folder.scratch() as scratch:
            file = scratch / f"{record.name}{self.folder.suffix}.parquet"
            if options.partition_by:
                write_hive(tables, schema, scratch, file.stem, options)
            elif not _write_on_device(frames, dataset, self.backend, options, file, record.halved.append):
                write_file(tables, schema, file, options)
            written = sorted(scratch.rglob("*.parquet"))
            record = replace(record, files={str(path.relative_to(scratch)): group_rows(path) for path in written})
            self.folder.keep(scratch, record)
        return record


def _write_parts(dataset: Table, writer: _PartWriter, done: Container[str]) -> Iterator[Part]:
    """Write the parts that are not written yet."""
    plan = _get_plan(dataset, writer.options, writer.backend)
    if plan is not None:
        with closing(plan.batches()) as batches:
            for index, tables in enumerate(cut_rows(batches, plan.partition_rows)):
                if (name := writer.name(index)) not in done:
                    yield writer.write(Part(name, {}, sum(table.num_rows for table in tables), []), tables, dataset)
    elif missing := [partition for partition in dataset.partitions if writer.name(partition.index) not in done]:
        for part in run_partitions(writer, dataset.of_partitions(missing), writer.backend, "write", whole=True):
            for line in part.halved:
                _log.warning(line)
            yield part


def _number(part: Part) -> int:
    return int(part.name.rpartition("-")[2])


def _write_whole(dataset: Table, path: Path, options: ParquetOptions, backend: str) -> int:
    """Write all rows to one local file; with the device's own writer if partitions are read in this process.

    Returns:
        How many rows were read.

    Memory: a partition per worker, and as many tables as make a row group; of a plan what it takes instead.
    """
    plan = _get_plan(dataset, options, backend)
    if plan is not None:
        with closing(plan.batches()) as batches:
            write_file(batches, dataset.schema, path, options)
        return sum(group_rows(path))
    with closing(run_partitions(partial(_read_frame, backend, options), dataset, backend, "write", whole=True)) as made:
        frames = [partial(next, made)] * dataset.num_partitions if get_executor().in_process else []
        is_written = _write_on_device(frames, dataset, backend, options, path, _log.warning)
    if not is_written:
        with closing(run_partitions(partial(_read_table, backend, options), dataset, backend, "write")) as tables:
            write_file(tables, dataset.schema, path, options)
    return sum(partition.num_rows for partition in dataset.partitions)


def _write_on_device(
    frames: Sequence[Callable[[], Frame]],
    dataset: Table,
    backend: str,
    options: ParquetOptions,
    path: Path,
    tell: Callable[[str], None],
) -> bool:
    """Write frames to one file if the backend has a writer for it; if memory is short, log it and write nothing.

    Returns:
        Whether it is written.
    """
    if not frames:
        return False
    device, types = select(backend), get_file_types(dataset.schema)
    checked = [lambda frame=frame: with_dates(frame(), types, device) for frame in frames]
    try:
        return device.write_parquet(checked, types, path, options.lay_out(dataset.schema))
    except Exception as cause:
        if not is_out_of_memory(cause):
            raise
        tell(f"{path.name}: the device has not enough memory to write it ({cause}), written on the host")
    path.unlink(missing_ok=True)
    return False


def _read_table(backend_name: str, options: ParquetOptions, part: Table) -> pa.Table:
    """Read the rows of one partition on the host, in the order they are written in.

    On the CPU columns that no function has made never become a frame.
    """
    backend, (partition,) = select(backend_name), part.partitions
    functions = [stage.function for stage in part.query.stages if isinstance(stage, Mapped)]
    attached = [function for function in functions if isinstance(function, Attach)]
    reads = part.query.reads(part.columns)
    if backend.name != "cpu" or len(attached) < len(part.query.stages) or not reads:
        return backend.to_arrow(_read_frame(backend_name, options, part))
    table = part.source.table(partition, [item for item in part.source.schema if item.name in reads])
    ids = partition.row_ids(backend.xp) if options.shuffle == "partition" or attached else None
    if part.query.draws:
        kept = part.query.drawn(partition, backend)
        table, ids = table.filter(pa.array(kept)), None if ids is None else ids[kept]
    for attach in attached:
        table = attach.to_table(table, ids)
    return table if options.shuffle != "partition" else table.take(pa.array(_draw_order(options.seed, ids, backend)))


def _read_frame(backend_name: str, options: ParquetOptions, part: Table) -> Frame:
    """Read the rows of one partition in the order they are written in."""
    backend, (partition,) = select(backend_name), part.partitions
    frame = part.read(partition, None, backend)
    if options.shuffle == "partition":
        ids = partition.row_ids(backend.xp)[backend.positions(frame)]
        frame = backend.take(frame, _draw_order(options.seed, ids, backend))
    return frame


def _draw_order(seed: int, row_ids: Array, backend: Backend) -> Array:
    """Draw the random order of the rows of a partition."""
    return backend.xp.argsort(splitmix64(shuffle_seed(seed), row_ids), kind="stable")


def _get_plan(dataset: Table, options: ParquetOptions, backend: str) -> PlanSource | None:
    """Return the plan whose rows are streamed to the file; None if rows are read by partition."""
    source = dataset.source
    is_whole = dataset.query == EVERYTHING and options.shuffle != "partition"
    return source if backend == "cpu" and is_whole and isinstance(source, PlanSource) else None


def _cut_parts(dataset: Table, options: ParquetOptions, files: int | None, backend: str) -> Table:
    """Cut the rows into nearly equal partitions, one for each part of a folder, or keep those of the dataset."""
    if files is None and (options.layout != "gpu" or backend != "cpu"):  # a GPU's partitions are as large
        return dataset
    whole = Partition(0, tuple(span for partition in dataset.partitions for span in partition.spans), "")
    num_rows = whole.num_rows
    files = files or max(1, -(-num_rows // options.lay_out(dataset.schema).rows_per_group))
    stops = [num_rows * number // files for number in range(files + 1)]
    return dataset.of_partitions(
        [
            replace(part, index=index, description=f"rows {stops[index]:,} to {stops[index + 1]:,}")
            for index, part in enumerate(_cut_before(whole, stops[1:-1]))
        ]
    )


def _cut_before(rest: Partition, stops: Iterable[int]) -> Iterator[Partition]:
    """Cut a partition before each of these rows."""
    start = 0
    for stop in stops:
        piece, rest = rest.split_at(stop - start)
        yield piece
        start = stop
    yield rest


def _check_same_job(found: Manifest, folder: Destination, job: str | None, inputs: Mapping[str, str] | None) -> None:
    """Raise `BadFile` unless this job wrote the folder and can add to it."""
    where, again = folder.where, "overwrite=True, which writes everything again"
    if job is None or inputs is None:
        raise BadFile(where, "something is there already", expected="a new path", remedy="overwrite=True")
    if found.job != job:
        raise BadFile(
            where,
            "it was written by another pipeline, or with other options",
            expected="the same job, which would add what is new",
            remedy="another path, or overwrite=True",
        )
    changed = sorted(name for name, stamp in found.inputs.items() if inputs.get(name, stamp) != stamp)
    if changed:
        problem, expected = (
            f"{len(changed)} of its input files have changed since",
            "new files in addition to the old ones",
        )
        raise BadFile(where, problem, got=changed[0], expected=expected, remedy=again)
    if missing := sorted({*found.files} - folder.names()):
        problem, expected = "it is missing, though the manifest beside it lists it", "all that was written"
        raise BadFile(f"{where}/{missing[0]}", problem, expected=expected, remedy=again)
