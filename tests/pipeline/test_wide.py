"""Tables of many columns: worked on as one matrix, with the results of single columns, and told in short."""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from inspect import CO_GENERATOR
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import selectors as sel
from gpupipe import transforms as T
from gpupipe.backend import Column, Matrix, kernels, select
from gpupipe.backend.cpu import CpuBackend
from gpupipe.backend.histogram import Histogram
from gpupipe.backend.kernels import compute_moments
from gpupipe.monitoring.profile import Profiles, Sample, draw_rows
from gpupipe.preprocessing.learned_step import tabulate
from gpupipe.preprocessing.summaries import Moments
from gpupipe.schema import Field
from gpupipe.support.text import format_columns, html_table, text_table

CHAINS: dict[str, Callable[[], list[pre.LearnedStep]]] = {
    "mean": lambda: [pre.SimpleImputer(), pre.StandardScaler()],
    "median": lambda: [pre.SimpleImputer(strategy="median"), pre.MinMaxScaler(clip=True)],
    "indicators": lambda: [pre.SimpleImputer(add_indicator=True)],
    "most frequent": lambda: [pre.SimpleImputer(strategy="most_frequent"), pre.MaxAbsScaler()],
    "constant": lambda: [pre.SimpleImputer(strategy="constant", fill_value=2), pre.RobustScaler()],
    "only scaled": lambda: [pre.StandardScaler()],
    "logarithm": lambda: [pre.Log1p(), pre.SimpleImputer(), pre.StandardScaler()],
    "components": lambda: [pre.SimpleImputer(), pre.StandardScaler(), pre.PCA(3)],
    "rows": lambda: [pre.SimpleImputer(), pre.Normalizer()],
    "bins": lambda: [pre.SimpleImputer(), pre.KBinsDiscretizer(3)],
}
WIDTH = 70


def table(rows: int, *, columns: int = WIDTH, seed: int = 0, dtype: str = "float64") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    values = np.abs(rng.standard_normal((rows, columns)) * rng.integers(1, 1000, columns)).astype(dtype)
    values[rng.random(values.shape) < 0.1] = np.nan
    values[:1] = 1.0  # a value in each column
    return pd.DataFrame(values, columns=[f"x{place}" for place in range(columns)])


def pipeline(steps: list[pre.LearnedStep], **options: Any) -> gp.Pipeline:
    return gp.Pipeline([], gp.Features((sel.numeric(), steps), **options), backend="cpu")


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(CpuBackend, "matrix", lambda *_: None)


def state(made: gp.Pipeline) -> list[dict[str, Any]]:
    assert made.features is not None
    return [step.get_state() for group in made.features.groups for step in group.steps]


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


