"""Lazy Polars scan of a dataset: its columns, its row filters where both agree, row ids and random bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import and_
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from gpupipe.backend import Backend, Column, Frame, select
from gpupipe.backend.arrow import get_file_type, polars_from_arrow
from gpupipe.backend.columns import host_table
from gpupipe.backend.kernels import mix_seed
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadFile, GpupipeError, PlanFailed, SchemaMismatch
from gpupipe.expressions import parse
from gpupipe.expressions.translate import POLARS_TYPES, NotTranslated, translate_comparison, translate_condition
from gpupipe.expressions.tree import Constant, Name, Span
from gpupipe.io.formats.file_source import FileSource
from gpupipe.io.formats.parquet import ParquetFile
from gpupipe.io.formats.spill import FrameSource
from gpupipe.io.planning.partitions import row_bytes
from gpupipe.io.planning.query import EVERYTHING, Query
from gpupipe.io.planning.row_filters import Between, RandomSplit, StratifiedSplit, Where
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.gathering import Gathered, PlanSource, get_memory_limit
from gpupipe.io.stores import is_remote, one_line
from gpupipe.schema import FLOATS, ID, ROW, Field, Schema, is_passenger

STEP = 0x9E3779B97F4A7C15


def random_bits(seed: int, counter: pl.Expr) -> pl.Expr:
    """Draw the bits of `backend.kernels.splitmix64` as an expression."""
    bits = (counter.cast(pl.UInt64) + number(1)) * number(STEP) + number(int(mix_seed(seed)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits // number(1 << shift))) * number(factor)
    return bits ^ (bits // number(1 << 31))


def number(value: int) -> pl.Expr:
    """Build an unsigned 64-bit constant."""
    return pl.lit(value, pl.UInt64)


_NOWHERE = Span(0, 0)


def translate_query(query: Query, schema: Schema) -> list[pl.Expr] | None:
    """Translate all filters and draws of a query, over frames in which NaN is missing; None if one has no translation.

    Those that are compare columns with constants of their own type or with columns of the same one, look for missing
    values, or draw rows by row id. A comparison with a missing value is missing on both sides, and `and`, `or` and
    `not` follow Kleene.
    """
    try:
        return [_translate_choice(stage, schema) for stage in (*query.draws, *query.stages)]
    except (NotTranslated, OverflowError):  # times that Python has not
        return None


def _translate_choice(stage: object, schema: Schema) -> pl.Expr:
    if isinstance(stage, Where):
        return translate_condition(parse(stage.text, "filter").tree, schema)
    if isinstance(stage, Between):
        name = Name(stage.column, _NOWHERE)
        ends = ((sign, Constant(end, "", _NOWHERE)) for _, sign, end in stage.conditions)
        return reduce(and_, (translate_comparison(sign, name, end, schema) for sign, end in ends))
    if isinstance(stage, RandomSplit) and not isinstance(stage, StratifiedSplit) and stage.by is None:
        bits, low = random_bits(stage.seed, pl.col(ROW)), number(stage.low)
        inside = bits >= low if stage.high is None else (bits >= low) & (bits < number(stage.high))
        return ~inside if stage.outside else inside
    raise NotTranslated


LazyFrame: TypeAlias = pl.LazyFrame
Rows: TypeAlias = Callable[[Table, Backend], Frame]
"""Function that computes rows from a dataset of one partition, with their row ids in the column `ROW`."""

_MOST_FILES = 500  # a plan has a node for each file; beyond so many it takes longer to make than to read them
_STRING_BYTES = 24
_PIECE_ROWS = 250_000
_COUNTED_SHARE = 16  # rows beyond this part of the memory may be cut into buckets
_DEVICE_SHARE = 6  # what a plan may use of a device's memory, as a multiple of its rows; see `engine`


def estimate_bytes(fields: Sequence[Field], num_rows: int) -> int:
    """Estimate the bytes of rows in memory, with their row ids."""
    strings = sum(item.dtype == "string" for item in fields)
    return num_rows * (row_bytes(fields) + strings * (_STRING_BYTES - 4) + 8)


@dataclass(frozen=True)
class Scan:
    """Lazy frame of a dataset's rows, input of a plan."""

    frame: pl.LazyFrame
    fields: Sequence[Field]
    num_rows: int
    check: Callable[[], None]
    look: Callable[[], None]
    owner: object
    pieces: Sequence[pl.LazyFrame] = ()
    repeating: frozenset[str] = frozenset()  # text columns that files store as codes of few values
    dictionaries: Mapping[str, pl.Series] = field(default_factory=dict)  # of text columns that are codes

    @property
    def num_bytes(self) -> int:
        """The approximate size of the rows in memory, in bytes."""
        return estimate_bytes(self.fields, self.num_rows)

    def with_categories(self, keys: Sequence[str]) -> Scan:
        """Make categories of those text keys whose values repeat: Polars groups them in less time and memory."""
        return replace(self, frame=self.frame.with_columns(pl.col(self.repeating & {*keys}).cast(pl.Categorical)))

    def discard(self) -> None:
        """Remove the temporary file now: a traceback may keep it alive."""
        if isinstance(self.owner, Gathered):
            self.owner.discard()


