"""The rooms above the backend on stand-ins: array code runs under CuPy's rules and gives what it gives on the CPU."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn.preprocessing

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

from gpupipe import preprocessing, transforms
from gpupipe.backend.columns import Backend
from gpupipe.preprocessing import CrossFittedStep, GatheredStep, LearnedStep
from gpupipe.tensors import Permutation
from gpupipe.transforms import Transform

from .oracle import host
from .standin_frame import cudf

RANDOM = np.random.default_rng(3)
NUMBERS = pd.DataFrame(RANDOM.standard_normal((120, 3)) * [1.0, 5.0, 0.1] + [0.0, 40.0, 1e3], columns=["x", "y", "z"])
GAPS = NUMBERS.mask(RANDOM.random((120, 3)) < 0.2).assign(n=pd.array([None, 1, 2, 2] * 30, dtype="Int64"))
WORDS = pd.DataFrame({"a": pd.array(["JFK", "LGA", None, "EWR", "JFK", "LGA"] * 20, dtype="str"), "b": ["x", "y"] * 60})
FLIGHTS = GAPS.join(WORDS).assign(at=pd.to_datetime("2013-01-01") + pd.to_timedelta(range(120), unit="h"))

# Beyond its defaults, what a step is tried with. A step without an entry is tried with its defaults.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Categorify": [
        {"min_frequency": 30},
        {"max_categories": 1},
        {"max_categories": 1, "num_buckets": 5},
        {"joint": True, "vocabulary": ["LGA", "x"], "num_buckets": 3},
    ],
    "OneHotEncoder": [{}, {"max_categories": 2, "dtype": "float32", "handle_unknown": "ignore"}],
    "OrdinalEncoder": [{}, {"handle_unknown": "use_encoded_value", "unknown_value": -1, "min_frequency": 30}],
    "CountEncoder": [{"normalize": True}],
    "HashBucket": [{"num_buckets": 50}],
    "HashedCross": [{"num_buckets": 50}],
    "HashedNgrams": [{"n_features": 5, "analyzer": "char"}],
    "Bucketize": [{"edges": [0.0, 30.0, 1e3]}],
    "ListSlice": [{"start": -2, "pad": True}, {"start": 1, "end": 3, "pad": True, "pad_value": 7}],
    "GroupImputer": [{"by": "n", "strategy": name} for name in ("mean", "median", "most_frequent")],
    "GroupStats": [
        {"by": ["a", "n"], "stats": ["size", "count", "nunique", "sum", "mean", "var", "min"]},
        {"by": ["n", "a"], "stats": ["std", "max"], "dropna": False, "handle_unknown": "missing"},
    ],
    "KBinsDiscretizer": [
        {"strategy": "uniform", "encode": "onehot-dense"},
        {"strategy": "kmeans", "n_bins": 3},
        {"strategy": "quantile"},
    ],
    "KMeans": [{"n_clusters": 3}, {"n_clusters": 3, "max_rows": 60}],
    "Normalizer": [{"norm": name} for name in ("l1", "l2", "max")],
    "QuantileTransformer": [{"n_quantiles": 10}, {"n_quantiles": 10, "output_distribution": "normal", "exact": True}],
    "PCA": [{"n_components": 2, "solver": "covariance"}, {"n_components": 2, "solver": "library"}],
    "EstimatorStep": [{"estimator": sklearn.preprocessing.QuantileTransformer(n_quantiles=10)}],
    "SimpleImputer": [
        *({"strategy": name, "add_indicator": True} for name in ("mean", "median", "most_frequent")),
        {"strategy": "constant", "fill_value": 3},
    ],
}
LISTS = pd.DataFrame({"seen": pd.Series([[7, 8, 9], [5], [], None], dtype=pd.ArrowDtype(pa.list_(pa.int64())))})


def concrete(room: Any, kind: type) -> list[type]:
    found = [getattr(room, name) for name in room.__all__]
    return [cls for cls in found if isinstance(cls, type) and issubclass(cls, kind) and not inspect.isabstract(cls)]


STEPS = [
    pytest.param(cls, settings, id=f"{cls.__name__}{settings or ''}")
    for cls in concrete(preprocessing, (LearnedStep, GatheredStep))
    if not issubclass(cls, CrossFittedStep)
    for settings in SETTINGS.get(cls.__name__, [{}])
]


# What steps that learn from a target are given for one.
TARGETS = [pd.DataFrame({"y": FLIGHTS["y"] * 2}), pd.DataFrame({"y": FLIGHTS["a"].fillna("SFO")}), FLIGHTS[["x"]] > 0]
CROSS_FITTED = concrete(preprocessing, CrossFittedStep)


ENCODED = FLIGHTS[["a", "n", "b"]]


def input_for(cls: type) -> pd.DataFrame:
    return {
        "Categorify": WORDS,
        "HashedNgrams": WORDS,
        "ListSlice": LISTS,
        **dict.fromkeys(["OneHotEncoder", "OrdinalEncoder", "CountEncoder", "HashBucket", "HashedCross"], ENCODED),
        "SimpleImputer": GAPS,
        "GroupImputer": GAPS,
        "GroupStats": FLIGHTS[["n", "x", "y", "a"]],
        "DatetimeEncoder": FLIGHTS[["at"]],
        "Log1p": NUMBERS.abs(),
    }.get(cls.__name__, NUMBERS)


@pytest.mark.parametrize(("cls", "settings"), STEPS)
def test_a_step_learns_and_gives_the_same(rehearsed_backend: Backend, cls: Any, settings: dict[str, Any]) -> None:
    frame = input_for(cls)
    wanted = cls(**settings).fit(frame)
    found = cls(**settings).fit(cudf.from_pandas(frame))
    compare_states(found.get_state(), wanted.get_state())
    outputs = [step.transform(given) for step, given in ((found, cudf.from_pandas(frame)), (wanted, frame))]
    pd.testing.assert_frame_equal(outputs[0].to_pandas(), outputs[1], check_dtype=False, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("target", TARGETS, ids=["numbers", "classes", "a condition"])
@pytest.mark.parametrize("cls", CROSS_FITTED)
def test_a_step_learns_the_same_from_a_target(rehearsed_backend: Backend, cls: Any, target: pd.DataFrame) -> None:
    frame = FLIGHTS[["a", "b", "n"]]
    target = target.fillna(0.0) if target.dtypes.iloc[0] == "float64" else target
    found, wanted = cls(), cls()
    outputs = [
        found.fit_transform(cudf.from_pandas(frame), cudf.from_pandas(target)),
        wanted.fit_transform(frame, target),
    ]
    pd.testing.assert_frame_equal(outputs[0].to_pandas(), outputs[1], check_dtype=False, rtol=1e-6, atol=1e-9)
    compare_states(found.get_state(), wanted.get_state())
    outputs = [found.transform(cudf.from_pandas(frame)), wanted.transform(frame)]
    pd.testing.assert_frame_equal(outputs[0].to_pandas(), outputs[1], check_dtype=False, rtol=1e-6, atol=1e-9)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def compare_states(found: Any, wanted: Any) -> None:
    """Learned state lies on the host, whatever learned it."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert type(found[name]) is type(value), name
        floats = value.dtype.kind == "f" if isinstance(value, np.ndarray) else {float} == {*map(type, as_list(value))}
        if floats:
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-9)
        elif isinstance(value, dict):
            compare_states(found[name], value)
        else:
            assert np.all(found[name] == value), name


