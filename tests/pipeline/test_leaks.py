"""The leak guard: from one pipeline into the next, through verbs and files; and what is known before the target."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T

STORES = {"by": "store", "order_by": "date"}
SALES = pd.DataFrame(
    {
        "store": ["a", "b"] * 12,
        "date": pd.date_range("2024-01-01", periods=24, freq="12h"),
        "sales": [float(number * 7 % 11) for number in range(24)],
        "price": [float(number % 5) for number in range(24)],
    }
)
WINDOWS = [
    T.Rolling("sales", 1, **STORES),  # the target itself
    T.Derive(log="log1p(sales)", dear="price > 2"),
    T.Lag("sales", [1, -1], **STORES),
    T.Rolling("sales", 2, closed="left", **STORES),
    T.Difference("sales", **STORES),
]
ITSELF, LEAD, LAG = "sales_rolling_mean_1_by_store", "sales_lead_1_by_store", "sales_lag_1_by_store"
EARLIER = "sales_rolling_mean_2_by_store"


def sales() -> gp.Dataset:
    return gp.from_frame(SALES, num_partitions=3, backend="cpu")


def compute_windows(data: gp.Dataset) -> gp.Dataset:
    made: gp.Dataset = gp.Pipeline(WINDOWS, backend="cpu").fit(data).transform(data)
    return made


def fit(data: Any, *columns: str, target: str = "sales", steps: Any = (), **options: Any) -> gp.Pipeline:
    features = gp.Features((list(columns), [pre.SimpleImputer(), pre.StandardScaler()]), target=target, **options)
    return gp.Pipeline(list(steps), features, backend="cpu").fit(data)


def write_file(data: gp.Dataset, folder: Path) -> gp.Dataset:
    data.write_parquet(folder / "windows.parquet")
    return gp.read_parquet(folder / "windows.parquet")


def write_hive(data: gp.Dataset, folder: Path) -> gp.Dataset:
    """The window is the folders' name, so that the manifest alone tells where it comes from."""
    data.write_parquet(folder / "windows", partition_by=[ITSELF, "log"])
    return gp.read_parquet(folder / "windows").select(data.columns)


def read_arrow(data: gp.Dataset, folder: Path) -> gp.Dataset:
    data.write_parquet(folder / "windows.parquet")
    return gp.from_frame(pq.read_table(folder / "windows.parquet"))


def stream_arrow(data: gp.Dataset, folder: Path) -> gp.Dataset:
    data.write_parquet(folder / "windows.parquet")
    table = pq.read_table(folder / "windows.parquet")
    return gp.from_frame(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))


ROUTES: dict[str, Callable[[gp.Dataset, Path], gp.Dataset]] = {
    "transform": lambda data, _: data,
    "split": lambda data, _: data.split(by="date", at="2024-01-10")[0],
    "filter": lambda data, _: data.filter("price > 0").select(data.columns),
    "sort": lambda data, _: data.sort("price"),
    "shuffle": lambda data, _: data.split(0.9)[0].shuffle(),
    "deduplicate": lambda data, _: data.deduplicate(["store", "date"]),
    "concat": lambda data, _: gp.concat([data, data]),
    "third pipeline": lambda data, _: gp.Pipeline([T.Cast({"log": "float32"})]).fit(data).transform(data),
    "file": write_file,
    "hive": write_hive,
    "arrow": read_arrow,
    "stream": stream_arrow,
}


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_the_second_pipeline_knows_what_the_first_computed(route: str, tmp_path: Path) -> None:
    data = ROUTES[route](compute_windows(sales()), tmp_path)
    for name in (ITSELF, "log", LEAD):
        with pytest.raises(errors.LeakageError) as caught:
            fit(data, name)
        assert caught.value.where == f"feature {name!r}"
    assert fit(data, LAG, EARLIER, "price").schema.numeric
    with pytest.raises(errors.LeakageError):
        fit(data, "sales", target="log > 1")


def test_a_frame_of_the_users_has_no_origins() -> None:
    """Nobody knows what was done to it meanwhile."""
    assert fit(compute_windows(sales()).to_pandas(), "log").schema.numeric
    assert fit(compute_windows(sales()).to_polars().collect(), "log").schema.numeric


def aggregate(data: gp.Dataset) -> gp.Dataset:
    return data.group_by("store").agg(typical=("sales", "mean"), prices=("price", "mean"))


