"""Stratified splits by groups: no group is in two parts, and classes are as even as scikit-learn has them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

import gpupipe as gp
from gpupipe.errors import BadConfig
from gpupipe.io.planning import group_split
from tests.io.tables import DATA, values
from tests.raising import raises


def table(num_rows: int, num_groups: int, seed: int = 0) -> pd.DataFrame:
    """Groups of very different sizes, each with a share of positives of its own."""
    rng = np.random.default_rng(seed)
    groups = np.minimum(rng.geometric(3 / num_groups, num_rows), num_groups)
    positive = rng.random(num_rows) < rng.beta(0.5, 4, num_groups + 1)[groups]
    tails = pd.Series([f"N{group}" for group in groups], dtype="str").where(groups > 1)
    return pd.DataFrame({"row": np.arange(num_rows), "tail": tails, "late": positive})


def unevenness(frame: pd.DataFrame, folds: list[np.ndarray]) -> float:
    """The largest distance of a fold's share of a class's rows from an equal one."""
    late = frame["late"].to_numpy()
    shares = [[(late[fold] == kind).sum() / (late == kind).sum() for kind in (False, True)] for fold in folds]
    return float(np.abs(np.array(shares) * len(folds) - 1).max())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_folds_are_as_even_as_scikit_learns(seed: int) -> None:
    frame = table(4000, 150, seed)
    folds = gp.from_frame(frame).kfold(5, by="tail", stratify="late", seed=seed)
    ours = [np.array(values(valid, "row")) for _, valid in folds]
    assert sorted(np.concatenate(ours)) == list(range(4000))
    tails = frame["tail"].fillna("none")
    assert all(not set(tails[a]) & set(tails[b]) for i, a in enumerate(ours) for b in ours[:i])
    for (train, _), valid in zip(folds, ours, strict=True):
        assert sorted([*values(train, "row"), *valid]) == list(range(4000))
    groups = StratifiedGroupKFold(5, shuffle=True, random_state=seed).split(frame, frame["late"], tails)
    theirs = [valid for _, valid in groups]
    assert unevenness(frame, ours) <= max(unevenness(frame, theirs), 0.02)


@pytest.mark.slow
def test_the_parts_do_not_depend_on_partitions_but_on_the_seed() -> None:
    frame = table(3000, 400)
    parts = {
        (n, seed): [values(valid, "row") for _, valid in folds]
        for n in (1, 3, 11)
        for seed in (0, 1)
        for folds in [gp.from_frame(frame, num_partitions=n).kfold(4, by="tail", stratify="late", seed=seed)]
    }
    assert parts[1, 0] == parts[3, 0] == parts[11, 0] and parts[1, 1] == parts[11, 1] != parts[1, 0]
    shuffled = gp.from_frame(frame.sample(frac=1, random_state=7)).kfold(4, by="tail", stratify="late")
    assert [sorted(values(valid, "row")) for _, valid in shuffled] == parts[1, 0]  # groups decide, not rows


def test_shares_of_a_split() -> None:
    frame = table(20_000, 900)
    parts = gp.from_frame(frame).split((0.7, 0.2, 0.1), by="tail", stratify="late")
    for share, part in zip((0.7, 0.2, 0.1), parts, strict=True):
        late = part.to_pandas()["late"]
        assert abs(len(part) / 20_000 - share) < 0.01
        assert abs(late.sum() / frame["late"].sum() - share) < 0.01
    again = parts[0].split(0.5, by="tail", stratify="late")
    assert abs(len(again[0]) - len(parts[0]) / 2) < 0.02 * len(parts[0])


@pytest.mark.slow
def test_several_classes_of_the_flights() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", columns=["tailnum", "carrier"])
    folds = flights.kfold(5, by="tailnum", stratify="carrier")
    counts = [pd.Series(values(valid, "carrier")).value_counts() for _, valid in folds]
    whole = pd.Series(values(flights, "carrier")).value_counts()
    large = whole.index[whole > 5000]
    assert all(abs(count[name] * 5 / whole[name] - 1) < 0.03 for count in counts for name in large)
    sizes = [f"{len(valid) / len(flights):.1%}" for _, valid in folds]
    assert [valid for _, valid in folds.cells] == sizes


def test_each_part_has_an_identity_for_jobs_that_go_on() -> None:
    data = gp.from_frame(table(500, 40))
    identities = {
        part.query.identity()
        for seed in (0, 1)
        for pair in data.kfold(3, by="tail", stratify="late", seed=seed)
        for part in pair
    }
    assert None not in identities and len(identities) == 12


@pytest.mark.slow
def test_few_groups_leave_no_fold_empty() -> None:
    sizes = {"LGA": 3, "JFK": 40, "EWR": 5, None: 8}
    frame = pd.DataFrame({"port": [port for port, size in sizes.items() for _ in range(size)]})
    for seed in range(20):
        folds = gp.from_frame(frame, num_partitions=3).kfold(4, by="port", seed=seed)
        assert sorted(len(valid) for _, valid in folds) == [3, 5, 8, 40]
        assert all(len(train) + len(valid) == 56 for train, valid in folds)
    assert [valid for _, valid in folds.cells] == [f"{len(valid) / 56:.1%}" for _, valid in folds]
    with raises(BadConfig, where="kfold(by='port')", got=5, match="column 'port' has 4 values"):
        gp.from_frame(frame).kfold(5, by="port")
    with raises(BadConfig, where="kfold(by='port')", got=2, match="column 'port' has 0 values"):
        gp.from_frame(frame[:0]).kfold(2, by="port")


def test_folds_of_groups_are_as_even_as_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table(4000, 150)
    groups = GroupKFold(5).split(frame, groups=frame["tail"].fillna("none"))
    theirs = sorted(len(valid) for _, valid in groups)
    assert sorted(len(valid) for _, valid in gp.from_frame(frame).kfold(5, by="tail")) == theirs
    monkeypatch.setattr(group_split, "MOST_GROUPS", 100)  # of more, chance makes the folds even enough
    many = gp.from_frame(frame).kfold(5, by="tail")
    assert [valid for _, valid in many.cells] == ["20.0%"] * 5
    assert sum(len(valid) for _, valid in many) == 4000


def test_calls_that_make_no_sense() -> None:
    frame = pd.DataFrame({"n": np.arange(12_000), "few": np.arange(12_000) % 2, "class": np.arange(12_000) % 3})
    data = gp.from_frame(frame)
    with raises(BadConfig, where="kfold(by='few')", got=3, match="column 'few' has 2 values"):
        data.kfold(3, by="few", stratify="class")
    with raises(BadConfig, where="split(by='few')", got=3, match="column 'few' has 2 values"):
        data.split((0.5, 0.3, 0.2), by="few", stratify="class")
    with raises(BadConfig, where="split(stratify='n')", match="more than 10,000 values"):
        data.kfold(3, by="class", stratify="n")
    with pytest.raises(BadConfig, match="not one way to split"):
        data.kfold(3, by="class", stratify="class")
    heavy = gp.from_frame(pd.DataFrame({"group": [0] * 97 + [1, 2, 3], "class": [0, 1] * 50}))
    assert [len(valid) for _, valid in heavy.kfold(2, by="group", stratify="class")] == [97, 3]
