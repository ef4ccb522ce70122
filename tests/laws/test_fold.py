"""For every step: a fit is a fold, a transform is a pure map, an imputer folds with the step after it."""

from __future__ import annotations

import copy
import pickle
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from gpupipe import errors, schema
from gpupipe import preprocessing as pre
from gpupipe.backend import Backend, select
from tests.examples import examples

from . import learned

CHECKS = examples(30)
each_example = pytest.mark.parametrize("example", learned.examples(), ids=str)


def test_every_step_has_an_example() -> None:
    assert set(learned.steps()) == set(learned.EXAMPLES)


@each_example
@CHECKS
@given(data=st.data())
def test_any_partitioning_gives_the_same_state(backend: Backend, example: learned.Example, data: st.DataObject) -> None:
    table = data.draw(learned.tables(example.dtypes, complete=example.complete, extreme=True))
    places = data.draw(learned.cuts(learned.num_rows(table)))
    order = data.draw(st.permutations(range(len(places) - 1)))
    try:
        whole = learned.fitted(example.make(), table, backend)
    except errors.BadData:
        with pytest.raises(errors.BadData):
            learned.fitted(example.make(), table, backend, places)
        return
    found = learned.summaries(example.make(), table, places, backend)
    scale = learned.scale_of(table)
    left = learned.total(found)
    shuffled = learned.total(found[i] for i in order)
    middle = len(found) // 2
    tree = learned.total(found[:middle]) + learned.total(found[middle:]) if middle else left
    for summary in (left, shuffled, tree):
        step = learned.completed(example.make().finalize(summary), table, places, backend)
        learned.assert_same_state(step, whole, scale)


@each_example
@CHECKS
@given(data=st.data())
def test_a_transform_is_a_pure_map(backend: Backend, example: learned.Example, data: st.DataObject) -> None:
    table = data.draw(learned.tables(example.dtypes, complete=example.complete, min_rows=1))
    step = example.make()
    try:
        learned.fitted(step, table, backend)
    except errors.BadData:
        return
    columns = learned.columns_of(table, backend)
    before = {name: learned.host(column, backend) for name, column in columns.items()}
    raw = {name: backend.to_host(column.data).copy() for name, column in columns.items()}
    whole = step.transform_columns(columns, backend)
    for name, column in columns.items():
        assert learned.host(column, backend) == before[name]
        np.testing.assert_array_equal(backend.to_host(column.data), raw[name])

    fields = step.output_fields(learned.fields_of(table))
    assert [(item.name, item.dtype) for item in fields] == [(name, made.dtype) for name, made in whole.items()]
    assert [item.name for item in fields] == step.get_feature_names_out() == step.output_names(list(table))
    places = data.draw(learned.cuts(learned.num_rows(table)))
    pieces = [
        step.transform_columns(learned.columns_of(learned.part(table, start, stop), backend), backend)
        for start, stop in pairwise(places)
    ]
    for item in fields:
        values = learned.host(whole[item.name], backend)
        joined = [value for piece in pieces for value in learned.host(piece[item.name], backend)]
        assert item.nullable or None not in values
        ids = chain.from_iterable(value or () for value in values) if item.kind == schema.Kind.LIST else values
        assert item.cardinality is None or all(0 <= value < item.cardinality for value in ids)
        if item.dtype == "float32":
            missing = [value is None for value in values]
            assert missing == [value is None for value in joined]
            np.testing.assert_allclose(_numbers(joined), _numbers(values), rtol=1e-5, atol=1e-6)
        else:
            assert values == joined


def _numbers(values: list[Any]) -> Any:
    return np.array([value for value in values if value is not None])


@each_example
@CHECKS
@given(data=st.data())
def test_state_goes_out_and_comes_back(backend: Backend, example: learned.Example, data: st.DataObject) -> None:
    table = data.draw(learned.tables(example.dtypes, complete=example.complete, min_rows=2))
    step = example.make()
    with pytest.raises(errors.NotFitted):
        step.get_state()
    try:
        learned.fitted(step, table, backend)
    except errors.BadData:
        return
    again = example.make().set_state(copy.deepcopy(step.get_state()))
    assert again.is_fitted
    columns = learned.columns_of(table, backend)
    wanted = step.transform_columns(columns, backend)
    for name, column in again.transform_columns(columns, backend).items():
        assert learned.host(column, backend) == learned.host(wanted[name], backend)
    assert again.output_fields(learned.fields_of(table)) == step.output_fields(learned.fields_of(table))


@each_example
def test_state_of_another_shape_or_type_is_refused(example: learned.Example) -> None:
    table = {f"c{i}": (dtype, _plain(dtype)) for i, dtype in enumerate(example.dtypes)}
    state = learned.fitted(example.make(), table, select("cpu")).get_state()
    names = state["names_in_"]
    others: list[tuple[str, Any]] = [("names_in_", [0] * len(names))]
    others += [("names_in_", [names[0]] * len(names))] * (len(names) > 1)
    for name, value in state.items():
        if isinstance(value, np.ndarray) and not name.startswith("estimator"):
            others += [(name, value[None]), (name, value.astype("datetime64[s]")), (name, value.tolist())]
        elif isinstance(value, pa.Array) and len(value):
            others += [(name, pa.nulls(3, value.type)), (name, pa.array([b"x"])), (name, pa.concat_arrays([value] * 2))]
    for name, value in others:
        with pytest.raises(errors.ArtifactError):
            example.make().set_state({**state, name: value})