# the same results -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("num_partitions", [1, 3])
def test_a_matrix_gives_what_single_columns_give(
    chain: str, dtype: str, num_partitions: int, one_by_one: Callable[[], None]
) -> None:
    frame, other = table(150, dtype=dtype), table(40, seed=1, dtype=dtype)
    before = frame.copy()
    data = gp.from_frame(frame, num_partitions=num_partitions)
    matrix = pipeline(CHAINS[chain]()).fit(data)
    made = matrix.transform(other)
    pd.testing.assert_frame_equal(frame, before)
    one_by_one()
    single = pipeline(CHAINS[chain]()).fit(gp.from_frame(frame, num_partitions=num_partitions))
    pd.testing.assert_frame_equal(made, single.transform(other), check_exact=True)
    assert_same(state(matrix), state(single))
    assert matrix.profiles == single.profiles
    assert matrix.schema == single.schema and matrix.schema.ranges == single.schema.ranges


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 30),
    columns=st.integers(1, 40),
    seed=st.integers(0, 9),
    across=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_what_is_counted_of_a_matrix(rows: int, columns: int, seed: int, across: bool, dtype: str) -> None:
    """Bit for bit, whichever way the numbers lie."""
    frame, backend = table(rows, columns=columns, seed=seed, dtype=dtype), select("cpu")
    values = frame.to_numpy().T
    matrix = Matrix(list(frame), values if across else np.ascontiguousarray(values))
    single = {name: Column(dtype, np.ascontiguousarray(values[place])) for place, name in enumerate(frame)}
    if rows:
        one, other = (pre.StandardScaler().summarize(given, backend) for given in (matrix, single))
        for name in ("count", "mean", "m2"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        imputer = pre.SimpleImputer().finalize(other)
        scaler = pre.MinMaxScaler(feature_range=(-1, 2)).finalize(one)
        for step in (imputer, scaler):
            made, expected = step.transform_columns(matrix, backend), step.transform_columns(single, backend)
            assert isinstance(made, Matrix) and list(made) == list(expected)
            for name in expected:
                np.testing.assert_array_equal(made[name].data, expected[name].data)
                assert made[name].dtype == expected[name].dtype
    centres = [1.0] * columns
    from_matrix = tabulate(matrix, compute_moments, 5, backend, centres)
    np.testing.assert_array_equal(from_matrix, tabulate(single, compute_moments, 5, backend, centres))


@pytest.mark.parametrize("kind", ["inf", "missing"])
def test_what_is_refused_names_the_same_column(kind: str, one_by_one: Callable[[], None]) -> None:
    frame, made, told = table(50), pipeline(CHAINS["mean"]()).fit(table(50)), []
    if kind == "inf":
        frame.loc[3, "x7"] = np.inf
    else:
        frame["x7"] = np.nan
    for alone in (False, True):
        if alone:
            one_by_one()
        with pytest.raises(gp.errors.BadData) as caught:
            made.transform(frame) if kind == "inf" else pipeline(CHAINS["mean"]()).fit(frame)
        told.append((caught.value.where, caught.value.problem, caught.value.remedy))
    assert told[0] == told[1] and "x7" in told[0][0]


def mixed() -> pd.DataFrame:
    frame = table(60)
    frame.insert(5, "city", pd.Series(["Oslo", None, "Rome"] * 20))
    frame.insert(30, "count", pd.Series([1, None, 3] * 20, dtype="Int64"))
    frame["when"] = pd.date_range("2024-01-01", periods=60)
    frame["late"] = np.arange(60) % 2 == 0
    frame.columns.name = "columns"
    frame.index = pd.Index(np.arange(60) * 2, name="row")
    return frame


def test_a_few_columns_of_other_types_among_many(one_by_one: Callable[[], None]) -> None:
    features = gp.Features(
        (sel.glob("x*"), CHAINS["mean"]()),
        (["city"], pre.Categorify()),
        (["count"], pre.SimpleImputer()),
        target="late",
        keep=["when", "city"],
    )
    frame = mixed()
    before, matrix = frame.copy(), gp.Pipeline([], features, backend="cpu").fit(frame)
    made = matrix.transform(frame)
    pd.testing.assert_frame_equal(frame, before)
    assert made.index.equals(frame.index)
    one_by_one()
    expected = gp.Pipeline([], features, backend="cpu").fit(frame).transform(frame)
    pd.testing.assert_frame_equal(made, expected, check_exact=True)
    pd.testing.assert_frame_equal(
        gp.from_frame(frame).compute(), frame.reset_index(drop=True).rename_axis(columns=None)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [["y", "x0"], ["x3", "x4", "x5"], ["x1", "x0"], ["x0", "z"], [f"x{n}" for n in range(70)]]
)
def test_columns_are_chosen_from_many(names: list[str]) -> None:
    frame, backend = table(50_000, columns=100).assign(y=1), select("cpu")
    coded = backend.encode(frame)
    if "z" in names:
        with pytest.raises(KeyError):
            backend.select(coded, names)
        return
    found = backend.select(coded, names)
    pd.testing.assert_frame_equal(found, frame[names])
    many = backend.select(coded, ["y", *list(frame)[:80]])
    pd.testing.assert_frame_equal(many, frame[["y", *list(frame)[:80]]])
    shared = backend.matrix(coded, list(frame)[20:60])
    assert shared is not None and np.shares_memory(shared.data, coded["x20"].to_numpy())
    assert backend.matrix(coded, list(frame)[60:20:-1]) is None  # too much to copy
    small = backend.matrix(coded.iloc[:100], list(frame)[60:20:-1])
    assert small is not None and small["x30"].data.tolist() == pytest.approx(frame["x30"][:100].tolist(), nan_ok=True)


def test_a_result_is_nobody_elses() -> None:
    frame, made = table(50), gp.Pipeline([], backend="cpu").fit(table(50))
    for run in (made, pipeline([pre.SimpleImputer(strategy="constant")]).fit(frame)):
        before, result = frame.copy(), run.transform(frame)
        result.iloc[:, :] = -1.0
        pd.testing.assert_frame_equal(frame, before)


def test_two_columns_of_one_name_are_refused() -> None:
    frame = table(5)
    frame.columns = ["x1", *frame.columns[1:]]
    with pytest.raises(gp.errors.SchemaMismatch) as caught:
        gp.from_frame(frame)
    assert caught.value.got == ["x1"]


# what makes it fast ---------------------------------------------------------------------------------------------------
def calls(function: Callable[[], Any]) -> int:
    """Functions that are called; to go on with a generator is no call."""
    found: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        generator = event == "call" and frame.f_code.co_flags & CO_GENERATOR
        found[event if not generator else "generator"] += 1

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found["call"]


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["mean", "only scaled", "components"])
def test_one_row_takes_as_many_calls_whatever_the_columns(chain: str) -> None:
    numbers = []
    for columns in (100, 400):
        frame = table(60, columns=columns)
        if chain == "only scaled":
            frame = frame.fillna(0.0)
        made, row = pipeline(CHAINS[chain]()).fit(frame), frame.iloc[:1]
        made.transform(row)
        numbers.append(calls(lambda made=made, row=row: made.transform(row)))  # type: ignore[misc]
    assert numbers[1] - numbers[0] < 60


