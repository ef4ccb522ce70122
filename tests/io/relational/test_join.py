from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from tests.io.meeting import KEYS, PARTITIONS, few_bytes, meetings, rows_of, several
from tests.io.tables import DATA, plain
from tests.raising import raises

names_of_keys = st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2, unique=True)


def pairs(ours: pa.Table, theirs: pa.Table, on: list[str], how: str) -> list[dict[str, Any]]:
    """Every pair looked at, one after the other."""
    left, right = plain(ours), plain(theirs)
    added = [name for name in theirs.column_names if name not in on]
    found, used = [], set()
    for row in left:
        matches = [
            number
            for number, other in enumerate(right)
            if all(row[key] is not None and row[key] == other[key] for key in on)
        ]
        used.update(matches)
        for number in matches or ([None] if how in ("left", "outer") else []):
            values = {name: None if number is None else right[number][name] for name in added}
            found.append({**row, **{f"{name}_right": value for name, value in values.items()}})
    if how in ("right", "outer"):
        for number, other in enumerate(right):
            if number not in used:
                keys = {name: other[name] if name in on else None for name in other}
                found.append({**keys, **{f"{name}_right": other[name] for name in added}})
    return found


@pytest.mark.slow
@several
@given(
    left=meetings(),
    right=meetings(12),
    on=names_of_keys,
    how=st.sampled_from(["left", "inner", "right", "outer"]),
    parts=st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(PARTITIONS)),
)
def test_every_pair_that_matches_in_the_lefts_order(
    left: pa.Table, right: pa.Table, on: list[str], how: Any, parts: tuple[int, int]
) -> None:
    tables = [gp.from_frame(table, num_partitions=number) for table, number in zip((left, right), parts, strict=True)]
    found = tables[0].join(tables[1], on, how=how, many=True)
    wanted = pairs(left, right, on, how)
    assert rows_of(found) == wanted
    assert len(found) == len(wanted)


