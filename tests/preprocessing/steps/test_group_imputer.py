"""Filling by group against pandas: groups that are missing, new or empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.preprocessing import GroupImputer
from gpupipe.schema import Field
from tests.examples import examples
from tests.raising import raises

_PLAIN: dict[str, Any] = {
    "mean": lambda values: values.mean(),
    "median": lambda values: values.median(),
    "most_frequent": lambda values: values.mode().iloc[0] if values.notna().any() else np.nan,
}

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ß", None]), st.none() | st.integers(-3, 3) | st.floats(-9, 9, width=32)),
    min_size=1,
    max_size=30,
).filter(lambda rows: any(value is not None for _, value in rows))


@pytest.mark.slow
@pytest.mark.parametrize("number_keys", [False, True])
@pytest.mark.parametrize("strategy", list(_PLAIN))
@examples(60)
@given(rows=ROWS)
def test_as_pandas(strategy: str, number_keys: bool, rows: list[tuple[str | None, float | None]]) -> None:
    table = pd.DataFrame({"g": pd.array([g for g, _ in rows], dtype="str"), "x": np.array([v for _, v in rows], float)})
    by_group = table.groupby("g")["x"].agg(_PLAIN[strategy])
    wanted = table["x"].fillna(table["g"].map(by_group).astype(float)).fillna(_PLAIN[strategy](table["x"]))
    if number_keys:
        table["g"] = table["g"].map({"a": 7, "b": 10**12, "ß": -3}).astype("Int64")
    step = GroupImputer("g", strategy)
    found = step.fit_transform(table)
    assert list(found) == ["x"] == step.get_feature_names_out()
    np.testing.assert_allclose(found["x"], wanted, rtol=1e-9, atol=1e-12)


def test_what_fit_has_not_seen_gets_the_statistic_of_all_rows() -> None:
    train = pd.DataFrame({"g": ["a", "a", "b", "c"], "x": [1.0, 3.0, 11.0, None], "n": pd.array([1, 2, None, 4])})
    step = GroupImputer("g").fit(train)
    later = pd.DataFrame({"n": [None, None, 9.0, None], "x": [None] * 4, "g": ["a", "zz", "b", None]}, dtype=object)
    later = later.astype({"n": "float64", "x": "float32", "g": "str"})
    found = step.transform(later)
    assert found["x"].tolist() == [2.0, 5.0, 11.0, 5.0] and str(found["x"].dtype) == "float32"
    np.testing.assert_allclose(found["n"], [1.5, 7 / 3, 9, 7 / 3])
    assert step.groups_.to_pylist() == ["a", "b", "c"]
    np.testing.assert_allclose(step.statistics_[0], [2, 11, 5, 5])  # c has rows and no value


def test_the_group_is_part_of_what_comes_out() -> None:
    fields = [Field("g", "string").as_source(), Field("x", "int8").as_source()]
    (made,) = GroupImputer("g").output_fields(fields)
    assert (made.name, made.dtype, made.nullable, made.lineage) == ("x", "float64", False, {"g", "x"})


def test_what_is_refused() -> None:
    table = pd.DataFrame({"g": ["a", "b"], "x": [1.0, None]})
    with raises(errors.ColumnNotFound, where="GroupImputer(by=...)", column="h"):
        GroupImputer("h").output_fields([Field("x", "int8")])
    with raises(errors.SchemaMismatch, where="GroupImputer, column 'x'", got="float64"):
        GroupImputer("x").fit(table[["x"]].assign(y=1.0))
    with raises(errors.BadConfig, where="GroupImputer(strategy=)", got="mode"):
        GroupImputer("g", "mode").fit(table)
    with raises(errors.BadConfig, where="GroupImputer", got=["g"]):
        GroupImputer("g").fit(table[["g"]])
    for strategy in _PLAIN:
        with pytest.raises(errors.BadData, match=f"column 'x': it has no value to take the {strategy.split('_')[0]}"):
            GroupImputer("g", strategy).fit(table.assign(x=np.nan))
    with raises(errors.BadData, where="GroupImputer, column 'x'", got=np.inf):
        GroupImputer("g").fit(table.assign(x=[np.inf, 1.0]))
    with raises(errors.BadData, where="GroupImputer, column 'x'", got=-np.inf):
        GroupImputer("g").fit(table).transform(table.assign(x=[-np.inf, 1.0]))
    with raises(errors.SchemaMismatch, where="GroupImputer, column 'g'", got="int64"):
        GroupImputer("g").fit(table).transform(table.assign(g=[1, 2]))
