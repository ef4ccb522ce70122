"""Areas, curves and thresholds of one sort, against scikit-learn: weights, ties, rows without weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpupipe.errors import BadData
from gpupipe.training.loop.ranking import DECISION_METRICS, Ranking
from tests.examples import examples

SCORES: dict[str, Callable[..., float]] = {
    "f1": lambda y, p, w: sk.f1_score(y, p, sample_weight=w, zero_division=0),
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p, sample_weight=w),
    "balanced_accuracy": lambda y, p, w: sk.balanced_accuracy_score(y, p, sample_weight=w),
    "mcc": lambda y, p, w: sk.matthews_corrcoef(y, p, sample_weight=w),
    "kappa": lambda y, p, w: sk.cohen_kappa_score(y, p, sample_weight=w),
    "precision": lambda y, p, w: sk.precision_score(y, p, sample_weight=w, zero_division=0),
    "recall": lambda y, p, w: sk.recall_score(y, p, sample_weight=w, zero_division=0),
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores with or without ties, both classes, weights or none."""
    count, levels = draw(st.integers(0, 25)), draw(st.sampled_from([2, 6, 10**6]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scores = torch.randint(-levels, levels + 1, (count + 2,), generator=generator) * (4 / levels)
    truth = torch.cat([torch.tensor([True, False]), torch.rand(count, generator=generator) < 0.4])
    weight = torch.rand(count + 2, generator=generator) + 0.01 if draw(st.booleans()) else None
    return scores, truth, weight


def to_numpy(*parts: Tensor | None) -> list[Any]:
    return [None if part is None else part.double().numpy() for part in parts]


@examples(40)
@given(rows())
def test_areas_and_curves_are_scikit_learns(drawn: tuple[Tensor, Tensor, Tensor | None]) -> None:
    scores, truth, weight = drawn
    ranking, (s, y, w) = Ranking(scores, truth, weight), to_numpy(*drawn)
    assert float(ranking.roc_auc()) == pytest.approx(sk.roc_auc_score(y, s, sample_weight=w), abs=1e-12)
    assert float(ranking.average_precision()) == pytest.approx(sk.average_precision_score(y, s, sample_weight=w))
    for found, expected in (
        (ranking.roc_curve(), sk.roc_curve(y, s, sample_weight=w, drop_intermediate=False)),
        (ranking.precision_recall_curve(), sk.precision_recall_curve(y, s, sample_weight=w)),
    ):
        for part, whole in zip(found, expected, strict=True):
            np.testing.assert_allclose(part, whole, atol=1e-12)


@pytest.mark.slow
@examples(12)
@given(drawn=rows())
@pytest.mark.parametrize("name", list(DECISION_METRICS))
def test_no_threshold_is_better_than_the_one_chosen(name: str, drawn: tuple[Tensor, Tensor, Tensor | None]) -> None:
    scores, truth, weight = drawn
    threshold = Ranking(scores, truth, weight).choose_threshold(torch.sigmoid, name)
    probability, y, w = to_numpy(scores.sigmoid(), truth, weight)
    values = [SCORES[name](y, probability >= each, w) for each in [*np.unique(probability), 1.1]]
    assert 0 < threshold < 1
    assert SCORES[name](y, probability >= threshold, w) == pytest.approx(max(values), abs=1e-9)


@examples(12)
@given(drawn=rows(), least=st.floats(0.05, 1.0))
def test_a_precision_is_had_at_the_highest_recall(drawn: tuple[Tensor, Tensor, Tensor | None], least: float) -> None:
    scores, truth, weight = drawn
    probability, y, w = to_numpy(scores.sigmoid(), truth, weight)
    decisions = [probability >= each for each in np.unique(probability)]
    values = [SCORES["recall"](y, yes, w) for yes in decisions if SCORES["precision"](y, yes, w) >= least]
    ranking = Ranking(scores, truth, weight)
    if not values:
        with pytest.raises(BadData, match="no threshold has precision"):
            ranking.choose_threshold(torch.sigmoid, "recall", min_precision=least)
        return
    threshold = ranking.choose_threshold(torch.sigmoid, "recall", min_precision=least)
    assert SCORES["precision"](y, probability >= threshold, w) >= least - 1e-9
    assert SCORES["recall"](y, probability >= threshold, w) == pytest.approx(max(values), abs=1e-9)


def test_what_errors_cost_moves_the_threshold() -> None:
    scores, truth = torch.tensor([2.0, 1.0, 0.0, -1.0]), torch.tensor([True, False, True, False])
    probability = scores.sigmoid()

    def taken(cost: tuple[float, float]) -> list[bool]:
        threshold = Ranking(scores, truth).choose_threshold(torch.sigmoid, "f1", cost=cost)
        return (probability >= threshold).tolist()

    assert taken((1, 5)) == [True, True, True, False]
    assert taken((5, 1)) == [True, False, False, False]
    worthless = Ranking(-scores, truth).choose_threshold(torch.sigmoid, "f1", cost=(5, 1))
    assert not ((-scores).sigmoid() >= worthless).any()  # saying no to all costs least


def test_rows_that_rounding_cannot_tell_apart_are_not_cut() -> None:
    scores = torch.tensor([30.0, 25.0, 20.0, 1.0])  # of the first three the probability is 1.0 in float32
    threshold = Ranking(scores, torch.tensor([True, False, True, False])).choose_threshold(torch.sigmoid, "precision")
    assert (scores.sigmoid() >= threshold).tolist() == [True, True, True, False] and threshold < 1


def test_adjacent_probabilities_are_told_apart() -> None:
    scores = torch.tensor([0.5, 0.5 - 3e-7])
    assert float(scores.sigmoid()[0]) > float(scores.sigmoid()[1])
    threshold = Ranking(scores, torch.tensor([True, False])).choose_threshold(torch.sigmoid, "f1")
    assert (scores.sigmoid().double() >= threshold).tolist() == [True, False]


def test_a_thinned_curve_is_part_of_the_whole_one() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(20_000, generator=generator) < 0.3
    whole = Ranking(torch.randn(20_000, generator=generator) + truth.float(), truth)
    thin = whole.thin(500)
    assert 250 < len(thin.scores) <= 500 and set(thin.scores.tolist()) <= set(whole.scores.tolist())
    assert float(thin.roc_auc()) == pytest.approx(float(whole.roc_auc()), abs=1e-4)
    assert [float(end) for end in thin.ends] == [float(end) for end in whole.ends]
    assert whole.thin(10**6) is whole


@pytest.mark.parametrize("truth", [[], [True, True], [False, False]])
def test_what_one_class_cannot_tell_is_nan(truth: list[bool]) -> None:
    ranking = Ranking(torch.arange(len(truth)).float(), torch.tensor(truth, dtype=torch.bool))
    assert torch.isnan(ranking.roc_auc())
    assert torch.isnan(ranking.average_precision()) == (not any(truth))
