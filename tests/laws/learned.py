"""An example of every learned step, columns to fit it on, and the fold itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from sklearn.preprocessing import MaxAbsScaler

from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.backend import Backend, Column
from gpupipe.backend.arrow import arrow_type
from gpupipe.schema import LISTS, Field, to_list_dtype

Table = dict[str, tuple[str, list[Any]]]
"""Columns by name: type and values, None where missing."""


@dataclass(frozen=True)
class Example:
    """A step by how it is made, and the types of the columns it is tried on."""

    make: Callable[[], pre.LearnedStep]
    dtypes: tuple[str, ...]
    complete: bool = False
    """Whether missing values are refused."""

    def __str__(self) -> str:
        return f"{self.make()!r} on {'+'.join(self.dtypes)}"


NUMBERS = ("float64", "float32", "int64", "bool")
EXAMPLES: dict[type, list[Example]] = {
    pre.SimpleImputer: [
        Example(pre.SimpleImputer, NUMBERS),
        Example(lambda: pre.SimpleImputer(strategy="median", add_indicator=True), NUMBERS),
        Example(lambda: pre.SimpleImputer(strategy="median", exact=True), NUMBERS),
        Example(lambda: pre.SimpleImputer(strategy="most_frequent"), (*NUMBERS, "string", "uint64")),
        Example(lambda: pre.SimpleImputer(strategy="constant", fill_value=1), NUMBERS),
        Example(lambda: pre.SimpleImputer(strategy="constant", add_indicator=True), ("string",)),
    ],
    pre.GroupImputer: [
        Example(lambda: pre.GroupImputer("c0"), ("string", "float64", "int64")),
        Example(lambda: pre.GroupImputer("c1", "median"), ("float64", "int64")),
        Example(lambda: pre.GroupImputer("c1", "most_frequent"), ("bool", "bool")),
    ],
    pre.GroupStats: [
        Example(lambda: pre.GroupStats("c0", ["mean", "std", "count"]), ("string", "float64", "int64")),
        Example(
            lambda: pre.GroupStats(["c0", "c1"], ["sum", "min", "size", "nunique"], handle_unknown="missing"),
            ("string", "int64", "float64", "bool"),
        ),
        Example(lambda: pre.GroupStats(["c0", "c1"], ["var", "max"], dropna=False), ("bool", "uint64", "float64")),
    ],
    pre.StandardScaler: [Example(pre.StandardScaler, NUMBERS)],
    pre.MinMaxScaler: [Example(lambda: pre.MinMaxScaler(feature_range=(-1, 3), clip=True), NUMBERS)],
    pre.MaxAbsScaler: [Example(pre.MaxAbsScaler, NUMBERS)],
    pre.RobustScaler: [
        Example(lambda: pre.RobustScaler(quantile_range=(10, 80)), NUMBERS),
        Example(lambda: pre.RobustScaler(unit_variance=True, exact=True), NUMBERS),
        Example(lambda: pre.RobustScaler(clip="smooth"), NUMBERS),
    ],
    pre.QuantileTransformer: [
        Example(lambda: pre.QuantileTransformer(n_quantiles=5), NUMBERS),
        Example(lambda: pre.QuantileTransformer(output_distribution="normal", exact=True), NUMBERS),
    ],
    pre.PowerTransformer: [
        Example(pre.PowerTransformer, NUMBERS),
        Example(lambda: pre.PowerTransformer("box-cox"), ("float64", "int64")),
    ],
    pre.Log1p: [Example(pre.Log1p, NUMBERS)],
    pre.Normalizer: [
        Example(pre.Normalizer, ("float64", "int64"), complete=True),
        Example(lambda: pre.Normalizer("l1"), ("float64", "bool"), complete=True),
    ],
    pre.Bucketize: [
        Example(lambda: pre.Bucketize([-1, 0, 2.5]), NUMBERS),
        Example(lambda: pre.Bucketize({"c0": [0], "departure": [0]}, right=True), ("float64",)),
    ],
    pre.KBinsDiscretizer: [
        Example(lambda: pre.KBinsDiscretizer(3), NUMBERS),
        Example(lambda: pre.KBinsDiscretizer(3, strategy="uniform", encode="onehot-dense"), NUMBERS),
        Example(lambda: pre.KBinsDiscretizer([2, 3], strategy="kmeans"), ("float64", "int64")),
    ],
    pre.Categorify: [
        Example(pre.Categorify, ("string", "int64", "uint64", "int8", "bool")),
        Example(lambda: pre.Categorify(min_frequency=2, max_categories=3), ("string", "int64")),
        Example(lambda: pre.Categorify(min_frequency=2, num_buckets=3), ("string", "int64", "uint64")),
        Example(lambda: pre.Categorify(joint=True, max_categories=2, num_buckets=1), ("string", "string")),
        Example(lambda: pre.Categorify(joint=True, vocabulary=[3, 0, 2**40]), ("int64", "int64")),
        Example(lambda: pre.Categorify(vocabulary={"c1": ["b", "a"]}, min_frequency=2), ("int64", "string")),
        Example(pre.Categorify, ("list<string>", "list<int64>", "bool")),
        Example(lambda: pre.Categorify(joint=True, min_frequency=2, num_buckets=2), ("list<string>", "string")),
    ],
    pre.ListSlice: [
        Example(lambda: pre.ListSlice(2), ("list<string>", "list<int64>", "list<float64>", "list<bool>")),
        Example(lambda: pre.ListSlice(-2, -1), ("list<string>", "list<uint64>")),
        Example(lambda: pre.ListSlice(1, 3, pad=True, pad_value=7), ("list<int64>", "list<float64>")),
        Example(lambda: pre.ListSlice(-2, pad=True, pad_value=None), ("list<string>", "list<timestamp>")),
    ],
    pre.DatetimeEncoder: [
        Example(pre.DatetimeEncoder, ("timestamp", "timestamp")),
        Example(lambda: pre.DatetimeEncoder(["week", "is_month_end"], cyclic="day"), ("timestamp",)),
    ],
    pre.Downcast: [Example(pre.Downcast, (*NUMBERS, "uint64", "int8"))],
    pre.OneHotEncoder: [
        Example(pre.OneHotEncoder, ("string", "int64", "bool")),
        Example(lambda: pre.OneHotEncoder(drop="first", dtype="float32", max_categories=3), ("string", "uint64")),
        Example(
            lambda: pre.OneHotEncoder(
                categories={"c0": ["b", None, "a"]}, handle_unknown="infrequent_if_exist", min_frequency=0.2
            ),
            ("string", "int8"),
        ),
        Example(lambda: pre.OneHotEncoder(drop="if_binary", handle_unknown="ignore"), ("string", "bool")),
    ],
    pre.OrdinalEncoder: [
        Example(pre.OrdinalEncoder, ("string", "int64", "uint64", "bool")),
        Example(
            lambda: pre.OrdinalEncoder(
                categories={"c0": ["b", "a"]},
                handle_unknown="use_encoded_value",
                unknown_value=-1,
                encoded_missing_value=-2,
                max_categories=2,
            ),
            ("string", "int8"),
        ),
    ],
    pre.CountEncoder: [
        Example(pre.CountEncoder, ("string", "int64", "uint64", "bool")),
        Example(lambda: pre.CountEncoder(normalize=True), ("string", "int8")),
    ],
    pre.HashBucket: [
        Example(lambda: pre.HashBucket(7), ("string", "int64", "uint64", "bool")),
        Example(lambda: pre.HashBucket(7), ("list<string>", "list<int64>")),
        Example(lambda: pre.HashBucket({"c0": 3, "c1": 1000, "departure": 2, "b": 2}, seed=5), ("string", "int8")),
    ],
    pre.HashedCross: [
        Example(lambda: pre.HashedCross(11), ("string", "string")),
        Example(lambda: pre.HashedCross(1000, seed=3), ("int64", "bool", "string")),
    ],
    pre.HashedNgrams: [
        Example(lambda: pre.HashedNgrams(6), ("string",)),
        Example(lambda: pre.HashedNgrams(3, analyzer="char", ngram_range=(1, 3), norm="l1"), ("string", "string")),
    ],
    pre.PCA: [
        Example(pre.PCA, NUMBERS, complete=True),
        Example(lambda: pre.PCA(solver="covariance", whiten=True), NUMBERS, complete=True),
        Example(lambda: pre.PCA(n_components=1, solver="library"), ("float64", "float64"), complete=True),
    ],
    pre.IncrementalPCA: [Example(pre.IncrementalPCA, NUMBERS, complete=True)],
    pre.TruncatedSVD: [Example(pre.TruncatedSVD, ("float64", "int64"), complete=True)],
    pre.VarianceThreshold: [
        Example(pre.VarianceThreshold, NUMBERS),
        Example(lambda: pre.VarianceThreshold(0.3), ("float64", "bool")),
    ],
    pre.CorrelationThreshold: [Example(lambda: pre.CorrelationThreshold(0.8), NUMBERS, complete=True)],
    pre.KMeans: [
        Example(lambda: pre.KMeans(n_clusters=2), NUMBERS, complete=True),
        Example(lambda: pre.KMeans(n_clusters=2, output="distances"), ("float64", "int64"), complete=True),
        Example(lambda: pre.KMeans(n_clusters=1, max_rows=5), ("float64", "int64"), complete=True),
        Example(lambda: pre.KMeans(n_clusters=1, max_rows=5, max_passes=0), ("float64", "int64"), complete=True),
    ],
    pre.TargetEncoder: [
        Example(pre.TargetEncoder, ("string", "int64", "uint64", "int8", "bool")),
        Example(lambda: pre.TargetEncoder(smooth=3, cv=3, random_state=4), ("string", "int64")),
        Example(lambda: pre.TargetEncoder(target_type="multiclass"), ("string", "bool")),
        Example(lambda: pre.TargetEncoder(categories={"c0": ["b", "a", None], "c1": [3, -1]}), ("string", "int8")),
    ],
    pre.EstimatorStep: [
        Example(lambda: pre.EstimatorStep(MaxAbsScaler()), NUMBERS, complete=True),
        Example(lambda: pre.EstimatorStep(MaxAbsScaler(), max_rows=4), NUMBERS, complete=True),
    ],
}


def steps() -> list[type]:
    """Every concrete step the package exports."""
    exported = [getattr(pre, name) for name in pre.__all__]
    return [
        cls
        for cls in exported
        if inspect.isclass(cls) and issubclass(cls, pre.LearnedStep) and not inspect.isabstract(cls)
    ]


def examples() -> list[Example]:
    return [example for cls in steps() for example in EXAMPLES[cls]]


_EXTREME = [5e-324, 1e-300, -1e100, 1e100, 1e140, -1e140, 1e160, -1e160, 1e300, -1e300]
_TAME = st.one_of(
    st.integers(-800, 800).map(lambda v: v / 8),
    st.integers(0, 800).map(lambda v: 1e9 + v / 8),
    st.just(-0.0),
)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "float64": _TAME,
    "float32": st.integers(-800, 800).map(lambda v: v / 8),
    "int64": st.one_of(st.integers(-3, 3), st.integers(-(2**40), 2**40)),
    "uint64": st.one_of(st.integers(0, 3), st.integers(2**63, 2**64 - 1)),
    "int8": st.integers(-128, 127),
    "bool": st.booleans(),
    "timestamp": st.integers(-(2**55), 2**55),  # what Python's datetime can say
    "string": st.sampled_from(["", "a", "b", "ß", "straße", "é", "e\u0301", "日本", "\U0001f6eb", "zz top"]),
}


_VALUES |= {to_list_dtype(dtype): st.lists(st.none() | values, max_size=3) for dtype, values in _VALUES.items()}


@st.composite
def tables(
    draw: st.DrawFn, dtypes: Sequence[str], *, complete: bool = False, min_rows: int = 0, extreme: bool = False
) -> Table:
    """Columns of these types: missing values, all missing, constant, empty, one row; huge values if `extreme`."""
    num_rows = draw(st.integers(min_rows, 12))
    table: Table = {}
    for position, dtype in enumerate(dtypes):
        value = st.one_of(_TAME, st.sampled_from(_EXTREME)) if extreme and dtype == "float64" else _VALUES[dtype]
        values = st.lists(value, min_size=num_rows, max_size=num_rows)
        if not complete:
            some = st.lists(st.none() | value, min_size=num_rows, max_size=num_rows)
            values = st.one_of(values, some, st.just([None] * num_rows))
        constant = value.map(lambda one, n=num_rows: [one] * n)
        table[f"c{position}"] = (dtype, draw(st.one_of(values, constant)))
    return table


def cuts(num_rows: int) -> st.SearchStrategy[list[int]]:
    """Where 1, 2 or 7 partitions begin and end; some are empty."""
    inner = st.sampled_from([0, 1, 6]).flatmap(lambda k: st.lists(st.integers(0, num_rows), min_size=k, max_size=k))
    return inner.map(lambda places: [0, *sorted(places), num_rows])


def columns_of(table: Table, backend: Backend) -> dict[str, Column]:
    """The columns as a backend has them."""
    arrow = pa.table({name: pa.array(values, arrow_type(dtype)) for name, (dtype, values) in table.items()})
    frame = backend.from_arrow(arrow, fields_of(table))
    return {name: backend.column(frame, name) for name in table}


def takes(step: pre.LearnedStep, dtype: str) -> bool:
    """Whether a step works on columns of a type."""
    try:
        step.output_fields([Field("departure", dtype), Field("b", dtype)])
    except errors.SchemaMismatch:
        return False
    except errors.GpupipeError:
        return True
    return True


def fields_of(table: Table) -> list[Field]:
    return [Field(name, dtype).as_source() for name, (dtype, _) in table.items()]


def part(table: Table, start: int, stop: int) -> Table:
    return {name: (dtype, values[start:stop]) for name, (dtype, values) in table.items()}


def num_rows(table: Table) -> int:
    return len(next(iter(table.values()))[1])


def summaries(step: pre.LearnedStep, table: Table, places: Sequence[int], backend: Backend) -> list[Any]:
    """One summary per partition; rows are numbered where the step asks for it."""
    found = []
    for start, stop in pairwise(places):
        columns = columns_of(part(table, start, stop), backend)
        if isinstance(step, pre.CrossFittedStep):
            numbers = np.arange(start, stop)
            target = target_of(step, numbers, backend)
            found.append(step.summarize(columns, backend, target=target, row_numbers=backend.to_device(numbers)))
        elif isinstance(step, pre.GatheredStep):
            found.append(step.summarize(columns, backend, backend.to_device(np.arange(start, stop))))
        else:
            found.append(step.summarize(columns, backend))
    return found


def target_of(step: Any, numbers: Any, backend: Backend) -> dict[str, Column]:
    """A target made from the rows' numbers: some numbers, or three classes of which some partitions lack one."""
    if step.target_type == "multiclass":
        words = pa.array(["on time", "late", "gone"], pa.large_string())
        return {"y": Column("string", backend.to_device((numbers * numbers + numbers // 5) % 3), None, words)}
    return {"y": Column("float64", backend.to_device(1e6 + numbers * 7919 % 13 / 8))}


def total(found: Iterable[Any]) -> Any:
    return reduce(add, found)


def fitted(
    step: pre.LearnedStep, table: Table, backend: Backend, places: Sequence[int] | None = None
) -> pre.LearnedStep:
    step.output_fields(fields_of(table))
    places = places or [0, num_rows(table)]
    return completed(step.finalize(total(summaries(step, table, places, backend))), table, places, backend)


def completed(step: pre.LearnedStep, table: Table, places: Sequence[int], backend: Backend) -> pre.LearnedStep:
    """The step after as many more folds as it asks for."""
    while step.unfinished:
        step.finalize(total(summaries(step, table, places, backend)))
    return step


def host(column: Column, backend: Backend) -> Any:
    """Values as a list, None where missing, whatever the dictionary."""
    return backend.to_arrow(backend.frame({"x": column}, len(column)))["x"].to_pylist()


def scale_of(table: Table) -> float:
    """The largest number there is, of a size that can be squared: what absolute errors are measured by."""
    several = [values for dtype, values in table.values() if dtype not in ("string", *LISTS)]
    numbers = [abs(float(v)) for values in several for v in values if v is not None]
    return min(max(numbers, default=1.0), 1e150)


def assert_same_state(found: pre.LearnedStep, wanted: pre.LearnedStep, scale: float) -> None:
    """Counts and texts exactly, floats within 1e-6 of their size or 1e-12 of the data's."""
    if isinstance(wanted, pre.PCA):
        assert_same_directions(found, wanted, scale)
        return
    if isinstance(wanted, pre.TruncatedSVD):
        assert_same_gram(found, wanted)
        return
    mine, theirs = found.get_state(), wanted.get_state()
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            size = scale * scale if name == "var_" else scale
            np.testing.assert_allclose(mine[name], value, rtol=1e-6, atol=1e-12 * size, err_msg=name)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(mine[name], value, err_msg=name)
        elif isinstance(value, list | float):
            pairs = zip(mine[name], value, strict=True) if isinstance(value, list) else [(mine[name], value)]
            for a, b in pairs:
                assert a == b or abs(a - b) <= 1e-6 * abs(b) + 1e-12 * scale, name
        else:
            assert mine[name] == value, name


def assert_same_directions(found: Any, wanted: Any, scale: float) -> None:
    """The same variances, and the same subspaces where components have nearly the same one."""
    assert found.n_samples_ == wanted.n_samples_
    variance = wanted.explained_variance_.max(initial=0.0)
    np.testing.assert_allclose(found.mean_, wanted.mean_, rtol=1e-6, atol=1e-12 * scale)
    np.testing.assert_allclose(
        found.explained_variance_, wanted.explained_variance_, rtol=1e-5, atol=1e-9 * variance + 1e-24 * scale * scale
    )
    weighted = [item.components_.T * item.explained_variance_ @ item.components_ for item in (found, wanted)]
    np.testing.assert_allclose(*weighted, rtol=1e-5, atol=1e-5 * variance + 1e-24 * scale * scale)


def assert_same_gram(found: Any, wanted: Any) -> None:
    """The same singular values, and the same subspaces where components have nearly the same one."""
    assert found.n_samples_ == wanted.n_samples_
    largest = wanted.singular_values_.max()
    np.testing.assert_allclose(found.singular_values_, wanted.singular_values_, rtol=1e-5, atol=1e-7 * largest)
    weighted = [item.components_.T * item.singular_values_**2 @ item.components_ for item in (found, wanted)]
    np.testing.assert_allclose(*weighted, rtol=1e-5, atol=1e-9 * largest**2)
