"""Groups, classes, folds and gaps: which part every row is in, whatever the partitions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import TimeSeriesSplit

import gpupipe as gp
from gpupipe.errors import BadConfig, ColumnNotFound
from tests.examples import examples
from tests.io.tables import DATA, values
from tests.raising import raises

several = examples(25)
FLIGHTS = DATA / "flights.parquet"


def table(rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    kind = pd.Series(rng.choice(["a", "b", "c"], rows, p=[0.7, 0.28, 0.02]), dtype="str")
    return pd.DataFrame(
        {"row": np.arange(rows), "kind": kind.where(rng.random(rows) > 0.05), "tail": rng.integers(0, 40, rows)}
    )


def rows(part: gp.Dataset) -> list[int]:
    return values(part, "row")


@pytest.mark.slow
def test_no_group_is_in_two_parts() -> None:
    flights = gp.read_parquet(FLIGHTS, columns=["tailnum", "flight"])
    parts = [set(values(part, "tailnum")) for part in flights.split(by="tailnum", fraction=(0.8, 0.1, 0.1))]
    assert not any(parts[i] & parts[j] for i in range(3) for j in range(i))
    assert 0.75 < len(parts[0]) / sum(map(len, parts)) < 0.85


@pytest.mark.slow
@several
@given(
    num_rows=st.integers(0, 300),
    shares=st.sampled_from([0.5, 0.9, (0.8, 0.1, 0.1), (0.3, 0.3, 0.4)]),
    seed=st.integers(-(2**40), 2**40),
)
def test_each_class_is_shared_out_to_a_row(num_rows: int, shares: Any, seed: int) -> None:
    frame, seen = table(num_rows, abs(seed) % 1000), []
    for num_partitions in (1, 2, 7, 16):
        dataset = gp.from_frame(frame, num_partitions=num_partitions).filter("row % 7 != 3")
        seen.append([rows(part) for part in dataset.split(fraction=shares, seed=seed, stratify="kind")])
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert sorted(row for part in seen[0] for row in part) == [row for row in range(num_rows) if row % 7 != 3]
    frame = frame[frame["row"] % 7 != 3].fillna({"kind": "none"})
    each = [shares, 1 - shares] if isinstance(shares, float) else shares
    for share, part in zip(each, seen[0], strict=True):
        found = frame.loc[frame["row"].isin(part), "kind"].value_counts()
        for kind, count in frame["kind"].value_counts().items():
            assert abs(found.get(kind, 0) - share * count) <= 1, (kind, share)


@pytest.mark.slow
def test_classes_of_the_shipped_flights() -> None:
    flights = gp.read_parquet(FLIGHTS, columns=["month", "flight"], partition_bytes=1 << 20)
    train, test = flights.split(fraction=0.75, stratify="month", seed=3)
    whole = pd.read_parquet(FLIGHTS, columns=["month"])["month"].value_counts()
    for part, share in ((train, 0.75), (test, 0.25)):
        counts = pd.Series(values(part, "month")).value_counts()
        assert (abs(counts - share * whole) <= 1).all()
    assert 0.7 < len(set(values(train, "flight")[:1000])) / len(set(values(test, "flight")[:1000])) < 1.4
    other = flights.split(fraction=0.75, stratify="month", seed=4)[0]
    assert values(other, "flight")[:100] != values(train, "flight")[:100]


def test_a_part_is_shared_out_again() -> None:
    dataset = gp.from_frame(table(20_000))
    _, rest = dataset.split(fraction=0.6, stratify="kind")
    valid, test = rest.split(fraction=0.5, stratify="kind")
    assert abs(len(valid) - len(test)) <= 4 and abs(len(valid) - 4000) <= 8
    assert sorted(rows(valid) + rows(test)) == rows(rest)
    assert abs(len(rest.split(fraction=0.5)[0]) - 4000) < 300


@pytest.mark.slow
@several
@given(
    num_rows=st.integers(0, 120),
    n_splits=st.integers(2, 7),
    how=st.sampled_from([{}, {"by": "tail"}, {"stratify": "kind"}]),
    seed=st.integers(0, 9),
)
def test_every_row_is_validated_once(num_rows: int, n_splits: int, how: dict[str, Any], seed: int) -> None:
    frame, seen = table(num_rows, seed), []
    for num_partitions in (1, 5):
        dataset = gp.from_frame(frame, num_partitions=num_partitions)
        if "by" in how and frame["tail"].nunique() < n_splits:
            with raises(BadConfig, where="kfold(by='tail')", got=n_splits):
                dataset.kfold(n_splits, seed=seed, **how)
            return
        seen.append([(rows(a), rows(b)) for a, b in dataset.kfold(n_splits, seed=seed, **how)])
    assert seen[0] == seen[1] and len(seen[0]) == n_splits
    for train, valid in seen[0]:
        assert sorted(train + valid) == list(range(num_rows)) and train == sorted(train)
        if "by" in how:
            assert not set(frame["tail"][train]) & set(frame["tail"][valid])
        if "stratify" in how:
            counts, total = (part["kind"].fillna("none").value_counts() for part in (frame.loc[valid], frame))
            assert all(abs(counts.get(kind, 0) - total[kind] / n_splits) <= 1 for kind in total.index)
    assert sorted(row for _, valid in seen[0] for row in valid) == list(range(num_rows))


def test_folds_are_nearly_of_equal_size_and_cost_no_read() -> None:
    flights = gp.read_parquet(FLIGHTS, columns=["flight"])
    pairs = flights.kfold(4, seed=2)
    assert flights.reads.passes == 0
    for train, valid in pairs:
        assert abs(len(valid) / len(flights) - 0.25) < 0.005 and len(train) + len(valid) == len(flights)


@pytest.mark.parametrize("gap", [timedelta(days=2), np.timedelta64(2, "D"), pd.Timedelta("2D"), "2 days", "48 hours"])
def test_rows_in_the_gap_belong_to_no_part(gap: Any) -> None:
    days = pd.DataFrame({"row": range(10), "t": pd.date_range("2013-01-01", periods=10)})
    parts = gp.from_frame(days).split(by="t", at=["2013-01-04", "2013-01-08"], gap=gap)
    assert [rows(part) for part in parts] == [[0], [3, 4], [7, 8, 9]]


def test_a_gap_is_where_scikit_learn_leaves_it() -> None:
    dataset = gp.from_frame(pd.DataFrame({"row": range(20)}))
    train, test = list(TimeSeriesSplit(n_splits=3, gap=2).split(np.zeros(20)))[-1]
    left, right = dataset.split(by="row", at=int(test[0]), gap=2)
    assert (rows(left), rows(right)) == (train.tolist(), test.tolist())
    assert [rows(part) for part in dataset.split(by="row", at=5, gap=0.5)] == [[0, 1, 2, 3, 4], list(range(5, 20))]


def test_calls_that_make_no_sense() -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": [1, 2], "s": ["a", "b"], "t": pd.to_datetime(["2013-01-01"] * 2)}))
    for call in (
        {"fraction": 0.5, "gap": 1},
        {"by": "n", "at": 1, "stratify": "s"},
        {"by": "n", "fraction": 0.5, "stratify": "n"},
    ):
        with pytest.raises(BadConfig, match="not one way to split"):
            dataset.split(**call)
    for by, at, gap in (
        ("n", 1, 0),
        ("n", 1, -1),
        ("n", 1, "2 days"),
        ("t", "2013-01-01", 3),
        ("t", "2013-01-01", "x"),
    ):
        with pytest.raises(BadConfig, match="no width of values"):
            dataset.split(by=by, at=at, gap=gap)
    with raises(BadConfig, where="split(by='t', gap=)", got="999999999999 weeks"):
        dataset.split(by="t", at="2013-01-01", gap="999999999999 weeks")
    for fraction in (float("nan"), "half", (0.5, float("nan"), 0.5), []):
        with pytest.raises(BadConfig, match="do not make up a whole"):
            dataset.split(fraction=fraction)
    for seed in (None, 1.5, "7"):
        with raises(BadConfig, where="split(seed=)", remedy="seed=0"):
            dataset.split(fraction=0.5, seed=seed)
    for number in (None, "five", 2.5):
        with raises(BadConfig, where="kfold(n_splits=)", remedy="n_splits=2"):
            dataset.kfold(number)
    with raises(BadConfig, where="split(by='n', gap=)", got=1):
        dataset.split(by="n", at=[1, 2], gap=1)
    with raises(BadConfig, where="split(by='s', gap=)", got=1):
        dataset.split(by="s", at="b", gap=1)
    with raises(BadConfig, where="split", got=1.5):
        dataset.split(fraction=1.5, stratify="s")
    with raises(BadConfig, where="kfold(n_splits=)", got=1):
        dataset.kfold(1)
    with pytest.raises(BadConfig, match="not one way to split"):
        dataset.kfold(by="n", stratify="n")
    for call in ({"by": "m"}, {"stratify": "m"}):
        with raises(ColumnNotFound, where="kfold", column="m"):
            dataset.kfold(**call)
        with raises(ColumnNotFound, where="split", column="m"):
            dataset.split(fraction=0.5, **call)
    for name in ("by", "stratify"):
        for split in (lambda **one: dataset.split(fraction=0.5, **one), dataset.kfold):
            with pytest.raises(BadConfig, match=rf"(?s){name} is not one column, got \['n', 's'\]"):
                split(**{name: ["n", "s"]})


def test_numbers_come_from_numpy_too() -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": range(100)}))
    plain, other = dataset.split(fraction=0.5, seed=3), dataset.split(fraction=np.array([0.5, 0.5]), seed=np.int64(3))
    assert [len(part) for part in plain] == [len(part) for part in other]
    assert len(dataset.split(fraction=np.float32(0.5))) == 2
    assert [len(part) for part in dataset.split(by="n", at=50, gap=np.int64(10))] == [40, 50]
    assert len(dataset.kfold(np.int64(2))) == 2


def test_a_column_of_too_many_values_has_no_strata() -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": np.arange(20_000)}))
    with raises(BadConfig, where="split(stratify='n')", match="more than 10,000 values"):
        dataset.split(fraction=0.5, stratify="n")


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_classes_of_few_rows_miss_no_part_all_together(size: int) -> None:
    frame = pd.DataFrame({"row": np.arange(600 * size), "kind": np.arange(600 * size) % 600})
    dataset = gp.from_frame(frame)
    shares = [len(part) / len(frame) for part in dataset.split(fraction=(0.8, 0.1, 0.1), stratify="kind")]
    assert np.allclose(shares, (0.8, 0.1, 0.1), atol=0.04)
    folds = [len(valid) / len(frame) for _, valid in dataset.kfold(5, stratify="kind")]
    assert np.allclose(folds, 0.2, atol=0.05)


def test_an_expression_is_told_how_to_become_a_column() -> None:
    dataset = gp.from_frame(pd.DataFrame({"x": range(20)}))
    with raises(BadConfig, where="kfold", got="x > 5", match="a key is an expression") as caught:
        dataset.kfold(2, stratify="x > 5")
    assert caught.value.remedy == "data.assign(key='x > 5').kfold(stratify='key')"
    folds = dataset.assign(key="x > 5").kfold(2, stratify="key")
    assert [int(valid.compute()["key"].sum()) for _, valid in folds] == [7, 7]
