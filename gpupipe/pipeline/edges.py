"""Bin edges of numeric features, from a sample of the rows of a fit.

A network that embeds numbers piecewise (`models.PiecewiseLinear`) needs the edges of each feature's bins. The first
pass of a fit draws a sample of rows anyway, which later rows are compared with; once the steps are fitted, the sample
goes through them, and quantiles of what comes out are the edges. So no row is read twice, and a streamed table has
edges too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gpupipe.backend import Backend, Frame, select
from gpupipe.backend.kernels import sort_unique
from gpupipe.monitoring.profile import Sample
from gpupipe.pipeline.feature_group import GroupFields
from gpupipe.pipeline.features import Features
from gpupipe.preprocessing.steps.gathered import EstimatorStep
from gpupipe.schema import FLOATS, LISTS, Kind, Schema

NUM_BINS = 48
_FEWEST_BINS, _ROWS_PER_BIN = 4, 160  # for classes: a label says less than a number, and few rows are learned by heart
_NUMBERS = (Kind.CONTINUOUS, Kind.BOOLEAN)
MAX_FEATURES = 256
"""Of more numeric features no edges are computed, since no network embeds that many piecewise by default."""


def compute_bin_edges(values: Any, num_bins: int = NUM_BINS) -> tuple[float, ...]:
    """Compute the ascending edges of at most `num_bins` bins of finite values: quantiles that occur among them.

    A value that would fill a bin alone is an edge, and the other edges are quantiles of the rows without such values:
    90 zeros and the numbers 1 to 10 have in five bins the edges 0, 1, 3, 5, 7, 10, where quantiles of all rows are 0
    and 10. Memory: about 40 bytes a value.
    """
    distinct, counts = np.unique(values, return_counts=True)
    is_heavy = counts > len(values) / num_bins  # of fewer than `num_bins` values, so that two quantiles are left
    light = np.repeat(distinct[~is_heavy], counts[~is_heavy])
    shares = np.linspace(0, 1, num_bins + 1 - np.count_nonzero(is_heavy)) if len(light) else np.zeros(0)
    quantiles = light[np.floor(shares * (len(light) - 1)).astype(np.int64)]
    with np.errstate(over="ignore"):
        edges = sort_unique(np.concatenate([quantiles, distinct[is_heavy]]).astype(np.float32), np)
    return tuple(edges[np.isfinite(edges)].tolist())


def extend_edges(edges: tuple[float, ...], ends: tuple[float, float] | None) -> tuple[float, ...]:
    """Add bins from the outer edges, which are of a sample, to the least and the greatest value of all rows, if known.

    Example:
        >>> extend_edges((0.0, 1.0, 4.0), (0.0, 9.0))
        (0.0, 1.0, 4.0, 9.0)
    """
    if not edges or ends is None:
        return edges
    low, high = np.asarray(ends).astype(np.float32).tolist()
    return (*((low,) if low < edges[0] else ()), *edges, *((high,) if high > edges[-1] else ()))


@dataclass(frozen=True)
class SampledRows:
    """Sampled rows of the columns that numeric features are computed from, on the host: a mergeable summary.

    `tables` hold the columns of each part but the `floats`, whose values are in the `Sample` of the same rows.
    """

    floats: tuple[str, ...]
    tables: tuple[pa.Table, ...]

    @classmethod
    def of(cls, frame: Frame, schema: Schema, names: Sequence[str], sample: Sample, backend: Backend) -> Self:
        """Copy the columns `names` of a partition's sampled rows, as far as the sample does not hold them."""
        floats = [name for name in names if name in sample.names and schema[name].dtype in FLOATS]
        remainder = [name for name in names if name not in floats]
        return cls(tuple(floats), (backend.to_arrow(backend.select(frame, remainder)),) if remainder else ())

    def __add__(self, other: Self) -> Self:
        return replace(self, tables=self.tables + other.tables)

    def to_frame(self, schema: Schema, sample: Sample) -> Frame:
        """Return the rows as one pandas frame in coded form; infinite values, which steps may refuse, are missing."""
        tables = [table for table in self.tables if table.num_rows] or list(self.tables[:1])
        table = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
        floats = {name: pa.array(sample.read(name).astype(schema[name].dtype)) for name in self.floats}
        table = pa.table({name: table[name] for name in table.column_names} | floats)
        frame = select("cpu").from_arrow(table, [schema[name] for name in table.column_names])
        for name in (name for name in table.column_names if schema[name].dtype in FLOATS):
            values = frame[name].to_numpy()
            if np.isinf(values).any():
                frame[name] = np.where(np.isinf(values), np.nan, values)
        return frame


def list_sampled_columns(fields: GroupFields, schema: Schema) -> list[str]:
    """List the columns that numeric features are computed from, lists apart; none where they are too many.

    `schema` is that of the columns a pass has before the features, which need not be fitted.
    """
    names = {
        name
        for group, outputs in fields
        if all(name in schema and schema[name].dtype not in LISTS for name in group.looks_at)
        and any(item.kind in _NUMBERS for item in outputs)
        for name in group.looks_at
    }
    return [item.name for item in schema if item.name in names] if len(names) <= MAX_FEATURES else []


def compute_edges(
    features: Features, schema: Schema, rows: SampledRows, sample: Sample, backend: str
) -> dict[str, tuple[float, ...]]:
    """Compute the edges of numeric features, by name; `schema` is that before the features, which are fitted.

    Features of columns that are not among `rows` have none, nor what a cuML estimator gives, which the host cannot run.
    Where the target has classes, a feature has a bin for every 160 values, from 4 to 48: 1,500 rows make 9 bins.
    """
    frame, edges = rows.to_frame(schema, sample), dict[str, tuple[float, ...]]()
    has_classes = features.target is not None and Schema(features.target.fields(schema)).task != "regression"
    for group in features.groups:
        needs_gpu = backend == "gpu" and any(isinstance(step, EstimatorStep) for step in group.steps)
        if needs_gpu or not set(group.looks_at) <= set(frame.columns):
            continue
        columns = group.compute_columns(frame, select("cpu"))
        for item in group.fields(schema):
            if item.kind in _NUMBERS:
                column = columns[item.name]
                missing, values = column.missing(np), column.data.astype("float64")
                is_value = np.isfinite(values) if missing is None else np.isfinite(values) & ~missing
                values = values[is_value]
                by_rows = max(len(values) // _ROWS_PER_BIN, _FEWEST_BINS)
                num_bins = min(by_rows, NUM_BINS) if has_classes else NUM_BINS
                edges[group.rename(item.name)] = compute_bin_edges(values, num_bins)
    return edges if len(edges) <= MAX_FEATURES else {}