@each_example
def test_a_summary_travels_between_processes(backend: Backend, example: learned.Example) -> None:
    table = {f"c{i}": (dtype, _plain(dtype)) for i, dtype in enumerate(example.dtypes)}
    found = learned.summaries(example.make(), table, [0, 3, 6], backend)
    sent = [pickle.loads(pickle.dumps(summary)) for summary in found]
    wanted = example.make().finalize(learned.total(found))
    learned.assert_same_state(example.make().finalize(learned.total(sent)), wanted, learned.scale_of(table))


def _plain(dtype: str) -> list[Any]:
    element = schema.get_element_dtype(dtype)
    if element is not None:
        return [[], *([value, value] for value in _plain(element)[1:])]
    if dtype == "string":
        return ["a", "b", "a", "c", "b", "a"]
    return [True, False, True, True, False, True] if dtype == "bool" else [1, 5, 2, 8, 3, 13]


@each_example
def test_parameters_are_kept_as_scikit_learn_has_them(example: learned.Example) -> None:
    step = example.make()
    twin = clone(step) if not isinstance(step, pre.EstimatorStep) else type(step)(**step.get_params())
    assert repr(twin) == repr(step)
    assert not twin.is_fitted


STRATEGIES = ["mean", "most_frequent", *(pytest.param(one, marks=pytest.mark.slow) for one in ("median", "constant"))]
LATE = [example for example in learned.examples() if example.make().fills_late]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("example", LATE, ids=str)
@examples(15)
@given(data=st.data())
def test_an_imputer_folds_with_the_step_after_it(
    backend: Backend, example: learned.Example, strategy: str, data: st.DataObject
) -> None:
    dtypes = [d for d in example.dtypes if d in ("float64", "int64") or strategy in ("most_frequent", "constant")]
    dtypes = [d for d in dtypes if d not in schema.LISTS]
    if not dtypes or (strategy in ("mean", "median") and not learned.takes(example.make(), "float64")):
        return
    table = data.draw(learned.tables(dtypes, min_rows=1))
    places = data.draw(learned.cuts(learned.num_rows(table)))
    imputer = pre.SimpleImputer(strategy=strategy)
    try:
        learned.fitted(imputer, table, backend, places)
        filled = imputer.transform_columns(learned.columns_of(table, backend), backend)
        dense = {name: (column.dtype, learned.host(column, backend)) for name, column in filled.items()}
        wanted = learned.fitted(example.make(), dense, backend)
    except errors.BadData:
        return
    together = learned.total(learned.summaries(example.make(), table, places, backend))
    found = example.make().finalize(together.filled(imputer.statistics_))
    learned.completed(found, dense, places, backend)
    learned.assert_same_state(found, wanted, learned.scale_of(table))


@pytest.mark.parametrize(
    "make", [lambda n: pre.KMeans(3, max_rows=n, max_passes=0), lambda n: pre.EstimatorStep(_Mean(), max_rows=n)]
)
def test_a_sample_is_the_same_for_any_partitioning(backend: Backend, make: Any) -> None:
    values = np.random.default_rng(3).normal(size=2000).tolist()
    table: learned.Table = {"x": ("float64", values)}
    wanted = learned.fitted(make(500), table, backend)
    assert wanted.num_rows_ == 2000 and 200 <= wanted.num_fitted_ <= 500
    for places in ([0, 1000, 2000], [0, 10, 11, 11, 900, 1500, 1999, 2000]):
        found = learned.summaries(make(500), table, places, backend)
        for order in (found, found[::-1]):
            step = learned.completed(make(500).finalize(learned.total(order)), table, places, backend)
            assert step.num_fitted_ == wanted.num_fitted_
            columns = learned.columns_of(table, backend)
            for name, column in step.transform_columns(columns, backend).items():
                assert learned.host(column, backend) == learned.host(
                    wanted.transform_columns(columns, backend)[name], backend
                )


@pytest.mark.parametrize("tol", [1e-4, 0.0])
@pytest.mark.parametrize("values", [[1e140] + [0.0] * 40, [0.0] * 40 + [1e140, 3.0], [1e9 + n for n in range(41)]])
@pytest.mark.slow
def test_passes_over_all_rows_do_not_depend_on_rounding(backend: Backend, tol: float, values: list[float]) -> None:
    """A row far from all others that the sample lacks: what is left of it after a move is the sum's last bits."""
    table: learned.Table = {"x": ("float64", values)}
    wanted = learned.fitted(pre.KMeans(1, max_rows=5, tol=tol), table, backend)
    assert 1 <= wanted.num_passes_ < wanted.max_passes
    for cut in range(1, len(values)):
        found = learned.fitted(pre.KMeans(1, max_rows=5, tol=tol), table, backend, [0, cut, len(values)])
        learned.assert_same_state(found, wanted, learned.scale_of(table))


class _Mean:
    """An estimator that anybody could have written."""

    def fit(self, block: Any) -> _Mean:
        self.mean_ = block.mean(axis=0)
        return self

    def transform(self, block: Any) -> Any:
        return block - self.mean_


@each_example
def test_before_a_fit_it_says_so(example: learned.Example) -> None:
    import pandas as pd

    with pytest.raises(errors.NotFitted, match="fit before transform"):
        example.make().transform(pd.DataFrame({"c0": [1.0]}))


@each_example
def test_another_type_of_column_is_named(example: learned.Example) -> None:
    step = example.make()
    wrong = "timestamp" if learned.takes(step, "float64") else "float64"
    others = [schema.Field(f"c{number}", "bool") for number in range(1, len(example.dtypes))]
    with pytest.raises(errors.SchemaMismatch, match=f"'c0'.*{wrong}"):
        step.output_fields([schema.Field("c0", wrong), *others])
