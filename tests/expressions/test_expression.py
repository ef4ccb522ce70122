"""The expression language: what it reads, what it refuses and how the refusal reads."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.backend.cast import require_castable
from gpupipe.errors import ColumnNotFound, ExpressionError, GpupipeError
from gpupipe.expressions import parse
from gpupipe.expressions.functions import FUNCTIONS
from gpupipe.schema import DTYPES, Field, Schema

SCHEMA = Schema(
    [
        Field("dep_delay", "float64"),
        Field("arr_delay", "float64"),
        Field("distance", "int64"),
        Field("hour", "int8"),
        Field("big", "uint64"),
        Field("temp", "float32"),
        Field("origin", "string"),
        Field("dest", "string"),
        Field("time_hour", "timestamp"),
        Field("sched", "timestamp"),
        Field("storm", "bool"),
        Field("dep delay", "int32"),
        Field("µm", "int32"),  # the micro sign, which Python's parser would turn into a mu
    ]
)


PIECES = [*"ab1.,()[]{}<>=!&|~+-*/% \"'\n:@é", " and ", " not ", " in ", "abs(", "lower(", " if ", "lambda "]


def dtype_of(text: str) -> str:
    return parse(text, "Filter").check(SCHEMA)


def message(text: str) -> str:
    """What a user reads."""
    with pytest.raises(GpupipeError) as caught:
        dtype_of(text)
    return str(caught.value)


# what it gives --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("dep_delay", "float64"),
        ("hour", "int8"),
        ('col("dep delay") + 1', "int64"),
        ("µm * 2", "int64"),
        ("5", "int64"),
        ("-9223372036854775808", "int64"),
        ("2.5", "float64"),
        ("'JFK'", "string"),
        ("True", "bool"),
        ("timestamp('2013-10-01')", "timestamp"),
        ("hour + 1", "int64"),
        ("big + 1", "int64"),
        ("hour // 2 % 3", "int64"),
        ("hour / 2", "float64"),
        ("hour * 2.0", "float64"),
        ("-storm", "int64"),
        ("storm + storm", "int64"),
        ("temp * 2", "float32"),
        ("temp / 3", "float32"),
        ("temp * 1e300", "float64"),
        ("temp + hour", "float64"),
        ("temp + dep_delay", "float64"),
        ("temp ** 2", "float32"),
        ("hour ** 2", "int64"),
        ("hour ** -1", "float64"),
        ("hour ** hour", "int64"),
        ("time_hour - sched", "float64"),
        ("6 <= hour < 22", "bool"),
        ("not storm and hour in [1, 2] or origin not in ('JFK', 'LGA')", "bool"),
        ("time_hour >= '2013-10-01'", "bool"),
        ("time_hour in {'2013-10-01', '2013-10-02'}", "bool"),
        ("storm == 1", "bool"),
        ("origin < dest", "bool"),
        ("where(storm, hour, 0)", "int8"),
        ("where(storm, hour, 1000)", "int64"),
        ("where(storm, hour, 0.5)", "float64"),
        ("where(storm, temp, 0)", "float32"),
        ("where(storm, temp, hour)", "float64"),
        ("where(storm, big, big)", "uint64"),
        ("where(storm, big, -1)", "int64"),
        ("where(storm, storm, True)", "bool"),
        ("where(storm, storm, 0)", "int64"),
        ("where(storm, origin, 'none')", "string"),
        ("where(storm, time_hour, '2013-10-01')", "timestamp"),
        ("coalesce(dep_delay, 0)", "float64"),
        ("coalesce(origin, dest)", "string"),
        ("isnull(origin)", "bool"),
        ("log1p(hour)", "float64"),
        ("log1p(temp)", "float32"),
        ("abs(hour)", "int64"),
        ("round(temp)", "float32"),
        ("clip(temp, 0, 1)", "float32"),
        ("minimum(hour, 5)", "int8"),
        ("maximum(time_hour, '2013-10-01')", "timestamp"),
        ("year(time_hour)", "int64"),
        ("lower(origin)", "string"),
        ("len(origin)", "int64"),
        ("contains(origin, 'J')", "bool"),
        ("int(dep_delay)", "int64"),
        ("float(temp)", "float64"),
        ("string(hour)", "string"),
    ],
)
def test_types(text: str, dtype: str) -> None:
    assert parse(text).check(SCHEMA) == dtype


def test_it_reads_each_column_once_in_order() -> None:
    expression = parse("  dest == origin and (col('dep delay') > hour or dest == 'JFK') \n")
    assert expression.reads == ("dest", "origin", "dep delay", "hour")
    assert expression.text == "dest == origin and (col('dep delay') > hour or dest == 'JFK')"


def test_lines_inside_parentheses() -> None:
    text = "(\r\n  6 <= hour\r\n  and 'é' != origin and dep_dly > 3\r\n)"
    assert message(text).endswith("      and 'é' != origin and dep_dly > 3\n                            ^^^^^^^")


def test_equal_hashable_and_pickled() -> None:
    expression = parse("6 <= hour < 22 and origin in ['JFK']", "Filter")
    again = pickle.loads(pickle.dumps(expression))
    assert again == expression and hash(again) == hash(expression) and again.tree == expression.tree
    assert copy.deepcopy(expression).conjuncts() == expression.conjuncts()
    assert repr(expression) == "parse(\"6 <= hour < 22 and origin in ['JFK']\")"
    assert {expression: 1}[parse(" 6 <= hour < 22 and origin in ['JFK'] ", "Filter")] == 1
    assert parse("hour == 1").tree != parse("hour == True").tree
    assert hash(expression.tree) == hash(parse("6<=hour<22 and origin in['JFK']").tree)
    with pytest.raises(AttributeError):
        expression.reads = ()  # type: ignore[misc]


def test_the_deepest_allowed_is_checked_hashed_and_pickled() -> None:
    deep = parse("-" * 99 + "hour > 0")
    assert deep.check(SCHEMA) == "bool" and hash(deep.tree) and pickle.loads(pickle.dumps(deep)) == deep
    wide = parse(" or ".join(["hour == 1"] * 2000))
    assert wide.check(SCHEMA) == "bool"


# for statistics -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("hour > 5", [("hour", ">", 5)]),
        ("5 < hour", [("hour", ">", 5)]),
        ("5 >= hour", [("hour", "<=", 5)]),
        ("6 <= hour < 22", [("hour", ">=", 6), ("hour", "<", 22)]),
        ("5 == hour != 7", [("hour", "==", 5), ("hour", "!=", 7)]),
        ("hour < distance < 7", [("distance", "<", 7)]),
        ("origin in ['JFK', 'LGA'] and notnull(dest)", [("origin", "in", ("JFK", "LGA")), ("dest", "notnull", None)]),
        (
            "storm and (hour > 1 and distance < -2.5)",
            [("storm", "==", True), ("hour", ">", 1), ("distance", "<", -2.5)],
        ),
        ("time_hour < timestamp('2013-10-01 05:00')", [("time_hour", "<", datetime.fromisoformat("2013-10-01 05:00"))]),
        ("time_hour < '2013-10-01'", [("time_hour", "<", "2013-10-01")]),
        ("hour > 5 or distance < 2", []),
        ("not hour > 5", []),
        ("origin not in ['JFK']", []),
        ("hour + 1 > 5 and hour > distance and isnull(dest) and True", []),
        ("where(storm, hour > 5, hour > 6)", []),
    ],
)
def test_conjuncts(text: str, terms: list[Any]) -> None:
    assert parse(text).conjuncts() == terms


def test_a_whole_float_is_compared_as_an_integer() -> None:
    ((_, _, constant),) = parse("distance > 9007199254740992.0").conjuncts()
    assert isinstance(constant, int)


# what it refuses ------------------------------------------------------------------------------------------------------
def test_a_message_in_full() -> None:
    assert message("distance >= 200 and lower(dep_delay) == 'a'") == (
        "Filter: `lower` is given column 'dep_delay' (float64).\n"
        "Expected text.\n"
        "Try: T.Cast({'dep_delay': 'string'}) before\n"
        "    distance >= 200 and lower(dep_delay) == 'a'\n"
        "                              ^^^^^^^^^"
    )


def test_the_facts_are_attributes_and_survive_pickling() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("hour < 6 | dep_delay > 2", "Derive(night=...)")
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        assert error.where == "Derive(night=...)" and error.remedy == "(hour < 6) or (dep_delay > 2)"
        assert str(error).endswith("\n    hour < 6 | dep_delay > 2\n             ^")


def test_a_missing_column_is_named_with_the_closest() -> None:
    with pytest.raises(ColumnNotFound) as caught:
        parse("6 <= huor", "Filter").check(SCHEMA)
    assert caught.value.column == "huor" and caught.value.remedy == "'hour' (the closest name)"
    assert str(caught.value).endswith("\n    6 <= huor\n         ^^^^")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("origin == Paris", "origin == 'Paris'"),
        ("hour > 6 and Paris != origin", "hour > 6 and 'Paris' != origin"),
        ("origin == Paris or origin == Rome", "origin == 'Paris' or origin == Rome"),
        ("origin == orign", "'origin' (the closest name)"),
        ("origin == col('Paris')", "one of the names above"),
        ("dep_delay == Paris", "one of the names above"),
        ("'Rome' == Paris", "one of the names above"),
    ],
)
def test_a_text_without_quotation_marks_is_offered_them(text: str, remedy: str) -> None:
    with pytest.raises(ColumnNotFound) as caught:
        dtype_of(text)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("a < 6 | b > 2", "(a < 6) or (b > 2)"),
        ("a < 6 & b > 2", "(a < 6) and (b > 2)"),
        ("a < 6 | b > 2 & c == 3", "(a < 6) or (b > 2) and (c == 3)"),
        ("a < 6 | b", "(a < 6) or b"),
        ("a < (6) | b > 2", "(a < (6)) or (b > 2)"),
        ("x and a < 6 | b > 2", "x and ((a < 6) or (b > 2))"),
        ("(a < 6) | (b > 2)", "(a < 6) or (b > 2)"),
        ("a & b", "a and b"),
        ("(a | b) & c", "(a or b) and c"),
        ("~a", "not a"),
        ("~(a > 1)", "not (a > 1)"),
        ("'é' == a | b > 2", "('é' == a) or (b > 2)"),
    ],
)
def test_the_precedence_trap_is_mended(text: str, mended: str) -> None:
    with pytest.raises(ExpressionError, match=r"binds tighter|does not join|no negation") as caught:
        parse(text)
    written = caught.value.remedy
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(mended)), written
    parse(written)


def test_a_bit_operation_that_was_meant() -> None:
    assert "`|` does not join conditions" in message("hour < (6 | distance) < 3")
    assert "`^` is not allowed" in message("storm ^ storm")
    assert "Expected `!=` between conditions" in message("hour < 3 ^ distance")


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("__import__('os').system('true')", "methods cannot be called", "one of the functions above"),
        ("__import__('os')", "no function is called '__import__'", "one of the functions above"),
        ("eval('x')", "no function is called 'eval'", ""),
        ("clp(hour, 1, 2)", "no function is called 'clp'", "clip(hour, 1, 2)"),
        ("ISNA(hour)", "no function is called 'ISNA'", "isnull(hour)"),
        ("cool('a')", "no function is called 'cool'", "col('a')"),
        ("origin.lower()", "methods cannot be called", "lower(origin)"),
        ("origin.startswith('J')", "methods cannot be called", "startswith(origin, 'J')"),
        ("origin.x", "a dot is not allowed", "col('origin.x')"),
        ("hour[0]", "[...] behind a value is not allowed", ""),
        ("(lambda: 1)()", "this cannot be called", ""),
        ("lambda: 1", "a lambda is not allowed", "Map(fn"),
        ("[x for x in hour]", "a comprehension is not allowed", ""),
        ("{x for x in hour}", "a comprehension is not allowed", ""),
        ("{x: x for x in hour}", "a comprehension is not allowed", ""),
        ("abs(x for x in hour)", "a comprehension is not allowed", ""),
        ("{1: 2}", "{...} is not allowed", ""),
        ("f'{hour}'", "an f-string is not allowed", ""),
        ("(x := 5)", "an assignment is not allowed", "Derive"),
        ("hour if storm else 1", "if ... else is not allowed", "where(storm, hour, 1)"),
        ("[1, 2]", "a list is not allowed", "x in [...]"),
        ("hour, distance", "a comma is not allowed", ""),
        ("abs(*hour)", "a star is not allowed", ""),
        ("+hour", "unary + is not allowed", ""),
        ("hour @ hour", "this sign is not allowed", ""),
        ("hour << 2", "this sign is not allowed", ""),
        ("await hour", "Await is not allowed", ""),
        ("abs(x=hour)", "abs is called with a keyword, got 'x'", "abs(hour)"),
        ("abs(**hour)", "abs is called with a keyword, got None", "abs(hour)"),
        ("clip(hour, 1)", "clip is called with 2 arguments.\nExpected 3 arguments", "clip(x, low, high)"),
        ("hour is None", "`is` is not allowed", "isnull(hour)"),
        ("1j", "not a constant of this language", ""),
        ("b'x'", "not a constant of this language", ""),
        ("...", "not a constant of this language", ""),
        ("18446744073709551616", "the number is too large", "1e19"),
        ("-9223372036854775809", "the number is too large", "1e19"),
        ("1e999", "the number is too large", ""),
        ("0x" + "f" * 1000, "the number is too large", ""),
        ("col(hour)", "col is called with something else", "col('hour')"),
        ("col('a', 'b')", "col is called with something else", ""),
        ("timestamp('yesterday')", "not a date or time, got 'yesterday'", "2013-10-01"),
        ("'J' in origin", "`in` without a list", "contains(origin, 'J')"),
        ("hour in [distance]", "not a constant", "hour == distance"),
        ("hour in [1, None]", "None is equal to nothing", "isnull(hour) or hour in [1]"),
        ("hour < distance in [1]", "`in` inside a chain", "(hour < distance) and (distance in [1])"),
        ("", "the text is empty", "distance > 200"),
        ("  \n", "the text is empty", "distance > 200"),
        ("hour >", "not an expression (invalid syntax)", "Python's signs"),
        ("import os", "not an expression", ""),
        ("class == 'class' and hour > 5", "not an expression", "col('class') == 'class' and hour > 5"),
        ("is > 0", "not an expression", "col('is') > 0"),
        ("weight (kg) > 80", "no function is called 'weight'", "col('weight (kg)'), if a column is called that"),
        ("hour - in", "not an expression", "hour - col('in')"),
        ("hour = 5", "not an expression", "hour == 5"),
        ("hour > 5 && storm", "not an expression", "hour > 5 and storm"),
        ("hour = 5 & dist > 2", "not an expression", "(hour == 5) and (dist > 2)"),
        ("~(hour > 5) & dist = 2", "not an expression", "(not (hour > 5)) and (dist == 2)"),
        ("hour > 5 AND NOT storm", "not an expression", "hour > 5 and not storm"),
        ("hour <> 5", "not an expression", "hour != 5"),
        ("hour > 5 and\nstorm", "not an expression", "(hour > 5 and\nstorm)"),
        ("hour > 5; storm", "not an expression", ""),
        ("hour \0", "", ""),
        ("hour == '\ud800'", "this cannot be read", ""),
        (5, "not an expression, got 5", "'dep_delay > 15'"),
    ],
)
def test_what_is_not_allowed(text: Any, problem: str, remedy: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, "Filter")
    assert caught.value.where == "Filter" and problem in str(caught.value) and remedy in caught.value.remedy
    assert text == 5 or set(str(caught.value).splitlines()[-1].strip()) == {"^"}


@pytest.mark.parametrize("text", ["2010 > 3", "2010 - 1960", "year > 3 and 1960 < 2", "log(2010)"])
def test_years_that_are_columns_are_no_numbers(text: str) -> None:
    """Of a wide table `2010 - 1960` would be 50 in every row."""
    wide = Schema(Field(name, "int64") for name in ("year", "1960", "2010"))
    with pytest.raises(ExpressionError, match="a column's name in digits is a number, the same in every row") as caught:
        parse(text).check(wide)
    year = "1960" if "and" in text else "2010"
    assert caught.value.remedy == f"col('{year}')"
    for number in ("year >= 2010", "-2010", "2010", "2011 > 3"):
        parse(number).check(wide)


def test_an_unknown_function_lists_the_known() -> None:
    text = message("foo(1)")
    assert all(name in text for name in [*FUNCTIONS, "col", "timestamp"])


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("origin == 5", "column 'origin' (string) is compared with 5 (int64)", "'5', with quotation marks"),
        ("5 < origin", "5 (int64) is compared with column 'origin' (string)", "T.Cast({'origin': 'float64'}) before"),
        ("hour == '6'", "column 'hour' (int8) is compared with '6' (string)", "6, without quotation marks"),
        ("hour == 'six'", "column 'hour' (int8) is compared with 'six' (string)", "a number"),
        ("origin == hour", "column 'origin' (string) is compared with column 'hour' (int8)", "Cast"),
        ("storm == 'yes'", "column 'storm' (bool) is compared with 'yes' (string)", ""),
        ("time_hour > 5", "column 'time_hour' (timestamp) is compared with 5 (int64)", "2013-10-01"),
        ("time_hour > 'noon'", "column 'time_hour' (timestamp) is compared with 'noon' (string)", "ISO 8601"),
        ("time_hour == origin", "column 'time_hour' (timestamp) is compared with column 'origin' (string)", ""),
        ("origin in ['JFK', 5]", "column 'origin' (string) is compared with 5", ""),
        ("time_hour in ['2013-10-01', 'x']", "column 'time_hour' (timestamp) is compared with 'x'", ""),
        ("1 < hour < origin", "column 'hour' (int8) is compared with column 'origin' (string)", ""),
        ("not distance", "`not` is given column 'distance' (int64)", "distance != 0"),
        ("storm and origin", "`and` is given column 'origin' (string)", "origin == '...'"),
        ("storm or time_hour", "`or` is given column 'time_hour' (timestamp)", "time_hour >="),
        ("storm and hour + 1", "`and` is given hour + 1 (int64)", "(hour + 1) != 0"),
        ("lower(dep_delay)", "`lower` is given column 'dep_delay' (float64)", "T.Cast({'dep_delay': 'string'})"),
        ("len(hour)", "`len` is given column 'hour' (int8)", "string(hour)"),
        ("origin + 5", "`+` is given 5 (int64)", "'5'"),
        ("-origin", "`unary -` is given column 'origin' (string)", "len(origin)"),
        ("time_hour + 5", "`+` is given column 'time_hour' (timestamp)", "hour(time_hour)"),
        ("5 - time_hour", "`-` is given column 'time_hour' (timestamp)", "timestamp("),
        ("hour(hour)", "`hour` is given column 'hour' (int8)", "T.Cast({'hour': 'timestamp'})"),
        ("year('2013-10-01')", "`year` is given '2013-10-01' (string)", "timestamp('2013-10-01')"),
        ("where(hour, 1, 2)", "`where` is given column 'hour' (int8)", "hour != 0"),
        ("where(storm, 1, 'x')", "`where` is given 1 (int64) and 'x' (string)", "values of one kind"),
        ("hour == None", "None is compared", "isnull(hour)"),
        ("None != origin", "None is compared", "notnull(origin)"),
        ("hour + None", "`+` is given None", "where(condition, x, None)"),
        ("clip(hour, None, 5)", "`clip` is given None", "where(condition, x, None)"),
        ("coalesce(hour, None)", "`coalesce` is given None", "where(condition, x, None)"),
        ("where(None, hour, 1)", "`where` is given None", "where(condition, x, None)"),
        ("where(storm, None, None)", "`where` is given None", "values of one kind"),
        ("None", "None alone has no type", "where(condition, x, None)"),
        ("where(storm, hour, null)", "no column is called 'null'", "None"),
        ("coalesce(origin, 0)", "`coalesce` is given column 'origin' (string) and 0 (int64)", "values of one kind"),
        ("coalesce(time_hour, 'never')", "`coalesce` is given column 'time_hour' (timestamp) and 'never' (string)", ""),
        ("minimum(origin, dest)", "`minimum` is given column 'origin' (string) and column 'dest' (string)", "numbers"),
        ("clip(hour, 0, origin)", "`clip` is given column 'hour' (int8) and 0 (int64) and column 'origin'", ""),
        ("contains(origin, dest)", "`contains` is given column 'dest' (string)", "'text'"),
        ("contains(origin, 5)", "`contains` is given 5 (int64)", "'text'"),
        ("string(dep_delay)", "`string` is given column 'dep_delay' (float64)", "string(int(dep_delay))"),
        ("string(time_hour)", "`string` is given column 'time_hour' (timestamp)", "T.Cast"),
        ("int(origin)", "`int` is given column 'origin' (string)", "T.Cast({'origin': 'float64'})"),
        ("log(storm and storm) > lower(hour)", "`lower` is given column 'hour' (int8)", ""),
    ],
)
def test_types_that_do_not_go_together(text: str, problem: str, remedy: str) -> None:
    expression = parse(text, "Filter")
    with pytest.raises(ExpressionError) as caught:
        expression.check(SCHEMA)
    assert problem in str(caught.value) and remedy in caught.value.remedy
    shown, carets = str(caught.value).splitlines()[-2:]
    marked = shown[carets.index("^") : len(carets)]
    assert shown.strip() == text and (marked == text or marked.strip("'") in problem)


@pytest.mark.parametrize(
    ("text", "also"),
    [
        ("tags[0]", " of text; of a list pre.ListSlice(0, 1) among the steps of Features"),
        ("hour > 3 and tags[1:3] == 'a'", " of text; of a list pre.ListSlice(1, 3) among the steps of Features"),
        (
            "user.home.town",
            " for a column of that name; of a struct T.Map(fn, reads=['user'], adds=['user_home_town']), whose function takes the field",  # noqa: E501
        ),
        ("origin.str[0]", ""),
        ("upper(origin)[0]", ""),
        ("upper(origin).x", ""),
    ],
)
def test_a_part_of_a_list_or_a_struct_is_offered_what_takes_it(text: str, also: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    mended = caught.value.remedy.removesuffix(also)
    assert caught.value.remedy.endswith(also) and " of a " not in mended
    parse(mended)


@pytest.mark.parametrize(
    ("text", "remedy", "followed"),
    [
        ("year('2020-01-01')", "timestamp('2020-01-01')", "year(timestamp('2020-01-01'))"),
        ("hour('noon')", "timestamp('2013-10-01 06:00')", "hour(timestamp('2013-10-01 06:00'))"),
        ("year(2020)", "timestamp('2013-10-01 06:00')", "year(timestamp('2013-10-01 06:00'))"),
        ("hour(time_hour, 5)", "'America/New_York'", "hour(time_hour, 'America/New_York')"),
        ("lower(5.5)", "'5.5'", "lower('5.5')"),
        ("len(5)", "'5'", "len('5')"),
        ("string(5.5)", "'5.5'", "'5.5'"),
        ("-'007'", "7, without quotation marks", "-7"),
        ("distance + '+5'", "5, without quotation marks", "distance + 5"),
        ("distance + 'x'", "a number", "distance + 1"),
        ("hour == 'inf'", "a number", "hour == 1"),
        ("hour == '007'", "7, without quotation marks", "hour == 7"),
        ("storm + origin", "len(origin), or T.Cast({'origin': 'float64'}) before", "storm + len(origin)"),
        (
            "origin - storm",
            "len(origin), or T.Cast({'origin': 'float64'}) before; of dates T.Cast({'origin': 'timestamp'}) before, of text in ISO 8601; of other text gp.read_csv(..., timestamp_formats={'origin': '%m/%d/%Y'}), or pd.to_datetime(frame['origin'], format='%m/%d/%Y'), in the format that it has",  # noqa: E501
            "len(origin) - storm",
        ),
        ("tags == 'a'", "contains(tags, 'a')", "contains(tags, 'a')"),
        ("tags == 5", "len(tags) for how many elements it has", "len(tags) == 5"),
        (
            "slice(tags, 0, 1) == 'a'",
            "len(tags) for how many elements it has; pre.ListSlice(0, 2) among the steps of Features for the first two",
            "len(tags) == 1",
        ),
    ],
)
def test_a_remedy_of_an_operand_works(text: str, remedy: str, followed: str) -> None:
    schema = SCHEMA.assign([Field("tags", "list<string>")])
    with pytest.raises(ExpressionError) as caught:
        parse(text).check(schema)
    assert caught.value.remedy == remedy
    parse(followed).check(schema)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("timestamp(origin)", "T.Cast({'origin': 'timestamp'}) before"),
        ("origin == timestamp('2013-10-01')", "T.Cast({'origin': 'timestamp'}) before"),
        ("year(origin)", "T.Cast({'origin': 'timestamp'}) before"),
        ("lower(data)", "T.Cast({'data': 'string'}) before"),
        ("data == 'a'", "T.Cast({'data': 'string'}) before"),
        ("lower(col('the price'))", "T.Cast({'the price': 'string'}) before"),
        ("col('the price') > 5", "T.Cast({'the price': 'float64'}) before"),
        (
            "year(distance + 1)",
            "T.Derive(made='(distance + 1) * 1000000') if it holds seconds since 1970 (* 1000 of milliseconds; a cast reads microseconds), then T.Cast({'made': 'timestamp'}) before",  # noqa: E501
        ),
        (
            "hour(replace(origin, '{', ''))",
            "T.Derive(made=\"replace(origin, '{', '')\"), T.Cast({'made': 'timestamp'})",
        ),
        ("lower(temp * 2)", "T.Derive(made='temp * 2'), T.Cast({'made': 'string'}) before"),
        ("-strip(origin)", "len(strip(origin)), or T.Derive(made='strip(origin)'), T.Cast({'made': 'float64'}) before"),
        ("hour(hour)", "T.Derive(hour='hour * 1000000') if it holds seconds since 1970"),
        ("hour(temp)", "T.Derive(temp='int(temp * 1000000)') if it holds seconds since 1970"),
    ],
)
def test_a_remedy_names_a_cast_that_exists(text: str, remedy: str) -> None:
    carried = [Field("data", "binary"), Field("the price", "decimal128(9, 2)")]
    schema = SCHEMA.assign(carried)
    with pytest.raises(ExpressionError) as caught:
        parse(text).check(schema)
    assert caught.value.remedy.startswith(remedy)
    for name, dtype in re.findall(r"T\.Cast\(\{'(.+?)': '(.+?)'\}\)", caught.value.remedy):
        derived = re.search(r"T\.Derive\(\w+=(.*?)\)(?:,| if)", caught.value.remedy)
        source = schema[name].dtype if derived is None else parse(ast.literal_eval(derived[1])).check(schema)
        require_castable(source, dtype, name)


def test_a_long_line_is_shown_around_the_place() -> None:
    text = " or ".join(f"hour == {i}" for i in range(200)) + " or huor == 7 or " + " or ".join(["hour == 1"] * 200)
    shown, carets = message(text).splitlines()[-2:]
    assert len(shown) < 120 and shown[carets.index("^") :].startswith("huor") and shown.endswith("...")


# hostile --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "hour" + ")" * 5000,
        "(" * 150 + "hour" + ")" * 150 + " > )",
        "-" * 90_000 + "1",
        "not " * 20_000 + "storm",
        "hour" + " + hour" * 10_000,
        "hour" + ".a" * 20_000,
        "hour" + "[0]" * 20_000,
        "abs(" * 1000 + "hour" + ")" * 1000,
        "abs(" * 150 + "hour",
        "timestamp(" * 150 + "hour" + ")" * 150,
        "[" * 199,
        "{" * 199,
        "lambda: " * 1000 + "1",
        "a if b else " * 3000 + "c",
        "hour ** " * 3000 + "hour",
        "(" * 60 + "hour" + " in [1])" * 60,
        "1" * 5000,
        "'" + "x" * 200_000 + "'",
        "hour == 1 or " * 20_000 + "storm",
        "|".join(["hour"] * 5000),
        "-" * 101 + "hour",
        "~" * 5000 + "storm",
        "hour < " * 500 + "1 | 2",
    ],
    ids=lambda text: text[:20],
)
def test_hostile_text_is_an_error_and_not_a_crash(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert len(str(caught.value)) < 200_000


def test_powers_of_constants_are_not_folded() -> None:
    assert parse("9 ** 9 ** 9 ** 9 ** 9").check(SCHEMA) == "int64"
    assert parse("'x' == 'y'").check(SCHEMA) == "bool"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_gives_an_expression_or_an_error_that_points(text: str) -> None:
    schema = Schema([Field("a", "int64"), Field("b", "string")])
    try:
        expression = parse(text)
        assert pickle.loads(pickle.dumps(expression)) == expression
        assert expression.check(schema) in DTYPES
    except (ExpressionError, ColumnNotFound) as error:
        carets = str(error).splitlines()[-1]
        assert carets.startswith("    ") and set(carets.strip()) == {"^"}
