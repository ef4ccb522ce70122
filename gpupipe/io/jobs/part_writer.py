"""Dataset writer: to a folder part by part, resumable and visible only when complete; or to one file."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, pairwise
from operator import and_
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from gpupipe.backend import Backend, Frame, is_out_of_memory, select
from gpupipe.backend.arrow import get_file_type, is_list, parquet_path
from gpupipe.backend.columns import ParquetLayout
from gpupipe.backend.kernels import shuffle_seed, splitmix64
from gpupipe.cluster.executor import default_threads, get_executor
from gpupipe.config import settings
from gpupipe.errors import BadConfig, BadData, BadFile
from gpupipe.io.jobs.destination import (
    Destination,
    create_file,
    open_destination,
    refuse_output_among_input,
    write_quarantine,
)
from gpupipe.io.planning.partitions import Partition, row_bytes
from gpupipe.io.planning.query import EVERYTHING, Mapped
from gpupipe.io.planning.run_partitions import Tell, in_halves, run_partitions
from gpupipe.io.planning.table import Table, identify_job
from gpupipe.io.relational.gathering import PlanSource, count_largest_partition, read_group_rows
from gpupipe.io.relational.side_columns import Attach
from gpupipe.io.relational.sort import group_rows, shuffle
from gpupipe.io.stores import (
    MANIFEST,
    Manifest,
    Part,
    StorageOptions,
    check_folder_text,
    folder_name,
    is_remote,
    locate,
)
from gpupipe.schema import FLOATS, ROW, Schema, get_element_dtype
from gpupipe.support.origins import IN_MEMORY, rename_tables, write_origins
from gpupipe.support.validation import check_choice, check_integer

_GROUP_ROWS, _GPU_GROUP_ROWS, _GPU_CHUNK_BYTES = 1_000_000, 10_000_000, 128_000_000
_TEXT_BYTES = 16  # a guess
_DAY = 86_400_000_000  # microseconds
_DICTIONARY_BYTES = 8 << 20
_CODECS = ("snappy", "zstd", "lz4", "gzip", "brotli", "none")
_log = logging.getLogger("gpupipe")
MOST_FOLDERS = 10_000  # that a part's rows may be in, each an open file


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Options of Parquet files, as of `Dataset.write_parquet`."""

    rows_per_group: int | None = None
    compression: str = "snappy"
    partition_by: tuple[str, ...] = ()
    shuffle: Literal[False, "partition", "full"] = False
    seed: int = 0
    layout: Literal["default", "gpu"] = "default"

    def __post_init__(self) -> None:
        check_choice("write_parquet", _CODECS, compression=self.compression)
        check_choice("write_parquet", (False, "partition", "full"), shuffle=self.shuffle)
        check_choice("write_parquet", ("default", "gpu"), layout=self.layout)
        check_integer("write_parquet", "[1, inf)", None, rows_per_group=self.rows_per_group)

    def lay_out(self, schema: Schema) -> ParquetLayout:
        """Choose the layout of a file of these columns."""
        for_gpu = self.layout == "gpu"
        rows = self.rows_per_group or (_count_gpu_group_rows(schema) if for_gpu else _GROUP_ROWS)
        # A dictionary of floats costs a hash per value and is thrown away when it has grown too large.
        coded = (item.name for item in schema if (get_element_dtype(item.dtype) or item.dtype) not in FLOATS)
        return ParquetLayout(rows, self.compression, frozenset(coded), has_many_pages=for_gpu)


