"""What is noticed of rows, by the GPU twin on stand-ins: counted as on the CPU, and never a row at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.columns import Backend

EXPECT = [
    T.Expect("x", min=-1, max=2.5, nullable=False),
    T.Expect("n", min=0, values=[1, 2, 3], unique=True),
    T.Expect("word", values=["a", "b"], nullable=False),
    T.Expect("at", min="2013-01-02"),
]


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
    return gp.Pipeline(EXPECT, features, backend)


def test_reports_are_those_of_the_cpu(rehearsed_backend: Backend) -> None:
    made = {}
    for backend in ("cpu", rehearsed_backend.name):
        made[backend] = pipeline(backend).fit(gp.from_frame(table(), num_partitions=3))
    cpu, gpu = made.values()
    assert gpu.fit_report is not None and cpu.fit_report is not None
    assert gpu.fit_report.checks == cpu.fit_report.checks and len(cpu.fit_report.checks.violations) == 9
    new = gp.from_frame(table(2.0).assign(word="new"), num_partitions=3)
    assert gpu.check(new) == cpu.check(new)
    assert gpu.schema.ranges.keys() == cpu.schema.ranges.keys()
    for name, known in cpu.profiles.items():
        np.testing.assert_allclose(gpu.profiles[name].mean, known.mean, rtol=1e-12)
        assert gpu.profiles[name].edges == known.edges and gpu.profiles[name].unknown == known.unknown
    moved = [{item.name: item.moved for item in p.drift(new).moved} for p in (cpu, gpu)]
    assert moved[0] == moved[1] == {"x": ("mean", "psi"), "word": ("unknown", "missing")}


def test_only_counts_go_to_the_host(rehearsed_backend: Backend) -> None:
    steps = [step for step in EXPECT if not step.unique]  # what is unique takes its values there
    fitted = gp.Pipeline(steps, None, rehearsed_backend.name).fit(table())
    before = rehearsed_backend.transfers.num_bytes
    fitted.check(gp.from_frame(table(), num_partitions=1))
    assert rehearsed_backend.transfers.num_bytes - before < 1000


def test_a_table_of_arrow_goes_to_the_gpu_and_comes_back_in_its_order(rehearsed_backend: Backend) -> None:
    given = pa.Table.from_pandas(table())
    made = pipeline("gpu").fit(given).transform(given)
    assert type(made).__module__.startswith("cudf")
    expected = pipeline("cpu").fit(given).transform(given)
    found = rehearsed_backend.to_arrow(made)
    assert found.column_names == list(expected) and found.num_rows == given.num_rows
    for name in expected:
        np.testing.assert_allclose(found[name].to_numpy(), expected[name], rtol=1e-6)