@pytest.mark.slow
def test_a_fit_takes_as_many_loops_whatever_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    for columns in (300, 600):  # too many for edges of bins
        with monkeypatch.context() as patch:
            found: Counter[str] = Counter()
            for name in ("_sum_blocks", "_scale_rows", "_fill_rows"):
                patch.setattr(kernels, name, _counting(getattr(kernels, name), found))
            frame = table(60, columns=columns)
            pipeline(CHAINS["mean"]()).fit(frame).transform(frame)
            numbers.append(sum(found.values()))
    assert numbers[0] == numbers[1] < 12


class OtherScaler(pre.StandardScaler):
    def summarize(self, columns: Any, backend: Any) -> Any:
        return super().summarize(columns, backend)


@pytest.mark.parametrize(
    ("steps", "times"),
    [
        ([pre.SimpleImputer(), pre.StandardScaler()], 1),
        ([pre.Log1p(), pre.SimpleImputer(), pre.StandardScaler()], 1),
        ([pre.SimpleImputer(), OtherScaler()], 2),
        ([pre.SimpleImputer(strategy="median"), pre.StandardScaler()], 1),
    ],
)
def test_moments_are_summed_once(steps: Any, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    original = Moments.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Moments, "of", classmethod(lambda cls, *given: found.append(1) or original(cls, *given)))  # type: ignore[func-returns-value]
    pipeline(steps).fit(table(60, columns=20))
    assert len(found) == times


