"""Statistics of groups against pandas' groupby and merge: several keys, any partitions, keys missing or new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.schema import Field
from tests.examples import examples
from tests.raising import raises

STATS = ["size", "count", "nunique", "sum", "mean", "std", "var", "min", "max"]
PARTITIONS = (1, 2, 7, 16)

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ß", None]),
        st.sampled_from([7, 10**12, -3, None]),
        st.none() | st.integers(-3, 3) | st.integers(0, 80).map(lambda n: 1e9 + n / 8),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


def table_of(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    g, n, x, flag = zip(*rows, strict=True)
    return pd.DataFrame(
        {
            "g": pd.array(g, dtype="str"),
            "n": pd.array(n, dtype="Int64"),
            "x": np.array(x, dtype=float),
            "flag": list(flag),
        }
    )


def wanted_of(fitted_on: pd.DataFrame, rows: pd.DataFrame, by: list[str], dropna: bool) -> pd.DataFrame:
    """pandas' own result, joined back to each row."""
    groups = fitted_on.astype({"flag": "float64"}).groupby(by, dropna=dropna)
    made = {f"size_by_{'_'.join(by)}": groups.size()}
    for name in ("x", "flag"):
        for stat in STATS[1:]:
            made[f"{name}_{stat}_by_{'_'.join(by)}"] = groups[name].agg(stat)
    keys = rows[by]
    if dropna:  # a join in pandas matches missing keys, but there is no group of them
        keys = keys.where(keys.notna().all(axis=1))
    return keys.merge(pd.DataFrame(made).reset_index(), on=by, how="left")[list(made)]


@pytest.mark.slow
@pytest.mark.parametrize("by", [["g"], ["n"], ["g", "n"]], ids="+".join)
@examples(40)
@given(rows=ROWS, later=ROWS, dropna=st.booleans(), parts=st.sampled_from(PARTITIONS))
def test_it_is_pandas_joined_back(by: list[str], rows: Any, later: Any, dropna: bool, parts: int) -> None:
    table, other = table_of(rows), table_of([*later, ("new", 99, 1.0, True)])
    columns = [*by, "x", "flag"]
    step = pre.GroupStats(by, STATS, dropna=dropna, handle_unknown="missing")
    fold = gp.Pipeline([], gp.Features((columns, step)), backend="cpu")
    fold.fit(gp.from_frame(table, num_partitions=parts))
    for frame in (table, other):
        found, wanted = fold.transform(frame), wanted_of(table, frame, by, dropna)
        assert list(found) == list(wanted)
        for name in found:
            filled = wanted[name].fillna(0) if any(f"_{s}_" in f"_{name}" for s in STATS[:4]) else wanted[name]
            np.testing.assert_allclose(
                found[name].to_numpy(float), filled.to_numpy(float), rtol=1e-6, atol=1e-6, err_msg=name
            )


def test_what_is_not_known_of_a_group_is_that_of_all_rows() -> None:
    train = pd.DataFrame({"g": ["a", "a", "b", None, "c"], "x": [1.0, 3.0, 5.0, 11.0, None]})
    step = pre.GroupStats("g", STATS).fit(train)
    found = step.transform(pd.DataFrame({"g": ["a", "b", "c", None, "zz"]}))  # the key is all that is looked at
    assert found["x_mean_by_g"].tolist() == [2, 5, 5, 5, 5]
    assert found["x_count_by_g"].tolist() == [2, 1, 0, 0, 0]
    assert found["size_by_g"].tolist() == [2, 1, 1, 0, 0]
    assert found["x_sum_by_g"].tolist() == [4, 5, 0, 0, 0]
    assert found["x_max_by_g"].tolist() == [3, 5, 11, 11, 11]
    spread = np.std([1, 3, 5, 11], ddof=1)
    np.testing.assert_allclose(found["x_std_by_g"], [np.sqrt(2), spread, spread, spread, spread])
    assert not found.isna().any().any()


def test_numbers_far_from_zero_keep_their_spread() -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame({"g": random.integers(0, 3, 3000), "x": 1e9 + random.standard_normal(3000)})
    for parts in PARTITIONS:
        fitted = gp.Pipeline([], gp.Features((["g", "x"], pre.GroupStats("g", "var"))))
        fitted.fit(gp.from_frame(table, num_partitions=parts))
        wanted = table.groupby("g")["x"].transform("var")
        np.testing.assert_allclose(fitted.transform(table)["x_var_by_g"], wanted, rtol=1e-6)


def test_distinct_texts_are_counted() -> None:
    table = pd.DataFrame({"g": [1, 1, 1, 2], "plane": ["N1", "N2", "N1", None]})
    step = pre.GroupStats("g", ["nunique", "count"]).fit(table)
    assert step.transform(table).to_numpy().tolist() == [[2, 3]] * 3 + [[0, 0]]


def test_more_groups_than_are_looked_up_directly() -> None:
    """Two keys whose values span far more pairs than there are."""
    random = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "a": random.integers(0, 2**60, 5000).repeat(2),
            "b": np.char.add("k", random.integers(0, 4000, 10_000).astype(str)),
            "x": random.normal(size=10_000),
        }
    )
    step = pre.GroupStats(["a", "b"], ["sum", "size"])
    found = step.fit_transform(table)
    np.testing.assert_allclose(found["x_sum_by_a_b"], table.groupby(["a", "b"])["x"].transform("sum"), rtol=1e-9)
    assert (found["size_by_a_b"] == table.groupby(["a", "b"])["x"].transform("size")).all()
    assert step.transform(table.assign(b="new"))["size_by_a_b"].eq(0).all()


