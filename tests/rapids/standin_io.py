"""pylibcudf's readers and writers on pyarrow, each call bound to pylibcudf's own signature."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
                return Options(getattr(real.io.orc, self.kind.__name__.removesuffix("Builder")), **self.given)
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


io = SimpleNamespace(
    SourceInfo=_source_info,
    orc=SimpleNamespace(OrcReaderOptions=SimpleNamespace(builder=_orc_options), read_orc=_read_orc),
)
