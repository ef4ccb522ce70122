"""cudf-polars' frames and its run of a plan in memory: translated by its translator, then run by Polars.

What goes in and out is checked as cudf-polars does it, and each call is bound to its own signature.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
from cudf_polars.containers import DataFrame as RealFrame
from cudf_polars.dsl.ir import IR
from cudf_polars.dsl.ir import IRExecutionContext as RealContext
from cudf_polars.dsl.translate import Translator as RealTranslator

from .signatures import check

STREAM = object()
# cudf-polars filters what a source has yielded, and pushes no number of rows down.
_AS_CUDF_POLARS = pl.QueryOptFlags(predicate_pushdown=False, slice_pushdown=False)


class IRExecutionContext:
    def __init__(self, **options: Any) -> None:
        check("cudf_polars.dsl.ir.IRExecutionContext", RealContext, (), options)

    def get_cuda_stream(self) -> Any:
        return STREAM


class Translator(RealTranslator):
    """The translator, which here also keeps the plan: the visitor does not give it back."""

    def __init__(self, visitor: Any, engine: pl.GPUEngine) -> None:
        super().__init__(visitor, engine)
        self.plan: pl.LazyFrame = sys._getframe(1).f_locals["plan"]

    def translate_ir(self, **child: Any) -> Any:
        node = super().translate_ir(**child)
        return node if child else Node(self.plan)


class Node:
    """The root of a translated plan."""

    def __init__(self, plan: pl.LazyFrame) -> None:
        self.plan = plan

    def evaluate(self, **options: Any) -> SimpleNamespace:
        check("cudf_polars.dsl.ir.IR.evaluate", IR.evaluate, (), options, method=True)
        if options["cache"] != {} or not isinstance(options["context"], IRExecutionContext):
            raise AssertionError("a run has a cache and a context of its own")
        found = self.plan.collect(optimizations=_AS_CUDF_POLARS).to_arrow(compat_level=pl.CompatLevel.oldest())
        return SimpleNamespace(table=SimpleNamespace(columns=found.columns), column_names=found.column_names)


class DataFrame:
    @staticmethod
    def from_table(*args: Any) -> pl.DataFrame:
        """A frame of Polars, which runs the plan here."""
        check("cudf_polars.containers.DataFrame.from_table", RealFrame.from_table, args, {})
        table, names, dtypes, stream = args
        if stream is not STREAM:
            raise AssertionError("the columns are valid on the stream that cuDF used")
        columns = {name: column.series.to_arrow() for name, column in zip(names, table.columns, strict=True)}
        frame = pl.DataFrame(height=table.num_rows) if not columns else pl.DataFrame(pa.table(columns))
        declared = pl.Schema(zip(names, (dtype.polars_type for dtype in dtypes), strict=True))
        if frame.schema != declared:
            raise pl.exceptions.SchemaError(f"{declared} doesn't match {frame.schema}")
        return frame


class Flag:
    """A `ContextVar` of a boolean that all threads see: Polars reads sources in threads of its own."""

    def __init__(self) -> None:
        self.value = False

    def get(self) -> bool:
        return self.value

    def set(self, value: bool) -> bool:
        before, self.value = self.value, value
        return before

    def reset(self, token: bool) -> None:
        self.value = token
