"""Expressions over columns: missing values, memory, constants, frames."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gpupipe.backend import Backend
from gpupipe.errors import ColumnNotFound, ExpressionError
from gpupipe.expressions import parse
from gpupipe.expressions.evaluate import evaluate
from gpupipe.expressions.operands import truth
from gpupipe.schema import Field, Schema
from tests.expressions.evaluated import column, plain, result_of, run, to_device, to_host
from tests.raising import raises


def test_a_missing_condition_is_a_missing_choice(backend: Backend) -> None:
    b = column("bool", [True, False, None])
    assert result_of(backend, "where(b, 1, 2)", b=b) == [1, 2, None]
    assert result_of(backend, "where(b, 1.5, 2)", b=b) == [1.5, 2.0, None]
    assert result_of(backend, "where(coalesce(b, False), 'yes', 'no')", b=b) == ["yes", "no", "no"]
    x, y = column("int8", [None, 1, 2]), column("int8", [3, None, 4])
    assert result_of(backend, "where(b, x, y)", b=b, x=x, y=y) == [None, None, None]
    assert result_of(backend, "where(not b, x, y)", b=b, x=x, y=y) == [3, 1, None]


def test_what_stands_at_a_missing_place_is_not_true(backend: Backend) -> None:
    b = to_device(column("bool", [True, None, False]), backend)
    assert backend.to_host(b.data).tolist() == [True, True, False]
    for text, wanted in (
        ("b", [True, False, False]),
        ("not b", [False, False, True]),
        ("b or not b", [True, False, True]),
    ):
        found = truth(evaluate(parse(text), {"b": b}, backend, 3), backend.xp)
        assert backend.to_host(found).tolist() == wanted


def test_no_mask_where_nothing_can_be_missing(backend: Backend) -> None:
    columns = {
        "i": column("int64", [1, 2]),
        "b": column("bool", [True, False]),
        "t": column("timestamp", ["2013-10-01"] * 2),
    }
    computed = ("i + 1", "i // 2 % 3", "-i", "hour(t)", "where(b, i, 0)")
    for text in (*computed, "i > 1", "not b or i in [1]", "t > '2013-01-01'"):
        assert run(backend, text, **columns).valid is None, text
    gaps = {"i": column("int64", [1, None]), "f": column("float64", [None, 1.0]), "s": column("string", [None, "a"])}
    for text in ("isnull(i)", "notnull(f)", "coalesce(i, 0)", "isnull(s) or coalesce(i > 0, False)"):
        assert run(backend, text, **gaps).valid is None, text


def test_a_plain_column_is_shared(backend: Backend) -> None:
    b = to_device(column("bool", [True, False]), backend)
    assert evaluate(parse("b"), {"b": b}, backend, 2) is b
    assert truth(b, backend.xp) is b.data


def test_rows_never_go_to_the_host(backend: Backend) -> None:
    host = {
        "i": column("int64", [1, None]),
        "f": column("float64", [0.5, None]),
        "b": column("bool", [True, None]),
        "s": column("string", ["a", None]),
        "s2": column("string", ["b", "a"]),
        "t": column("timestamp", [None, "1970-01-01"]),
    }
    columns = {name: to_device(item, backend) for name, item in host.items()}
    text = "where(b and s == s2 or i in [1], lower(s), s2) < 'x' and hour(t) > 3 and int(f) ** i > clip(i, 0, 2)"
    before = backend.transfers.count
    truth(evaluate(parse(text), columns, backend, 2), backend.xp)
    assert backend.transfers.count == before
    evaluate(parse("string(i)"), columns, backend, 2)
    assert backend.transfers.count == before + 1


def test_constants_alone_fill_the_rows(backend: Backend) -> None:
    for num_rows in (0, 1, 3):
        assert result_of(backend, "5", num_rows) == [5] * num_rows
        assert result_of(backend, "'a'", num_rows) == ["a"] * num_rows
        assert result_of(backend, "2 * 3.5", num_rows) == [7.0] * num_rows
        assert result_of(backend, "1 < 2 < 3 and 'a' in ['a', 'b'] and not isnull('x')", num_rows) == [True] * num_rows
        assert result_of(backend, "where(True, len('abc'), 0) // 2", num_rows) == [1] * num_rows
        assert result_of(backend, "year(timestamp('2013-10-01'))", num_rows) == [2013] * num_rows
        assert result_of(backend, "clip(5, 1, 3) + coalesce(1, 2) + abs(-1) + int(2.5)", num_rows) == [7] * num_rows
        assert result_of(backend, "3 % (1 - 1)", num_rows) == [None] * num_rows


def test_through_a_frame_and_back(backend: Backend) -> None:
    table = pa.table(
        {
            "dep_delay": [20.0, None, 3.0],
            "origin": ["JFK", None, "LGA"],
            "hour": pa.array([5, None, 12], pa.int16()),
            "time": pa.array([0, None, 1], pa.timestamp("us")),
        }
    )
    dtypes = {"dep_delay": "float64", "origin": "string", "hour": "int16", "time": "timestamp"}
    schema = Schema(Field(name, dtype) for name, dtype in dtypes.items())
    frame = backend.from_arrow(table, schema.fields)
    night = "where(hour < 6, origin, 'day')"
    for text in ("dep_delay > 15 and origin == 'JFK'", night, "time", "hour * 2", "string(hour)"):
        expression = parse(text)
        columns = {name: backend.column(frame, name) for name in expression.reads}
        made = evaluate(expression, columns, backend, 3)
        back = backend.column(backend.assign(frame, {"made": made}), "made")
        assert back.dtype == expression.check(schema)
        assert plain(to_host(back, backend)) == plain(to_host(made, backend))


def test_errors_at_evaluation_are_typed(backend: Backend) -> None:
    x = to_device(column("int64", [1]), backend)
    with raises(ColumnNotFound, where="Filter", column="xx"):
        evaluate(parse("xx > 1", "Filter"), {"x": x}, backend, 1)
    with pytest.raises(ExpressionError, match=r"column 'x' \(int64\) is compared with 'a'"):
        evaluate(parse("x > 'a'", "Filter"), {"x": x}, backend, 1)
