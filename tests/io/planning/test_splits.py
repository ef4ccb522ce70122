from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import BadConfig, BadData, ColumnNotFound
from gpupipe.io.planning.table import map_frames
from gpupipe.support.times import has_offset
from tests.examples import examples
from tests.io.tables import DATA, plain, tables, values
from tests.raising import raises

several = examples(25)
FLIGHTS = DATA / "flights.parquet"


@pytest.mark.slow
def test_a_split_by_time_of_the_shipped_flights() -> None:
    early, late = gp.read_parquet(FLIGHTS, partition_bytes=4 << 20).split(by="time_hour", at="2013-10-01")
    whole = pd.read_parquet(FLIGHTS, columns=["time_hour", "flight"])
    cut = pd.Timestamp("2013-10-01")
    for part, rows in ((early, whole[whole.time_hour < cut]), (late, whole[whole.time_hour >= cut])):
        assert len(part) == len(rows)
        assert values(part.select(["flight"]), "flight") == rows.flight.tolist()
    assert early.columns == late.columns


@pytest.mark.parametrize(
    "at",
    [
        "2013-10-01",
        "2013-10-01T00:00:00Z",
        "2013-10-01T02:00:00+02:00",
        date(2013, 10, 1),
        datetime.fromisoformat("2013-10-01"),
        datetime(2013, 10, 1, tzinfo=UTC),
        pd.Timestamp("2013-10-01"),
        np.datetime64("2013-10-01"),
        np.datetime64("2013-10-01T00:00:00.000000000"),
    ],
)
def test_a_time_is_said_in_many_ways(at: object) -> None:
    hours = pd.date_range("2013-09-30 22:00", periods=5, freq="h", tz="UTC" if has_offset(at) else None)
    parts = gp.from_frame(pd.DataFrame({"t": hours})).split(by="t", at=at)
    assert [len(part) for part in parts] == [2, 3]


@several
@given(table=tables(), cuts=st.integers(1, 3), parts=st.sampled_from([1, 2, 7]), data=st.data())
def test_ranges_put_every_row_where_it_belongs(table: pa.Table, cuts: int, parts: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(table.column_names))
    rows = [row for row in plain(table) if row[name] is not None]
    values = sorted({row[name] for row in rows if not isinstance(row[name], bool)})
    at = sorted({values[data.draw(st.integers(0, len(values) - 1))] for _ in range(cuts)}) if values else []
    if not at:
        return
    dataset = gp.from_frame(table, num_partitions=parts).filter(f"notnull(col({name!r}))")
    found = dataset.split(by=name, at=at)
    edges = [None, *at, None]
    assert len(found) == len(at) + 1
    for part, low, high in zip(found, edges, edges[1:], strict=False):
        inside = [r for r in rows if (low is None or r[name] >= low) and (high is None or r[name] < high)]
        assert plain(part.compute()) == inside


def test_a_value_that_is_missing_belongs_nowhere() -> None:
    frame = pd.DataFrame({"t": pd.to_datetime(["2013-01-01", None, None]), "x": [1.0, np.nan, 3.0], "n": [1, 2, 3]})
    dataset = gp.from_frame(frame, num_partitions=2)
    with raises(BadData, where="split(by='t')", match="missing in 2 rows") as caught:
        dataset.split(by="t", at="2013-01-02")
    assert caught.value.remedy == 'filter("notnull(t)") before, to leave them out'
    with raises(BadData, where="split(by='x')", match="missing in 1 row"):
        dataset.split(by="x", at=2)
    assert [len(part) for part in dataset.filter("notnull(t)").split(by="t", at="2013-01-02")] == [1, 0]
    assert [len(part) for part in dataset.split(by="n", at=2)] == [1, 2]


def test_footers_tell_of_missing_values_without_a_pass() -> None:
    dataset = gp.read_parquet(FLIGHTS)
    with raises(BadData, where="split(by='tailnum')", match="2,512 rows"):
        dataset.split(by="tailnum", at="N5")
    dataset.split(by="time_hour", at="2013-10-01")
    assert dataset.reads.passes == 0


def test_calls_that_make_no_sense() -> None:
    dataset = gp.from_frame(pd.DataFrame({"n": [1, 2], "s": ["a", "b"], "t": pd.to_datetime(["2013-01-01"] * 2)}))
    for call in ({}, {"by": "n"}, {"at": 3}, {"by": "n", "at": 1, "fraction": 0.5}):
        with pytest.raises(BadConfig, match="not one way to split"):
            dataset.split(**call)
    for fraction in (0.0, 1.0, 1.5, -0.1, (0.5, 0.4), (1.2, -0.2), ()):
        with pytest.raises(BadConfig, match="the shares do not make up a whole"):
            dataset.split(fraction=fraction)
    with raises(BadConfig, where="split", got=[3, 2]):
        dataset.split(by="n", at=[3, 2])
    for by, at in (("n", "a"), ("s", 3), ("t", 3), ("t", "soon"), ("n", float("nan")), ("t", pd.NaT)):
        with pytest.raises(BadConfig, match=f"column '{by}' is"):
            dataset.split(by=by, at=at)
    with raises(ColumnNotFound, where="split", column="m"):
        dataset.split(by="m", at=3)