def write_file(tables: Iterable[pa.Table], schema: Schema, path: Path, options: ParquetOptions) -> None:
    """Write all tables to one file. Memory: as many tables as make a row group."""
    types, layout = _get_file_types(schema), options.lay_out(schema)
    cast = (_cast_to_file_types(table, types) for table in tables)
    groups = map(pa.concat_tables, _cut_rows(cast, layout.rows_per_group))
    first = next(groups)
    sampled_rows, sizes = 100_000, {}
    if options.layout == "gpu":
        sampled_rows = 1_000_000
        # One that grows too large in the middle of a chunk leaves pages of two encodings.
        sizes = {"dictionary_pagesize_limit": _DICTIONARY_BYTES, "max_rows_per_page": layout.page_rows(first.num_rows)}
    fields = [item for item in schema if item.name in layout.dictionary]
    repeats = (_has_repeats(first.column(item.name), sampled_rows, item.cardinality) for item in fields)
    coded = [parquet_path(item) for item, is_coded in zip(fields, repeats, strict=True) if is_coded]
    with pq.ParquetWriter(path, types, compression=layout.compression, use_dictionary=coded, **sizes) as writer:
        for table in chain([first], groups):
            writer.write_table(table, row_group_size=layout.rows_per_group)


def _cut_rows(tables: Iterable[pa.Table], num_rows: int) -> Iterator[list[pa.Table]]:
    """Cut the rows of one or more tables into tables of this many rows; the last may be shorter."""
    waiting: list[pa.Table] = []
    missing, is_first, table = num_rows, True, None
    for table in tables:
        remainder = table
        while remainder.num_rows >= missing:
            yield [*waiting, remainder.slice(0, missing)]
            remainder, waiting, missing, is_first = remainder.slice(missing), [], num_rows, False
        if remainder.num_rows:
            waiting.append(remainder)
            missing -= remainder.num_rows
    if waiting or is_first:
        yield waiting or [table]


def _write_hive(tables: Iterable[pa.Table], schema: Schema, folder: Path, name: str, options: ParquetOptions) -> None:
    """Write to a folder per combination of values of `options.partition_by`, with a file `name` in each.

    Memory: row groups of all the folders that are open.
    """
    types, layout = _get_file_types(schema), options.lay_out(schema)
    # pyarrow escapes the keys' values, but not their names.
    names = [folder_name(name) if name in options.partition_by else name for name in types.names]
    file_schema = pa.schema([item.with_name(name) for item, name in zip(types, names, strict=True)])
    keys = pa.schema([file_schema.field(folder_name(key)) for key in options.partition_by])
    form = pads.ParquetFileFormat()
    coded = [parquet_path(item) for item in schema if item.name in layout.dictionary - {*options.partition_by}]
    texts = [key for key in options.partition_by if schema[key].dtype == "string"]

    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            whole = _cast_to_file_types(table, types)
            for key in texts:
                check_folder_text(key, whole.column(key))
            yield from whole.rename_columns(names).to_batches()

    naming = {"partitioning": pads.partitioning(keys, flavor="hive"), "basename_template": f"{name}-{{i}}.parquet"}
    how = form.make_write_options(compression=layout.compression, use_dictionary=coded)
    sizes = {"max_rows_per_group": layout.rows_per_group, "max_partitions": MOST_FOLDERS, "use_threads": False}
    try:
        pads.write_dataset(batches(), folder, schema=file_schema, format=form, file_options=how, **naming, **sizes)
    except pa.ArrowInvalid as cause:
        if "exceeds the maximum" not in str(cause):
            raise
        where, problem = f"write_parquet(partition_by={list(options.partition_by)})", "too many combinations of values"
        expected, remedy = f"at most {MOST_FOLDERS:,} folders of a part's rows", "a coarser column, by T.Derive"
        raise BadData(where, problem, expected=expected, remedy=remedy) from cause


def _write_hive_on_device(
    frames: Sequence[Callable[[], Frame]],
    schema: Schema,
    backend: str,
    options: ParquetOptions,
    folder: Path,
    name: str,
    tell: Tell,
) -> bool:
    """Write frames as `_write_hive` does if the backend has a writer; only the distinct keys go to the host."""
    if backend == "cpu" or not frames or any(schema[key].dtype in FLOATS for key in options.partition_by):
        return False
    try:
        write = partial(_write_groups, schema=schema, backend=backend, options=options, folder=folder, tell=tell)
        is_written = all(write(frame(), name=f"{name}-{number}.parquet") for number, frame in enumerate(frames))
    except Exception as cause:
        if not is_out_of_memory(cause):
            raise
        tell(f"{name}: the device has not enough memory to write it ({cause}), written on the host")
        is_written = False
    if not is_written:
        shutil.rmtree(folder)
        folder.mkdir()
    return is_written