def _counting(function: Callable[..., Any], found: Counter[str]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        found[function.__name__] += 1
        return function(*given)

    return counted


# what does not depend on the rows is kept -----------------------------------------------------------------------------
@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets a number each time a pipeline is bound to columns anew."""
    made: list[int] = []
    original = gp.Features._output_schema

    def counted(self: gp.Features, *given: Any, **options: Any) -> Any:
        made.append(1)
        return original(self, *given, **options)

    monkeypatch.setattr(gp.Features, "_output_schema", counted)
    return made


def flights() -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(40.0), "late": np.arange(40) % 2, "more": np.ones(40)})


def test_a_pipeline_is_bound_once_to_the_same_columns(bound: list[int]) -> None:
    frame = flights()
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="late"), backend="cpu").fit(frame)
    first = made.transform(frame)
    bound.clear()
    pd.testing.assert_frame_equal(made.transform(frame), first)
    assert not bound
    assert list(made.transform(frame.drop(columns="late"))) == ["x"] and bound
    bound.clear()
    assert list(made.transform(frame)) == ["x", "late"] and not bound


def test_what_is_learned_anew_is_seen(bound: list[int]) -> None:
    frame = flights()
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="late"), backend="cpu").fit(frame)
    made.transform(frame)
    other = frame.assign(x=frame["x"] * 2)
    made.fit(other)
    assert made.transform(frame)["x"].iloc[-1] == pytest.approx(made.transform(other)["x"].iloc[19], abs=0.1)
    assert made.features is not None
    step = made.features.groups[0].steps[0]
    moved = frame.assign(x=frame["x"] + 100)
    step.fit(moved[["x"]])
    assert made.transform(moved)["x"].mean() == pytest.approx(0, abs=1e-6)
    made.features.keep.append("more")
    assert "more" in made.transform(frame)


def test_outputs_that_change_with_a_fit_are_seen() -> None:
    frame = pd.DataFrame({"kind": ["a", "b", "a"], "x": [1.0, 2.0, 3.0]})
    encoder = pre.OneHotEncoder(handle_unknown="ignore")
    made = gp.Pipeline([T.Derive(y="x + 1")], gp.Features((["kind"], encoder), ["y"]), backend="cpu")
    assert list(made.fit(frame).transform(frame)) == ["kind_a", "kind_b", "y"]
    made.fit(frame.assign(kind="c"))
    assert list(made.transform(frame)) == ["kind_c", "y"]
    assert made.features is not None
    made.features.groups[0].steps[0].fit(frame[["kind"]])  # a step by itself
    assert list(made.transform(frame)) == ["kind_a", "kind_b", "y"]
    made.steps[0] = T.Derive(y="x + 2")
    assert made.transform(frame)["y"].tolist() == [3.0, 4.0, 5.0]


def test_types_are_looked_at_each_time() -> None:
    frame = flights()
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler())), backend="cpu").fit(frame)
    wanted = made.transform(frame)
    pd.testing.assert_frame_equal(made.transform(frame.astype({"x": "int32"})), wanted)
    with pytest.raises(gp.errors.SchemaMismatch):
        made.transform(frame.astype({"x": "str"}))
    pd.testing.assert_frame_equal(made.transform(frame), wanted)


def test_threads_may_share_a_pipeline_and_it_travels() -> None:
    frame = flights()
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="late"), backend="cpu").fit(frame)
    forms = [frame, frame.drop(columns="late"), frame[["x"]]] * 8
    wanted = [made.transform(form) for form in forms]
    again = pickle.loads(pickle.dumps(made))
    with ThreadPoolExecutor(8) as pool:
        for found, expected in zip(pool.map(again.transform, forms), wanted, strict=True):
            pd.testing.assert_frame_equal(found, expected)


# how it shows itself --------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_many_columns_are_told_in_a_few_lines() -> None:
    frame = table(20, columns=2000).assign(y=np.arange(20) % 2)
    made = pipeline(CHAINS["mean"](), target="y")
    fitted = pipeline([*CHAINS["mean"](), pre.PCA(2)], target="y").fit(frame)
    named = gp.Pipeline([], gp.Features((list(frame)[:-1], CHAINS["mean"]()), target="y", keep=list(frame)[:-1]))
    data = gp.from_frame(frame)
    texts = [made.explain(data), named, named.features, fitted, fitted.schema, data, data.schema, fitted.fit_report]
    for shown in texts:
        text = repr(shown)
        assert len(text) < 3000 and len(text.splitlines()) < 30, text[:3000]
    for shown in (made.explain(data), named, fitted, fitted.schema, data.schema, fitted.fit_report):
        assert len(shown._repr_html_()) < 6000  # type: ignore[attr-defined]
    assert "x0 ... x1999 (2,000 columns)" in repr(data)


def test_columns_that_differ_are_told_apart() -> None:
    frame = table(4, columns=70).astype({"x10": "float32", "x69": "int64"})
    shown = repr(gp.from_frame(frame).schema).splitlines()
    assert [line.split("  ")[0] for line in shown[1:]] == [
        "x0 ... x9 (10 columns)",
        "x10",
        "x11 ... x68 (58 columns)",
        "x69",
    ]


def test_names_in_a_line() -> None:
    assert (
        format_columns(["a", "x8", "x9", "x10", "x11", "x12", "x13", "x15", "b"]) == "a, x8 ... x13 (6 columns), x15, b"
    )
    assert format_columns([f"x{number:02}" for number in range(10)], 12).startswith("x00, x01")
    assert format_columns([]) == "" and format_columns(["1", "2"]) == "1, 2"


def test_a_long_table_has_its_first_and_last_rows() -> None:
    rows = [["column", "n"], *([f"c{place}", str(place)] for place in range(500))]
    lines = text_table(rows).splitlines()
    assert len(lines) == 52 and lines[1].startswith("c0 ") and lines[-1].startswith("c499")
    assert lines[41] == "... 450 more ..."
    assert html_table(rows).count("<tr>") == 52
    assert len(text_table(rows[:101]).splitlines()) == 101


# the sample that drift is measured by ---------------------------------------------------------------------------------
def test_of_a_wide_table_fewer_rows_are_drawn() -> None:
    made = pipeline(CHAINS["only scaled"]()).fit(table(9000, columns=600).fillna(1.0)[["x1", "x2"]])
    assert made.profiles.keys() == {"x1", "x2"}
    frame, backend = pd.DataFrame({"x": np.arange(40_000)}), select("cpu")
    (whole,) = gp.from_frame(frame, num_partitions=1).partitions
    assert draw_rows(frame, whole, 20_000, 100, backend) is frame
    drawn = draw_rows(frame, whole, 40_000, 2000, backend)
    assert len(drawn) == pytest.approx(2**24 / 2000, rel=0.1)
    assert len(draw_rows(frame, whole, 40_000, 10**6, backend)) == pytest.approx(2**12, rel=0.1)
    # A row is drawn by its identity, wherever it is: of a part of the rows, and of pieces of the partition.
    rows = frame[(frame["x"] % 3 > 0).to_numpy()]
    assert draw_rows(rows, whole, 40_000, 2000, backend).equals(drawn[(drawn["x"] % 3 > 0).to_numpy()])
    (left, _), (_, right) = whole.split_at(7000), whole.split_at(9000)
    parts = replace(whole, spans=(*right.spans, *left.spans))
    moved = pd.concat([frame[9000:], frame[:7000]], ignore_index=True)
    assert draw_rows(moved, parts, 40_000, 2000, backend)["x"].sort_values().tolist() == [
        x for x in drawn["x"] if not 7000 <= x < 9000
    ]


@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, 1e300, 5e-324, np.nan, np.inf, 7.0]), max_size=30))
def test_a_profile_is_that_of_a_histogram(values: list[float]) -> None:
    """Each value counted, as quantiles of many columns are learned."""
    frame = pd.DataFrame({"x": np.array([*values, 4.0])})
    backend = select("cpu")
    profile = Profiles(Sample.of(frame, ["x"], backend), {"x": 0.0}, {})["x"]
    finite = frame["x"][np.isfinite(frame["x"])].to_numpy()
    counted = Histogram.of(Column("float64", finite), backend)
    distinct, weight = np.unique(finite), counted.counts / counted.total
    assert profile.edges == tuple(np.unique(counted.quantiles(np.arange(1, 10) / 10)).tolist())
    assert profile.mean == float((distinct * weight).sum())
    bins = np.searchsorted(profile.edges, distinct, side="left")
    shares = np.bincount(bins, weights=counted.counts, minlength=len(profile.edges) + 1) / counted.total
    assert profile.shares == tuple(shares.tolist())


@pytest.mark.parametrize("kept_numbers", [0, 1 << 20])
def test_profiles_of_many_columns_are_those_of_each_alone(kept_numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of columns with and without repeated values, of one length and of several; computed at once, or when read."""
    monkeypatch.setattr("gpupipe.monitoring.profile._KEPT_NUMBERS", kept_numbers)
    frame = table(300)
    frame[frame.columns[::3]] = frame[frame.columns[::3]].round(-2)
    frame["same"], frame["none"] = 7.3, np.nan
    backend, missing = select("cpu"), frame.isna().mean().to_dict()
    profiles = Profiles(Sample.of(frame, [*frame], backend), missing, {"same": 0.5})
    assert (profiles._sample is None) == (kept_numbers == 0) and profiles.missing is missing
    alone = {name: Profiles(Sample.of(frame, [name], backend), missing, {"same": 0.5})[name] for name in frame}
    assert profiles == alone and list(profiles) == list(frame) and profiles["same"].unknown == 0.5
    assert profiles._sample is None and pickle.loads(pickle.dumps(profiles)) == alone


def test_many_columns_are_written_without_comparing_any_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, compared, equals = gp.from_frame(table(3)), list[str](), Field.__eq__
    data.write_parquet(tmp_path / "in")

    def compare(one: Field, other: object) -> bool:
        compared.append(one.name)
        return equals(one, other)

    monkeypatch.setattr(Field, "__eq__", compare)
    gp.read_parquet(tmp_path / "in").write_parquet(tmp_path / "out")
    assert len(compared) <= 2 * WIDTH
