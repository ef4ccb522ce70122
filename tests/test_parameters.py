"""Whatever a parameter is given, the answer is a working object or an error of the family, with its facts."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.orc as orc
import pytest
import torch
from sklearn.preprocessing import MaxAbsScaler

import gpupipe as gp
from gpupipe import config, errors, models, selectors, training, transforms
from gpupipe import preprocessing as pre
from gpupipe.cluster import cluster as cluster_module
from gpupipe.preprocessing.steps.gathered import GatheredStep
from gpupipe.support.validation import check_integer
from gpupipe.tensors import Batch

FRAME = pd.DataFrame(
    {
        "x": [1.0, 2.5, 4.0, 8.0],
        "y": [2.0, 1.0, 0.5, 3.0],
        "n": [1, 2, 2, 3],
        "s": ["a", "b", "a", "c"],
        "b": [True, False, True, True],
        "at": pd.to_datetime(["2013-01-01", "2013-01-02", "2013-02-03", "2013-03-04"]),
        "l": [[1, 2], [3], [], [4, 5, 6]],
    }
)
RIGHT = pd.DataFrame({"s": ["a", "b"], "more": [1.0, 2.0]})

NONSENSE: list[Any] = [
    *("nonsense", "", "x", b"", None, True, False, -1, 0, 1, 1.5, -0.5, float("nan"), float("inf"), -float("inf")),
    *(
        2**70,
        -(2**70),
        10**400,
        1j,
        Decimal(1),
        Fraction(1, 2),
        np.float32(0.5),
        np.int64(3),
        np.bool_(True),
        np.str_("x"),
    ),
    *([], {}, (), set(), {"x"}, ["x", 1], ["x", "x"], [[1]], [None], (2, 1), (1, 2, 3), {"x": object()}, {1: 2}),
    *({"x": "nonsense"}, {"x": {}}, {"x": []}, {"nowhere": 1}, range(0), iter([1]), object(), object, len),
    *(np.array(3), np.array([]), np.array([[1, 2], [3, 4]]), np.array([np.nan, 1.0]), pd.NA, pd.NaT, FRAME[["x"]]),
    *(pd.Series([1]), pd.Timestamp("2013-01-01"), "1 day", "x > 1", pre.StandardScaler(), transforms.Select("x")),
]

# What a constructor has to be given, and the columns a learned step is tried on.
REQUIRED: dict[str, dict[str, Any]] = {
    "Bucketize": {"edges": [1.0, 2.0]},
    "CumulativeCount": {"by": "s"},
    "Cast": {"dtypes": {"n": "float64"}},
    "Clip": {"columns": "x", "low": 0},
    "DateParts": {"columns": "at", "parts": ["month"]},
    "DropMissing": {"columns": ["x"]},
    "Expect": {"columns": "x", "min": 0},
    "Filter": {"expr": "x > 1"},
    "GroupImputer": {"by": "s"},
    "GroupStats": {"by": "s"},
    "HashBucket": {"num_buckets": 8},
    "HashedCross": {"num_buckets": 8},
    "Join": {"right": RIGHT, "on": "s"},
    "JoinAsOf": {"right": RIGHT.assign(n=[1, 2]), "on": "n"},
    "KMeans": {"n_clusters": 2},
    "ListSlice": {"start": 2},
    "Map": {"fn": lambda frame: frame.assign(x=0.0)},
    "Rename": {"names": {"x": "z"}},
    "Replace": {"values": {"x": {1.0: 2.0}}},
    "Rolling": {"columns": "x", "window": 2, "by": "s"},
    "Sample": {"fraction": 0.5},
    "EstimatorStep": {"estimator": MaxAbsScaler()},
    **{name: {"columns": "x"} for name in ("Drop", "Select", "Log1p", "Lag", "Difference", "Expanding")},
}
COLUMNS: dict[str, list[str]] = {
    **{name: ["s"] for name in ("Categorify", "CountEncoder", "OneHotEncoder", "OrdinalEncoder", "HashBucket")},
    **{name: ["s", "x"] for name in ("GroupImputer", "GroupStats")},
    "HashedCross": ["s", "n"],
    "TargetEncoder": ["s"],
    "HashedNgrams": ["s"],
    "ListSlice": ["l"],
    "DatetimeEncoder": ["at"],
}


def public(module: Any, base: type) -> list[type]:
    """The public classes of a module that can be made and have parameters."""
    found = [getattr(module, name) for name in module.__all__]
    classes = [item for item in found if isinstance(item, type) and issubclass(item, base)]
    return [item for item in classes if not inspect.isabstract(item) and parameters(item)]


def parameters(function: Callable[..., Any]) -> list[str]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, item in inspect.signature(function).parameters.items() if item.kind not in variable]


LEARNED, TRANSFORMS = public(pre, pre.LearnedStep), public(transforms, transforms.Transform)
NETWORKS = public(models, torch.nn.Module)


def try_step(cls: type, given: Mapping[str, Any]) -> None:
    step = cls(**given)
    repr(step)
    step.get_params()
    if issubclass(cls, transforms.Transform):
        step.transform(FRAME)
    else:
        frame = FRAME[COLUMNS.get(cls.__name__, ["x", "y"])]
        target = FRAME["y"] if getattr(cls, "needs_target", False) else None
        step.fit(frame, target).transform(frame)


def try_network(cls: type, given: Mapping[str, Any]) -> None:
    model = cls(**given)
    model(Batch(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int32)))
    type(model)(**model.get_config())


def try_features(given: Mapping[str, Any]) -> None:
    groups = given.get("group", (["x"], pre.StandardScaler()))
    features = gp.Features(groups, **{name: value for name, value in given.items() if name != "group"})
    gp.Pipeline([], features).fit(FRAME).transform(FRAME)


def try_pipeline(given: Mapping[str, Any]) -> None:
    gp.Pipeline(**given).fit(FRAME).transform(FRAME)


def try_drift(given: Mapping[str, Any]) -> None:
    gp.Pipeline([], gp.Features(["x"])).fit(FRAME).drift(FRAME, gp.Drift(**given))


def try_selector(function: Callable[..., Any], value: Any) -> None:
    gp.Pipeline([], gp.Features(function(value))).fit(FRAME)


def scorer_of(frame: pd.DataFrame) -> gp.Scorer:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="n", task="regression"), backend="cpu").fit(frame)
    return gp.Scorer(pipeline, models.Linear.from_schema(pipeline.schema))


def calls() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Every parameter of every public constructor, as a function of the value it is given."""
    for cls in [*LEARNED, *TRANSFORMS]:
        base = REQUIRED.get(cls.__name__, {})
        for name in parameters(cls):
            yield f"{cls.__name__}.{name}", lambda value, c=cls, b=base, n=name: try_step(c, {**b, n: value})
    yield "Derive.named", lambda value: try_step(transforms.Derive, {"z": value})
    for cls in NETWORKS:
        base = {"numeric": 3, "cardinalities": [4]}
        for name in parameters(cls):
            yield f"{cls.__name__}.{name}", lambda value, c=cls, b=base, n=name: try_network(c, {**b, n: value})
    for kind in (models.Periodic, models.PiecewiseLinear):
        base = {"edges": [[0.0, 1.0]] * 3} if kind is models.PiecewiseLinear else {}
        for name in parameters(kind):
            yield (
                f"{kind.__name__}.{name}",
                lambda value, c=kind, b=base, n=name: models.MLP(3, numbers=c(**{**b, n: value})),
            )
    for name in ["group", *parameters(gp.Features)]:
        yield f"Features.{name}", lambda value, n=name: try_features({n: value})
    for name in parameters(gp.Pipeline):
        base = {"steps": [], "features": gp.Features(["x"])}
        yield f"Pipeline.{name}", lambda value, b=base, n=name: try_pipeline({**b, n: value})
    for name in parameters(gp.Drift):
        yield f"Drift.{name}", lambda value, n=name: try_drift({n: value})
    for name in ("by_name", "by_dtype", "by_kind", "glob", "matches", "exclude"):
        yield f"selectors.{name}", lambda value, n=name: try_selector(getattr(selectors, n), value)
    data = gp.from_frame(FRAME)
    verbs: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "head": (data.head, {}),
        "shuffle": (data.shuffle, {}),
        "sample": (data.sample, {"fraction": 0.5}),
        "sample of rows": (data.sample, {"n": 2}),
        "split": (data.split, {"fraction": 0.5}),
        "kfold": (data.kfold, {"n_splits": 2}),
        "sort": (data.sort, {"by": "n"}),
        "deduplicate": (data.deduplicate, {"on": "n"}),
        "group_by": (data.group_by, {"keys": "s"}),
        "select": (data.select, {"columns": "x"}),
        "Features.auto": (gp.Features.auto, {"data": data}),
        "from_frame": (gp.from_frame, {"obj": FRAME}),
        "calibrate": (gp.calibrate, {"scorer": scorer_of(FRAME), "data": FRAME, "coverage": 0.5}),
    }
    for verb, (function, base) in verbs.items():
        for name in parameters(function):
            yield f"{verb}.{name}", lambda value, f=function, b=base, n=name: f(**{**b, n: value})
    trainer = {"model": models.MLP(3), "max_epochs": 1}
    for cls, base in (
        (gp.Trainer, trainer),
        (gp.EarlyStopping, {}),
        (gp.Checkpoints, {"folder": "run"}),
        (training.Plateau, {}),
        (training.PerTarget, {"losses": ["mse"]}),
        (training.scaled_rate, {"lr": 0.1, "batch_size": 8}),
    ):
        for name in parameters(cls):
            yield f"{cls.__name__}.{name}", lambda value, c=cls, b=base, n=name: c(**{**b, n: value})
    for name in parameters(gp.configure):
        yield f"configure.{name}", lambda value, n=name: gp.configure(**{n: value})


