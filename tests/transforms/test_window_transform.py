"""Windows against pandas' groupby on the whole: ties, missing values, missing keys, keys of one row; any partitions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import polars.selectors as cs
import polars.testing
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.schema import ROW
from tests.examples import examples
from tests.io.meeting import few_bytes
from tests.raising import raises

STATS = ["count", "sum", "mean", "std", "var", "min", "max"]
PARTITIONS = (1, 2, 7, 16)
CHECKS = examples(40, suppress_health_check=[HealthCheck.too_slow])

DAY = pd.Timestamp("2013-01-01")
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a", "b", "one", None]),
        st.integers(0, 9),  # so that many are alike
        st.none() | st.integers(-40, 40).map(lambda n: n / 4) | st.integers(0, 8).map(lambda n: 1e9 + n / 4),
        st.none() | st.integers(-5, 5),
    ),
    max_size=40,
)


def table_of(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    key, day, x, n = zip(*rows, strict=True) if rows else [()] * 4
    times = [DAY + pd.Timedelta(days=number) for number in day]
    return pd.DataFrame(
        {
            "k": pd.array(key, dtype="str"),
            "t": pd.array(times, dtype="datetime64[us]"),
            "x": np.array(x, dtype=float),
            "n": pd.array(n, dtype="Int64"),
            "word": pd.array([None if value is None else f"w{value}" for value in n], dtype="str"),
        }
    )


def in_order(table: pd.DataFrame) -> Any:
    """The rows of each key in order, ties as they stand, missing keys left out; each with its index."""
    return table.sort_values("t", kind="stable").groupby("k")


def run(table: pd.DataFrame, step: T.Transform, parts: int | None) -> pd.DataFrame:
    """By a pipeline over so many partitions, or on the frame."""
    if parts is None:
        return step.transform(table)
    pipeline = gp.Pipeline([step], backend="cpu").fit(table)
    return pipeline.transform(gp.from_frame(table, num_partitions=parts)).compute()


def same(found: Any, wanted: Any, what: object) -> None:
    numbers = [np.asarray(side.astype("Float64").to_numpy(dtype=float, na_value=np.nan)) for side in (found, wanted)]
    np.testing.assert_allclose(*numbers, rtol=1e-6, atol=1e-6, err_msg=str(what))


paths = st.sampled_from([None, *PARTITIONS])


@pytest.mark.slow
@CHECKS
@given(rows=ROWS, periods=st.sampled_from([1, 2, -1, 5]), parts=paths)
def test_lag_difference_and_count_are_pandas(rows: Any, periods: int, parts: int | None) -> None:
    table = table_of(rows)
    what = f"lag_{periods}" if periods > 0 else f"lead_{-periods}"
    found = run(table, T.Lag(["x", "n", "word", "t"], periods, by="k", order_by="t"), parts)
    for name in ("x", "n", "word", "t"):
        wanted = in_order(table)[name].shift(periods).reindex(table.index)
        made = found[f"{name}_{what}_by_k"]
        assert made.isna().tolist() == wanted.isna().tolist()
        assert made.dropna().tolist() == wanted.dropna().tolist()
    found = run(table, T.Difference(["x", "n", "t"], [periods], by="k", order_by="t"), parts)
    for name in ("x", "n"):
        wanted = in_order(table)[name].diff(periods).reindex(table.index)
        same(found[f"{name}_diff_{periods}_by_k"], wanted, name)
    wanted = in_order(table)["t"].diff(periods).reindex(table.index).dt.total_seconds()
    same(found[f"t_diff_{periods}_by_k"], wanted, "t")
    found = run(table, T.CumulativeCount("k", order_by="t"), parts)
    same(found["cumcount_by_k"], in_order(table).cumcount().reindex(table.index), "cumcount")


@CHECKS
@given(
    rows=ROWS,
    window=st.sampled_from([1, 2, 3, 8, "1 day", "3 days", "100 hours"]),
    closed=st.sampled_from(["left", "right"]),
    least=st.sampled_from([None, 0, 1, 2]),
    parts=paths,
)
def test_rolling_is_pandas(rows: Any, window: Any, closed: Any, least: Any, parts: int | None) -> None:
    if isinstance(window, int) and least is not None:
        least = min(least, window)
    table = table_of(rows)
    step = T.Rolling("x", window, STATS, by="k", order_by="t", closed=closed, min_periods=least)
    found = run(table, step, parts)
    for stat in STATS:
        wanted = pd.Series(np.nan, index=table.index)
        for _, group in in_order(table):
            own = {"on": "t"} if isinstance(window, str) else {}
            size = pd.Timedelta(window) if isinstance(window, str) else window
            windows = group.rolling(size, min_periods=0 if stat == "count" else least, closed=closed, **own)
            wanted[group.index] = getattr(windows["x"], stat)().to_numpy()
        same(found[f"x_rolling_{stat}_{str(window).replace(' ', '_')}_by_k"], wanted, stat)


@CHECKS
@given(rows=ROWS, closed=st.sampled_from(["left", "right"]), least=st.sampled_from([0, 1, 3]), parts=paths)
def test_expanding_is_pandas(rows: Any, closed: Any, least: int, parts: int | None) -> None:
    table = table_of(rows)
    found = run(table, T.Expanding(["x", "n"], STATS, by="k", order_by="t", closed=closed, min_periods=least), parts)
    for name in ("x", "n"):
        for stat in STATS:
            wanted = pd.Series(np.nan, index=table.index)
            for _, group in in_order(table):
                values = group[name].astype("float64")
                made = getattr(values.expanding(0 if stat == "count" else least), stat)()
                if closed == "left":  # pandas has no such thing: it is what the row before had, and at first nothing
                    first = 0.0 if stat == "count" or (stat == "sum" and not least) else np.nan
                    made = made.shift(1, fill_value=first)
                wanted[group.index] = made
            same(found[f"{name}_expanding_{stat}_by_k"], wanted, (name, stat))


@CHECKS
@given(rows=ROWS, by=st.sampled_from([None, "k", ["k", "n"]]), order=st.sampled_from([None, "t", ["t", "x"]]))
def test_the_plan_of_a_gpu_makes_the_same(rows: Any, by: Any, order: Any) -> None:
    """Run by the engine of a CPU, which keeps to what both say of order."""
    table, own = table_of(rows), {"by": by, "order_by": order}
    steps: list[T.WholeTableTransform] = [
        T.Lag(["x", "word"], [1, -2], **own),
        T.Difference(["x", "n", "t"], **own),
        T.Expanding("x", STATS, closed="left", **own),
        T.Rolling("x", 3, STATS, **own),
        T.Rolling("x", 3, STATS, closed="left", min_periods=0, **own),
    ]
    if by is not None:
        steps.append(T.CumulativeCount(by, order_by=order))
    if order == "t":
        for closed, least in itertools.product(("left", "right"), (None, 0, 2)):
            steps.append(T.Rolling("x", "3 days", STATS, closed=closed, min_periods=least, **own))  # type: ignore[arg-type]
    schema = gp.from_frame(table).schema
    for step in steps:
        inputs = pl.from_pandas(table[step.reads]).with_columns(cs.float().fill_nan(None)).with_row_index(ROW)
        plans = [step.plan(inputs.lazy(), schema, set(step.makes), backend) for backend in ("cpu", "gpu")]
        cpu, gpu = (plan.collect(engine="streaming").select(ROW, *step.makes) for plan in plans)
        polars.testing.assert_frame_equal(gpu, cpu, abs_tol=1e-6, rel_tol=1e-6, check_dtypes=False)


def test_rows_alike_stand_as_in_the_table_however_many() -> None:
    """More rows than an engine's thread takes at a time, few times."""
    random = np.random.default_rng(4)
    table = pd.DataFrame({"k": random.integers(0, 3, 300_000), "t": random.integers(0, 5, 300_000)})
    table = table.assign(t=pd.Timestamp("2013-01-01") + pd.to_timedelta(table["t"], "D"), row=range(300_000))
    for order in ("t", ["t", "k"], None):
        found = run(table, T.Lag("row", by="k", order_by=order), 3)["row_lag_1_by_k"]
        wanted = (table.sort_values(order, kind="stable") if order else table).groupby("k")["row"].shift()
        assert found.isna().equals(wanted.reindex(table.index).isna())
        assert (found == wanted.reindex(table.index)).sum() == len(table) - 3


