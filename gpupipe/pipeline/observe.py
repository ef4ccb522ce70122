"""Explicit passes over other data: what breaks a rule of the steps, and how far the rows are from those of the fit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from gpupipe.io import Dataset, Partition
from gpupipe.monitoring.drift import Drift, DriftReport
from gpupipe.monitoring.expectation_report import CheckReport
from gpupipe.monitoring.profiles import Profile
from gpupipe.pipeline.apply import Transformation
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.fit_partition import DescribeColumns, DrawSample, Observer, PartitionPass, categories_of, fold
from gpupipe.schema import Schema
from gpupipe.transforms import Transform

__all__ = ["check_report", "count_violations", "measure_drift", "of_kind", "profiles_of"]


def count_violations(run: Transformation, dataset: Dataset, backend: str, steps: Sequence[Transform]) -> CheckReport:
    """Count the rows of a dataset that break a rule of a `T.Expect` among the steps, in one pass.

    Args:
        run: the steps bound to the dataset's columns, counting.
        dataset: the rows.
        backend: `"cpu"` or `"gpu"`.
        steps: all steps of the pipeline.
    """
    dataset = run.expect(dataset.schema).meet(dataset, backend)
    found = fold(PartitionPass([], run.prefix, run.seen, backend, typed=run.typed), dataset, "check")
    return check_report(found, steps, dataset.partitions)


def measure_drift(
    run: Transformation,
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
    dataset = run.expect(dataset.schema).meet(dataset, backend)
    total = sum(partition.num_rows for partition in dataset.partitions)
    observers: list[Observer] = [DescribeColumns(features, run.seen), DrawSample(features, run.seen, total)]
    found = fold(PartitionPass(observers, run.prefix, run.seen, backend, features, run.typed), dataset, "drift")
    return DriftReport.of(found["sample"], profiles_of(found, features, run.seen), of_fit, thresholds)


def profiles_of(found: Mapping[Hashable, Any], features: Features, schema: Schema) -> dict[str, Profile]:
    """Give the distribution of each column that features see, from what a pass has observed."""
    vocabularies = {name: step.vocabularies_[name] for name, step in categories_of(features, schema).items()}
    num_rows = max(found["described"], 1)
    missing = {name: seen.missing / num_rows for name, seen in of_kind(found, "column").items()}
    profiles: dict[str, Profile] = found["sample"].profiles(vocabularies, missing)
    return profiles


def check_report(
    found: Mapping[Hashable, Any], steps: Sequence[Transform], partitions: Sequence[Partition]
) -> CheckReport:
    """Report what each `T.Expect` counted.

    Raises:
        BadData: values that are there twice in different partitions, where an error is asked for.
    """
    return CheckReport.of(of_kind(found, "expect"), steps, partitions)


def of_kind(found: Mapping[Hashable, Any], kind: str) -> dict[Any, Any]:
    """Give the summaries of one kind, by the second part of their key."""
    return {key[1]: summary for key, summary in found.items() if isinstance(key, tuple) and key[0] == kind}
