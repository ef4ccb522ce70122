# ruff: noqa: E501 - a slip is a row of a table
"""What a user does wrong, and the message that helps: a case each, through the door a user comes in by."""

from __future__ import annotations

import ast
import os
import re
from collections import OrderedDict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.decomposition import FactorAnalysis
from sklearn.linear_model import LogisticRegression

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.device.probe import probe
from gpupipe.cli.main import main
from tests.raising import raises

DATA = Path(__file__).parents[1] / "data"
TARGET = "arr_delay > 15"
SCALED = (["dep_delay", "distance"], [pre.SimpleImputer(), pre.StandardScaler()])
NO_GPU = pytest.mark.skipif(bool(probe().gpus), reason="there is a GPU here")


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return gp.read_parquet(DATA / "flights.parquet", filters="month == 2 and day == 8").compute()


def fit(data: Any, *groups: Any, steps: list[Any] | None = None, **features: Any) -> gp.Pipeline:
    return gp.Pipeline(steps or [], gp.Features(*(groups or [SCALED]), **{"target": TARGET, **features})).fit(data)


def message(caught: pytest.ExceptionInfo[errors.GpupipeError]) -> str:
    """The text with the notes, as a traceback shows it."""
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


# columns --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "features", "asked", "closest"),
    [
        ([], {"keep": ["fligth"]}, "fligth", "flight"),
        ([], {"target": "arr_dely > 15"}, "arr_dely", "arr_delay"),
        ([T.Derive(far="distence > 1000")], {}, "distence", "distance"),
        ([T.Filter("carier == 'UA'")], {}, "carier", "carrier"),
        ([T.Select(["dep_delay", "distance", "ar_delay"])], {}, "ar_delay", "arr_delay"),
        ([T.Join(pd.DataFrame({"carrier": ["UA"]}), on="carriers")], {}, "carriers", "carrier"),
        ([T.Map(lambda frame: frame, reads=["tail_num"], adds=["x"])], {}, "tail_num", "tailnum"),
    ],
)
def test_a_missing_column_is_named_and_the_closest_offered(
    flights: pd.DataFrame, steps: list[Any], features: dict[str, Any], asked: str, closest: str
) -> None:
    with pytest.raises(errors.ColumnNotFound, match=f"column '{asked}' not found, got ") as caught:
        fit(flights, steps=steps, **features)
    assert f"Try: '{closest}' (the closest name)" in message(caught)
    assert caught.value.column == asked


def test_a_missing_column_of_a_feature(flights: pd.DataFrame) -> None:
    with raises(errors.ColumnNotFound, where="Features(['dep_dely'])", column="dep_dely") as caught:
        fit(flights, (["dep_dely"], pre.StandardScaler()))
    assert "Try: 'dep_delay' (the closest name)" in message(caught)


def test_a_column_that_is_missing_only_later(flights: pd.DataFrame) -> None:
    pipeline = fit(flights)
    for use in (pipeline.transform, pipeline.loader):
        with raises(errors.ColumnNotFound, where="the data", column="distance") as caught:
            use(flights.rename(columns={"distance": "dist"}))
        assert "Try: 'dist' (the closest name)" in message(caught)


def test_text_where_a_number_is_needed(flights: pd.DataFrame) -> None:
    with raises(errors.SchemaMismatch, where="StandardScaler, column 'carrier'", got="string") as caught:
        fit(flights, (["carrier"], pre.StandardScaler()))
    assert "Try: Categorify() for strings" in message(caught)


def test_digits_in_place_of_text_are_read_as_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"zip": ["01234", "90210"]})
    pipeline = gp.Pipeline([], gp.Features((["zip"], pre.Categorify()))).fit(frame)
    frame[1:].to_csv(tmp_path / "rows.csv", index=False)
    data = gp.read_csv(tmp_path / "rows.csv")
    with raises(errors.SchemaMismatch, where="column 'zip'", got="int64", expected="string") as caught:
        pipeline.transform(data)
    reading, cast = str(caught.value.remedy).split(" of a CSV file, else ")
    for remedy in (reading.replace("...", repr(str(tmp_path / "rows.csv"))), cast):
        again = eval(remedy, {"gp": gp, "T": T, "data": data})
        assert pipeline.transform(again).compute()["zip"].tolist() == pipeline.transform(frame)["zip"].tolist()[1:]
    with raises(errors.SchemaMismatch, where="column 'zip'", got="int64") as caught:
        pipeline.transform(data.compute())
    assert "pd.read_csv(..., dtype={'zip': 'str'}) of a CSV file" in str(caught.value.remedy)


def test_a_type_that_changed_after_fit(flights: pd.DataFrame) -> None:
    pipeline = fit(flights)
    with raises(errors.SchemaMismatch, where="column 'distance'", got="string") as caught:
        pipeline.transform(flights.assign(distance="far"))
    assert "Expected float64." in message(caught)
    assert caught.value.remedy == "numbers in place of text such as 'far'"
    with raises(errors.SchemaMismatch, where="column 'distance'", got="string") as caught:
        pipeline.transform(flights.assign(distance=["7", *["far"] * (len(flights) - 1)]))
    assert caught.value.remedy.startswith("pd.to_numeric(data['distance'], errors='coerce')")


@pytest.mark.parametrize("form", ["{:,.2f} €", "$ {:,.2f}", "{} %", "{:,.2f}"])
def test_amounts_as_text_have_a_remedy_that_makes_them_numbers(form: str) -> None:
    known = pd.DataFrame({"x": [1234.5, 2.25, 40.0, 1000.0]})
    pipeline = gp.Pipeline([], gp.Features(["x"])).fit(known)
    frame = known.assign(x=known["x"].map(form.format))
    for data in (frame, gp.from_frame(frame, num_partitions=2)):
        with pytest.raises(errors.SchemaMismatch) as caught:
            pipeline.transform(data)
        parsed = eval(caught.value.remedy.partition(", of Polars")[0], {"gp": gp, "T": T, "pd": pd, "data": data})
        table = pipeline.transform(parsed)
        values = (table if isinstance(table, pd.DataFrame) else table.compute())["x"]
        assert values.tolist() == known["x"].tolist()


def test_text_in_place_of_times_or_numbers_has_a_remedy_that_works() -> None:
    known = pd.DataFrame({"at": pd.date_range("2020", periods=3), "x": [1.0, 2.0, 4.0]})
    pipeline = gp.Pipeline([], gp.Features("x", (["at"], pre.DatetimeEncoder(["month"])))).fit(known)
    for name in known.columns:
        data = known.astype({name: str})
        with pytest.raises(errors.SchemaMismatch) as caught:
            pipeline.transform(data)
        for_pandas, for_polars = caught.value.remedy.split(", of Polars ")
        fixed = data.assign(**{name: eval(for_pandas)})
        pd.testing.assert_frame_equal(pipeline.transform(fixed), pipeline.transform(known))
        table = pl.from_pandas(data)
        table = table.with_columns(eval(for_polars, {"data": table, "pl": pl}).alias(name))
        pd.testing.assert_frame_equal(pipeline.transform(table), pipeline.transform(known))


@pytest.mark.parametrize("name", ["at", "x", "n", "b"])
def test_text_in_a_dataset_has_a_remedy_that_works(name: str) -> None:
    known = pd.DataFrame({"at": pd.date_range("2020", periods=3), "x": [1.0, 2.0, 4.0], "n": [1, 2, 4]})
    known = known.assign(b=[True, False, True], y=[0, 1, 0])
    features = gp.Features(["x", "n", "b"], (["at"], pre.DatetimeEncoder(["month"])), target="y")
    pipeline = gp.Pipeline([], features).fit(known)
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,), seed=1))
    data = gp.from_frame(known.astype({name: str}))
    with pytest.raises(errors.SchemaMismatch) as caught:
        scorer.predict(data)
    cast = eval(caught.value.remedy, {"gp": gp, "T": T, "data": data})
    pd.testing.assert_frame_equal(scorer.predict(cast).compute(), scorer.predict(known))


@pytest.mark.parametrize("convert", [pd.DataFrame, pl.from_pandas])
def test_text_in_place_of_booleans_has_a_remedy_that_works(convert: Any) -> None:
    known = pd.DataFrame({"b": [True, False, True]})
    pipeline = gp.Pipeline([], gp.Features("b")).fit(known)
    data = convert(known.astype(str))
    with pytest.raises(errors.SchemaMismatch) as caught:
        pipeline.transform(data)
    cast = eval(caught.value.remedy, {"gp": gp, "T": T, "data": data})
    assert list(pipeline.transform(cast)["b"]) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(("values", "got"), [([1.0, "n/a", 3.0], "object"), ([1, 2**70, 3], "object")])
def test_a_column_that_a_fit_cannot_read_is_not_called_missing(values: list[Any], got: str) -> None:
    frame = pd.DataFrame({"x": pd.Series(values, dtype="object"), "y": [1.0, 2.0, 4.5]})
    with raises(errors.SchemaMismatch, where="column 'x'", match="it was left out, because", got=got) as caught:
        gp.Pipeline([], gp.Features("x", target="y")).fit(frame)
    fixed = frame.assign(x=eval(caught.value.remedy.partition(" for numbers")[0]))
    assert gp.Pipeline([], gp.Features((["x"], pre.SimpleImputer()), target="y")).fit(fixed).schema.numeric


def test_a_column_that_is_the_index_has_a_remedy_that_works() -> None:
    known = pd.DataFrame({"x": [1.0, 2.0, 4.0], "z": [1.0, 0.0, 1.0]})
    pipeline = gp.Pipeline([], gp.Features(["x", "z"])).fit(known)
    data = known.set_index("x")
    with pytest.raises(errors.ColumnNotFound) as caught:
        pipeline.transform(data)
    assert caught.value.column == "x"
    pd.testing.assert_frame_equal(pipeline.transform(eval(caught.value.remedy)), pipeline.transform(known))


def test_column_names_that_are_no_text_have_a_remedy_that_works() -> None:
    frame = pd.DataFrame([[1, 2]])
    with pytest.raises(errors.SchemaMismatch) as caught:
        gp.from_frame(frame)
    assert gp.from_frame(eval(caught.value.remedy)).columns == ["0", "1"]
    pipeline = gp.Pipeline([], gp.Features(["0", "1"])).fit(frame.rename(columns=str))
    with pytest.raises(errors.SchemaMismatch) as caught:
        pipeline.transform(frame)
    assert len(pipeline.transform(eval(caught.value.remedy))) == 1


