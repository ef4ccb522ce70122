"""Edges of numeric features' bins: quantiles of a sample of the fit's rows, values that fill a bin alone apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.pipeline.edges import MAX_FEATURES, compute_bin_edges
from tests.examples import examples


def test_the_example_of_the_docstring() -> None:
    values = np.array([0.0] * 90 + [float(number) for number in range(1, 11)])
    assert compute_bin_edges(values, 5) == (0, 1, 3, 5, 7, 10)


def test_edges_of_distinct_values_are_numpys_quantiles() -> None:
    values = np.random.default_rng(3).normal(size=5000).astype("float32")
    expected = np.quantile(values.astype("float64"), np.linspace(0, 1, 49), method="lower")
    assert compute_bin_edges(values) == pytest.approx(expected)


@examples(100)
@given(st.lists(st.sampled_from([-1e30, -2.0, 0.0, 0.5, 3.0]) | st.floats(-1e6, 1e6), max_size=300))
def test_edges_ascend_occur_and_reach_both_ends(values: list[float]) -> None:
    edges = compute_bin_edges(np.array(values))
    exact = np.unique(np.array(values, dtype="float32"))
    assert len(edges) <= 49 and list(edges) == sorted(set(edges))
    assert set(edges) <= set(exact.tolist())
    assert not values or (edges[0], edges[-1]) == (exact[0], exact[-1])
    for value, count in zip(*np.unique(np.array(values), return_counts=True), strict=True):
        assert count <= len(values) / 48 or np.float32(value) in edges


def frame(rows: int = 4000) -> pd.DataFrame:
    draw = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "x": np.where(draw.random(rows) < 0.1, np.nan, draw.exponential(size=rows)),
            "count": draw.integers(0, 7, rows),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 9000, rows), unit="h"),
            "city": draw.choice(["Ulm", "Bonn", "Kiel"], rows),
            "y": draw.normal(size=rows),
        }
    )


def features() -> gp.Features:
    return gp.Features(
        (["x", "count"], [pre.SimpleImputer(strategy="median"), pre.StandardScaler()]),
        (["x", "count"], [pre.SimpleImputer(), pre.PCA(n_components=2)], "pca"),
        (["when"], [pre.DatetimeEncoder(), pre.StandardScaler()]),
        (["city"], pre.TargetEncoder(), "mean"),
        (["city"], pre.Categorify()),
        target="y",
    )


def test_they_are_quantiles_of_what_the_steps_put_out() -> None:
    data = frame()
    pipeline = gp.Pipeline([], features()).fit(data)
    output = pipeline.transform(data)
    names = [item.name for item in pipeline.schema.numeric]
    assert sorted(pipeline.schema.edges) == sorted(names) and "city" not in names
    for name in names:
        assert pipeline.schema.edges[name] == pytest.approx(compute_bin_edges(output[name].to_numpy()), abs=1e-5), name
    assert pipeline.schema.num_rows == len(data)


@pytest.mark.parametrize(
    ("target", "rows", "most"), [("y > 0", 480, 4), ("y > 0", 1600, 10), ("city", 1600, 10), ("y", 480, 48)]
)
def test_classes_and_few_rows_make_few_bins(target: str, rows: int, most: int) -> None:
    features = gp.Features((["x"], [pre.SimpleImputer(strategy="constant", fill_value=-1.0)]), target=target)
    edges = gp.Pipeline([], features).fit(frame(rows)).schema.edges["x"]
    assert len(edges) == most + 1


def test_they_are_the_same_in_any_partitions_and_once_saved(tmp_path: Path) -> None:
    data = frame()
    data.to_parquet(tmp_path / "rows.parquet", row_group_size=500)
    whole = gp.Pipeline([], features()).fit(data)
    parts = gp.read_parquet(tmp_path / "rows.parquet", partition_bytes=1)
    assert parts.num_partitions == 8
    fitted = gp.Pipeline([], features()).fit(parts)
    for name, edges in whole.schema.edges.items():
        assert fitted.schema.edges[name] == pytest.approx(edges, abs=1e-5), name
    gp.save(tmp_path / "run", fitted)
    loaded = gp.load(tmp_path / "run", backend="cpu").schema
    assert (loaded.edges, loaded.num_rows) == (fitted.schema.edges, 4000)


def test_a_large_table_is_sampled() -> None:
    rows = 200_000
    values = np.random.default_rng(1).permutation(rows) / rows
    values[[50_001, 50_000]] = -3.0, 7.0  # neither is among the rows that are drawn
    edges = (
        gp.Pipeline([], gp.Features((["x"], pre.SimpleImputer()))).fit(pd.DataFrame({"x": values})).schema.edges["x"]
    )
    assert (edges[0], edges[-1]) == (-3.0, 7.0), "the least and the greatest of all rows"
    assert np.array(edges[1:-1]) == pytest.approx(np.linspace(0, 1, 49), abs=0.02)


def test_infinite_values_and_rows_without_a_target_do_not_count() -> None:
    data = pd.DataFrame({"x": [1.0, np.inf, 2.0, 9.0], "y": [1.0, 0.0, 1.0, np.nan]})
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.SimpleImputer(strategy="constant")), target="y")).fit(data)
    assert pipeline.schema.edges["x"] == (0.0, 1.0, 2.0)
    assert pipeline.schema.num_rows == 3


def test_a_wide_table_has_none() -> None:
    data = pd.DataFrame(np.ones((5, MAX_FEATURES + 1))).add_prefix("x")
    names = list(data.columns)
    assert gp.Pipeline([], gp.Features((names, pre.SimpleImputer()))).fit(data).schema.edges == {}
    some = gp.Pipeline([], gp.Features((names[:-1], pre.SimpleImputer()))).fit(data)
    assert len(some.schema.edges) == MAX_FEATURES