def double(frame: Any) -> Any:
    return frame.assign(twice=frame["x"] * 2)


RIGHT = pd.DataFrame(
    {"a": ["LGA", "JFK"], "temp": [39.5, 41.0], "runways": [2, 4], "open": [True, False], "name": ["G", "K"]}
)
EXAMPLES = [
    transforms.Select(["z", "a"]),
    transforms.Drop(["a"]),
    transforms.Rename({"x": "distance"}),
    transforms.Cast({"n": "float64", "x": "float32", "b": "string"}),
    transforms.Cast({"n": "string", "at": "string"}),
    transforms.Cast({"n": "float32", "at": "int64", "x": "string"}),
    transforms.Filter("x > 0 and a in ['JFK', 'LGA']"),
    transforms.Derive(
        late="x > 0 or y < 40", hour_="hour(at)", big="where(z > 1000, y, -y)", short="upper(a)", gone="isnull(x)"
    ),
    transforms.Derive(
        digits="extract(a, '([J-L])')",
        part="split(a, 'F', 1)",
        end="is_month_end(at)",
        week_="week(at)",
        cut="slice(b, 0, 1)",
    ),
    transforms.Derive(
        both="a + '-' + b",
        hour_="floor(at, '1h')",
        wave="sin(x) + cos(y)",
        some="where(x > 0, n, None)",
        first="coalesce(n, 7)",
    ),
    transforms.Derive(parts="split(a, 'F')", has="contains(split(a, 'F'), 'J')"),
    transforms.Cast({"a": "float64"}, errors="coerce"),
    transforms.Map(double, reads=["x"], adds=["twice"]),
    transforms.Clip(["x", "n"], 0, 1),
    transforms.Clip("at", "2013-01-02", "2013-01-03"),
    transforms.DateParts("at", ["year", "week", "is_weekend"], since="2013-01-02", unit="hours"),
    transforms.DropMissing(["x", "a"]),
    transforms.DropMissing(["n", "y"], how="all"),
    transforms.Expect(["x", "n"], min=-1e9, max=1e9, on_violation="raise"),
    transforms.Expect("at", min="2000-01-01", on_violation="raise"),
    transforms.Log1p(["n", "z"]),
    transforms.Replace({"a": {"JFK": None, None: "?"}, "n": {1: 7, None: 0}, "x": {None: 0.5}, "b": {"x": "y"}}),
    transforms.Replace({"n": {2: None}}),
    transforms.Sample(0.4, seed=2),
    transforms.Lag(["x", "a", "n", "at"], [1, -1], by="a", order_by="at"),
    transforms.Difference(["x", "n", "at"], by="a", order_by="at"),
    transforms.CumulativeCount("n", order_by=["at", "x"]),
    transforms.Rolling("x", "2 days", ["count", "mean", "std", "max"], by="a", order_by="at", closed="left"),
    transforms.Rolling(["x", "n"], 2, ["sum", "var", "min"], by="n", min_periods=1),
    transforms.Expanding("x", ["count", "sum", "max"]),
    transforms.Expect("n", min=0),
]


