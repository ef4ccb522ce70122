"""Passes over a cluster give the same reports as in one process."""

from __future__ import annotations

from typing import Literal

import gpupipe as gp
from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.cluster.executor import use_executor
from tests.cluster.inputs import pipeline
from tests.raising import raises


def checking(on_violation: Literal["count", "raise"] = "count") -> gp.Pipeline:
    plain = pipeline()
    steps = [T.Expect("distance", min=100, on_violation=on_violation), T.Expect("carrier", values=["UA", "AA"])]
    return gp.Pipeline([*steps, *plain.steps], plain.features, "cpu")


def test_reports_of_a_cluster_are_those_of_one_process(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    alone, together = checking().fit(flights), checking().fit(flights, executor=cluster)
    assert alone.profiles == together.profiles
    assert alone.fit_report is not None and together.fit_report is not None
    assert alone.fit_report.checks == together.fit_report.checks and not alone.fit_report.checks.passed
    with use_executor(cluster):
        checks, drift = together.check(flights), together.drift(flights)
    assert checks == alone.check(flights)
    assert drift == alone.drift(flights) and drift.num_rows > 5000


def test_an_error_names_the_file(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    with raises(errors.BadData, where="Expect, column 'distance'", got=96.0) as caught:
        checking("raise").fit(flights, executor=cluster)
    assert any("day01.parquet" in note for note in caught.value.__notes__)