def test_rows_in_place_of_batches_are_put_into_a_loader() -> None:
    trainer = gp.Trainer(torch.nn.Linear(1, 1), max_epochs=1)
    with pytest.raises(errors.BadConfig) as caught:
        trainer.predict(pd.DataFrame({"x": [1.0]}))
    assert caught.value.remedy == "trainer.predict(pipeline.loader(data))"


# values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_an_all_null_column_has_nothing_to_impute_with(flights: pd.DataFrame, strategy: str) -> None:
    with raises(errors.BadData, where="SimpleImputer, column 'distance'", match="it has no value") as caught:
        fit(flights.assign(distance=np.nan), (["distance"], pre.SimpleImputer(strategy=strategy)))
    assert "Try: strategy='constant', or leave the column out" in message(caught)


@pytest.mark.parametrize("scaler", [pre.StandardScaler(), pre.MinMaxScaler(), pre.RobustScaler()])
def test_an_all_null_column_has_no_scale(flights: pd.DataFrame, scaler: Any) -> None:
    with pytest.raises(errors.BadData, match="column 'distance': it has no value, so there is no scale") as caught:
        fit(flights.assign(distance=np.nan), (["distance"], scaler))
    assert "SimpleImputer(strategy='constant')" in message(caught)


STEPS = [
    pre.SimpleImputer(),
    pre.StandardScaler(),
    pre.MinMaxScaler(),
    pre.RobustScaler(),
    pre.PCA(n_components=1),
    pre.KMeans(n_clusters=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_value_is_found_where_it_is(flights: pd.DataFrame, step: Any, value: float) -> None:
    bad = flights.assign(distance=flights["distance"].mask(flights.index == 3, value))
    group = (["distance", "hour"], step)
    with pytest.raises(errors.BadData, match=r"column 'distance': 1 infinite value, got -?inf") as caught:
        fit(gp.from_frame(bad, num_partitions=3), group)
    assert "clip(distance, low, high)" in message(caught) and "in partition 0: rows 0 to " in message(caught)
    with pytest.raises(errors.BadData, match="column 'distance': 1 infinite value"):
        fit(flights, group).transform(bad)


@pytest.mark.parametrize("value", [np.inf, 1e300])
def test_a_number_too_large_for_the_model_does_not_reach_it(flights: pd.DataFrame, value: float) -> None:
    bad = flights.assign(distance=flights["distance"].mask(flights.index == 3, value))
    with raises(errors.BadData, where="column 'distance'", match="1 infinite value") as caught:
        fit(flights, ["distance"]).loader(bad)
    assert "in float32 at most 3.4e38" in message(caught)


def test_a_missing_value_does_not_reach_the_model(flights: pd.DataFrame) -> None:
    with raises(errors.BadData, where="column 'distance'", match="2 missing values") as caught:
        fit(flights, ["distance"]).loader(flights.assign(distance=flights["distance"].mask(flights.index < 2)))
    assert "Try: pre.SimpleImputer() on this column" in message(caught)


@pytest.mark.parametrize("step", STEPS[:-1], ids=lambda step: type(step).__name__)
def test_a_constant_column_gives_numbers(flights: pd.DataFrame, step: Any) -> None:
    """A constant integer and a constant near 1e9, whose variance must not come out as rounding noise."""
    constant = flights.assign(hour=7, distance=1e9 + 0.1)
    made = fit(constant, (["hour", "distance"], step)).transform(constant).drop(columns="target")
    assert np.isfinite(made.to_numpy("float64")).all()
    if not isinstance(step, pre.SimpleImputer):
        assert (made.to_numpy("float64") == 0.0).all()


def test_k_means_of_a_constant_column(flights: pd.DataFrame) -> None:
    with raises(errors.BadData, where="KMeans", remedy="n_clusters=1") as caught:
        fit(flights.assign(hour=7), (["hour"], pre.KMeans(n_clusters=2)))
    assert "Try: n_clusters=1" in message(caught)


def test_unseen_categories_are_the_id_for_unknown(flights: pd.DataFrame) -> None:
    arrived = flights.dropna(subset="arr_delay")
    pipeline = fit(arrived, (["carrier"], pre.Categorify()))
    made = pipeline.transform(arrived.assign(carrier=["??", None, *arrived["carrier"][2:]]))["carrier"].to_numpy()
    assert made[:2].tolist() == [1, 0]
    np.testing.assert_array_equal(made[2:], pipeline.transform(arrived)["carrier"].to_numpy()[2:])
    assert made[2:].min() >= 2


# files ----------------------------------------------------------------------------------------------------------------


def test_an_empty_file(tmp_path: Path) -> None:
    for read, name, expected in [
        (gp.read_parquet, "flights.parquet", "Expected a Parquet file."),
        (gp.read_csv, "flights.csv", "Expected a header row"),
    ]:
        (tmp_path / name).touch()
        with pytest.raises(errors.BadFile, match=f"{name}: the file is empty") as caught:
            fit(read(tmp_path / name))
        assert expected in message(caught)


def test_a_file_without_rows(flights: pd.DataFrame, tmp_path: Path) -> None:
    flights.iloc[:0].to_parquet(tmp_path / "flights.parquet")
    with raises(errors.BadData, where="target 'arr_delay > 15'", match="none of 0 rows"):
        fit(gp.read_parquet(tmp_path / "flights.parquet"))


def test_a_parquet_file_that_was_cut_off(tmp_path: Path) -> None:
    whole = (DATA / "weather.parquet").read_bytes()
    (tmp_path / "weather.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.BadFile, match=r"weather\.parquet: damaged or cut off: \d+ bytes") as caught:
        gp.read_parquet(tmp_path / "weather.parquet")
    assert "Expected a Parquet file with its footer." in message(caught)


def test_a_parquet_file_with_damaged_rows(tmp_path: Path) -> None:
    whole = (DATA / "weather.parquet").read_bytes()
    (tmp_path / "weather.parquet").write_bytes(whole[:4] + bytes(100) + whole[104:])
    with pytest.raises(errors.BadFile, match=r"weather\.parquet: row group 0 cannot be read"):
        fit(gp.read_parquet(tmp_path / "weather.parquet"), (["origin"], pre.Categorify()), target="temp > 50")


def test_a_csv_file_with_a_ragged_row(tmp_path: Path) -> None:
    (tmp_path / "ragged.csv").write_text("dep_delay,distance,arr_delay\n1,2,3\n4,5\n")
    with raises(errors.BadFile, where="ragged.csv", got="4,5", match="row 3 has 2 values") as caught:
        fit(gp.read_csv(tmp_path / "ragged.csv"))
    assert "Expected 3 values" in message(caught)


def test_a_record_without_a_value_has_no_other_type(flights: pd.DataFrame) -> None:
    pipeline = fit(flights, SCALED, (["origin"], pre.Categorify()))
    record = pd.DataFrame([{"dep_delay": None, "distance": None, "origin": None}])
    assert pipeline.transform(record).iloc[0].abs().tolist() == pytest.approx([0, 0, 0], abs=1e-6)


# labels ---------------------------------------------------------------------------------------------------------------


def test_the_target_is_missing(flights: pd.DataFrame) -> None:
    with raises(errors.ColumnNotFound, where="target='arr_delay > 15'", column="arr_delay"):
        fit(flights.drop(columns="arr_delay"))
    with raises(errors.ColumnNotFound, where="target='origin == JFK'", column="JFK", remedy="origin == 'JFK'"):
        gp.Pipeline([], gp.Features(["distance"], target="origin == JFK")).fit(flights)
    with pytest.raises(errors.BadData, match=rf"target 'arr_delay > 15': none of {len(flights)} rows has a value"):
        fit(flights.assign(arr_delay=np.nan))


@pytest.mark.parametrize("steps", [[], [T.Derive(made_up="dep_delay - arr_delay")]])
def test_a_feature_that_leaks_the_target(flights: pd.DataFrame, steps: list[Any]) -> None:
    feature = "made_up" if steps else "arr_delay"
    with pytest.raises(
        errors.LeakageError, match=rf"feature '{feature}': it is computed from \['arr_delay'\]"
    ) as caught:
        fit(flights, ([feature], pre.SimpleImputer()), steps=steps)
    assert f"Try: leave it out, or Features(allow_leak=['{feature}'])" in message(caught)


# expressions ----------------------------------------------------------------------------------------------------------


def test_an_expression_that_does_not_parse(flights: pd.DataFrame) -> None:
    with pytest.raises(errors.ExpressionError, match="Filter: not an expression") as caught:
        fit(flights, steps=[T.Filter("distance > 100)")])
    assert message(caught).endswith("\n    distance > 100)\n                  ^")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("__import__('os').system('true')", "methods cannot be called"),
        ("open('data') == 1", "no function is called 'open'"),
        ("distance.__class__ == 1", "a dot is not allowed"),
        ("(lambda: 1)()", "lambda"),
        ("[x for x in distance]", "a comprehension is not allowed"),
    ],
)
def test_an_expression_can_call_only_what_is_listed(flights: pd.DataFrame, text: str, problem: str) -> None:
    for use in (lambda: fit(flights, steps=[T.Filter(text)]), lambda: fit(flights, target=text)):
        with pytest.raises(errors.ExpressionError, match=problem) as caught:
            use()
        assert text in message(caught) and "Try: " in message(caught)


@pytest.mark.parametrize(
    ("text", "sign", "fix"),
    [
        ("hour < 6 | hour >= 22", "|", "(hour < 6) or (hour >= 22)"),
        ("carrier == 'UA' & distance > 1000", "&", "(carrier == 'UA') and (distance > 1000)"),
    ],
)
def test_the_precedence_trap(flights: pd.DataFrame, text: str, sign: str, fix: str) -> None:
    with raises(errors.ExpressionError, where="Derive(made_up=...)") as caught:
        fit(flights, steps=[T.Derive(made_up=text)])
    assert f"`{sign}`" in message(caught) and f"Try: {fix}" in message(caught)
    assert message(caught).endswith(f"\n    {text}\n    {' ' * text.index(sign)}^")


# the machine ----------------------------------------------------------------------------------------------------------


@NO_GPU
def test_a_gpu_is_asked_for_where_there_is_none(flights: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    features = gp.Features(SCALED, target=TARGET)
    with raises(errors.BackendMissing, where="backend 'gpu'") as caught:
        gp.Pipeline([], features, backend="gpu").fit(flights)
    assert 'backend="cpu" here' in message(caught) and "pip install 'cudf-cu1" in message(caught)
    with raises(errors.BackendMissing, where="backend 'gpu'"):
        gp.read_parquet(DATA / "flights.parquet", backend="gpu").head()


@NO_GPU
def test_training_on_a_gpu_where_there_is_none(flights: pd.DataFrame) -> None:
    pipeline = fit(flights)
    trainer = gp.Trainer(gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)), max_epochs=1, device="cuda")
    with raises(errors.BackendMissing, where="Trainer(device=)", got="cuda") as caught:
        trainer.fit(pipeline.loader(flights))
    assert "Try: device='cpu'" in message(caught)


