from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from tests.io.meeting import KEYS, PARTITIONS, meetings, pandas_of, rows_of, several
from tests.io.tables import DATA
from tests.raising import raises

OF_ANYTHING = ("size", "count", "min", "max", "first", "last", "nunique")
OF_NUMBERS = ("sum", "mean", "var", "std", "median")
ASKED = {
    **{f"{column}_{function}": (column, function) for column in ("k", "at", "u", "x") for function in OF_ANYTHING},
    **{f"{column}_{function}": (column, function) for column in ("amount", "weight") for function in OF_NUMBERS},
    "ok_sum": ("ok", "sum"),
    "ok_mean": ("ok", "mean"),
    "ok_max": ("ok", "max"),
}


def wanted_of(frame: pd.DataFrame, keys: list[str], asked: dict[str, tuple[str, str]], dropna: bool) -> Any:
    """pandas' own result; a key is given under its own name only."""
    named = {name: pair for name, pair in asked.items() if pair[0] not in keys}
    return rows_of(frame.groupby(keys, dropna=dropna).agg(**named).reset_index())


def same(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, float) and ours[name] is not None:
                assert ours[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
            else:
                assert ours[name] == value, name


@several
@given(
    table=meetings(),
    keys=st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3, unique=True),
    parts=st.sampled_from(PARTITIONS),
    dropna=st.booleans(),
    meet=st.booleans(),
)
def test_groups_are_those_of_pandas(table: pa.Table, keys: list[str], parts: int, dropna: bool, meet: bool) -> None:
    asked = {
        name: pair
        for name, pair in ASKED.items()
        if pair[0] not in keys and (meet or pair[1] not in ("median", "nunique"))
    }
    found = gp.from_frame(table, num_partitions=parts).group_by(keys, dropna=dropna).agg(**asked)
    same(rows_of(found), wanted_of(pandas_of(table), keys, asked, dropna))
    assert len(found) == len(found.compute())


def test_types_are_those_of_pandas() -> None:
    frame = pd.DataFrame(
        {
            "k": ["a", "a"],
            "f": np.float32([1, 2]),
            "i": np.int8([100, 100]),  # pandas' sums are wide where they have to be, ours always
            "u": np.uint16([60_000, 60_000]),
            "b": [True, False],
        }
    )
    named = {
        f"{c}_{f}": (c, f)
        for c in "fiub"
        for f in (*OF_ANYTHING, *OF_NUMBERS)
        if (c, f) not in {("b", "var"), ("b", "std")}
    }
    found = gp.from_frame(frame).group_by("k").agg(**named).to_pandas()
    wanted = frame.groupby("k").agg(**named).reset_index()
    wanted = wanted.astype({"f_mean": "float64"})  # pandas below 3.1, all that cuDF takes, has a 32 bit float
    assert found.dtypes.astype(str).to_dict() == wanted.dtypes.astype(str).to_dict()


INF = np.inf


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", [[-INF, 1], [1, INF], [INF, INF], [-INF, -INF, 1, 2], [-3, INF, 5, -INF]])
def test_a_median_beside_an_infinity_is_that_of_numpy(values: list[float], dtype: str) -> None:
    table = gp.from_frame(pa.table({"k": ["a"] * len(values), "x": pa.array(values, dtype)}))
    assert table.group_by("k").agg(middle=("x", "median")).compute()["middle"].tolist() == [np.median(values)]


def test_a_median_between_two_infinities_is_missing() -> None:
    table = gp.from_frame(pd.DataFrame({"k": [1, 1, 2], "x": [-INF, INF, 3.0]}))
    assert rows_of(table.group_by("k").agg(middle=("x", "median"))) == [
        {"k": 1, "middle": None},
        {"k": 2, "middle": 3.0},
    ]


INTEGERS = {"int64": st.integers(-(2**63), 2**63 - 1), "uint64": st.integers(0, 2**64 - 1)}