@pytest.mark.slow
@several
@given(
    left=meetings(),
    right=meetings(12),
    on=names_of_keys,
    parts=st.tuples(st.sampled_from(PARTITIONS), st.sampled_from(PARTITIONS)),
    memory=st.sampled_from([1 << 40, 1000]),
)
def test_columns_of_unique_keys_beside_the_left(
    left: pa.Table,
    right: pa.Table,
    on: list[str],
    parts: tuple[int, int],
    memory: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of frames and of files of several row groups, within the memory and beyond it."""
    path = tmp_path_factory.mktemp("left") / "rows.parquet"
    pq.write_table(left, path, row_group_size=max(1, len(left) // parts[0]))
    with pytest.MonkeyPatch.context() as patch:
        few_bytes(patch, memory)
        patch.setattr("gpupipe.io.relational.scan._PIECE_ROWS", 2)
        unique = gp.from_frame(right, num_partitions=parts[1]).deduplicate(on)
        wanted = pairs(left.filter(pc.field("row") > 1), unique.to_polars().collect().to_arrow(), on, "left")
        for data in (gp.from_frame(left, num_partitions=parts[0]), gp.read_parquet(path, backend="cpu")):
            found = data.filter("row > 1").join(unique, on)
            assert rows_of(found) == wanted
            assert rows_of(data.filter("row > 1").join(unique, on, columns=[])) == plain(left)[2:]


@pytest.mark.parametrize("how", ["left", "inner", "right", "outer"])
def test_joins_are_those_of_pandas(how: Any) -> None:
    random = np.random.default_rng(5)
    left = pd.DataFrame({"k": random.integers(0, 400, 3000), "x": random.standard_normal(3000)})
    right = pd.DataFrame({"k": random.integers(200, 600, 500), "x": random.standard_normal(500)})
    data = [gp.from_frame(frame, num_partitions=5) for frame in (left, right)]
    found = data[0].join(data[1], on="k", how=how, many=True).to_pandas()
    wanted = left.merge(right, on="k", how=how, suffixes=("", "_right"))
    order = ["k", "x", "x_right"]
    if how in ("right", "outer"):  # pandas has another order
        found, wanted = (frame.sort_values(order, ignore_index=True) for frame in (found, wanted))
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)


NUMBERS = ["int8", "int64", "uint8", "uint64", "float32", "float64"]


@pytest.mark.slow
@pytest.mark.parametrize("ours", NUMBERS)
@pytest.mark.parametrize("theirs", NUMBERS)
def test_numbers_match_by_value_as_in_the_step(ours: str, theirs: str) -> None:
    """Never as floats: 2^53 and 2^53 + 1 are two numbers."""
    values = [-1, 0, 1, 100, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    left, right = (
        np.array([value for value in values if holds(value, dtype)], dtype=dtype) for dtype in (ours, theirs)
    )
    tables = [pd.DataFrame({"k": keys, name: keys}) for keys, name in ((left, "a"), (right, "b"))]
    found = gp.from_frame(tables[0], num_partitions=2).join(gp.from_frame(tables[1], num_partitions=2), on="k")
    known = {int(value) for value in right}
    wanted = [{"k": k, "a": k, "b": k if int(k) in known else None} for k in left.tolist()]
    assert rows_of(found) == wanted
    if right.dtype.kind != "f" or (right < 2**63).all():  # the step's lookup wants int64
        step = T.Join(tables[1], on="k").transform(tables[0])
        assert rows_of(step) == wanted


def holds(value: int, dtype: str) -> bool:
    if dtype.startswith("float"):
        return int(np.dtype(dtype).type(value)) == value
    return np.iinfo(dtype).min <= value <= np.iinfo(dtype).max


def test_fractions_match_fractions_only() -> None:
    left = gp.from_frame(pd.DataFrame({"k": [0.5, -0.0, np.nan, 2.0]}))
    for keys, wanted in (([0.5, 0.0, np.nan], [0, 1, None, None]), ([0, 2, 3], [None, 0, None, 1])):
        right = gp.from_frame(pd.DataFrame({"k": keys, "row": pd.array(range(3), dtype="Int64")}))
        assert [row["row"] for row in rows_of(left.join(right, on="k"))] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTITIONS)
def test_keys_of_other_names_and_chosen_columns(parts: int) -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", columns=["origin", "dest", "flight"], backend="cpu")
    airports = gp.from_frame(pd.read_parquet(DATA / "airports.parquet"), num_partitions=parts)
    found = flights.join(airports, left_on="dest", right_on="faa", columns=["name", "alt"], how="inner")
    whole = pd.read_parquet(DATA / "flights.parquet", columns=["origin", "dest", "flight"])
    wanted = whole.merge(
        pd.read_parquet(DATA / "airports.parquet")[["faa", "name", "alt"]], left_on="dest", right_on="faa"
    )
    assert found.columns == ["origin", "dest", "flight", "name", "alt"]
    pd.testing.assert_frame_equal(found.to_pandas(), wanted.drop(columns="faa"), check_dtype=False)


def test_a_filtered_left_keeps_its_order_and_meets_rows_that_repeat() -> None:
    """A join of rows that a join has repeated: they have no identity of their own before."""
    left = gp.from_frame(pd.DataFrame({"k": [3, 1, 2, 1]}), num_partitions=3).filter("k < 3")
    twice = pd.DataFrame({"k": [1, 1, 2], "a": [10, 11, 12]})
    repeated = gp.Pipeline([T.Join(twice, on="k", many=True)], backend="cpu").fit(left).transform(left)
    right = gp.from_frame(pd.DataFrame({"a": [12, 11, 10], "b": ["x", "y", "z"]}))
    found = repeated.join(right, on="a").to_pandas()
    assert found[["k", "a", "b"]].to_numpy().tolist() == [
        [1, 10, "z"],
        [1, 11, "y"],
        [2, 12, "x"],
        [1, 10, "z"],
        [1, 11, "y"],
    ]


def test_a_key_that_repeats_on_the_right_is_refused_or_asked_for() -> None:
    left = gp.from_frame(pd.DataFrame({"k": ["a"]}))
    right = gp.from_frame(pd.DataFrame({"k": ["b", None, None, "b"], "x": range(4)}))
    with pytest.raises(BadData, match=r"repeat a key, for instance \{'k': 'b'\}") as caught:
        left.join(right, on="k").compute()
    assert "many=True" in str(caught.value)
    assert rows_of(left.join(right.deduplicate("k"), on="k")) == [{"k": "a", "x": None}]
    assert len(left.join(right, on="k", many=True, how="outer")) == 5


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ([True, False], [1, 0]),
        ([1.0, 2.0], ["1", "2.0"]),
        ([1, 2], ["1", "2"]),
        ([1, 2], ["001", "002"]),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), ["2024-01-01", "2024-01-02 00:00"]),
    ],
)
def test_the_casts_that_are_offered_make_keys_equal(key: Any, other: Any) -> None:
    left, right = gp.from_frame(pd.DataFrame({"k": key})), gp.from_frame(pd.DataFrame({"j": other, "v": [1, 2]}))
    for sides in ((left, right, "k", "j"), (right, left, "j", "k")):
        names: dict[str, Any] = {"left": sides[0], "right": sides[1], "gp": gp, "T": T}
        with pytest.raises(SchemaMismatch) as caught:
            sides[0].join(sides[1], left_on=sides[2], right_on=sides[3])
        exec(caught.value.remedy, names)
        assert len(names["left"].join(names["right"], left_on=sides[2], right_on=sides[3], how="inner")) == 2


def test_what_cannot_be_joined_is_said() -> None:
    frame = pd.DataFrame({"k": [1], "t": ["a"], "x": [1.0], "x_right": [2.0]})
    left = gp.from_frame(frame)
    with raises(BadConfig, where="join", got="DataFrame"):
        left.join(frame, on="k")  # type: ignore[arg-type]
    with raises(BadConfig, where="join(how=)", got="cross"):
        left.join(left, on="k", how="cross")  # type: ignore[arg-type]
    for keys in ({}, {"on": "k", "left_on": "k"}, {"left_on": "k"}):
        with raises(BadConfig, where="join", remedy="on='key'"):
            left.join(left, **keys)  # type: ignore[arg-type]
    with raises(BadConfig, where="join", got={"left_on": ["k", "t"], "right_on": ["k"]}):
        left.join(left, left_on=["k", "t"], right_on="k")
    with raises(ColumnNotFound, where="join, right table", column="kk"):
        left.join(left, left_on="k", right_on="kk")
    with raises(ColumnNotFound, where="join, right table", column="y"):
        left.join(left, on="k", columns="y")
    with pytest.raises(SchemaMismatch, match=r"'k' is int64 on the left and 't' string"):
        left.join(left, left_on="k", right_on="t")
    with pytest.raises(SchemaMismatch, match="how='outer'"):
        left.join(left, left_on="k", right_on="x", how="outer")
    with pytest.raises(BadConfig, match="'x_right' like another"):
        left.join(left, on="k", columns="x")
