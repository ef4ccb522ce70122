"""The leak guard against programs of random steps: a feature that changes with its own row's target is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import GpupipeError, LeakageError

ROWS = 12
TABLE = pd.DataFrame(
    {
        "id": np.arange(ROWS),
        "store": [*"abbaababbaab"],
        "x": [0, 3, 1, 2, 2, 0, 1, 3, 0, 2, 3, 1],
        "t": pd.Timestamp("2024-01-01") + pd.to_timedelta([3, 0, 7, 10, 1, 5, 11, 2, 8, 4, 9, 6], unit="D"),
        "y": [7.0, 2.0, 11.0, 5.0, 0.0, 9.0, 3.0, 8.0, 1.0, 10.0, 6.0, 4.0],
    }
)
CONDITIONS = ["x > 1", "y > 5", "t < '2024-01-08'", "y >= 3"]
CUTS = ["by t", "at random", "x <= 1 | x > 1", "y < 5 | y >= 5", "x <= 2 | x >= 2", "store == 'a' | store != 'a'"]
EXPRESSIONS = ["{0} * 2", "coalesce({0}, 0) + x", "where({0} > 5, 1, 0)", "notnull({0})", "x * 0 + 1"]
KEYS = [["store"], ["id"], ["store", "t"], ["x"], ["store", "x"], ["t"]]

Verb: TypeAlias = Callable[[gp.Dataset, str, str], gp.Dataset]  # of a column to read, and the name of a new one


class Step(NamedTuple):
    """What adds a column to a table; its text is for a failure's message."""

    text: str
    column: int
    verb: Verb


def rename(data: gp.Dataset, name: str, new: str) -> gp.Dataset:
    return data if name == new else gp.Pipeline([T.Rename({name: new})]).fit_transform(data)


def apply(step: T.Transform, data: gp.Dataset) -> gp.Dataset:
    result: gp.Dataset = gp.Pipeline([step]).fit_transform(data)
    return result


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, Verb]:
    by = draw(st.sampled_from([None, "store", "x", ["store", "x"]]))
    order = draw(st.sampled_from(["t", "t", "id", "x", ["x", "t"], None]))
    options: dict[str, Any] = {"by": by, "order_by": order}
    kind = draw(st.sampled_from(["lag", "lead", "rolling", "expanding", "difference"]))
    closed = draw(st.sampled_from(["left", "right"]))

    def verb(data: gp.Dataset, column: str, new: str) -> gp.Dataset:
        steps: dict[str, Callable[[], T.WholeTableTransform]] = {
            "lag": lambda: T.Lag(column, **options),
            "lead": lambda: T.Lag(column, -1, **options),
            "rolling": lambda: T.Rolling(column, 2, min_periods=1, closed=closed, **options),
            "expanding": lambda: T.Expanding(column, closed=closed, **options),
            "difference": lambda: T.Difference(column, **options),
        }
        step = steps[kind]()
        return rename(apply(step, data), *step.makes, new)

    return f"{kind} {options} closed={closed}", verb


@st.composite
def tables(draw: st.DrawFn, keys: list[str]) -> tuple[str, Verb]:
    """A table of unique keys and one more column, computed of the table at hand."""
    condition = draw(st.sampled_from([None, None, *CONDITIONS]))
    is_sorted, keep = draw(st.booleans()), draw(st.sampled_from(["first", "last"]))
    function = draw(st.sampled_from([None, None, "mean", "max", "count", "first", "last"]))
    text, window = draw(windows())

    def verb(data: gp.Dataset, column: str, new: str) -> gp.Dataset:
        data = data if condition is None else data.filter(condition)
        data = data.sort("y") if is_sorted else data
        if function is not None:
            return data.group_by(keys).agg(**{new: (column, function)})
        return window(data, column, new).select([*keys, new]).deduplicate(keys, keep=keep)

    how = f"sorted={is_sorted} of {function or text} keep={keep}"
    return f"table by {keys} where {condition} {how}", verb


@st.composite
def joins(draw: st.DrawFn) -> tuple[str, Verb]:
    keys = draw(st.sampled_from(KEYS))
    text, table = draw(tables(keys))
    moves = "id" in keys and draw(st.booleans())
    is_step, cut = draw(st.booleans()), draw(st.sampled_from([None, None, None, *CUTS]))

    def verb(data: gp.Dataset, column: str, new: str) -> gp.Dataset:
        left, right = (data, data) if cut is None else halve(data, cut)
        right = table(right, column, new)
        right = right.assign(id="id + 1") if moves else right
        return apply(T.Join(right, on=keys), left) if is_step else left.join(right, on=keys)

    return f"{'T.Join' if is_step else 'join'} {text} id + 1: {moves} halves: {cut}", verb


