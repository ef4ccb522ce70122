"""Statistics of the columns that features read, the ranges of the outputs, and profiles; from a pass's summaries."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

import numpy as np

from gpupipe.backend import Column, Matrix, select
from gpupipe.backend.columns import floats
from gpupipe.io import Dataset
from gpupipe.monitoring.profile import Profiles, Sample, compute_unknown_share
from gpupipe.pipeline.feature_group import FeatureGroup, GroupFields
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.partition_pass import PartitionPass, Summaries, merge_summaries, select_kind
from gpupipe.pipeline.plan import ColumnUses
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.schema import FLOATS, Kind, Schema


class ColumnStats(NamedTuple):
    """Column statistics: rows without a value, the least number and the greatest."""

    missing: int = 0
    low: float = np.inf
    high: float = -np.inf

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest number, where both are numbers a file can hold."""
        return (self.low, self.high) if isfinite(self.low) and isfinite(self.high) else None


def collect_stats(summaries: Summaries, uses: ColumnUses) -> dict[str, ColumnStats]:
    """Return the statistics of the columns that features read, from a pass's summaries."""
    names = {*uses.numbers, *uses.unscaled}
    stats: dict[str, ColumnStats] = {}
    for block in select_kind(summaries, "extremes").values():
        numbers = zip(block.names, block.missing.tolist(), block.low.tolist(), block.high.tolist(), strict=True)
        stats |= {name: ColumnStats(*facts) for name, *facts in numbers if name in names}
    return stats | {name: ColumnStats(missing) for name, missing in select_kind(summaries, "missing").items()}


def build_profiles(summaries: Summaries, stats: Mapping[str, ColumnStats], uses: ColumnUses) -> Profiles:
    """Return the profile of each column that features read, from a pass's summaries and the columns' statistics."""
    sample: Sample = summaries["sample"]
    missing = {name: stat.missing / max(summaries["described"], 1) for name, stat in stats.items()}
    counts = select_kind(summaries, "drawn values")
    unknown = {
        name: compute_unknown_share(counts[name], step.vocabularies_[name]) for name, step in uses.categories.items()
    }
    return Profiles(sample, missing, unknown)


def profile_rows(
    plan: TransformPlan, backend: str, features: Features, schema: Schema, dataset: Dataset
) -> tuple[Sample, Profiles]:
    """Draw a sample of a dataset's rows in one pass, and profile the columns of `schema` that features read."""
    total = sum(partition.num_rows for partition in dataset.partitions)
    summaries = merge_summaries(PartitionPass(plan, backend, features, total=total), dataset, "drift")
    uses = ColumnUses.of(features, schema)
    return summaries["sample"], build_profiles(summaries, collect_stats(summaries, uses), uses)


def compute_ranges(
    fields: GroupFields, schema: Schema, stats: Mapping[str, ColumnStats]
) -> dict[str, tuple[float, float]]:
    """Compute the minimum and maximum of ids, and of numbers that go through steps which keep their order."""
    ranges: dict[str, tuple[float, float]] = {}
    for group, outputs in fields:
        for item in outputs:
            if item.kind == Kind.CATEGORICAL and item.cardinality is not None:
                ranges[group.rename(item.name)] = (0, item.cardinality - 1)
        if group.steps and all(step.monotone for step in group.steps):
            ends = {name: stats[name] for name in group.columns if name in stats and stats[name].range is not None}
            if len(ends) == len(group.columns):
                ranges |= _transform_ranges(group, schema, ends)
    return ranges


def _transform_ranges(
    group: FeatureGroup, schema: Schema, stats: Mapping[str, ColumnStats]
) -> dict[str, tuple[float, float]]:
    columns: Mapping[str, Column]
    if stats and all(schema[name].dtype == "float64" for name in stats):
        ends = [(stat.low, stat.high, np.nan if stat.missing else stat.low) for stat in stats.values()]
        columns = Matrix([*stats], np.array(ends))
    else:
        columns = {name: _build_ends(schema[name].dtype, stat) for name, stat in stats.items()}
    outputs = {name: item for name, item in group.apply_steps(columns, select("cpu")).items() if item.dtype != "bool"}
    table = np.stack([floats(column, np) for column in outputs.values()]) if outputs else np.zeros((0, 3))
    table[np.isinf(table)] = np.nan
    low, high = np.fmin.reduce(table, axis=1).tolist(), np.fmax.reduce(table, axis=1).tolist()
    ranges = zip(map(group.rename, outputs), low, high, strict=True)
    return {name: (least, most) for name, least, most in ranges if least <= most}


def _build_ends(dtype: str, stats: ColumnStats) -> Column:
    """Build a column of the minimum, the maximum, and a third row: missing if the column has gaps, else the minimum."""
    ends = [stats.low, stats.high, stats.low]
    if dtype in FLOATS:
        return Column(dtype, np.array([stats.low, stats.high, np.nan if stats.missing else stats.low]).astype(dtype))
    if dtype != "bool":
        info = np.iinfo(dtype)  # the float nearest to 2**63 - 1 is one more than it
        ends = [min(max(int(end), info.min), info.max) for end in ends]
    return Column(dtype, np.array(ends, dtype=dtype), np.array([True, True, False]) if stats.missing else None)
