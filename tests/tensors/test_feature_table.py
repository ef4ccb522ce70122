"""The block: written once through DLPack, read by typed views of the same memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend import Backend, Column, select
from gpupipe.backend.cpu import CpuBackend
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, Field, Kind, Role, Schema
from gpupipe.tensors import MISSING_TIME, FeatureTable
from tests.raising import raises

CPU = select("cpu")


def schema(
    numeric: int, codes: int, *, target: str | None = None, weight: bool = False, keep: list[Field] | None = None
) -> Schema:
    fields = [Field(f"x{i}", "float32", role=Role.FEATURE) for i in range(numeric)]
    fields += [Field(f"c{i}", "int32", Kind.CATEGORICAL, cardinality=9, role=Role.FEATURE) for i in range(codes)]
    if target:
        fields.append(Field("y", target, role=Role.TARGET))
    if weight:
        fields.append(Field("w", "float32", role=Role.WEIGHT))
    return Schema([*fields, *(keep or [])])


def column(dtype: str, values: Any, backend: Backend = CPU) -> Column:
    return Column(dtype, backend.to_device(np.asarray(values, dtype=dtype)))


def drawn(dtype: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Values over the whole range of the type."""
    if dtype == "bool":
        return rng.random(rows) < 0.5
    if dtype in FLOATS:
        return (rng.standard_normal(rows) * 10.0 ** rng.integers(-30, 30)).astype(dtype)
    kind = np.iinfo(dtype)
    return rng.integers(kind.min, kind.max, rows, dtype=dtype, endpoint=True)


@settings(deadline=None, max_examples=40)
@given(
    sources=st.lists(st.sampled_from([*INTEGERS, *FLOATS, "bool"]), max_size=12),
    codes=st.lists(st.sampled_from(["int8", "uint16", "int32", "int64"]), max_size=4),
    target=st.sampled_from([None, "float32", "int32"]),
    weight=st.booleans(),
    masked=st.booleans(),
    rows=st.sampled_from([0, 1, 5, 300, 9000]),
    seed=st.integers(0, 9),
)
def test_what_is_written_is_read(
    sources: list[str], codes: list[str], target: str | None, weight: bool, masked: bool, rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = {f"x{i}": column(dtype, drawn(dtype, rows, rng)) for i, dtype in enumerate(sources)}
    if masked:  # a mask that hides nothing
        columns = {
            n: c if c.dtype in FLOATS else Column(c.dtype, c.data, np.ones(rows, bool)) for n, c in columns.items()
        }
    columns |= {f"c{i}": column(dtype, rng.integers(0, 100, rows)) for i, dtype in enumerate(codes)}
    columns |= {"y": column(target or "bool", rng.integers(0, 2, rows)), "w": column("float64", rng.random(rows))}
    form = schema(len(sources), len(codes), target=target, weight=weight)
    used = {name: columns[name] for name in form.names}
    block = FeatureTable.allocate(form, rows + 3, "cpu")
    cut = rows // 3
    for first, part in ((0, slice(cut)), (cut, slice(cut, rows))):
        written = block.write(first, {name: found.take(part) for name, found in used.items()}, CPU)
        assert written == (len(range(rows)[part]) if used else 0)
    block = block.narrow(rows)
    assert block.row_bytes % 32 == 0 and block.row_bytes == FeatureTable.row_bytes_of(form) and len(block) == rows
    assert block.numeric.shape == (rows, len(sources)) and block.codes.shape == (rows, len(codes))
    for i in range(len(sources)):
        np.testing.assert_array_equal(block.numeric[:, i].numpy(), columns[f"x{i}"].data.astype("float32"))
    for i in range(len(codes)):
        np.testing.assert_array_equal(block.codes[:, i].numpy(), columns[f"c{i}"].data)
    for name, found, dtype in (("y", block.target, target), ("w", block.weight, "float32" if weight else None)):
        assert (found is None) == (dtype is None)
        if found is not None:
            assert str(found.dtype) == f"torch.{dtype}"
            np.testing.assert_array_equal(found.numpy(), columns[name].data.astype(dtype))


def test_views_share_one_allocation(backend: Backend) -> None:
    block = FeatureTable.allocate(schema(3, 2, target="float32", weight=True), 5, backend.device)
    start = block.words.data_ptr()
    assert block.numeric.data_ptr() == start
    assert block.codes.data_ptr() == start + 12
    assert block.target is not None and block.target.data_ptr() == start + 20
    assert block.weight is not None and block.weight.data_ptr() == start + 24
    assert block.row_bytes == 32 and block.numeric.stride() == (8, 1)


def test_preprocessing_writes_into_torchs_memory(backend: Backend) -> None:
    block = FeatureTable.allocate(schema(2, 1, target="float32"), 4, backend.device)
    pointer, before = block.words.data_ptr(), backend.transfers.num_bytes
    columns = {name: column("float64", [1, 2, 3, 4], backend) for name in ("x0", "x1", "y")}
    block.write(0, columns | {"c0": column("int64", [9, 8, 7, 6], backend)}, backend)
    assert block.words.data_ptr() == pointer and backend.transfers.num_bytes == before
    assert block.numeric.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    assert block.codes[:, 0].tolist() == [9, 8, 7, 6]


def test_a_block_on_another_device_is_written_all_the_same(backend: Backend) -> None:
    if backend.name == "cpu":  # another name of the same device, for want of another device
        backend = CpuBackend()
        backend.device = "cpu:0"
    keep = [Field("k", "int64", role=Role.KEEP), Field("s", "string", role=Role.KEEP)]
    block = FeatureTable.allocate(schema(1, 1, target="int32", keep=keep), 6, "cpu")
    for first, text in ((0, ["a", "b", "a"]), (3, ["c", "b", None])):
        frame = backend.from_arrow(pd_table(text, first), [Field("k", "int64"), Field("s", "string")])
        columns = {name: backend.column(frame, name) for name in ("k", "s")}
        columns |= {name: column("int32", [first, 1, 2], backend) for name in ("x0", "c0", "y")}
        assert block.write(first, columns, backend) == 3
    assert block.numeric[:, 0].tolist() == block.codes[:, 0].tolist() == [0, 1, 2, 3, 1, 2]
    assert block.keep["k"].tolist() == [0, 1, 2, 3, 4, 5]
    words = [*block.dictionaries["s"].to_pylist(), None]
    assert [words[code] for code in block.keep["s"].tolist()] == ["a", "b", "a", "c", "b", None]


def pd_table(text: list[str | None], first: int) -> Any:
    return CPU.to_arrow(pd.DataFrame({"k": np.arange(first, first + 3), "s": pd.array(text, dtype="str")}))


@pytest.mark.parametrize("name", ["x1", "y", "w"])
@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0, np.nan, np.nan], "2 missing values would reach the model"),
        ([np.inf, np.nan, 2.0], "1 missing value would reach the model"),
        ([1.0, -np.inf, 2.0], "1 infinite value would reach the model"),
        ([1.0, 1e300, 1e300], "2 infinite values would reach the model"),
    ],
)
def test_what_must_not_reach_the_model(name: str, values: list[float], problem: str, backend: Backend) -> None:
    block = FeatureTable.allocate(schema(2, 1, target="float32", weight=True), 3, backend.device)
    columns = {n: column("float64", [1, 2, 3], backend) for n in ("x0", "x1", "y", "w")}
    columns |= {"c0": column("int32", [0, 0, 0], backend), name: column("float64", values, backend)}
    with pytest.raises(errors.BadData, match=f"column '{name}': {problem}") as caught:
        block.write(0, columns, backend)
    if "missing" in problem:
        assert ("SimpleImputer" in caught.value.remedy) == (name == "x1")