def halve(data: gp.Dataset, cut: str) -> list[gp.Dataset]:
    if cut == "by t":
        return data.split(by="t", at="2024-01-07")
    return data.split(0.5, seed=1) if cut == "at random" else [data.filter(part) for part in cut.split(" | ")]


@st.composite
def joins_as_of(draw: st.DrawFn) -> tuple[str, Verb]:
    by = draw(st.sampled_from([None, "store", "x"]))
    text, table = draw(tables(["t"] if by is None else ["t", by]))
    options = {"on": "t", "by": by, "allow_exact_matches": draw(st.booleans())}
    direction = draw(st.sampled_from([None, "backward", "forward", "nearest"]))

    def verb(data: gp.Dataset, column: str, new: str) -> gp.Dataset:
        right = table(data, column, new)
        if direction is None:
            return apply(T.JoinAsOf(right, **options), data)
        return data.join_asof(right, direction=direction, **options)

    return f"as-of join {options} {direction or 'T.JoinAsOf'} {text}", verb


@st.composite
def lookups(draw: st.DrawFn) -> tuple[str, Verb]:
    """A table that has nothing of the one at hand, whose rows are looked up by a value of it."""
    is_step = draw(st.booleans())

    def verb(data: gp.Dataset, column: str, new: str) -> gp.Dataset:
        code = f"{new}_code"
        codes = gp.from_frame(pd.DataFrame({code: range(7), new: [3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0]}))
        data = data.assign(**{code: f"int(coalesce({column}, 0)) % 7"})
        return apply(T.Join(codes, on=code), data) if is_step else data.join(codes, on=code)

    return f"{'T.Join' if is_step else 'join'} of codes", verb


@st.composite
def simple_verbs(draw: st.DrawFn) -> tuple[str, Verb]:
    kind, condition = draw(st.sampled_from(["assign", "filter", "concat", "sort"])), draw(st.sampled_from(CONDITIONS))
    expression, other = draw(st.sampled_from(EXPRESSIONS)), draw(st.sampled_from(EXPRESSIONS))

    def verb(data: gp.Dataset, column: str, new: str) -> gp.Dataset:
        if kind == "sort":
            return data.sort(column).assign(**{new: "x"})
        if kind == "filter":
            return data.filter(condition).assign(**{new: "x"})
        data = data.assign(**{new: f"({expression.format(column)}) * 1.0"})
        if kind == "assign":
            return data
        rest = data.filter(f"not ({condition})").assign(**{new: f"({other.format(column)}) * 1.0"})
        return gp.concat([data.filter(condition), rest])

    return f"{kind} {expression} | {other} where {condition}", verb


@st.composite
def steps(draw: st.DrawFn) -> Step:
    text, verb = draw(st.one_of(windows(), joins(), joins_as_of(), lookups(), simple_verbs()))
    return Step(text, draw(st.sampled_from([0, 0, 0, 1, 2])), verb)


def run(program: list[Step], table: pd.DataFrame) -> tuple[gp.Dataset, str]:
    """Apply the steps one after the other, each to one of the last columns; return also the last one's name."""
    data, columns = gp.from_frame(table), ["x", "y"]
    for number, step in enumerate(program):
        data = step.verb(data, columns[-1 - step.column % len(columns)], f"f{number}")
        columns.append(f"f{number}")
    return data, columns[-1]


def compute(program: list[Step], table: pd.DataFrame) -> pd.DataFrame:
    data, feature = run(program, table)
    result: pd.DataFrame = data.select(["id", feature]).compute().astype("float64")
    return result.set_index("id")[feature].sort_index().to_frame()


@pytest.mark.slow
@given(program=st.lists(steps(), min_size=2, max_size=3))
@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
def test_what_changes_with_its_own_target_is_refused(program: list[Step]) -> None:
    try:
        data, feature = run(program, TABLE)
        group = [feature], [pre.SimpleImputer("constant", fill_value=-1.0)]
        gp.Pipeline([], gp.Features(group, target="y", task="regression")).fit(data)
        values = compute(program, TABLE)
    except LeakageError:
        return
    except GpupipeError:
        assume(False)
    for row in range(ROWS):
        changed = TABLE.assign(y=TABLE["y"].where(TABLE["id"] != row, TABLE["y"] + 100.0 * (-1) ** row))
        try:
            others = compute(program, changed)
        except GpupipeError:  # no row is left for a join, for one
            continue
        if row in values.index and row in others.index:
            own, other = values.loc[[row], feature].to_numpy(), others.loc[[row], feature].to_numpy()
            np.testing.assert_array_equal(own, other, f"row {row} of {[step.text for step in program]}")