@pytest.mark.slow
@several
@given(
    table=tables(60),
    seed=st.integers(1 - 2**63, 2**63 - 1),
    shares=st.sampled_from([0.5, 0.01, (0.8, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25)]),
    by=st.sampled_from([None, "größe", "名", "x", "y", "ok", "at", "big"]),
)
@example(table=pa.table({"größe": [1, None, 1, 2]}), seed=0, shares=0.5, by="größe")
def test_draws_do_not_depend_on_partitions(
    table: pa.Table, seed: int, shares: float | tuple[float, ...], by: str | None
) -> None:
    table = table.append_column("row", pa.array(range(table.num_rows), pa.int64()))
    seen = []
    for num_partitions in (1, 2, 7):
        parts = gp.from_frame(table, num_partitions=num_partitions).split(fraction=shares, seed=seed, by=by)
        seen.append([values(part, "row") for part in parts])
    assert seen[0] == seen[1] == seen[2]
    assert sorted(row for part in seen[0] for row in part) == list(range(table.num_rows))
    if by is not None:
        where = {}
        for row, value in enumerate(plain(table.select([by]))):
            part = next(number for number, rows in enumerate(seen[0]) if row in rows)
            assert where.setdefault(value[by], part) == part


@pytest.mark.slow
def test_draws_follow_files_and_rows_not_partitions() -> None:
    dataset = gp.read_parquet([FLIGHTS, DATA / "flights.parquet"], columns=["flight"], partition_bytes=1 << 20)
    one = gp.read_parquet([FLIGHTS, DATA / "flights.parquet"], columns=["flight"])
    assert (dataset.num_partitions, one.num_partitions) == (4, 1)
    first, second = (values(d.split(fraction=0.3, seed=5)[0], "flight") for d in (dataset, one))
    assert first == second
    # The second file's rows are drawn anew, though they are the same rows.
    alone = values(gp.read_parquet(FLIGHTS, columns=["flight"]).split(fraction=0.3, seed=5)[0], "flight")
    assert first[: len(alone)] == alone
    assert first[len(alone) :] != alone


@pytest.mark.slow
def test_shares_are_what_was_asked_for() -> None:
    dataset = gp.read_parquet(FLIGHTS, columns=["tailnum"])
    sizes = [len(part) for part in dataset.split(fraction=(0.7, 0.2, 0.1), seed=1)]
    assert sum(sizes) == 336_776
    for size, share in zip(sizes, (0.7, 0.2, 0.1), strict=True):
        assert abs(size / 336_776 - share) < 5 * np.sqrt(share * (1 - share) / 336_776)
    left, right = dataset.split(fraction=0.5, by="tailnum", seed=1)
    tails = [set(values(part, "tailnum")) for part in (left, right)]
    assert not tails[0] & tails[1]
    assert 0.45 < len(tails[0]) / 4044 < 0.55


def test_seeds_and_repeated_splits_are_unrelated() -> None:
    dataset = gp.from_frame(pd.DataFrame({"row": np.arange(20_000)}))

    def rows(part: gp.Dataset) -> set[int]:
        return set(values(part, "row"))

    a, b = (rows(dataset.split(fraction=0.5, seed=seed)[0]) for seed in (0, 1))
    assert 0.22 < len(a & b) / 20_000 < 0.28
    # Neighbouring seeds are no shifted copies of each other.
    assert 0.22 < len({row + 1 for row in a} & b) / 20_000 < 0.28
    # A part that is split again with the same seed divides as asked.
    _, rest = dataset.split(fraction=0.6, seed=0)
    valid, test = rest.split(fraction=0.5, seed=0)
    assert 0.18 < len(valid) / 20_000 < 0.22
    assert 0.18 < len(test) / 20_000 < 0.22
    assert rows(valid) | rows(test) == rows(rest)
    assert 0.18 < len(rest.split(fraction=0.5, by="row", seed=0)[0]) / 20_000 < 0.22


def test_a_drawn_part_is_the_same_after_other_steps() -> None:
    dataset = gp.from_frame(pd.DataFrame({"row": np.arange(100)}), num_partitions=3)
    first = values(dataset.split(fraction=0.5, seed=2)[0].filter("row % 3 == 0"), "row")
    last = values(dataset.filter("row % 3 == 0").split(fraction=0.5, seed=2)[0], "row")
    mapped = map_frames(dataset, lambda frame, backend: frame, dataset.schema, ["row"]).split(fraction=0.5, seed=2)[0]
    assert first == last == [row for row in values(mapped, "row") if row % 3 == 0]
