"""Which rows stay: those without gaps, and a sample that depends on no partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.raising import raises

ROWS = pd.DataFrame({"row": range(5000), "x": np.random.default_rng(0).normal(size=5000)})


def gaps(values: st.SearchStrategy[object], dtype: str) -> st.SearchStrategy[pd.Series]:
    column = st.lists(st.none() | values, min_size=6, max_size=6)
    return column.map(lambda made: pd.Series(made, dtype=dtype))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    gaps(st.floats(-9, 9), "float64"),
    gaps(st.integers(-9, 9), "Int64"),
    gaps(st.sampled_from(["a", ""]), "str"),
    st.sampled_from(["any", "all"]),
    st.sampled_from([None, ["x"], ["n", "s"]]),
)
def test_what_stays_is_pandas(x: pd.Series, n: pd.Series, s: pd.Series, how: str, columns: list[str] | None) -> None:
    frame = pd.DataFrame({"x": x, "n": n, "s": s, "whole": 1}, index=list("abcdef"))
    wanted = frame.dropna(how=how, subset=columns)
    made = T.DropMissing(columns, how=how).transform(frame)
    assert made.index.tolist() == wanted.index.tolist()


def test_a_row_with_something_there_stays() -> None:
    """`whole` has no mask, so no row is missing everywhere; an infinity is no gap."""
    frame = pd.DataFrame({"x": [np.nan, np.inf], "whole": [1, 2]})
    assert len(T.DropMissing(how="all").transform(frame)) == 2
    assert T.DropMissing().transform(frame)["x"].tolist() == [np.inf]


def test_what_makes_no_sense_is_refused() -> None:
    for call in (
        lambda: T.DropMissing(how="some"),
        lambda: T.DropMissing(when="never"),
        lambda: T.Filter("x > 0", when="predict"),
        lambda: T.Sample(0.0),
        lambda: T.Sample(1.5),
        lambda: T.Sample(float("nan")),
        lambda: T.Sample(0.5, when="test"),
        lambda: T.DropMissing([]).transform(ROWS),
    ):
        with pytest.raises(errors.BadConfig):
            call()
    with raises(errors.ColumnNotFound, where="DropMissing", column="y"):
        T.DropMissing("y").transform(ROWS)


def rows_of(data: object, *steps: T.Transform) -> list[int]:
    made = gp.Pipeline(list(steps)).fit(data).transform(data)
    return sorted((made.compute() if isinstance(made, gp.Dataset) else made)["row"].tolist())


def test_a_sample_depends_on_no_partition(tmp_path: Path) -> None:
    step = T.Sample(0.2, seed=5)
    wanted = step.transform(ROWS)["row"].tolist()
    assert abs(len(wanted) / len(ROWS) - 0.2) < 0.02
    assert rows_of(ROWS, step) == wanted
    for parts in (1, 2, 7, 16):
        assert rows_of(gp.from_frame(ROWS, num_partitions=parts), step) == wanted
    gp.from_frame(ROWS).write_parquet(tmp_path / "rows.parquet", rows_per_group=300)
    for size in (1000, 10_000, 1 << 30):
        assert rows_of(gp.read_parquet(tmp_path / "rows.parquet", partition_bytes=size), step) == wanted


def test_a_sample_is_of_rows_not_of_what_is_left_of_them() -> None:
    """A filter before it, in the dataset or in the pipeline, moves no row in or out."""
    drawn = set(rows_of(ROWS, T.Sample(0.4)))
    wanted = sorted(drawn & set(ROWS["row"][ROWS["x"] > 0]))
    assert rows_of(ROWS, T.Filter("x > 0"), T.Sample(0.4)) == wanted
    assert rows_of(gp.from_frame(ROWS, num_partitions=3).filter("x > 0"), T.Sample(0.4)) == wanted
    assert rows_of(gp.from_frame(ROWS, num_partitions=3), T.Sample(0.4), T.Filter("x > 0")) == wanted


def test_samples_are_independent_of_splits_and_of_one_another() -> None:
    left, right = gp.from_frame(ROWS).split(fraction=0.5)
    for part in (left, right):
        assert abs(len(rows_of(part, T.Sample(0.5))) / len(part) - 0.5) < 0.05
    both = set(rows_of(ROWS, T.Sample(0.5, seed=1))) & set(rows_of(ROWS, T.Sample(0.5, seed=2)))
    assert abs(len(both) / len(ROWS) - 0.25) < 0.03
    assert rows_of(ROWS, T.Sample(0.5), T.Sample(0.5)) == rows_of(ROWS, T.Sample(0.5))
    assert rows_of(ROWS, T.Sample(1.0)) == ROWS["row"].tolist()


def test_fit_loader_and_transform_see_the_same_sample() -> None:
    step = T.Sample(0.3, seed=1)
    kept = step.transform(ROWS)
    data = gp.from_frame(ROWS, num_partitions=7)
    pipeline = gp.Pipeline([step], gp.Features(("x", pre.StandardScaler()), keep="row")).fit(data)
    assert pipeline.fit_report.num_rows == len(kept)
    scaler = pipeline.features.groups[0].steps[0]
    assert abs(scaler.mean_[0] - kept["x"].mean()) < 1e-12
    assert pipeline.loader(data).num_rows == len(kept)
    assert pipeline.transform(data).compute()["row"].tolist() == kept["row"].tolist()


def test_predictions_are_for_every_row_unless_asked(tmp_path: Path) -> None:
    frame = ROWS.assign(x=ROWS["x"].mask(ROWS["row"] % 3 == 0))
    for when in ("train", "always"):
        steps = [T.DropMissing("x", when=when), T.Sample(0.5, when=when)]
        fitted = gp.Pipeline(steps, gp.Features("x", keep="row")).fit(frame)
        run = fitted._bind_to(frame, predicting=True)
        made = run.run_on(frame, run.apply, run.schema, "cpu", lambda: None)
        wanted = len(frame) if when == "train" else len(fitted.transform(frame))
        assert len(made) == wanted
    assert len(fitted.transform(frame)) < 0.4 * len(frame)
