"""The pipeline as a whole, on the flights: two reads, the same state for any partitioning, labels that never leak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.cli.demo import flights_pipeline
from tests.raising import raises

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    frame = gp.read_parquet(DATA / "flights.parquet").compute()
    return frame.iloc[:: len(frame) // 20_000].reset_index(drop=True)


@pytest.fixture(scope="module")
def weather() -> pd.DataFrame:
    return gp.read_parquet(DATA / "weather.parquet").compute()


def state_of(pipeline: gp.Pipeline) -> list[dict[str, object]]:
    assert pipeline.features is not None
    return [step.get_state() for group in pipeline.features.groups for step in group.steps]


def assert_same_state(left: gp.Pipeline, right: gp.Pipeline) -> None:
    for mine, theirs in zip(state_of(left), state_of(right), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert_same_value(value, theirs[name], name)


def assert_same_value(mine: object, theirs: object, name: str) -> None:
    if isinstance(mine, dict):
        assert isinstance(theirs, dict) and mine.keys() == theirs.keys()
        for key, value in mine.items():
            assert_same_value(value, theirs[key], f"{name}[{key}]")
    elif not hasattr(mine, "to_pylist") and np.asarray(mine).dtype.kind == "f":
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9, err_msg=name)
    elif hasattr(mine, "to_pylist"):
        assert mine.to_pylist() == theirs.to_pylist(), name  # type: ignore[attr-defined]
    else:
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


@pytest.fixture(scope="module")
def fitted(flights: pd.DataFrame, weather: pd.DataFrame) -> gp.Pipeline:
    return flights_pipeline(weather).fit(flights)


@pytest.mark.slow
@pytest.mark.parametrize("num_partitions", [2, 7])
def test_the_state_does_not_depend_on_partitions(
    flights: pd.DataFrame, weather: pd.DataFrame, fitted: gp.Pipeline, num_partitions: int
) -> None:
    parts = gp.from_frame(flights, num_partitions=num_partitions)
    assert parts.num_partitions == num_partitions
    assert_same_state(fitted, flights_pipeline(weather).fit(parts))


def test_whole_and_streamed_transforms_agree(flights: pd.DataFrame, fitted: gp.Pipeline) -> None:
    whole = fitted.transform(flights)
    streamed = fitted.transform(gp.from_frame(flights, num_partitions=7)).compute()
    pd.testing.assert_frame_equal(whole, streamed)
    assert list(whole) == fitted.schema.names


@pytest.mark.slow
def test_the_program_fits_in_two_reads(weather: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.pipeline.fit.KEEP_BYTES", 0)
    flights = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20)
    assert flights.num_partitions > 2
    pipeline = flights_pipeline(weather).fit(flights)
    assert pipeline.fit_report is not None and pipeline.fit_report.num_reads <= 2
    assert flights.reads.passes <= 2


@pytest.mark.slow
def test_columns_a_later_pass_needs_are_kept_in_memory(weather: pd.DataFrame) -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20)
    kept = flights_pipeline(weather).fit(flights)
    assert kept.fit_report is not None and kept.fit_report.num_reads == 1
    assert flights.reads.passes == 1


def test_rows_without_a_target_are_left_out_of_fit_and_loader_and_counted(
    flights: pd.DataFrame, fitted: gp.Pipeline
) -> None:
    missing = int(flights["arr_delay"].isna().sum())
    assert missing > 0
    assert fitted.fit_report is not None and fitted.fit_report.num_without_target == missing
    assert fitted.loader(flights).num_rows == len(flights) - missing
    assert fitted.transform(flights)["target"].isna().sum() == missing


def test_what_is_learned_ignores_rows_without_a_target() -> None:
    frame = pd.DataFrame({"x": [1.0, 3.0, 1e9], "y": [0.0, 1.0, None]})
    pipeline = gp.Pipeline([], gp.Features(["x"], (["x"], pre.StandardScaler(), "scaled"), target="y > 0.5")).fit(frame)
    assert pipeline.transform(frame)["scaled_x"].tolist()[:2] == [-1.0, 1.0]


def test_the_block_is_the_transformed_frame(flights: pd.DataFrame, fitted: gp.Pipeline) -> None:
    frame = fitted.transform(flights).dropna(subset="target")
    batches = list(fitted.loader(flights, batch_size=1000))
    numeric = np.concatenate([batch.numeric.numpy() for batch in batches])
    codes = np.concatenate([batch.codes.numpy() for batch in batches])
    np.testing.assert_array_equal(numeric, frame[[f.name for f in fitted.schema.numeric]].to_numpy("float32"))
    np.testing.assert_array_equal(codes, frame[[f.name for f in fitted.schema.categorical]].to_numpy("int32"))
    np.testing.assert_array_equal(
        np.concatenate([batch.target.numpy() for batch in batches]), frame["target"].to_numpy()
    )
    hours = np.concatenate([batch.keep["time_hour"].numpy() for batch in batches])
    np.testing.assert_array_equal(hours, frame["time_hour"].to_numpy().astype("datetime64[us]").astype("int64"))


# labels ---------------------------------------------------------------------------------------------------------------


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "x": [1.0, 2.0, 3.0, 4.0],
            "late": [5.0, 20.0, None, 30.0],
            "w": [1.0, 2.0, 1.0, 0.5],
            "s": ["a", "b", "a", None],
        },
        index=[10, 20, 30, 40],
    )


@pytest.mark.parametrize("feature", ["late", "doubled", "mapped"])
def test_a_feature_that_reads_the_target_is_a_leak(feature: str) -> None:
    steps = [
        T.Derive(doubled="late * 2"),
        T.Map(lambda f: f.assign(mapped=f["late"].fillna(0.0)), reads=["late"], adds=["mapped"]),
    ]
    pipeline = gp.Pipeline(steps, gp.Features((["x", feature], pre.SimpleImputer()), target="late > 15"))
    with pytest.raises(errors.LeakageError, match=rf"feature '{feature}': it is computed from \['late'\]") as caught:
        pipeline.fit(frame())
    assert f"Features(allow_leak=['{feature}'])" in caught.value.remedy


def test_the_target_among_the_features_is_a_leak_not_a_name_that_is_there_twice() -> None:
    with raises(errors.LeakageError, where="feature 'late'"):
        gp.Pipeline([], gp.Features((["x", "late"], pre.SimpleImputer()), target="late")).fit(frame())


def test_a_leak_can_be_allowed() -> None:
    features = gp.Features((["late"], pre.SimpleImputer()), target="late > 15", allow_leak=["late"])
    assert gp.Pipeline([], features).fit(frame()).schema.names == ["late", "target"]


def test_a_function_without_reads_never_sees_labels() -> None:
    seen = []

    def note(given: pd.DataFrame) -> pd.DataFrame:
        seen.append(sorted(given))
        return given.assign(z=given["x"])

    pipeline = gp.Pipeline(
        [T.Derive(label="late > 15"), T.Map(note, adds=["z"])], gp.Features(["z"], target="label", weight="w")
    )
    pipeline.fit(frame())
    made = pipeline.transform(frame())
    assert made["target" if "target" in made else "label"].tolist()[:2] == [0.0, 1.0]
    assert all(columns == ["s", "x"] for columns in seen)
    assert pipeline.transform(frame()[["x", "s"]]).columns.tolist() == ["z"]


def test_a_function_without_adds_can_feed_features() -> None:
    step = T.Map(lambda given: given[["x"]].assign(q=given["x"] * 2))
    pipeline = gp.Pipeline([step], gp.Features((["q"], pre.StandardScaler()), target="late > 15")).fit(frame())
    assert list(pipeline.transform(frame())) == ["q", "target"]


def test_steps_after_a_function_know_the_types_it_makes() -> None:
    shout = T.Map(lambda given: given.assign(loud=given["s"] + "!"), reads=["s"], adds=["loud"])
    again = T.Map(lambda given: given.assign(twice=given["upper"]), reads=["upper"], adds=["twice"])
    steps = [shout, T.Derive(upper="upper(loud)"), again, T.Filter("twice in ['A!', 'B!']")]
    data = gp.from_frame(frame(), num_partitions=2)
    pipeline = gp.Pipeline(steps, gp.Features(["x"], (["upper"], pre.Categorify()), target="late > 15", keep=["loud"]))
    made = pipeline.fit(data).transform(frame())
    assert pipeline.schema["loud"].dtype == "string"
    assert made["loud"].tolist()[:2] == ["a!", "b!"]
    assert data.reads.passes == 1


def test_steps_after_a_function_that_replaces_the_frame() -> None:
    step = T.Map(lambda given: given[["x"]].assign(name=given["s"] + "!"))
    pipeline = gp.Pipeline([step, T.Derive(upper="upper(name)")], gp.Features((["upper"], pre.Categorify())))
    assert list(pipeline.fit(frame()).transform(frame())) == ["upper"]


def test_a_function_whose_first_partition_is_empty() -> None:
    step = T.Map(lambda given: given.assign(name=given["s"] + "!"), reads=["s"], adds=["name"])
    data = gp.from_frame(pd.concat([frame().assign(x=-1.0), frame()]), num_partitions=2).filter("x > 0")
    pipeline = gp.Pipeline([step], gp.Features((["name"], pre.Categorify()), target="late > 15")).fit(data)
    assert pipeline.fit_report is not None and pipeline.fit_report.num_rows == 4


def test_a_function_that_looks_at_a_label() -> None:
    step = T.Map(lambda given: given.assign(z=given["late"] * 2), adds=["z"])
    with raises(errors.LeakageError, where="Map(<lambda>)", match="looks at 'late'"):
        gp.Pipeline([step], gp.Features(["z"], target="late > 15")).fit(frame())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_for_the_block_where_there_is_none() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15")).fit(frame())
    with raises(errors.BackendMissing, where="device", got="cuda:1"):
        pipeline.loader(frame(), device="cuda:1")


def test_one_step_in_two_groups() -> None:
    step = pre.StandardScaler()
    with raises(errors.BadConfig, where="Features", got=["StandardScaler()", "StandardScaler()"]):
        gp.Features((["x"], step), (["w"], step))


def test_a_refit_that_fails_leaves_nothing_that_looks_fitted() -> None:
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="late > 15")).fit(frame())
    with pytest.raises(errors.BadData):
        pipeline.fit(frame().assign(late=np.nan))
    with pytest.raises(errors.NotFitted):
        pipeline.transform(frame())


def test_a_chain_of_derived_columns_on_no_rows() -> None:
    assert list(T.Derive(a="x + 1", b="a * 2").transform(frame().iloc[:0]))[-2:] == ["a", "b"]


@pytest.mark.parametrize("name", ["class", "delay time"])
def test_a_label_whose_name_is_no_expression(name: str) -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target=name)).fit(frame().rename(columns={"late": name}))
    assert list(pipeline.transform(frame()[["x"]])) == ["x"]


def test_other_columns_of_a_frame_do_not_meet_the_steps_names() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "v": [1.0, 2.0, 3.0, 4.0]})
    joined = gp.Pipeline([T.Join(table, on="x", many=True)], gp.Features(["v"])).fit(frame())
    assert joined.transform(frame().assign(v=5.0))["v"].tolist() == [1.0, 2.0, 3.0, 4.0]
    renamed = gp.Pipeline([T.Rename({"x": "y"})], gp.Features(["y"])).fit(frame())
    assert renamed.transform(frame().assign(y=5.0))["y"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_columns_nobody_reads_may_be_of_any_type() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15")).fit(frame())
    with_lists = frame().assign(tags=[[[1]], [[2]], [[3]], [[4]]])
    assert pipeline.transform(with_lists)["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    with raises(errors.SchemaMismatch, where="column 'x'", got="list<item: list<item: int64>>"):
        pipeline.transform(with_lists.drop(columns="x").rename(columns={"tags": "x"}))


def test_kept_columns_have_the_same_names_with_labels_and_without() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="w", keep=["x", "w", "s"])).fit(frame())
    assert list(pipeline.transform(frame())) == ["x", "w", "x_keep", "w_keep", "s"]
    assert list(pipeline.transform(frame()[["x", "s"]])) == ["x", "x_keep", "s"]


def test_a_kept_column_that_is_no_label_has_to_be_there() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15", keep=["s"])).fit(frame())
    with raises(errors.ColumnNotFound, where="the data", column="s"):
        pipeline.transform(frame()[["x"]])


def test_two_pipelines_share_nothing_they_learn() -> None:
    features = gp.Features((["x"], pre.StandardScaler()), target="late > 15")
    steps = [T.Map(lambda given: given.assign(y=given["x"]), reads=["x"], adds=["y"])]
    first = gp.Pipeline(steps, features).fit(frame())
    expected = first.transform(frame())
    gp.Pipeline(steps, features).fit(frame().assign(x=[7, 8, 9, 10]))
    pd.testing.assert_frame_equal(first.transform(frame()), expected)


def test_nothing_to_learn_is_said_so() -> None:
    assert str(gp.Pipeline([T.Derive(y="x + 1")]).fit(frame()).fit_report).startswith("nothing to learn")


def test_keeping_a_label_does_not_show_it_to_functions() -> None:
    step = T.Map(lambda given: given.assign(z=given["x"]))
    pipeline = gp.Pipeline([step], gp.Features(["z"], target="late > 15", keep=["late"])).fit(frame())
    assert list(pipeline.transform(frame())) == ["z", "target", "late"]


def test_transform_without_label_columns() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15", weight="w", keep=["s"])).fit(frame())
    assert list(pipeline.transform(frame())) == ["x", "target", "w", "s"]
    assert list(pipeline.transform(frame().drop(columns=["late", "w"]))) == ["x", "s"]


@pytest.mark.parametrize(
    ("target", "task", "stored"),
    [
        ("late > 15", "binary", [0.0, 1.0, 1.0]),
        ("s", "binary", [0.0, 1.0, 0.0]),
        ("late", "regression", [5.0, 20.0, 30.0]),
        ("int(x >= 3)", "binary", [0.0, 0.0, 1.0, 1.0]),
        ("int(x)", "regression", [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_the_task_follows_from_the_target(target: str, task: str, stored: list[float]) -> None:
    pipeline = gp.Pipeline([], gp.Features(["w"], target=target, target_transform=None)).fit(frame())
    assert pipeline.schema.task == task
    batch = next(iter(pipeline.loader(frame())))
    assert batch.target.tolist() == stored


def test_weights_travel(flights: pd.DataFrame) -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15", weight="w * 2")).fit(frame())
    assert next(iter(pipeline.loader(frame()))).weight.tolist() == [2.0, 4.0, 1.0]


@pytest.mark.parametrize("weight", ["w - 1.5", "late", "w / 0"])
def test_a_bad_weight_is_named(weight: str) -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="s", weight=weight)).fit(frame().fillna({"s": "a"}))
    with pytest.raises(errors.BadData, match="weights are negative, infinite or missing"):
        pipeline.loader(frame().fillna({"s": "a"}))


def test_the_remedy_for_a_bad_weight_works_for_any_name() -> None:
    rows = frame().fillna({"s": "a"}).assign(**{"a.b": [-1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(errors.BadData) as caught:
        gp.Pipeline([], gp.Features(["x"], target="s", weight="a.b")).fit(rows).loader(rows)
    weight = eval(caught.value.remedy.removeprefix("weight=").removesuffix(" or a Filter"))
    assert gp.Pipeline([], gp.Features(["x"], target="s", weight=weight)).fit(rows).loader(rows) is not None


# predictions ----------------------------------------------------------------------------------------------------------
def test_a_kept_column_that_is_a_feature_too_has_its_own_name_in_predictions() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15", keep=["x", "s"])).fit(frame())
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,)))
    assert list(scorer.predict(frame())) == ["prediction", "x", "s"]
    assert scorer.predict_proba(gp.from_frame(frame())).compute()["x"].tolist() == frame()["x"].tolist()


def test_a_kept_column_named_like_a_prediction() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late > 15", keep=["probability", "prediction"]))
    data = frame().assign(probability="p", prediction="q")
    model = gp.models.MLP.from_schema(pipeline.fit(data).schema, hidden=(4,))
    scorer = gp.Scorer(pipeline, model)
    assert list(scorer.predict(data)) == ["prediction", "probability", "prediction_keep"]
    made = scorer.predict_proba(gp.from_frame(data)).compute()
    assert list(made) == ["probability", "probability_keep", "prediction"]
    assert made["probability"].dtype == "float32"
    assert made["probability_keep"].tolist() == ["p"] * 4


# rows -----------------------------------------------------------------------------------------------------------------


def test_a_filter_acts_in_fit_transform_and_loader_and_keeps_the_index() -> None:
    pipeline = gp.Pipeline([T.Filter("x >= 2")], gp.Features(["x"], target="s")).fit(frame())
    assert pipeline.fit_report is not None and pipeline.fit_report.num_rows == 3
    assert pipeline.transform(frame()).index.tolist() == [20, 30, 40]
    assert pipeline.loader(frame()).num_rows == 2


def test_only_the_columns_that_are_needed_are_read() -> None:
    data = gp.from_frame(frame(), num_partitions=2)
    pipeline = gp.Pipeline([T.Derive(y="x + 1", unread="w * 2")], gp.Features(["y"], target="s"))
    pipeline.fit(data)
    assert pipeline._bind_to(data).reads == ["x", "s"]


# bad input ------------------------------------------------------------------------------------------------------------


def test_no_rows_with_a_target() -> None:
    with raises(errors.BadData, where="target 'late > 15'", match="none of 4 rows"):
        gp.Pipeline([], gp.Features(["x"], target="late > 15")).fit(frame().assign(late=np.nan))


def test_one_class_only() -> None:
    with raises(errors.BadData, where="target 'late > 150'", got=False):
        gp.Pipeline([], gp.Features(["x"], target="late > 150")).fit(frame())


def test_a_missing_value_that_would_reach_the_block_names_the_column() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], target="s")).fit(frame())
    with raises(errors.BadData, where="column 'x'") as caught:
        pipeline.loader(frame().assign(x=np.nan))
    assert "SimpleImputer" in caught.value.remedy


@pytest.mark.parametrize(("column", "hint"), [("s", "Categorify"), ("t", "hour")])
def test_text_and_times_are_no_features(column: str, hint: str) -> None:
    data = frame().assign(t=pd.Timestamp("2013-01-01"))
    with pytest.raises(errors.SchemaMismatch, match=f"feature '{column}'.*cannot be fed to a network") as caught:
        gp.Pipeline([], gp.Features([column], target="late > 15")).fit(data)
    assert hint in caught.value.remedy


def test_two_outputs_of_one_name() -> None:
    with raises(errors.BadConfig, where="Features", got="x") as caught:
        gp.Pipeline([], gp.Features(["x"], (["x"], pre.StandardScaler()))).fit(frame())
    assert "name" in caught.value.remedy


def test_transform_before_fit() -> None:
    with pytest.raises(errors.NotFitted, match="it has not been fitted"):
        gp.Pipeline([], gp.Features(["x"])).transform(frame())


def test_features_and_steps_that_were_not_in_the_fit() -> None:
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()))).fit(frame())
    for name, part in (("features", gp.Features((["x"], pre.StandardScaler()))), ("steps", [T.Drop("x")])):
        setattr(pipeline, name, part)
        with raises(errors.NotFitted, where="Pipeline"):
            pipeline.transform(frame())
        setattr(pipeline, name, [] if name == "steps" else part)
        pipeline.fit(frame()).transform(frame())
    with raises(errors.BadConfig, where="Pipeline(features=)"):
        pipeline.features = "x"  # type: ignore[assignment]


@pytest.mark.parametrize("name", ["target", "weight", "task", "target_transform"])
def test_labels_are_not_set_afterwards(name: str) -> None:
    features = gp.Features(["x"], target="y", weight="w")
    with raises(errors.BadConfig, where=f"Features.{name} = ...", remedy=f"gp.Features(..., {name}='z')"):
        setattr(features, name, "z")
    assert "target='y'" in repr(features)


def test_a_learned_step_among_the_transforms() -> None:
    with pytest.raises(errors.BadConfig, match="a step is no transform"):
        gp.Pipeline([pre.StandardScaler()])  # type: ignore[list-item]


def test_an_empty_dataset() -> None:
    with pytest.raises(errors.BadData):
        gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="late > 15")).fit(frame().iloc[:0])


def test_a_failing_function_names_its_partition() -> None:
    def fail(given: pd.DataFrame) -> pd.DataFrame:
        raise ZeroDivisionError("oh")

    pipeline = gp.Pipeline([T.Map(fail, reads=["x"], adds=["z"])], gp.Features(["z"]))
    with pytest.raises(errors.PartitionFailed, match=r"partition 0 failed in step Map.*\(ZeroDivisionError: oh\)"):
        pipeline.fit(frame())


def test_explain_tells_what_is_read_and_how_much_memory_it_takes(flights: pd.DataFrame, weather: pd.DataFrame) -> None:
    told = flights_pipeline(weather).explain(gp.from_frame(flights, num_partitions=2)).splitlines()[-3:]
    assert "arr_delay" in told[0] and "tailnum" not in told[0]
    assert "tailnum" in told[1]
    assert f"up to {-(-len(flights) // 2):,} rows" in told[2]


def test_explain_shows_the_passes(weather: pd.DataFrame) -> None:
    assert flights_pipeline(weather).explain().splitlines() == [
        "pass 1: SimpleImputer + StandardScaler of dep_delay, distance",
        "pass 1: SimpleImputer + StandardScaler of temp, dewp, humid, wind_speed",
        "pass 1: SimpleImputer + KMeans of temp, wind_speed",
        "pass 1: Categorify of carrier, origin, dest",
        "pass 1: SimpleImputer of storm",
        "pass 2: PCA of temp, dewp, humid, wind_speed",
        "sampled: KMeans of temp, wind_speed learns from at most 1,000,000 rows, gathered in memory",
    ]
