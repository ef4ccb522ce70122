"""pylibcudf's readers and writers on pyarrow, each call bound to pylibcudf's own signature."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pylibcudf as real
from pyarrow import orc

from .signatures import check


class Options:
    """Options or their builder: remembers what each setter is given, by its name without `set_`."""

    def __init__(self, kind: Any, **given: Any) -> None:
        self.kind, self.given = kind, given

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.kind, name)

        def put(*args: Any) -> Options:
            check(f"pylibcudf.{self.kind.__name__}.{name}", method, args, {}, method=True)
            if name == "build":
                module = real.io.orc if "Orc" in self.kind.__name__ else real.io.parquet
                return Options(getattr(module, self.kind.__name__.removesuffix("Builder")), **self.given)
            self.given[name.removeprefix("set_")] = args[0]
            return self

        return put


def _source_info(*args: Any) -> list[str]:
    check("pylibcudf.io.SourceInfo", real.io.SourceInfo, args, {})
    (sources,) = args
    if not all(isinstance(source, str | Path) for source in sources):
        raise TypeError("a source is a path")
    return [str(source) for source in sources]


def _orc_options(*args: Any) -> Options:
    check("pylibcudf.io.orc.OrcReaderOptions.builder", real.io.orc.OrcReaderOptions.builder, args, {})
    return Options(real.io.orc.OrcReaderOptionsBuilder, source=args[0])


def _read_orc(*args: Any) -> pa.Table:
    check("pylibcudf.io.orc.read_orc", real.io.orc.read_orc, args, {})
    given = args[0].given
    if given.get("timestamp_type") != "TIMESTAMP_MICROSECONDS":
        raise OverflowError("nanoseconds end in 2262")
    if len(given["stripes"]) != len(given["source"]):
        raise ValueError("a list of stripes for each source")
    batches = []
    for path, stripes in zip(given["source"], given["stripes"], strict=True):
        try:
            file = orc.ORCFile(path)
            if not set(given["columns"]) <= set(file.schema.names):
                raise RuntimeError("CUDF failure at: Unknown column name")
            batches += [file.read_stripe(stripe, columns=given["columns"]) for stripe in stripes]
        except (OSError, pa.ArrowException) as cause:
            raise RuntimeError(f"CUDF failure at: {cause}") from cause
    table = pa.Table.from_batches(batches)
    return pa.table({name: _as_cudf_has_it(table.column(name)) for name in table.column_names})


def _as_cudf_has_it(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in the unit that was asked for, rounded down; dates as seconds."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.timestamp("s"))
    if pa.types.is_timestamp(column.type):
        return pc.floor_temporal(column, unit="microsecond").cast(pa.timestamp("us"))
    return column


class ColumnInMetadata:
    """What a column, or a child of a list, is described as."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.children = {}

    def _tell(self, name: str, value: Any) -> ColumnInMetadata:
        check(
            f"pylibcudf.ColumnInMetadata.{name}",
            getattr(real.io.types.ColumnInMetadata, name),
            [value],
            {},
            method=True,
        )
        self.told[name] = value
        return self

    def set_name(self, name: str) -> ColumnInMetadata:
        return self._tell("set_name", name)

    def set_nullability(self, nullable: bool) -> ColumnInMetadata:
        return self._tell("set_nullability", nullable)

    def set_encoding(self, encoding: Any) -> ColumnInMetadata:
        return self._tell("set_encoding", encoding)

    def child(self, i: int) -> ColumnInMetadata:
        if i != 1:
            raise NotImplementedError("the child of a list that has its values is the second")
        return self.children.setdefault(i, ColumnInMetadata())


def table(*args: Any) -> SimpleNamespace:
    check("pylibcudf.Table", real.Table, args, {})
    return SimpleNamespace(columns=list(args[0]), num_rows=args[1] if len(args) > 1 else None)


def _table_metadata(*args: Any) -> SimpleNamespace:
    check("pylibcudf.io.types.TableInputMetadata", real.io.types.TableInputMetadata, args, {})
    return SimpleNamespace(column_metadata=[ColumnInMetadata() for _ in args[0].columns])


