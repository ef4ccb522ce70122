"""`GpuBackend` on stand-ins against `CpuBackend`: every verb of the protocol, on frames that hypothesis makes.

A rehearsal: right under RAPIDS' signatures and habits as read, on no device.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

from gpupipe.backend import backend_of
from gpupipe.backend.cpu import CpuBackend
from gpupipe.backend.protocol import Backend, Column
from gpupipe.errors import OutOfDeviceMemory, SchemaMismatch
from gpupipe.schema import Field

from .rehearsal import FREE, rehearsed_module, standins
from .standin_frame import cudf

CPU = CpuBackend()


def year(number: int) -> dt.datetime:
    return dt.datetime(number, 1, 1)  # noqa: DTZ001 - naive, as timestamps are here


SOME = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
FIELDS = [
    Field("byte", "int8"),
    Field("count", "int64"),
    Field("small", "float32"),
    Field("price", "float64"),
    Field("open", "bool"),
    Field("città", "string"),
    Field("at", "timestamp"),
]
TYPES = {
    "byte": pa.int8(),
    "count": pa.int64(),
    "small": pa.float32(),
    "price": pa.float64(),
    "open": pa.bool_(),
    "città": pa.large_string(),
    "at": pa.timestamp("us"),
}
VALUES = {
    "byte": st.integers(-128, 127),
    "count": st.sampled_from([0, -1, 2**53 + 1, -(2**63), 2**63 - 1]),
    "small": st.floats(width=32),
    "price": st.floats(),
    "open": st.booleans(),
    "città": st.sampled_from(["", "a", "Ω", "zz", "straße"]),
    "at": st.datetimes(year(1700), year(2200)),
}


@st.composite
def tables(draw: Any, max_rows: int = 8, nulls: bool = True) -> pa.Table:
    rows = draw(st.integers(0, max_rows))
    columns = {}
    for name, values in VALUES.items():
        choice = st.one_of(st.none(), values) if nulls else values
        columns[name] = pa.array(draw(st.lists(choice, min_size=rows, max_size=rows)), TYPES[name], from_pandas=False)
    return pa.table(columns)


def same(found: pa.Table, wanted: pa.Table) -> None:
    """Equal values, column by column; one missing value, not two."""
    assert found.column_names == wanted.column_names
    for name in wanted.column_names:
        left, right = found.column(name).combine_chunks(), wanted.column(name).combine_chunks()
        assert left.type == right.type, name
        assert left.equals(right), (name, left, right)


def both(backend: Backend, table: pa.Table) -> tuple[Any, Any]:
    fields = [item for item in FIELDS if item.name in table.column_names]
    return backend.from_arrow(table, fields), CPU.from_arrow(table, fields)


def host(array: Any) -> Any:
    return getattr(array, "host", array)


def columns_equal(found: Column, wanted: Column) -> None:
    """The same values; what lies under a missing one, and how codes are numbered, is each backend's own."""
    assert found.dtype == wanted.dtype and len(found) == len(wanted)
    if wanted.dictionary is not None:
        assert (
            found.dictionary is not None
            and found.dictionary.null_count == 0
            and found.dictionary.type == pa.large_string()
        )
        decoded = [
            pa.DictionaryArray.from_arrays(pa.array(host(c.data), mask=host(c.data) < 0), c.dictionary).to_pylist()
            for c in (found, wanted)
        ]
        assert decoded[0] == decoded[1]
        return
    assert (found.valid is None) == (wanted.valid is None)
    there = slice(None) if wanted.valid is None else wanted.valid
    np.testing.assert_array_equal(host(found.data)[there], wanted.data[there])
    assert host(found.data).dtype == wanted.data.dtype
    if wanted.valid is not None:
        np.testing.assert_array_equal(host(found.valid), wanted.valid)


@SOME
@given(table=tables())
def test_arrow_in_and_out(rehearsed_backend: Backend, table: pa.Table) -> None:
    frame, oracle = both(rehearsed_backend, table)
    assert backend_of(frame) is rehearsed_backend
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
    assert list(renamed.columns) == [*(item.name for item in FIELDS[:-1]), "when"]


@SOME
@given(parts=st.lists(tables(max_rows=4), min_size=1, max_size=3))
def test_frames_one_after_the_other(rehearsed_backend: Backend, parts: list[pa.Table]) -> None:
    frames = [both(rehearsed_backend, part)[0] for part in parts]
    oracle = pa.concat_tables(CPU.to_arrow(both(rehearsed_backend, part)[1]) for part in parts)
    joined = rehearsed_backend.concat(
        [rehearsed_backend.filter(f, rehearsed_backend.xp.ones(len(f), bool)) for f in frames]
    )
    same(rehearsed_backend.to_arrow(joined), oracle)
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
    merged = rehearsed_backend.merge(
        both(rehearsed_backend, left)[0], both(rehearsed_backend, right)[0], keys, how, "_right"
    )
    plain = [CPU.to_arrow(both(rehearsed_backend, side)[1]) for side in (left, right)]
    names = [*plain[0].column_names, *(f"{name}_right" for name in plain[1].column_names if name not in keys)]
    types = [TYPES[name.removesuffix("_right")] for name in names]
    rows = python_merge(plain[0].to_pylist(), plain[1].to_pylist(), keys, how, "_right")
    wanted = pa.table(
        [pa.array([row.get(name) for row in rows], kind) for name, kind in zip(names, types, strict=True)], names=names
    )
    same(rehearsed_backend.to_arrow(merged), wanted)
    assert host(rehearsed_backend.positions(merged)).tolist() == [row["row"] for row in rows]


