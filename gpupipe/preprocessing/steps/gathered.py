"""Steps fitted on rows of all partitions or a seeded sample: k-means, estimators of scikit-learn."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, estimators, select
from gpupipe.backend.columns import floats
from gpupipe.backend.groups import GroupSums
from gpupipe.backend.kernels import splitmix64
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.categories import Vocabulary, make_id_field
from gpupipe.preprocessing.learned_state import require_state
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import GatheredRows
from gpupipe.schema import Field
from gpupipe.support.validation import check_choice, check_integer, check_number, check_seed


class GatheredStep(base.SeededStep):
    """Base class of steps fitted on rows gathered from all partitions.

    Beyond `max_rows` a sample of about half as many or more, seeded by `random_state`, stands for the rest: the same
    for any partitions where `summarize` is given the rows' numbers in the dataset. `num_rows_` are the rows there were,
    `num_fitted_` those it was fitted on.
    """

    fills_late = True
    max_rows: int

    def summarize(self, columns: Columns, backend: Backend, row_numbers: Array | None = None) -> GatheredRows:
        sample = {"max_rows": self.max_rows, "seed": self.random_state_}
        return GatheredRows.of(columns, backend, type(self).__name__, row_numbers=row_numbers, **sample)

    def finalize(self, summary: GatheredRows) -> Self:
        base.check_rows(summary.num_kept, type(self).__name__)
        self._learn(summary)
        self.num_rows_, self.num_fitted_ = summary.num_rows, summary.num_kept
        return super().finalize(summary)

    @abstractmethod
    def _learn(self, rows: GatheredRows) -> None:
        """Learn from the gathered rows."""


class EstimatorStep(GatheredStep):
    """Wrapper of a numeric scikit-learn or cuML estimator that learns without a target and `transform`s rows.

    One without `transform` gives what it `predict`s (k-means its labels). An estimator in a list of steps becomes one
    of these. It is copied and never fitted itself; the fitted copy is `estimator_`. A fit reads at most `max_rows`
    rows, a sample seeded by `random_state` (None draws a seed). Outputs become float32 columns, named by the
    estimator's `get_feature_names_out` where it has one, else `<class name>0`, ... A scikit-learn estimator works on
    the host: a GPU's columns are copied there and back. It can be saved if it is a StandardScaler, MinMaxScaler,
    MaxAbsScaler, RobustScaler, QuantileTransformer, PolynomialFeatures, PCA, TruncatedSVD or KMeans; of any other `fit`
    and `explain` warn.
    Raises: BadConfig for what is no estimator, or learns from a target.
    Memory: fit gathers the columns as float64; transform makes n x F float64 and the estimator's output at once.

    Example:
        >>> import pandas as pd
        >>> from sklearn.preprocessing import MaxAbsScaler
        >>> EstimatorStep(MaxAbsScaler()).fit_transform(pd.DataFrame({"x": [1.0, -4.0]}))["x"].tolist()
        [0.25, -1.0]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("num_outputs_", "num_rows_", "num_fitted_"), "count"
    ) | {"random_state_": "integer"}

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
            remedy = "pre.TargetEncoder(), or gp.compare(...) for models beside the network"
            raise BadConfig(self._where, problem, got=estimator, expected=expected, remedy=remedy)

    @property
    def class_name(self) -> str:
        return type(self.estimator).__name__

    @property
    def _where(self) -> str:
        return f"EstimatorStep({self.class_name})"

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` one for all, as only the fitted estimator knows their number."""
        step = "HashedNgrams" if type(self.estimator).__name__.endswith("Vectorizer") else "Categorify"
        base.check_numeric(fields, self._where, f"{step}() for strings")
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
        block = xp.ascontiguousarray(base.stack_rows(columns, slice(None), xp).T)
        if not len(block):
            return {name: Column("float32", xp.empty(0, dtype=xp.float32)) for name in names}
        with np.errstate(over="ignore"):
            result = self._fitted.apply(block, backend).astype(xp.float32)
        if base.any_true([xp.isinf(result).any()], backend):
            base.refuse(columns, backend, self._where, too_large="a result does not fit float32")
        return {name: Column("float32", xp.ascontiguousarray(result[:, j])) for j, name in enumerate(names)}

    def get_state(self) -> dict[str, Any]:
        """Return the estimator as class, parameters and arrays; `ArtifactError` for a class that cannot be saved."""
        return super().get_state() | self._fitted.state()

    def set_state(self, state: Mapping[str, Any]) -> Self:
        super().set_state({name: value for name, value in state.items() if not name.startswith("estimator")})
        estimator = estimators.rebuild_estimator(state, self._where)
        row = np.zeros((1, len(self.names_in_)))
        number = estimators.apply_estimator(estimator, row, select("cpu"), self._where).shape[1]
        require_state(self.num_outputs_ == number, self._where, "num_outputs_", self.num_outputs_, str(number))
        self._keep(estimator, self.names_in_)
        return self


_ROUNDING = 2.0**-80  # centres that move less, as a fraction of the rows' squared spread, move by rounding alone
_INITIAL_ROWS = 16_384  # initial centres are drawn from at most this many rows, on the host


@dataclass(frozen=True)
class _Moves:
    """Summary of the rows of each cluster: their number, the sums of their deviations from its centre, all squares."""

    counts: Any
    sums: Any
    squares: float

    def __add__(self, other: Self) -> Self:
        return type(self)(self.counts + other.counts, self.sums + other.sums, self.squares + other.squares)

    def variance(self, centres: Any) -> float:
        """Compute the mean of the columns' variances over all rows, by the parallel axis theorem."""
        num_rows = self.counts.sum()
        with np.errstate(over="ignore", invalid="ignore"):
            offset = centres - (self.sums + self.counts[:, None] * centres).sum(axis=0) / num_rows
            squares = self.squares + (2 * self.sums * offset + self.counts[:, None] * offset**2).sum()
        return float(squares / (num_rows * centres.shape[1]))


class KMeans(GatheredStep):
    """k-means clustering by Lloyd's iterations (scikit-learn's or cuML's) from centres drawn by k-means++.

    Up to `max_rows` rows the library is given all of them, gathered on one device. Of more it is given a sample of half
    as many or more, and its centres are moved by further iterations over all rows, each a pass over the partitions,
    until they stand still as the library means it: only k x (F + 1) numbers per partition travel. The inertia is then
    within 1 % of the library's on all rows from the same start, where both find the same optimum.

    Args:
        n_clusters: k.
        output: `"labels"` gives `kmeans`, a categorical with ids label + 2; `"distances"` gives the Euclidean distances
            `kmeans_dist0`, ... as numbers.
        max_iter, tol: iterations at most, and the move of the centres that ends them, as the library means it.
        random_state: the seed of the sample and of the initial centres; None draws one when the step is made.
        max_rows: given to the library at most.
        max_passes: over all rows at most, where there are more; with 0 the sample represents the rest.

    Attributes: `cluster_centers_`, k x F float64, by number of fitted rows descending, then lexicographically;
    `num_rows_`, `num_fitted_` and `num_passes_`: rows there were, rows fitted, and passes over all beyond the first.
    Raises: BadData for a missing value, an infinity, a value whose square is one, or too few distinct rows.
    Memory: fit gathers the columns as float64, three times at its peak; transform allocates its outputs, and blocks.

    Example:
        >>> import pandas as pd
        >>> KMeans(n_clusters=2).fit_transform(pd.DataFrame({"x": [0.0, 0.1, 9.0, 0.2]}))["kmeans"].tolist()
        [2, 2, 3, 2]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        "cluster_centers_": "finite[n_clusters, C]",
        **dict.fromkeys(("num_passes_", "num_rows_", "num_fitted_"), "count"),
        "random_state_": "integer",
    }
    cluster_centers_: Any

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        output: str = "labels",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int | None = 0,
        max_rows: int = 1_000_000,
        max_passes: int = 10,
    ) -> None:
        check_integer(self, "[1, inf)", n_clusters=n_clusters, max_iter=max_iter, max_rows=max_rows)
        check_integer(self, "[0, inf)", max_passes=max_passes)
        check_choice(self, ("labels", "distances"), output=output)
        check_number(self, "[0, inf)", tol=tol)
        check_seed(self, None, random_state=random_state)
        self.n_clusters, self.output, self.max_iter, self.tol = n_clusters, output, max_iter, tol
        self.random_state, self.max_rows, self.max_passes = random_state, max_rows, max_passes

    @property
    def may_repeat(self) -> bool:  # type: ignore[override]
        return self.max_passes > 0

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        base.check_numeric(fields, "KMeans")
        names = self.output_names([item.name for item in fields])
        outputs = [replace(Field.derived(name, "float32", fields, "KMeans"), nullable=False) for name in names]
        if self.output != "labels":
            return outputs
        seed = zlib.crc32(self.cluster_centers_.tobytes()) if self.is_fitted else 0  # other centres, other clusters
        return [make_id_field(outputs[0], Vocabulary(num_places=self.n_clusters, seed=seed))]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return ["kmeans"] if self.output == "labels" else [f"kmeans_dist{label}" for label in range(self.n_clusters)]

    def summarize(self, columns: Columns, backend: Backend, row_numbers: Array | None = None) -> Any:
        return self._moves(columns, backend) if self.unfinished else super().summarize(columns, backend, row_numbers)

    def finalize(self, summary: Any) -> Self:
        if isinstance(summary, _Moves):
            return self._move(summary)
        self.unfinished, self.num_passes_ = False, 0
        super().finalize(summary)
        self.unfinished = self.may_repeat and self.num_fitted_ < self.num_rows_
        return self

    def _moves(self, columns: Columns, backend: Backend) -> _Moves:
        xp, k = backend.xp, self.n_clusters
        labels = _nearest(columns, self.cluster_centers_, backend)
        centres = [backend.to_device(np.ascontiguousarray(places)) for places in self.cluster_centers_.T]
        totals = xp.zeros((2 + len(centres), k))
        totals[0] = xp.bincount(labels, minlength=k)
        for rows in base.row_blocks(len(labels), backend):
            sums = GroupSums(labels[rows], k, xp)
            for number, (column, places) in enumerate(zip(columns.values(), centres, strict=True), start=1):
                deviation = floats(column.take(rows), xp) - places[labels[rows]]
                totals[number] += sums.compute(deviation)
                totals[-1] += xp.square(deviation).sum()
        table = backend.to_host(totals)
        return _Moves(table[0].astype(np.int64), table[1:-1].T, float(table[-1, 0]))

    def _move(self, moves: _Moves) -> Self:
        """Run one of Lloyd's iterations over all rows; a centre without rows stays."""
        step = moves.sums / np.maximum(moves.counts, 1)[:, None]
        least = max(self.tol, _ROUNDING) * moves.variance(self.cluster_centers_)
        self.cluster_centers_ = _sort_centres(self.cluster_centers_ + step, moves.counts)
        self.num_passes_ += 1
        self.num_fitted_ = self.num_rows_
        self.unfinished = bool(np.square(step).sum() > least) and self.num_passes_ < self.max_passes
        return self

    def _learn(self, rows: GatheredRows) -> None:
        backend, xp = rows.backend, rows.backend.xp
        block = rows.block()
        columns = {name: Column("float64", block[:, position]) for position, name in enumerate(rows.names)}
        # Around their mean columns far from zero keep their digits, whatever the library computes in.
        with np.errstate(over="ignore", invalid="ignore"):
            mean = block.mean(axis=0)
            deviation = block - mean
            sizes = backend.to_host(xp.stack([mean, xp.square(deviation).sum(axis=0)]))
        if not np.isfinite(sizes).all():
            base.refuse(columns, backend, "KMeans", too_large="a value is too large to be squared", missing=True)
        start = initial_centres(rows.subsample(_INITIAL_ROWS) - sizes[0], self.n_clusters, self.random_state_)
        centres = backend.kmeans(deviation, start, self.max_iter, self.tol) + sizes[0]
        counts = backend.to_host(xp.bincount(_nearest(columns, centres, backend), minlength=len(centres)))
        self.cluster_centers_ = _sort_centres(centres, counts)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, centres = backend.xp, self.cluster_centers_
        names = self.output_names(list(columns))
        if self.output == "labels":
            labels = _nearest(columns, centres, backend)
            labels += 2
            return {names[0]: Column("int32", labels)}
        points = backend.to_device(centres[:, :, None])

        def distances(block: Array) -> Iterator[Array]:
            return (xp.sqrt(squares) for squares in _compute_squared_distances(block, points, xp))

        return base.float32_rows(columns, names, distances, backend, "KMeans", result="a distance")


def _sort_centres(centres: Any, counts: Any) -> Any:
    return centres[np.lexsort([*centres.T[::-1], -counts])]


def _nearest(columns: Columns, centres: Any, backend: Backend) -> Array:
    """Return n int32: the nearest centre's position; of equally near ones the first."""
    xp, bad = backend.xp, []
    labels, points = xp.zeros(base.num_rows(columns), dtype="int32"), backend.to_device(centres[:, :, None])
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in base.row_blocks(len(labels), backend, len(columns)):
            best: Array = None
            for label, squares in enumerate(_compute_squared_distances(base.stack_rows(columns, rows, xp), points, xp)):
                if label:
                    labels[rows] = xp.where(squares < best, np.int32(label), labels[rows])
                best = xp.minimum(squares, best) if label else squares
                bad.append(~xp.isfinite(squares).all())
    if base.any_true(bad, backend):
        base.refuse(columns, backend, "KMeans", too_large="a value is too large to be squared", missing=True)
    return labels


def _compute_squared_distances(block: Array, centres: Array, xp: ModuleType) -> Iterator[Array]:
    """Yield the squared distances of F x R float64 to each of k x F x 1 centres, R float64.

    By differences: the quicker |x|² - 2xc + |c|² loses what is near as soon as one centre is far.
    """
    for centre in centres:
        deviation = block - centre
        yield xp.square(deviation, out=deviation).sum(axis=0)


def initial_centres(rows: Any, k: int, seed: int) -> Any:
    """Draw k of n x F rows far from each other: k-means++ with the best of a few candidates at each draw.

    Source: Arthur, Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    candidates = 2 + int(np.log(k))
    picks = [int(_uniform(seed, 0, 1)[0] * len(rows))]
    nearest = np.square(rows - rows[picks[0]]).sum(axis=1)
    while len(picks) < k:
        ends = np.cumsum(nearest)
        if not ends[-1] > 0:
            problem, remedy = f"only {len(picks)} of the rows it starts from are distinct", f"n_clusters={len(picks)}"
            raise BadData("KMeans", problem, expected=f"at least n_clusters={k}", remedy=remedy)
        draws = _uniform(seed, len(picks) * candidates, candidates) * ends[-1]
        positions = np.minimum(np.searchsorted(ends, draws, side="right"), len(rows) - 1)
        squares = np.square(rows[None] - rows[positions][:, None]).sum(axis=2)
        closer = np.minimum(nearest, squares)
        best = int(closer.sum(axis=1).argmin())
        picks.append(int(positions[best]))
        nearest = closer[best]
    return rows[picks]


def _uniform(seed: int, counter: int, size: int) -> Any:
    """Draw `size` float64 in [0, 1) for the counters from `counter` up."""
    return (splitmix64(seed, np.arange(counter, counter + size)) >> np.uint64(11)) * 2.0**-53
