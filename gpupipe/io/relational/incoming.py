"""Polars frames and plans as datasets."""

from __future__ import annotations

from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig
from gpupipe.io.dataset import Dataset, from_frame
from gpupipe.io.relational.engine import collect_batches
from gpupipe.io.relational.gathering import get_table_limit
from gpupipe.support.calls import answer_calls

_BATCH_ROWS = 200_000


@answer_calls
def from_polars(data: pl.LazyFrame | pl.DataFrame, *, backend: str = "auto") -> Dataset:
    """Make a lazy table of a Polars frame, or of the result of a lazy frame.

    The plan of a lazy frame is run now: by Polars' streaming engine, or by cudf-polars' one on a GPU (not yet run on
    one). A small result stays in memory, any other goes to a temporary Parquet file, which is removed with the dataset.

    Args:
        data: a `polars.DataFrame` or `polars.LazyFrame`; anything else is a `BadConfig`.
        backend: `"auto"`, `"cpu"` or `"gpu"`: what runs the plan, and whose frames the dataset returns.

    Raises:
        PlanFailed: the plan cannot be run, or has an operation that a GPU's engine does not know.
        SchemaMismatch: columns share a name.

    Memory: what the plan takes, and the result up to a sixteenth of the memory that is free, or of `memory_limit`.

    Example:
        >>> import polars as pl, gpupipe as gp
        >>> late = pl.scan_parquet("data/flights.parquet").filter(pl.col("dep_delay") > 600)
        >>> gp.from_polars(late.select("dep_delay")).head(2)["dep_delay"].tolist()
        [853.0, 1301.0]
    """
    value: Any = data
    if not isinstance(value, pl.LazyFrame | pl.DataFrame):
        expected, remedy = "a polars.DataFrame or a polars.LazyFrame", "gp.from_frame(...) for any other table"
        raise BadConfig("from_polars", "no frame of Polars", got=type(value).__name__, expected=expected, remedy=remedy)
    if isinstance(value, pl.DataFrame):
        return from_frame(value, backend=backend)
    where = get_executor().resolve(backend)
    batches = (frame.to_arrow() for frame in collect_batches(value, _BATCH_ROWS, where, "from_polars"))
    tables: list[pa.Table] = []
    num_bytes = 0
    for batch in batches:
        tables.append(batch)
        num_bytes += batch.nbytes
        if num_bytes > get_table_limit():
            parts = (part for table in chain(tables, batches) for part in table.to_batches())
            return from_frame(pa.RecordBatchReader.from_batches(batch.schema, parts), backend=backend)
    whole = pa.concat_tables(tables) if tables else pl.DataFrame(schema=value.collect_schema()).to_arrow()
    return from_frame(whole, backend=backend)