def lazy(table: Table) -> pl.LazyFrame:
    """Run `Dataset.to_polars`."""
    for item in table.schema:
        if "decimal256" in item.dtype:
            where, problem = "to_polars", f"column {item.name!r} has more digits than Polars holds"
            remedy = "select(...) the other columns, or Cast to 'float64' before it"
            raise SchemaMismatch(where, problem, got=item.dtype, expected="decimals of up to 38 digits", remedy=remedy)
    frame = scan(table, table.columns, "to_polars", keep=True).frame
    return frame.select(_cast_to_written(item) for item in table.schema)


_DAY = 86_400_000_000


def _cast_to_written(item: Field) -> pl.Expr:
    """Cast a column to its date type or time zone."""
    column, kind = pl.col(item.name), get_file_type(item)
    if item.dtype != "timestamp" or not item.written_as:
        return column
    if not pa.types.is_timestamp(kind):
        at = pl.when(column.cast(pl.Int64) % _DAY != 0).then(column)
        # No text of that kind is a date: the cast is an error of whoever runs the plan.
        text = pl.lit("a time of day in a column of dates: ") + at.cast(pl.String)
        refused = text.str.to_date("%Y-%m-%d", cache=False)
        return pl.when(at.is_null()).then(column.cast(pl.Date)).otherwise(refused).alias(item.name)
    return column.dt.replace_time_zone("UTC").dt.convert_time_zone(kind.tz)


def scan(table: Table, columns: Sequence[str], title: str, *, keep: bool = False, coded: Collection[str] = ()) -> Scan:
    """Make a lazy frame of these columns and the row ids.

    Local Parquet files are scanned by Polars itself, with filters that it evaluates alike, and so are frames in memory,
    whose text columns among `coded` stay codes. Whatever else a dataset is made of is read by partitions first, by the
    executor in force.
    """
    fields = [table.schema[name] for name in columns]
    rows = _scan_plan(table, fields) or _scan_frame(table, fields, coded) or _scan_files(table, fields)
    if rows is None:
        rows = scan_computed(table, partial(_read_rows, columns), fields, title, 1 << 62 if keep else None)
    return rows


def scan_gathered(result: Gathered) -> Scan:
    """Scan the gathered result of a plan that has `ROW` among its columns."""
    fields = [item for item in result.fields if item.name != ROW]
    return Scan(result.lazy(), fields, result.num_rows, result.check, result.check, result)


@contextmanager
def explain_failure(scans: Sequence[Scan], title: str) -> Iterator[None]:
    """Raise an error that names the cause: the file that cannot be read, found by another read, or the plan."""
    try:
        yield
        for table_scan in scans:
            table_scan.check()
    except GpupipeError:  # some of which are an OSError too
        raise
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as cause:  # a panic is no Exception
        for table_scan in scans:
            table_scan.check()
            table_scan.look()
        problem = f"the engine could not run it ({type(cause).__name__}: {one_line(cause)})"
        expected = "memory and disk for the rows, and operations that the engine knows"
        remedy = "gp.configure(memory_limit=...) to cut the rows into more buckets"
        raise PlanFailed(title, problem, expected=expected, remedy=remedy) from cause


