"""Output ranges of a fitted pipeline, as far as they follow from the fit's column statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpupipe.backend import Column, Matrix, select
from gpupipe.pipeline.column_stats import ColumnStats
from gpupipe.pipeline.feature_group import FeatureGroup
from gpupipe.pipeline.features import Features
from gpupipe.schema import FLOATS, Kind, Schema

__all__ = ["output_ranges", "source_ranges"]

Range = tuple[float, float]


def output_ranges(features: Features, schema: Schema, seen: Mapping[str, ColumnStats]) -> dict[str, Range]:
    """Compute the minimum and maximum of outputs, by name.

    Ids go from 0 to the last. Numbers are known where every step keeps their order: the ends of the input's range, and
    a missing value where there was one, go through the steps.

    Args:
        features: fitted.
        schema: the columns after the transforms.
        seen: what the fit has seen of them.
    """
    found: dict[str, Range] = {}
    for group in features.groups:
        for item in group.fields(schema):
            if item.kind == Kind.CATEGORICAL and item.cardinality is not None:
                found[group.rename(item.name)] = (0, item.cardinality - 1)
        if group.steps and all(step.monotone for step in group.steps):
            ends = {name: seen[name] for name in group.columns if name in seen and seen[name].range is not None}
            if len(ends) == len(group.columns):
                found |= {group.rename(name): ends for name, ends in _compute_ranges(group, schema, ends).items()}
    return found


def source_ranges(source: Schema, schema: Schema, seen: Mapping[str, ColumnStats]) -> Schema:
    """Return the source's schema with the ranges of columns that the transforms leave unchanged."""
    same = (item.name for item in source if item.name in schema and schema[item.name] == item)
    ranges = {name: seen[name].range for name in same if name in seen}
    return Schema(source, {name: ends for name, ends in ranges.items() if ends is not None})


def _compute_ranges(group: FeatureGroup, schema: Schema, seen: Mapping[str, ColumnStats]) -> dict[str, Range]:
    """Compute the ranges of a group's outputs, on the host."""
    num_rows = 2 + any(item.missing for item in seen.values())
    columns: Mapping[str, Column] = {name: _ends(schema[name].dtype, item, num_rows) for name, item in seen.items()}
    if len({column.dtype for column in columns.values()} | {"float64"}) == 1:
        columns = Matrix(list(columns), np.stack([column.data for column in columns.values()]))
    ranges = {}
    for name, column in group.apply_steps(columns, select("cpu")).items():
        missing = column.missing(np)
        data = column.data.astype("float64")
        data = data[np.isfinite(data) if missing is None else np.isfinite(data) & ~missing]
        if len(data) and column.dtype != "bool":
            ranges[name] = (float(data.min()), float(data.max()))
    return ranges


def _ends(dtype: str, seen: ColumnStats, num_rows: int) -> Column:
    """Build a column of the minimum, the maximum, and a third row: missing if the column has gaps, else the minimum."""
    values, gaps = np.array([seen.low, seen.high, seen.low][:num_rows]), bool(seen.missing) and num_rows == 3
    if dtype in FLOATS:
        values[2:] = np.nan if gaps else seen.low
        return Column(dtype, values.astype(dtype))
    if dtype != "bool":
        info = np.iinfo(dtype)  # the float nearest to 2**63 - 1 is one more than it
        values = np.array([min(max(int(value), info.min), info.max) for value in values], dtype=dtype)
    return Column(dtype, values.astype(dtype), np.array([True, True, False]) if gaps else None)
