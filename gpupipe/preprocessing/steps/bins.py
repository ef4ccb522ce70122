"""Bins of numbers: given edges, quantiles, k-means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats
from gpupipe.backend.histogram import MAX_BINS, Histogram
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.categories import FIRST, MISSING, Vocabulary, get_entry, make_id_field, make_number_field
from gpupipe.preprocessing.learned_state import check_value, require_state
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import Extremes, Quantiles
from gpupipe.schema import Field
from gpupipe.support.validation import check_bool, check_choice, is_integer, is_number, is_sequence, refuse_argument

_NARROWEST = 1e-8  # narrower bins, of quantiles that (nearly) coincide, are left out; as scikit-learn has it


class Bucketize(base.StatelessStep):
    """Binning by given `edges`, rising numbers for all columns or by column name: numbers become categorical bin ids.

    Ids are 0 for missing, 1 never, 2 and up the bins by `numpy.digitize`, with its `right`: k edges make k + 1 bins,
    the outer ones with the infinities. Raises ColumnNotFound for a column without edges.
    Memory: transform allocates n int32 per column on the device, and one float64 block at a time.

    Example:
        >>> import pandas as pd
        >>> Bucketize([0, 10]).fit_transform(pd.DataFrame({"x": [-1, 0, 10, None]}))["x"].tolist()
        [2, 3, 4, 0]
    """

    def __init__(self, edges: Sequence[float] | Mapping[str, Sequence[float]], *, right: bool = False) -> None:
        for values in edges.values() if isinstance(edges, Mapping) else [edges]:
            numbers = list(values) if is_sequence(values) else []
            if not numbers or not all(map(is_number, numbers)) or not all(a < b for a, b in pairwise(numbers)):
                expected = "numbers, each larger than the one before, or a mapping from columns to such"
                raise refuse_argument(self, "edges", edges, expected, "edges=[0, 10, 100]")
        check_bool(self, right=right)
        self.edges, self.right = edges, right

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        base.check_numeric(fields, "Bucketize")
        return [make_id_field(item, Vocabulary(num_places=len(self._edges_of(item.name)) + 1)) for item in fields]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        side = "left" if self.right else "right"
        return {name: _assign_bins(column, self._edges_of(name), backend, side) for name, column in columns.items()}

    def _edges_of(self, name: str) -> Any:
        return np.asarray(get_entry(self.edges, name, "Bucketize(edges=...)"), dtype=np.float64)


class KBinsDiscretizer(base.Invertible):
    """Binning by learned edges: of equal width, of equal counts, or around 1-D k-means centres.

    Attributes and other parameters are scikit-learn's; there are no sparse matrices. The outer bins hold all values
    outside; bins of (nearly) no width are left out. Quantiles and centres are of all rows (scikit-learn's of a sample
    of 200,000), `exact` and their error those of `RobustScaler`.

    Args:
        n_bins: at least 2; for all columns, or one number per column.
        encode: `"ordinal"` gives a categorical with ids 0 for missing, 1 never, 2 and up scikit-learn's number of the
            bin; `"onehot-dense"` a float32 column `<name>_<bin>` per bin, all 0 where the value is missing.
        strategy: `"quantile"`, `"uniform"` or `"kmeans"`.
        quantile_method: between two values, as in `numpy.quantile`: `"averaged_inverted_cdf"` or `"linear"`.

    Raises: BadData for an infinity in `fit`, or a column without a value.
    Memory: transform allocates n int32 per column (n float32 per bin) on the device; fitting sorts a column there.

    Example:
        >>> import pandas as pd
        >>> KBinsDiscretizer(2, strategy="uniform").fit_transform(pd.DataFrame({"x": [0, 4, 5, None, 9]}))["x"].tolist()
        [2, 2, 3, 0, 3]
    """

    fills_late = True

    def __init__(
        self,
        n_bins: int | Sequence[int] = 5,
        *,
        encode: str = "ordinal",
        strategy: str = "quantile",
        quantile_method: str = "averaged_inverted_cdf",
        exact: bool = False,
    ) -> None:
        numbers: Any = n_bins if is_sequence(n_bins) else [n_bins]
        for number in numbers:
            if not is_integer(number, 2, MAX_BINS):
                raise refuse_argument(self, "n_bins", n_bins, f"an integer in [2, {MAX_BINS}], or one per column")
        check_choice(self, ("ordinal", "onehot-dense"), encode=encode)
        check_choice(self, ("quantile", "uniform", "kmeans"), strategy=strategy)
        check_choice(self, ("averaged_inverted_cdf", "linear"), quantile_method=quantile_method)
        check_bool(self, exact=exact)
        self.n_bins, self.encode, self.strategy = n_bins, encode, strategy
        self.quantile_method, self.exact = quantile_method, exact

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        base.check_numeric(fields, "KBinsDiscretizer")
        counts = self._list_counts(len(fields))
        if self.encode == "ordinal":
            sizes = self.n_bins_.tolist() if self.is_fitted else [None] * len(fields)
            bins = [None if size is None else Vocabulary(num_places=size) for size in sizes]
            return [make_id_field(item, each) for item, each in zip(fields, bins, strict=True)]
        sizes = self.n_bins_ if self.is_fitted else counts
        pairs = zip(fields, sizes, strict=True)
        return [make_number_field(item, f"{item.name}_{index}") for item, size in pairs for index in range(size)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        if self.encode == "ordinal":
            return list(names)
        sizes = self.n_bins_ if self.is_fitted else self._list_counts(len(names))
        return [f"{name}_{index}" for name, size in zip(names, sizes, strict=True) for index in range(size)]

    def _list_counts(self, num_columns: int) -> list[int]:
        counts = [self.n_bins] * num_columns if isinstance(self.n_bins, int | np.integer) else list(self.n_bins)
        if len(counts) != num_columns:
            raise refuse_argument(self, "n_bins", self.n_bins, f"an integer, or {num_columns} of them, one per column")
        return counts

    def summarize(self, columns: Columns, backend: Backend) -> Extremes | Quantiles:
        if self.strategy == "uniform":
            return Extremes.of(columns, backend, "KBinsDiscretizer")
        return Quantiles.of(columns, backend, "KBinsDiscretizer", exact=self.exact)

    def finalize(self, summary: Extremes | Quantiles) -> Self:
        names, counts = summary.names, self._list_counts(len(summary.names))
        if isinstance(summary, Extremes):
            base.check_values(names, summary.low <= summary.high, "KBinsDiscretizer")
            ranges = np.stack([summary.low, summary.high], axis=1)
        else:
            base.check_values(names, summary.totals, "KBinsDiscretizer")
            ranges = np.stack([item.values[[0, -1]] for item in summary.columns])
        with np.errstate(over="ignore"):
            base.check_finite(names, ranges[:, 1] - ranges[:, 0], "KBinsDiscretizer")
        histograms = [None] * len(names) if isinstance(summary, Extremes) else summary.columns
        self.bin_edges_ = [self._edges(*item) for item in zip(ranges, counts, histograms, strict=True)]
        self.n_bins_ = np.array([len(edges) - 1 for edges in self.bin_edges_])
        return super().finalize(summary)

    def _edges(self, ends: Any, size: int, histogram: Histogram | None) -> Any:
        low, high = ends
        if low == high:
            return np.array([low, high])
        if histogram is None:
            return np.linspace(low, high, size + 1)
        if self.strategy == "quantile":
            edges = histogram.quantiles(np.linspace(0, 100, size + 1) / 100, self.quantile_method)
        else:
            centres = np.sort(cluster_sorted_values(histogram.values, histogram.counts, size))
            edges = np.concatenate([[low], (centres[1:] + centres[:-1]) / 2, [high]])
        return edges[np.diff(edges, prepend=-np.inf) > _NARROWEST * min(1.0, high - low)]

    def get_state(self) -> dict[str, Any]:
        self.check_fitted()
        return {"names_in_": self.names_in_, "n_bins_": self.n_bins_, "edges": np.concatenate(self.bin_edges_)}

    def set_state(self, state: Mapping[str, Any]) -> Self:
        names, bins, edges, where = state["names_in_"], state["n_bins_"], state["edges"], self.class_name
        check_value(where, "n_bins_", bins, "counts[C]", {"C": len(names)})
        check_value(where, "edges", edges, "finite[E]", {})
        fits = (bins <= MAX_BINS).all() and (bins + 1).sum() == len(edges)
        require_state(bool(fits), where, "n_bins_", bins, f"up to {MAX_BINS} bins each, with {len(edges)} edges in all")
        self.n_bins_, self.bin_edges_ = bins, np.split(edges, np.cumsum(bins + 1)[:-1])
        return super().set_state({"names_in_": names})

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, edges = backend.xp, dict(zip(self.names_in_, self.bin_edges_, strict=True))
        ids = {name: _assign_bins(column, edges[name][1:-1], backend, "right") for name, column in columns.items()}
        if self.encode == "ordinal":
            return ids
        return {
            f"{name}_{index}": Column("float32", (column.data == index + FIRST).astype(xp.float32))
            for name, column in ids.items()
            for index in range(len(edges[name]) - 1)
        }

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the middle of each value's bin; missing where the id is 0, 1 or not a bin's."""
        xp, outputs = backend.xp, {}
        for name, edges in zip(self.names_in_, self.bin_edges_, strict=True):
            middles = np.append(edges[1:] / 2 + edges[:-1] / 2, np.nan)
            size = len(edges) - 1
            if self.encode == "ordinal":
                bins = columns[name].data.astype("int64") - FIRST
            else:
                flags = xp.stack([columns[f"{name}_{number}"].data for number in range(size)])
                bins = xp.where(flags.max(axis=0) > 0, flags.argmax(axis=0), size)
            bins = xp.where((bins >= 0) & (bins < size), bins, size)
            outputs[name] = Column("float32", backend.to_device(middles.astype("float32"))[bins])
        return outputs