@pytest.mark.slow
@pytest.mark.parametrize("step", [T.Lag(["x", "word"], by="k"), T.Rolling("x", "9 days", by=["k", "n"], order_by="t")])
def test_rows_beyond_the_memory_are_cut_by_their_keys(
    step: T.Transform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    random = np.random.default_rng(5)
    table = table_of([(f"k{k}", k % 9, float(k), k % 4) for k in random.integers(0, 50, 3000)])
    whole = run(table, step, 3)
    few_bytes(monkeypatch)
    with caplog.at_level("INFO", "gpupipe"):
        found = run(table, step, 3)
    assert "cut into" in caplog.text
    pd.testing.assert_frame_equal(found, whole)


@pytest.mark.slow
@pytest.mark.parametrize("in_buckets", [False, True])
def test_zeros_of_both_signs_are_one_key(in_buckets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"z": np.tile([0.0, -0.0, 1.0, np.nan], 500), "t": np.arange(2000) // 9, "x": np.arange(2000)})
    if in_buckets:
        few_bytes(monkeypatch)
    for by, order in (("z", None), ("z", ["t", "x"]), (["z", "t"], "x")):
        found = run(table, T.Lag("x", by=by, order_by=order), 3).iloc[:, -1]
        wanted = table.groupby(by)["x"].shift()
        assert found.isna().equals(wanted.isna())
        assert (found.dropna() == wanted.dropna()).all()
    found = run(table, T.Rolling("x", 3, "sum", by="z", order_by="t"), 3).iloc[:, -1]
    wanted = table.groupby("z")["x"].rolling(3).sum().droplevel(0).reindex(table.index)
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("parts", [None, *PARTITIONS])
def test_without_keys_and_order_rows_follow_each_other_as_they_stand(parts: int | None) -> None:
    table = pd.DataFrame({"x": np.arange(50.0)})
    assert run(table, T.Lag("x", 3), parts)["x_lag_3"].dropna().tolist() == list(range(47))
    found = run(table, T.Rolling("x", 4, "sum"), parts)["x_rolling_sum_4"]
    pd.testing.assert_series_equal(found, table["x"].rolling(4).sum(), check_names=False)


def test_a_large_value_leaves_nothing_behind() -> None:
    """Sums that slide along would be off by what was rounded away."""
    table = pd.DataFrame({"x": [1e17, 0.1, 0.2, 0.3, np.inf, 0.1, 0.2, 0.3]})
    found = T.Rolling("x", 2, ["sum", "std", "max"]).transform(table)
    np.testing.assert_allclose(found["x_rolling_sum_2"][[2, 3, 6, 7]], [0.3, 0.5, 0.3, 0.5], rtol=1e-12)
    np.testing.assert_allclose(found["x_rolling_std_2"][[2, 3, 6, 7]], np.sqrt(0.005), rtol=1e-12)
    assert found["x_rolling_max_2"].tolist()[3:6] == [0.3, np.inf, np.inf]


def test_sums_are_as_good_as_their_longest_window() -> None:
    random = np.random.default_rng(3)
    table = pd.DataFrame({"x": random.normal(size=20_000) * 10.0 ** random.integers(0, 12, 20_000)})
    values, size = table["x"].to_numpy().astype(np.longdouble), 1000
    before = np.concatenate([[0], np.cumsum(values)])
    found = T.Rolling("x", size, "sum").transform(table)["x_rolling_sum_1000"].to_numpy()[size - 1 :]
    bound = 10 * np.finfo(float).eps * np.convolve(np.abs(table["x"]), np.ones(size), "valid")
    assert (np.abs(found - (before[size:] - before[:-size]).astype(float)) <= bound).all()


def test_a_window_may_be_of_its_own_key() -> None:
    table = pd.DataFrame({"n": [2**53, 2**53 + 1, 2**53, 3], "t": pd.Timestamp("2013-01-01")})
    for window in (9, "3 days"):
        step = T.Rolling("n", window, "count", by="n", order_by="t", min_periods=0)
        assert step.transform(table).iloc[:, -1].tolist() == [1, 1, 2, 1]
    step = T.Expanding("n", "count", by="n", closed="left")
    schema = gp.from_frame(table).schema
    for backend in ("cpu", "gpu"):
        rows = pl.LazyFrame({"n": table["n"].to_numpy()}).with_row_index(ROW)
        assert step.plan(rows, schema, set(step.makes), backend).collect()[step.makes[0]].to_list() == [0, 0, 1, 0]


def test_a_window_may_be_of_centuries() -> None:
    times = pd.Series(["1000-01-01", "1300-01-01", "1990-01-01", "9000-01-01"]).astype("datetime64[us]")
    found = T.Rolling("x", "36525 weeks", "sum", order_by="t").transform(
        pd.DataFrame({"t": times, "x": [1.0, 2, 3, 4]})
    )
    assert found.iloc[:, -1].tolist() == [1.0, 3.0, 5.0, 4.0]


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("bits", [34, 62, *(pytest.param(bits, marks=pytest.mark.slow) for bits in (54, 56, 60))])
def test_many_rows_of_one_time_are_in_order(bits: int, by: str | None) -> None:
    """Times so close or so far apart that rows, or rows of one time, can be numbered between them, or not."""
    random = np.random.default_rng(6)
    step = 2 ** (bits - 4)
    times = np.sort(random.integers(0, 15, 400) * step + random.integers(0, 2, 400))
    table = pd.DataFrame(
        {"k": random.integers(0, 3, 400), "t": times.astype("datetime64[us]"), "x": random.random(400)}
    )
    found = T.Rolling("x", f"{step}us", ["sum", "count", "max"], by=by, order_by="t").transform(table)
    for place, row in enumerate(table.itertuples()):
        is_in = (times[: place + 1] > times[place] - step) & ((table["k"][: place + 1] == row.k) | (by is None))
        values = table["x"][: place + 1][is_in]
        np.testing.assert_allclose(found.iloc[place, -3:].astype(float), [values.sum(), len(values), values.max()])


def test_rows_without_a_time_are_in_no_window_of_time() -> None:
    table = pd.DataFrame({"t": pd.to_datetime(["2013-01-02", None, "2013-01-01"]).astype("datetime64[us]"), "x": 1.0})
    found = T.Rolling("x", "7 days", ["sum", "count"], order_by="t").transform(table)
    assert found["x_rolling_sum_7_days"].tolist()[::2] == [2.0, 1.0]
    assert found.isna().sum().tolist() == [1, 0, 1, 1]


def test_flights_of_a_plane(tmp_path: Path) -> None:
    """The shipped flights, in many row groups: what a plane's last flight was like, and its last week."""
    data = Path(__file__).parents[2] / "data" / "flights.parquet"
    columns = ["tailnum", "time_hour", "dep_delay", "distance", "flight"]
    whole = pd.read_parquet(data, columns=columns).iloc[::10].reset_index(drop=True)
    whole.to_parquet(tmp_path / "flights.parquet", row_group_size=3000, index=False)
    flights = gp.read_parquet(tmp_path / "flights.parquet", partition_bytes=200_000, backend="cpu")
    assert flights.num_partitions > 5
    steps = [
        T.Lag("dep_delay", by="tailnum", order_by="time_hour"),
        T.Rolling("dep_delay", "7 days", ["mean"], by="tailnum", order_by="time_hour", closed="left"),
    ]
    found = gp.Pipeline(steps, backend="cpu").fit(flights).transform(flights).compute()
    ordered = whole.sort_values("time_hour", kind="stable")
    wanted = ordered.groupby("tailnum")["dep_delay"].shift().reindex(whole.index)
    np.testing.assert_array_equal(found["dep_delay_lag_1_by_tailnum"], wanted)
    rolled = ordered.groupby("tailnum").rolling("7D", on="time_hour", closed="left")["dep_delay"].mean()
    known = found["tailnum"].notna()
    mine = found.loc[ordered.index][known.loc[ordered.index]].sort_values("tailnum", kind="stable")
    np.testing.assert_allclose(
        mine["dep_delay_rolling_mean_7_days_by_tailnum"], rolled.to_numpy(), rtol=1e-9, atol=1e-9
    )


def test_what_is_refused() -> None:
    table = pd.DataFrame({"k": ["a"], "x": [1.0], "x_lag_1": [2.0], "n": [3]})
    table["t"] = pd.to_datetime(["2013-01-01"])
    for step, error, match in [
        (T.Lag("y"), errors.ColumnNotFound, "'y' not found"),
        (T.Lag("x", by="kk"), errors.ColumnNotFound, "'kk' not found"),
        (T.Lag("x"), errors.BadConfig, "another one's name, got 'x_lag_1'"),
        (T.Lag("n", [1, 1]), errors.BadConfig, "another one's name, got 'n_lag_1'"),
        (T.Difference("k"), errors.SchemaMismatch, "column 'k': not a number"),
        (T.Rolling("x", "3 days"), errors.BadConfig, "goes by one time"),
        (T.Rolling("x", "3 days", order_by="n"), errors.SchemaMismatch, "column 'n': it is no time"),
        (T.Expanding("k"), errors.SchemaMismatch, "column 'k': not a number"),
    ]:
        with pytest.raises(error, match=match):
            step.transform(table)
    for make in (
        lambda: T.Lag("x", 0),
        lambda: T.Lag("x", 1.5),
        lambda: T.Lag("x", 2**70),
        lambda: T.Rolling("x", 2**70),
        lambda: T.Rolling("x", "99999999 weeks", order_by="t"),
        lambda: T.Rolling("x", 3, min_periods=4),
        lambda: T.Rolling("x", 3, min_periods=-1),
        lambda: T.Expanding("x", min_periods="1"),
        lambda: T.CumulativeCount([]),
        lambda: T.Rolling("x", 0),
        lambda: T.Rolling("x", "3 moons"),
        lambda: T.Rolling("x", 3, "median"),
        lambda: T.Expanding("x", closed="both"),
    ):
        with pytest.raises(errors.BadConfig, match=r"makes no sense|no such choice"):
            make()


def test_a_window_of_time_is_offered_a_time_of_the_table() -> None:
    table = pd.DataFrame({"k": ["a"], "x": [1.0], "first": [pd.Timestamp("2013-01-01")], "second": pd.NaT})
    for order, remedy in (
        (["second", "k"], "order_by='second'"),
        (["k", "x"], "order_by='first'"),
        (None, "order_by='first'"),
    ):
        with raises(errors.BadConfig, where="Rolling", remedy=remedy):
            T.Rolling("x", "7 days", order_by=order).transform(table)
    with raises(errors.BadConfig, where="Rolling", remedy="window=7, which are rows"):
        T.Rolling("x", "7 days").transform(table[["k", "x"]])


def test_a_window_over_the_target_is_a_leak() -> None:
    table = pd.DataFrame({"k": ["a", "a"], "y": [1.0, 2.0]})
    features = gp.Features((["y_lag_1_by_k"], pre.SimpleImputer()), target="y")
    with raises(errors.LeakageError, where="feature 'y_lag_1_by_k'"):
        gp.Pipeline([T.Lag("y", by="k")], features).fit(table)


def test_numbers_come_from_numpy_too() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, 4.0]})
    assert T.Lag("x", np.int64(1)).transform(table)["x_lag_1"].tolist()[1:] == [1.0, 2.0]
    assert T.Rolling("x", np.int32(2), "sum").transform(table)["x_rolling_sum_2"].tolist()[1:] == [3.0, 6.0]


