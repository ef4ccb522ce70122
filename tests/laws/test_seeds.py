"""Seeds that are neighbours make independent choices: no copy, no shift, and no dependence on a column beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import Column, select
from gpupipe.preprocessing.steps.gathered import _uniform
from gpupipe.preprocessing.summaries import GatheredRows
from gpupipe.tensors.order import ByBlocks, Drawn, Permutation

ROWS = 8192
LAGS = range(-3, 4)
FRAME = pd.DataFrame({"row": np.arange(ROWS)})


def dataset() -> gp.Dataset:
    return gp.from_frame(FRAME, partition_bytes=1 << 14)


def chosen(rows: Any) -> np.ndarray:
    """Which of the rows are among those kept, as 0 and 1."""
    return np.isin(FRAME["row"], rows).astype(int)


def of_part(parts: Any) -> np.ndarray:
    label = np.zeros(ROWS, dtype=int)
    for number, part in enumerate(parts):
        label[part.compute()["row"]] = number
    return label


def place(order: Any) -> np.ndarray:
    """The quarter of the order in which each row comes."""
    places = np.empty(ROWS, dtype=int)
    places[np.asarray(order)] = np.arange(ROWS)
    return places * 4 // ROWS


def bucket(seed: int) -> np.ndarray:
    return pre.HashBucket(4, seed=seed).fit_transform(FRAME)["row"].to_numpy() - 2


def cross(seed: int) -> np.ndarray:
    return pre.HashedCross(4, seed=seed).fit_transform(FRAME.assign(b=7))["row_x_b"].to_numpy() - 2


def folds(seed: int) -> np.ndarray:
    return pre.TargetEncoder(cv=4, random_state=seed).folds(np.arange(ROWS), np)


def gathered(seed: int) -> np.ndarray:
    columns = {"row": Column("float64", FRAME["row"].to_numpy(dtype="float64"))}
    rows = GatheredRows.of(
        columns, select("cpu"), "KMeans", row_numbers=np.arange(ROWS), max_rows=ROWS * 3 // 4, seed=seed
    )
    return chosen(rows.block()[:, 0])


def start(seed: int) -> np.ndarray:
    return (_uniform(seed, 0, ROWS) * 4).astype(int)


def sample_step(seed: int) -> np.ndarray:
    return chosen(gp.Pipeline([T.Sample(0.5, seed=seed)]).fit(FRAME).transform(FRAME)["row"])


def drawn(seed: int) -> np.ndarray:
    return Drawn(torch.arange(1, ROWS + 1), seed=seed, epoch=0).at(0, ROWS, torch.device("cpu")).numpy() * 4 // ROWS


def blocks(seed: int) -> np.ndarray:
    # Of one row each: the rows of a larger block lie in one window, and would count as one row in the table.
    return place(ByBlocks(ROWS, 1, 64, seed=seed, epoch=0).at(0, ROWS, torch.device("cpu")))


CHOICES: dict[str, Callable[[int], np.ndarray]] = {
    "HashBucket": bucket,
    "HashedCross": cross,
    "TargetEncoder": folds,
    "gathered rows": gathered,
    "k-means++": start,
    "Sample": sample_step,
    "sample": lambda seed: chosen(dataset().sample(n=ROWS // 2, seed=seed).compute()["row"]),
    "split": lambda seed: of_part(dataset().split(fraction=[0.25] * 4, seed=seed)),
    "split by": lambda seed: of_part(dataset().split(fraction=[0.25] * 4, by="row", seed=seed)),
    "second split": lambda seed: of_part(dataset().split(fraction=0.999999, seed=9)[0].split(fraction=0.5, seed=seed)),
    "kfold": lambda seed: of_part(part for _, part in dataset().kfold(4, seed=seed)),
    "shuffle": lambda seed: place(dataset().shuffle(seed=seed).compute()["row"]),
    "loader by rows": lambda seed: place(Permutation(ROWS, seed=seed).order("cpu")),
    "loader by blocks": blocks,
    "sampler": drawn,
}


def dependence(one: np.ndarray, other: np.ndarray) -> float:
    """How many standard deviations the chi-square of the two labels' table lies above what independence gives."""
    table = np.zeros((one.max() + 1, other.max() + 1))
    np.add.at(table, (one, other), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    freedom = (len(table) - 1) * (table.shape[1] - 1)
    return float((((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def pairs(one: np.ndarray, other: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for lag in LAGS:
        yield (one[: ROWS - lag], other[lag:]) if lag >= 0 else (one[-lag:], other[:lag])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("seed", [0, 41])
def test_neighbouring_seeds_are_independent(choice: str, seed: int) -> None:
    """A shift or a copy lies hundreds of standard deviations away; chance passes 12 less than once in a million."""
    one, other = CHOICES[choice](seed), CHOICES[choice](seed + 1)
    assert max(dependence(*pair) for pair in pairs(one, other)) < 12


@pytest.mark.parametrize("num_buckets", [256, 1024, 1000])
def test_values_that_share_a_bucket_beside_one_value_do_not_share_it_beside_another(num_buckets: int) -> None:
    """In a cross the buckets of one column's values are drawn anew for each value of the other."""
    values, beside = 400, 200
    frame = pd.DataFrame({"b": np.tile(np.arange(values), beside), "a": np.repeat(np.arange(beside), values)})
    ids = pre.HashedCross(num_buckets).fit_transform(frame)["b_x_a"].to_numpy().reshape(beside, values)
    first, second = np.triu_indices(values, 1)
    together = ids[0][first] == ids[0][second]
    share = np.mean([(row[first[together]] == row[second[together]]).mean() for row in ids[1:]])
    assert share < 3 / num_buckets
    assert len({tuple(column) for column in ids.T}) == values


def test_the_places_of_a_cross_are_independent() -> None:
    """The same values in another column are in other buckets."""
    beside = pd.DataFrame({"a": FRAME["row"], "b": 7})
    one = pre.HashedCross(4).fit_transform(beside)["a_x_b"].to_numpy() - 2
    other = pre.HashedCross(4).fit_transform(beside[["b", "a"]])["b_x_a"].to_numpy() - 2
    assert max(dependence(*pair) for pair in pairs(one, other)) < 12
