"""What a user does wrong, and the message that helps: a case each, through the door a user comes in by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.probe import probe

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
    with pytest.raises(errors.ColumnNotFound, match="column 'dep_dely' not found") as caught:
        fit(flights, (["dep_dely"], pre.StandardScaler()))
    assert "Try: 'dep_delay' (the closest name)" in message(caught)


def test_a_column_that_is_missing_only_later(flights: pd.DataFrame) -> None:
    pipeline = fit(flights)
    for use in (pipeline.transform, pipeline.loader):
        with pytest.raises(errors.ColumnNotFound, match="the data: column 'distance' not found") as caught:
            use(flights.rename(columns={"distance": "dist"}))
        assert "Try: 'dist' (the closest name)" in message(caught)


def test_text_where_a_number_is_needed(flights: pd.DataFrame) -> None:
    with pytest.raises(errors.SchemaMismatch, match="column 'carrier': not a number, got 'string'") as caught:
        fit(flights, (["carrier"], pre.StandardScaler()))
    assert "Try: Categorify() for strings" in message(caught)


def test_a_type_that_changed_after_fit(flights: pd.DataFrame) -> None:
    pipeline = fit(flights)
    with pytest.raises(
        errors.SchemaMismatch, match="column 'distance': another type than in fit, got 'string'"
    ) as caught:
        pipeline.transform(flights.assign(distance="far"))
    assert "Expected float64." in message(caught)


# values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_an_all_null_column_has_nothing_to_impute_with(flights: pd.DataFrame, strategy: str) -> None:
    with pytest.raises(errors.BadData, match=r"SimpleImputer, column 'distance': it has no value to take") as caught:
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
    with pytest.raises(errors.BadData, match="column 'distance': 1 infinite value would reach the model") as caught:
        fit(flights, ["distance"]).loader(bad)
    assert "in float32 at most 3.4e38" in message(caught)


def test_a_missing_value_does_not_reach_the_model(flights: pd.DataFrame) -> None:
    with pytest.raises(errors.BadData, match="column 'distance': 2 missing values would reach the model") as caught:
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
    with pytest.raises(errors.BadData, match="KMeans: only 1 of the rows it starts from are distinct") as caught:
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
    with pytest.raises(errors.BadData, match="target 'arr_delay > 15': none of 0 rows has a value"):
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
    with pytest.raises(errors.BadFile, match=r"ragged\.csv: row 3 has 2 values, got '4,5'") as caught:
        fit(gp.read_csv(tmp_path / "ragged.csv"))
    assert "Expected 3 values" in message(caught)


def test_a_record_without_a_value_has_no_other_type(flights: pd.DataFrame) -> None:
    pipeline = fit(flights, SCALED, (["origin"], pre.Categorify()))
    record = pd.DataFrame([{"dep_delay": None, "distance": None, "origin": None}])
    assert pipeline.transform(record).iloc[0].abs().tolist() == pytest.approx([0, 0, 0], abs=1e-6)


# labels ---------------------------------------------------------------------------------------------------------------


def test_the_target_is_missing(flights: pd.DataFrame) -> None:
    with pytest.raises(errors.ColumnNotFound, match="Features: column 'arr_delay' not found"):
        fit(flights.drop(columns="arr_delay"))
    with pytest.raises(errors.BadData, match=rf"target 'arr_delay > 15': none of {len(flights)} rows has a value"):
        fit(flights.assign(arr_delay=np.nan))


@pytest.mark.parametrize("steps", [[], [T.Derive(made_up="dep_delay - arr_delay")]])
def test_a_feature_that_leaks_the_target(flights: pd.DataFrame, steps: list[Any]) -> None:
    feature = "made_up" if steps else "arr_delay"
    with pytest.raises(
        errors.LeakageError, match=rf"feature '{feature}': it is computed from \['arr_delay'\]"
    ) as caught:
        fit(flights, ([feature], pre.SimpleImputer()), steps=steps)
    assert "Try: leave it out, or allow_leak=['arr_delay']" in message(caught)


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
    with pytest.raises(errors.ExpressionError, match=r"binds tighter than comparisons") as caught:
        fit(flights, steps=[T.Derive(made_up=text)])
    assert f"`{sign}`" in message(caught) and f"Try: {fix}" in message(caught)
    assert message(caught).endswith(f"\n    {text}\n    {' ' * text.index(sign)}^")


# the machine ----------------------------------------------------------------------------------------------------------


@NO_GPU
def test_a_gpu_is_asked_for_where_there_is_none(flights: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    features = gp.Features(SCALED, target=TARGET)
    with pytest.raises(errors.BackendMissing, match="backend 'gpu': ") as caught:
        gp.Pipeline([], features, backend="gpu").fit(flights)
    assert 'backend="cpu" here' in message(caught) and "pip install 'cudf-cu1" in message(caught)
    with pytest.raises(errors.BackendMissing, match="backend 'gpu': "):
        gp.read_parquet(DATA / "flights.parquet", backend="gpu").head()


@NO_GPU
def test_training_on_a_gpu_where_there_is_none(flights: pd.DataFrame) -> None:
    pipeline = fit(flights)
    trainer = gp.Trainer(gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)), max_epochs=1, device="cuda")
    with pytest.raises(errors.BackendMissing, match=r"torch .* sees 0 GPUs, got 'cuda'") as caught:
        trainer.fit(pipeline.loader(flights))
    assert "Try: device='cpu'" in message(caught)


def test_a_backend_there_is_not(flights: pd.DataFrame) -> None:
    with pytest.raises(errors.BadConfig, match="no such choice, got 'cuda'") as caught:
        gp.Pipeline([], gp.Features(SCALED), backend="cuda").fit(flights)
    assert (caught.value.where, caught.value.got) == ("Pipeline(backend=)", "cuda")