@several
@given(data=st.data(), dtype=st.sampled_from(sorted(INTEGERS)))
def test_a_sum_is_right_or_an_error(data: st.DataObject, dtype: str) -> None:
    far = st.sampled_from([2**62, 2**63 - 1, *([-(2**62), -(2**63)] if dtype == "int64" else [2**63, 2**64 - 1])])
    rows = st.tuples(st.sampled_from("ab"), st.one_of(INTEGERS[dtype], far, st.integers(0, 9), st.none()))
    keys, values = zip(*data.draw(st.lists(rows, min_size=1, max_size=12)), strict=True)
    sums = {key: sum(v for k, v in zip(keys, values, strict=True) if k == key and v is not None) for key in keys}
    low, high = (-(2**63), 2**63 - 1) if dtype == "int64" else (0, 2**64 - 1)
    beyond = sorted(key for key, total in sums.items() if not low <= total <= high)
    table = gp.from_frame(pa.table({"k": keys, "v": pa.array(values, dtype)}), num_partitions=2)
    grouped = table.group_by("k")
    if beyond:
        with pytest.raises(BadData) as caught:
            rows_of(grouped.agg(n=("v", "size"), total=("v", "sum")))
        assert (caught.value.where, caught.value.got) == ("agg(total=)", {"k": beyond[0]})
    else:
        found = grouped.agg(n=("v", "size"), total=("v", "sum"))
        assert {row["k"]: row["total"] for row in rows_of(found)} == sums
        assert found.schema["total"].dtype == dtype


def test_a_sum_that_fits_no_integer_has_a_way_out() -> None:
    table = gp.from_frame(pd.DataFrame({"k": [1, 1, 2], "v": [2**62, 2**62 + 1, 3]}))
    gp.configure(memory_limit=1)  # the result lies in a file
    with pytest.raises(BadData) as caught:
        rows_of(table.group_by("k").agg(total=("v", "sum")))
    assert (caught.value.got, caught.value.remedy.partition(" before")[0]) == ({"k": 1}, "T.Derive(v='float(v)')")
    floats = gp.Pipeline([gp.transforms.Derive(v="float(v)")]).fit(table).transform(table)
    assert floats.group_by("k").agg(total=("v", "sum")).compute()["total"].tolist() == [2.0**63, 3.0]


