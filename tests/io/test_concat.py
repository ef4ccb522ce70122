"""Datasets one after the other: the rows of pandas' concat, whatever the parts are, and one identity a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.io import Partition
from gpupipe.io.relational.scan import scan
from gpupipe.schema import ROW

FRAME = pd.DataFrame(
    {
        "n": range(20),
        "x": [None if n % 5 == 0 else n / 4 for n in range(20)],
        "s": [None if n % 7 == 0 else "abc"[n % 3] for n in range(20)],
        "t": pd.date_range("2013-10-01", periods=20, freq="h").astype("datetime64[us]"),
        "k": pd.array([None if n % 4 == 0 else n for n in range(20)], "Int64"),
    }
)


def parquet(folder: Path, frame: pd.DataFrame, name: str = "a") -> gp.Dataset:
    folder.mkdir(exist_ok=True)
    frame.to_parquet(folder / f"{name}.parquet", row_group_size=4)
    return gp.read_parquet(folder, partition_bytes=200)


@pytest.fixture(params=["frames", "files", "plans", "mixed"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> list[gp.Dataset]:
    """Three datasets of `FRAME`'s rows 0 to 7, none of its rows, and 8 to 19."""
    cuts = FRAME[:8], FRAME[:0], FRAME[8:].reset_index(drop=True)
    files = [parquet(tmp_path / str(number), frame) for number, frame in enumerate(cuts)]
    frames = [gp.from_frame(frame, num_partitions=3) for frame in cuts]
    plans = [data.sort("n") for data in files]
    return {"frames": frames, "files": files, "plans": plans, "mixed": [files[0], frames[1], plans[2]]}[request.param]


def assert_rows(dataset: gp.Dataset, wanted: pd.DataFrame) -> None:
    plain = wanted.astype(object).reset_index(drop=True)
    for rows in (dataset.to_pandas(), dataset.to_polars().collect().to_pandas()):
        made = rows[wanted.columns].astype(object)
        pd.testing.assert_frame_equal(made.where(made.notna(), None), plain.where(plain.notna(), None))


@pytest.mark.slow
def test_rows_are_those_of_pandas(parts: list[gp.Dataset]) -> None:
    whole = gp.concat(parts)
    assert_rows(whole, FRAME)
    assert len(whole) == 20 and whole.columns == list(FRAME)
    assert whole.num_partitions == sum(part.num_partitions for part in parts)
    assert [len(frame) for frame in whole] == [len(frame) for part in parts for frame in part]
    assert whole.head(10)["n"].tolist() == list(range(10))
    assert_rows(whole.select(["s", "n"]), FRAME[["s", "n"]])
    assert_rows(gp.concat([whole, parts[0]]), pd.concat([FRAME, FRAME[:8]]))


@pytest.mark.slow
def test_verbs_see_one_table(parts: list[gp.Dataset]) -> None:
    whole = gp.concat(parts)
    assert_rows(whole.filter("n > 5 and s == 'a'"), FRAME[(FRAME["n"] > 5) & (FRAME["s"] == "a")])
    assert_rows(whole.sort("n", ascending=False), FRAME[::-1])
    counts = whole.group_by("s").agg(rows=("n", "size")).compute()
    assert dict(zip(counts["s"], counts["rows"], strict=True)) == FRAME.groupby("s").size().to_dict()
    assert_rows(whole.deduplicate(["s"], keep="last").sort("n"), FRAME.drop_duplicates("s", keep="last"))
    left, right = whole.split(fraction=0.5, seed=3)
    assert sorted([*left.compute()["n"], *right.compute()["n"]]) == list(range(20)) and len(left) and len(right)


@pytest.mark.slow
def test_parts_keep_their_queries(parts: list[gp.Dataset]) -> None:
    """What each part leaves out stays out, and draws from the whole are of the rows that are left."""
    first = parts[0].filter("n % 2 == 0")
    last = gp.Pipeline([T.Filter("n < 15", when="always"), T.Derive(x="n * 2.0")]).fit(parts[2]).transform(parts[2])
    whole, wanted = gp.concat([first, parts[1], last]), pd.concat([FRAME[:8:2], FRAME[8:15].assign(x=FRAME["n"] * 2.0)])
    assert len(whole) == len(wanted) == 11
    assert_rows(whole, wanted)
    assert "at most" in repr(whole)
    pieces = whole.kfold(3, seed=1)
    assert sorted(n for _, valid in pieces for n in valid.compute()["n"]) == sorted(wanted["n"])
    drawn = whole.sample(n=5, seed=2).compute()["n"].tolist()
    assert len(drawn) == 5 and set(drawn) <= set(wanted["n"])
    assert drawn == gp.concat([whole]).sample(n=5, seed=2).compute()["n"].tolist()
    stratified = whole.filter("notnull(s)").split(fraction=0.5, stratify="s", seed=1)
    assert sum(map(len, stratified)) == wanted["s"].notna().sum()