def test_one_bad_value_in_a_large_column_is_found() -> None:
    values = np.zeros(20_000)
    values[12_345] = np.nan
    block = FeatureTable.allocate(schema(2, 0), 20_000, "cpu")
    with raises(errors.BadData, where="column 'x1'", match="1 missing value"):
        block.write(0, {"x0": column("float64", np.zeros(20_000)), "x1": column("float64", values)}, CPU)


@pytest.mark.parametrize(("dtype", "name"), [("int64", "x0"), ("bool", "x0"), ("int8", "c0")])
def test_masked_values_are_missing_values(dtype: str, name: str) -> None:
    block = FeatureTable.allocate(schema(1, 1), 2, "cpu")
    columns = {n: column("int32", [1, 1]) for n in ("x0", "c0")}
    masked = Column(dtype, np.array([1, 1], dtype), np.array([True, False]))
    with pytest.raises(errors.BadData, match=f"column '{name}': 1 missing value would") as caught:
        block.write(0, columns | {name: masked}, CPU)
    assert "SimpleImputer" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "given", "problem", "remedy"),
    [
        ("x0", Column("timestamp", np.array([1, 2])), "timestamp values cannot be fed to a network", "hour(x0)"),
        ("x0", CPU.column(CPU.encode(pd.DataFrame({"x0": ["a", "b"]})), "x0"), "string values cannot", "Categorify"),
        ("c0", column("float32", [1, 2]), "float32 values cannot be fed to a network as ids", "Cast"),
    ],
)
def test_what_is_no_number_is_named(name: str, given: Column, problem: str, remedy: str) -> None:
    block = FeatureTable.allocate(schema(1, 1), 2, "cpu")
    with pytest.raises(errors.SchemaMismatch, match=f"column '{name}': {problem}") as caught:
        block.write(0, {n: column("int32", [1, 1]) for n in ("x0", "c0")} | {name: given}, CPU)
    assert remedy in caught.value.remedy


