"""Every step works where scikit-learn's do: in its `Pipeline` and `ColumnTransformer`, on a frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.utils.validation import check_is_fitted

from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe.backend import select
from gpupipe.schema import get_element_dtype
from tests.raising import raises

from . import learned

each_example = pytest.mark.parametrize("example", learned.examples(), ids=str)

VALUES: dict[str, list[Any]] = {
    "string": ["a", "b", "a", "c", "b", "a"],
    "bool": [True, False, True, True, False, True],
    "timestamp": [10**15 * hour for hour in range(6)],
}
NUMBERS = [[1, 5, 2, 8, 3, 13], [7, 2, 2, 9, 1, 4]]


def values(dtype: str, place: int) -> list[Any]:
    element = get_element_dtype(dtype)
    if element is None:
        return VALUES.get(dtype, NUMBERS[place % 2])
    return [values(element, place)[first : first + first % 3] for first in range(6)]


def frame_for(example: learned.Example) -> tuple[pd.DataFrame, pd.Series]:
    """A user's frame of the columns a step is tried on, and a target for those that want one."""
    columns: learned.Table = {f"c{i}": (dtype, values(dtype, i)) for i, dtype in enumerate(example.dtypes)}
    backend = select("cpu")
    frame = backend.decode(backend.frame(learned.columns_of(columns, backend), 6))
    frame.index = pd.Index(list("uvwxyz"))
    step = example.make()
    classes = isinstance(step, pre.TargetEncoder) and step.target_type == "multiclass"
    return frame, pd.Series(["late", "gone", "on time"] * 2 if classes else [0.0, 1, 0, 2, 1, 5], frame.index)


def same(found: Any, wanted: pd.DataFrame) -> None:
    found = pd.DataFrame(found, index=wanted.index)
    for mine, theirs in zip(found, wanted, strict=True):
        if wanted[theirs].dtype.kind in "OTUM":
            assert found[mine].tolist() == wanted[theirs].tolist()
        else:
            np.testing.assert_allclose(found[mine].astype("float64"), wanted[theirs].astype("float64"), rtol=1e-6)


@each_example
def test_in_a_pipeline(example: learned.Example) -> None:
    frame, target = frame_for(example)
    fitted = example.make().fit(frame, target)
    wanted = fitted.transform(frame)
    chain = Pipeline([("step", example.make())])
    with pytest.raises(NotFittedError):
        check_is_fitted(chain)
    assert chain.fit(frame, target) is chain
    check_is_fitted(chain)
    pd.testing.assert_frame_equal(chain.transform(frame), wanted)
    assert list(chain.get_feature_names_out()) == list(wanted.columns) == fitted.get_feature_names_out()
    first = example.make().fit_transform(frame, target)
    pd.testing.assert_frame_equal(Pipeline([("step", example.make())]).fit_transform(frame, target), first)
    pd.testing.assert_frame_equal(clone(chain).fit(frame, target).transform(frame), wanted)
    assert "Pipeline" in repr(chain) and chain._repr_html_()


@each_example
def test_parameters_are_set_from_outside(example: learned.Example) -> None:
    chain = Pipeline([("step", example.make())])
    params = example.make().get_params()
    assert {name for name in chain.get_params() if name.startswith("step__")} >= {f"step__{name}" for name in params}
    for name in params:
        chain.set_params(**{f"step__{name}": params[name]})
        assert chain.named_steps["step"].get_params()[name] is params[name]
    with pytest.raises(errors.BadConfig, match="no such parameter, got 'nonsense'"):
        chain.set_params(step__nonsense=1)


@each_example
def test_beside_other_columns(example: learned.Example) -> None:
    """`ColumnTransformer` clones a step, gives it some of the columns, and puts its output beside the rest."""
    frame, target = frame_for(example)
    wanted = example.make().fit_transform(frame, target)
    wide = frame.assign(rest=np.arange(6.0))
    beside = ColumnTransformer([("step", example.make(), list(frame))], remainder="passthrough")
    beside.set_output(transform="pandas")
    found = beside.fit_transform(wide, target)
    assert (
        list(found)
        == [*(f"step__{name}" for name in wanted), "remainder__rest"]
        == list(beside.get_feature_names_out())
    )
    same(found[[f"step__{name}" for name in wanted]], wanted)
    assert found["remainder__rest"].tolist() == wide["rest"].tolist()
    same(beside.transform(wide).iloc[:, :-1], example.make().fit(frame, target).transform(frame))


def test_the_output_is_a_frame_or_nothing() -> None:
    step = pre.StandardScaler()
    assert step.set_output(transform="pandas") is step and step.set_output() is step
    with raises(errors.BadConfig, where="StandardScaler.set_output(transform=)", got="polars"):
        step.set_output(transform="polars")


def test_two_steps_side_by_side() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 6.0]})
    both = FeatureUnion([("scaled", pre.StandardScaler()), ("largest", pre.MaxAbsScaler())])
    found = both.fit_transform(frame)
    assert list(both.get_feature_names_out()) == ["scaled__x", "largest__x"]
    np.testing.assert_allclose(np.asarray(found)[:, 1], [1 / 6, 2 / 6, 1], rtol=1e-6)
