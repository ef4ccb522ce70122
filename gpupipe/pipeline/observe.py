"""Monitoring passes over other data: broken expectations, and drift from the rows of the fit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from gpupipe.io import Dataset, Partition
from gpupipe.monitoring.drift import Drift, DriftReport, Profile
from gpupipe.monitoring.expectation_report import ExpectationReport
from gpupipe.pipeline.apply import BoundPipeline
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.fit_partition import DescribeColumns, DrawSample, Observer, PartitionPass, fold, map_categories
from gpupipe.schema import Schema
from gpupipe.transforms import Transform


def count_violations(
    run: BoundPipeline, dataset: Dataset, backend: str, steps: Sequence[Transform]
) -> ExpectationReport:
    """Count the rows of a dataset that break a rule of a `T.Expect` among the steps, in one pass.

    Args:
        run: the steps bound to the dataset's columns, counting.
        dataset: the rows.
        backend: `"cpu"` or `"gpu"`.
        steps: all steps of the pipeline.
    """
    dataset = run.plan_casts(dataset).attach_window_columns(dataset, backend)
    found = fold(PartitionPass([], run.prefix, run.seen, backend, typed=run.typed), dataset, "check")
    return check_report(found, steps, dataset.partitions)


def measure_drift(
    run: BoundPipeline,
    dataset: Dataset,
    backend: str,
    features: Features,
    of_fit: Mapping[str, Profile],
    thresholds: Drift,
) -> DriftReport:
    """Compare the rows of a dataset with those of the fit, in one pass.

    Args:
        run: the steps bound to the dataset's columns.
        dataset: the rows; those without a target are left out, where it has the target.
        backend: `"cpu"` or `"gpu"`.
        features: fitted.
        of_fit: the distribution of the fit's columns.
        thresholds: how far they may be apart.
    """
    dataset = run.plan_casts(dataset).attach_window_columns(dataset, backend)
    total = sum(partition.num_rows for partition in dataset.partitions)
    observers: list[Observer] = [DescribeColumns(features, run.seen), DrawSample(features, run.seen, total)]
    found = fold(PartitionPass(observers, run.prefix, run.seen, backend, features, run.typed), dataset, "drift")
    return DriftReport.of(found["sample"], build_profiles(found, features, run.seen), of_fit, thresholds)


def build_profiles(found: Mapping[Hashable, Any], features: Features, schema: Schema) -> dict[str, Profile]:
    """Return the profile of each column that features read, from a pass's summaries."""
    vocabularies = {name: step.vocabularies_[name] for name, step in map_categories(features, schema).items()}
    num_rows = max(found["described"], 1)
    missing = {name: seen.missing / num_rows for name, seen in select_kind(found, "column").items()}
    profiles: dict[str, Profile] = found["sample"].profiles(vocabularies, missing)
    return profiles


def check_report(
    found: Mapping[Hashable, Any], steps: Sequence[Transform], partitions: Sequence[Partition]
) -> ExpectationReport:
    """Report what each `T.Expect` counted.

    Raises:
        BadData: values that are there twice in different partitions, where an error is asked for.
    """
    return ExpectationReport.of(select_kind(found, "expect"), steps, partitions)


def select_kind(found: Mapping[Hashable, Any], kind: str) -> dict[Any, Any]:
    """Return the summaries of one kind, by the second part of their key."""
    return {key[1]: summary for key, summary in found.items() if isinstance(key, tuple) and key[0] == kind}