def test_a_sum_that_does_not_fit_leaves_nothing_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups before it are written by then."""
    monkeypatch.setattr("gpupipe.io.relational.engine.count_batch_rows", lambda _: 10)
    rows = pd.DataFrame({"k": [*range(100), 99], "v": [1] * 99 + [2**62] * 2})
    for name in ("one.parquet", "parts"):
        with pytest.raises(BadData) as caught:
            gp.from_frame(rows, num_partitions=3).group_by("k").agg(total=("v", "sum")).write_parquet(tmp_path / name)
        assert (caught.value.where, caught.value.got) == ("agg(total=)", {"k": 99})
        assert "'v'" in caught.value.problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parts", PARTITIONS)
def test_numbers_far_from_zero_keep_their_spread(parts: int) -> None:
    """A sum of squares would lose it."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"k": random.integers(0, 3, 3000), "x": 1e9 + random.standard_normal(3000)})
    found = gp.from_frame(frame, num_partitions=parts).group_by("k").agg(spread=("x", "var")).to_pandas()
    np.testing.assert_allclose(found["spread"], frame.groupby("k")["x"].var(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_zeros_are_one_value(dtype: str) -> None:
    """More rows than one, of which Polars leaves a sum with 0.0 out."""
    for zeros in ([0.0, -0.0], [-0.0, 0.0]):
        frame = pd.DataFrame({"k": ["a"] * 1000, "x": np.array(zeros * 500, dtype), "y": 1})
        data = gp.from_frame(frame)
        found = data.group_by("k").agg(low=("x", "min"), high=("x", "max")).compute()
        assert not np.signbit(found[["low", "high"]].to_numpy()).any()
        assert found["low"].dtype == dtype
        assert len(data.group_by("x").agg(n=("k", "size"))) == len(data.deduplicate("x")) == 1
        assert len(data.deduplicate("x").join(data.select(["x"]), on="x", how="inner", many=True)) == 1000


def test_sums_of_integers_are_exact() -> None:
    frame = pd.DataFrame({"k": [1, 1, 2], "i": [2**53, 1, -(2**63)], "u": np.array([2**64 - 2, 1, 0], "uint64")})
    found = gp.from_frame(frame, num_partitions=3).group_by("k").agg(i=("i", "sum"), u=("u", "sum")).to_pandas()
    assert found.to_dict("list") == {"k": [1, 2], "i": [2**53 + 1, -(2**63)], "u": [2**64 - 1, 0]}


def test_more_groups_than_a_partition_has_rows() -> None:
    """What is left of the groups is exchanged in ranges of the key."""
    frame = pd.DataFrame({"k": np.random.default_rng(2).permutation(4000) % 2500, "x": 1.0})
    found = gp.from_frame(frame, num_partitions=7).group_by("k").agg(n=("x", "sum"))
    assert found.num_partitions > 2
    wanted = frame.groupby("k").agg(n=("x", "sum")).reset_index()
    pd.testing.assert_frame_equal(found.to_pandas(), wanted)


def test_the_shipped_flights() -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20, backend="cpu")
    named = {"delay": ("arr_delay", "mean"), "late": ("arr_delay", "max"), "planes": ("tailnum", "nunique")}
    found = flights.filter("distance >= 200").group_by(["origin", "month"]).agg(**named)
    whole = pd.read_parquet(DATA / "flights.parquet")
    wanted = whole[whole.distance >= 200].groupby(["origin", "month"]).agg(**named).reset_index()
    pd.testing.assert_frame_equal(found.to_pandas(), wanted, check_dtype=False)


def test_what_cannot_be_grouped_is_said() -> None:
    data = gp.from_frame(pd.DataFrame({"k": ["a"], "x": [1.0]}))
    with raises(ColumnNotFound, where="group_by", column="kk"):
        data.group_by("kk")
    with pytest.raises(BadConfig, match="no column is named"):
        data.group_by([])
    groups = data.group_by("k")
    with pytest.raises(BadConfig, match="nothing is asked for"):
        groups.agg()
    with raises(BadConfig, where="agg(m=)", got="kurt"):
        groups.agg(m=("x", "kurt"))
    with raises(BadConfig, where="agg(k=)"):
        groups.agg(k=("x", "sum"))
    with raises(ColumnNotFound, where="agg(m=)", column="y"):
        groups.agg(m=("y", "sum"))
    with raises(SchemaMismatch, where="agg(m=)", got="string"):
        data.group_by("x").agg(m=("k", "sum"))


@several
@given(table=meetings(), parts=st.sampled_from(PARTITIONS), q=st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 1.0]))
def test_quantiles_are_those_of_pandas(table: pa.Table, parts: int, q: float) -> None:
    found = (
        gp.from_frame(table, num_partitions=parts)
        .group_by("k")
        .agg(a=("amount", "quantile", q), w=("weight", "quantile", q))
    )
    grouped = pandas_of(table).groupby("k")[["amount", "weight"]].quantile(q)
    same(rows_of(found), rows_of(grouped.rename(columns={"amount": "a", "weight": "w"}).reset_index()))


@several
@given(table=meetings(), parts=st.sampled_from(PARTITIONS))
def test_modes_are_those_of_pandas(table: pa.Table, parts: int) -> None:
    columns = [name for name in ("at", "u", "x", "amount", "ok") if name in table.column_names]
    found = gp.from_frame(table, num_partitions=parts).group_by("k").agg(**{name: (name, "mode") for name in columns})
    frame = pandas_of(table)

    def find_mode(values: pd.Series) -> Any:
        counts = values.dropna().mode()
        return None if counts.empty else counts.min()

    wanted = [{"k": key} | {name: find_mode(group[name]) for name in columns} for key, group in frame.groupby("k")]
    found_rows = rows_of(found)
    assert [row["k"] for row in found_rows] == [row["k"] for row in wanted]
    for ours, theirs in zip(found_rows, wanted, strict=True):
        assert {n: None if pd.isna(v) else v for n, v in ours.items()} == {
            n: None if v is None else v for n, v in theirs.items()
        }


