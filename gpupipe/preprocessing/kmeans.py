"""Rows as the cluster they are nearest to, or as their distances to all clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.hashing import splitmix64
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.blocks import check_count, check_numeric, refuse, row_blocks, stacked
from gpupipe.preprocessing.fold import Columns
from gpupipe.preprocessing.rows import GatheredRows
from gpupipe.preprocessing.whole_frame import WholeFrameStep
from gpupipe.schema import Field, Kind

__all__ = ["KMeans", "initial_centres"]

_OUTPUTS = ("labels", "distances")

# Initial centres are drawn from at most this many rows, on the host.
_INITIAL_ROWS = 16_384


class KMeans(WholeFrameStep):
    """Rows grouped around k centres, found by Lloyd's iterations (scikit-learn's or cuML's) from centres we draw.

    Args:
        n_clusters: k.
        output: `"labels"` gives `kmeans`, a categorical with ids label + 2; `"distances"` gives the Euclidean distances
            `kmeans_dist0`, ... as numbers.
        max_iter: iterations at most.
        tol: stop when the centres move less than this, as the library means it.
        random_state: the seed of the sample and of the initial centres.
        max_rows: fitted on at most this many rows.

    Attributes:
        cluster_centers_: k x F float64, by number of fitted rows descending, then lexicographically.

    Raises:
        BadConfig: an unknown output, or a count that is none.

    Memory: fit gathers the columns as float64, twice at its peak; transform allocates its outputs on the device, and k
    distances for one block of rows at a time.

    Example:
        >>> import pandas as pd
        >>> KMeans(n_clusters=2).fit_transform(pd.DataFrame({"x": [0.0, 0.1, 9.0, 0.2]}))["kmeans"].tolist()
        [2, 2, 3, 2]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        output: str = "labels",
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: int = 0,
        max_rows: int = 1_000_000,
    ) -> None:
        self.n_clusters, self.output, self.max_iter, self.tol = n_clusters, output, max_iter, tol
        self.random_state, self.max_rows = random_state, max_rows

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        if self.output not in _OUTPUTS:
            raise BadConfig(
                "KMeans",
                "unknown output",
                got=self.output,
                expected=f"one of {', '.join(_OUTPUTS)}",
                remedy="output='labels'",
            )
        check_count(self.n_clusters, "n_clusters", "KMeans")
        check_count(self.max_rows, "max_rows", "KMeans")
        check_numeric(fields, "KMeans")
        dtype = "int32" if self.output == "labels" else "float32"
        names = self.output_names([item.name for item in fields])
        made = [replace(Field.derived(name, dtype, fields, "KMeans"), nullable=False) for name in names]
        if self.output == "labels":
            return [replace(made[0], kind=Kind.CATEGORICAL, cardinality=self.n_clusters + 2)]
        return made

    def output_names(self, names: Sequence[str]) -> list[str]:
        return ["kmeans"] if self.output == "labels" else [f"kmeans_dist{label}" for label in range(self.n_clusters)]

    def _learn(self, rows: GatheredRows) -> None:
        backend, xp = rows.backend, rows.backend.xp
        block = rows.block()
        # Around their mean columns far from zero keep their digits, whatever the library computes in.
        mean = block.mean(axis=0)
        host_mean = backend.to_host(mean)
        if not np.isfinite(host_mean).all():
            columns = {name: Column("float64", block[:, j]) for j, name in enumerate(rows.names)}
            refuse(columns, backend, "KMeans", missing=True)
        start = initial_centres(rows.subsample(_INITIAL_ROWS) - host_mean, self.n_clusters, self.random_state)
        centres = backend.kmeans(block - mean, start, self.max_iter, self.tol) + host_mean
        columns = {name: Column("float64", block[:, j]) for j, name in enumerate(rows.names)}
        counts = backend.to_host(xp.bincount(_nearest(columns, centres, backend), minlength=len(centres)))
        self.cluster_centers_ = centres[np.lexsort([*centres.T[::-1], -counts])]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, centres = backend.xp, self.cluster_centers_
        names = self.output_names(list(columns))
        if self.output == "labels":
            labels = _nearest(columns, centres, backend)
            labels += 2
            return {names[0]: Column("int32", labels)}
        made = {name: xp.empty(_num_rows(columns), dtype=xp.float32) for name in names}
        infinite = []
        for rows, squares in _squared_distances(columns, centres, backend):
            infinite.append(squares.max() > float(np.finfo(np.float32).max) ** 2)
            with np.errstate(over="ignore"):
                for label, out in enumerate(made.values()):
                    out[rows] = xp.sqrt(squares[label])
        if infinite and backend.to_host(xp.stack(infinite)).any():
            refuse(columns, backend, "KMeans", too_large="a distance does not fit float32")
        return {name: Column("float32", out) for name, out in made.items()}


