"""Scalers against scikit-learn, and where scikit-learn's answer is no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.preprocessing as peers
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.schema import Field
from tests.raising import raises

PAIRS = [
    (pre.StandardScaler(), peers.StandardScaler()),
    (pre.StandardScaler(with_mean=False), peers.StandardScaler(with_mean=False)),
    (pre.StandardScaler(with_std=False), peers.StandardScaler(with_std=False)),
    (pre.MinMaxScaler(), peers.MinMaxScaler()),
    (pre.MinMaxScaler((-2, 5), clip=True), peers.MinMaxScaler((-2, 5), clip=True)),
    (pre.MaxAbsScaler(), peers.MaxAbsScaler()),
    (pre.RobustScaler(), peers.RobustScaler()),
    (pre.RobustScaler(exact=True), peers.RobustScaler()),
    (pre.RobustScaler(unit_variance=True), peers.RobustScaler(unit_variance=True)),
    (
        pre.RobustScaler(quantile_range=(5, 80), unit_variance=True),
        peers.RobustScaler(quantile_range=(5, 80), unit_variance=True),
    ),
    (pre.RobustScaler(quantile_range=(5, 60)), peers.RobustScaler(quantile_range=(5, 60))),
    (pre.RobustScaler(with_centering=False), peers.RobustScaler(with_centering=False)),
    (pre.RobustScaler(with_scaling=False), peers.RobustScaler(with_scaling=False)),
]
BOUND = [pre.StandardScaler(), pre.MinMaxScaler(), pre.RobustScaler()]
EVERY = [*BOUND, pre.MaxAbsScaler()]


def frame(seed: int = 0, rows: int = 500) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    values = rng.normal(5, 20, rows)
    values[rng.random(rows) < 0.1] = np.nan
    return pd.DataFrame(
        {
            "values": values,
            "skewed": rng.exponential(3, rows).astype("float32"),
            "counts": pd.array(np.where(rng.random(rows) < 0.2, None, rng.integers(0, 50, rows)), dtype="Int64"),
            "flag": rng.random(rows) < 0.3,
        }
    )


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=repr)
def test_as_scikit_learn(ours: Any, theirs: Any) -> None:
    train, later = frame(), frame(1) * 1.5
    dense = [item.astype("float64").to_numpy(na_value=np.nan) for item in (train, later)]
    theirs.fit(dense[0])
    found = ours.fit(train).transform(later)
    assert list(found.columns) == list(train.columns)
    assert set(found.dtypes.astype(str)) == {"float32"}
    np.testing.assert_allclose(found.to_numpy(), theirs.transform(dense[1]), rtol=1e-6, atol=1e-6)


def test_learned_attributes_are_scikit_learns() -> None:
    table = frame()
    dense = table.astype("float64").to_numpy(na_value=np.nan)
    ours, theirs = pre.StandardScaler().fit(table), peers.StandardScaler().fit(dense)
    for name in ("mean_", "var_", "scale_", "n_samples_seen_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-12)
    np.testing.assert_allclose(pre.RobustScaler().fit(table).scale_, peers.RobustScaler().fit(dense).scale_, rtol=1e-12)


def test_equal_quartiles_divide_as_scikit_learn_does() -> None:
    table = pd.DataFrame({"mostly_zero": [0.0, 0.0, 0.0, 0.0, 0.0, 7.0]})
    ours, theirs = pre.RobustScaler(unit_variance=True), peers.RobustScaler(unit_variance=True)
    np.testing.assert_allclose(ours.fit_transform(table).to_numpy(), theirs.fit_transform(table), rtol=1e-6)


def test_a_column_near_a_billion_is_scaled() -> None:
    # Summed as x and x² in float64 these lose all digits of their variance: NVTabular centres and does not scale them.
    near = pd.DataFrame({"x": 1e9 + np.arange(5.0)})
    assert near["x"].pow(2).sum() / 5 - near["x"].mean() ** 2 != pytest.approx(2.0, rel=0.1)
    for step in BOUND:
        found = step.fit_transform(near)["x"].to_numpy()
        np.testing.assert_allclose(np.diff(found), np.diff(found)[0], rtol=1e-6)
        assert found[0] < found[-1] and step.inverse_transform(step.transform(near))["x"].iloc[0] == np.float32(1e9)
    assert pre.StandardScaler().fit(near).var_ == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e9 + 0.3, -1e145, 5e-324])
@pytest.mark.parametrize("step", BOUND, ids=repr)
def test_a_constant_column_gives_zeros(step: Any, value: float) -> None:
    same = pd.DataFrame({"x": [value] * 1000, "missing": [value] * 999 + [None]})
    found = step.fit_transform(same)
    assert found["x"].eq(0).all()
    assert found["missing"].iloc[:-1].eq(0).all() and np.isnan(found["missing"].iloc[-1])


def test_zeros_stay_zeros_and_a_column_of_them_too() -> None:
    # Divided by its own largest value a column of zeros would be all NaN, as NVTabular's NormalizeMinMax has it.
    table = pd.DataFrame({"x": [0.0, -5e-324, 5e-324], "zero": [0.0, -0.0, None]})
    found = pre.MaxAbsScaler().fit_transform(table)
    assert found["x"].tolist() == [0.0, -1.0, 1.0]
    assert found["zero"].tolist()[:2] == [0.0, 0.0] and np.isnan(found["zero"][2])
    assert pre.MinMaxScaler().fit_transform(table[["zero"]])["zero"].tolist()[:2] == [0.0, 0.0]


def test_values_unseen_in_fit_leave_the_range_unless_clipped() -> None:
    train, later = pd.DataFrame({"x": [0.0, 10.0]}), pd.DataFrame({"x": [-5.0, 20.0, None]})
    assert pre.MinMaxScaler().fit(train).transform(later)["x"].tolist()[:2] == [-0.5, 2.0]
    clipped = pre.MinMaxScaler(clip=True).fit(train).transform(later)["x"]
    assert clipped.tolist()[:2] == [0.0, 1.0] and np.isnan(clipped[2])


def test_a_smooth_clip_is_the_formula() -> None:
    """RealMLP's, of what is scaled; far values become 3, and nothing overflows on the way."""
    train = frame()
    later = pd.DataFrame({"values": [-1e300, -1e3, 0.0, 5.0, 1e3, 1e10, None]})
    plain, clipped = (pre.RobustScaler(clip=clip).fit(train[["values"]]) for clip in (None, "smooth"))
    scaled = (later["values"].to_numpy() - plain.center_[0]) / plain.scale_[0]
    expected = scaled / np.sqrt(1 + (np.clip(scaled, -1e100, 1e100) / 3) ** 2)
    expected[0] = -3.0
    found = clipped.transform(later)["values"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.iloc[5] == 3.0 and np.isnan(found.iloc[6])
    small = pd.DataFrame({"values": plain.center_[0] + plain.scale_[0] * np.array([-1e-3, 1e-3])})
    np.testing.assert_allclose(clipped.transform(small), plain.transform(small), rtol=1e-5)


def test_a_smooth_clip_is_undone_as_far_as_float32_tells() -> None:
    train = frame()[["values", "skewed"]]
    step = pre.RobustScaler(clip="smooth").fit(train)
    np.testing.assert_allclose(step.inverse_transform(step.transform(train)), train, rtol=1e-4, atol=1e-4)
    far = pd.DataFrame({"values": [1e9, -1e9, 1e3], "skewed": [1.0, 1.0, 1.0]})
    back = step.inverse_transform(step.transform(far))["values"].to_numpy()
    scales = (back - step.center_[0]) / step.scale_[0]
    assert scales[:2] == pytest.approx([7524.8, -7524.8], abs=0.1)  # of the last float32 before 3
    assert back[2] == pytest.approx(1e3, rel=1e-3)
    beyond = step.inverse_transform(pd.DataFrame({"values": [99.0], "skewed": [0.0]}))["values"]
    assert beyond.iloc[0] == back[0]


def nothing_tiny(value: float) -> float:
    """Zero for what others, divided by it, would not fit float32: an error, and no matter of the inverse."""
    return value if abs(value) > 1e-20 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("step", [*EVERY, pre.MinMaxScaler((-3, 8))], ids=repr)
@settings(deadline=None, max_examples=40)
@given(values=st.lists(st.none() | st.floats(-1e6, 1e6, width=32).map(nothing_tiny), min_size=1, max_size=20))
def test_the_inverse_undoes_it(step: Any, values: list[float | None]) -> None:
    table = pd.DataFrame({"x": pd.array(values, dtype="float64")}, index=range(7, 7 + len(values)))
    if table["x"].isna().all():
        return
    back = step.inverse_transform(step.fit_transform(table))
    assert back.index.equals(table.index)
    spread = float(np.ptp(table["x"].dropna()))
    np.testing.assert_allclose(back["x"], table["x"], rtol=1e-5, atol=1e-5 * spread + 1e-30)


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_what_is_refused(step: Any) -> None:
    kind = type(step).__name__
    with pytest.raises(errors.BadData, match=rf"{kind}, column 'x': 2 infinite values, got inf(.|\n)*clip\(x"):
        step.fit(pd.DataFrame({"x": [1.0, np.inf, -np.inf, None]}))
    with pytest.raises(errors.BadData, match=r"column 'x': it has no value(.|\n)*strategy='constant'"):
        step.fit(pd.DataFrame({"y": [1.0, 2.0], "x": [np.nan, np.nan]}))
    with pytest.raises(errors.BadData, match="column 'x': it has no value"):
        step.fit(pd.DataFrame({"x": np.zeros(0)}))
    with pytest.raises(errors.SchemaMismatch, match=r"column 'x': not a number, got 'string'(.|\n)*Categorify"):
        step.fit(pd.DataFrame({"x": ["a"]}))
    with pytest.raises(errors.SchemaMismatch, match=r"column 'x': not a number, got 'timestamp'(.|\n)*hour\(x\)"):
        step.fit(pd.DataFrame({"x": pd.to_datetime(["2013-01-01"])}))
    step.fit(pd.DataFrame({"x": [1.0, 2.0]}))
    with pytest.raises(errors.BadData, match="1 infinite value, got -inf"):
        step.transform(pd.DataFrame({"x": [1.0, -np.inf]}))
    with pytest.raises(errors.BadData, match="a result does not fit float32, got 1e"):
        step.transform(pd.DataFrame({"x": [1.0, 1e60]}))
    with pytest.raises(errors.ColumnNotFound, match="'x' not found"):
        step.transform(pd.DataFrame({"z": [1.0]}))


def test_values_that_cannot_be_squared_are_refused_wherever_they_meet() -> None:
    with raises(errors.BadData, where="StandardScaler, column 'x'", got=1e200):
        pre.StandardScaler().fit(pd.DataFrame({"x": [1e200, 0.0]}))
    with raises(errors.BadData, where="MinMaxScaler, column 'x'", expected="values less than 1.8e308 apart"):
        pre.MinMaxScaler().fit(pd.DataFrame({"x": [1.7e308, -1.7e308]}))


def test_bad_ranges() -> None:
    for make, pair in [
        (lambda: pre.MinMaxScaler((1, 1)), (1, 1)),
        (lambda: pre.RobustScaler(quantile_range=(80, 20)), (80, 20)),
        (lambda: pre.RobustScaler(quantile_range=(-1, 20)), (-1, 20)),
        (lambda: pre.RobustScaler(quantile_range=(0, 50), unit_variance=True), (0, 50)),
    ]:
        with pytest.raises(errors.BadConfig) as caught:
            make()
        assert caught.value.got == pair


def test_a_clip_there_is_none_of() -> None:
    with raises(errors.BadConfig, where="RobustScaler(clip=)", got="hard"):
        pre.RobustScaler(clip="hard")  # type: ignore[arg-type]


def test_an_infinity_is_not_clipped() -> None:
    step = pre.RobustScaler(clip="smooth").fit(pd.DataFrame({"x": [1.0, 2.0, 3.0]}))
    with raises(errors.BadData, where="RobustScaler, column 'x'", got=float("-inf")):
        step.transform(pd.DataFrame({"x": [1.0, -np.inf]}))


def test_ids_are_not_numbers() -> None:
    ids = pre.Categorify().fit(pd.DataFrame({"x": ["a"]})).output_fields([Field("x", "string")])
    with raises(errors.SchemaMismatch, where="StandardScaler, column 'x'", got="categorical"):
        pre.StandardScaler().output_fields(ids)
