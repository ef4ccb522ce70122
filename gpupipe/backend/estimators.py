"""Estimators of scikit-learn and cuML: detected by their methods, saved without pickle."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from gpupipe.backend.columns import Array, Backend
from gpupipe.errors import ArtifactError, BackendMissing, BadData, GpupipeError

_VARIANCES = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_")

# Classes that can be saved: scikit-learn's module, and the attributes that make a fitted one. A cuML estimator of the
# same name is saved as scikit-learn's, which gives the same numbers on a machine without a GPU.
SAVEABLE: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (f"sklearn.{module}", ("n_features_in_", *attributes))
    for module, name, *attributes in (
        ("preprocessing", "StandardScaler", "mean_", "var_", "scale_", "n_samples_seen_"),
        ("preprocessing", "MinMaxScaler", "min_", "scale_", "data_min_", "data_max_", "data_range_", "n_samples_seen_"),
        ("preprocessing", "MaxAbsScaler", "max_abs_", "scale_", "n_samples_seen_"),
        ("preprocessing", "RobustScaler", "center_", "scale_"),
        ("preprocessing", "QuantileTransformer", "quantiles_", "references_", "n_quantiles_"),
        ("preprocessing", "PolynomialFeatures", "n_output_features_", "_min_degree", "_max_degree", "_n_out_full"),
        ("decomposition", "PCA", *_VARIANCES, "mean_", "noise_variance_", "n_components_"),
        ("decomposition", "TruncatedSVD", *_VARIANCES),
        ("cluster", "KMeans", "cluster_centers_", "inertia_", "n_iter_", "_n_features_out", "_n_threads"),
    )
}
_EXPECTED = f"one of {', '.join(SAVEABLE)}"


class FittedEstimator:
    """Fitted estimator that can be kept where its library cannot run.

    One of cuML goes to other processes as bytes, which are opened when it is first used there: the process that drives
    a cluster saves it and sends it to other workers without touching a GPU.
    """

    def __init__(self, estimator: Any, where: str) -> None:
        self._estimator, self._where, self._pickled = estimator, where, b""
        self._state: dict[str, Any] | ArtifactError | None = None

    @property
    def estimator(self) -> Any:
        """The estimator itself; one of cuML needs a GPU from here on."""
        if self._estimator is None:
            self._estimator = pickle.loads(self._pickled)  # noqa: S301 - from a worker of this program
        return self._estimator

    def apply(self, block: Array, backend: Backend) -> Array:
        """Transform or predict `block`; see `apply_estimator`."""
        if self._pickled:
            _require_gpu(backend, self._where)
        return apply_estimator(self.estimator, block, backend, self._where)

    def state(self) -> dict[str, Any]:
        """Return the estimator's state; see `export_state`."""
        if self._state is None:
            return export_state(self._estimator, self._where)
        if isinstance(self._state, ArtifactError):
            raise self._state
        return self._state

    def __getstate__(self) -> dict[str, Any]:
        if self._pickled:
            return vars(self) | {"_estimator": None}
        if not _is_cuml(self._estimator):
            return vars(self)
        try:
            state: dict[str, Any] | ArtifactError = self.state()
        except ArtifactError as error:
            state = error
        return vars(self) | {"_estimator": None, "_pickled": pickle.dumps(self._estimator), "_state": state}


def is_estimator(value: object) -> bool:
    """Return whether an object has `fit` and `transform` or `predict`; a class is not an estimator."""
    fit, transform, predict = (callable(getattr(value, name, None)) for name in ("fit", "transform", "predict"))
    return fit and (transform or predict) and not inspect.isclass(value)


def needs_target(estimator: Any) -> bool:
    """Return whether an estimator requires a target: by scikit-learn's tags, else by the signature of its `fit`."""
    if hasattr(estimator, "__sklearn_tags__"):
        return bool(estimator.__sklearn_tags__().target_tags.required)
    target = inspect.signature(estimator.fit).parameters.get("y")
    return target is not None and target.default is target.empty


def transformer_tags(*, needs_target: bool) -> Any:
    """Create scikit-learn's tags of a transformer, for use in its pipelines."""
    tags = importlib.import_module("sklearn.utils")
    return tags.Tags("transformer", tags.TargetTags(required=needs_target), transformer_tags=tags.TransformerTags())


def make_analyzer(analyzer: str, ngram_range: tuple[int, int], *, lowercase: bool) -> Callable[[str], list[str]]:
    """Return scikit-learn's function from a text to its n-grams."""
    vectorizer_class = importlib.import_module("sklearn.feature_extraction.text").HashingVectorizer
    vectorizer = vectorizer_class(analyzer=analyzer, ngram_range=ngram_range, lowercase=lowercase)
    analyze: Callable[[str], list[str]] = vectorizer.build_analyzer()
    return analyze


def fit_estimator(estimator: Any, block: Array, backend: Backend, where: str) -> Any:
    """Fit a copy of `estimator` on `block` (n x F float64, private to the call)."""
    with _prepare(estimator, block, backend, where) as inputs:
        return copy.deepcopy(estimator).fit(inputs)


