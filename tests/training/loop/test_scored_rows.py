"""What scored rows tell, against scikit-learn and NumPy: weights, ties, several targets, no rows, one class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from gpupipe.errors import BadConfig, BadData
from gpupipe.training.loop.scored_rows import ScoredRows, check_threshold, compute_quantiles
from tests.examples import examples
from tests.raising import raises

CLASSES, TARGETS = ["S", "M", "L"], ["late", "cancelled"]


def binary(seed: int = 0, count: int = 200, *, weighted: bool = False, levels: int = 10**6) -> ScoredRows:
    draw = torch.Generator().manual_seed(seed)
    output = torch.randint(-levels, levels + 1, (count,), generator=draw) * (4 / levels)
    target = (torch.rand(count, generator=draw) < output.sigmoid()).float()
    target[:2] = torch.tensor([0.0, 1.0])
    weight = torch.rand(count, generator=draw) + 0.01 if weighted else None
    return ScoredRows(output, target, weight, task="binary", labels=["no", "yes"])


def parts(rows: ScoredRows) -> tuple[Any, Any, Any]:
    """Outputs, targets and weights as NumPy arrays of float64."""
    assert rows._scored is not None
    return tuple(None if part is None else part.double().numpy() for part in rows._scored)


def multiclass(*, weighted: bool = False, classes: int = 3) -> ScoredRows:
    draw = torch.Generator().manual_seed(1)
    output = torch.randn(150, classes, generator=draw).mul(2).round().div(2)  # with ties
    target = torch.randint(classes, (150,), generator=draw, dtype=torch.int32)
    weight = torch.rand(150, generator=draw) + 0.1 if weighted else None
    return ScoredRows(output, target, weight, task="multiclass", labels=CLASSES[:classes])


def multilabel(**options: Any) -> ScoredRows:
    draw = torch.Generator().manual_seed(2)
    output = torch.randn(150, 2, generator=draw)
    target = (torch.rand(150, 2, generator=draw) < 0.3).float()
    return ScoredRows(output, target, None, task="multilabel", labels=TARGETS, **options)


def regression(*, weighted: bool = False) -> ScoredRows:
    draw = torch.Generator().manual_seed(3)
    output = torch.randn(121, generator=draw)
    weight = torch.rand(121, generator=draw) + 0.1 if weighted else None
    return ScoredRows(output, output + torch.randn(121, generator=draw), weight, task="regression", labels=["delay"])


@examples(25)
@given(seed=st.integers(0, 10**6), weighted=st.booleans(), threshold=st.floats(0.0, 1.0))
def test_confusion_is_scikit_learns(seed: int, weighted: bool, threshold: float) -> None:
    rows = binary(seed, 40, weighted=weighted, levels=20)
    (output, target, weight), found = parts(rows), rows.confusion_matrix(threshold)
    taken = torch.as_tensor(output).float().sigmoid().double().numpy() >= threshold
    np.testing.assert_allclose(found, sk.confusion_matrix(target, taken, sample_weight=weight), rtol=1e-9)
    assert found.dtype == (torch.float64 if weighted else torch.int64)


@pytest.mark.parametrize("weighted", [False, True])
def test_confusion_of_classes_and_of_several_targets_is_scikit_learns(weighted: bool) -> None:
    rows = multiclass(weighted=weighted)
    output, target, weight = parts(rows)
    expected = sk.confusion_matrix(target, output.argmax(1), sample_weight=weight)
    np.testing.assert_allclose(rows.confusion_matrix(), expected)
    output, target, _ = parts(multilabel())
    expected = sk.multilabel_confusion_matrix(target, output >= 0)
    np.testing.assert_array_equal(multilabel().confusion_matrix(), expected)
    limits = {"late": 0.2, "cancelled": 0.7}
    limited = multilabel(threshold=limits).confusion_matrix()
    for place, (name, limit) in enumerate(limits.items()):
        taken = torch.as_tensor(output[:, place]).sigmoid() >= limit
        np.testing.assert_array_equal(limited[place], sk.confusion_matrix(target[:, place], taken), err_msg=name)


@examples(20)
@given(seed=st.integers(0, 10**6), weighted=st.booleans(), levels=st.sampled_from([3, 10**6]))
def test_curves_are_scikit_learns_at_probabilities(seed: int, weighted: bool, levels: int) -> None:
    rows = binary(seed, 60, weighted=weighted, levels=levels)
    output, target, weight = parts(rows)
    probability = 1 / (1 + np.exp(-output))
    roc = sk.roc_curve(target, probability, sample_weight=weight, drop_intermediate=False)
    precision_recall = sk.precision_recall_curve(target, probability, sample_weight=weight)
    for name, expected in (("roc", roc), ("precision-recall", precision_recall)):
        for points in (None, 1000):
            for found, part in zip(rows.curve(name, points=points), expected, strict=True):
                np.testing.assert_allclose(found, part, atol=1e-12)


def test_curves_of_one_class_of_several() -> None:
    rows = multiclass(weighted=True)
    output, target, weight = parts(rows)
    probability = torch.as_tensor(output).softmax(1)[:, 1].numpy()
    expected = sk.roc_curve(target == 1, probability, sample_weight=weight, drop_intermediate=False)
    for found, part in zip(rows.curve("roc", label="M"), expected, strict=True):
        np.testing.assert_allclose(found, part, atol=1e-12)
    with raises(BadConfig, where="Report.curve(label=)", got=None) as caught:
        rows.curve("roc")
    assert caught.value.remedy == "label='S'"
    with raises(BadConfig, where="Report.curve(label=)", got="XL", expected="one of 'S', 'M', 'L'"):
        rows.curve("roc", label="XL")
    output, target, _ = parts(multilabel())
    expected = sk.roc_curve(target[:, 1], output[:, 1], drop_intermediate=False)
    np.testing.assert_allclose(multilabel().curve("roc", label="cancelled")[1], expected[1])


def test_a_long_curve_is_thinned_unless_all_points_are_asked_for() -> None:
    rows = binary(count=20_000)
    assert len(rows.curve("roc")[0]) <= 1001 < len(rows.curve("roc", points=None)[0])
    area = np.trapezoid(*(part.numpy() for part in reversed(rows.curve("roc")[:2])))
    output, target, _ = parts(rows)
    assert area == pytest.approx(sk.roc_auc_score(target, output), abs=1e-4)


@examples(20)
@given(seed=st.integers(0, 10**6), bins=st.integers(1, 12), strategy=st.sampled_from(["uniform", "quantile"]))
def test_calibration_is_scikit_learns(seed: int, bins: int, strategy: str) -> None:
    rows = binary(seed, 97)
    output, target, _ = parts(rows)
    expected = calibration_curve(target, 1 / (1 + np.exp(-output)), n_bins=bins, strategy=strategy)
    found = rows.calibration(bins, strategy=strategy)
    np.testing.assert_allclose(found.observed, expected[0])
    np.testing.assert_allclose(found.predicted, expected[1])
    assert found.weight.sum() == 97


def test_calibration_counts_weights_and_has_its_error() -> None:
    rows = binary(weighted=True)
    output, target, weight = parts(rows)
    probability = 1 / (1 + np.exp(-output))
    places, found = np.searchsorted(np.linspace(0, 1, 6)[1:-1], probability), rows.calibration(5)
    error = 0.0
    for place in range(5):
        inside = places == place
        gap = np.average(target[inside] - probability[inside], weights=weight[inside])
        assert float(found.observed[place] - found.predicted[place]) == pytest.approx(gap)
        error += abs(gap) * weight[inside].sum() / weight.sum()
    assert found.error == pytest.approx(error)
    even = rows.calibration(4, strategy="quantile").weight
    assert float(even.max() - even.min()) < 2 * weight.max()


def test_calibration_of_classes_is_that_of_the_likeliest_or_of_one() -> None:
    rows = multiclass()
    output, target, _ = parts(rows)
    probability = torch.as_tensor(output).softmax(1).numpy()
    expected = calibration_curve(probability.argmax(1) == target, probability.max(1), n_bins=10)
    np.testing.assert_allclose(rows.calibration().observed, expected[0])
    expected = calibration_curve(target == 2, probability[:, 2], n_bins=10)
    np.testing.assert_allclose(rows.calibration(label="L").predicted, expected[1])


def test_a_regressions_bins_are_of_equal_weight() -> None:
    rows = regression()
    output, target, _ = parts(rows)
    found = rows.calibration(4)
    parts_of = np.array_split(np.argsort(output), [31, 61, 91])
    np.testing.assert_allclose(found.predicted, [output[part].mean() for part in parts_of])
    np.testing.assert_allclose(found.observed, [target[part].mean() for part in parts_of])


def test_residuals_are_numpys_quantiles_in_the_targets_units() -> None:
    output, target, _ = parts(regression())
    levels = (0.0, 0.1, 0.5, 0.77, 1.0)
    found = regression().residual_quantiles(levels)
    assert list(found) == list(levels)
    np.testing.assert_allclose(list(found.values()), np.quantile(target - output, levels), atol=1e-6)
    tripled = ScoredRows(*regression()._scored, task="regression", labels=["delay"], units=lambda values: 3 * values)
    assert tripled.residual_quantiles()[0.5] == pytest.approx(3 * found[0.5])


@examples(20)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=12), level=st.floats(0, 1))
def test_quantiles_without_weights_are_numpys(values: list[int], level: float) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    found = compute_quantiles(tensor, torch.ones_like(tensor), torch.tensor([level], dtype=torch.float64))
    assert float(found) == pytest.approx(np.quantile(values, level), abs=1e-9)


def test_float16_outputs_are_read() -> None:
    rows = ScoredRows(torch.tensor([-1.0, 1.0]).half().float(), torch.tensor([0.0, 1.0]), None, task="binary")
    assert rows.labels == [0, 1] and rows.confusion_matrix().tolist() == [[1, 0], [0, 1]]


def test_threshold_defaults_to_what_goes_with_the_constraint() -> None:
    rows = binary(count=400)
    assert rows.threshold() == rows.threshold("f1") == rows.threshold(maximize="f1")
    assert rows.threshold(min_precision=0.8) == rows.threshold("recall", min_precision=0.8)
    assert rows.threshold(min_recall=0.8) == rows.threshold("precision", min_recall=0.8)
    assert rows.threshold(min_recall=0.3, min_precision=0.3) == rows.threshold("f1", min_recall=0.3, min_precision=0.3)
    assert rows.threshold(cost=(5, 1)) > rows.threshold(cost=(1, 5))
    labelled = multilabel()
    assert labelled.threshold(label="late") != labelled.threshold(label="cancelled")


@pytest.mark.parametrize("rows", [regression(), multiclass()])
def test_a_threshold_goes_with_two_classes_alone(rows: ScoredRows) -> None:
    with raises(BadConfig, where="Report.threshold", got=rows.task):
        rows.threshold()
    with raises(BadConfig, where="save(threshold=)", got=0.3):
        check_threshold("save", 0.3, rows.task, rows.labels)
    assert check_threshold("save", None, rows.task, rows.labels) is None


@pytest.mark.parametrize("threshold", [0, 1, 1.0, 0.0, -0.1, float("nan"), "0.5", True, None.__class__, {"yes": 0.5}])
def test_a_threshold_is_a_probability_between_0_and_1(threshold: Any) -> None:
    with raises(BadConfig, where="save(threshold=)", got=threshold):
        check_threshold("save", threshold, "binary", ["no", "yes"])


def test_a_threshold_tells_neighbours_in_float32_apart() -> None:
    for start in torch.linspace(0.1, 0.9, 30):
        chances = torch.stack([torch.nextafter(start, torch.tensor(1.0)), start])
        logits = chances.logit()
        if logits.sigmoid()[0] > logits.sigmoid()[1]:
            rows = ScoredRows(logits, torch.tensor([1.0, 0.0]), None, task="binary")
            assert rows.confusion_matrix(rows.threshold()).tolist() == [[1, 0], [0, 1]]


def test_thresholds_by_name_are_completed() -> None:
    assert check_threshold("save", {"late": 0.2}, "multilabel", TARGETS) == {"late": 0.2, "cancelled": 0.5}
    assert check_threshold("save", 0.2, "multilabel", TARGETS) == 0.2
    with raises(BadConfig, where="save(threshold=)"):
        check_threshold("save", {"early": 0.2}, "multilabel", TARGETS)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda rows: rows.curve("auc"), "name"),
        (lambda rows: rows.curve("roc", points=1), "points"),
        (lambda rows: rows.calibration(0), "bins"),
        (lambda rows: rows.calibration(strategy="kmeans"), "strategy"),
        (lambda rows: rows.confusion_matrix(1.5), "threshold"),
        (lambda rows: rows.threshold("auc"), "maximize"),
        (lambda rows: rows.threshold(min_precision=0.0), "min_precision"),
        (lambda rows: rows.threshold(min_recall=1.1), "min_recall"),
        (lambda rows: rows.threshold(cost=(0, 0)), "cost"),
        (lambda rows: rows.threshold(cost=(1, -1)), "cost"),
        (lambda rows: rows.threshold(cost=3), "cost"),
        (lambda rows: rows.threshold("f1", cost=(1, 2)), "cost"),
    ],
)
def test_what_makes_no_sense_is_named(call: Any, argument: str) -> None:
    with pytest.raises(BadConfig) as caught:
        call(binary())
    assert caught.value.where.endswith(f"({argument}=)")
    assert argument != "maximize" or caught.value.remedy == "one of the choices above"


@pytest.mark.parametrize("method", ["confusion_matrix", "threshold"])
def test_a_regression_has_no_decisions(method: str) -> None:
    with raises(BadConfig, where=f"Report.{method}", got="regression"):
        getattr(regression(), method)()
    with raises(BadConfig, where="Report.residual_quantiles", got="binary"):
        binary().residual_quantiles()
    for wrong in (0.5, [1.5]):
        with raises(BadConfig, where="Report.residual_quantiles(quantiles=)", got=wrong):
            regression().residual_quantiles(wrong)


def test_a_matrix_of_classes_takes_no_threshold() -> None:
    with raises(BadConfig, where="Report.confusion_matrix(threshold=)", got=0.3):
        multiclass().confusion_matrix(0.3)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_one_class_has_no_curve_and_no_threshold(value: float) -> None:
    rows = ScoredRows(torch.arange(3.0), torch.full((3,), value), None, task="binary", labels=["no", "yes"])
    for call in (lambda: rows.curve("roc"), rows.threshold):
        with pytest.raises(BadData, match="of one class"):
            call()
    assert rows.confusion_matrix().sum() == 3 and rows.calibration().weight.sum() == 3


def test_nothing_is_told_of_no_rows_or_no_outputs() -> None:
    none = ScoredRows(torch.zeros(0), torch.zeros(0), None, task="binary")
    alone = ScoredRows(None, None, None, task="regression")
    for rows, kind in ((none, BadData), (alone, BadConfig)):
        with raises(kind, where="Report.calibration"):
            rows.calibration()
        assert rows.num_rows == 0


def test_an_unreachable_precision_names_the_highest() -> None:
    rows = ScoredRows(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 1.0]), None, task="binary")
    with raises(BadData, where="Report.threshold") as caught:
        rows.threshold(min_precision=0.9)
    assert "0.6667" in caught.value.expected
    assert 0 < rows.threshold(min_precision=float(caught.value.remedy.partition("=")[2])) < 1
