"""A pipeline that learns from the target: which rows get what, that no row sees its own, and that nobody is fooled."""

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
from tests.raising import raises


def flights(rows: int = 900, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    delay = np.where(rng.random(rows) < 0.05, np.nan, rng.normal(10, 30, rows))
    return pd.DataFrame(
        {"origin": rng.choice(["JFK", "LGA", "EWR"], rows), "hour": rng.integers(0, 24, rows), "arr_delay": delay}
    )


def features(target: Any = "arr_delay > 15", **more: Any) -> gp.Features:
    return gp.Features((["origin", "hour"], [pre.TargetEncoder(smooth=5)]), target=target, **more)


def encoder(pipeline: gp.Pipeline) -> pre.TargetEncoder:
    assert pipeline.features is not None
    step = pipeline.features.groups[0].steps[0]
    assert isinstance(step, pre.TargetEncoder)
    return step


def test_fit_transform_is_out_of_fold_and_transform_is_not() -> None:
    train = flights()
    pipeline = gp.Pipeline([], features())
    found = pipeline.fit_transform(train)
    there = train["arr_delay"].notna().to_numpy()
    y = (train["arr_delay"] > 15).to_numpy()
    step = pre.TargetEncoder(smooth=5).fit(train.loc[there, ["origin", "hour"]], y[there])
    np.testing.assert_allclose(pipeline.transform(train)[["origin", "hour"]], step.transform(train), rtol=1e-6)
    folds = step.folds(np.arange(len(train)), np)
    for fold in range(5):
        rest = there & (folds != fold)
        alone = pre.TargetEncoder(smooth=5).fit(train.loc[rest, ["origin", "hour"]], y[rest])
        here = folds == fold
        np.testing.assert_allclose(
            found.loc[here, ["origin", "hour"]], alone.transform(train[here]), rtol=1e-6, atol=1e-7
        )
    assert list(found) == ["origin", "hour", "target"]


def test_the_loader_of_the_fitted_rows_has_the_same_values() -> None:
    train = flights()
    pipeline = gp.Pipeline([], features())
    wanted = pipeline.fit_transform(train)[train["arr_delay"].notna()]
    for data in (train, gp.from_frame(train, num_partitions=4), train.assign(extra=1)):
        block = pipeline.loader(data, out_of_fold=True).table
        np.testing.assert_array_equal(block.numeric.numpy(), wanted[["origin", "hour"]].to_numpy())
    assert (pipeline.loader(train, out_of_fold=False).table.numeric.numpy() != wanted[["origin", "hour"]]).any(
        axis=None
    )


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_the_same_for_any_partitioning(parts: int) -> None:
    train = flights()
    wanted = gp.Pipeline([], features()).fit_transform(train)
    pipeline = gp.Pipeline([], features())
    found = pipeline.fit_transform(gp.from_frame(train, num_partitions=parts)).compute()
    pd.testing.assert_frame_equal(found, wanted.reset_index(drop=True), rtol=1e-6)
    split = gp.from_frame(train, num_partitions=parts).filter("hour < 20").split(fraction=0.7)[0]
    whole = gp.from_frame(train).filter("hour < 20").split(fraction=0.7)[0]
    a, b = (gp.Pipeline([T.Filter("hour > 3")], features()).fit_transform(d).compute() for d in (split, whole))
    pd.testing.assert_frame_equal(a, b, rtol=1e-6)


def test_the_rows_of_the_fit_are_not_trained_on_by_accident() -> None:
    train = flights()
    pipeline = gp.Pipeline([], features()).fit(train)
    for data in (train, train.copy(), gp.from_frame(train, num_partitions=3)):
        with pytest.raises(errors.LeakageError, match="the rows the pipeline was fitted on") as caught:
            pipeline.loader(data)
        assert "out_of_fold=True" in caught.value.remedy
    assert pipeline.loader(train, out_of_fold=False).num_rows == pipeline.loader(train, out_of_fold=True).num_rows


def test_files_are_known_again_without_a_look_inside(tmp_path: Path) -> None:
    gp.from_frame(flights()).write_parquet(tmp_path / "flights")
    data = gp.read_parquet(tmp_path / "flights").filter("hour > 3")
    pipeline = gp.Pipeline([], features()).fit(data)
    again = gp.read_parquet(tmp_path / "flights", partition_bytes=1).filter("hour > 3")
    with pytest.raises(errors.LeakageError):
        pipeline.loader(again)
    assert again.reads.passes == 0
    assert pipeline.loader(again, out_of_fold=True).num_rows == pipeline.loader(data, out_of_fold=True).num_rows
    with pytest.raises(errors.LeakageError, match="of the table"):  # the rows of the fit are among them
        pipeline.loader(gp.read_parquet(tmp_path / "flights"))
    assert pipeline.loader(gp.read_parquet(tmp_path / "flights").filter("hour <= 3")).num_rows


def test_other_rows_have_no_folds() -> None:
    train = flights()
    pipeline = gp.Pipeline([], features()).fit(train)
    with raises(errors.BadConfig, where="loader(out_of_fold=True)"):
        pipeline.loader(flights(seed=1), out_of_fold=True)
    with raises(errors.BadConfig, where="loader(out_of_fold=True)"):
        pipeline.loader(train.iloc[::-1], out_of_fold=True)
    with raises(errors.BadConfig, where="loader(out_of_fold=True)"):
        pipeline.loader(gp.from_frame(train).filter("hour > 3"), out_of_fold=True)
    valid = pipeline.loader(flights(seed=1))
    np.testing.assert_array_equal(
        valid.table.numeric.numpy(),
        pipeline.transform(flights(seed=1).dropna())[["origin", "hour"]].to_numpy(),
    )


@pytest.mark.slow
def test_steps_after_it_are_fitted_on_what_a_model_will_see() -> None:
    train = flights()
    chain = [pre.TargetEncoder(smooth=0, cv=2), pre.StandardScaler()]
    pipeline = gp.Pipeline([], gp.Features((["hour"], chain), target="arr_delay"))
    found = pipeline.fit_transform(train)["hour"][train["arr_delay"].notna()]
    assert abs(found.mean()) < 1e-6 and abs(found.std(ddof=0) - 1) < 1e-6


def test_it_predicts_without_labels_and_after_a_file(tmp_path: Path) -> None:
    train = flights()
    pipeline = gp.Pipeline([], features()).fit(train)
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1)
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run")
    found = scorer.predict_proba(train[["origin", "hour"]])
    assert len(found) == len(train)
    pd.testing.assert_frame_equal(found, scorer.predict_proba(train))
    pd.testing.assert_frame_equal(scorer.pipeline.transform(train), pipeline.transform(train))
    with pytest.raises(errors.LeakageError):
        scorer.pipeline.loader(train)
    with pytest.raises(errors.NotFitted, match="single folds"):
        scorer.pipeline.loader(train, out_of_fold=True)
    assert scorer.pipeline.loader(flights(seed=4)).num_rows