@pytest.mark.slow
def test_splits_go_together_again(parts: list[gp.Dataset]) -> None:
    folds = gp.concat(parts).kfold(4, seed=1)
    again = gp.concat([valid for _, valid in folds])
    assert_rows(again.sort("n"), FRAME)


def test_a_draw_from_a_drawn_part_is_another_draw() -> None:
    data = gp.from_frame(pd.DataFrame({"n": range(400)}))
    left, _ = data.split(fraction=0.5, seed=1)
    halves = gp.concat([left]).split(fraction=0.5, seed=1)
    assert all(50 < len(half) < 150 for half in halves)


@pytest.mark.slow
def test_what_is_drawn_does_not_depend_on_what_a_part_leaves_out(parts: list[gp.Dataset], tmp_path: Path) -> None:
    """A row is drawn by its identity, which it has from its place in its part's file."""
    some = [part.filter("n % 3 == 1") for part in parts]
    for seed in range(3):
        all_rows, fewer = (
            gp.concat(some_parts).split(fraction=0.5, seed=seed)[0].compute() for some_parts in (parts, some)
        )
        assert fewer["n"].tolist() == [n for n in all_rows["n"] if n % 3 == 1]
        for name, datasets in (("all", parts), ("some", some)):
            path = tmp_path / f"{name}{seed}"
            gp.concat(datasets).write_parquet(path, files=1, shuffle="partition", seed=seed)
        orders = [gp.read_parquet(tmp_path / f"{name}{seed}").compute()["n"].tolist() for name in ("all", "some")]
        assert orders[1] == [n for n in orders[0] if n % 3 == 1]


def test_row_ids_differ_and_do_not_depend_on_partitions(tmp_path: Path) -> None:
    parquet(tmp_path / "a", FRAME)
    data = parquet(tmp_path / "a", FRAME, "b")
    fine, coarse = (gp.read_parquet(tmp_path / "a", partition_bytes=size) for size in (100, 1 << 20))
    assert fine.num_partitions > coarse.num_partitions
    ids = []
    for one in (fine, coarse):
        whole = gp.concat([one, one.filter("n > 3"), data])
        ids.append(scan(whole, ["n"], "test").frame.collect())
    assert ids[0].equals(ids[1]) and ids[0][ROW].n_unique() == len(ids[0]) == 40 + 32 + 40
    assert ids[0][ROW].is_sorted()


@pytest.mark.slow
def test_a_partition_of_rows_of_all_parts_has_the_same_rows(parts: list[gp.Dataset]) -> None:
    whole = gp.concat([part.filter("n % 3 == 1") for part in parts])
    mixed = Partition(0, tuple(span for part in whole.partitions for span in part.spans), "all of them")
    for seed in range(3):
        apart, together = (
            data.split(fraction=0.5, seed=seed)[0].compute() for data in (whole, whole.of_partitions([mixed]))
        )
        assert apart["n"].tolist() == together["n"].tolist()
    assert_rows(whole.of_partitions([mixed]), whole.compute())


@pytest.mark.slow
def test_written_as_one_folder_and_gone_on_with(tmp_path: Path) -> None:
    parquet(tmp_path / "a", FRAME)
    parquet(tmp_path / "b", FRAME.assign(n=FRAME["n"] + 100))

    def read() -> gp.Dataset:
        return gp.concat([gp.read_parquet(tmp_path / name, partition_bytes=200).filter("x > 1") for name in "ab"])

    read().write_parquet(tmp_path / "out")
    assert_rows(gp.read_parquet(tmp_path / "out").sort("n"), read().compute())
    assert read().write_parquet(tmp_path / "out").num_done == len(list((tmp_path / "out").glob("*.parquet")))
    parquet(tmp_path / "b", FRAME.assign(n=FRAME["n"] + 200), "c")
    grown = read().write_parquet(tmp_path / "out")
    assert 0 < grown.num_done < len(grown.parts)
    assert_rows(gp.read_parquet(tmp_path / "out").sort("n"), read().compute())
    read().write_parquet(tmp_path / "two", files=2)
    assert_rows(gp.read_parquet(tmp_path / "two"), read().compute())
    read().write_parquet(tmp_path / "shuffled", files=1, shuffle="partition", seed=1)
    assert_rows(gp.read_parquet(tmp_path / "shuffled").sort("n"), read().compute())