def _scan_plan(table: Table, fields: Sequence[Field]) -> Scan | None:
    """Scan the rows of an earlier plan; None if the source is none or its files are remote."""
    source = table.source
    if not isinstance(source, PlanSource) or table.query != EVERYTHING:
        return None
    result, row = source.gathered, pl.col(ROW).cast(pl.UInt64)
    if any(is_remote(path) for path in result.paths):
        return None
    frame = result.lazy().with_row_index(ROW).select(*(item.name for item in fields), row)
    return Scan(frame.with_columns(_replace_nan(fields)), fields, result.num_rows, result.check, result.check, source)


def _scan_frame(table: Table, fields: Sequence[Field], coded: Collection[str]) -> Scan | None:
    """Scan a frame in memory, its integers shared; None on a GPU, or where rows or types are not all Polars' own."""
    source, cpu = table.source, select("cpu")
    plain = bool(fields) and all(item.dtype in POLARS_TYPES for item in fields)
    is_whole = table.query == EVERYTHING and get_executor().resolve(table.backend) == "cpu"
    rows = source.whole(fields, cpu) if is_whole and plain and isinstance(source, FrameSource) else None
    if rows is None:
        return None
    first_row, frame = rows
    columns = {item.name: cpu.column(frame, item.name) for item in fields}
    texts = {name: column.dictionary for name, column in columns.items() if column.dictionary is not None}
    dictionaries = {name: polars_from_arrow(pa.table({name: text}))[name] for name, text in texts.items()}
    series = {name: _to_series(column) for name, column in columns.items()}
    series |= {name: text.gather(series[name]) for name, text in dictionaries.items() if name not in coded}
    scanned = pl.DataFrame(series).lazy().with_row_index(ROW, first_row).with_columns(pl.col(ROW).cast(pl.UInt64))
    coded_texts = {name: text for name, text in dictionaries.items() if name in coded}
    return Scan(scanned, fields, len(frame), lambda: None, lambda: None, source, dictionaries=coded_texts)


def _to_series(column: Column) -> pl.Series:
    """Convert a column to Polars, of text the codes, null where missing. Shares integers and codes without a gap."""
    valid = column.valid if column.dictionary is None else column.data >= 0
    array = pa.array(column.data, mask=None if valid is None or valid.all() else ~valid)
    series = polars_from_arrow(pa.table({"x": array}))["x"]
    if column.dtype in FLOATS:
        return series.fill_nan(None)  # a plan would do it again for each of its branches, a piece at a time
    return series.cast(pl.Datetime("us")) if column.dtype == "timestamp" else series


def scan_computed(table: Table, rows: Rows, fields: Sequence[Field], title: str, limit: int | None = None) -> Scan:
    """Scan rows computed from a dataset, partition by partition.

    On a GPU they stay in its memory where a plan over them fits there, too. On the host by default up to a quarter of
    the memory is kept.
    """
    backend = get_executor().resolve(table.backend)
    result = Gathered([*fields, ID], limit or get_memory_limit() // 4)
    with explain_failure([], title):
        if limit is None and backend == "gpu" and _fits_on_device(table, fields):
            frames = run_partitions(partial(_read_coded_rows, rows, result.types.names, backend), table, backend, title)
            result.take_frame(select(backend).concat(list(frames)))
        else:
            result.gather(run_partitions(partial(_read_host_rows, rows, result.fields, backend), table, backend, title))
    frame = result.lazy().with_columns(_replace_nan(fields))
    if table.repeats_rows:  # rows computed from one row share its row id
        frame = frame.drop(ROW).with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.UInt64))
    return Scan(frame, fields, result.num_rows, result.check, result.check, result)


def _read_rows(names: Sequence[str], part: Table, backend: Backend) -> Frame:
    (partition,) = part.partitions
    frame = part.read(partition, names, backend)
    return backend.assign(frame, {ROW: Column("uint64", partition.frame_ids(frame, backend))})


def _fits_on_device(table: Table, fields: Sequence[Field]) -> bool:
    """Return whether the rows of a dataset, and plans over them, fit in the memory of this process' GPU."""
    if not get_executor().in_process or any(is_passenger(item.dtype) for item in fields):
        return False
    backend = select("gpu")
    backend.make_room(0)
    num_rows = sum(partition.num_rows for partition in table.partitions)
    return estimate_bytes(fields, num_rows) * _DEVICE_SHARE <= backend.free_bytes()


def _read_coded_rows(rows: Rows, names: Sequence[str], backend_name: str, part: Table) -> Frame:
    backend = select(backend_name)
    return backend.select(rows(part, backend), names)