def apply_estimator(estimator: Any, block: Array, backend: Backend, where: str) -> Array:
    """Transform or predict `block` (n x F float64, private to the call): n x K on the backend's device."""
    with _prepare(estimator, block, backend, where) as inputs:
        result = (getattr(estimator, "transform", None) or estimator.predict)(inputs)
    result = result.toarray() if hasattr(result, "toarray") else result
    array = backend.xp.asarray(result) if _is_cuml(estimator) else backend.to_device(np.asarray(result))
    return array.reshape(len(block), -1)


@contextmanager
def _prepare(estimator: Any, block: Array, backend: Backend, where: str) -> Iterator[Array]:
    """Move the block to where the estimator's library works, and explain why the estimator refuses it."""
    try:
        if not _is_cuml(estimator):
            yield backend.to_host(block)
        else:
            _require_gpu(backend, where)
            yield block
    except GpupipeError:
        raise
    except (TypeError, ValueError) as cause:
        expected, remedy = "numbers it can work with, without labels", "a SimpleImputer before it, or another estimator"
        raise BadData(where, f"the estimator refuses the data ({cause})", expected=expected, remedy=remedy) from cause


def _require_gpu(backend: Backend, where: str) -> None:
    if backend.name != "gpu":
        remedy = "the scikit-learn estimator of that name"
        raise BackendMissing(where, "a cuML estimator on the CPU backend", expected="backend='gpu'", remedy=remedy)


def _is_cuml(estimator: Any) -> bool:
    return type(estimator).__module__.partition(".")[0] == "cuml"


def get_output_names(estimator: Any, names: Sequence[str], num_outputs: int) -> list[str]:
    """Return the output names of a fitted estimator; `<class name>0`, ... if it has none."""
    try:
        outputs = [str(name) for name in estimator.get_feature_names_out(list(names))]
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        outputs = []
    if len(outputs) == num_outputs == len(set(outputs)):
        return outputs
    return [f"{type(estimator).__name__.lower()}{position}" for position in range(num_outputs)]


def export_state(estimator: Any, where: str) -> dict[str, Any]:
    """Export a fitted estimator as class name, parameters (JSON) and attributes: text, numbers and NumPy arrays."""
    name, module = type(estimator).__name__, type(estimator).__module__
    if name not in SAVEABLE or module.partition(".")[0] not in ("sklearn", "cuml"):
        problem = "an estimator of this class cannot be saved without pickle"
        remedy = "a step of gpupipe.preprocessing, or fit it again where it is used"
        raise ArtifactError(where, problem, got=f"{module}.{name}", expected=_EXPECTED, remedy=remedy)
    _, parameters = _find_class(name)
    params = {key: value for key, value in estimator.get_params(deep=False).items() if key in parameters}
    try:
        text = json.dumps(params, default=_convert_number)
    except TypeError as cause:
        problem, remedy = f"a parameter is an object ({cause})", "random_state=0"
        raise ArtifactError(where, problem, got=params, expected="numbers, strings and lists", remedy=remedy) from cause
    state: dict[str, Any] = {"estimator_class": name, "estimator_params": text}
    for attribute in filter(partial(hasattr, estimator), SAVEABLE[name][1]):
        value = getattr(estimator, attribute)
        state[f"estimator.{attribute}"] = value.get() if hasattr(value, "get") else value  # CuPy's: a few numbers
    return state


def rebuild_estimator(state: Mapping[str, Any], where: str) -> Any:
    """Rebuild the scikit-learn estimator that `export_state` exported."""
    name = state["estimator_class"]
    if name not in SAVEABLE:
        raise ArtifactError(where, "unknown estimator", got=name, expected=_EXPECTED, remedy="save it again")
    cls, parameters = _find_class(name)
    params = json.loads(state["estimator_params"]).items()
    # JSON has no tuples, and these classes take no lists: a sequence was a range.
    estimator = cls(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in params if key in parameters}
    )
    for attribute in SAVEABLE[name][1]:
        if f"estimator.{attribute}" in state:
            setattr(estimator, attribute, state[f"estimator.{attribute}"])
    if name == "KMeans" and "estimator.cluster_centers_" in state:
        _check_centres(estimator, where)
    return estimator


def _check_centres(estimator: Any, where: str) -> None:
    """Raise `ArtifactError` for centres that scikit-learn's compiled loops, which do not look, would read beyond."""
    centres, shape = estimator.cluster_centers_, (estimator.n_clusters, estimator.n_features_in_)
    vars(estimator)["_n_threads"] = max(1, min(int(vars(estimator)["_n_threads"]), os.cpu_count() or 1))
    is_array = isinstance(centres, np.ndarray) and centres.dtype in (np.float32, np.float64)
    if not is_array or centres.shape != shape or not np.isfinite(centres).all():
        got, expected = getattr(centres, "shape", centres), f"{shape} finite floats"
        raise ArtifactError(where, "no centres of clusters", got=got, expected=expected, remedy="save it again")


def _convert_number(value: Any) -> Any:
    """Convert a NumPy number for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(type(value).__name__)


def _find_class(name: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the scikit-learn class and its parameters; cuML's may have more, and another version fewer."""
    cls = getattr(importlib.import_module(SAVEABLE[name][0]), name)
    return cls, inspect.signature(cls).parameters
