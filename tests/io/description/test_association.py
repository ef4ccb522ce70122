"""Cramér's V against scipy and a simulation, and the sample it is computed on."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe.backend import select
from gpupipe.io.description.association import RowSample, compute_cramers_v, to_levels

CPU = select("cpu")


def bergsma(table: np.ndarray) -> float:
    """The same measure from SciPy's plain one."""
    contingency = pytest.importorskip("scipy.stats.contingency")
    n, (r, c) = table.sum(), table.shape
    plain = contingency.association(table, method="cramer") ** 2 * min(r - 1, c - 1)
    phi2 = max(0.0, plain - (r - 1) * (c - 1) / (n - 1))
    return float(np.sqrt(phi2 / min(r - (r - 1) ** 2 / (n - 1) - 1, c - (c - 1) ** 2 / (n - 1) - 1)))


def test_categories_as_scipy_counts_them() -> None:
    random = np.random.default_rng(0)
    kind = random.choice(["a", "b", "c", None], 3000, p=[0.4, 0.3, 0.2, 0.1])
    target = np.where(kind == "a", random.random(3000) < 0.8, random.random(3000) < 0.4)
    table = pa.table({"kind": pa.array(kind, pa.large_string()), "y": target})
    crossed = pd.crosstab(pd.Series(kind).fillna("missing"), target).to_numpy()
    assert compute_cramers_v(table, "y")["kind"] == pytest.approx(bergsma(crossed), rel=1e-12)


def test_numbers_are_cut_at_their_tenths() -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=5000)
    y = x**2 + 0.1 * random.normal(size=5000)  # of no correlation
    x[::10] = np.nan
    table = pa.table({"x": pa.array(x, from_pandas=True), "y": y})
    edges = [np.quantile(v[~np.isnan(v)], np.arange(1, 10) / 10, method="lower") for v in (x, y)]
    cut = [np.where(np.isnan(v), 10, np.searchsorted(e, v)) for v, e in zip((x, y), edges, strict=True)]
    crossed = pd.crosstab(cut[0], cut[1]).to_numpy()
    found = compute_cramers_v(table, "y")["x"]
    assert found == pytest.approx(bergsma(crossed), rel=1e-12) and found is not None and found > 0.4


def test_what_is_independent_is_near_nought_also_of_many_categories_in_few_rows() -> None:
    random = np.random.default_rng(2)
    texts = [f"id {value}" for value in random.permutation(400)]
    table = pa.table({"id": texts, "at": pa.array(range(400), pa.timestamp("us")), "y": random.random(400)})
    found = compute_cramers_v(table, "y")
    assert all(value is not None and value < 0.1 for value in found.values())


def test_a_function_of_the_target_is_one_and_a_constant_says_nothing() -> None:
    table = pa.table({"y": [1, 2, 3] * 40, "same": ["c", "a", "b"] * 40, "one": [7] * 120})
    found = compute_cramers_v(table, "y")
    assert found["same"] == pytest.approx(1.0) and found["one"] is None


def test_rare_texts_are_one_level_and_missing_ones_another() -> None:
    texts = pa.chunked_array([["a"] * 9 + [f"t{number}" for number in range(40)] + [None]])
    levels = to_levels(texts)
    assert levels[:9].tolist() == [0] * 9 and sorted(set(levels.tolist())) == list(range(32))
    assert levels[-1] == 31 and (levels == 30).sum() == 11


def test_the_sample_is_the_same_of_any_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.io.description.association.MAX_ROWS", 100)
    frame = pd.DataFrame({"x": np.arange(5000.0)})
    whole = RowSample.of(CPU.encode(frame), np.arange(5000, dtype=np.uint64), CPU)
    pieces = np.array_split(np.arange(5000, dtype=np.uint64), 7)
    parts = [RowSample.of(CPU.encode(frame.iloc[rows.astype(int)]), rows, CPU) for rows in pieces]
    merged = reduce(add, (RowSample(p.rows, p.bits, p.halvings, 100) for p in parts))
    assert whole.rows.to_pydict() == merged.rows.to_pydict() and 30 < whole.rows.num_rows <= 100


def test_the_same_association_of_any_partitions() -> None:
    frame = pd.DataFrame({"x": np.arange(999) % 10, "s": ["a", "b", None] * 333})
    found = [gp.from_frame(frame, num_partitions=parts).describe("x > 4") for parts in (1, 4)]
    assert [c.association for c in found[0].columns] == [c.association for c in found[1].columns]
    assert found[0]["x"].association == pytest.approx(1.0, abs=0.01)