def _write_groups(
    frame: Frame, *, schema: Schema, backend: str, options: ParquetOptions, folder: Path, name: str, tell: Tell
) -> bool:
    """Write the rows of each key to a file in its folder; return whether the backend has a writer for them."""
    keys, device = list(options.partition_by), select(backend)
    fields, columns = list(schema.select(keys)), schema.select(item for item in schema.names if item not in keys)
    types = _get_file_types(Schema(fields))
    names = pa.schema([types.field(key).with_name(folder_name(key)) for key in keys])
    folders = pads.partitioning(names, flavor="hive")
    distinct, order = group_rows(frame, fields, device)
    groups = device.to_arrow(distinct)
    sizes, groups = groups.column(ROW).to_pylist(), _cast_to_file_types(groups, types)
    for key in (key for key in keys if schema[key].dtype == "string"):
        check_folder_text(key, groups.column(key))
    stop = 0
    for group, num_rows in zip(groups.to_pylist(), sizes, strict=True):
        start, stop = stop, stop + num_rows
        rows_of_group = partial(device.select, device.take(frame, order[start:stop]), columns.names)
        path = folder / folders.format(_match_keys(group))[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _write_on_device([rows_of_group], columns, backend, options, path, tell):
            return False
    return True


def _match_keys(values: Mapping[str, Any]) -> pads.Expression:
    """Match rows by their keys, as pyarrow names a folder of them."""
    parts = ((pads.field(folder_name(key)), value) for key, value in values.items())
    return reduce(and_, (field.is_null() if value is None else field == pa.scalar(value) for field, value in parts))


def _count_gpu_group_rows(schema: Schema) -> int:
    """Count the rows of a row group that fills a GPU: 10 million, or 128 MB of the widest column, or fewer by memory.

    arXiv 2602.17335 measured which sizes decode fastest.
    """
    widest = max((_TEXT_BYTES if item.dtype == "string" else row_bytes([item]) for item in schema), default=1)
    rows = min(_GPU_GROUP_ROWS, _GPU_CHUNK_BYTES // widest)
    limit = settings().memory_limit
    return rows if limit is None else max(1, min(rows, limit // (4 * default_threads() * max(1, row_bytes(schema)))))


def _has_repeats(column: pa.ChunkedArray, most: int, cardinality: int | None) -> bool:
    """Return whether a dictionary halves a column at least, by so many first values; True where these are missing.

    Values are counted only where the `cardinality` does not tell, and all of them only where a quarter does not.
    """
    values = column.slice(0, most)
    values = pc.list_flatten(values).slice(0, most) if is_list(values.type) else values
    values = values.drop_null()
    if not len(values) or pa.types.is_nested(values.type):
        return True  # of a dictionary that is too large pyarrow makes no more use

    def halves(distinct: int) -> bool:
        codes = distinct.bit_length() * len(values) / (8 * values.nbytes)
        return bool(codes + distinct / len(values) <= 0.5)

    if cardinality is not None and halves(cardinality):
        return True
    parts = (values.slice(0, len(values) // 4), values)
    return all(halves(pc.count_distinct(part).as_py()) for part in parts)


def _get_file_types(schema: Schema) -> pa.Schema:
    """Return the types of the columns in files, with their units and origins as metadata."""
    facts = {name: {"origins": text} for name, text in _write_origins(schema).items()}
    for item in schema:
        facts[item.name] |= {"units": item.units} if item.units else {}
    return pa.schema(pa.field(item.name, get_file_type(item), metadata=facts[item.name]) for item in schema)


def _write_origins(schema: Schema) -> dict[str, str]:
    """Return each column's origins as text; tables in memory, whose names are random, by their numbers in it."""
    in_memory = (each.table for item in schema for each in sorted(item.origins) if each.table.startswith(IN_MEMORY))
    names = {table: f"#{number}" for number, table in enumerate(dict.fromkeys(in_memory))}
    return {
        item.name: write_origins(rename_tables(item.origins, lambda table: names.get(table, table))) for item in schema
    }


def _cast_to_file_types(table: pa.Table, types: pa.Schema) -> pa.Table:
    """Cast columns to the types of a file; raise `BadData` for a time of day in a column of dates."""
    for item in types:
        column = table.column(item.name)
        if pa.types.is_date32(item.type) and pa.types.is_timestamp(column.type):
            days = column.cast(item.type, safe=False)
            lost = pc.index(pc.not_equal(days.cast(column.type), column), value=True).as_py()
            if lost >= 0:
                raise _no_date(item.name, column[lost].as_py())
    return table.select(types.names).cast(types)


def _check_dates(frame: Frame, types: pa.Schema, backend: Backend) -> Frame:
    """Check that date columns hold whole days, and return the frame; `_cast_to_file_types` checks those of tables."""
    for name in (item.name for item in types if pa.types.is_date32(item.type)):
        column = backend.column(frame, name)
        missing, lost = column.missing(backend.xp), column.data % _DAY != 0
        lost = lost if missing is None else lost & ~missing
        if bool(lost.any()):
            raise _no_date(name, np.datetime64(int(column.data[int(lost.argmax())]), "us").item())
    return frame


def _no_date(name: str, value: object) -> BadData:
    where, problem = f"write_parquet, column {name!r}", "a time of day in a column that is written as dates"
    expected = "dates, as in the table that the column comes from"
    remedy = f"T.Cast({{{name!r}: 'timestamp'}}), which makes it a column of times"
    return BadData(where, problem, got=value, expected=expected, remedy=remedy)


def write_dataset(
    dataset: Table,
    path: str | os.PathLike[str],
    options: ParquetOptions,
    *,
    files: int | None,
    overwrite: bool,
    storage_options: StorageOptions | None,
) -> Manifest:
    """Write a dataset to a file or a folder, here or in a store; see `Dataset.write_parquet`."""
    where = os.fspath(path)
    if "://" in where and not is_remote(where):
        where = locate(where)[1]
    is_file = where.endswith(".parquet")
    if is_file and (files is not None or options.partition_by):
        problem, expected = f"{where.rpartition('/')[2]} is one file", "a folder for files= and partition_by="
        remedy = f"write_parquet({where.removesuffix('.parquet')!r}, ...)"
        raise BadConfig("write_parquet", problem, expected=expected, remedy=remedy)
    first_file = "/".join([*(f"{folder_name(key)}=value" for key in options.partition_by), "part-00000.parquet"])
    refuse_output_among_input(dataset.listings, where, [""] if is_file else [first_file, MANIFEST], storage_options)
    backend = get_executor().resolve(dataset.backend)
    dataset = replace(dataset, schema=dataset.locate_origins())
    dataset = shuffle(dataset, options.seed) if options.shuffle == "full" else dataset
    if is_file:
        with create_file(where, storage_options, overwrite=overwrite) as draft:
            part = Part(Path(where).name, {}, _write_whole(dataset, draft, options, backend), [])
            part.files[part.name] = read_group_rows(draft)
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
    job, inputs, keys = identify_job(dataset, options, files), dataset.source.inputs(), options.partition_by
    manifest_before = folder.find(overwrite=overwrite)
    before = manifest_before if not overwrite else None
    old = before.parts if before else ()
    if before is not None:
        _check_same_job(before, folder, job, inputs)
        new = (inputs or {}).keys() - before.inputs.keys()
        if not new:
            manifest = replace(before, notes=tuple(dataset.source.notes), num_done=len(old))
            if manifest.notes == before.notes:
                folder.clean(before)
            else:  # of files that are left out, which are none of the job's
                folder.begin(uuid.uuid4().hex[:16])
                folder.publish(manifest, ())
            return manifest
        dataset = replace(dataset, source=dataset.source.of_files(new))
    first = 1 + max(map(_number, old), default=-1)
    writer = _PartWriter(folder, options, backend, count_largest_partition(dataset), first)
    dataset = _cut_parts(dataset, options, files, backend)
    is_resumable = job is not None and inputs is not None
    # With the manifest that is there, so that what it lists is never written over.
    is_plan = isinstance(dataset.source, PlanSource)
    cuts = writer.piece_rows if is_plan else [partition.spans for partition in dataset.partitions]
    facts = [job, inputs, manifest_before and manifest_before.to_json(), repr(cuts)]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    try:
        done = folder.begin((digest if is_resumable else uuid.uuid4().hex)[:16])
        parts = [*done, *_write_parts(dataset, writer, {part.name for part in done})]
        manifest = Manifest(
            job,
            {**(before.inputs if before else {}), **(inputs or {})},
            (*old, *sorted(parts, key=_number)),
            notes=tuple(dataset.source.notes),
            partition_by={key: dataset.schema[key].written_as or dataset.schema[key].dtype for key in keys},
            num_done=len(old) + len(done),
            origins=_write_origins(dataset.schema),
        )
        folder.publish(manifest, manifest_before.files if manifest_before and overwrite else ())
    except BaseException:
        if not is_resumable:
            folder.clean(manifest_before)
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
            tell = record.halved.append
            if options.partition_by:
                if not _write_hive_on_device(frames, schema, self.backend, options, scratch, file.stem, tell):
                    _write_hive(tables, schema, scratch, file.stem, options)
            elif not _write_on_device(frames, schema, self.backend, options, file, tell):
                write_file(tables, schema, file, options)
            paths = sorted(scratch.rglob("*.parquet"))
            record = replace(record, files={str(path.relative_to(scratch)): read_group_rows(path) for path in paths})
            self.folder.keep(scratch, record)
        return record


def _write_parts(dataset: Table, writer: _PartWriter, done: Container[str]) -> Iterator[Part]:
    """Write the parts that are not written yet."""
    plan = _get_plan(dataset, writer.options, writer.backend)
    if plan is not None:
        with closing(plan.batches()) as batches:
            for index, tables in enumerate(_cut_rows(batches, plan.partition_rows)):
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
    """Write all rows to one local file, by the device's own writer if it can; return how many rows were read."""
    plan = _get_plan(dataset, options, backend)
    if plan is not None:
        with closing(plan.batches()) as batches:
            write_file(batches, dataset.schema, path, options)
        return sum(read_group_rows(path))
    read = partial(_read_frame, backend, options)
    with closing(run_partitions(read, dataset, backend, "write", whole=True)) as results:
        frames = [partial(next, results)] * dataset.num_partitions if get_executor().in_process else []
        is_written = _write_on_device(frames, dataset.schema, backend, options, path, _log.warning)
    if not is_written:
        with closing(run_partitions(partial(_read_table, backend, options), dataset, backend, "write")) as tables:
            write_file(tables, dataset.schema, path, options)
    return sum(partition.num_rows for partition in dataset.partitions)


def _write_on_device(
    frames: Sequence[Callable[[], Frame]], schema: Schema, backend: str, options: ParquetOptions, path: Path, tell: Tell
) -> bool:
    """Write frames to one file if the backend has a writer and enough memory for it; return whether it is written."""
    if not frames:
        return False
    device, types = select(backend), _get_file_types(schema)
    checked = [lambda frame=frame: _check_dates(frame(), types, device) for frame in frames]
    try:
        return device.write_parquet(checked, types, path, options.lay_out(schema))
    except Exception as cause:
        if not is_out_of_memory(cause):
            raise
        tell(f"{path.name}: the device has not enough memory to write it ({cause}), written on the host")
    path.unlink(missing_ok=True)
    return False


def _read_table(backend_name: str, options: ParquetOptions, part: Table) -> pa.Table:
    """Read one partition on the host in the order it is written in; no frame of columns that no function made."""
    backend, (partition,) = select(backend_name), part.partitions
    functions = [stage.function for stage in part.query.stages if isinstance(stage, Mapped)]
    attached = [function for function in functions if isinstance(function, Attach)]
    reads = part.query.reads(part.columns)
    is_computed = len(attached) < len(part.query.stages) or part.source.queries
    if backend.name != "cpu" or is_computed or not reads:
        return backend.to_arrow(_read_frame(backend_name, options, part))
    table = part.source.table(partition, [item for item in part.source.schema if item.name in reads])
    ids = partition.row_ids(backend.xp) if options.shuffle == "partition" or attached else None
    if part.query.draws:
        is_kept = part.query.drawn(partition, backend)
        table, ids = table.filter(pa.array(is_kept)), None if ids is None else ids[is_kept]
    for attach in attached:
        table = attach.to_table(table, ids)
    if options.shuffle == "partition":
        table = table.take(pa.array(backend.xp.argsort(splitmix64(shuffle_seed(options.seed), ids), kind="stable")))
    return table


def _read_frame(backend_name: str, options: ParquetOptions, part: Table) -> Frame:
    """Read the rows of one partition in the order they are written in."""
    backend, (partition,) = select(backend_name), part.partitions
    frame = part.read(partition, None, backend)
    if options.shuffle == "partition":
        ids = partition.frame_ids(frame, backend)
        frame = backend.take(frame, backend.xp.argsort(splitmix64(shuffle_seed(options.seed), ids), kind="stable"))
    return frame


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
    parts = enumerate(_cut_before(whole, stops[1:-1]))
    names = [f"rows {start:,} to {stop:,}" for start, stop in pairwise(stops)]
    return dataset.of_partitions([replace(part, index=index, description=names[index]) for index, part in parts])


def _cut_before(remainder: Partition, stops: Iterable[int]) -> Iterator[Partition]:
    """Cut a partition before each of these rows."""
    start = 0
    for stop in stops:
        piece, remainder = remainder.split_at(stop - start)
        yield piece
        start = stop
    yield remainder


def _check_same_job(manifest: Manifest, folder: Destination, job: str | None, inputs: Mapping[str, str] | None) -> None:
    """Raise `BadFile` unless this job wrote the folder and can add to it."""
    where, again = folder.where, "overwrite=True, which writes everything again"
    if job is None or inputs is None:
        raise BadFile(where, "something is there already", expected="a new path", remedy="overwrite=True")
    if past_inputs := sorted(manifest.inputs.keys() - inputs.keys()):
        files = past_inputs[0] + (f" and {len(past_inputs) - 1:,} more" if past_inputs[1:] else "")
        again = f"overwrite=True, which leaves out the rows of files that are not read any more: {files}"
    if manifest.job != job:
        problem = "it was written by another pipeline, with other options or types, or with windows over other files"
        expected = "the same job, which would add what is new"
        raise BadFile(where, problem, expected=expected, remedy=f"another path, or {again}")
    if results := sorted(name for name in inputs if name.startswith(f"{where}/")):
        problem, expected = "its own files are among the input", "a folder beside those that are read"
        raise BadFile(where, problem, got=results[0], expected=expected, remedy="another path")
    changed = sorted(name for name, stamp in manifest.inputs.items() if inputs.get(name, stamp) != stamp)
    if changed:
        problem = f"{len(changed)} of its input files have changed since"
        expected = "new files in addition to the old ones"
        raise BadFile(where, problem, got=changed[0], expected=expected, remedy=again)
    if missing := sorted({*manifest.files} - folder.names()):
        problem, expected = "it is missing, though the manifest beside it lists it", "all that was written"
        raise BadFile(f"{where}/{missing[0]}", problem, expected=expected, remedy=again)