def test_a_pipeline_predicts_without_what_was_averaged(tmp_path: Path) -> None:
    train = pd.DataFrame({"k": ["a", "b", "a"], "late": [1.0, 2.0, 5.0], "d": [1.0, 2.0, 3.0], "y": [0.0, 1.0, 1.0]})
    features = gp.Features((["k", "late"], pre.GroupStats("k")), (["d"], pre.StandardScaler()), target="y")
    pipeline = gp.Pipeline([], features).fit(gp.from_frame(train, num_partitions=2))
    gp.save(tmp_path / "p", pipeline)
    today = pd.DataFrame({"k": ["b", "new"], "d": [1.0, 2.0]})
    for fitted in (pipeline, gp.load(tmp_path / "p").pipeline):
        assert fitted.transform(today)["late_mean_by_k"].tolist() == [2.0, 8 / 3]
        assert fitted.transform(gp.from_frame(today)).compute()["late_mean_by_k"].tolist() == [2.0, 8 / 3]


def test_the_mean_of_the_target_is_a_leak() -> None:
    train = pd.DataFrame({"k": ["a", "b"], "y": [1.0, 2.0]})
    with raises(errors.LeakageError, where="feature 'y'"):
        gp.Pipeline([], gp.Features((["k", "y"], pre.GroupStats("k")), target="y")).fit(train)


def test_keys_and_values_are_part_of_what_comes_out() -> None:
    fields = [Field("g", "string").as_source(), Field("x", "int8").as_source()]
    size, mean = pre.GroupStats("g", ["size", "mean"]).output_fields(fields)
    assert (size.name, size.dtype, size.nullable, size.lineage) == ("size_by_g", "int64", False, {"g"})
    assert (mean.name, mean.dtype, mean.nullable, mean.lineage) == ("x_mean_by_g", "float64", False, {"g", "x"})
    (mean,) = pre.GroupStats("g", handle_unknown="missing").output_fields(fields)
    assert mean.nullable


def test_what_is_refused() -> None:
    table = pd.DataFrame({"g": ["a", "b"], "x": [1.0, None]})
    with raises(errors.ColumnNotFound, where="GroupStats(by=...)", column="h"):
        pre.GroupStats("h").fit(table[["x"]])
    with raises(errors.ColumnNotFound, where="GroupStats(by=...)", column="h"):  # text beside it is not what is wrong
        pre.GroupStats("h").fit(table)
    with raises(errors.BadConfig, where="GroupStats(stats=)", got=["mean", "mean"]):
        pre.GroupStats("g", ["mean", "mean"]).fit(table)
    with raises(errors.BadConfig, where="GroupStats(by=)", got=[]):
        pre.GroupStats([])
    with raises(errors.SchemaMismatch, where="GroupStats, column 'x'", got="float64"):
        pre.GroupStats("x").fit(table[["x"]].assign(y=1.0))
    with raises(errors.BadConfig, where="GroupStats(stats=)", got="kurt"):
        pre.GroupStats("g", "kurt").fit(table)
    with raises(errors.BadConfig, where="GroupStats(handle_unknown=)", got="drop"):
        pre.GroupStats("g", handle_unknown="drop").fit(table)
    remedy = "(['g', 'x'], GroupStats('g', ['mean'])), where x is a column of numbers"
    with raises(errors.BadConfig, where="GroupStats", remedy=remedy):
        pre.GroupStats("g", ["mean"]).fit(table[["g"]])
    with raises(errors.BadData, where="GroupStats, column 'x'", expected="one value at least, for a deviation two"):
        pre.GroupStats("g", "std").fit(table)
    with raises(errors.BadData, where="GroupStats, column 'x'", got=np.inf):
        pre.GroupStats("g").fit(table.assign(x=[np.inf, 1.0]))
    with raises(errors.SchemaMismatch, where="GroupStats, column 'g'", got="int64"):
        pre.GroupStats("g").fit(table).transform(table.assign(g=[1, 2]))


def test_a_key_beside_the_group_is_offered_in_it() -> None:
    frame = pd.DataFrame({"g": ["a", "b"] * 4, "h": [1, 1, 2, 2] * 2, "x": range(8), "y": np.arange(8.0)})
    groups = (
        (["x"], pre.GroupStats(["g", "h"], ["mean", "size"])),
        (["x"], [pre.SimpleImputer(), pre.GroupImputer("g")]),
    )
    remedies = (
        "(['g', 'h', 'x'], GroupStats(by=['g', 'h'], stats=['mean', 'size']))",
        "(['g', 'x'], GroupImputer(by='g'))",
    )
    for group, remedy, where in zip(groups, remedies, ("GroupStats(by=...)", "GroupImputer(by=...)"), strict=True):
        with raises(errors.ColumnNotFound, where=where, column="g", got=["x"], remedy=remedy):
            gp.Pipeline([], gp.Features(group, target="y")).fit(frame)
        mended = eval(remedy, vars(pre))
        assert gp.Pipeline([], gp.Features(mended, target="y")).fit(frame).schema.numeric


def test_a_key_of_no_column_is_offered_the_closest_name() -> None:
    frame = pd.DataFrame({"group": ["a", "b"] * 4, "x": range(8), "y": np.arange(8.0)})
    with raises(errors.ColumnNotFound, where="GroupStats(by=...)", column="grop", remedy="'group' (the closest name)"):
        gp.Pipeline([], gp.Features((["group", "x"], pre.GroupStats("grop")), target="y")).fit(frame)