def _writer_options(*args: Any) -> Options:
    builder = real.io.parquet.ParquetWriterOptions.builder
    check("pylibcudf.io.parquet.ParquetWriterOptions.builder", builder, args, {})
    return Options(real.io.parquet.ParquetWriterOptionsBuilder, sink=args[0], table=args[1])


def _chunked_options(*args: Any) -> Options:
    builder = real.io.parquet.ChunkedParquetWriterOptions.builder
    check("pylibcudf.io.parquet.ChunkedParquetWriterOptions.builder", builder, args, {})
    return Options(real.io.parquet.ChunkedParquetWriterOptionsBuilder, sink=args[0])


def _write_parquet(*args: Any) -> None:
    check("pylibcudf.io.parquet.write_parquet", real.io.parquet.write_parquet, args, {})
    writer = ChunkedParquetWriter(args[0])
    writer.write(args[0].given["table"])
    writer.close([])


class ChunkedParquetWriter:
    """Writes by pyarrow what the options say and no more: no schema of Arrow's but the one that is given."""

    def __init__(self, options: Options) -> None:
        self.given, self.writer = options.given, None

    @classmethod
    def from_options(cls, *args: Any) -> ChunkedParquetWriter:
        found = real.io.parquet.ChunkedParquetWriter.from_options
        check("pylibcudf.io.parquet.ChunkedParquetWriter.from_options", found, args, {})
        return cls(*args)

    def write(self, *args: Any) -> None:
        writer = real.io.parquet.ChunkedParquetWriter
        check("pylibcudf.io.parquet.ChunkedParquetWriter.write", writer.write, args, {}, method=True)
        told = self.given["metadata"].column_metadata
        arrays = [self._timed(column.series.to_arrow()) for column in args[0].columns]
        fields = [
            pa.field(one.told["set_name"], array.type, nullable=one.told.get("set_nullability", False))
            for one, array in zip(told, arrays, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        if self.writer is None:
            leaves = [(one.children.get(1, one), one.told["set_name"], 1 in one.children) for one in told]
            coded = [
                f"{name}.list.element" if nested else name
                for one, name, nested in leaves
                if not one.told.get("set_encoding")
            ]
            self.writer = pq.ParquetWriter(
                self.given["sink"][0],
                table.schema,
                compression=self.given["compression"],
                use_dictionary=coded,
                max_rows_per_page=self.given["max_page_size_rows"],
                store_schema=False,
            )
            self.writer.add_key_value_metadata(*self.given["key_value_metadata"])
        self.writer.write_table(table, row_group_size=self.given["row_group_size_rows"])

    def _timed(self, array: pa.Array) -> pa.Array:
        """Times of a file are UTC by default, all of them."""
        if not pa.types.is_timestamp(array.type):
            return array
        return array.cast(pa.timestamp("us", "UTC" if self.given.get("utc_timestamps", True) else None))

    def close(self, *args: Any) -> None:
        writer = real.io.parquet.ChunkedParquetWriter
        check("pylibcudf.io.parquet.ChunkedParquetWriter.close", writer.close, args, {}, method=True)
        self.writer.close()


def _sink_info(*args: Any) -> Any:
    check("pylibcudf.io.SinkInfo", real.io.SinkInfo, args, {})
    return args[0]


io = SimpleNamespace(
    SourceInfo=_source_info,
    SinkInfo=_sink_info,
    orc=SimpleNamespace(OrcReaderOptions=SimpleNamespace(builder=_orc_options), read_orc=_read_orc),
    parquet=SimpleNamespace(
        ParquetWriterOptions=SimpleNamespace(builder=_writer_options),
        ChunkedParquetWriterOptions=SimpleNamespace(builder=_chunked_options),
        ChunkedParquetWriter=ChunkedParquetWriter,
        write_parquet=_write_parquet,
    ),
    types=SimpleNamespace(
        TableInputMetadata=_table_metadata,
        ColumnEncoding=SimpleNamespace(PLAIN=real.io.types.ColumnEncoding.PLAIN.name),
        CompressionType=SimpleNamespace(
            **{name: name for name in ("SNAPPY", "ZSTD", "LZ4", "NONE") if hasattr(real.io.types.CompressionType, name)}
        ),
        StatisticsFreq=SimpleNamespace(STATISTICS_ROWGROUP=real.io.types.StatisticsFreq.STATISTICS_ROWGROUP.name),
    ),
)