def try_reader(function: Callable[..., Any], path: Path, given: Mapping[str, Any]) -> None:
    function(**{"path": path, **given}).compute()


CALLS = dict(calls())


def complaint(call: Callable[[Any], Any], value: Any) -> str | None:
    """What is wrong with the answer to a value; None where nothing is."""
    try:
        call(value)
    except errors.GpupipeError as error:
        facts = (error.where, error.problem, error.expected, error.remedy)
        return None if all(isinstance(fact, str) and fact for fact in facts) else f"{value!r}: without facts {facts}"
    except Exception as error:  # noqa: BLE001  (whatever it is, it is what the test looks for)
        return f"{value!r}: {type(error).__name__}: {str(error)[:120]}"
    return None


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_in_force", [])


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_no_value_of_a_parameter_ends_in_a_raw_error(name: str) -> None:
    # What a function of the user's raises is the user's: a class without parameters cannot be called with a frame.
    values = [value for value in NONSENSE if (name, value is object) != ("Map.fn", True)]
    found = [complaint(CALLS[name], value) for value in values]
    assert [item for item in found if item is not None] == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    table = pa.table({"x": [1.0, 2.0], "s": ["a", "b"]})
    found = {name: folder / f"table.{name}" for name in ("parquet", "csv", "json", "orc", "ipc")}
    table.to_pandas().to_parquet(found["parquet"])
    table.to_pandas().to_csv(found["csv"], index=False)
    table.to_pandas().to_json(found["json"], orient="records", lines=True)
    orc.write_table(table, found["orc"])
    feather.write_feather(table, found["ipc"], compression="uncompressed")
    return found