def test_neighbours_beyond_two_to_the_53_differ_by_what_they_differ() -> None:
    nanoseconds = pd.Series([1_700_000_000_000_000_001, 1_700_000_000_000_000_003, -(2**62), None], dtype="Int64")
    table = pd.DataFrame({"x": nanoseconds, "u": np.array([2**64 - 1, 2**64 - 3, 0, 5], dtype="uint64")})
    found = T.Difference(["x", "u"]).transform(table)
    assert found["x_diff_1"].tolist()[1:3] == [2.0, -(2.0**62) - 1.7e18]
    assert found["x_diff_1"].isna().tolist() == [True, False, False, True]
    assert found["u_diff_1"].tolist()[1:] == [-2.0, -(2.0**64), 5.0]


@pytest.mark.parametrize(
    ("step", "given"),
    [
        (T.Lag("x"), {"periods": [1, 2], "by": "k", "order_by": "n"}),
        (T.CumulativeCount("n"), {"by": np.array(["k"])}),
        (T.Rolling("x", 2), {"window": 3, "stats": ["min", "sum"]}),
        (T.Rolling("x", 2, order_by="t"), {"window": "2 days", "by": "k", "closed": "left"}),
        (T.Expanding("x", "sum"), {"min_periods": 2, "order_by": ["k", "n"]}),
        (T.JoinAsOf(pd.DataFrame({"n": [1, 2], "k": ["b", "a"], "y": [1.0, 2.0]}), on="n", columns="y"), {"by": "k"}),
    ],
)
def test_a_parameter_that_is_assigned_later_counts(step: T.Transform, given: dict[str, Any]) -> None:
    days = pd.to_datetime(["2013-01-01", "2013-01-03", "2013-01-04", "2013-01-05"])
    table = pd.DataFrame({"k": ["a", "b", "a", "a"], "n": [4, 3, 2, 1], "t": days, "x": [1.0, 2.0, 4.0, 8.0]})
    for name, value in given.items():
        setattr(step, name, value)
    wanted = type(step)(**step.get_params()).transform(table)
    pd.testing.assert_frame_equal(step.transform(table), wanted)