JOINS: dict[str, Callable[..., tuple[gp.Dataset, list[T.Transform]]]] = {
    "verb": lambda data, right, on="store": (data.join(right, on=on), []),
    "step": lambda data, right, on="store": (data, [T.Join(right, on=on)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("join", JOINS)
def test_a_joined_table_of_the_same_rows_brings_the_target(join: str, tmp_path: Path) -> None:
    def check(data: gp.Dataset, right: gp.Dataset, *, leaks: bool) -> None:
        data, steps = JOINS[join](data, right)
        assert fit(data, "prices", steps=steps).schema.numeric
        if leaks:
            with pytest.raises(errors.LeakageError):
                fit(data, "typical", steps=steps)
        else:
            assert fit(data, "typical", steps=steps).schema.numeric

    data = sales()
    check(data.split(0.8, seed=1)[0], aggregate(data.split(0.8, seed=2)[0]), leaks=True)  # some rows are in both
    for train, valid in data.kfold(3):
        check(valid, aggregate(train), leaks=False)
    past, later = sales().split(by="date", at="2024-01-08")
    for one in (past, later):  # of one table
        whole = replace_query(one, past)
        check(one, aggregate(one), leaks=True)
        check(one, aggregate(whole), leaks=True)
    check(later, aggregate(past), leaks=False)
    check(sales(), aggregate(gp.from_frame(SALES.assign(sales=SALES["sales"] + 1.0))), leaks=False)  # of another table
    SALES.to_parquet(tmp_path / "sales.parquet")
    file = gp.read_parquet(tmp_path / "sales.parquet")
    aggregate(file).write_parquet(tmp_path / "typical.parquet")
    check(gp.read_parquet(tmp_path / "sales.parquet"), gp.read_parquet(tmp_path / "typical.parquet"), leaks=True)


COUNTS = {"days": ("price", "size"), "prices": ("price", "mean")}


def test_rows_that_a_filter_by_the_target_left_tell_of_it() -> None:
    data, dear = sales(), "price > 2"
    for condition in ("sales > 5", "notnull(sales) and sales > 5"):
        high = data.filter(condition)
        rows, days = high.select(["store", "date", "price"]), high.group_by("date").agg(**COUNTS)
        for left in (data, data.filter(dear)):
            for joined, name in (
                (left.join(rows, on=["store", "date"]), "price_right"),
                (left.join(days, on="date"), "days"),
                (left.join_asof(days, on="date"), "prices"),
            ):
                with pytest.raises(errors.LeakageError):
                    fit(joined, name)
        assert fit(high.join(days, on="date"), "days").schema.numeric  # all rows have passed it
        assert fit(data.join_asof(days, on="date", allow_exact_matches=False), "days").schema.numeric
    for condition in ("notnull(sales)", dear):
        days = data.filter(condition).group_by("date").agg(**COUNTS)
        assert fit(data.join(days, on="date"), "days").schema.numeric
    past, later = data.split(by="date", at="2024-01-08")
    stores = past.filter("sales > 5").group_by("store").agg(**COUNTS)
    assert fit(later.join(stores, on="store"), "days").schema.numeric
    other = gp.from_frame(SALES.assign(sales=SALES["sales"] + 1.0)).filter("sales > 5")
    assert fit(data.join(other.group_by("store").agg(**COUNTS), on="store"), "days").schema.numeric  # another table


@pytest.mark.parametrize("again", [SALES, SALES.copy(), pl.from_pandas(SALES), pa.table(SALES), gp.from_frame(SALES)])
def test_a_table_in_memory_that_is_handed_over_twice_is_one_table(again: Any) -> None:
    means = gp.from_frame(SALES).group_by("store").agg(mean=("sales", "mean"))
    with pytest.raises(errors.LeakageError):
        fit(again, "mean", steps=[T.Join(means, on="store")])
    with pytest.raises(errors.LeakageError):
        fit(again, "sales_right", steps=[T.Join(SALES, on=["store", "date"])])
    other = SALES.assign(sales=SALES["sales"].to_numpy()[::-1])
    assert fit(other, "mean", steps=[T.Join(means, on="store")]).schema.numeric


@pytest.mark.slow
@pytest.mark.parametrize("folder", [False, True])
def test_sums_of_the_days_before_are_earlier_rows(folder: bool, tmp_path: Path) -> None:
    frame = SALES.assign(date=SALES["date"].dt.floor("D"))
    frame.to_parquet(tmp_path / "sales.parquet")
    data = gp.read_parquet(tmp_path / "sales.parquet") if folder else gp.from_frame(frame)
    total = {"total": ("sales", "sum")}
    days, both = data.group_by("date").agg(**total), data.group_by(["store", "date"]).agg(**total)
    lags = gp.Pipeline([T.Lag("total", 1, order_by="date")]).fit_transform(days).select(["date", "total_lag_1"])
    lags = gp.Pipeline([T.Rename({"total_lag_1": "total"})]).fit_transform(lags)
    firsts = data.group_by("store").agg(**total, date=("date", "min"))
    weeks = data.assign(date="floor(date, '7d')").group_by("date").agg(**total)
    before: dict[str, Any] = {"on": "date", "allow_exact_matches": False}
    for joined in (
        data.join_asof(days, **before),
        data.join_asof(both, by="store", **before),
        gp.Pipeline([T.JoinAsOf(days, on="date", lag="1d")]).fit_transform(data),
        gp.Pipeline([T.JoinAsOf(both, by="store", **before)]).fit_transform(data),
        data.join(lags, on="date"),
        gp.Pipeline([T.Join(lags, on="date")]).fit_transform(data),
    ):
        assert fit(joined, "total").schema.numeric
    for joined in (
        data.join_asof(days, on="date"),
        data.join_asof(days, direction="forward", **before),
        data.join_asof(firsts, **before),
        data.join_asof(firsts, by="store", **before),
        data.join_asof(weeks, **before),  # a week began before its last day
        gp.Pipeline([T.JoinAsOf(firsts, by="store", **before)]).fit_transform(data),
        gp.Pipeline([T.JoinAsOf(weeks, on="date", lag="1d")]).fit_transform(data),
        data.join(days, on="date"),
    ):
        with pytest.raises(errors.LeakageError):
            fit(joined, "total")


@pytest.mark.slow
def test_a_lag_that_is_found_by_another_key_is_that_of_any_row() -> None:
    data, keys = gp.from_frame(SALES.assign(t=range(len(SALES)))), ["store", "t"]
    lags = gp.Pipeline([T.Lag("sales", by="store", order_by="t")]).fit_transform(data).select([*keys, LAG])
    earlier, as_of = lags.assign(t="t - 2"), {"on": "t", "by": "store"}
    for joined in (
        data.join_asof(lags, **as_of, direction="forward", allow_exact_matches=False),
        data.join_asof(lags, **as_of, direction="nearest"),
        data.join(earlier, on=keys),
        data.join_asof(earlier, **as_of),
        data.assign(next="t + 2").join(lags, left_on=["store", "next"], right_on=keys),
        data.join(lags.assign(t="t // 4 * 4").deduplicate(keys, keep="last"), on=keys, how="inner"),
        gp.Pipeline([T.Join(earlier, on=keys)]).fit_transform(data),
        gp.Pipeline([T.JoinAsOf(earlier, **as_of)]).fit_transform(data),
    ):
        with pytest.raises(errors.LeakageError):
            fit(joined, LAG)
    cast = gp.Pipeline([T.Cast({"t": "int32"})]).fit_transform(data)
    for joined in (data.join(lags, on=keys), data.join_asof(lags, **as_of), cast.join(lags, on=keys)):
        assert fit(joined, LAG).schema.numeric


@pytest.mark.slow
def test_an_earlier_row_in_another_order_is_any_row() -> None:
    data = gp.from_frame(SALES.assign(code=range(len(SALES))[::-1]))
    lag, mean = T.Lag("sales", **STORES), "sales_lag_1_by_store_expanding_mean"
    days = gp.Pipeline([T.Rolling("sales", 2, order_by="code")]).fit_transform(data)
    days = days.select(["date", "sales_rolling_mean_2"])
    strict: dict[str, Any] = {"on": "date", "allow_exact_matches": False}
    for steps, name in (
        ([lag, T.Expanding(LAG, "mean", order_by="code")], mean),
        ([T.JoinAsOf(data.select(["date", "sales"]), **strict), T.Rolling("sales_right", 2, order_by="code")], None),
        ([T.JoinAsOf(days, **strict)], "sales_rolling_mean_2"),
    ):
        with pytest.raises(errors.LeakageError):
            fit(data, name or "sales_right_rolling_mean_2", steps=steps)
    with pytest.raises(errors.LeakageError):
        fit(data.join_asof(days, **strict), "sales_rolling_mean_2")
    for order in ("date", ["date", "code"]):
        assert fit(data, mean, steps=[lag, T.Expanding(LAG, "mean", order_by=order)]).schema.numeric


@pytest.mark.slow
@pytest.mark.parametrize("joins_first", [False, True])
def test_a_table_of_the_targets_of_the_rows_that_are_loaded_is_refused(joins_first: bool) -> None:
    history, train, valid = sales().split((0.4, 0.4, 0.2), seed=3)
    features = gp.Features((["mean"], pre.SimpleImputer("constant")), target="sales", task="regression")

    def join(data: gp.Dataset, means: gp.Dataset) -> gp.Dataset:
        return data.join(means, on="store") if joins_first else data

    for means, owner in ((part.group_by("store").agg(mean=("sales", "mean")), part) for part in (history, valid)):
        steps = [] if joins_first else [T.Join(means, on="store")]
        pipeline = gp.Pipeline(steps, features).fit(join(train, means))
        scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
        for rows in (owner, sales()):
            data = join(rows, means)
            for work in (pipeline.loader, scorer.evaluate, partial(gp.calibrate, scorer)):
                with pytest.raises(errors.LeakageError):
                    work(data)
        rest = join(valid if owner is history else history, means)
        assert len(pipeline.loader(rest)) > 0
        assert "mae" in scorer.evaluate(rest)


@pytest.mark.slow
def test_an_earlier_row_by_another_column_is_any_row() -> None:
    data = gp.from_frame(SALES.assign(end=SALES["date"] + pd.Timedelta("10min"), code=range(len(SALES))))
    old, strict = data.select(["store", "date", "end", "code", "sales"]), {"by": "store", "allow_exact_matches": False}
    ids = gp.Pipeline([T.Lag("sales", by="store", order_by="date")]).fit_transform(data).select(["code", LAG])
    for joined, name in (
        (data.join_asof(old, left_on="end", right_on="date", **strict), "sales_right"),
        (gp.Pipeline([T.JoinAsOf(old, left_on="end", right_on="date", **strict)]).fit_transform(data), "sales_right"),
        (gp.Pipeline([T.JoinAsOf(old, left_on="end", right_on="date", lag="1s")]).fit_transform(data), "sales_right"),
        (data.assign(next="code + 2").join(ids, left_on="next", right_on="code"), LAG),
    ):
        with pytest.raises(errors.LeakageError):
            fit(joined, name)
    for column in ("date", "end"):
        joined = data.join_asof(old, on=column, columns="sales", **strict)
        assert fit(joined, "sales_right").schema.numeric


@pytest.mark.slow
def test_what_is_computed_of_rows_that_the_target_kept_tells_of_it() -> None:
    data, keys = sales(), ["store", "date"]
    high, low = data.filter("sales > 5"), data.filter("sales <= 5")
    marked = high.assign(mark="1").select([*keys, "mark"])
    found = data.join(high.select(keys), on=keys, how="inner").assign(mark="1").select([*keys, "mark"])
    for joined in (
        data.join(marked, on=keys),
        data.join(found, on=keys),
        data.join_asof(marked, on="date", by="store", tolerance="0s"),
        gp.Pipeline([T.Join(marked, on=keys)]).fit_transform(data),
        gp.concat([high.assign(mark="1"), low.assign(mark="0")]),
        gp.concat([high.assign(mark="price * 0 + 1"), low.assign(mark="price * 0")]),
    ):
        with pytest.raises(errors.LeakageError):
            fit(joined, "mark")
    before, known = data.assign(mark="price * 2"), "notnull(sales)"
    for joined in (
        gp.concat([before.filter("sales > 5"), before.filter("sales <= 5").sample(0.5)]),
        gp.concat([data.filter(known).assign(mark="price * 2")] * 2),
        high.assign(mark="price * 2"),
        high.join(marked, on=keys),
        data.join(before.select([*keys, "mark"]), on=keys),
    ):
        assert fit(joined, "mark").schema.numeric


def replace_query(one: gp.Dataset, past: gp.Dataset) -> gp.Dataset:
    """The whole table that a part was cut from."""
    return gp.Dataset(past.source, past.schema, "cpu") if one.source is past.source else one


def test_what_a_target_was_looked_up_by_is_no_leak() -> None:
    labels = gp.from_frame(SALES[["store", "date", "sales"]].rename(columns={"sales": "label"}))
    steps = [T.Join(labels, on=["store", "date"]), T.Derive(day="day(date)")]
    assert fit(SALES, "day", target="label", steps=steps).schema.numeric
    with pytest.raises(errors.LeakageError):
        fit(SALES, "label_lag_1_by_label", target="label", steps=[*steps, T.Lag("label", by="label", order_by="date")])


def test_the_own_part_of_a_target_that_is_a_sum_over_its_group_leaks() -> None:
    data = sales().join(sales().group_by("store").agg(total=("sales", "sum")), on="store")
    steps = [T.Lag("sales", **STORES), T.Derive(twice="sales * 2.0", ahead="1.0 * total")]
    for name in ("sales", "twice", "ahead"):
        with pytest.raises(errors.LeakageError, match=repr(name)):
            fit(data, name, target="total", steps=steps)
    assert fit(data, "price", LAG, target="total", steps=steps).schema.numeric
    growth = [T.Lag("sales", [1, -1], **STORES), T.Derive(growth=f"coalesce({LEAD}, 0) - sales")]
    assert fit(data, "sales", LAG, target="growth", steps=growth).schema.numeric
    early = gp.Pipeline(growth).fit_transform(data).filter("date < '2024-01-10'")
    assert fit(early, "sales", LAG, target="growth").schema.numeric
    with pytest.raises(errors.LeakageError, match="'sales'"):
        fit(data.filter("date < '2024-01-10'"), "sales", target="total")


def test_the_remedy_for_a_value_of_sessions_is_none_of_windows_or_as_of_joins() -> None:
    clicks = sales().sort("date")
    steps = [
        T.Difference("date", **STORES),
        T.Derive(new="coalesce(date_diff_1_by_store > 86400, True)"),
        T.Expanding("new", "sum", **STORES),
    ]
    clicks = gp.Pipeline(steps, backend="cpu").fit(clicks).transform(clicks)
    sessions = clicks.group_by(["store", "new_expanding_sum_by_store"]).agg(
        start=("date", "min"), end=("date", "max"), price=("price", "first")
    )
    with pytest.raises(errors.LeakageError, match="feature 'price': it is of rows that are found by") as caught:
        fit(sessions, "price", target="end - start")
    assert caught.value.remedy.startswith("leave it out, or Features(allow_leak=['price'])")
    with pytest.raises(errors.LeakageError, match="feature 'price_right'") as caught:
        fit(sales().join_asof(sales(), on="date", by="store", columns=["price"]), "price_right", target="price")
    assert "allow_exact_matches=False of a join_asof" in caught.value.remedy


def test_the_remedy_for_an_as_of_join_is_none_of_a_window() -> None:
    plans = gp.from_frame(pd.DataFrame({"store": ["a", "b"], "since": SALES["date"][0], "fee": [1.0, 2.0]}))
    steps = [T.JoinAsOf(plans, left_on="date", right_on="since", by="store")]
    with pytest.raises(errors.LeakageError) as caught:
        fit(sales(), "fee", target="hour(date) < 9", steps=steps)
    assert "order_by" not in caught.value.remedy and "allow_leak=['fee']" in caught.value.remedy
    assert fit(sales(), "fee", target="hour(date) < 9", steps=steps, allow_leak=["fee"]).schema.numeric


def halves(data: gp.Dataset, cut: str) -> list[gp.Dataset]:
    if cut == "time":
        return data.split(by="date", at="2024-01-07")
    return data.split(0.5, seed=1) if cut == "random" else [data.filter(part) for part in cut.split(" | ")]


@pytest.mark.parametrize(
    ("cut", "is_apart"),
    [
        *[("time", True), ("random", True), ("date < '2024-01-07' | date >= '2024-01-07'", True)],
        *[("price <= 2 | price > 2", True), ("price < 2.5 | price >= 3", True), ("store == 'a' | store != 'a'", True)],
        *[("store < 'b' | store in ['b', 'c']", True), ("price <= 2 and price < 9 | price > 2 and price < 9", True)],
        *[
            ("price <= 2 | price >= 2", False),
            ("price < 3 | store == 'a'", False),
            ("price + 0 <= 2 | price > 2", False),
        ],
    ],
)
def test_what_was_computed_of_other_rows_is_no_leak_and_what_of_all_rows_is_one(cut: str, is_apart: bool) -> None:
    def look_up(left: gp.Dataset, right: gp.Dataset) -> gp.Dataset:
        return left.select(["day", "sales"]).join(right.select(["day", "mean"]).deduplicate("day"), on="day")

    def average(data: gp.Dataset) -> gp.Dataset:
        return data.group_by("day").agg(mean=("sales", "mean"))

    data = sales().assign(day="day(date) % 3").sort("price")
    one, other = halves(data, cut)
    if is_apart:
        assert fit(one.join(average(other), on="day"), "mean", target="sales").schema.numeric
    else:
        with pytest.raises(errors.LeakageError):
            fit(one.join(average(other), on="day"), "mean", target="sales")
    averaged_before = halves(data.join(average(data), on="day"), cut)
    for left, right in permutations(averaged_before):
        with pytest.raises(errors.LeakageError):
            fit(look_up(left, right), "mean", target="sales")


def test_parts_by_a_derived_or_a_joined_column_are_apart() -> None:
    """Credit is judged by the months after those that features are computed of: by the age of a loan, derived."""
    loans = gp.from_frame(pd.DataFrame({"loan": range(20), "opened": [0, 1] * 10}))
    rows = {"loan": [number // 4 for number in range(80)], "month": [*range(4)] * 20, "late": range(80)}
    paid = gp.from_frame(pd.DataFrame(rows))

    def judge(early: gp.Dataset, late: gp.Dataset) -> gp.Schema:
        means = early.group_by("loan").agg(mean=("late", "mean"))
        labels = late.group_by("loan").agg(label=("late", "max"))
        data = loans.join(labels, on="loan").join(means, on="loan")
        return fit(data, "mean", target="label > 9", task="classification").schema

    aged = paid.join(loans, on="loan").assign(age="month - opened")
    derived = paid.assign(age="month * 2")
    steps = [T.Derive(age="month * 2"), T.Cast({"late": "float64"})]
    transformed = gp.Pipeline(steps).fit(paid).transform(paid)
    assert judge(transformed.filter("month < 2"), transformed.filter("month >= 2")).numeric
    for data in (aged, derived, transformed):
        assert judge(data.filter("age < 2"), data.filter("age >= 2")).numeric
        assert judge(data.filter("age < 2"), data.filter("age >= 2 and age < 9")).numeric
        with pytest.raises(errors.LeakageError):
            judge(data.filter("age < 3"), data.filter("age >= 2"))
    other = paid.assign(age="month * 3")
    tripled = gp.Pipeline([T.Derive(age="month * 3")]).fit(paid).transform(paid)
    with pytest.raises(errors.LeakageError):
        judge(transformed.filter("age < 3"), tripled.filter("age >= 3"))
    with pytest.raises(errors.LeakageError):
        judge(derived.filter("age < 3"), other.filter("age >= 3"))
    with pytest.raises(errors.LeakageError):
        judge(derived.filter("age < 3"), paid.assign(age="0 - month").assign(age="age + 5").filter("age >= 3"))


@pytest.mark.parametrize("cut", ["time", "random", "price <= 2 | price > 2"])
def test_a_label_that_several_rows_share_is_found_again_in_another_part(cut: str) -> None:
    """A store's label, joined to its days: the days of one part hold the label of those of the other."""
    labels = gp.from_frame(pd.DataFrame({"store": [*"abcd"], "label": [0.0, 1.0, 1.0, 0.0]}))
    data = sales().join(labels, on="store")
    one, other = halves(data, cut)
    first = one.deduplicate("store").select(["store", "label"]).assign(again="label").select(["store", "again"])
    then = one.select(["store", "date", "label"]).assign(again="label").select(["store", "date", "again"])
    means = one.group_by("store").agg(again=("label", "mean"))
    joined = [other.join(means, on="store"), other.join(first, on="store")]
    for table in (*joined, other.join_asof(then, on="date", by="store")):
        with pytest.raises(errors.LeakageError, match="'again'"):
            fit(table, "again", target="label")
    for step in (T.Join(first, on="store"), T.JoinAsOf(then, on="date", by="store")):
        with pytest.raises(errors.LeakageError, match="'again'"):
            fit(other, "again", target="label", steps=[step])
    prices = one.group_by("store").agg(again=("price", "mean"))
    assert fit(other.join(prices, on="store"), "again", target="label").schema.numeric


def test_a_part_by_another_column_of_the_same_name_is_not_apart() -> None:
    other = sales().assign(price="9.0 - price").sort("date").filter("price > 4")
    averages = other.group_by("store").agg(mean=("sales", "mean"))
    with pytest.raises(errors.LeakageError):
        fit(sales().filter("price <= 4").join(averages, on="store"), "mean", target="sales")


def test_a_feature_computed_from_a_count_that_is_the_target_leaks() -> None:
    steps = [T.CumulativeCount("store", order_by="date"), T.Derive(twice="cumcount_by_store * 2.0")]
    with pytest.raises(errors.LeakageError, match="'twice'"):
        fit(SALES, "twice", target="cumcount_by_store", task="regression", steps=steps)
    assert fit(SALES, "price", target="cumcount_by_store", task="regression", steps=steps).schema.numeric


def test_predictions_come_from_their_features_and_from_what_the_model_has_learned_of_the_rows() -> None:
    data = gp.from_frame(SALES.assign(row=range(len(SALES))))
    train, valid = data.split(by="date", at="2024-01-09")
    pipeline = gp.Pipeline([], gp.Features(["price"], target="sales", task="regression", keep=["row"])).fit(train)
    scorer = gp.Scorer(pipeline, gp.models.Linear.from_schema(pipeline.schema))
    for rows, targets in ((train, ["sales", "price"]), (valid, ["price"]), (data, ["sales", "price"])):
        predicted = rows.join(scorer.predict(rows), on="row")
        for target in targets:
            with pytest.raises(errors.LeakageError, match="'prediction'"):
                fit(predicted, "prediction", target=target, task="regression")
    assert fit(valid.join(scorer.predict(valid), on="row"), "prediction", target="sales").schema.numeric


def test_the_time_by_which_a_target_was_looked_up_is_known() -> None:
    """Hours until the next failure are those of the time of a reading, which windows over readings are ordered by."""
    rows = {"store": [*"abcd"], "at": pd.Timestamp("2024-01-12"), "failed": pd.Timestamp("2024-01-12")}
    failures = gp.from_frame(pd.DataFrame(rows)).select(["store", "at", "failed"])
    data = sales().join_asof(failures, left_on="date", right_on="at", by="store", direction="forward")
    data = data.assign(soon="coalesce((failed - date) / 86400 <= 5, False)", left="(failed - date) / 86400")
    steps = [T.Lag("price", **STORES), T.Rolling("price", 2, **STORES), T.Derive(day="day(date)", then="day(failed)")]
    means = data.group_by("date").agg(mean=("price", "mean"))
    for target in ("soon", "left"):
        names = ["price_lag_1_by_store", "price_rolling_mean_2_by_store", "day", "mean"]
        assert fit(data.join(means, on="date"), *names, target=target, steps=steps).schema.numeric
        with pytest.raises(errors.LeakageError, match="'then'"):
            fit(data, "then", target=target, steps=steps)
    with pytest.raises(errors.LeakageError, match="'day'"):
        fit(sales().assign(end="date"), "day", target="day(end) * 2 - day(date) > 3", steps=[T.Derive(day="day(date)")])


def test_a_number_that_a_window_is_ordered_by_is_no_time() -> None:
    window = T.Rolling("price", 2, by="store", order_by="sales")
    steps = [window, T.Derive(gap=f"{window.makes[0]} - sales")]
    with pytest.raises(errors.LeakageError, match="'sales'"):
        fit(SALES, "sales", target="gap", task="regression", steps=steps)


def test_one_permission_is_offered_for_all_that_a_column_of_the_target_finds() -> None:
    steps = [T.Lag(["price", "sales"], **STORES), T.Derive(late="day(date) > 9")]
    with pytest.raises(errors.LeakageError) as caught:
        fit(SALES, "price_lag_1_by_store", LAG, target="late", steps=steps)
    allowed = ["price_lag_1_by_store", LAG]
    assert f"Features(allow_leak={allowed})" in caught.value.remedy
    assert fit(SALES, *allowed, target="late", steps=steps, allow_leak=allowed).schema.numeric


def offered(error: errors.LeakageError) -> list[str]:
    """Return the features of the permission that an error offers."""
    names: list[str] = ast.literal_eval(error.remedy.rpartition("allow_leak=")[2].partition(")")[0])
    return names


def test_one_error_offers_permission_for_all_features_that_leak() -> None:
    steps = [*WINDOWS, T.Lag("price", by="store", order_by="sales"), T.Derive(twice="sales * 2")]
    lookup, own = "price_lag_1_by_store", [LEAD, "log", "twice"]
    names = [lookup, "price", LAG, *own]  # what another row was found by, no leak, no leak, later and own values
    with pytest.raises(errors.LeakageError, match=f"feature {own[0]!r}: it is computed from") as caught:
        fit(SALES, *names, steps=steps)
    assert f"; {lookup!r}, 'log', 'twice' may leak, too" in caught.value.problem
    assert offered(caught.value) == [lookup, *own] and "leave them out" in caught.value.remedy
    assert "if that is meant" in caught.value.remedy
    with pytest.raises(errors.LeakageError, match="feature 'log': ") as caught:
        fit(SALES, *names, steps=steps, allow_leak=["twice", LEAD])
    assert offered(caught.value) == ["twice", LEAD, lookup, "log"]  # in place of the last list
    report = fit(SALES, *names, steps=steps, allow_leak=offered(caught.value)).fit_report
    assert report is not None
    assert [note.split("'")[1] for note in report.notes if "may leak" in note] == [lookup, *own]


def test_snapshots_put_together_need_one_permission() -> None:
    """Each store's sales before a day, beside those after it: the second snapshot holds the target of the first."""

    def snapshot(cut: str, end: str) -> gp.Dataset:
        past, future = sales().filter(f"date < '{cut}'"), sales().filter(f"date >= '{cut}' and date < '{end}'")
        past = past.assign(age=f"(timestamp('{cut}') - date) / 86400")
        known = past.group_by("store").agg(orders=("sales", "size"), spent=("sales", "sum"), since=("age", "min"))
        following = future.group_by("store").agg(value=("sales", "sum"))
        return known.join(following, on="store", how="left").assign(value="coalesce(value, 0.0)")

    both = gp.concat([snapshot("2024-01-05", "2024-01-08"), snapshot("2024-01-08", "2024-01-11")])
    names = ["orders", "spent", "since"]
    with pytest.raises(errors.LeakageError, match="feature 'orders': it is computed from") as caught:
        fit(both, *names, target="value")
    assert offered(caught.value) == names
    assert fit(both, *names, target="value", allow_leak=names).schema.numeric


def test_keys_of_several_columns_are_named_in_one_condition() -> None:
    steps = [T.Lag("price", by="store", order_by="date"), T.Lag("sales", by="store", order_by="number")]
    data, names = SALES.assign(number=range(24)), ["price_lag_1_by_store", "sales_lag_1_by_store"]
    with pytest.raises(errors.LeakageError, match=f"feature {names[0]!r}: it is of rows that are found by") as caught:
        fit(data, *names, target="day(date) + number", task="regression", steps=steps)
    assert offered(caught.value) == names
    assert "if ['date', 'number'] are known before the target is" in caught.value.remedy


def test_a_rank_by_a_number_is_computed_from_it() -> None:
    data = sales().assign(day="day(date)")
    for by, target in (("sales", "sales"), ("date", None)):
        count = T.CumulativeCount("day" if by == "sales" else "store", order_by=by)
        name = count.makes[0]
        if target:
            for feature, told in ((name, target), (target, name)):
                with pytest.raises(errors.LeakageError, match=repr(feature)):
                    fit(data, feature, target=told, task="regression", steps=[count])
        assert fit(data, "price", "day", target=name, task="regression", steps=[count]).schema.numeric


def test_parts_marked_by_a_constant_and_put_together_are_told_by_its_copies(tmp_path: Path) -> None:
    bought, shown = (gp.from_frame(SALES[SALES["store"] == store][["date", "price"]]) for store in "ab")
    data = gp.concat([bought.assign(label="1"), shown.assign(label="0")])
    data.write_parquet(tmp_path / "both")
    for table in (data, gp.read_parquet(tmp_path / "both")):
        rates = table.group_by("price").agg(rate=("label", "mean"))
        counts = table.filter("label == 1").group_by("price").agg(n=("date", "size"))
        joined = table.join(rates, on="price").join(counts, on="price")
        steps = [T.Derive(twice="label * 2.0", mixed="where(label == 1, 0.5, price)")]
        for name in ("rate", "n", "twice", "mixed"):
            with pytest.raises(errors.LeakageError, match=repr(name)):
                fit(joined, name, target="label", steps=steps)
        assert fit(joined, "price", target="label", steps=steps).schema.numeric
    same = gp.concat([bought.assign(label="1"), shown.assign(label="0")])
    with pytest.raises(errors.LeakageError, match="'rate'"):
        fit(data.join(same.group_by("price").agg(rate=("label", "mean")), on="price"), "rate", target="label")


def test_a_row_before_in_another_order_than_the_targets_may_be_the_next() -> None:
    """Of what is sold tomorrow a lag in the order of the days that are left is the very value."""
    data = gp.from_frame(SALES.assign(left=range(len(SALES), 0, -1)), num_partitions=3, backend="cpu")
    target = [T.Lag("sales", -1, **STORES), T.Derive(up=f"{LEAD} > sales")]
    for order_by, is_leak in (("left", True), ("date", False), (["date", "price"], False)):
        lag = T.Lag("sales", by="store", order_by=order_by)
        if is_leak:
            with pytest.raises(errors.LeakageError, match="'sales_lag_1_by_store'"):
                fit(data, *lag.makes, target="up", steps=[*target, lag])
        else:
            assert fit(data, *lag.makes, target="up", steps=[*target, lag]).schema.numeric


def test_whether_a_row_was_joined_is_told_by_its_other_columns() -> None:
    """Users with no event later have churned: what else was computed of later events is missing for them, too."""
    rows = {"user": [1, 1, 2, 3, 3], "day": [1, 9, 2, 8, 8], "paid": [1.0, 2.0, 3.0, 4.0, 5.0], "kind": [*"ababa"]}
    events = gp.from_frame(pd.DataFrame(rows))
    users = gp.from_frame(pd.DataFrame({"user": [1, 2, 3, 4], "age": [20.0, 30.0, 40.0, 50.0]}))
    ages = gp.from_frame(pd.DataFrame({"user": [1, 2, 3], "score": [0.1, 0.5, 0.9]}))
    later, earlier = events.filter("day >= 5"), events.filter("day < 5")
    data = users.join(later.group_by("user").agg(n=("kind", "size"), spent=("paid", "sum")), on="user")
    data = data.join(later.group_by("user").agg(most=("paid", "max")).assign(hit="1"), on="user")
    data = data.join(earlier.group_by("user").agg(before=("paid", "sum")), on="user").join(ages, on="user")
    data = data.join(events.group_by("user").agg(ever=("paid", "max")), on="user")
    data = data.assign(gone="isnull(n)", is_back="coalesce(n, 0) > 0")
    steps = [T.Derive(paying="coalesce(spent, 0) > 0")]
    for target in ("gone", "is_back", "isnull(n)", "notnull(n)"):
        for name in ("n", "spent", "most", "hit", "paying", "ever"):
            with pytest.raises(errors.LeakageError, match=repr(name)):
                fit(data, name, target=target, steps=steps)
        assert fit(data, "age", "before", "score", target=target, steps=steps).schema.numeric
    assert fit(data, "spent", target="n > 1").schema.numeric  # known only of users who were found
    ahead = [T.Lag(["sales", "price"], [1, -1], **STORES), T.Rolling("price", 3, **STORES)]
    for name in (
        "price_lag_1_by_store",
        "price_rolling_mean_3_by_store",
        "price",
    ):  # no sale tomorrow: today's are known
        assert fit(SALES, name, target=f"isnull({LEAD})", steps=ahead).schema.numeric
    with pytest.raises(errors.LeakageError):
        fit(SALES, "price_lead_1_by_store", target=f"isnull({LEAD})", steps=ahead)


def test_whether_a_row_comes_next_is_told_by_all_that_share_its_key() -> None:
    """Of machines that fail within a day, those that ever failed are few: their number, and what repairs cost."""
    times = pd.date_range("2024-01-01", periods=20)
    reads = gp.from_frame(pd.DataFrame({"machine": [1, 2] * 10, "time": times, "heat": 1.0}))
    rows = {"machine": [1, 2], "failed_at": times[[5, 14]], "cost": [5.0, 9.0]}
    failures = gp.from_frame(pd.DataFrame(rows)).assign(key="failed_at")
    as_of = {"left_on": "time", "right_on": "key", "by": "machine"}
    ahead = {"direction": "forward", "tolerance": "1d", "columns": ["failed_at"]}
    data = reads.join_asof(failures, **as_of, **ahead).assign(fails="notnull(failed_at)")
    before = data.join_asof(failures, **as_of, columns=["cost"], allow_exact_matches=False)
    assert fit(before, "heat", "cost", target="fails").schema.numeric
    of_machines = failures.group_by("machine")
    tables = [of_machines.agg(cost=("cost", function)) for function in ("size", "count", "first")]
    for table in (*tables, failures, failures.filter("cost > 5")):
        steps = [T.Join(table.select(["machine", "cost"]), on="machine")]
        for joined, before_fit in ((data.join(table, on="machine", columns=["cost"]), []), (data, steps)):
            with pytest.raises(errors.LeakageError, match="'cost'"):
                fit(joined, "cost", target="fails", steps=before_fit)


ORDERS = pd.DataFrame({"order": range(60), "customer": [*range(6)] * 10, "at": pd.date_range("2024-01-01", periods=60)})
ORDERS = ORDERS[(ORDERS["order"] % 7 > 1) | (ORDERS["customer"] < 2)].assign(amount=lambda rows: rows["order"] % 13)
NO_NEXT = ["isnull(at_lead_1_by_customer)", "isnull(amount_lead_1_by_customer)", "coalesce(gap < 7, False)"]


@pytest.mark.parametrize("target", NO_NEXT)
@pytest.mark.parametrize("is_step", [False, True])
def test_whether_there_is_a_next_row_is_told_by_how_many_there_are(target: str, is_step: bool) -> None:
    """The customer's last order is the tenth of ten: `n` of all orders, those to come among them, beside a count."""
    data, by = gp.from_frame(ORDERS), {"by": "customer", "order_by": ["at", "order"]}
    sums = {"n": ("order", "size"), "keys": ("customer", "size"), "spent": ("amount", "sum")}
    groups = data.group_by("customer").agg(**sums)
    steps = [T.Lag("at", -1, **by), T.Lag("amount", -1, **by), T.Derive(gap="(at_lead_1_by_customer - at) / 86400")]
    past = [T.Lag("amount", 1, **by), T.Expanding("amount", "mean", closed="left", **by)]
    data, joins = (data, [T.Join(groups, on="customer")]) if is_step else (data.join(groups, on="customer"), [])
    count = T.CumulativeCount("customer", order_by=["at", "order"])
    steps += [*past, count, *joins, T.Derive(rest="n - cumcount_by_customer")]
    later = ["gap", "amount_lead_1_by_customer", *sums, "rest"]
    for name in later:
        with pytest.raises(errors.LeakageError, match=f"feature {name!r}"):
            fit(data, name, target=target, steps=steps)
    for group in ((["customer", "amount"], pre.GroupStats("customer", ["size"])), (["customer"], pre.CountEncoder())):
        with pytest.raises(errors.LeakageError, match="'customer'"):
            gp.Pipeline(steps, gp.Features(group, target=target)).fit(data)
    names = ["amount", "amount_lag_1_by_customer", "amount_expanding_mean_by_customer"]
    assert fit(data, *names, target=target, steps=steps).schema.numeric


def test_whether_a_group_comes_next_is_told_by_how_many_there_are() -> None:
    """Visits of users are groups of events: a user's last visit is known by the number of all."""
    draw = np.random.default_rng(0)
    events = {"user": draw.integers(0, 9, 300), "visit": draw.integers(0, 6, 300), "page": draw.integers(0, 9, 300)}
    table = gp.from_frame(pd.DataFrame(events).assign(at=pd.date_range("2024-01-01", periods=300, freq="h")))
    visits = table.group_by(["user", "visit"]).agg(start=("at", "min"), pages=("page", "size"))
    by = {"by": "user", "order_by": "start"}
    totals = visits.group_by("user").agg(total=("visit", "size"), seen=("pages", "sum"))
    steps = [T.Lag("start", -1, **by), T.Lag("pages", 1, **by), T.Join(totals, on="user")]
    for name in ("total", "seen"):
        with pytest.raises(errors.LeakageError, match=f"feature {name!r}"):
            fit(visits, name, target="isnull(start_lead_1_by_user)", steps=steps)
    assert fit(
        visits, "pages", "pages_lag_1_by_user", target="isnull(start_lead_1_by_user)", steps=steps
    ).schema.numeric


@pytest.mark.parametrize("how", ["join", "step", "one table"])
def test_whether_there_is_a_row_of_a_kind_is_told_by_the_kinds_of_its_group(how: str) -> None:
    """Who buys wine in a month has a share of wine among what is bought, which another table says."""
    draw = np.random.default_rng(0)
    names = {"customer": 60, "month": 4, "sku": 20, "qty": 5}
    lines = pd.DataFrame({name: draw.integers(0, most, 800) for name, most in names.items()})
    products = pd.DataFrame({"sku": range(20), "is_wine": [False, False, True, False] * 5})
    people = pd.DataFrame({"customer": range(60), "age": draw.normal(40, 9, 60)})
    left, right, key = gp.from_frame(lines, num_partitions=2), gp.from_frame(products), ["customer", "month"]
    if how == "one table":
        bought = gp.from_frame(lines.merge(products, on="sku"))
    else:
        step = T.Join(right, on="sku")
        bought = left.join(right, on="sku") if how == "join" else gp.Pipeline([step]).fit(left).transform(left)
    bought = bought.join(gp.from_frame(people.assign(score=1.5)).select(["customer", "score"]), on="customer")
    kinds = {
        "share": ("is_wine", "mean"),
        "most": ("is_wine", "max"),
        "n": ("sku", "size"),
        "score": ("score", "first"),
    }
    months = bought.group_by(key).agg(**kinds).join(gp.from_frame(people), on="customer")
    wines = bought.filter("is_wine").group_by(key).agg(wines=("qty", "sum"))
    data = months.join(wines, on=key).assign(buys="notnull(wines)", next="month + 1")
    for part in (data, data.split(0.7)[0]):
        for name in ("share", "most", "n", "wines"):
            with pytest.raises(errors.LeakageError, match=repr(name)):
                fit(part, name, target="buys")
        assert fit(part, "age", "score", "month", target="buys").schema.numeric
    lag = T.Lag("share", by="customer", order_by="month")
    assert fit(data, *lag.makes, target="share", steps=[lag]).schema.numeric


@pytest.mark.slow
def test_what_does_not_know_all_keys_of_a_count_does_not_tell_it() -> None:
    data = SALES.assign(item=[*"xyxxyy"] * 4)
    steps: list[Any] = [
        T.CumulativeCount(["store", "item"], order_by="date"),
        T.Derive(again="cumcount_by_store_item > 0", day="day(date)"),
        T.Lag(["price", "again"], **STORES),
        T.Expanding("again", "mean", closed="left", **STORES),
        T.Lag("sales", by=["store", "item"], order_by="date"),
    ]
    for name in ("price_lag_1_by_store", "again_lag_1_by_store", "again_expanding_mean_by_store", "day"):
        assert fit(data, name, target="again", steps=steps).schema.numeric
    for name in ("sales_lag_1_by_store_item", "cumcount_by_store_item"):  # which is missing at the first purchase
        with pytest.raises(errors.LeakageError):
            fit(data, name, target="again", steps=steps)


@pytest.mark.slow
def test_the_row_before_has_the_own_label_where_a_key_in_both_looks_it_up() -> None:
    stores = gp.from_frame(pd.DataFrame({"store": ["a", "b"], "open": [True, False], "region": ["n", "s"]}))
    regions = gp.from_frame(pd.DataFrame({"region": ["n", "s"], "rich": [True, False]}))
    joined = sales().join(stores, on="store").join(regions, on="region")
    steps = [T.Join(stores, on="store"), T.Join(regions, on="region")]
    for data, before in ((joined, []), (sales(), steps)):
        for target, lag in (
            ("open", T.Lag("open", **STORES)),
            ("open", T.Expanding("open", "mean", closed="left", by=["store", "region"], order_by="date")),
            ("rich", T.Lag("rich", **STORES)),
            ("rich", T.Lag("rich", by="region", order_by="date")),
        ):
            with pytest.raises(errors.LeakageError):
                fit(data, *lag.makes, target=target, steps=[*before, lag])
        week = [*before, T.Derive(week="floor(date, '7d')"), T.Lag("open", by="week", order_by="date")]
        assert fit(data, "open_lag_1_by_week", target="open", steps=week).schema.numeric
    labels = gp.from_frame(SALES[["store", "date", "sales"]].rename(columns={"sales": "label"}))
    keys, lag = ["store", "date"], [T.Lag("label", **STORES)]
    assert fit(sales().join(labels, on=keys), "label_lag_1_by_store", target="label", steps=lag).schema.numeric
    steps = [T.Join(labels, on=keys), *lag]
    assert fit(sales(), "label_lag_1_by_store", target="label", steps=steps).schema.numeric
    for table in (labels.group_by("store").agg(label=("label", "sum")), labels.deduplicate("store")):
        steps = [T.Join(table, on="store", columns="label"), *lag]
        with pytest.raises(errors.LeakageError):
            fit(sales(), "label_lag_1_by_store", target="label", steps=steps)


def test_the_key_of_a_target_may_follow_from_earlier_rows() -> None:
    begins = [T.Difference("date", **STORES), T.Derive(begins="coalesce(date_diff_1_by_store > 86_400, True)")]
    numbers = [*begins, T.Expanding("begins", "sum", **STORES), T.Rename({"begins_expanding_sum_by_store": "session"})]
    numbered = gp.Pipeline(numbers, backend="cpu").fit(sales()).transform(sales())
    spans = {"start": ("date", "min"), "cost": ("price", "sum"), "best": ("sales", "max"), "sold": ("sales", "sum")}
    sessions = numbered.group_by(["store", "session"]).agg(**spans)
    steps = [T.Derive(hour="hour(start)")]
    assert fit(sessions, "hour", "cost", "session", target="sold", steps=steps).schema.numeric
    with pytest.raises(errors.LeakageError, match="'best'"):
        fit(sessions, "best", target="sold")


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_a_key_of_rows_that_match_nothing_is_the_right_tables(how: str) -> None:
    levels = gp.from_frame(pd.DataFrame({"level": [1.0, 8.0, 30.0], "name": [5.0, 6.0, 7.0]}))
    right = (
        gp.Pipeline([T.Derive(label="sales > 3")]).fit(sales()).transform(sales()).select(["sales", "label", "price"])
    )
    joined = levels.join(right, left_on="level", right_on="sales", how=how, many=True)
    assert fit(joined, "price", target="label").schema.numeric
    for name in ("level", "name"):
        if how in ("inner", "left"):
            assert fit(joined, name, target="label").schema.numeric
        else:  # the key is the sales, and the name was looked up by them
            with pytest.raises(errors.LeakageError, match=f"feature '{name}'"):
                fit(joined, name, target="label")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["one pipeline", "two"])
def test_earlier_rows_of_the_target_need_no_permission(stage: str) -> None:
    steps = [*WINDOWS, T.Lag(LEAD, by="store", order_by="date"), T.Lag("sales", 2)]
    data, steps = (sales(), steps) if stage == "one pipeline" else (compute_windows(sales()), steps[-2:])
    assert not any("leak" in note for note in fit(data, LAG, EARLIER, steps=steps).fit_report.notes)
    of_lead, unordered = f"{LEAD}_lag_1_by_store", "sales_lag_2"  # the row's own value; whatever row stands there
    for name in (ITSELF, LEAD, "sales_diff_1_by_store", of_lead, unordered):
        with pytest.raises(errors.LeakageError, match=f"feature '{name}'") as caught:
            fit(data, LAG, name, steps=steps, allow_leak=[LAG])
        assert ("closed='left'" in (caught.value.remedy or "")) == (name == ITSELF)
        report = fit(data, LAG, name, steps=steps, allow_leak=[name]).fit_report
        assert report is not None
        (note,) = (note for note in report.notes if "leak" in note)
        assert note.startswith(f"feature {name!r} may leak, as allow_leak permits: it is computed from ['sales']")


@pytest.mark.slow
@pytest.mark.parametrize("write", [None, write_file])
def test_earlier_groups_of_the_target_need_no_permission(
    write: Callable[..., gp.Dataset] | None, tmp_path: Path
) -> None:
    """Lines are summed up to days, whose sums are the target; a day of two hours' lags is of rows in any days."""
    data = sales()
    days = gp.Pipeline([T.Derive(day="floor(date, '1d')")], backend="cpu").fit(data).transform(data)
    sums = days.group_by(["store", "day"]).agg(sales=("sales", "sum"), most=("sales", "max"), price=("price", "mean"))
    days = sums if write is None else write(sums, tmp_path)
    order = {"by": "store", "order_by": "day"}
    steps = [T.Lag("sales", [1, -1], **order), T.Rolling("sales", 2, **order), T.Lag("most", **order)]
    steps = [*steps, T.Rolling("sales", 2, "sum", closed="left", **order), T.Lag(LEAD, **order)]
    earlier = [LAG, "most_lag_1_by_store", "sales_rolling_sum_2_by_store", "price"]
    assert fit(days, *earlier, steps=steps).schema.numeric
    assert fit(days, "sales", "most", *earlier, target=LEAD, steps=steps).schema.numeric
    for name in ("most", LEAD, EARLIER, f"{LEAD}_lag_1_by_store"):
        with pytest.raises(errors.LeakageError, match=f"feature '{name}'"):
            fit(days, name, steps=steps)
    totals, bests = (data.group_by("store").agg(**{name: ("sales", name)}) for name in ("sum", "max"))
    with pytest.raises(errors.LeakageError, match="feature 'sum'"):
        fit(totals.join(bests, on="store"), "sum", target="max")
    lagged = gp.Pipeline(steps, backend="cpu").fit(sums).transform(sums).select(["store", LAG, "most"])
    lines = gp.Pipeline([T.Lag("sales", -1, **STORES)], backend="cpu").fit(data).transform(data)
    for name, target in ((LAG, "sales"), ("most", LEAD)):  # an earlier day's sum may be a later line's, and hold it
        with pytest.raises(errors.LeakageError, match=f"feature '{name}'"):
            fit(lines.join(lagged, on="store", many=True), name, target=target)
        with pytest.raises(errors.LeakageError, match=f"feature '{name}'"):
            fit(lagged.join(lines, on="store", many=True), name, target=target)


def write_folders(data: gp.Dataset, folder: Path) -> gp.Dataset:
    data.write_parquet(folder / "sales", partition_by=["sales"])
    return gp.read_parquet(folder / "sales")


SORTS: dict[str, Callable[[gp.Dataset, Path], gp.Dataset]] = {
    "sort": lambda data, _: data.sort("sales"),
    "computed": lambda data, _: (
        compute_windows(data).sort("log", ascending=False).select(["store", "date", "sales", "price"])
    ),
    "stable": lambda data, _: data.sort("sales").sort("store"),
    "verbs": lambda data, _: gp.concat(
        [data.sort("sales").filter("price >= 1").split(0.9)[0], data.filter("price < 1")]
    ),
    "join": lambda data, _: data.sort("sales").join(data.group_by("store").agg(n=("date", "size")), on="store"),
    "joined": lambda data, _: gp.from_frame(pa.table({"store": ["a", "b"]})).join(
        data.sort("sales"), on="store", many=True
    ),
    "file": lambda data, folder: write_file(data.sort("sales"), folder),
    "folders": write_folders,
}


@pytest.mark.parametrize(("sort", "stage"), [*((sort, "one pipeline") for sort in SORTS), ("sort", "two")])
def test_a_window_over_rows_in_the_order_of_the_target_leaks(sort: str, stage: str, tmp_path: Path) -> None:
    def check(data: gp.Dataset, step: T.Transform, name: str, *, leaks: bool) -> None:
        steps = [step]
        if stage == "two":
            data, steps = gp.Pipeline(steps, backend="cpu").fit(data).transform(data), []
        if not leaks:
            assert fit(data, name, "price", steps=steps).schema.numeric
            return
        with pytest.raises(errors.LeakageError, match=f"feature {name!r}: its step has no order_by") as caught:
            fit(data, name, "price", steps=steps)
        assert "order_by=" in (caught.value.remedy or "")

    data = SORTS[sort](sales(), tmp_path)
    check(data, T.Lag("price"), "price_lag_1", leaks=True)
    check(data, T.CumulativeCount("store"), "cumcount_by_store", leaks=True)
    check(data, T.Lag("price", order_by="date"), "price_lag_1", leaks=False)
    check(data.shuffle(), T.Lag("price"), "price_lag_1", leaks=False)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_a_window_without_an_order_is_offered_one_alone(is_grouped: bool) -> None:
    data = sales().group_by(["store", "date"]).agg(sales=("sales", "sum")) if is_grouped else sales()
    for step in (
        partial(T.Rolling, "sales", 2, min_periods=1, closed="left", by="store"),
        partial(T.Expanding, "sales", closed="left", by="store"),
        partial(T.Lag, "sales", by="store"),
        partial(T.Difference, "sales", by="store"),
    ):
        (name,) = step().makes
        with pytest.raises(errors.LeakageError, match=f"feature {name!r}") as caught:
            fit(data, name, steps=[step()])
        assert "closed=" not in caught.value.remedy
        assert ("order_by=" in caught.value.remedy) == (step.func is not T.Difference)  # which holds the own value
        if step.func is not T.Difference:
            assert fit(data, name, steps=[step(order_by="date")]).schema.numeric


TIED = SALES.assign(date=SALES["date"].dt.floor("2D"))  # two rows of a store have one date


@pytest.mark.parametrize("stage", ["one pipeline", pytest.param("two", marks=pytest.mark.slow)])
def test_rows_of_one_time_are_no_earlier_rows(stage: str) -> None:
    def check(step: Any, *, leaks: bool, data: gp.Dataset) -> None:
        steps, (name,) = [step], step.makes
        if stage == "two":
            data, steps = gp.Pipeline(steps, backend="cpu").fit(data).transform(data), []
        if not leaks:
            assert fit(data, name, "price", steps=steps).schema.numeric
            return
        with pytest.raises(errors.LeakageError, match=f"feature {name!r}") as caught:
            fit(data, name, "price", steps=steps)
        assert "order_by" in (caught.value.remedy or "")
        if stage == "one pipeline":
            order = [*step.keys, *step.order]
            assert f"{type(step).__name__}, by {order}, 10 rows are alike to the row before" in caught.value.problem
        report = fit(data, name, "price", steps=steps, allow_leak=[name]).fit_report
        assert report is not None
        assert sum("may leak" in note for note in report.notes) == 1

    data = gp.from_frame(TIED, num_partitions=3, backend="cpu")
    check(T.Lag("sales", **STORES), leaks=True, data=data)
    check(T.Lag("sales", order_by=["date", "store"]), leaks=True, data=data)
    check(T.Rolling("sales", 2, min_periods=1, closed="left", **STORES), leaks=True, data=data)
    check(
        T.Rolling("sales", "4 days", closed="left", **STORES), leaks=False, data=data
    )  # without rows of the same time
    check(T.Lag("sales", by="store", order_by=["date", "price"]), leaks=False, data=data)
    check(T.CumulativeCount("store", order_by="date"), leaks=False, data=data)
    for step in (
        T.CumulativeCount("store", order_by="date"),
        T.Lag("price", **STORES),
    ):  # they count the target's ranks
        check(step, leaks=True, data=data.sort("sales"))
        check(step, leaks=False, data=data.sort("price").shuffle())


def test_rows_without_a_time_or_a_key() -> None:
    """Those without a time are alike; those without a key have no windows."""
    few = pd.DataFrame(
        {"store": ["a", "a", "b", "b", None, None], "sales": [3.0, 5.0, 2.0, 7.0, 1.0, 6.0], "price": 1.0}
    )
    days = pd.Series(pd.to_datetime(["2024-01-01", None, "2024-01-01", "2024-01-02", "2024-01-01", "2024-01-01"]))
    steps: list[Any] = [T.Lag("sales", **STORES)]
    assert fit(few.assign(date=days), LAG, steps=steps, task="regression").schema.numeric
    with pytest.raises(errors.LeakageError, match="1 row "):
        fit(few.assign(date=days.where(few["store"] != "a")), LAG, steps=steps, task="regression")


@pytest.mark.parametrize("join", ["verb", "step"])
def test_the_last_row_of_a_time_is_that_of_the_order(join: str) -> None:
    def check(right: gp.Dataset, *, leaks: bool, **options: Any) -> None:
        data, steps, options = table, list[Any](), {"on": "date", "by": "store", "columns": ["price"], **options}
        right = right.select(["store", "date", "price"])
        if join == "verb":
            data = data.join_asof(right, **options)
        else:
            steps = [T.JoinAsOf(right, **options)]
        if not leaks:
            assert fit(data, "price_right", steps=steps).schema.numeric
            return
        with pytest.raises(errors.LeakageError, match="feature 'price_right'"):
            fit(data, "price_right", steps=steps)

    table = sales()
    check(table.sort("sales"), leaks=True)
    check(table.sort("price"), leaks=False)
    check(table.sort("sales"), leaks=False, allow_exact_matches=False)


def join_as_of(data: gp.Dataset, right: gp.Dataset, join: str, **options: Any) -> gp.Dataset:
    """Join the last row before the own time, or as the options say."""
    options = {"on": "date", "allow_exact_matches": False, **options}
    if join == "verb":
        return data.join_asof(right, **options)
    result: gp.Dataset = gp.Pipeline([T.JoinAsOf(right, **options)], backend="cpu").fit_transform(data)
    return result


@pytest.mark.parametrize("join", ["verb", "step"])
def test_a_row_before_is_earlier_whatever_the_keys_are_called(join: str) -> None:
    data = gp.from_frame(SALES.assign(other=[*"bbaa"] * 6, code=range(len(SALES))), backend="cpu")
    past, keys = data.assign(last="sales", shop="store"), {"left_by": "store", "right_by": "shop"}
    columns = ["date", "shop", "last"]
    for right in (
        past.select(columns),
        past.assign(shop="other").select(columns),
        gp.concat([past.select(columns), past.assign(shop="other").select(columns)]),
        past.assign(shop="where(sales > 5, 'a', 'b')").select(columns),  # of the earlier row
        past.group_by(["date", "shop"]).agg(last=("last", "max")),
    ):
        assert fit(join_as_of(data, right, join, **keys), "last").schema.numeric
    for right, options in (
        (past.select(columns), {"allow_exact_matches": True}),
        (past.assign(date="floor(date, '7d')").select(columns), {}),
        (past.assign(code="code - 2").select(["code", "shop", "last"]), {"on": "code"}),
        (gp.concat([past, past.assign(code="code - 2")]).select(["code", "shop", "last"]), {"on": "code"}),
    ):
        with pytest.raises(errors.LeakageError, match="'last'"):
            fit(join_as_of(data, right, join, **keys, **options), "last")


@pytest.mark.parametrize("join", ["verb", "step"])
def test_a_row_that_a_key_of_the_target_finds_tells_it(join: str) -> None:
    data, sign = sales(), "where({} > 5, 'a', 'b')"
    following = gp.Pipeline([T.Lag("sales", -1, order_by="date")], backend="cpu").fit_transform(data)
    current = data.assign(mark="1", sign=sign.format("sales")).select(["date", "sign", "mark"])
    before = following.assign(mark="1", sign=sign.format("sales_lead_1")).select(["date", "sign", "mark"])
    keys = {"left_by": "store", "right_by": "sign"}
    on = {"left_on": ["date", "store"], "right_on": ["date", "sign"]}
    matches = data.join(current, **on) if join == "verb" else gp.Pipeline([T.Join(current, **on)]).fit_transform(data)
    by_sign = current.assign(store="sign").select(["date", "store", "mark"])
    for joined in (
        join_as_of(data, before, join, **keys),
        join_as_of(data, current, join, **keys, allow_exact_matches=True, tolerance="0s"),
        join_as_of(data, by_sign, join, by="store", allow_exact_matches=True),
        matches,
    ):
        with pytest.raises(errors.LeakageError, match="found by"):
            fit(joined, "mark")
    assert fit(join_as_of(data, current, join, **keys), "mark").schema.numeric


@pytest.mark.parametrize("route", ["join", "step", "as of", "as-of step", "lag", "count", "derived key", "group"])
def test_what_a_key_of_a_later_row_finds_tells_a_target_of_that_row(route: str) -> None:
    """Next month's price is there, where it was found, for whoever is there next month."""
    table = SALES.assign(number=SALES.groupby("store").cumcount())
    data = gp.Pipeline([T.Lag("number", -1, by="store", order_by="date")], backend="cpu").fit_transform(
        gp.from_frame(table)
    )
    lead, prices = "number_lead_1_by_store", gp.from_frame(pd.DataFrame({"number": range(12), "tariff": range(12)}))
    keys = {"left_on": lead, "right_on": "number"}
    if route == "derived key":
        data, keys = data.assign(next=f"{lead} // 2"), keys | {"left_on": "next"}
    if route in ("join", "derived key"):
        data = data.join(prices, **keys)
    elif route == "group":
        data = data.join(data.join(prices, **keys).group_by("store").agg(tariff=("tariff", "mean")), on="store")
    elif route == "as of":
        data = (
            data.filter(f"notnull({lead})")
            .assign(key=f"int({lead})")
            .join_asof(prices, left_on="key", right_on="number")
        )
    elif route == "lag":
        data = gp.Pipeline(
            [T.Lag("price", by=lead, order_by="date"), T.Rename({f"price_lag_1_by_{lead}": "tariff"})]
        ).fit_transform(data)
    elif route == "count":
        data = gp.Pipeline(
            [T.CumulativeCount(lead, order_by="date"), T.Rename({f"cumcount_by_{lead}": "tariff"})]
        ).fit_transform(data)
    elif route == "as-of step":
        data = data.assign(key=f"coalesce({lead}, 99)")
        data = gp.Pipeline([T.JoinAsOf(prices, left_on="key", right_on="number", name="prices")]).fit_transform(data)
    else:
        data = gp.Pipeline([T.Join(prices, **keys, name="prices")]).fit_transform(data)
    for target in (f"isnull({lead})", f"coalesce({lead}, 99) > 5"):
        with pytest.raises(errors.LeakageError, match="tariff"):
            fit(data, "tariff", target=target)
    assert fit(data, "tariff", target="sales").schema.numeric
    past = gp.Pipeline([T.Lag("tariff", 2, **STORES)], backend="cpu").fit_transform(
        data.select(["tariff", "store", "date", "sales"])
    )
    assert fit(past, "tariff_lag_2_by_store").schema.numeric


CHOICES: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    "first": lambda data: data.sort("sales").deduplicate("store"),
    "last": lambda data: data.sort("sales").shuffle().sort("sales").deduplicate("store", keep="last"),
    "filter": lambda data: data.filter("sales > 5 and price >= 0").deduplicate("store"),
    "split": lambda data: data.split(by="sales", at=5.0)[1].deduplicate("store"),
    "group": lambda data: data.filter("sales > 5").group_by("store").agg(price=("price", "mean")),
    "step": lambda data: gp.Pipeline([T.Filter("sales > 5")]).fit(data).transform(data).deduplicate("store"),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_chosen_by_the_target_tell_it_to_rows_that_find_them(choice: str) -> None:
    data = sales()
    chosen = CHOICES[choice](data).select(["store", "price"])
    for join in JOINS.values():
        joined, steps = join(data, chosen)
        with pytest.raises(errors.LeakageError, match="feature 'price_right': it is of rows that are found by"):
            fit(joined, "price_right", steps=steps)


def test_rows_that_are_chosen_are_no_leak_among_themselves() -> None:
    data = sales()
    best = data.sort("sales").deduplicate("price", keep="last")
    assert fit(best, "price", task="regression").schema.numeric
    assert fit(data.join(data.sort("date").deduplicate("store").select(["store", "price"]), on="store"), "price_right")
    assert fit(
        data.join(data.sort("sales").deduplicate().select(["store", "date", "price"]), on=["store", "date"]),
        "price_right",
    )
    sold = data.filter("sales > 1")  # on either side of the join, and of parts of it
    counts = sold.group_by("store").agg(n=("date", "size"), price=("price", "mean"))
    for part in (sold, sold.split(0.8)[0]):
        for join in JOINS.values():
            joined, steps = join(part, counts)
            assert fit(joined, "n", "price", steps=steps).schema.numeric
    past, later = data.split(by="date", at="2024-01-08")
    assert fit(later.join(past.filter("sales > 5").group_by("store").agg(n=("date", "size")), on="store"), "n")


def test_the_first_of_a_group_is_that_of_the_order() -> None:
    data, wanted = sales(), {"first": ("price", "first"), "most": ("price", "max")}
    joined = data.join(data.sort("sales").group_by("store").agg(**wanted), on="store")
    assert fit(joined, "most").schema.numeric
    days = data.sort("sales").group_by("date").agg(sales=("sales", "max"), price=("price", "max"))
    assert fit(
        days, "price_lag_1", steps=[T.Lag("price")]
    ).schema.numeric  # the groups stand in the order of their keys
    with pytest.raises(errors.LeakageError, match="feature 'first'"):
        fit(joined, "first")
    assert fit(data.join(data.sort("date").group_by("store").agg(**wanted), on="store"), "first").schema.numeric


def test_one_error_offers_permission_for_all_features_of_rows_of_one_time() -> None:
    steps = [T.Lag("sales", **STORES), T.Rolling("sales", 2, closed="left", order_by="date")]
    names = [name for step in steps for name in step.makes]
    with pytest.raises(errors.LeakageError, match=f"feature {names[0]!r}: in the order of Lag") as caught:
        fit(TIED, *names, "price", steps=steps)
    assert offered(caught.value) == names and f"; {names[1]!r} may leak, too" in caught.value.problem
    with pytest.raises(errors.LeakageError, match=f"feature {names[1]!r}: in the order of Rolling") as caught:
        fit(TIED, *names, "price", steps=steps, allow_leak=names[:1])
    assert offered(caught.value) == names and "may leak, too" not in caught.value.problem
    assert fit(TIED, *names, "price", steps=steps, allow_leak=names).schema.numeric


def test_tomorrow_may_be_predicted_from_today() -> None:
    for target in (LEAD, f"{LEAD} - sales"):
        assert fit(sales(), "sales", LAG, target=target, steps=WINDOWS).schema.numeric
    with pytest.raises(errors.LeakageError):
        fit(sales(), LEAD, target=f"{LEAD} - sales", steps=WINDOWS)


def test_a_permission_is_for_a_feature() -> None:
    with pytest.raises(errors.BadConfig, match="no feature is called so, got 'sales'"):
        fit(sales(), LAG, steps=WINDOWS, allow_leak=["sales"])


def test_statistics_of_all_rows_hold_the_later_ones() -> None:
    """The mean of a store's lags holds the sales of each of its rows; and so does a lag of lags in whatever order."""
    data, lags = compute_windows(sales()), {"mean": (LAG, "mean"), "price": ("price", "mean")}
    joined = data.join(data.group_by("store").agg(**lags), on="store", suffix="_mean")
    assert fit(joined, "price_mean", LAG).schema.numeric
    with pytest.raises(errors.LeakageError, match="feature 'mean'"):
        fit(joined, "mean")
    with pytest.raises(errors.LeakageError, match="feature 'mean'"):  # tomorrow's sales are among the store's
        fit(data.join(data.group_by("store").agg(mean=("sales", "mean")), on="store"), "mean", target=LEAD)
    with pytest.raises(errors.LeakageError, match=f"feature '{LAG}_lag_1'"):
        fit(data, f"{LAG}_lag_1", steps=[T.Lag(LAG)])
    statistics = gp.Features((["store", LAG], pre.GroupStats("store")), target="sales", task="regression")
    with pytest.raises(errors.LeakageError, match=f"feature '{LAG}'"):
        gp.Pipeline([], statistics).fit(data)
    statistics = gp.Features((["store", "price"], pre.GroupStats("store")), target="sales", task="regression")
    assert gp.Pipeline([], statistics).fit(data).schema.numeric


@pytest.mark.slow
@pytest.mark.parametrize("join", JOINS)
def test_a_lag_that_the_store_alone_finds_is_of_any_day(join: str) -> None:
    """The last row of each store holds a lag that is tomorrow's sales for all rows before."""
    data = sales()
    lags = compute_windows(data).select(["store", "date", LAG, "dear"])
    last = lags.filter("date >= '2024-01-12 12:00'").select(["store", LAG, "dear"])
    joined, steps = JOINS[join](data, last)
    assert fit(joined, "dear", steps=steps).schema.numeric
    with pytest.raises(errors.LeakageError, match=f"feature '{LAG}'"):
        fit(joined, LAG, steps=steps)
    joined, steps = JOINS[join](data, lags, ["store", "date"])
    assert fit(joined, LAG, steps=steps).schema.numeric


def test_a_proposal_leaves_out_what_was_computed_from_the_target() -> None:
    data = compute_windows(sales())
    features = gp.Features.auto(data, target="sales")
    columns = {name for group in features.groups for name in group.columns}
    assert columns == {"store", "date", "price", "dear", LAG, EARLIER}
    assert "log (computed from sales, as the target is)" in features.omitted
    assert gp.Pipeline([], features).fit(data).schema.numeric


@pytest.mark.parametrize("step", [T.DropMissing(["who"], when="always"), T.Filter("notnull(who)", when="always")])
def test_parts_of_a_table_behind_a_step_that_leaves_out_rows_are_apart(step: T.Transform) -> None:
    """What customers spent in a year tells nothing by itself of the next."""
    lines = pd.DataFrame({"who": ["a", "b", "c", None] * 30, "at": np.arange(120), "amount": np.arange(120.0) % 7})
    table = gp.from_frame(lines)
    cleaned = gp.Pipeline([step]).fit(table).transform(table)

    def sum_up(name: str, condition: str) -> gp.Dataset:
        return cleaned.filter(condition).group_by("who").agg(**{name: ("amount", "sum")})

    features = gp.Features((["spent"], pre.StandardScaler()), target="y", task="regression")
    gp.Pipeline([], features).fit(sum_up("spent", "at < 60").join(sum_up("y", "at >= 60"), on="who", how="left"))
    with pytest.raises(errors.LeakageError):
        gp.Pipeline([], features).fit(sum_up("spent", "at < 61").join(sum_up("y", "at >= 60"), on="who", how="left"))
    twice = pd.DataFrame({"who": ["a", "a"], "day": [10, 80]})  # whose days do not cut the lines
    cleaned = gp.Pipeline([T.Join(twice, on="who", many=True)]).fit(table).transform(table)
    with pytest.raises(errors.LeakageError):
        gp.Pipeline([], features).fit(sum_up("spent", "day < 60").join(sum_up("y", "day >= 60"), on="who", how="left"))