def test_a_backend_there_is_not(flights: pd.DataFrame) -> None:
    with raises(errors.BadConfig, where="Pipeline(backend=)", got="cuda") as caught:
        gp.Pipeline([], gp.Features(SCALED), backend="cuda").fit(flights)
    assert "Expected 'auto', 'cpu' or 'gpu'." in message(caught)


# slips ----------------------------------------------------------------------------------------------------------------


class Bench:
    """What a user has in hand: a table in several forms, pipelines, a network, a trainer and a saved folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        count = np.arange(40.0)
        self.frame = pd.DataFrame({"x": count, "z": count[::-1], "k": list("abcd") * 10, "y": [0, 1] * 20})
        self.data = gp.from_frame(self.frame)
        self.csv = str(folder / "f.csv")
        self.frame.to_csv(self.csv, index=False)
        self.pipeline = gp.Pipeline(gp.Features((["x", "z"], pre.StandardScaler()), target="y")).fit(self.frame)
        self.unfitted = gp.Pipeline([], gp.Features(["x"], target="y"))
        ids = gp.Features((["x"], pre.StandardScaler()), (["k"], pre.Categorify()), target="y")
        self.other = gp.Pipeline([], ids).fit(self.frame)
        self.classes = gp.Pipeline([], gp.Features(["x"], target="k")).fit(self.frame)
        self.loader = self.pipeline.loader(self.frame, batch_size=8)
        self.model = gp.models.MLP.from_schema(self.pipeline.schema, hidden=4)
        self.alien = gp.models.MLP.from_schema(self.other.schema, hidden=4)
        self.path = str(folder / "run")
        gp.save(self.path, self.pipeline, self.model)
        self.scorer = gp.load(self.path)

    def trainer(self, **settings: Any) -> gp.Trainer:
        return gp.Trainer(self.model, **{"max_epochs": 1, "device": "cpu", **settings})

    def save(self, *given: Any) -> None:
        gp.save(self.folder / "new", *given)

    def weighted(self) -> Any:
        weighted = gp.Features((["x", "z"], pre.StandardScaler()), target="y", weight="x + 1")
        return gp.Pipeline([], weighted).fit(self.frame).loader(self.frame)

    def of_classes(self, **settings: Any) -> None:
        model, loader = gp.models.MLP.from_schema(self.classes.schema, hidden=4), self.classes.loader(self.frame)
        gp.Trainer(model, max_epochs=1, device="cpu", **settings).fit(loader, loader)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


CONFIG, MISMATCH, MISSING = errors.BadConfig, errors.SchemaMismatch, errors.ColumnNotFound
ANYTHING = object()

# What is done; the error; where; the value seen; a part of what is expected; a part of what to try.
SLIPS: dict[str, tuple[Any, type[errors.GpupipeError], str, Any, str, str]] = {
    # save and load
    "save: pipeline first": (lambda b: gp.save(b.pipeline, b.path), CONFIG, "save(pipeline=)", gp.Pipeline, "path", "gp.save(path, pipeline, model)"),
    "save: the model in the pipeline's place": (lambda b: b.save(b.model), CONFIG, "save(pipeline=)", gp.models.MLP, "the fitted pipeline", "gp.save(path, pipeline"),
    "save: features": (lambda b: b.save(b.pipeline.features), CONFIG, "save(pipeline=)", gp.Features, "the fitted pipeline", "gp.save(path, pipeline"),
    "save: the trainer": (lambda b: b.save(b.pipeline, b.trainer()), CONFIG, "save(model=)", gp.Trainer, "torch.nn.Module", "trainer.model"),
    "save: weights": (lambda b: b.save(b.pipeline, b.model.state_dict()), CONFIG, "save(model=)", OrderedDict, "torch.nn.Module", "the network itself"),
    "save: another pipeline's model": (lambda b: b.save(b.pipeline, b.alien), MISMATCH, "MLP", "2 numeric features, ids []", "1 numeric features, ids [6]", "MLP.from_schema(pipeline.schema)"),
    "save: no path": (lambda b: gp.save(None, b.pipeline), CONFIG, "path", None, "a folder's path", "runs/flights"),
    "save: not fitted": (lambda b: b.save(b.unfitted), errors.NotFitted, "Pipeline", None, "fit first", "pipeline.fit(train)"),
    "load: a pipeline": (lambda b: gp.load(b.pipeline), CONFIG, "path", ANYTHING, "a folder's path", "runs/flights"),
    "load: the trainer": (lambda b: gp.load(b.path, model=b.trainer()), CONFIG, "load(model=)", gp.Trainer, "torch.nn.Module", "model=trainer.model"),
    "load: a class": (lambda b: gp.load(b.path, model=gp.models.MLP), CONFIG, "load(model=)", type, "torch.nn.Module", "MLP(...)"),
    "load: one table": (lambda b: gp.load(b.path, tables=b.frame), CONFIG, "load(tables=)", pd.DataFrame, "a mapping", "tables={"),
    "load: a table's path": (lambda b: gp.load(b.path, tables={"w": "w.parquet"}), MISMATCH, "data", "w.parquet", "DataFrame", "gp.read_parquet('w.parquet')"),
    "load: a function allowed": (lambda b: gp.load(b.path, allow=np.sin), CONFIG, "load(allow=)", np.sin, "text such as", "allow=['numpy.sin']"),
    "load: a backend": (lambda b: gp.load(b.path, backend="cuda"), CONFIG, "load(backend=)", "cuda", "'auto', 'cpu' or 'gpu'", "backend='auto'"),
    "load: a device": (lambda b: gp.load(b.path, device="gpu"), CONFIG, "device", "gpu", "'cuda'", "device='cuda'"),
    "scorer: arguments swapped": (lambda b: gp.Scorer(b.model, b.pipeline), CONFIG, "Scorer(pipeline=)", gp.models.MLP, "a fitted pipeline", "gp.Scorer(pipeline"),
    "scorer: another pipeline's model": (lambda b: gp.Scorer(b.pipeline, b.alien), MISMATCH, "MLP", ANYTHING, "ids [6]", "from_schema"),
    "scorer: not fitted": (lambda b: gp.Scorer(b.unfitted, b.model), errors.NotFitted, "Pipeline", None, "fit first", "pipeline.fit(train)"),
    # rows to predict
    "predict: a path": (lambda b: b.scorer.predict("new.csv"), MISMATCH, "data", "new.csv", "DataFrame", "gp.read_csv('new.csv')"),
    "predict: a pathlib path": (lambda b: b.scorer.predict(Path("new.json.gz")), MISMATCH, "data", Path("new.json.gz"), "DataFrame", "gp.read_json("),
    "predict: columns in a dict": (lambda b: b.scorer.predict({"x": [1.0], "z": [2.0]}), MISMATCH, "column 'x'", [1.0], "float64", "pd.DataFrame(data)"),
    "predict: a record with text": (lambda b: b.scorer.predict({"x": "1.0", "z": 2.0}), MISMATCH, "column 'x'", "1.0", "float64", "the value in that type"),
    "predict: lists": (lambda b: b.scorer.predict([[1.0, 2.0]]), MISMATCH, "data", list, "DataFrame", "columns=[...]"),
    "predict: an array": (lambda b: b.scorer.predict(np.zeros((2, 2))), MISMATCH, "data", np.ndarray, "DataFrame", "columns=[...]"),
    "predict: a tensor": (lambda b: b.scorer.predict(torch.zeros(2, 2)), MISMATCH, "data", torch.Tensor, "DataFrame", "columns=[...]"),
    "predict: a column": (lambda b: b.scorer.predict(b.frame["x"]), MISMATCH, "data", pd.Series, "DataFrame", "data.to_frame()"),
    "predict: a row of several types": (lambda b: b.scorer.predict(pd.Series([1, True, "a"])), MISMATCH, "data", pd.Series, "DataFrame", "data.to_frame().T of a row"),
    "predict: a column of Polars": (lambda b: b.scorer.predict(pl.Series("x", [1.0])), MISMATCH, "data", pl.Series, "DataFrame", "data.to_frame()"),
    "predict: a lazy frame": (lambda b: b.scorer.predict(pl.from_pandas(b.frame).lazy()), MISMATCH, "data", pl.LazyFrame, "DataFrame", "data.collect()"),
    "predict: nothing": (lambda b: b.scorer.predict_proba(None), MISMATCH, "data", None, "DataFrame", "a frame"),
    "predict: a loader": (lambda b: b.scorer.predict(b.loader), MISMATCH, "data", ANYTHING, "DataFrame", "Dataset or frame"),
    "predict: no rows a batch": (lambda b: b.scorer.predict(b.frame, batch_size=0), CONFIG, "predict(batch_size=)", 0, "an integer in [1, inf)", "batch_size=32768"),
    "predict: half a row a batch": (lambda b: b.scorer.predict(b.frame, batch_size=1.5), CONFIG, "predict(batch_size=)", 1.5, "an integer in [1, inf)", "batch_size=32768"),
    "predict: a column is missing": (lambda b: b.scorer.predict(b.frame.rename(columns={"z": "zed"})), MISSING, "the data", ANYTHING, "a column that is there", "names above"),
    "predict: other types": (lambda b: b.scorer.predict(b.frame.assign(x="a")), MISMATCH, "column 'x'", "string", "float64", "numbers in place of text such as 'a'"),
    "transform: a path": (lambda b: b.pipeline.transform("f.orc"), MISMATCH, "data", "f.orc", "DataFrame", "gp.read_orc('f.orc')"),
    "transform: nothing": (lambda b: b.pipeline.transform(None), MISMATCH, "data", None, "DataFrame", "a frame"),
    "fit: an array": (lambda b: gp.Pipeline([], gp.Features(["x"])).fit(np.zeros((3, 1))), MISMATCH, "data", np.ndarray, "DataFrame", "columns=[...]"),
    "loader: a path": (lambda b: b.pipeline.loader("f.tsv"), MISMATCH, "data", "f.tsv", "DataFrame", "gp.read_csv('f.tsv')"),
    "explain: a path": (lambda b: b.pipeline.explain("f.parquet"), MISMATCH, "data", "f.parquet", "DataFrame", "gp.read_parquet("),
    "inspect: a path": (lambda b: gp.io.inspect(b.csv), MISMATCH, "data", ANYTHING, "DataFrame", "gp.read_csv("),
    "Features.auto: a path": (lambda b: gp.Features.auto("f.csv", target="y"), MISMATCH, "data", "f.csv", "DataFrame", "gp.read_csv('f.csv')"),
    # pipelines
    "pipeline: named steps": (lambda b: gp.Pipeline([("keep", T.Filter("x > 1"))]), CONFIG, "Pipeline", tuple, "gpupipe.transforms", "the step alone"),
    "pipeline: a class": (lambda b: gp.Pipeline([T.Filter]), CONFIG, "Pipeline", T.Filter, "gpupipe.transforms", "T.Filter(...)"),
    "pipeline: a learned step": (lambda b: gp.Pipeline([pre.StandardScaler()]), CONFIG, "Pipeline", pre.StandardScaler, "belong in Features", "Features((columns, step))"),
    "pipeline: a function": (lambda b: gp.Pipeline([len]), CONFIG, "Pipeline", len, "gpupipe.transforms", "T.Map(function"),
    "pipeline: features among the steps": (lambda b: gp.Pipeline([b.pipeline.features]), CONFIG, "Pipeline", gp.Features, "gpupipe.transforms", "gp.Pipeline(steps, features)"),
    "pipeline: columns for features": (lambda b: gp.Pipeline([], ["x"]), CONFIG, "Pipeline(features=)", ["x"], "gp.Features", "features=gp.Features("),
    "pipeline: no steps": (lambda b: gp.Pipeline(None), CONFIG, "Pipeline(steps=)", None, "a list of steps", "gp.Pipeline([]"),
    "pipeline: drift": (lambda b: b.pipeline.drift(b.frame, True), CONFIG, "Pipeline.drift(thresholds=)", True, "gp.Drift", "gp.Drift("),
    "pipeline: the schema before fit": (lambda b: b.unfitted.schema, errors.NotFitted, "Pipeline", None, "fit first", "pipeline.fit(train)"),
    "pipeline: an executor": (lambda b: b.unfitted.fit(b.frame, executor=4), CONFIG, "executor", 4, "a gp.Cluster", "with gp.Cluster()"),
    "features: an estimator that wants a target": (lambda b: gp.Features((["x"], [LogisticRegression()])), CONFIG, "EstimatorStep(LogisticRegression)", LogisticRegression, "numbers alone", "TargetEncoder"),
    "pipeline: X and y": (lambda b: b.unfitted.fit(b.frame[["x"]], b.frame["y"]), CONFIG, "Pipeline.fit(y=)", pd.Series, "None", "gp.Features(..., target='y')"),
    "pipeline: X and y of fit_transform": (lambda b: b.unfitted.fit_transform(b.frame[["x"]], b.frame["y"]), CONFIG, "Pipeline.fit_transform(y=)", pd.Series, "None", "target="),
    # loaders
    "loader: a size in text": (lambda b: b.pipeline.loader(b.frame, batch_size="8"), CONFIG, "loader(batch_size=)", "8", "an integer in [1, inf)", "batch_size=1"),
    "loader: a shuffle": (lambda b: b.pipeline.loader(b.frame, shuffle=1), CONFIG, "loader(shuffle=)", 1, "'rows', 'blocks'", "one of the choices above"),
    "loader: a seed": (lambda b: b.pipeline.loader(b.frame, shuffle=True, seed=None), CONFIG, "loader(seed=)", None, "an integer", "seed=0"),
    "loader: a flag": (lambda b: b.pipeline.loader(b.frame, drop_last="no"), CONFIG, "loader(drop_last=)", "no", "True or False", "drop_last=True"),
    "loader: a device": (lambda b: b.pipeline.loader(b.frame, device="gpu"), CONFIG, "device", "gpu", "'cuda'", "device='cuda'"),
    "loader: out of fold": (lambda b: b.pipeline.loader(b.frame, out_of_fold="yes"), CONFIG, "loader(out_of_fold=)", "yes", "True or False, or None", "out_of_fold=None"),
    "loader: a rank": (lambda b: b.pipeline.loader(b.frame, rank="0", world_size=2), CONFIG, "loader", ANYTHING, "a rank from 0", "world_size=1"),
    "loader: an epoch": (lambda b: b.loader.set_epoch("x"), CONFIG, "Loader.set_epoch(epoch=)", "x", "an integer in [0, inf)", "epoch=0"),
    "loader: a state": (lambda b: b.loader.load_state_dict(None), CONFIG, "Loader.load_state_dict", None, "state_dict()", "load_state_dict("),
    # training
    "trainer: a pipeline": (lambda b: gp.Trainer(b.pipeline, max_epochs=1), CONFIG, "Trainer(model=)", gp.Pipeline, "torch.nn.Module", "from_schema"),
    "trainer: epochs": (lambda b: b.trainer(max_epochs=1.5), CONFIG, "Trainer(max_epochs=)", 1.5, "an integer in [1, inf)", "max_epochs='auto'"),
    "trainer: a class of losses": (lambda b: b.trainer(loss=torch.nn.MSELoss), CONFIG, "Trainer(loss=)", torch.nn.MSELoss, "an object", "loss=MSELoss()"),
    "trainer: a loss of three": (lambda b: b.trainer(loss=torch.nn.GaussianNLLLoss()), CONFIG, "Trainer(loss=)", torch.nn.GaussianNLLLoss, "output and target", "loss="),
    "trainer: a name of a loss": (lambda b: b.trainer(loss="crossentropy"), CONFIG, "Trainer(loss=)", "crossentropy", "'cross-entropy'", "loss='cross-entropy'"),
    "trainer: an optimiser that is made": (lambda b: b.trainer(optimizer=torch.optim.SGD(b.model.parameters(), lr=0.1)), CONFIG, "Trainer(optimizer=)", torch.optim.SGD, "a class of torch.optim", "torch.optim.SGD"),
    "trainer: an optimiser": (lambda b: b.trainer(optimizer="adam"), CONFIG, "Trainer(optimizer=)", "adam", "'adamw'", "optimizer='adamw'"),
    "trainer: a rate in text": (lambda b: b.trainer(lr="3e-3"), CONFIG, "Trainer(lr=)", "3e-3", "a number in (0, inf)", "lr="),
    "trainer: a schedule": (lambda b: b.trainer(schedule="onecycle"), CONFIG, "Trainer(schedule=)", "onecycle", "'one-cycle'", "schedule='one-cycle'"),
    "trainer: groups": (lambda b: b.trainer(param_groups={"*": 0.1}), CONFIG, "Trainer(param_groups=)", {"*": 0.1}, "patterns", "groups={"),
    "trainer: a norm": (lambda b: b.trainer(max_grad_norm=True), CONFIG, "Trainer(max_grad_norm=)", True, "a number in (0, inf)", "max_grad_norm="),
    "trainer: a precision": (lambda b: b.trainer(precision=16), CONFIG, "Trainer(precision=)", 16, "'fp16-mixed'", "precision="),
    "trainer: weights of classes": (lambda b: b.trainer(class_weight=[1, 2]), CONFIG, "Trainer(class_weight=)", [1, 2], "a mapping", "class_weight='balanced'"),
    "trainer: a metric": (lambda b: b.trainer(metrics=["roc_auc"]), CONFIG, "Trainer(metrics=)", "roc_auc", "'auc'", "metrics='auc'"),
    "trainer: a metric of classes": (lambda b: b.of_classes(metrics=["brier"]), CONFIG, "Trainer(metrics=)", "brier", "'auc'", "metrics=['accuracy', 'auc', 'log_loss']"),
    "trainer: early stopping": (lambda b: b.trainer(early_stopping=True), CONFIG, "Trainer(early_stopping=)", True, "an EarlyStopping", "EarlyStopping("),
    "trainer: a seed": (lambda b: b.trainer(seed=None), CONFIG, "Trainer(seed=)", None, "an integer", "seed=0"),
    "trainer: a device": (lambda b: b.trainer(device="gpu"), CONFIG, "Trainer(device=)", "gpu", "'cuda'", "device="),
    "trainer: callbacks": (lambda b: b.trainer(callbacks=gp.training.Callback()), CONFIG, "Trainer(callbacks=)", gp.training.Callback, "a list", "callbacks=["),
    "trainer: checkpoints": (lambda b: b.trainer(checkpoints=True), CONFIG, "Trainer(checkpoints=)", True, "a folder", "checkpoints="),
    "trainer: a URL for checkpoints": (lambda b: gp.Checkpoints("s3://bucket/run"), CONFIG, "Checkpoints(folder=)", "s3://bucket/run", "a path of this machine", "folder="),
    "trainer: how many checkpoints": (lambda b: gp.Checkpoints("run", keep=1.5), CONFIG, "Checkpoints(keep=)", 1.5, "an integer in [1, inf)", "keep=3"),
    "trainer: patience": (lambda b: gp.EarlyStopping("valid_auc"), CONFIG, "EarlyStopping(patience=)", "valid_auc", "an integer in [1, inf)", "patience=3"),
    "trainer: a plateau": (lambda b: gp.training.Plateau(factor="a"), CONFIG, "Plateau(factor=)", "a", "a number in (0, 1)", "factor=0.1"),
    "trainer: a logger's path": (lambda b: gp.training.CSVLogger(None), CONFIG, "CSVLogger(path=)", None, "a path", "path="),
    "trainer: losses of targets": (lambda b: gp.training.PerTarget("mse"), CONFIG, "PerTarget(losses=)", "mse", "a list", "losses="),
    "trainer: a scaled rate": (lambda b: gp.training.scaled_rate("a", batch_size=8), CONFIG, "scaled_rate(lr=)", "a", "a number in (0, inf)", "lr="),
    "trainer: freezing a class": (lambda b: gp.training.freeze(gp.models.MLP, "*"), CONFIG, "freeze(model=)", gp.models.MLP, "torch.nn.Module", "trainer.model"),
    "trainer: weights that are not there": (lambda b: gp.training.load_weights(b.model, "nowhere.safetensors"), errors.BadFile, "nowhere.safetensors", None, ".safetensors file", "state_dict()"),
    "fit: a dataset": (lambda b: b.trainer().fit(b.data), CONFIG, "Trainer.fit(train=)", gp.Dataset, "a loader", "pipeline.loader(train)"),
    "fit: a frame": (lambda b: b.trainer().fit(b.frame), CONFIG, "Trainer.fit(train=)", pd.DataFrame, "a loader", "pipeline.loader(train)"),
    "fit: X and y": (lambda b: b.trainer().fit(b.loader, b.frame["y"]), CONFIG, "Trainer.fit(valid=)", pd.Series, "a loader", "pipeline.loader(valid)"),
    "fit: tensors": (lambda b: b.trainer().fit(torch.zeros(4, 2), torch.zeros(4)), CONFIG, "Trainer.fit(train=)", torch.Tensor, "a loader", "pipeline.loader(train)"),
    "fit: the pipeline": (lambda b: b.trainer().fit(b.pipeline), CONFIG, "Trainer.fit(train=)", gp.Pipeline, "a loader", "pipeline.loader("),
    "fit: a checkpoint": (lambda b: b.trainer().fit(b.loader, resume=True), CONFIG, "Trainer.fit(resume=)", True, "a path", "resume='latest'"),
    "fit: a mean where rows have weights": (lambda b: b.trainer(loss=torch.nn.BCEWithLogitsLoss()).fit(b.weighted()), CONFIG, "Trainer(loss=)", "BCEWithLogitsLoss", "a value for each row", "reduction='none'"),
    "fit: a loss that is no tensor": (lambda b: b.trainer(loss=lambda output, batch: 3.0).fit(b.loader), MISMATCH, "loss", float, "a tensor", "return the loss"),
    "fit: a layer of torch": (lambda b: gp.Trainer(torch.nn.Linear(2, 1), max_epochs=1).fit(b.loader), CONFIG, "Trainer(model=)", torch.nn.Linear, "a gpupipe.Batch", "def forward(self, batch)"),
    "evaluate: a frame": (lambda b: b.trainer().evaluate(b.frame), CONFIG, "Trainer.evaluate(loader=)", pd.DataFrame, "a loader", "pipeline.loader("),
    "predict: a frame": (lambda b: b.trainer().predict(b.frame), CONFIG, "Trainer.predict(loader=)", pd.DataFrame, "a loader", "pipeline.loader("),
    # networks
    "network: the pipeline": (lambda b: gp.models.MLP.from_schema(b.pipeline), CONFIG, "MLP.from_schema", gp.Pipeline, "the schema", "MLP.from_schema(pipeline.schema)"),
    "network: a misspelt option": (lambda b: gp.models.MLP.from_schema(b.pipeline.schema, hiden=4), CONFIG, "MLP.from_schema", "hiden", "hidden", "hidden="),
    "network: widths in text": (lambda b: gp.models.MLP.from_schema(b.pipeline.schema, hidden="64"), CONFIG, "MLP(hidden=)", "64", "a list of integers in [1, inf)", "hidden=(256, 128)"),
    "network: dropout": (lambda b: gp.models.MLP.from_schema(b.pipeline.schema, dropout="a"), CONFIG, "MLP(dropout=)", "a", "a number in [0, 1)", "dropout=0.0"),
    "network: a seed": (lambda b: gp.models.MLP.from_schema(b.pipeline.schema, seed=None), CONFIG, "MLP(seed=)", None, "an integer", "seed=0"),
    "network: blocks": (lambda b: gp.models.ResNet.from_schema(b.pipeline.schema, blocks="a"), CONFIG, "ResNet(blocks=)", "a", "an integer in [0, inf)", "blocks=2"),
    "network: members": (lambda b: gp.models.TabM.from_schema(b.pipeline.schema, members=1.5), CONFIG, "TabM(members=)", 1.5, "an integer in [1, inf)", "members=8"),
    "network: no layer": (lambda b: gp.models.TabM.from_schema(b.pipeline.schema, hidden=()), CONFIG, "TabM(hidden=)", (), "at least one layer's width", "hidden=(128, 128)"),
    "network: its task": (lambda b: gp.models.TabM(3, task="ranking"), CONFIG, "TabM(task=)", "ranking", "'binary', 'multiclass', 'multilabel' or 'regression'", "one of the choices above"),
    "network: a frame for a batch": (lambda b: b.model(b.frame), MISMATCH, "MLP", pd.DataFrame, "a gpupipe.Batch", "pipeline.loader(train)"),
    # looking
    "importance: arguments swapped": (lambda b: gp.importance(b.loader, b.trainer()), CONFIG, "importance(model=)", ANYTHING, "a Trainer", "gp.importance(trainer, pipeline.loader(valid))"),
    "importance: repeats": (lambda b: gp.importance(b.trainer(), b.loader, repeats=1.5), CONFIG, "importance(repeats=)", 1.5, "an integer in [1, inf)", "repeats=5"),
    "compare: one network": (lambda b: gp.compare(b.loader, b.loader, b.model), CONFIG, "compare(models=)", gp.models.MLP, "a list", "models=["),
    "compare: a frame": (lambda b: gp.compare(b.frame, b.frame), CONFIG, "compare(train=)", "DataFrame", "a loader", "pipeline.loader(data)"),
    # tables
    "select: a number": (lambda b: b.data.select(3), CONFIG, "select", 3, "a column's name", "['x']"),
    "select: a place": (lambda b: b.data.select([0]), MISSING, "select", ["x", "z", "k", "y"], "a column that is there", "names above"),
    "head: text": (lambda b: b.data.head("3"), CONFIG, "head(n=)", "3", "an integer in [0, inf)", "n=5"),
    "write: files": (lambda b: b.data.write_parquet(b.folder / "out", files=0), CONFIG, "write_parquet(files=)", 0, "an integer in [1, inf), or None", "files=None"),
    "write: no path": (lambda b: b.data.write_parquet(None), CONFIG, "write_parquet(path=)", None, "a path", "out/"),
    "group: a function alone": (lambda b: b.data.group_by("k").agg(total="sum"), CONFIG, "agg(total=)", "sum", "(column, function)", "agg(total=('x', 'sum'))"),
    "group: a function of NumPy": (lambda b: b.data.group_by("k").agg(total=("y", np.sum)), CONFIG, "agg(total=)", tuple, "(column, function)", "agg(total=('y', 'sum'))"),
    "group: a function of one's own": (lambda b: b.data.group_by("k").agg(y=lambda v: v.max()), CONFIG, "agg(y=)", ANYTHING, "(column, function)", "agg(y=('y', 'mean'))"),
    "group: a function of NumPy by column": (lambda b: b.data.group_by("k").agg({"x": np.max}), CONFIG, "agg", dict, "name=(column, function)", "agg(x_max=('x', 'max'))"),
    "group: a function by a key": (lambda b: b.data.select(["k", "y"]).group_by("k").agg("mean"), CONFIG, "agg", "mean", "name=(column, function)", "agg(y_mean=('y', 'mean'))"),
    "group: functions by column": (lambda b: b.data.group_by("k").agg({"x": "mean"}), CONFIG, "agg", {"x": "mean"}, "name=(column, function)", "agg(x_mean=('x', 'mean'))"),
    "group: several functions of a column": (lambda b: b.data.group_by("k").agg({"x": ["min", "max"], "a b": "sum"}), CONFIG, "agg", dict, "name=(column, function)", "agg(x_min=('x', 'min'), x_max=('x', 'max'), **{'a b_sum': ('a b', 'sum')})"),
    "group: one function": (lambda b: b.data.group_by("k").agg("mean"), CONFIG, "agg", "mean", "name=(column, function)", "agg(x_mean=('x', 'mean'))"),
    "a column": (lambda b: b.data["x"], CONFIG, "Dataset[...]", "x", "a method", "data.select('x')"),
    "columns": (lambda b: b.data[["x", "y"]], CONFIG, "Dataset[...]", ["x", "y"], "a method", "data.select(['x', 'y'])"),
    "rows": (lambda b: b.data[:5], CONFIG, "Dataset[...]", slice(None, 5), "a method", "data.head()"),
    "a mask": (lambda b: b.data[b.frame["x"] > 1], CONFIG, "Dataset[...]", pd.Series, "a method", "data.filter("),
    "a frame of a Dataset": (lambda b: pd.DataFrame(b.data), CONFIG, "Dataset", ANYTHING, "a frame or an array", "data.to_pandas()"),
    "columns that are renamed": (lambda b: setattr(b.data, "columns", ["a"]), errors.AttributeNotFound, "Dataset.columns = ...", ANYTHING, "a method", "T.Rename({'x': 'y'})"),
    "a column as an attribute": (lambda b: setattr(b.data, "new", 1), errors.AttributeNotFound, "Dataset.new = ...", ANYTHING, "a method", "data.assign(new='an expression')"),
    "a column that is deleted": (lambda b: b.data.__delitem__("x"), CONFIG, "del Dataset[...]", "x", "a step", "T.Drop('x')"),
    "pandas' query": (lambda b: b.data.query("x > 1"), errors.AttributeNotFound, "Dataset.query", ANYTHING, "filter", "data.filter('x > 1')"),
    "fit: valid without its target": (lambda b: gp.fit(b.frame, b.frame.drop(columns="y"), target="y", model=gp.models.Linear), errors.BadData, "fit(valid=)", list, "rows with 'y'", "fit(train, target=)"),
    "split: text": (lambda b: b.data.split("x"), CONFIG, "split", "x", "between 0 and 1", "fraction=0.8"),
    "text that is not Unicode": (lambda b: gp.from_frame(pd.DataFrame({"a": pd.Series(["b", "\ud800"], dtype=object)})), errors.BadData, "column 'a'", "\ud800", "Unicode", "frame['a'].str.encode('utf-8', 'replace').str.decode('utf-8')"),
    "a category that is not Unicode": (lambda b: gp.from_frame(pd.DataFrame({"a": pd.Categorical(pd.Series(["\ud800"], dtype=object))})), errors.BadData, "column 'a'", "\ud800", "Unicode", "frame['a'].str"),
    "a far time": (lambda b: gp.from_frame(pd.DataFrame({"t": np.array([10**14], "datetime64[s]")})), errors.BadData, "column 't'", ANYTHING, "microseconds", "int64"),
    "a far time of Arrow": (lambda b: gp.from_frame(pa.table({"t": pa.array([10**14], pa.timestamp("s"))})).compute(), errors.BadData, "column 't'", ANYTHING, "microseconds", "int64"),
    "join: a frame": (lambda b: b.data.join(b.frame, on="k"), CONFIG, "join", "DataFrame", "a Dataset", "gp.from_frame(right)"),
    "from_frame: a Dataset": (lambda b: gp.from_frame(b.data), MISMATCH, "from_frame", gp.Dataset, "a table in memory", "the dataset itself"),
    "a step: an array": (lambda b: pre.StandardScaler().fit(np.ones((3, 2))), MISMATCH, "data", np.ndarray, "DataFrame", "pd.DataFrame(data, columns=[...])"),
    "a step: a column": (lambda b: pre.StandardScaler().fit(b.frame["x"]), MISMATCH, "data", pd.Series, "DataFrame", "data.to_frame()"),
    "a step: lists": (lambda b: pre.StandardScaler().fit([[1.0], [2.0]]), MISMATCH, "data", list, "DataFrame", "pd.DataFrame(data, columns=[...])"),
    "a step: columns in a dict": (lambda b: T.Cast({"x": "int64"}).transform({"x": [1.0]}), MISMATCH, "data", dict, "DataFrame", "pd.DataFrame(data)"),
    "a step: a table of Polars": (lambda b: pre.StandardScaler().fit(pl.DataFrame({"x": [1.0]})), MISMATCH, "data", pl.DataFrame, "DataFrame", "gp.from_frame(data).compute()"),
    "SimpleImputer: text": (lambda b: pre.SimpleImputer().fit(b.frame[["k"]]), MISMATCH, "SimpleImputer('mean'), column 'k'", "string", "numbers", "SimpleImputer('most_frequent')"),
    "GroupImputer: no such column": (lambda b: pre.GroupImputer("kk").fit(b.frame[["k", "x"]]), MISSING, "GroupImputer(by=...)", ANYTHING, "a column that is there", "one of the names above"),
    "Clip: a Timestamp": (lambda b: T.Clip("at", pd.Timestamp("2020-01-02")), CONFIG, "Clip(low=)", pd.Timestamp("2020-01-02"), "ISO 8601", "low='2020-01-02T00:00:00'"),
    "Replace: a Timestamp": (lambda b: gp.Pipeline([T.Replace({"at": {pd.Timestamp("2020-01-02"): None}})]).fit(pd.DataFrame({"at": pd.to_datetime(["2020-01-01"])})), CONFIG, "Replace of column 'at'", pd.Timestamp("2020-01-02"), "ISO 8601", "'2020-01-02T00:00:00'"),
    "Cast: a type of Python": (lambda b: T.Cast({"x": int}), CONFIG, "Cast(dtypes=)", int, "one of int8", "dtypes={'x': 'int64'}"),
    "Cast: a type of pandas": (lambda b: T.Cast({"x": "datetime64[us]"}), CONFIG, "Cast(dtypes=)", "datetime64[us]", "timestamp", "dtypes={'x': 'timestamp'}"),
    "Cast: text": (lambda b: T.Cast({"x": "str"}), CONFIG, "Cast(dtypes=)", "str", "string", "dtypes={'x': 'string'}"),
    "read_csv: a type of NumPy": (lambda b: gp.read_csv(b.csv, dtypes={"x": "Float32"}), CONFIG, "read_csv(dtypes=)", "Float32", "one of int8", "dtypes={'x': 'float32'}"),
    "read_json: a decimal": (lambda b: gp.read_json(b.csv, dtypes={"x": "decimal128(10, 2)"}), CONFIG, "read_json(dtypes=)", "decimal128(10, 2)", "one of int8", "dtypes={'x': 'float64'}"),
    "Cast: fractions to times": (lambda b: gp.Pipeline([T.Cast({"x": "timestamp"})]).fit(b.frame), MISMATCH, "column 'x'", None, "microseconds", "Derive(x='int(x * 1000000)')"),
    "filter: a column in quotation marks": (lambda b: b.data.filter("'x' > 1"), errors.ExpressionError, "filter", "x", "a column", "col('x')"),
    "filter: it and another text": (lambda b: b.data.filter("'k' == 'a'"), errors.ExpressionError, "filter", "k", "a column", "col('k')"),
    "filter: a boolean as text": (lambda b: b.data.assign(late="x > 1").filter("late == 'true'"), errors.ExpressionError, "filter", ANYTHING, "two numbers", "True, without quotation marks"),
    "assign: days of a difference": (lambda b: b.data.assign(days="(timestamp('2013-01-03') - timestamp('2013-01-01')).dt.days"), errors.ExpressionError, "assign(days=...)", ANYTHING, "columns", "(timestamp('2013-01-03') - timestamp('2013-01-01')) // 86400"),
    "assign: seconds of a difference": (lambda b: b.data.assign(s="(timestamp('2013-01-03') - timestamp('2013-01-01')).total_seconds()"), errors.ExpressionError, "assign(s=...)", ANYTHING, "a function", "(timestamp('2013-01-03') - timestamp('2013-01-01')), a difference of times in seconds"),
    "split: a date of numbers": (lambda b: b.data.split(by="x", at="2013-10-01"), CONFIG, "split", "2013-10-01", "a number", "at=2013, if it holds years; at=20131001, if it holds dates as digits"),
    "split: a number as text": (lambda b: b.data.split(by="x", at="1850"), CONFIG, "split", "1850", "a number", "at=1850"),
    "split: a fraction as text": (lambda b: b.data.split(by="x", at="-1.5"), CONFIG, "split", "-1.5", "a number", "at=-1.5"),
    "split: a word of numbers": (lambda b: b.data.split(by="x", at="nan"), CONFIG, "split", "nan", "a number", "at=10"),
    "read_csv: aligned by spaces": (lambda b: gp.read_csv(b.csv, sep=r"\s+"), CONFIG, "read_csv", r"\s+", "one ASCII character", r"gp.from_frame(pandas.read_csv(path, sep=r'\s+'))"),
    "fit: the target's values": (lambda b: gp.fit(b.frame, target=b.frame["y"]), CONFIG, "Features.auto(target=)", pd.Series, "a name", "target='y'"),
    "from_frame: partitions": (lambda b: gp.from_frame(b.frame, num_partitions=1.5), CONFIG, "from_frame(num_partitions=)", 1.5, "an integer in [1, inf)", "num_partitions=None"),
    "from_frame: bytes": (lambda b: gp.from_frame(b.frame, partition_bytes="1GB"), CONFIG, "read(partition_bytes=)", "1GB", "an integer in [1, inf)", "partition_bytes=None"),
    "split: a share in percent": (lambda b: b.data.split(fraction="80%"), CONFIG, "split", "80%", "between 0 and 1", "fraction=0.8"),
    "sample: a share in percent": (lambda b: b.data.sample("10%"), CONFIG, "sample(fraction=)", "10%", "a number in (0, 1]", "fraction=0.1"),
    "sample: rows for a share": (lambda b: b.data.sample(10), CONFIG, "sample(fraction=)", 10, "a number in (0, 1]", "n=10"),
    "filter: a mask of pandas": (lambda b: b.data.filter(b.frame["x"] > 1), errors.ExpressionError, "filter", pd.Series, "text", "dep_delay > 15"),
    # the process
    "configure: bytes": (lambda b: gp.configure(partition_bytes="1GB"), CONFIG, "configure(partition_bytes=)", "1GB", "bytes, an integer in [1, inf)", "partition_bytes=2_000_000_000"),
    "configure: half a byte": (lambda b: gp.configure(memory_limit=1.5), CONFIG, "configure(memory_limit=)", 1.5, "bytes, an integer in [1, inf)", "memory_limit=2_000_000_000"),
    "cluster: an address for the workers": (lambda b: gp.Cluster("tcp://host:8786"), CONFIG, "Cluster(n_workers=)", "tcp://host:8786", "an integer in [1, inf)", "address='tcp://host:8786'"),
}  # fmt: skip


SERIES, ARRAY = pd.Series([True, False]), np.array([True, False])
FLAGS: dict[str, Any] = {
    "join(many=)": lambda b, flag: b.data.join(b.data, on="k", many=flag),
    "join_asof(allow_exact_matches=)": lambda b, flag: b.data.join_asof(b.data, on="x", allow_exact_matches=flag),
    "group_by(dropna=)": lambda b, flag: b.data.group_by("k", dropna=flag),
    "write_parquet(overwrite=)": lambda b, flag: b.data.write_parquet(b.folder / "flags", overwrite=flag),
    "write_parquet(shuffle=)": lambda b, flag: b.data.write_parquet(b.folder / "flags", shuffle=flag),
    "sort(ascending=)": lambda b, flag: b.data.sort(["x", "z"], ascending=[flag, flag]),
    "loader(shuffle=)": lambda b, flag: b.pipeline.loader(b.frame, shuffle=flag),
    "loader(drop_last=)": lambda b, flag: b.pipeline.loader(b.frame, drop_last=flag),
    "loader(reuse_buffers=)": lambda b, flag: b.pipeline.loader(b.frame, reuse_buffers=flag),
    "loader(out_of_fold=)": lambda b, flag: b.pipeline.loader(b.frame, out_of_fold=flag),
    "loader": lambda b, flag: b.pipeline.loader(b.frame, sharded=flag),
    "loader(sampler=)": lambda b, flag: b.pipeline.loader(b.frame, sampler=flag),
    "Join(many=)": lambda b, flag: T.Join(b.frame, on="k", many=flag),
    "JoinAsOf(allow_exact_matches=)": lambda b, flag: T.JoinAsOf(b.frame, on="x", allow_exact_matches=flag),
    "Trainer(compile=)": lambda b, flag: b.trainer(compile=flag),
    "Trainer(cuda_graph=)": lambda b, flag: b.trainer(cuda_graph=flag),
    "Trainer(progress=)": lambda b, flag: b.trainer(progress=flag),
    "load_weights(strict=)": lambda b, flag: gp.training.load_weights(b.model, b.model.state_dict(), strict=flag),
}


@pytest.mark.slow
@pytest.mark.parametrize("where", FLAGS)
@pytest.mark.parametrize("flag", [SERIES, ARRAY, "yes", 1], ids=["Series", "array", "text", "integer"])
def test_a_flag_is_true_or_false(bench: Bench, where: str, flag: Any) -> None:
    with pytest.raises(CONFIG) as caught:
        FLAGS[where](bench, flag)
    assert caught.value.where == where
    assert not (bench.folder / "flags").exists()


NUL = "a\0b"
NOT_UTF8 = os.fsdecode(b"caf\xe9")
NO_PATH: dict[str, Any] = {
    "write_parquet(path=)": lambda b, path: b.data.write_parquet(path),
    "path": lambda b, path: gp.save(path, b.pipeline, b.model),
    "CSVLogger(path=)": lambda b, path: gp.training.CSVLogger(path),
    "JSONLinesLogger(path=)": lambda b, path: gp.training.JSONLinesLogger(path),
    "Trainer(profile=)": lambda b, path: b.trainer(profile=path),
    "Checkpoints(folder=)": lambda b, path: b.trainer(checkpoints=path),
}


@pytest.mark.parametrize("where", NO_PATH)
@pytest.mark.parametrize("path", [NUL, Path(NUL), "", NOT_UTF8], ids=["text", "Path", "empty", "not UTF-8"])
def test_a_path_has_text_of_utf8_and_no_nul(bench: Bench, where: str, path: Any) -> None:
    with pytest.raises(CONFIG) as caught:
        NO_PATH[where](bench, path)
    assert caught.value.where == where and caught.value.got == path


@pytest.mark.parametrize("read", [gp.read_parquet, gp.read_csv, gp.read_json, gp.read_orc, gp.read_ipc, gp.load])
def test_a_path_with_a_nul_leads_to_no_file(read: Any) -> None:
    with pytest.raises((errors.BadFile, errors.ArtifactError, CONFIG)):
        read(NUL)


def test_a_run_below_a_file_or_in_a_closed_folder_is_named(bench: Bench) -> None:
    (bench.folder / "file").touch()
    training = gp.training
    for place in (bench.folder / "file" / "run", Path("/proc/run")):
        loggers = [[one(place / "x")] for one in (training.CSVLogger, training.JSONLinesLogger)]
        for settings in (
            {"callbacks": loggers[0]},
            {"callbacks": loggers[1]},
            {"checkpoints": place},
            {"profile": place},
        ):
            with pytest.raises(errors.BadFile) as caught:
                bench.trainer(progress=False, **settings).fit(bench.loader)
            assert str(place) in caught.value.where


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told_where_it_is_with_what_was_seen_what_is_expected_and_what_to_try(
    bench: Bench, slip: str
) -> None:
    do, kind, where, got, expected, remedy = SLIPS[slip]
    with pytest.raises(kind) as caught:
        do(bench)
    error = caught.value
    assert type(error) is kind and error.where == where and error.problem
    if got is not ANYTHING:
        as_seen = error.got is got or (type(error.got) is type(got) and error.got == got)
        assert as_seen or (isinstance(got, type) and (error.got is got or isinstance(error.got, got)))
    assert expected in error.expected
    assert remedy in error.remedy


def test_a_fraction_becomes_a_time_and_a_condition_by_what_the_errors_say() -> None:
    frame = pd.DataFrame({"x": [1.5e9, 1.6e9], "b": [True, False], "f": [0.0, 1.5], "u": np.array([1, 2], "uint64")})
    for column in ("x", "b", "u"):
        with pytest.raises(errors.SchemaMismatch) as caught:
            gp.Pipeline([T.Cast({column: "timestamp"})]).fit(frame)
        (step,) = [eval(f"T.{caught.value.remedy.partition(' before it')[0]}", {"T": T})]
        made = gp.Pipeline([step, T.Cast({column: "timestamp"})]).fit(frame).transform(frame)
        assert str(made[column].dtype) == "datetime64[us]"
        assert column != "x" or made["x"].tolist() == pd.to_datetime(frame["x"], unit="s").tolist()
    with pytest.raises(errors.BadData) as refused:
        gp.Pipeline([T.Cast({"f": "bool"})]).fit(frame).transform(frame)
    step = eval(f"T.{refused.value.remedy.partition(' in its place')[0]}", {"T": T})
    assert gp.Pipeline([step]).fit(frame).transform(frame)["f"].tolist() == [False, True]
    with pytest.raises(errors.ExpressionError) as caught_time:
        T.Derive(h="hour(x)").transform(frame)
    derive, cast = re.findall(r"T\.\w+\(.*?\)(?= if| before)", caught_time.value.remedy)
    hours = gp.Pipeline([eval(derive), eval(cast), T.Derive(h="hour(x)")]).fit(frame).transform(frame)["h"]
    assert hours.tolist() == pd.to_datetime(frame["x"], unit="s").dt.hour.tolist()


@pytest.mark.parametrize("steps", [[pre.SimpleImputer("median")], [pre.SimpleImputer(), pre.StandardScaler()]])
def test_values_in_rows_without_a_target_teach_nothing_and_the_error_says_so(steps: list[Any]) -> None:
    frame = pd.DataFrame({"a": [1.0, 2, np.nan, np.nan], "b": [1.0, 2, 3, 4], "y": [np.nan, np.nan, 1.5, 2.5]})
    with pytest.raises(errors.BadData) as caught:
        gp.Pipeline([], gp.Features((["a"], steps), (["b"], pre.StandardScaler()), target="y")).fit(frame)
    assert "column 'a'" in caught.value.where
    assert "2 rows with a target" in caught.value.problem and "2 rows without" in caught.value.problem


def test_a_share_needs_no_name(bench: Bench) -> None:
    assert [len(part) for part in bench.data.split(0.8)] == [len(part) for part in bench.data.split(fraction=0.8)]


def test_the_shape_is_rows_and_columns(bench: Bench) -> None:
    assert bench.data.filter("x < 10").shape == (10, 4)


def test_a_pipeline_takes_what_scikit_learn_passes_for_no_target(bench: Bench) -> None:
    assert bench.pipeline.fit(bench.frame, None) is bench.pipeline


@pytest.mark.parametrize("make", [lambda text: text, T.Filter], ids=["dataset", "step"])
@pytest.mark.parametrize("column", ["c", "t", "x", "many"])
def test_what_is_no_condition_is_made_one(make: Any, column: str) -> None:
    times = pd.Series([pd.Timestamp("2013-01-01"), pd.NaT])
    data = gp.from_frame(pl.DataFrame({"c": ["a", None], "t": times, "x": [1.0, 2.0], "many": [[1], None]}))
    keep = (lambda text: gp.Pipeline([T.Filter(text)]).fit(data).transform(data)) if make is T.Filter else data.filter
    with pytest.raises(errors.ExpressionError) as caught:
        keep(column)
    (call,) = ast.parse(caught.value.remedy).body
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    (text,) = call.value.args
    assert isinstance(text, ast.Constant)
    keep(str(text.value)).compute()


def test_a_step_alone_wants_a_frame_and_says_how_a_dataset_is_given(bench: Bench) -> None:
    step = T.Cast({"x": "float32"})
    for use in (step.transform, pre.StandardScaler().fit(bench.frame[["x"]]).transform):
        with pytest.raises(errors.SchemaMismatch) as caught:
            use(bench.data)
        assert caught.value.remedy == "data.compute(), or in a pipeline: gp.Pipeline([step]).fit(data).transform(data)"
    step.transform(bench.data.compute())
    gp.Pipeline([step]).fit(bench.data).transform(bench.data).compute()


@pytest.mark.parametrize(
    ("left", "right", "casts"),
    [
        (np.array([2**63 + 5, 3], "uint64"), np.array([-5, 3], "int64"), {"left": "string", "right": "string"}),
        (np.array([1, 2], "int32"), np.array([2**40, 2], "int64"), {"left": "int64"}),
        (np.array([1, 2], "uint32"), np.array([-2, 2], "int32"), {"left": "int64", "right": "int64"}),
        (np.array([1, 2], "int64"), np.array([1.5, 2]), {"left": "float64"}),
        (np.array(["07", "2"], object), np.array([1, 2]), {"left": "int64"}),
    ],
)
def test_keys_of_two_types_are_brought_together(left: Any, right: Any, casts: dict[str, str]) -> None:
    sides = {"left": gp.from_frame(pd.DataFrame({"k": left})), "right": gp.from_frame(pd.DataFrame({"k": right}))}
    with pytest.raises(errors.SchemaMismatch) as caught:
        sides["left"].join(sides["right"], on="k", how="outer")
    for side, dtype in casts.items():
        cast = f"gp.Pipeline([T.Cast({{'k': {dtype!r}}})]).fit({side}).transform({side})"
        assert cast in caught.value.remedy
        sides[side] = eval(cast, {"gp": gp, "T": T, **sides})
    assert caught.value.remedy.count("T.Cast") == len(casts)
    assert len(sides["left"].join(sides["right"], on="k", how="outer").compute()) == 3


@pytest.mark.parametrize("value", [-1.0, None, np.inf, 1e39])
def test_weights_that_are_none_are_made_some(value: float | None) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "w": [1.0, value], "y": [0, 1]})
    with pytest.raises(errors.BadData) as caught:
        fit(frame, ["x"], target="y", weight="w").loader(frame)
    asked = ast.parse(f"f({caught.value.remedy.partition(' or ')[0]})", mode="eval").body
    assert isinstance(asked, ast.Call) and isinstance(asked.keywords[0].value, ast.Constant)
    weight = str(asked.keywords[0].value.value)
    fit(frame, ["x"], target="y", weight=weight).loader(frame)


def test_a_decimal_is_cast_in_a_dataset() -> None:
    data = gp.from_frame(pa.table({"d": pa.array([Decimal("1.10")] * 2)}))
    with pytest.raises(errors.SchemaMismatch) as caught:
        data.deduplicate()
    assert caught.value.remedy.endswith("of a Dataset gp.Pipeline([step]).fit(data).transform(data)")
    assert len(gp.Pipeline([T.Cast({"d": "float64"})]).fit(data).transform(data).deduplicate()) == 1


def test_a_target_beyond_float32_is_an_expression_away() -> None:
    frame = pd.DataFrame({"x": np.arange(9.0), "y": np.arange(9) * 1e39})
    with pytest.raises(errors.BadData) as caught:
        fit(frame, ["x"], target="y * 2", target_transform=None).loader(frame)
    assert caught.value.remedy == "an expression for target within that range, such as one divided by 1e6"
    fit(frame, ["x"], target="y * 2 / 1e6", target_transform=None).loader(frame)


@pytest.mark.parametrize(
    ("batch_size", "shuffle", "remedies"),
    [(40, True, ["smaller batch_size"]), (40, False, ["pipeline.loader(train, shuffle=True)"]), (2, True, [])],
)
def test_a_run_of_few_updates_is_pointed_out(
    bench: Bench, caplog: pytest.LogCaptureFixture, batch_size: int, shuffle: bool, remedies: list[str]
) -> None:
    with caplog.at_level("WARNING", "gpupipe"):
        bench.trainer().fit(bench.pipeline.loader(bench.frame, batch_size=batch_size, shuffle=shuffle))
    texts = [record.getMessage() for record in caplog.records if "or more epochs" in record.msg]
    assert [remedy in text for remedy, text in zip(remedies, texts, strict=True)] == [True] * len(remedies)


@pytest.mark.parametrize(
    ("wrote", "meant"),
    [
        ("min(x, z) > 0", "minimum(x, z) > 0"),
        ("fillna(x, z) > 0", "coalesce(x, z) > 0"),
        ("between(x, 1, 2)", "1 <= x <= 2"),
        ("isna(x)", "isnull(x)"),
        ("if_else(x > 1, 1, 2) > 1", "where(x > 1, 1, 2) > 1"),
        ("contians(k, 'a')", "contains(k, 'a')"),
        ("weekday(x) == 1", "dayofweek(x) == 1"),
        ("tan(x) > 0", "Map(fn"),
        ("std(x) > 0", "f'{number} > 0'"),
    ],
)
def test_a_function_of_another_language_is_given_its_name_here_or_none(bench: Bench, wrote: str, meant: str) -> None:
    with pytest.raises(errors.ExpressionError) as caught:
        bench.data.filter(wrote)
    assert meant in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "names", "near"),
    [
        ("fligth", ["night", "flight"], "flight"),
        ("Tail_Num", ["tailnum", "tail"], "tailnum"),
        ("dist", ["origin", "distance"], "distance"),
        ("mes", ["bce", "mse"], "mse"),
        ("sin", ["string", "minute"], None),
        ("between", ["week", "dayofweek"], None),
        ("x", ["xx", "y"], None),
    ],
)
def test_only_a_name_that_is_near_is_offered(name: str, names: list[str], near: str | None) -> None:
    assert errors.nearest(name, names) == near


def test_advice_with_quotes_is_python(bench: Bench) -> None:
    data = gp.from_frame(bench.frame.rename(columns={"x": "x-y", "z": "a b"}))
    with pytest.raises(errors.ExpressionError) as caught:
        data.filter("col('x-y') + col('a b')")
    (call,) = ast.parse(caught.value.remedy).body
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    (text,) = call.value.args
    assert isinstance(text, ast.Constant) and len(data.filter(str(text.value))) == len(data)


def test_a_column_without_a_name_is_seen_among_those_that_are_not_read(bench: Bench) -> None:
    told = str(bench.pipeline.explain(bench.frame.rename(columns={"k": ""})))
    assert "the fit does not read: ''" in told.splitlines()


def test_what_cannot_be_saved_is_said_at_fit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    steps = [pre.SimpleImputer(), FactorAnalysis(1)]
    pipeline = gp.Pipeline([], gp.Features((["x", "z"], steps), target="y"))
    with caplog.at_level("WARNING", "gpupipe"):
        pipeline.fit(bench.frame)
    (said,) = [record.getMessage() for record in caplog.records if "cannot be saved" in record.getMessage()]
    assert "FactorAnalysis" in said and said in str(pipeline.explain())
    with raises(
        errors.ArtifactError,
        where="EstimatorStep.estimator",
        got="sklearn.decomposition._factor_analysis.FactorAnalysis",
    ):
        gp.save(bench.folder / "factors", pipeline)


@pytest.mark.parametrize("command", [["inspect", "nope.parquet"], ["demo", "--data", "nowhere"]])
def test_the_command_line_says_it_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert "\nTry: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "wanted", "mended"),
    [
        ([10**30, 1], [1.5, 2.5], lambda frame: frame.astype({"v": "float64"})),
        (
            [pd.Timestamp("2020-01-01", tz="Europe/Oslo"), pd.Timestamp("2020-01-01", tz="UTC")],
            pd.date_range("2020", periods=2, tz="UTC"),
            lambda frame: frame.assign(v=pd.to_datetime(frame["v"], utc=True)),
        ),
        ([{2, 1}, None], [[1], [2, 3]], lambda frame: frame.assign(v=frame["v"].map(sorted, na_action="ignore"))),
    ],
    ids=["beyond 64 bits", "several zones", "sets"],
)
def test_objects_that_no_type_holds_are_made_what_the_fit_had(values: Any, wanted: Any, mended: Any) -> None:
    made = gp.Pipeline([], gp.Features(["x"], keep=["v"])).fit(pd.DataFrame({"x": [1.0, 2.0], "v": wanted}))
    frame = pd.DataFrame({"x": [1.0, 2.0], "v": pd.Series(values, dtype=object)})
    with pytest.raises(errors.SchemaMismatch) as caught:
        made.transform(frame)
    assert any(call in str(caught.value.remedy) for call in ("'float64'", "to_datetime", "map(sorted"))
    assert len(made.transform(mended(frame))) == 2


def test_a_list_is_no_category_of_steps_that_take_one_value() -> None:
    frame = pd.DataFrame({"l": [[1], [2, 3]], "x": [1.0, 2.0], "y": [0.5, 1.5]})
    for step, columns, remedy in (
        (pre.OneHotEncoder(), ["l"], "Categorify"),
        (pre.GroupStats(by="l"), ["x", "l"], "len(l)"),
    ):
        with pytest.raises(errors.SchemaMismatch) as caught:
            gp.Pipeline([], gp.Features((columns, step), target="y")).fit(frame)
        assert remedy in str(caught.value.remedy)


def test_a_cast_that_cannot_be_is_not_answered_with_a_cast(tmp_path: Path) -> None:
    for name, values in (("a", [Decimal("1.25")]), ("b", [3])):
        pq.write_table(pa.table({"v": values}), tmp_path / f"{name}.parquet")
    with pytest.raises(errors.SchemaMismatch) as caught:
        gp.read_parquet(tmp_path, on_mismatch="cast")
    assert "on_mismatch='skip'" in str(caught.value.remedy)


def test_loaders_and_scorers_refuse_what_only_looks_like_an_argument(bench: Bench) -> None:
    linear = torch.nn.Linear(1, 1)
    for do, where in (
        (lambda: bench.trainer().fit(bench.loader, []), "Trainer.fit(valid=)"),
        (lambda: bench.trainer().evaluate([]), "Trainer.evaluate(loader=)"),
        (lambda: bench.pipeline.loader(bench.frame, residency=np.array(["host", "host"])), "loader(residency=)"),
        (lambda: gp.tensors.Loader(bench.loader.table, device=np.array([1, 2])), "device"),
    ):
        with pytest.raises(errors.BadConfig) as caught:
            do()
        assert caught.value.where == where and caught.value.remedy
    with pytest.raises(errors.NotFitted):
        gp.Scorer(gp.Pipeline([], gp.Features(["dep_delay"])), linear)
    bench.trainer(max_grad_norm=10**30, progress=False).fit(bench.loader)


def test_numpys_lengths_of_time_are_no_integers() -> None:
    frame = pd.DataFrame({"t": pd.date_range("2024", periods=4), "v": range(4)})
    data, hour = gp.from_frame(frame), np.timedelta64(1, "h")
    assert len(data.join_asof(data, on="t", tolerance=hour)) == 4
    assert T.JoinAsOf(data, on="t", tolerance=hour, lag=hour).transform(frame)["v_right"].isna().all()
    for call in (
        lambda: data.join_asof(data, on="v", tolerance=hour),
        lambda: data.head(hour),
        lambda: T.Rolling("v", hour, order_by="t"),
        lambda: T.JoinAsOf(data, on="t", lag=np.timedelta64("NaT")),
    ):
        with pytest.raises(errors.BadConfig):
            call()


@pytest.mark.parametrize("key", ["v", ["v", "w"], 3])
def test_pandas_names_on_a_group_by_are_answered_by_agg(key: Any) -> None:
    groups = gp.from_frame(pd.DataFrame({"t": [1, 1, 2], "v": [1.0, 2.0, 3.0], "w": [0.0, 1.0, 2.0]})).group_by("t")
    with raises(errors.AttributeNotFound, where="group_by.sum", remedy="agg(v_sum=('v', 'sum'))"):
        groups.sum()
    with pytest.raises(errors.AttributeNotFound) as caught:
        groups[key]
    if key != 3:
        assert len(eval(f"groups.{caught.value.remedy}", {"groups": groups})) == 2
