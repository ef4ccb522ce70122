from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.io.planning.row_filters import excludes
from gpupipe.schema import Field
from tests.io.tables import plain

several = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    ("sign", "constant", "expected"),
    [
        ("<", 10, True),
        ("<", 11, False),
        ("<=", 9, True),
        ("<=", 10, False),
        (">", 20, True),
        (">", 19, False),
        (">=", 21, True),
        (">=", 20, False),
        ("==", 9, True),
        ("==", 15, False),
        ("in", (1, 21), True),
        ("in", (1, 20), False),
        ("!=", 15, False),
        ("notnull", None, False),
        ("<", "text", False),
    ],
)
def test_what_lies_outside_ten_to_twenty(sign: str, constant: object, expected: bool) -> None:
    assert excludes(("n", sign, constant), (10, 20), Field("n", "int64")) is expected


# Values around which rounding, precision and time units make a difference.
_awkward = {
    "f32": (
        pa.float32(),
        [0.1, 0.2, 0.3, -0.0, 16777217.0, float("nan"), float("inf")],
        ["0.1", "0.2", "16777217", "0"],
    ),
    "f64": (pa.float64(), [0.1, float("nan"), -0.0, 1e308, float("-inf")], ["0.1", "0", "1e308"]),
    "i64": (pa.int64(), [2**53, 2**53 + 1, -(2**63), 2**63 - 1, 0], [str(2**53), str(2**53 + 1), "0.5", "9.1e18"]),
    "u64": (pa.uint64(), [0, 2**63, 2**64 - 1], [str(2**63 - 1), "1.8e19", "0", "-1"]),
    "ns": (pa.timestamp("ns"), [-1, -1001, 0, 999, 1000, 1001], ["'1970-01-01'", "'1970-01-01T00:00:00.000001'"]),
    "day": (pa.date32(), [-1, 0, 1], ["'1970-01-01'", "'1970-01-01T12:00:00'", "'1970-01-01T23:00:00'"]),
    "text": (pa.string(), ["", "a", "ä", "日", "a" * 100], ["'a'", "'ä'", "''"]),
}


def test_nanoseconds_are_rounded_down(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([-1], pa.timestamp("ns"))}), tmp_path / "ns.parquet")
    dataset = gp.read_parquet(tmp_path / "ns.parquet")
    assert len(dataset.filter("at >= '1970-01-01'")) == 0
    assert [len(part) for part in dataset.split(by="at", at="1970-01-01")] == [1, 0]


def test_a_cut_at_a_time_leaves_row_groups_unread(tmp_path: Path) -> None:
    days = pa.array(pd.date_range("2024-01-01", periods=6).astype("datetime64[ms]"))
    pq.write_table(pa.table({"day": days}), tmp_path / "days.parquet", row_group_size=2)
    dataset = gp.read_parquet(tmp_path / "days.parquet")
    assert [len(part.compute()) for part in dataset.split(by="day", at="2024-01-04")] == [3, 3]
    assert dataset.reads.row_groups.total() == 4  # the one that is cut twice


@pytest.mark.parametrize("statistics", [True, False])
def test_cuts_are_exact_whatever_the_column_is_stored_as(tmp_path: Path, statistics: bool) -> None:
    path = tmp_path / "a.parquet"
    single, large = pa.array([0.1, 0.3], pa.float32()), [2**53 + 1, 2**53 + 3]
    pq.write_table(pa.table({"x": single, "n": large}), path, row_group_size=1, write_statistics=statistics)
    dataset = gp.read_parquet(path)
    # The single nearest to 0.1 lies above it, the one nearest to 0.3 too.
    assert [len(part) for part in dataset.split(by="x", at=[0.1, 0.3])] == [0, 1, 1]
    assert [len(part) for part in dataset.split(by="n", at=2**53 + 2)] == [1, 1]
    assert [len(part) for part in dataset.split(by="n", at=[2.5, 2.0**53 + 2])] == [0, 1, 1]


@pytest.mark.slow
@several
@given(data=st.data())
def test_pruning_never_changes_what_a_filter_keeps(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_awkward)))
    kind, values, constants = _awkward[name]
    column = data.draw(st.lists(st.none() | st.sampled_from(values), min_size=1, max_size=8))
    condition = data.draw(st.sampled_from(["{n} {o} {c}", "{c} {o} {n}", "{n} in [{c}]", "not ({n} {o} {c})"]))
    sign = data.draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
    text = condition.format(n=name, o=sign, c=data.draw(st.sampled_from(constants)))
    for part, statistics in (("with", True), ("without", False)):
        pq.write_table(
            pa.table({name: pa.array(column, kind)}),
            tmp_path / f"{part}.parquet",
            row_group_size=1,
            write_statistics=statistics,
        )
    pruned, whole = (gp.read_parquet(tmp_path / f"{part}.parquet").filter(text) for part in ("with", "without"))
    assert plain(pruned.compute()) == plain(whole.compute())
    assert whole.reads.row_groups.total() == len(column)