def test_what_it_learns_is_no_lineage_but_the_column_is() -> None:
    train = flights()
    pipeline = gp.Pipeline([], features()).fit(train)
    assert pipeline.schema["origin"].lineage == {"origin"}
    late = gp.Pipeline(
        [T.Derive(late="arr_delay > 60")], gp.Features((["late"], pre.TargetEncoder()), target="arr_delay")
    )
    with raises(errors.LeakageError, where="feature 'late'"):
        late.fit(train)


def test_without_a_target_it_says_so() -> None:
    with pytest.raises(errors.BadConfig, match="TargetEncoder: there is no target"):
        gp.Features((["origin"], pre.TargetEncoder()))


def test_several_targets_and_classes_name_the_outputs() -> None:
    train = flights().dropna().assign(air=lambda f: f["hour"] * 2.0, kind=lambda f: f["hour"].map(str).str[0])
    two = gp.Pipeline([], features(["arr_delay", "air"])).fit(train)
    assert two.schema.names == ["origin_arr_delay", "origin_air", "hour_arr_delay", "hour_air", "arr_delay", "air"]
    many = gp.Pipeline([], gp.Features((["origin"], pre.TargetEncoder(smooth=2)), target="kind")).fit(train)
    assert many.schema.names[:-1] == [f"origin_{one}" for one in sorted(train["kind"].unique())]
    totals = many.transform(train).iloc[:, :-1].sum(axis=1)
    np.testing.assert_allclose(totals, 1.0, rtol=1e-6)


def test_a_refit_forgets() -> None:
    train, other = flights(), flights(seed=5)
    pipeline = gp.Pipeline([], features()).fit(train).fit(other)
    assert pipeline.loader(train).num_rows
    with pytest.raises(errors.LeakageError):
        pipeline.loader(other)
    assert encoder(pipeline).names_in_ == ["origin", "hour"]


def test_a_scorer_is_judged_by_rows_that_were_left_out(tmp_path: Path) -> None:
    train = gp.from_frame(flights())
    pipeline = gp.Pipeline([], features()).fit(train)
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1))
    gp.save(tmp_path / "run", pipeline, scorer.model)
    with raises(errors.LeakageError, where="calibrate") as caught:
        gp.calibrate(scorer, train)
    assert caught.value.remedy == "train, calibration = data.split(0.8) before a fit on train, and calibration here"
    with raises(errors.LeakageError, where="evaluate") as caught:
        scorer.evaluate(train)
    left_out, _, out_of_fold = caught.value.remedy.partition("; or ")
    assert left_out == "train, valid = data.split(0.8) before a fit on train, and valid here"
    assert eval(out_of_fold).num_rows == pipeline.loader(train, out_of_fold=True).num_rows
    for judged, data in ((scorer, train.filter("hour > 3")), (gp.load(tmp_path / "run"), train)):  # without folds
        with raises(errors.LeakageError, where="evaluate", remedy=left_out):
            judged.evaluate(data)
    learned, valid = train.split(0.8)
    pipeline = gp.Pipeline([], features()).fit(learned)
    scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1))
    assert gp.calibrate(scorer, valid).evaluate(valid).num_rows > 0
