from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.backend import Backend, Column
from gpupipe.backend.groups import differs, group_by_keys, sort_order
from gpupipe.schema import Field
from tests.io.meeting import KEYS, meetings, pandas_of, several

DTYPES = {"k": "string", "n": "int64", "tiny": "int8", "u": "uint64", "x": "float64", "ok": "bool", "at": "timestamp"}
names_of_keys = st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3, unique=True)


def columns_of(table: pa.Table, names: list[str], backend: Backend) -> list[Column]:
    frame = backend.from_arrow(table.select(names), [Field(name, DTYPES[name]) for name in names])
    return [backend.column(frame, name) for name in names]


@several
@given(table=meetings(), names=names_of_keys)
def test_rows_are_sorted_as_pandas_does(backend: Backend, table: pa.Table, names: list[str]) -> None:
    found = sort_order(columns_of(table, names, backend), backend)
    frame = pandas_of(table)
    for name in reversed(names):
        frame = frame.sort_values(name, kind="stable")
    assert backend.to_host(found).tolist() == frame["row"].tolist()


@several
@given(table=meetings(), names=names_of_keys)
def test_rows_are_grouped_as_pandas_does(backend: Backend, table: pa.Table, names: list[str]) -> None:
    found = group_by_keys(columns_of(table, names, backend), backend)
    frame = pandas_of(table)
    wanted = frame.groupby(names, dropna=False)
    assert backend.to_host(found.ids).tolist() == wanted.ngroup().tolist()
    assert backend.to_host(found.sizes).tolist() == wanted.size().tolist()
    assert backend.to_host(found.ids[found.examples]).tolist() == list(range(len(found)))
    if found.sorted_by is not None:  # keys such as -0.0 and 0.0: that of the first row, whatever the partitions are
        rows = frame["row"].to_numpy()
        assert rows[backend.to_host(found.examples)].tolist() == wanted["row"].first().tolist()


@pytest.mark.parametrize("spread", [1, 100, 2**40])
@pytest.mark.parametrize("low", [-(2**63), -7, 0])
@pytest.mark.parametrize("missing", [False, True])
def test_wide_and_narrow_ranges_are_grouped_alike(backend: Backend, spread: int, low: int, missing: bool) -> None:
    """Few possible values are counted, many sorted: nobody can tell."""
    steps = np.random.default_rng(0).integers(0, 9, 500)
    valid = steps != 4 if missing else None
    column = Column(
        "int64",
        backend.to_device(low + steps * spread),
        None if valid is None else backend.to_device(valid),
    )
    found = group_by_keys([column, Column("bool", backend.to_device(steps % 2 == 0))], backend)
    frame = pd.DataFrame({"a": pd.array(low + steps * spread, dtype="Int64"), "b": steps % 2 == 0})
    if valid is not None:
        frame.loc[~valid, "a"] = pd.NA
    wanted = frame.groupby(["a", "b"], dropna=False)
    assert backend.to_host(found.ids).tolist() == wanted.ngroup().tolist()


def test_more_strings_than_16_bits_count_are_sorted(backend: Backend) -> None:
    words = pd.Series([f"{number:05d}" for number in np.random.default_rng(1).permutation(70_000)])
    table = pa.table({"k": pa.array(words, pa.large_string())})
    (column,) = columns_of(table, ["k"], backend)
    assert backend.to_host(sort_order([column], backend)).tolist() == words.argsort().tolist()
    assert backend.to_host(group_by_keys([column], backend).ids).tolist() == words.astype("int64").tolist()


def test_missing_values_do_not_differ_from_each_other(backend: Backend) -> None:
    data, valid = np.array([1, 2, 3, 3, 3]), np.array([False, False, True, True, False])
    column = Column("int64", backend.to_device(data), backend.to_device(valid))
    assert backend.to_host(differs(column, backend.xp)).tolist() == [False, True, False, True]