def _nearest(columns: Columns, centres: Any, backend: Backend) -> Array:
    """n int32: the nearest centre's position; of equally near ones the first."""
    labels = backend.xp.empty(_num_rows(columns), dtype="int32")
    for rows, squares in _squared_distances(columns, centres, backend):
        labels[rows] = squares.argmin(axis=0)
    return labels


def _squared_distances(columns: Columns, centres: Any, backend: Backend) -> Iterator[tuple[slice, Array]]:
    """Blocks of rows with their squared distances to the centres, k x R; refuses what is not finite at the end."""
    xp = backend.xp
    # |x - c|² = |x|² - 2xc + |c|², around the centres' mean so that nothing large cancels.
    middle = centres.mean(axis=0)
    moved = centres - middle
    norms = np.square(moved).sum(axis=1)
    middle, matrix, norms = (backend.to_device(part) for part in (middle[:, None], -2.0 * moved, norms[:, None]))
    finite = []
    for rows in row_blocks(_num_rows(columns), backend, max(len(columns), len(centres))):
        block = stacked(columns, rows, xp)
        with np.errstate(over="ignore", invalid="ignore"):
            block -= middle
            squares = matrix @ block
            squares += norms
            lengths = xp.square(block, out=block).sum(axis=0)
            squares += lengths
        finite.append(xp.isfinite(lengths).all())
        yield rows, xp.maximum(squares, 0.0, out=squares)
    if finite and not backend.to_host(xp.stack(finite)).all():
        refuse(columns, backend, "KMeans", too_large="a value is too large to be squared", missing=True)


def _num_rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def initial_centres(rows: Any, k: int, seed: int) -> Any:
    """k of the rows that lie far from each other: k-means++ with the best of a few candidates at each draw.

    Source: Arthur, Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.

    Args:
        rows: n x F float64, on the host.
        k: how many are drawn.
        seed: of the draws.

    Raises:
        BadData: fewer than k rows are distinct.

    Example:
        >>> sorted(initial_centres(np.array([[0.0], [0.0], [5.0]]), 2, seed=0).ravel().tolist())
        [0.0, 5.0]
    """
    candidates = 2 + int(np.log(k))
    chosen = [int(_uniform(seed, 0, 1)[0] * len(rows))]
    nearest = np.square(rows - rows[chosen[0]]).sum(axis=1)
    while len(chosen) < k:
        ends = np.cumsum(nearest)
        if not ends[-1] > 0:
            raise BadData(
                "KMeans",
                f"only {len(chosen)} of the rows it starts from are distinct",
                expected=f"at least n_clusters={k}",
                remedy=f"n_clusters={len(chosen)}",
            )
        draws = _uniform(seed, len(chosen) * candidates, candidates) * ends[-1]
        drawn = np.minimum(np.searchsorted(ends, draws, side="right"), len(rows) - 1)
        squares = np.square(rows[None] - rows[drawn][:, None]).sum(axis=2)
        closer = np.minimum(nearest, squares)
        best = int(closer.sum(axis=1).argmin())
        chosen.append(int(drawn[best]))
        nearest = closer[best]
    return rows[chosen]


def _uniform(seed: int, counter: int, size: int) -> Any:
    """`size` float64 in [0, 1) for the counters from `counter` up."""
    return (splitmix64(seed, np.arange(counter, counter + size)) >> np.uint64(11)) * 2.0**-53
