"""Gathered steps: fitted at once on the rows of all partitions or a seeded sample, as no mergeable summary exists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, estimators
from gpupipe.errors import BadConfig
from gpupipe.preprocessing.learned_step import Columns, SeededStep
from gpupipe.preprocessing.numeric import any_true, check_numeric, refuse, refuse_no_rows, stack_rows
from gpupipe.preprocessing.summaries.rows import GatheredRows
from gpupipe.schema import Field
from gpupipe.support.validation import check_integer, check_seed

_STATE = ("names_in_", "random_state_", "num_outputs_", "num_rows_", "num_fitted_")


class GatheredStep(SeededStep):
    """Base class of steps fitted on rows gathered from all partitions.

    It has the parameters `max_rows` (beyond it a seeded sample of about half as many or more stands for the rest) and
    `random_state`, and learns `num_rows_`, the rows there were, and `num_fitted_`, those it was fitted on.
    """

    fills_late = True
    needs_row_numbers = True
    """`summarize` wants `row_numbers`, the rows' numbers in the dataset: with them a sample is the same for any
    partitioning. Without them each partition's rows are numbered from 0."""

    max_rows: int

    def summarize(self, columns: Columns, backend: Backend, row_numbers: Array | None = None) -> GatheredRows:
        sample = {"max_rows": self.max_rows, "seed": self.random_state_}
        return GatheredRows.of(columns, backend, type(self).__name__, row_numbers=row_numbers, **sample)

    def finalize(self, summary: GatheredRows) -> Self:
        if not summary.num_kept:
            refuse_no_rows(type(self).__name__)
        self._learn(summary)
        self.num_rows_, self.num_fitted_ = summary.num_rows, summary.num_kept
        self.names_in_ = list(summary.names)
        return self

    @abstractmethod
    def _learn(self, rows: GatheredRows) -> None:
        """Learn from the gathered rows."""


class EstimatorStep(GatheredStep):
    """Wrapper of a numeric scikit-learn or cuML estimator that learns without a target and `transform`s rows.

    One without `transform` gives what it `predict`s (k-means its labels). It can be saved if it is a StandardScaler,
    MinMaxScaler, MaxAbsScaler, RobustScaler, QuantileTransformer, PolynomialFeatures, PCA, TruncatedSVD or KMeans; of
    any other `fit` and `explain` warn. An estimator in a list of steps becomes one of these. What is given is copied
    and never fitted itself. Its outputs become float32 columns, named by its `get_feature_names_out` where it has one,
    else `<class name>0`, ... A scikit-learn estimator works on the host: a GPU's columns are copied there and back.

    Args:
        estimator: unfitted; hyperparameters and random state are its own.
        max_rows: fitted on at most this many rows.
        random_state: the seed of the sample of rows; None draws one.

    Attributes:
        estimator_: the fitted copy.
        random_state_: the seed, whether it was given or drawn.

    Raises:
        BadConfig: it is no estimator, or learns from a target.

    Memory: fit gathers the columns as float64; transform makes n x F float64 and the estimator's output at once.

    Example:
        >>> import pandas as pd
        >>> from sklearn.preprocessing import MaxAbsScaler
        >>> EstimatorStep(MaxAbsScaler()).fit_transform(pd.DataFrame({"x": [1.0, -4.0]}))["x"].tolist()
        [0.25, -1.0]
    """

    def __init__(self, estimator: Any, *, max_rows: int = 10_000_000, random_state: int | None = 0) -> None:
        check_integer(self, "[1, inf)", max_rows=max_rows)
        check_seed(self, None, random_state=random_state)
        self.estimator, self.max_rows, self.random_state = estimator, max_rows, random_state
        if not estimators.is_estimator(estimator):
            problem = "not a step and not an estimator"
            expected = "an object with fit and transform (or predict); not a class"
            remedy = "a step of gpupipe.preprocessing, or a scikit-learn or cuML estimator"
            raise BadConfig("EstimatorStep", problem, got=estimator, expected=expected, remedy=remedy)
        if estimators.needs_target(estimator):
            problem = "it learns from a target, which no estimator in a list of steps is given"
            expected = "an estimator that learns from numbers alone"
            remedy = "pre.TargetEncoder(), or gp.baselines(...) for models to compare with the network"
            raise BadConfig(self._where, problem, got=estimator, expected=expected, remedy=remedy)

    @property
    def class_name(self) -> str:
        return type(self.estimator).__name__

    @property
    def _where(self) -> str:
        return f"EstimatorStep({self.class_name})"

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` one for all, as only the fitted estimator knows their number."""
        check_numeric(fields, self._where)
        stem = self.class_name.lower()
        names = self.output_names([item.name for item in fields]) if self.is_fitted else [f"{stem}0"]
        return [Field.derived(name, "float32", fields, stem) for name in names]

    def output_names(self, names: Sequence[str]) -> list[str]:
        self.check_fitted()
        if list(names) == self.names_in_:
            return list(self._names_out)
        return estimators.get_output_names(self.estimator_, list(names), self.num_outputs_)

    @property
    def estimator_(self) -> Any:
        """The fitted copy; after a fit on a cluster of GPU workers one of cuML needs a GPU here, too."""
        return self._fitted.estimator

    def _learn(self, rows: GatheredRows) -> None:
        block = rows.block()
        first = block[:1].copy()
        estimator = estimators.fit_estimator(self.estimator, block, rows.backend, self._where)
        self.num_outputs_ = int(estimators.apply_estimator(estimator, first, rows.backend, self._where).shape[1])
        self._keep(estimator, rows.names)

    def _keep(self, estimator: Any, names: Sequence[str]) -> None:
        """Store the fitted estimator with the names of its outputs: another process may not be able to ask it."""
        self._fitted = estimators.FittedEstimator(estimator, self._where)
        self._names_out = estimators.get_output_names(estimator, list(names), self.num_outputs_)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp = backend.xp
        names = self.output_names(list(columns))
        block = xp.ascontiguousarray(stack_rows(columns, slice(None), xp).T)
        if not len(block):
            return {name: Column("float32", xp.empty(0, dtype=xp.float32)) for name in names}
        with np.errstate(over="ignore"):
            result = self._fitted.apply(block, backend).astype(xp.float32)
        if any_true([xp.isinf(result).any()], backend):
            refuse(columns, backend, self._where, too_large="a result does not fit float32")
        return {name: Column("float32", xp.ascontiguousarray(result[:, j])) for j, name in enumerate(names)}

    def get_state(self) -> dict[str, Any]:
        """Return the estimator as class, parameters and arrays; `ArtifactError` for a class that cannot be saved."""
        self.check_fitted()
        return {name: getattr(self, name) for name in _STATE} | self._fitted.state()

    def set_state(self, state: Mapping[str, Any]) -> Self:
        for name in _STATE:
            setattr(self, name, state[name])
        self._keep(estimators.rebuild_estimator(state, self._where), self.names_in_)
        return self