def _assign_bins(column: Column, edges: Any, backend: Backend, side: str) -> Column:
    """Return n int32: 0 missing, and the bins from 2 up."""
    xp = backend.xp
    borders, out = backend.to_device(edges), xp.empty(len(column), dtype="int32")
    for rows in base.row_blocks(len(column), backend):
        block: Array = floats(column.take(rows), xp)
        out[rows] = xp.where(xp.isnan(block), MISSING, xp.searchsorted(borders, block, side=side) + FIRST)
    return Column("int32", out)


def cluster_sorted_values(values: Any, counts: Any, k: int) -> Any:
    """Return the centres where Lloyd's iterations end, started from the middles of k bins of equal width.

    They stop, and a centre that has lost all its values is moved, as in scikit-learn's `KMeans`; ties, which there are
    decided by rounding, are decided for the lower value or centre, and a centre's only value is not taken away. Values
    are ascending and not all equal, each with its count; an iteration takes time that grows with k, not with them.
    """
    low, width = values[0], values[-1] - values[0]
    unit = (values - low) / width
    weights = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
    sums = np.concatenate([[0.0], np.cumsum(unit * counts)])
    tolerance = 1e-4 * (np.square(unit - sums[-1] / weights[-1]) * counts).sum() / weights[-1]
    centres, last_borders = (np.arange(k) + 0.5) / k, None
    for _ in range(300):
        order = np.argsort(centres, kind="stable")
        ascending = centres[order]
        borders = np.searchsorted(unit, (ascending[1:] + ascending[:-1]) / 2, side="right")
        if last_borders is not None and np.array_equal(borders, last_borders):
            break
        ends = np.concatenate([[0], borders, [len(unit)]])
        weight, total = np.diff(weights[ends]), np.diff(sums[ends])
        empty = np.flatnonzero(weight == 0)
        if len(empty):  # each moves to the row farthest from its own centre
            owner = np.repeat(np.arange(k), np.diff(ends))
            distance = np.where(weight[owner] > 1, np.abs(unit - ascending[owner]).round(12), -1.0)
            farthest = np.argsort(-distance, kind="stable")[: len(empty)]
            rows = np.repeat(farthest, np.minimum(counts[farthest], len(empty)))[: len(empty)]
            for centre, row in zip(empty, rows, strict=True):
                weight[owner[row]] -= 1
                total[owner[row]] -= unit[row]
                weight[centre], total[centre] = 1.0, unit[row]
        moved = centres.copy()
        moved[order] = np.where(weight > 0, total / np.maximum(weight, 1), ascending)
        shift = np.square(moved - centres).sum()
        centres, last_borders = moved, borders
        if shift <= tolerance:
            break
    return low + width * centres