def test_a_column_that_is_not_there_is_named() -> None:
    block = FeatureTable.allocate(schema(2, 0), 2, "cpu")
    with raises(errors.BadConfig, where="FeatureTable.write", got=3, expected="at most 2"):
        block.write(1, {name: column("int32", [1, 1]) for name in ("x0", "x1")}, CPU)
    with raises(errors.ColumnNotFound, where="FeatureTable.write", column="x1") as caught:
        block.write(0, {name: column("int32", [1, 1]) for name in ("x0", "x11")}, CPU)
    assert "'x11'" in caught.value.remedy


@settings(deadline=None, max_examples=30)
@given(
    dtype=st.sampled_from([dtype for dtype in DTYPES if dtype not in ("string", "uint64")]),
    masked=st.booleans(),
    rows=st.integers(0, 40),
)
def test_kept_numbers_and_times(dtype: str, masked: bool, rows: int) -> None:
    rng = np.random.default_rng(rows)
    stored = "int64" if dtype == "timestamp" else dtype
    data = drawn(stored, rows, rng)
    valid = rng.random(rows) < 0.5 if masked and dtype not in FLOATS else None
    block = FeatureTable.allocate(schema(0, 0, keep=[Field("k", dtype, role=Role.KEEP)]), rows, "cpu")
    block.write(0, {"k": Column(dtype, data, valid)}, CPU)
    kept = block.keep["k"].numpy()
    assert str(kept.dtype) == (dtype if dtype in FLOATS else "int64")
    whole = data if dtype in FLOATS else data.astype("int64")
    np.testing.assert_array_equal(kept, whole if valid is None else np.where(valid, whole, MISSING_TIME))


def test_a_kept_number_beyond_the_tensors_range_is_an_error() -> None:
    block = FeatureTable.allocate(schema(0, 0, keep=[Field("k", "uint64", role=Role.KEEP)]), 2, "cpu")
    large = np.array([2**63 - 1, 2**63], dtype="uint64")
    with raises(errors.BadData, where="column 'k'", got=9223372036854775808):
        block.write(0, {"k": Column("uint64", large)}, CPU)
    block.write(0, {"k": Column("uint64", large, np.array([True, False]))}, CPU)
    assert block.keep["k"].tolist() == [2**63 - 1, MISSING_TIME]


def test_kept_strings_have_one_dictionary() -> None:
    block = FeatureTable.allocate(schema(0, 0, keep=[Field("s", "string", role=Role.KEEP)]), 6, "cpu")
    for first, text in ((0, ["b", "a"]), (2, ["c", None]), (4, ["a", "d"])):
        coded = CPU.encode(pd.DataFrame({"s": pd.array(text, dtype="str")}))
        block.write(first, {"s": CPU.column(coded, "s")}, CPU)
    words = [*block.dictionaries["s"].to_pylist(), None]
    assert len(words) == len(set(words)) == 5
    assert [words[code] for code in block.keep["s"].tolist()] == ["b", "a", "c", None, "a", "d"]


def test_narrowing_shares_unless_much_would_be_wasted() -> None:
    block = FeatureTable.allocate(schema(1, 0, keep=[Field("k", "int64", role=Role.KEEP)]), 100, "cpu")
    block.write(0, {"x0": column("int32", np.arange(100)), "k": column("int64", np.arange(100))}, CPU)
    assert block.narrow(100) is block
    near, far = block.narrow(90), block.narrow(10)
    assert near.words.data_ptr() == block.words.data_ptr()
    assert far.words.data_ptr() != block.words.data_ptr() and far.words.untyped_storage().nbytes() == 10 * 32
    for part in (near, far, block.narrow(0)):
        assert part.numeric[:, 0].tolist() == part.keep["k"].tolist() == list(range(len(part)))


def test_it_is_written_where_nothing_is_recorded() -> None:
    with torch.inference_mode():
        block = FeatureTable.allocate(schema(1, 0), 2, "cpu")
        block.write(0, {"x0": column("int32", [1, 2])}, CPU)
        assert block.numeric[:, 0].tolist() == [1.0, 2.0]


def test_writing_changes_no_column() -> None:
    frame = pd.DataFrame({"x0": np.array([1.0, 2.0], dtype="float32")})
    block = FeatureTable.allocate(schema(1, 0), 2, "cpu")
    block.write(0, {"x0": CPU.column(CPU.encode(frame), "x0")}, CPU)
    block.numeric.add_(100.0)
    assert frame["x0"].tolist() == [1.0, 2.0]


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages on this machine")
@pytest.mark.parametrize("again", [False, True])
def test_rows_lie_in_huge_pages_and_begin_with_a_line_of_the_cache(again: bool) -> None:
    block = FeatureTable.allocate(schema(8, 0), 1 << 20, "cpu")
    block = block.empty_like(len(block)) if again else block
    address = block.words.data_ptr()
    assert address % 64 == 0
    flags = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address + (1 << 22) < int(found[2], 16)
        elif inside and line.startswith("VmFlags"):
            flags = line
    assert "hg" in flags.split()
