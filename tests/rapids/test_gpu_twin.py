"""`GpuBackend` on stand-ins against `CpuBackend`: every verb on frames, on tables that hypothesis makes.

A rehearsal: right under RAPIDS' signatures and habits as read, on no device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

from gpupipe.backend import infer_backend
from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import Backend, Column
from gpupipe.errors import GpupipeError, SchemaMismatch
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, Field
from gpupipe.tensors import share

from .oracle import CPU, FIELDS, TYPES, both, columns_equal, host, same, tables, year
from .standin_frame import cudf

SOME = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SOME
@given(table=tables())
def test_arrow_in_and_out(rehearsed_backend: Backend, table: pa.Table) -> None:
    frame, oracle = both(rehearsed_backend, table)
    assert infer_backend(frame) is rehearsed_backend
    same(rehearsed_backend.to_arrow(frame), CPU.to_arrow(oracle))


@SOME
@given(table=tables())
def test_a_column_is_the_cpu_column(rehearsed_backend: Backend, table: pa.Table) -> None:
    frame, oracle = both(rehearsed_backend, table)
    for item in FIELDS:
        columns_equal(rehearsed_backend.column(frame, item.name), CPU.column(oracle, item.name))


@SOME
@given(table=tables())
def test_columns_make_the_frame_again(rehearsed_backend: Backend, table: pa.Table) -> None:
    frame, oracle = both(rehearsed_backend, table)
    names = [item.name for item in FIELDS]
    columns = {name: rehearsed_backend.column(frame, name) for name in names}
    same(rehearsed_backend.to_arrow(rehearsed_backend.frame(columns, len(frame))), CPU.to_arrow(oracle))
    assigned = rehearsed_backend.assign(
        rehearsed_backend.select(frame, names[:3]), {name: columns[name] for name in names[2:]}
    )
    same(rehearsed_backend.to_arrow(assigned), CPU.to_arrow(oracle))


def test_a_float_column_is_shared_both_ways(rehearsed_backend: Backend) -> None:
    frame, _ = both(rehearsed_backend, pa.table({"price": [1.0, None, 3.0]}))
    column = rehearsed_backend.column(frame, "price")
    again = rehearsed_backend.column(rehearsed_backend.frame({"x": column}, 3), "x")
    assert again.data.data.ptr == column.data.data.ptr
    assert (
        rehearsed_backend.column(rehearsed_backend.assign(frame, {"y": again}), "price").data.data.ptr
        == column.data.data.ptr
    )


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, "bool"])
def test_a_users_column_is_shared_and_what_a_user_gets_is_not(rehearsed_backend: Backend, dtype: str) -> None:
    gpu, memory = rehearsed_backend, rehearsed_backend.to_device(np.array([1, 0, 1], dtype=dtype))
    frame = cudf.DataFrame({"x": memory})
    assert share(frame, "x").data_ptr() == memory.data.ptr
    coded = gpu.rename(gpu.encode(frame), {"x": "y"})
    assert gpu.column(coded, "y").data.data.ptr == memory.data.ptr
    assert gpu.decode(coded, owned_columns=["y"])["y"].to_cupy().data.ptr == memory.data.ptr
    assert gpu.decode(coded)["y"].to_cupy().data.ptr != memory.data.ptr


def test_a_column_with_nan_is_new_memory_to_a_user(rehearsed_backend: Backend) -> None:
    memory = rehearsed_backend.to_device(np.array([1.0, np.nan]))
    coded = rehearsed_backend.frame({"x": Column("float64", memory)}, 2)
    for own in ([], ["x"]):
        made = rehearsed_backend.decode(coded, own)["x"]
        assert made.has_nulls and made.to_cupy().data.ptr != memory.data.ptr


def test_narrow_codes_into_a_wide_dictionary(rehearsed_backend: Backend) -> None:
    dictionary = pa.array([str(number) for number in range(300)], pa.large_string())
    codes = rehearsed_backend.to_device(np.array([44, -1, 3], dtype="int8"))
    frame = rehearsed_backend.frame({"zip": Column("string", codes, None, dictionary)}, 3)
    assert rehearsed_backend.to_arrow(frame).column("zip").to_pylist() == ["44", None, "3"]


def test_a_frame_without_columns_has_rows(rehearsed_backend: Backend) -> None:
    assert len(rehearsed_backend.frame({}, 3)) == 3


@SOME
@given(table=tables(), data=st.data())
def test_rows_by_position_and_by_mask(rehearsed_backend: Backend, table: pa.Table, data: Any) -> None:
    frame, oracle = both(rehearsed_backend, table)
    rows = np.array(
        data.draw(st.lists(st.integers(0, max(len(oracle) - 1, 0)), max_size=9 if len(oracle) else 0)), dtype=np.int64
    )
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(oracle), max_size=len(oracle))), dtype=bool)
    taken = rehearsed_backend.take(frame, rehearsed_backend.to_device(rows))
    kept = rehearsed_backend.filter(frame, rehearsed_backend.to_device(keep))
    for found, wanted in [(taken, CPU.take(oracle, rows)), (kept, CPU.filter(oracle, keep))]:
        same(rehearsed_backend.to_arrow(found), CPU.to_arrow(wanted))
        positions = CPU.positions(wanted).tolist()
        new = {"at": Column("int64", rehearsed_backend.xp.arange(len(found)))}
        for after in (found, rehearsed_backend.decode(found), rehearsed_backend.assign(found, new)):
            assert host(rehearsed_backend.positions(after)).tolist() == positions
    renamed = rehearsed_backend.rename(kept, {"at": "when"})
    assert list(renamed.columns) == ["when" if item.name == "at" else item.name for item in FIELDS]


@SOME
@given(parts=st.lists(tables(max_rows=4), min_size=1, max_size=3))
def test_frames_one_after_the_other(rehearsed_backend: Backend, parts: list[pa.Table]) -> None:
    backwards = [np.arange(part.num_rows)[::-1] for part in parts]
    frames = [both(rehearsed_backend, part)[0] for part in parts]
    taken = [rehearsed_backend.take(f, rehearsed_backend.to_device(b)) for f, b in zip(frames, backwards, strict=True)]
    oracle = pa.concat_tables(part.take(b) for part, b in zip(parts, backwards, strict=True))
    joined = rehearsed_backend.concat(taken)
    same(rehearsed_backend.to_arrow(joined), CPU.to_arrow(both(rehearsed_backend, oracle)[1]))
    assert host(rehearsed_backend.positions(joined)).tolist() == list(range(len(oracle)))


def python_merge(
    left: list[dict[str, Any]], right: list[dict[str, Any]], keys: list[str], how: str, suffix: str
) -> list[dict[str, Any]]:
    """What the protocol says of a merge, row by row."""
    names = [name for name in (right[0] if right else {}) if name not in keys]
    made = []
    for number, row in enumerate(left):
        found = [other for other in right if all(row[k] == other[k] and row[k] is not None for k in keys)]
        if not found and how == "left":
            found = [dict.fromkeys(names)]
        made += [
            row | {"row": number} | {name + suffix if name in row else name: other[name] for name in names}
            for other in found
        ]
    return made


@SOME
@given(
    left=tables(),
    right=tables(),
    keys=st.sampled_from([["città"], ["open", "città"], ["byte"], ["at"], ["price"]]),
    how=st.sampled_from(["left", "inner"]),
)
def test_a_merge_keeps_order_and_types_and_matches_no_null(
    rehearsed_backend: Backend, left: pa.Table, right: pa.Table, keys: list[str], how: str
) -> None:
    plain = [CPU.to_arrow(both(rehearsed_backend, side)[1]) for side in (left, right)]
    names = [*plain[0].column_names, *(f"{name}_right" for name in plain[1].column_names if name not in keys)]
    types = [TYPES[name.removesuffix("_right")] for name in names]
    rows = python_merge(plain[0].to_pylist(), plain[1].to_pylist(), keys, how, "_right")
    wanted = pa.table(
        [pa.array([row.get(name) for row in rows], kind) for name, kind in zip(names, types, strict=True)], names=names
    )
    for which, backend in enumerate((rehearsed_backend, CPU)):
        sides = (both(rehearsed_backend, side)[which] for side in (left, right))
        merged = backend.merge(*sides, keys, how, "_right")
        same(backend.to_arrow(merged), wanted)
        assert host(backend.positions(merged)).tolist() == [row["row"] for row in rows]


@pytest.mark.parametrize("how", ["left", "inner"])
def test_several_matches_keep_their_order_where_a_key_is_missing(rehearsed_backend: Backend, how: str) -> None:
    left, right = pa.table({"key": [None, ""]}), pa.table({"key": ["", ""], "value": [0, 1]})
    for backend, frame_of in ((rehearsed_backend, cudf.DataFrame.from_arrow), (CPU, pa.Table.to_pandas)):
        sides = (backend.encode(frame_of(side)) for side in (left, right))
        joined = backend.to_arrow(backend.merge(*sides, ["key"], how, "_right"))
        assert joined["value"].drop_null().to_pylist() == [0, 1]


@SOME
@given(table=tables())
def test_a_users_frame_is_coded_and_back(rehearsed_backend: Backend, table: pa.Table) -> None:
    large = pa.types.is_large_list
    kinds = [item.with_type(pa.list_(item.type.value_type)) if large(item.type) else item for item in table.schema]
    frame = cudf.DataFrame.from_arrow(table.cast(pa.schema(kinds)))
    coded = rehearsed_backend.encode(frame)
    oracle = CPU.encode(CPU.decode(both(rehearsed_backend, table)[1]))
    same(rehearsed_backend.to_arrow(coded), CPU.to_arrow(oracle))
    assert [item.dtype for item in rehearsed_backend.schema_of(coded)] == [item.dtype for item in CPU.schema_of(oracle)]
    nullable = {item.name for item in rehearsed_backend.schema_of(coded) if item.nullable}
    assert nullable == {name for name in table.column_names if CPU.to_arrow(oracle).column(name).null_count}
    assert not coded["price"].has_nulls and not coded["small"].has_nulls
    plain = rehearsed_backend.decode(coded)
    assert not any(plain[name].is_category for name in plain.columns)
    assert plain["price"].valid is not None or not np.isnan(plain["price"].data).any()


def test_a_users_index_does_not_travel(rehearsed_backend: Backend) -> None:
    frame = cudf.from_pandas(pd.DataFrame({"x": [1.0, 2.0]}, index=[7, 8]))
    coded = rehearsed_backend.encode(frame)
    grown = rehearsed_backend.assign(coded, {"y": Column("float64", rehearsed_backend.xp.ones(2))})
    assert rehearsed_backend.to_arrow(grown).to_pydict() == {"x": [1.0, 2.0], "y": [1.0, 1.0]}


def test_a_timestamp_with_a_zone_becomes_utc(rehearsed_backend: Backend) -> None:
    zoned = pa.table({"at": pa.array([year(2013), None], pa.timestamp("ns", "UTC"))})
    coded = rehearsed_backend.encode(cudf.DataFrame.from_arrow(zoned))
    assert rehearsed_backend.to_arrow(coded).column("at").to_pylist() == [year(2013), None]


def test_what_is_not_worked_with_is_named(rehearsed_backend: Backend) -> None:
    numbers = cudf.DataFrame.from_arrow(pa.table({"zip": pa.array([1, 2]).dictionary_encode()}))
    with pytest.raises(SchemaMismatch, match="column 'zip'"):
        rehearsed_backend.encode(numbers)
    with pytest.raises(SchemaMismatch, match="name is no string"):
        rehearsed_backend.encode(cudf.from_pandas(pd.DataFrame({0: [1]})))


@SOME
@given(table=tables(), name=st.sampled_from(list(TYPES)), dtype=st.sampled_from(DTYPES))
def test_a_cast_is_the_cpus_or_fails_with_its_words(
    rehearsed_backend: Backend, table: pa.Table, name: str, dtype: str
) -> None:
    found, wanted = (
        outcome(backend.column(frame, name), dtype, backend)
        for backend, frame in zip((rehearsed_backend, CPU), both(rehearsed_backend, table), strict=True)
    )
    assert type(found) is type(wanted)
    if isinstance(wanted, Column):
        columns_equal(found, wanted)
    else:
        assert str(found) == str(wanted)


def outcome(column: Column, dtype: str, backend: Backend) -> Column | GpupipeError:
    try:
        return cast_column(column, dtype, "x", backend)
    except GpupipeError as error:
        return error


def test_names_that_are_also_arguments(rehearsed_backend: Backend, tmp_path: Any) -> None:
    gpu, names = rehearsed_backend, ["self", "index", "names", "inplace", "key", "", "a b"]
    table = pa.table([pa.array(["x", None, "y"], pa.large_string())] * 4 + [pa.array([1, 2, None])] * 3, names=names)
    fields = [Field(name, "int64" if table[name].type == pa.int64() else "string") for name in names]
    frame = gpu.from_arrow(table, fields)
    columns = {name: gpu.column(frame, name) for name in names}
    away = {name: f"{name}!" for name in names}
    pq.write_table(table, tmp_path / "t.parquet")
    for made in (
        gpu.frame(columns, 3),
        gpu.select(gpu.assign(gpu.select(frame, names[::2]), columns), names),
        gpu.rename(gpu.rename(frame, away), {new: name for name, new in away.items()}),
        gpu.encode(gpu.decode(frame)),
        gpu.concat([frame, gpu.take(frame, gpu.xp.arange(0))]),
        gpu.read_parquet([str(tmp_path / "t.parquet")], [[0]], fields),
    ):
        same(gpu.to_arrow(made), table)
    oracle = CPU.from_arrow(table, fields)
    for name in names:
        same(
            gpu.to_arrow(gpu.merge(frame, frame, [name], "left", "_right")),
            CPU.to_arrow(CPU.merge(oracle, oracle, [name], "left", "_right")),
        )