def _read_host_rows(rows: Rows, fields: Sequence[Field], backend_name: str, part: Table) -> pa.Table:
    backend = select(backend_name)
    return host_table(rows(part, backend), fields, backend)


def _scan_files(table: Table, fields: Sequence[Field]) -> Scan | None:
    """Scan the files with Polars; None if it would not read the same rows and values."""
    source, output_names = table.source, [item.name for item in fields]
    conditions = translate_query(table.query, source.schema)
    if type(source) is not FileSource or conditions is None:
        return None
    fields = [source.schema[name] for name in dict.fromkeys([*output_names, *sorted(table.query.reads([]))])]
    files = _select_files(source, fields)
    if files is None:
        return None

    def check() -> None:
        for file in files.values():
            if change := file.change():
                where, problem = file.origin.path, f"it is not what it was when the dataset was made: {change}"
                raise BadFile(where, problem, expected="files that do not change", remedy="make the dataset again")

    check()
    names = [item.name for item in fields]
    casts = [pl.col(item.name).cast(pl.Datetime("us")) for item in fields if item.dtype == "timestamp"]

    def rows(number: int, first: int = 0, num_rows: int | None = None) -> pl.LazyFrame:
        frame = pl.scan_parquet(files[number].stored.path, glob=False, row_index_name=ROW).slice(first, num_rows)
        row_id = pl.col(ROW).cast(pl.UInt64) + pl.lit(number << 40, pl.UInt64)
        frame = frame.select(*names, row_id).with_columns(casts).with_columns(_replace_nan(fields))
        return frame.filter(conditions).select(*output_names, ROW) if conditions else frame

    pieces = [rows(number, *cut) for number, file in files.items() for cut in _iter_pieces(file)]
    for partition in source.partitions:
        source.reads.add(partition.spans, names, source.stored_bytes(partition, names))

    def look() -> None:
        cpu = select("cpu")
        for partition in source.partitions:
            source.read(partition, fields, cpu)

    num_rows = sum(partition.num_rows for partition in source.partitions)
    output_fields = [table.schema[name] for name in output_names]
    texts = [item.name for item in output_fields if item.dtype == "string"]
    repeating = frozenset(name for name in texts if all(file.repeats(name) for file in files.values()))
    result = Scan(pl.concat(map(rows, files)), output_fields, num_rows, check, look, source, pieces, repeating)
    if conditions and result.num_bytes > get_memory_limit() // _COUNTED_SHARE:
        with explain_failure([result], "filter"):  # the rows that filters leave decide whether they fit in memory
            left = result.frame.select(pl.len()).collect(engine="streaming").item()
        return replace(result, num_rows=left)
    return result


def _select_files(source: FileSource, fields: Sequence[Field]) -> dict[int, ParquetFile] | None:
    """Return the files by number if Polars reads the same rows and values in all of them, else None."""
    files = {number: file for number, file in source.files.items() if isinstance(file, ParquetFile)}
    rows = sum(partition.num_rows for partition in source.partitions)
    if len(files) < len(source.files) or rows != sum(sum(file.group_rows) for file in files.values()):
        return None
    if len(files) > _MOST_FILES or any(is_remote(file.stored.path) for file in files.values()):
        return None
    alike = (file.holds(item.name) and _is_same(file, item) for file in files.values() for item in fields)
    return files if all(alike) else None


def _iter_pieces(file: ParquetFile) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of row groups that are read together: one large or several small ones."""
    first, last = 0, 0
    for num_rows in file.group_rows:
        last += num_rows
        if last - first >= _PIECE_ROWS:
            yield first, last - first
            first = last
    if last > first:
        yield first, last - first


def _replace_nan(fields: Sequence[Field]) -> pl.Expr:
    return pl.col(item.name for item in fields if item.dtype in FLOATS).fill_nan(None)


def _is_same(file: ParquetFile, item: Field) -> bool:
    """Return whether Polars reads a column with the type of the field."""
    kind = file.schema.field(item.name).type
    if item.dtype == "timestamp":
        return kind in (pa.date32(), pa.timestamp("ms"), pa.timestamp("us"))
    if item.dtype == "string":
        return kind in (pa.string(), pa.large_string())
    return item.dtype in POLARS_TYPES and kind == pa.type_for_alias(item.dtype)
