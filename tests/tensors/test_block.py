"""The block: written once through DLPack, read by typed views of the same memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe import errors
from gpupipe.backend import Backend, Column, select
from gpupipe.schema import Field, Kind, Role, Schema
from gpupipe.tensors import MISSING_TIME, Block, share

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


def column(dtype: str, values: list[object], backend: Backend = CPU) -> Column:
    return Column(dtype, backend.to_device(np.array(values, dtype=dtype)))


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 12),
    st.integers(0, 5),
    st.sampled_from([None, "float32", "int32"]),
    st.booleans(),
    st.integers(0, 9000),
)
def test_what_is_written_is_read(numeric: int, codes: int, target: str | None, weight: bool, rows: int) -> None:
    rng = np.random.default_rng(rows)
    sources = ["float64", "float32", "int64", "bool", "int8"]
    columns = {f"x{i}": column(sources[i % 5], rng.integers(0, 2, rows)) for i in range(numeric)}
    columns |= {f"c{i}": column("int32", rng.integers(0, 9, rows)) for i in range(codes)}
    columns |= {"y": column("float32", rng.integers(0, 2, rows)), "w": column("float32", rng.random(rows))}
    form = schema(numeric, codes, target=target, weight=weight)
    block = Block.allocate(form, rows + 3, "cpu")
    used = {name: columns[name] for name in form.names}
    cut = rows // 3
    assert block.write(0, {n: c.take(slice(0, cut)) for n, c in used.items()}, CPU) == (cut if used else 0)
    block.write(cut, {n: c.take(slice(cut, rows)) for n, c in used.items()}, CPU)
    block = block.narrow(rows)
    assert block.row_bytes % 32 == 0 and len(block) == rows
    for i in range(numeric):
        np.testing.assert_array_equal(block.numeric[:, i].numpy(), columns[f"x{i}"].data.astype("float32"))
    for i in range(codes):
        np.testing.assert_array_equal(block.codes[:, i].numpy(), columns[f"c{i}"].data)
    if target:
        assert block.target is not None and str(block.target.dtype) == f"torch.{target}"
        np.testing.assert_array_equal(block.target.numpy(), columns["y"].data)
    if weight:
        assert block.weight is not None
        np.testing.assert_array_equal(block.weight.numpy(), columns["w"].data)


def test_views_share_one_allocation(backend: Backend) -> None:
    block = Block.allocate(schema(3, 2, target="float32", weight=True), 5, backend.device)
    start = block.words.data_ptr()
    assert block.numeric.data_ptr() == start
    assert block.codes.data_ptr() == start + 12
    assert block.target is not None and block.target.data_ptr() == start + 20
    assert block.weight is not None and block.weight.data_ptr() == start + 24
    assert block.row_bytes == 32


def test_preprocessing_writes_into_torchs_memory(backend: Backend) -> None:
    block = Block.allocate(schema(2, 0), 4, backend.device)
    before = backend.transfers.num_bytes
    block.write(0, {f"x{i}": column("float64", [1, 2, 3, 4], backend) for i in range(2)}, backend)
    assert backend.xp.from_dlpack(block.numeric)[0, 0] == 1.0
    assert block.numeric.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    assert backend.transfers.num_bytes == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan, np.nan], "column 'x0': 2 missing values would reach the model"),
        ([1.0, np.inf, 2.0], "column 'x0': 1 infinite value would reach the model"),
        ([1.0, 1e300, 2.0], "column 'x0': 1 infinite value would reach the model"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_must_not_reach_the_model(values: list[float], message: str) -> None:
    block = Block.allocate(schema(1, 1), 3, "cpu")
    with pytest.raises(errors.BadData, match=message):
        block.write(0, {"x0": column("float64", values), "c0": column("int32", [0, 0, 0])}, CPU)


def test_a_masked_integer_and_text_are_named() -> None:
    block = Block.allocate(schema(1, 0), 2, "cpu")
    masked = Column("int64", np.array([1, 7]), np.array([True, False]))
    with pytest.raises(errors.BadData, match="column 'x0': 1 missing value would") as caught:
        block.write(0, {"x0": masked}, CPU)
    assert "SimpleImputer" in caught.value.remedy
    with pytest.raises(errors.SchemaMismatch, match="column 'x0': timestamp values cannot be fed"):
        block.write(0, {"x0": Column("timestamp", np.array([1, 2]))}, CPU)


def test_kept_columns_and_their_dictionary() -> None:
    keep = [
        Field("s", "string", role=Role.KEEP),
        Field("t", "timestamp", role=Role.KEEP),
        Field("f", "float64", role=Role.KEEP),
    ]
    block = Block.allocate(schema(0, 0, keep=keep), 4, "cpu")
    for first, text in ((0, ["b", "a"]), (2, ["c", None])):
        frame = pd.DataFrame({"s": text, "t": [pd.Timestamp("1970-01-02"), None], "f": [1.5, np.nan]})
        coded = CPU.encode(frame.astype({"s": "str"}))
        block.write(first, {name: CPU.column(coded, name) for name in frame}, CPU)
    words = [*block.dictionaries["s"].to_pylist(), None]
    assert [words[code] for code in block.keep["s"].tolist()] == ["b", "a", "c", None]
    assert block.keep["t"].tolist() == [86_400_000_000, MISSING_TIME] * 2
    assert block.keep["f"].dtype == torch.float64


def test_narrowing_shares_unless_much_would_be_wasted() -> None:
    block = Block.allocate(schema(1, 0), 100, "cpu")
    assert block.narrow(90).words.data_ptr() == block.words.data_ptr()
    assert block.narrow(10).words.data_ptr() != block.words.data_ptr()


def test_a_column_is_shared_by_pointer(backend: Backend) -> None:
    owner = backend.decode(backend.frame({"x": column("float32", [1, 2, 3], backend)}, 3))
    tensor = share(owner, "x")
    assert (
        tensor.data_ptr() == backend.xp.from_dlpack(tensor).__array_interface__["data"][0]
        if backend.name == "cpu"
        else True
    )
    assert tensor.tolist() == [1.0, 2.0, 3.0]
    assert str(tensor.device) == backend.device


@pytest.mark.parametrize("values", [["a"], pd.array([1, None], dtype="Int64"), pd.to_datetime(["2013-01-01"])])
def test_what_cannot_be_shared(values: object) -> None:
    with pytest.raises(errors.CopyRequired, match=r"share\('x'\): a column of"):
        share(pd.DataFrame({"x": values}), "x")


def test_a_batch_never_aliases_the_users_frame() -> None:
    frame = pd.DataFrame({"x0": np.array([1.0, 2.0], dtype="float32")})
    block = Block.allocate(schema(1, 0), 2, "cpu")
    block.write(0, {"x0": CPU.column(CPU.encode(frame), "x0")}, CPU)
    block.numeric.add_(100.0)
    assert frame["x0"].tolist() == [1.0, 2.0]
