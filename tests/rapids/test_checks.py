"""What is noticed of rows, by the GPU twin on stand-ins: counted as on the CPU, and never a row at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.backend.protocol import Backend

EXPECT = {
    "x": gp.Expect(min=-1, max=2.5, nullable=False),
    "n": gp.Expect(min=0, values=[1, 2, 3], unique=True),
    "word": gp.Expect(values=["a", "b"], nullable=False),
    "at": gp.Expect(min="2013-01-02"),
}


def table(shift: float = 0.0) -> pd.DataFrame:
    generator = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "x": generator.normal(shift, 1, 3000),
            "n": generator.integers(-1, 4, 3000),
            "word": generator.choice(["a", "b", "c"], 3000),
            "at": pd.Timestamp("2013-01-01") + pd.to_timedelta(generator.integers(0, 99, 3000), unit="h"),
        }
    )
    frame.loc[::9, "x"] = np.nan
    frame.loc[::8, "word"] = None
    return frame


def pipeline(backend: str) -> gp.Pipeline:
    features = gp.Features((["x", "n"], [pre.SimpleImputer(), pre.StandardScaler()]), (["word"], pre.Categorify()))
    return gp.Pipeline([], features, backend, expect=EXPECT)


def test_reports_are_those_of_the_cpu(rehearsed_backend: Backend) -> None:
    made = {}
    for backend in ("cpu", rehearsed_backend.name):
        fitted = pipeline(backend).fit(gp.from_frame(table(), num_partitions=3))
        fitted.transform(gp.from_frame(table(2.0).assign(word="new"), num_partitions=3)).compute()
        made[backend] = fitted
    cpu, gpu = made.values()
    assert gpu.fit_report is not None and cpu.fit_report is not None
    assert gpu.fit_report.checks == cpu.fit_report.checks and len(cpu.fit_report.checks.violations) == 9
    assert gpu.check_report() == cpu.check_report()
    assert gpu.schema.ranges.keys() == cpu.schema.ranges.keys()
    for name, known in cpu.profiles.items():
        np.testing.assert_allclose(gpu.profiles[name].mean, known.mean, rtol=1e-12)
        assert gpu.profiles[name].edges == known.edges and gpu.profiles[name].unknown == known.unknown
    moved = [{item.name: item.moved for item in p.drift_report().moved} for p in (cpu, gpu)]
    assert moved[0] == moved[1] == {"x": ("mean", "psi"), "word": ("unknown", "missing")}


def test_only_counts_go_to_the_host(rehearsed_backend: Backend) -> None:
    fitted = pipeline(rehearsed_backend.name)
    fitted.expectations.by_name.pop("n")  # what is unique takes its values there
    fitted.fit(gp.from_frame(table(), num_partitions=3))
    without = gp.Pipeline([], fitted.features, rehearsed_backend.name, drift=None)
    without.features = fitted.features
    without.bind(fitted.source)
    moved = []
    for one in (fitted, without):
        before = rehearsed_backend.transfers.num_bytes
        one.transform(gp.from_frame(table(), num_partitions=1)).compute()
        moved.append(rehearsed_backend.transfers.num_bytes - before)
    assert moved[0] - moved[1] < 1000, moved


def test_a_table_of_arrow_goes_to_the_gpu_and_comes_back_in_its_order(rehearsed_backend: Backend) -> None:
    given = pa.Table.from_pandas(table())
    made = pipeline("gpu").fit(given).transform(given)
    assert type(made).__module__.startswith("cudf")
    expected = pipeline("cpu").fit(given).transform(given)
    found = rehearsed_backend.to_arrow(made)
    assert found.column_names == list(expected) and found.num_rows == given.num_rows
    for name in expected:
        np.testing.assert_allclose(found[name].to_numpy(), expected[name], rtol=1e-6)
