"""Expressions in the spelling of SQL, C, pandas, NumPy and Polars: what the error says to try can be pasted."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import ExpressionError
from gpupipe.expressions import parse
from gpupipe.schema import Field, Schema

COLUMNS = {"a": "float64", "b": "int64", "k": "bool", "s": "string", "t": "timestamp", "l": "list<int64>"}
SCHEMA = Schema(Field(name, dtype) for name, dtype in COLUMNS.items())


@pytest.mark.parametrize(
    ("wrote", "mended"),
    [
        ("s is None", "isnull(s)"),
        ("s is not None and a > 1", "notnull(s) and a > 1"),
        ("s == None", "isnull(s)"),
        ("a != nan", "notnull(a)"),
        ("k is False", "not k"),
        ("b is a", "b == a"),
        ("s IS NOT NULL and k", "notnull(s) and k"),
        ("np.log(a)", "log(a)"),
        ("np.log10(a) ** 2", "(log(a) / 2.302585092994046) ** 2"),
        ("np.where(df.a > 1, 1, 2)", "where(a > 1, 1, 2)"),
        ("pl.col('a').is_null()", "isnull(col('a'))"),
        ("df['a'].fillna(0) > 1", "coalesce(col('a'), 0) > 1"),
        ("s.str.upper() == 'X'", "upper(s) == 'X'"),
        ("s.str[0:2] == 'x'", "slice(s, 0, 2) == 'x'"),
        ("s.str[1] == 'x'", "slice(s, 1, 2) == 'x'"),
        ("t.dt.hour > 3", "hour(t) > 3"),
        ("t > datetime(2024, 1, 5)", "t > timestamp('2024-01-05')"),
        ("t > timestamp(2024, 1, 5, 6)", "t > timestamp('2024-01-05T06')"),
        ("a.between(1, 2) and b.isin([1, 2])", "(1 <= a <= 2) and (b in [1, 2])"),
        ("startswith(s, prefix='x')", "startswith(s, 'x')"),
        ("round(a, ndigits=1)", "round(a * 10) / 10"),
        ("col(a)", "col('a')"),
        ("a^2", "a ** 2"),
        ("a^2 > 3", "(a ** 2) > 3"),
        ("k ^ (a > 1)", "k != (a > 1)"),
        ("~k & a > 1", "(not k) and (a > 1)"),
        ("not k | a > 1", "not (k or (a > 1))"),
        ("s like '%x%'", "contains(s, 'x')"),
        ("s LIKE 'x%' AND k", "startswith(s, 'x') and k"),
        ("lower(s) not like '%x'", "not endswith(lower(s), 'x')"),
        ("s ilike 'It''s' and k", 'lower(s) == "it\'s" and k'),
        ("s like 'x'", "s == 'x'"),
        ("s like 'a_b%c'", "search(s, '^a.b.*c$')"),
        ("s ilike '%X%'", "contains(lower(s), 'x')"),
        ("a between 1 and 2", "1 <= a <= 2"),
        ("a NOT BETWEEN -1 AND b OR k", "not (-1 <= a <= b) or k"),
        ("a + 1 between 2 and 3", None),  # whose left side is more than the name before it
        ("case when a > 1 then 1 else 0 end", "where(a > 1, 1, 0)"),
        ("1 if a > 1 else 0", "where(a > 1, 1, 0)"),
        ("if(a > 1, 1, 2)", "where(a > 1, 1, 2)"),
        ("s == 'a  &&  b' && !k", "s == 'a  &&  b' and not k"),
        ("`a` === 1", "col('a') == 1"),
        ("'x' in s", "contains(s, 'x')"),
        ("1 not in l", "not contains(l, 1)"),
        ("s in ('x')", "s in ['x']"),
        ("b not in [1, None]", "not (isnull(b) or b in [1])"),
        ("b in [a, 1, 2]", "b == a or b in [1, 2]"),
        ("a < b in [1]", "(a < b) and (b in [1])"),
        ("+a > 1", "a > 1"),
        ("substr(s, 2, 3)", "slice(s, 1, 4)"),
        ("s == 'x' or 'y'", "s in ['x', 'y']"),
        ("s != 'x' and 'y'", "s not in ['x', 'y']"),
        ("a and b > 2", "a != 0 and b > 2"),
        ("not a and b > 2", "not a != 0 and b > 2"),
        ("not k or 'x'", None),
        ("a and b", "a != 0 and b != 0"),
        ("where(a, 1, 2)", "where(a != 0, 1, 2)"),
        ("round(a + b, 2) > 1", "(round((a + b) * 100) / 100) > 1"),
        ("np.round(a, 0)", "round(a)"),
        ("a.round(-2)", "round(a / 100) * 100"),
        ("log(a, 10) > 1", "(log(a) / 2.302585092994046) > 1"),
        ("log(10, a)", "log(a) / 2.302585092994046"),
        ("log(a, b)", "log(a) / log(b)"),
        ("date_trunc('day', t) > t", "floor(t, '1d') > t"),
        ("date_trunc('MONTH', t)", "year(t) * 12 + month(t)"),
        ("trunc(t, 'week')", "(t - timestamp('1970-01-05')) // 604800"),
        ("t.dt.date == t.dt.normalize()", "floor(t, '1d') == floor(t, '1d')"),
        ("col('t').weekday", "dayofweek(col('t'))"),
        ("sign(a - b)", "where((a - b) > 0, 1, where((a - b) < 0, -1, (a - b)))"),
        ("pd.to_datetime('2024-03-02') < t", "timestamp('2024-03-02') < t"),
        ("t > 2024-03-02 and k", "t > '2024-03-02' and k"),
        ("t between 2024-03-02 and 2024-03-02 10:00", "'2024-03-02' <= t <= '2024-03-02 10:00'"),
        ("a > 1 ? a : b", "where(a > 1, a, b)"),
        ("cast(a as int) > 1", "int(a) > 1"),
        ("CAST(b + 1 AS VARCHAR(10)) = 'x'", "string(b + 1) == 'x'"),
        ("a::int + b::float", "int(a) + float(b)"),
        ("a.astype('int64') > 1", "int(a) > 1"),
        ("l == 3", "contains(l, 3)"),
        ("l == a", "contains(l, a)"),
        ("4 != l", "not contains(l, 4)"),
        ("floor(t)", "floor(t, '1h')"),
        ("min(a, b, 3)", "minimum(minimum(a, b), 3)"),
        ("max([a, b]) > 1", "maximum(a, b) > 1"),
        ("minimum(a, b, 3)", "minimum(minimum(a, b), 3)"),
        ("maximum((a, b))", "maximum(a, b)"),
        ("least(a, b, 3)", "minimum(minimum(a, b), 3)"),
        ("np.max([a, b], axis=0)", "maximum(a, b)"),
        ("df[['a', 'b']].min(axis=1)", "minimum(a, b)"),
        ("sum(a, b, 3) * 2", "(a + b + 3) * 2"),
        ("sum([a > 1, b])", "(a > 1) + b"),
        ("mean(a, b) > 3", "((a + b) / 2) > 3"),
        ("np.mean([a, df.b, 3])", "(a + (b) + 3) / 3"),
        ("sum(a, b, axis=1)", "a + b"),
        ("coalesce([a, b])", "coalesce(a, b)"),
    ],
)
def test_a_remedy_can_be_pasted(wrote: str, mended: str | None) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(wrote).check(SCHEMA)
    if mended is None:
        assert "Python's signs" in caught.value.remedy or "a comparison, such as x == 'x'" in caught.value.remedy
    else:
        assert caught.value.remedy == mended
        parse(mended).check(SCHEMA)


OF_COMMENTS = "a column's name with # in it as col('ID#')"


@pytest.mark.parametrize(
    ("wrote", "remedy"),
    [
        ("a + ID#", "a + col('ID#')"),
        ("(ID# > 2) & (#2 == a)", "(col('ID#') > 2) and (col('#2') == a)"),
        ("`ID#` > 2 and s != '#'", "col('ID#') > 2 and s != '#'"),
        ("a > 1000 # and k", f"{OF_COMMENTS}; without a comment 'a > 1000'"),
        ("# a", OF_COMMENTS),
        ("No # > 2", f"{OF_COMMENTS}; without a comment 'No'"),
    ],
)
def test_what_python_would_take_for_a_comment(wrote: str, remedy: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(wrote)
    assert caught.value.remedy == remedy


def test_a_sign_of_comments_in_a_text_or_a_name() -> None:
    data = gp.from_frame(pd.DataFrame({"ID#": [1, 5], "s": ["#1", 'it"s #']}))
    assert data.assign(z="col('ID#') + 1").compute()["z"].tolist() == [2, 6]
    assert data.filter("s == '#1' or s == \"it's '#'\" or contains(s, '\"s #')").compute().shape == (2, 2)
    assert data.sort("ID#").select("ID#").compute()["ID#"].tolist() == [1, 5]
    features = gp.Features((["s"], pre.Categorify()), target="ID#")  # a name alone needs no quotation marks
    assert gp.Pipeline([], features).fit(data).transform(data).columns == ["s", "ID#"]
    with pytest.raises(gp.errors.ColumnNotFound, match="'ID#' \\(the closest name\\)"):
        gp.Pipeline([], gp.Features((["s"], pre.Categorify()), target="Id#")).fit(data)


@pytest.mark.parametrize(
    ("wrote", "remedy"),
    [
        ("s > 10", "s == '...', one of its texts; or T.Cast({'s': 'float64'}) before, where these are numbers"),
        (
            "2 <= lower(s)",
            "lower(s) == '...', one of its texts; or T.Derive(made='lower(s)'), T.Cast({'made': 'float64'}) before, where these are numbers",  # noqa: E501
        ),
        ("day_name(t) == 1", "dayofweek(t) == 1, a number from 0, Monday, to 6, Sunday"),
        ("trunc(t)", "int(t) of a number; floor(t, '1d') of a time"),
        ("substr(s, b, 1)", "slice(text, start, stop)"),
        ("t.year > 2020", "year(t) > 2020 of a time; col('t.year') for a column of that name"),
        ("t > 2024-12-31", "'2024-12-31', with quotation marks"),
        ("floor(t, '30 mins')", "'30 min'; for a month year(time) * 12 + month(time)"),
        ("floor(t, 'quarter')", "'1h'; for a month year(time) * 12 + month(time)"),
        ("median(a, b)", "one of the functions above, or Map(fn, reads=..., adds=...) for your own"),
        ("len([a, b])", "x in [...]"),
    ],
)
def test_a_remedy_for_a_part(wrote: str, remedy: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(wrote).check(SCHEMA)
    assert caught.value.remedy == remedy


@pytest.mark.parametrize(
    ("wrote", "remedy"),
    [
        ("lag(a)", "T.Lag('x', 1, by='key', order_by='time')"),
        ("a.shift(1) > 2", "T.Lag('x', 1, by='key', order_by='time')"),
        ("lead(a)", "T.Lag('x', -1, by='key', order_by='time')"),
        ("a - a.diff()", "T.Difference('x', by='key', order_by='time')"),
        ("rolling_mean(a, 7)", "T.Rolling('x', 7, by='key', order_by='time')"),
        ("a.cumsum()", "T.Expanding('x', 'sum', by='key', order_by='time')"),
        ("row_number(s)", "T.CumulativeCount('key', order_by='time')"),
        ("explode(l)", "data.to_polars().explode('x')"),
    ],
)
@pytest.mark.filterwarnings("ignore:In Polars 2.0")  # of empty lists, of which there are none
def test_what_looks_at_other_rows_is_a_step(wrote: str, remedy: str) -> None:
    """`T.Map` sees a partition, so it would give the first row of each no row before it."""
    with pytest.raises(ExpressionError) as caught:
        parse(wrote).check(SCHEMA)
    assert caught.value.remedy == remedy
    data = gp.from_frame(pd.DataFrame({"x": [1.0], "key": ["a"], "time": [0]}))
    eval(remedy, {"T": T, "data": data})


@pytest.mark.parametrize("wrote", ["to_datetime({})", "pd.to_datetime({}, format='%d')", "timestamp({}) > t"])
@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("s", "T.Cast({'s': 'timestamp'}) before"),
        ("df['s']", "T.Cast({'s': 'timestamp'}) before"),
        ("replace(s, '{', '')", "T.Derive(made=\"replace(s, '{', '')\"), T.Cast({'made': 'timestamp'}) before"),
    ],
)
def test_texts_become_times_by_steps_before(wrote: str, text: str, steps: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(wrote.replace("{}", text))
    assert caught.value.remedy.startswith(steps)
    assert ("gp.read_csv(..., timestamp_formats={'s': '%m/%d/%Y'})" in caught.value.remedy) == ("'s'" in steps)


@pytest.mark.parametrize(
    ("wrote", "times"),
    [
        ("datetime(y, m, d)", ["1975-06-27", "2020-11-05"]),
        ("make_date(df.y, col('m'), d) > t", ["1975-06-27", "2020-11-05"]),
        ("floor(date(y, m, 1), '1d')", ["1975-06-01", "2020-11-01"]),
        ("datetime(year=y, month=m, day=d)", ["1975-06-27", "2020-11-05"]),
        ("pd.to_datetime(df[['y', 'm', 'd']])", ["1975-06-27", "2020-11-05"]),
        ("pd.Timestamp(y, m, d, h)", ["1975-06-27 00:00", "2020-11-05 18:00"]),
        ("timestamp(2024, m, d, h, 5)", ["2024-06-27 00:05", "2024-11-05 18:05"]),
        ("to_timestamp(y, m, d, h, 5, 30)", ["1975-06-27 00:05:30", "2020-11-05 18:05:30"]),
    ],
)
def test_a_time_of_year_month_and_day_is_a_text_that_is_cast(wrote: str, times: list[str]) -> None:
    data = gp.from_frame(pd.DataFrame({"y": [1975, 2020], "m": [6, 11], "d": [27, 5], "h": [0, 18]}))
    with pytest.raises(ExpressionError) as caught:
        parse(wrote)
    steps = eval(f"[{caught.value.remedy.removesuffix(' before')}]", {"T": T})
    made = gp.Pipeline(steps).fit(data).transform(data).compute()["made"]
    assert made.tolist() == [*map(pd.Timestamp, times)]


@pytest.mark.parametrize(
    "wrote", ["x > x.mean()", "x > np.mean(df.x)", "x > mean(x)", "x > avg(x)", "2 * x > x.median()"]
)
def test_an_aggregate_of_rows_is_a_number_or_a_join(wrote: str) -> None:
    data = gp.from_frame(pd.DataFrame({"x": [1.0, 2.0, 6.0, 0.0], "key": ["a", "a", "a", "b"]}))
    with pytest.raises(ExpressionError) as caught:
        data.assign(z=wrote)
    assert ("; of a list mean(" in caught.value.remedy) == (".mean" in wrote or "avg" in wrote)
    of_all, of_groups = caught.value.remedy.split("; of a list ")[0].split("; of each group ")
    code, text = of_all.split(", then ")
    names: dict[str, Any] = {"data": data}
    exec(code, names)
    table = data.compute()["x"]
    function, factor = ("median", 2) if "median" in wrote else ("mean", 1)
    assert data.assign(z=eval(text, names)).compute()["z"].tolist() == (factor * table > table.agg(function)).tolist()
    joined, text = of_groups.split(", then ")
    groups = data.compute().groupby("key")["x"].transform(function)
    assert eval(joined, names).assign(z=eval(text)).compute()["z"].tolist() == (factor * table > groups).tolist()


def test_a_remedy_gives_what_was_meant() -> None:
    times = pd.to_datetime(["2024-01-07 23:00", "2024-01-08 01:00", "2024-02-01 05:30"])
    data = gp.from_frame(pd.DataFrame({"code": ["C3x", "A1y", "B2z"], "at": times, "x": [0.0, 2.26, -3.04]}))

    def follow(text: str) -> list[Any]:
        with pytest.raises(ExpressionError) as caught:
            data.assign(z=text)
        values: list[Any] = data.assign(z=caught.value.remedy).compute()["z"].tolist()
        return values

    assert follow("substr(code, 2, 1)") == ["3", "1", "2"]
    assert follow("code == 'C3x' or 'A1y'") == [True, True, False]
    assert follow("x and x < 3") == [False, True, True]
    assert follow("x.round(1)") == [0.0, 2.3, -3.0] and follow("sign(x)") == [0, 1, -1]
    assert follow("min(x, 2, -1)") == [-1, -1, -3.04] and follow("max([x, 1])") == [1, 2.26, 1]
    assert follow("mean(x, 1, 2)") == ((data.compute()["x"] + 3) / 3).tolist() and follow("sum([x, 1])")[0] == 1
    assert follow("date_trunc('hour', at)") == times.floor("h").tolist()
    first, second, third = follow("date_trunc('week', at)")  # of Mondays
    assert (second - first, third - second) == (1, 3)


@pytest.mark.parametrize(("wrote", "remedy"), [("k == true", "True"), ("where(k, a, NULL)", "None")])
def test_a_constants_name_is_pythons(wrote: str, remedy: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(wrote).check(SCHEMA)
    assert caught.value.remedy == remedy
    parse(f"{wrote[:-5]} {remedy})".replace("== True)", "== True")).check(SCHEMA)