@pytest.mark.parametrize("step", EXAMPLES, ids=repr)
def test_a_transform_gives_the_same(rehearsed_backend: Backend, step: Transform) -> None:
    same_frames(step.transform(cudf.from_pandas(FLIGHTS)), step.transform(FLIGHTS))


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("many", [False, True])
def test_a_join_gives_the_same(rehearsed_backend: Backend, how: Any, many: bool) -> None:
    wanted = transforms.Join(RIGHT, on="a", how=how, many=many).transform(FLIGHTS)
    for right in (cudf.from_pandas(RIGHT), RIGHT):
        join = transforms.Join(right, on="a", how=how, many=many)
        same_frames(join.transform(cudf.from_pandas(FLIGHTS)), wanted)


@pytest.mark.parametrize("options", [{"on": "at"}, {"on": "at", "by": "a", "tolerance": "2 days", "lag": "12h"}])
def test_an_as_of_join_gives_the_same(rehearsed_backend: Backend, options: dict[str, Any]) -> None:
    history = FLIGHTS[["at", "a", "x", "n"]].iloc[::3]
    wanted = transforms.JoinAsOf(history, **options).transform(FLIGHTS)
    for right in (cudf.from_pandas(history), history):
        same_frames(transforms.JoinAsOf(right, **options).transform(cudf.from_pandas(FLIGHTS)), wanted)


def test_every_transform_is_tried() -> None:
    assert {type(step) for step in EXAMPLES} | {transforms.Join, transforms.JoinAsOf} == set(
        concrete(transforms, Transform)
    )


@pytest.mark.parametrize("n", [5, 1 << 17, (1 << 31) + 1])
def test_an_order_of_rows_is_the_same(rehearsed_backend: Backend, n: int) -> None:
    positions = np.unique(RANDOM.integers(0, n, 1000))
    found = Permutation(n, seed=4).at(rehearsed_backend.to_device(positions))
    np.testing.assert_array_equal(host(found), Permutation(n, seed=4).at(positions))


def same_frames(found: Any, wanted: pd.DataFrame) -> None:
    found = found.to_pandas()
    assert list(found.columns) == list(wanted.columns)
    for name in wanted.columns:
        missing = wanted[name].isna().to_numpy()
        np.testing.assert_array_equal(found[name].isna().to_numpy(), missing, err_msg=name)
        values, expected = (frame[name][~missing].to_numpy() for frame in (found, wanted))
        if any(isinstance(value, np.ndarray) for value in expected):  # lists
            values, expected = ([list(value) for value in each] for each in (values, expected))
            assert values == expected, name
        else:
            np.testing.assert_array_equal(values, expected, err_msg=name)