READERS = [
    (kind, name)
    for kind in ("parquet", "csv", "json", "orc", "ipc")
    for name in parameters(getattr(gp, f"read_{kind}"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), READERS)
def test_no_option_of_a_reader_ends_in_a_raw_error(kind: str, name: str, files: dict[str, Path]) -> None:
    read = getattr(gp, f"read_{kind}")
    found = [complaint(lambda value: try_reader(read, files[kind], {name: value}), value) for value in NONSENSE]
    assert [item for item in found if item is not None] == []


@pytest.mark.parametrize("name", parameters(gp.Cluster))
def test_no_option_of_a_cluster_ends_in_a_raw_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise errors.ClusterLost("Cluster", "it would be started", expected="no test", remedy="another")

    monkeypatch.setattr(cluster_module, "local_workers", started)
    monkeypatch.setattr(cluster_module, "connect", started)
    found = [complaint(lambda value: gp.Cluster(**{name: value}), value) for value in NONSENSE]
    assert [item for item in found if item is not None] == []


@pytest.mark.slow
@pytest.mark.parametrize("cls", [*LEARNED, *TRANSFORMS], ids=lambda cls: cls.__name__)
def test_numbers_of_numpy_are_numbers(cls: type) -> None:
    """A default of a number, or of a boolean, does the same as NumPy's."""
    for name, item in inspect.signature(cls).parameters.items():
        base = REQUIRED.get(cls.__name__, {})
        kind = {bool: np.bool_, int: np.int64, float: np.float64}.get(type(item.default))
        if kind is not None:
            try_step(cls, {**base, name: kind(base.get(name, item.default))})


@pytest.mark.parametrize("cls", LEARNED, ids=lambda cls: cls.__name__)
def test_set_params_checks_as_the_constructor_does(cls: type) -> None:
    step = cls(**REQUIRED.get(cls.__name__, {}))
    before = dict(step.get_params())
    for name in before:
        with pytest.raises(errors.BadConfig) as caught:
            step.set_params(**{name: object()})
        assert name in caught.value.where or cls is pre.EstimatorStep
        assert all(step.get_params()[one] is value for one, value in before.items())


@pytest.mark.parametrize(
    "cls", [cls for cls in LEARNED if "random_state" in parameters(cls)], ids=lambda cls: cls.__name__
)
def test_a_seed_that_is_drawn_is_recorded(cls: type) -> None:
    base, columns = REQUIRED.get(cls.__name__, {}), COLUMNS.get(cls.__name__, ["x", "y"])
    drawn, other = (cls(**base, random_state=None) for _ in range(2))
    assert drawn.random_state is None and drawn.random_state_ != other.random_state_
    again = cls(**base, random_state=drawn.random_state_)
    found = [step.fit(FRAME[columns], FRAME["y"]).transform(FRAME[columns]) for step in (drawn, again)]
    pd.testing.assert_frame_equal(*found)
    assert drawn.get_state()["random_state_"] == again.random_state_


def test_a_mapping_is_a_group_for_each_column() -> None:
    features = gp.Features({"x": pre.StandardScaler(), ("n", "y"): [pre.MinMaxScaler()]}, ["b"])
    assert [group.columns for group in features.groups] == [["x"], ["n", "y"], ["b"]]
    made = gp.Pipeline([], features).fit(FRAME).transform(FRAME)
    np.testing.assert_allclose(made["x"].mean(), 0.0, atol=1e-6)
    assert made["y"].max() == 1.0


@pytest.mark.parametrize(
    ("group", "remedy"),
    [
        (("num", pre.StandardScaler(), ["x"]), "(['x'], StandardScaler(), 'num')"),
        ((pre.StandardScaler(), ["x"]), "(['x'], StandardScaler())"),
        (pre.StandardScaler(), "(['distance'], StandardScaler())"),
        ([(["x"], pre.StandardScaler())], "Features((['x'], StandardScaler()))"),
    ],
)
def test_a_group_of_another_shape_is_refused_with_the_right_one(group: Any, remedy: str) -> None:
    with pytest.raises(errors.BadConfig) as caught:
        gp.Features(group)
    assert (caught.value.got, caught.value.remedy) == (group, remedy)


def test_features_in_the_place_of_steps_are_a_pipeline_without_steps() -> None:
    pipeline = gp.Pipeline(gp.Features(["x"]))
    assert pipeline.steps == [] and pipeline.features is not None


class Centre(GatheredStep):
    """A step of a user's, who knows nothing of seeds."""

    def __init__(self, max_rows: int = 100, random_state: int | None = None) -> None:
        self.max_rows, self.random_state = max_rows, random_state

    def _learn(self, rows: Any) -> None:
        self.mean_ = rows.block().mean(axis=0)

    def output_fields(self, fields: Any) -> Any:
        return list(fields)

    def transform_columns(self, columns: Any, backend: Any) -> Any:
        return dict(columns)


def test_a_step_of_a_user_has_a_seed_that_its_copies_share() -> None:
    step = Centre().fit(FRAME[["x", "y"]])
    assert step.random_state is None and Centre().random_state_ != step.random_state_
    for made in (copy.copy(step), pickle.loads(pickle.dumps(step)), Centre().set_state(step.get_state())):
        assert made.random_state_ == step.random_state_
    assert step.set_params(random_state=7).random_state_ == 7


@pytest.mark.parametrize(
    "make", [pa.Table.from_pandas, pl.from_pandas, lambda frame: pa.Table.from_pandas(frame).to_reader()]
)
def test_a_join_takes_the_tables_that_from_frame_takes(make: Callable[[pd.DataFrame], Any]) -> None:
    step = transforms.Join(make(RIGHT), on="s")
    pd.testing.assert_frame_equal(step.transform(FRAME), transforms.Join(RIGHT, on="s").transform(FRAME))


def test_a_join_refuses_a_column_that_nothing_can_hold() -> None:
    odd = pa.UnionArray.from_dense(pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])])
    with pytest.raises(errors.SchemaMismatch) as caught:
        transforms.Join(pa.table({"s": ["a", "b"], "odd": odd}), on="s")
    assert (caught.value.where, caught.value.problem) == ("Join, column 'odd'", "no column here can hold such values")


def test_expressions_in_a_mapping_are_refused_with_the_way_to_give_them() -> None:
    for given, remedy in (({"class": "x > 1"}, "Derive(**{'class': 'x > 1'})"), ("x > 1", "Derive(night='hour < 6')")):
        with pytest.raises(errors.BadConfig) as caught:
            transforms.Derive(given)
        assert (caught.value.where, caught.value.remedy) == ("Derive(named=)", remedy)


@pytest.mark.parametrize(
    ("owner", "remedy"), [("read", "files=None"), (gp.Dataset.write_parquet, "files=None"), (pre.PCA(), "files=None")]
)
def test_a_remedy_is_a_default_or_what_else_is_fine(owner: object, remedy: str) -> None:
    with pytest.raises(errors.BadConfig) as caught:
        check_integer(owner, "[1, inf)", None, files="many")
    assert caught.value.remedy == remedy