@SOME
@given(table=tables())
def test_a_users_frame_is_coded_and_back(rehearsed_backend: Backend, table: pa.Table) -> None:
    frame = cudf.DataFrame.from_arrow(table)
    coded = rehearsed_backend.encode(frame)
    oracle = CPU.encode(CPU.decode(both(rehearsed_backend, table)[1]))
    same(rehearsed_backend.to_arrow(coded), CPU.to_arrow(oracle))
    assert [item.dtype for item in rehearsed_backend.schema_of(coded)] == [item.dtype for item in CPU.schema_of(oracle)]
    nullable = {item.name for item in rehearsed_backend.schema_of(coded) if item.nullable}
    assert nullable == {name for name in table.column_names if CPU.to_arrow(oracle).column(name).null_count}
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


def test_parquet_row_groups(rehearsed_backend: Backend, tmp_path: Any) -> None:
    table = pa.table(
        {
            name: pa.array([None, *([value] * 5)], TYPES[name])
            for name, value in {"byte": 3, "price": 0.5, "città": "a", "open": True}.items()
        }
    )
    path = tmp_path / "città=Roma" / "part.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, row_group_size=2)
    fields = [Field("price", "float32"), Field("città", "string"), Field("byte", "int64"), Field("open", "bool")]
    for groups in ([1, 2], [0], []):
        found = rehearsed_backend.to_arrow(rehearsed_backend.read_parquet(path, groups, fields))
        same(found, CPU.to_arrow(CPU.read_parquet(path, groups, fields)))


def test_parquet_whose_index_was_written_by_pandas(rehearsed_backend: Backend, tmp_path: Any) -> None:
    frame = pd.DataFrame({"id": [5, 9, 7], "x": [1.0, 2.0, 3.0]})
    fields = [Field("x", "float64"), Field("id", "int64")]
    for name, written in {"named": frame.set_index("id"), "range": frame}.items():
        written.to_parquet(tmp_path / name, row_group_size=2)
        coded = rehearsed_backend.read_parquet(tmp_path / name, [1], fields)
        assert rehearsed_backend.to_arrow(coded).to_pydict() == {"x": [3.0], "id": [7]}
        assert rehearsed_backend.assign(
            coded, {"y": Column("int64", rehearsed_backend.xp.ones(1, dtype="int64"))}
        ).shape == (1, 3)


def test_a_column_that_is_not_in_the_file_is_no_silence(rehearsed_backend: Backend, tmp_path: Any) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(RuntimeError, match="column not found"):
        rehearsed_backend.read_parquet(tmp_path / "x.parquet", [0], [Field("y", "int64")])


def test_the_door_is_counted(rehearsed_backend: Backend) -> None:
    frame, _ = both(rehearsed_backend, pa.table({"città": ["a", "b", "a"], "price": [1.0, 2.0, 3.0]}))
    before = rehearsed_backend.transfers.num_bytes
    rehearsed_backend.column(frame, "price")
    assert rehearsed_backend.transfers.num_bytes == before
    codes = rehearsed_backend.column(frame, "città").data
    assert 0 < rehearsed_backend.transfers.num_bytes - before < 64
    assert rehearsed_backend.to_host(codes).tolist() == [0, 1, 0] and codes.dtype == "int32"
    assert rehearsed_backend.transfers.num_bytes > before + codes.nbytes


@pytest.mark.parametrize("columns", [1, 4])
def test_estimators(rehearsed_backend: Backend, columns: int) -> None:
    block = np.random.default_rng(0).standard_normal((200, columns)) * np.arange(1, columns + 1)
    wanted, found = CPU.pca(block.copy(), 1), rehearsed_backend.pca(rehearsed_backend.to_device(block), 1)
    np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-12)
    np.testing.assert_allclose(np.abs(found.components), np.abs(wanted.components), atol=1e-9)
    np.testing.assert_allclose(found.explained_variance, wanted.explained_variance)
    centres = block[:3]
    np.testing.assert_allclose(
        rehearsed_backend.kmeans(rehearsed_backend.to_device(block), centres, 100, 1e-6),
        CPU.kmeans(block.copy(), centres, 100, 1e-6),
        atol=1e-9,
    )


def test_the_default_resource_is_replaced_by_a_limited_pool() -> None:
    modules = standins()
    backend = rehearsed_module(modules).GpuBackend()
    resources = modules["rmm"].mr
    assert (
        backend.device == "cuda:0"
        and resources.current.limit == FREE - (8 << 30)
        and resources.current.upstream.pool == 77
    )
    backend.make_room(20 << 30)
    assert resources.current.limit == FREE - (28 << 30)
    with pytest.raises(OutOfDeviceMemory):
        backend.make_room(FREE)


def test_a_resource_the_user_has_set_is_kept() -> None:
    modules = standins()
    modules["rmm"].mr.current = chosen = object()
    rehearsed_module(modules).GpuBackend().make_room(1 << 30)
    assert modules["rmm"].mr.current is chosen


def test_memory_errors_say_what_was_done(rehearsed_backend: Backend) -> None:
    with pytest.raises(OutOfDeviceMemory, match="merging"):
        raise_in_merge(rehearsed_backend)


def raise_in_merge(backend: Backend) -> None:
    class Full:
        columns = ("k",)

        def __getitem__(self, names: Any) -> Any:
            raise MemoryError("std::bad_alloc: out_of_memory: CUDA error (failed to allocate 64 bytes)")

    backend.merge(Full(), Full(), ["k"], "left", "_right")