@pytest.mark.slow
def test_a_pipeline_is_fitted_on_all_of_them(parts: list[gp.Dataset]) -> None:
    features = gp.Features(
        (["x"], [pre.SimpleImputer(), pre.StandardScaler()]), (["s"], pre.Categorify()), target="n > 9"
    )
    of_parts, of_frame = (gp.Pipeline([], features).fit(data) for data in (gp.concat(parts), FRAME))
    for name in ("x", "s"):
        np.testing.assert_allclose(of_parts.transform(FRAME)[name], of_frame.transform(FRAME)[name])
    batches = of_parts.loader(gp.concat(parts), batch_size=7, shuffle="rows")
    assert sum(len(batch) for batch in batches) == 20


def test_statistics_leave_row_groups_out(tmp_path: Path) -> None:
    whole = gp.concat(
        [parquet(tmp_path / "a", FRAME), parquet(tmp_path / "b", FRAME.assign(n=FRAME["n"] + 100)).filter("x > 1")]
    )
    late = whole.filter("n >= 116")
    assert late.num_partitions == 1 and late.compute()["n"].tolist() == [116, 117, 118, 119]


def test_notes_and_nullable_columns_are_put_together(tmp_path: Path) -> None:
    half = gp.from_frame(pa.table({"x": pa.array([1.0], pa.float16()), "k": [5]}))
    whole = gp.concat(
        [
            half,
            gp.from_frame(
                pa.table(
                    {
                        "x": pa.array([2.0], pa.float32()),
                        "k": [
                            None,
                        ],
                    },
                    schema=pa.schema([("x", pa.float32()), ("k", pa.int64())]),
                )
            ),
        ]
    )
    assert [note.column for note in whole.conversions] == ["x"]
    assert whole.schema["k"].nullable and whole.to_polars().collect()["k"].to_list() == [5, None]


@pytest.mark.parametrize(
    ("others", "error", "message"),
    [
        ([], errors.BadConfig, r"concat: not a list of datasets, got \[\]"),
        (None, errors.BadConfig, "not a list of datasets, got None"),
        ([FRAME, FRAME.drop(columns="x")], errors.SchemaMismatch, "dataset 2 has no column 'x'"),
        ([FRAME[["x"]], FRAME[["s"]]], errors.SchemaMismatch, "Try: join, for tables of other columns"),
        ([FRAME.drop(columns=["x", "s"]), FRAME], errors.SchemaMismatch, "dataset 1 has no column 's', 'x'"),
        (
            [FRAME, FRAME, FRAME.assign(n="1")],
            errors.SchemaMismatch,
            r"column 'n' is string in dataset 3, and int64 in dataset 1[\s\S]*T.Cast\(\{'n': 'string'\}\)",
        ),
        (
            [FRAME, FRAME.assign(t=FRAME["t"].dt.tz_localize("UTC"))],
            errors.SchemaMismatch,
            "column 't' has UTC in dataset 2, and no time zone in dataset 1",
        ),
        ([FRAME, 5], errors.SchemaMismatch, "got"),
    ],
)
def test_what_does_not_go_together(others: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gp.concat(others)


def test_ids_of_two_fits_do_not_go_together() -> None:
    def encode(frame: pd.DataFrame) -> gp.Dataset:
        data = gp.from_frame(frame)
        return gp.Pipeline([], gp.Features((["s"], pre.Categorify()))).fit(data).transform(data)

    with pytest.raises(errors.SchemaMismatch, match=r"column 's' has the ids or classes of another fit in dataset 2"):
        gp.concat([encode(FRAME), encode(FRAME[:1])])


DAYS = pd.Series(pd.to_datetime(["2024-01-05", "2024-02-01"]).date)


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        (pd.Series([1, 2]), pd.Series([1.5]), [1.0, 2.0, 1.5]),
        (pd.Series([1.5]), pd.Series([1, 2]), [1.5, 1.0, 2.0]),
        (pd.Series([1, 2]), pd.Series(["x"]), ["1", "2", "x"]),
        (pd.Series([1], dtype="int32"), pd.Series([3_000_000_000]), [1, 3_000_000_000]),
        (pd.Series([1], dtype="int8"), pd.Series([200], dtype="uint8"), [1, 200]),
        (pd.Series([True]), pd.Series([2.5]), [1.0, 2.5]),
        (pd.Series(["2024-01-05"]), DAYS, ["2024-01-05", "2024-01-05", "2024-02-01"]),
    ],
)
def test_the_cast_that_the_error_offers_works(first: pd.Series, second: pd.Series, values: list[Any]) -> None:
    datasets = {str(number): gp.from_frame(each.to_frame("x")) for number, each in ((1, first), (2, second))}
    with pytest.raises(errors.SchemaMismatch) as caught:
        gp.concat(list(datasets.values()))
    call, _, numbers = caught.value.remedy.removesuffix(" before").partition(" of dataset ")
    for number in numbers.split(" and "):
        datasets[number] = eval(call, {"gp": gp, "T": T, "data": datasets[number]})
    assert gp.concat(list(datasets.values())).compute()["x"].tolist() == values