def test_modes_of_text_are_the_least_of_the_most_frequent() -> None:
    table = gp.from_frame(
        pd.DataFrame({"k": [1, 1, 1, 1, 2, 3], "s": ["b", "a", "b", "a", None, "é"]}), num_partitions=3
    )
    assert rows_of(table.group_by("k").agg(s=("s", "mode"))) == [
        {"k": 1, "s": "a"},
        {"k": 2, "s": None},
        {"k": 3, "s": "é"},
    ]
    zeros = gp.from_frame(pd.DataFrame({"k": [1] * 5, "x": [0.0, -0.0, 1.0, 1.0, 0.0]}))
    assert zeros.group_by("k").agg(x=("x", "mode")).compute()["x"].tolist() == [0.0]
    none = table.filter("k > 5").group_by("k").agg(s=("s", "mode"), q=("k", "max"))
    assert len(none) == 0 and none.schema["s"].dtype == "string"


@pytest.mark.parametrize(
    ("values", "q", "wanted"),
    [
        ([-INF, 1], 0.25, -INF),
        ([-INF, 1], 1, 1.0),
        ([1, INF], 0.25, INF),
        ([1, INF], 0, 1.0),
        ([-INF, INF], 0.5, None),
        ([-INF, -INF, 2], 0.25, -INF),
    ],
)
def test_a_quantile_beside_an_infinity(values: list[float], q: float, wanted: float | None) -> None:
    table = gp.from_frame(pd.DataFrame({"k": [1] * len(values), "x": [float(value) for value in values]}))
    assert rows_of(table.group_by("k").agg(x=("x", "quantile", q))) == [{"k": 1, "x": wanted}]


@pytest.mark.parametrize(
    ("aggregate", "message"),
    [
        (
            ("x", "quantile"),
            r"agg\(y=\): makes no sense[\s\S]*a number from 0 to 1[\s\S]*agg\(y=\('x', 'quantile', 0.9\)\)",
        ),
        (("x", "quantile", 90), r"90\)[\s\S]*a number from 0 to 1 behind it"),
        (("x", "quantile", "0.9"), "'0.9'"),
        (("x", "mean", 0.5), "makes no sense"),
        (("x", "quantile", 0.5, "linear"), "makes no sense"),
    ],
)
def test_a_quantile_needs_its_number(aggregate: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        gp.from_frame(pd.DataFrame({"k": [1], "x": [1.0]})).group_by("k").agg(y=aggregate)


def test_a_quantile_of_text_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="holds no numbers"):
        gp.from_frame(pd.DataFrame({"k": [1], "s": ["a"]})).group_by("k").agg(y=("s", "quantile", 0.5))


def test_an_expression_is_no_key_and_the_remedy_works() -> None:
    data = gp.from_frame(
        pd.DataFrame({"t": pd.to_datetime(["2013-10-01 05:10", "2013-10-01 05:50", "2013-10-01 06:00"])})
    )
    with raises(BadConfig, where="group_by", match="a key is an expression") as caught:
        data.group_by("floor(t, '1h')")
    assert caught.value.remedy == "data.assign(key=\"floor(t, '1h')\").group_by('key')"
    with raises(BadConfig, where="group_by", got="hour(t)"):
        data.group_by(["t", "hour(t)"])
    with pytest.raises(ColumnNotFound):
        data.group_by("tt")
    hours = data.assign(key="floor(t, '1h')").group_by("key").agg(n=("key", "size"))
    assert hours.compute()["n"].tolist() == [2, 1]
