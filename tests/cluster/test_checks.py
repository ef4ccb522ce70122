"""What workers notice of rows reaches the program: the same reports as in one process."""

from __future__ import annotations

import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe.cluster import in_force
from tests.cluster.inputs import pipeline

EXPECT = {"distance": gp.Expect(min=100), "carrier": gp.Expect(values=["UA", "AA"], nullable=False)}


def watching(**options: str) -> gp.Pipeline:
    plain = pipeline()
    return gp.Pipeline(plain.steps, plain.features, "cpu", expect=EXPECT, **options)  # type: ignore[arg-type]


def test_reports_of_a_cluster_are_those_of_one_process(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    alone, together = watching().fit(flights), watching().fit(flights, executor=cluster)
    assert alone.profiles == together.profiles
    assert alone.fit_report is not None and together.fit_report is not None
    assert alone.fit_report.checks == together.fit_report.checks and not alone.fit_report.checks.passed
    alone.loader(flights)
    with in_force(cluster):
        together.loader(flights)
    assert together.check_report() == alone.check_report() and together.check_report().is_complete
    assert together.drift_report() == alone.drift_report() and together.drift_report().num_rows > 5000


def test_an_error_names_the_file(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    with pytest.raises(errors.BadData, match="not as expected") as caught:
        watching(on_violation="raise").fit(flights, executor=cluster)
    assert any("day01.parquet" in note for note in caught.value.__notes__)
