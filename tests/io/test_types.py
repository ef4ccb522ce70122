"""Every type Arrow has: what goes in by each way comes out equal by each way, or a note says what became of it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pyarrow import orc

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.arrow import arrow_type, read_as
from gpupipe.errors import BadConfig, BadData, GpupipeError, SchemaMismatch
from gpupipe.schema import Field, Schema, is_passenger
from tests.examples import examples
from tests.raising import raises

EXACT = [
    *(pa.decimal32(5, 2), pa.decimal64(12, 3), pa.decimal128(20, 2), pa.decimal256(50, 4)),
    *(pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.binary(), pa.large_binary(), pa.binary(3)),
    *(pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")),
    pa.struct([("city", pa.string()), ("a, b: c>", pa.list_(pa.timestamp("ns", "Asia/Tokyo")))]),
    *(pa.list_(pa.list_(pa.int8())), pa.list_(pa.struct([("x", pa.decimal128(4, 1))])), pa.large_list(pa.date32())),
    *(pa.list_(pa.timestamp("ns")), pa.list_(pa.binary(), 2), pa.map_(pa.string(), pa.int64())),
    pa.map_(pa.int8(), pa.list_(pa.time32("ms"))),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", "America/New_York"), pa.timestamp("us", "+05:30")),
    *(pa.uint64(), pa.int8(), pa.bool_(), pa.large_string()),
]
"""Types whose columns are written as they were read."""
CONVERTED = {
    pa.float16(): pa.float32(),
    pa.null(): pa.float64(),
    pa.timestamp("s"): pa.timestamp("us"),
    pa.timestamp("ns"): pa.timestamp("us"),
    pa.timestamp("ns", "Asia/Tokyo"): pa.timestamp("us", "Asia/Tokyo"),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time32("ms"),
    pa.binary_view(): pa.binary(),
    pa.list_(pa.float32(), 2): pa.large_list(pa.float32()),
    pa.list_(pa.float16()): pa.large_list(pa.float32()),
    pa.struct([("t", pa.time32("s"))]): pa.struct([("t", pa.time32("ms"))]),
    pa.dictionary(pa.int8(), pa.string(), ordered=True): pa.large_string(),
    pa.uuid(): pa.binary(16),
}
LEFT_OUT = [pa.month_day_nano_interval(), pa.struct([]), pa.dense_union([pa.field("x", pa.int8())])]

_DAY = dt.date(1970, 1, 1)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type as Python has them, or as integers where Python has no such fine ones."""
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -kind.scale)))
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({item.name: missing_or(values_of(item.type), item.nullable) for item in kind})
    if pa.types.is_map(kind):
        pairs = st.tuples(values_of(kind.key_type), missing_or(values_of(kind.item_type), kind.item_field.nullable))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    if pa.types.is_fixed_size_list(kind):
        return st.lists(values_of(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    if pa.types.is_nested(kind):
        return st.lists(missing_or(values_of(kind.value_type)), max_size=3)
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return st.binary(max_size=4)
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return st.text(max_size=3)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_date(kind):
        return st.dates(dt.date(1, 1, 1)).map(lambda day: (day - _DAY).days)
    if pa.types.is_time(kind):
        return st.integers(0, {"ms": 1, "us": 10**3, "ns": 10**6}[kind.unit] * 86_400_000 - 1)
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return st.integers(low, low + 2**kind.bit_width - 1)
    return st.integers(-(10**15), 10**15)  # instants and durations


def missing_or(values: st.SearchStrategy[Any], nullable: bool = True) -> st.SearchStrategy[Any]:
    return st.none() | values if nullable else values


def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """An array of such values; integers are what a type counts."""
    return pa.array(values, kind)


@st.composite
def columns(draw: st.DrawFn) -> pa.Table:
    """A table with a number per row and columns of some of the types."""
    rows = draw(st.integers(0, 9))
    kinds = draw(st.lists(st.sampled_from(EXACT), min_size=1, max_size=4))
    lists = [draw(st.lists(missing_or(values_of(kind)), min_size=rows, max_size=rows)) for kind in kinds]
    made = {f"c{n}": column(kind, found) for n, (kind, found) in enumerate(zip(kinds, lists, strict=True))}
    return pa.table({"id": pa.array(range(rows), pa.int64()), **made})


def fixed(seed: int = 0) -> pa.Table:
    """A table of seven rows with a column of every type, some values missing."""
    rows = 7
    made = {}
    for n, kind in enumerate(EXACT):
        found = [_example(kind, n + row) if (n + row) % 4 else None for row in range(rows)]
        made[f"c{n}"] = column(kind, found)
    return pa.table({"id": pa.array(range(rows), pa.int64()), **made})


def _example(kind: pa.DataType, n: int) -> Any:
    """A value of a type that differs with the number."""
    if pa.types.is_decimal(kind):
        return Decimal(n * 7 + 1).scaleb(-kind.scale)
    if pa.types.is_struct(kind):
        return {item.name: _example(item.type, n) for item in kind}
    if pa.types.is_map(kind):
        return [(_example(kind.key_type, n), _example(kind.item_type, n))]
    if pa.types.is_fixed_size_list(kind):
        return [_example(kind.value_type, n + place) for place in range(kind.list_size)]
    if pa.types.is_nested(kind):
        return [_example(kind.value_type, n + place) for place in range(n % 3)]
    if pa.types.is_fixed_size_binary(kind):
        return bytes([n % 256]) * kind.byte_width
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes([n % 256, 0])
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return f"é{n}"
    if pa.types.is_boolean(kind):
        return n % 2 == 0
    return n * 13 % 100 + (2**63 if pa.types.is_uint64(kind) else 0)


def written(dataset: gp.Dataset, folder: Path) -> pa.Table:
    """What `write_parquet` writes of it."""
    dataset.write_parquet(folder, overwrite=True)
    return pa.concat_tables([pq.ParquetFile(path).read() for path in sorted(folder.rglob("*.parquet"))])


def check(found: pa.Table, wanted: pa.Table) -> None:
    """Equal columns of equal types in the same order, NaN apart, which no table here has."""
    assert found.column_names == wanted.column_names
    for name in wanted.column_names:
        assert found[name].type == wanted[name].type, (name, found[name].type)
        assert found[name].combine_chunks().equals(wanted[name].combine_chunks()), (name, found[name], wanted[name])


def check_zones(frame: pd.DataFrame, table: pa.Table) -> None:
    """Times of a frame have the zones of the table's, which values alone do not tell."""
    for item in table.schema:
        if pa.types.is_timestamp(item.type) and item.type.tz is not None:
            assert frame[item.name].dt.tz_localize(None).dtype == "datetime64[us]"
            assert pa.array(frame[item.name][:0], from_pandas=True).type.tz == item.type.tz


def in_pandas(table: pa.Table, dataset: gp.Dataset) -> pa.Table:
    """`compute` as Arrow again: dates are midnights in pandas, which has no other."""
    frame = dataset.compute()
    assert isinstance(frame, pd.DataFrame)
    check_zones(frame, table)
    return pa.table({name: pa.array(frame[name], table[name].type, from_pandas=True) for name in frame.columns})


def parquet(table: pa.Table, folder: Path) -> gp.Dataset:
    pq.write_table(table, folder / "in.parquet", row_group_size=2)
    return gp.read_parquet(folder / "in.parquet", partition_bytes=1)


def ipc_file(table: pa.Table, folder: Path) -> gp.Dataset:
    with pa.ipc.new_file(folder / "in.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return gp.read_ipc(folder / "in.arrow")


def ipc_stream(table: pa.Table, folder: Path) -> gp.Dataset:
    with pa.ipc.new_stream(folder / "in.arrows", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return gp.read_ipc(folder / "in.arrows")


def arrow_dataset(table: pa.Table, folder: Path) -> gp.Dataset:
    pq.write_table(table, folder / "set.parquet", row_group_size=2)
    return gp.from_frame(pads.dataset(folder / "set.parquet"))


WAYS: dict[str, Callable[[pa.Table, Path], gp.Dataset]] = {
    "parquet": parquet,
    "ipc file": ipc_file,
    "ipc stream": ipc_stream,
    "pyarrow dataset": arrow_dataset,
    "arrow table": lambda table, _: gp.from_frame(table, num_partitions=2),
    "arrow stream": lambda table, _: gp.from_frame(table.to_reader(2)),
    "pandas": lambda table, _: gp.from_frame(table.to_pandas(types_mapper=pd.ArrowDtype), num_partitions=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=columns())
def test_what_goes_in_comes_out(way: str, table: pa.Table, tmp_path: Path) -> None:
    dataset = WAYS[way](table, tmp_path)
    assert dataset.conversions == ()
    assert dataset.rejected == ()
    check(written(dataset, tmp_path / "out"), table)
    check(in_pandas(table, dataset), table)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_type_by_every_way(way: str, tmp_path: Path) -> None:
    table = fixed()
    for rows in (7, 1, 0):
        part = table.slice(0, rows)
        dataset = WAYS[way](part, tmp_path)
        assert dataset.conversions == ()
        check(written(dataset, tmp_path / "out"), part)
        check(in_pandas(part, dataset), part)


def test_what_polars_and_orc_have(tmp_path: Path) -> None:
    table = pa.table(
        {
            "day": pa.array([1, None], pa.date32()),
            "amount": pa.array([Decimal("1.50"), None], pa.decimal128(20, 2)),
            "blob": pa.array([b"x", None], pa.binary()),
            "place": pa.array([{"city": "Oslo"}, None], pa.struct([("city", pa.string())])),
            "deep": pa.array([[[1]], None], pa.list_(pa.list_(pa.int64()))),
        }
    )
    orc.write_table(table, tmp_path / "a.orc")
    check(written(gp.read_orc(tmp_path / "a.orc"), tmp_path / "orc"), table)
    frame = pl.DataFrame(table).with_columns(
        time=pl.Series([dt.time(9, 1), None]), span=pl.Series([dt.timedelta(seconds=3), None])
    )
    found = pl.DataFrame(written(gp.from_frame(frame), tmp_path / "polars"))
    assert found.equals(frame)


# through every verb ---------------------------------------------------------------------------------------------------
VERBS: dict[str, tuple[Callable[[gp.Dataset], gp.Dataset], Callable[[pa.Table], pa.Table]]] = {
    "select": (lambda d: d.select(d.columns[::-1]), lambda t: t.select(t.column_names[::-1])),
    "filter": (lambda d: d.filter("id % 2 == 0"), lambda t: t.take([0, 2, 4, 6])),
    "sort": (lambda d: d.sort("id", ascending=False), lambda t: t.take(list(range(7))[::-1])),
    "shuffle": (lambda d: d.shuffle(seed=3).sort("id"), lambda t: t),
    "deduplicate": (lambda d: d.deduplicate("id"), lambda t: t),
    "sample": (lambda d: d.sample(n=7).sort("id"), lambda t: t),
    "split": (lambda d: d.split(by="id", at=3)[1], lambda t: t.slice(3)),
    "join": (
        lambda d: d.select("id").join(d, on="id"),
        lambda t: t,
    ),
    "join with rows that match nothing": (
        lambda d: d.select("id").join(d.filter("id < 3"), on="id"),
        lambda t: pa.concat_tables(
            [t.slice(0, 3), t.select(["id"]).slice(3).append_column("x", pa.nulls(4))], promote_options="default"
        ).select(t.column_names),
    ),
    "group_by": (
        lambda d: d.group_by("id").agg(**{name: (name, "first") for name in d.columns if name != "id"}),
        lambda t: t,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("verb", VERBS)
def test_every_type_through_every_verb(verb: str, parts: int, tmp_path: Path) -> None:
    table = fixed()
    act, expected = VERBS[verb]
    made = act(gp.from_frame(table, num_partitions=parts))
    check(written(made, tmp_path / "out"), expected(table))


def test_counts_of_a_group(tmp_path: Path) -> None:
    names = fixed().column_names[1:]
    made = gp.from_frame(fixed(), num_partitions=2).filter("id < 99")
    passengers = [item.name for item in made.schema if is_passenger(item.dtype)]
    assert len(passengers) > 15
    found = made.group_by("id").agg(**{name: (name, "count") for name in passengers}).compute()
    assert all(found[name].sum() == 7 - fixed()[name].null_count for name in passengers)
    for function in ("min", "sum", "nunique", "list", "median"):
        with pytest.raises(SchemaMismatch) as caught:
            made.group_by("id").agg(x=(passengers[0], function))
        assert caught.value.got == function
    assert set(passengers) <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("step", [T.Rename({"id": "key"}), T.Drop(["c0"]), T.Filter("id != 3"), T.Sample(0.99)])
def test_every_type_through_steps(step: Any, tmp_path: Path) -> None:
    table = fixed()
    dataset = gp.from_frame(table, num_partitions=2)
    made = gp.Pipeline([step]).fit(dataset).transform(dataset)
    names = {"key": "id"}
    wanted = table.select([names.get(name, name) for name in made.columns]).rename_columns(made.columns)
    found = written(made, tmp_path / "out")
    check(found, wanted.take(found.column(0 if "key" in made.columns else "id")))
    frame = step.transform(dataset.compute())
    for name in frame.columns:
        kind = wanted[name].type
        assert pa.array(frame[name], kind, from_pandas=True).null_count <= wanted[name].null_count


@pytest.mark.slow
def test_lags_and_lookups_carry(tmp_path: Path) -> None:
    table = fixed()
    dataset = gp.from_frame(table, num_partitions=3)
    names = table.column_names[1:]
    lagged = gp.Pipeline([T.Lag(names, order_by="id")]).fit(dataset).transform(dataset)
    found = written(lagged, tmp_path / "lag")
    for name in names:
        before = pa.chunked_array([pa.nulls(1, table[name].type), *table[name].slice(0, 6).chunks])
        assert found[f"{name}_lag_1"].type == table[name].type
        assert found[f"{name}_lag_1"].combine_chunks().equals(before.combine_chunks())
    for many in (False, True):
        ids = dataset.select("id")
        looked = gp.Pipeline([T.Join(dataset, on="id", many=many)]).fit(ids).transform(ids)
        check(written(looked, tmp_path / f"join{many}"), table)


# kept and predicted ---------------------------------------------------------------------------------------------------
def test_kept_columns_and_predictions(tmp_path: Path) -> None:
    table = fixed().append_column("x", pa.array([float(n) for n in range(7)]))
    names = fixed().column_names[1:]
    dataset = gp.from_frame(table, num_partitions=2)
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="id > 3", keep=names)).fit(dataset)
    check(written(pipeline.transform(dataset).select(names), tmp_path / "transformed"), table.select(names))
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1)
    batch = next(iter(pipeline.loader(dataset.filter("isnull(c26)"), batch_size=7)))
    assert not {item.name for item in dataset.schema if is_passenger(item.dtype)} & set(batch.keep)
    gp.save(tmp_path / "run", pipeline, model)
    scorer = gp.load(tmp_path / "run")
    assert scorer.schema == pipeline.schema
    check(written(scorer.predict(dataset).select(names), tmp_path / "scores"), table.select(names))
    frame = scorer.predict(dataset.compute())
    check_zones(frame, table.select(names))
    for name in names:
        assert pa.array(frame[name], table[name].type, from_pandas=True).equals(table[name].combine_chunks()), name


def test_decimals_of_another_width_are_predicted_in_that_of_the_fit() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1], "price": [Decimal("10.25"), Decimal("1.5")]})
    features = gp.Features((["x"], pre.StandardScaler()), target="y", keep="price")
    pipeline = gp.Pipeline([], features).fit(frame)
    assert pipeline.transform(frame.iloc[1:])["price"].tolist() == [Decimal("1.50")]
    with pytest.raises(BadData) as caught:
        pipeline.transform(frame.assign(price=[Decimal("123456.789"), None]))
    assert caught.value.where == "Cast of column 'price'"


# notes, refusals, text ------------------------------------------------------------------------------------------------
def _odd(kind: pa.DataType) -> pa.Array:
    if pa.types.is_union(kind):
        kinds, places = pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32())
        return pa.UnionArray.from_dense(kinds, places, [pa.array([1, 2], pa.int8())], ["x"])
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([b"x" * 16, None], kind.storage_type))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["a", "b"]), ordered=True)
    if pa.types.is_fixed_size_list(kind):
        return pa.array([[1.0, 2.0], None], kind)
    if pa.types.is_list(kind) or pa.types.is_float16(kind):
        wide = pa.list_(pa.float32()) if pa.types.is_list(kind) else pa.float32()
        return pa.array([[1.0] if pa.types.is_list(kind) else 1.0, None], wide).cast(kind)
    examples = {
        "binary_view": b"x",
        "struct<t: time32[s]>": {"t": dt.time(9)},
        "time32[s]": dt.time(9),
        "struct<>": {},
        "month_day_nano_interval": (1, 2, 3),
        "date64[ms]": dt.date(2020, 1, 1),
    }
    return pa.nulls(2, kind) if pa.types.is_null(kind) else pa.array([examples.get(str(kind), 0), None], kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*CONVERTED, *LEFT_OUT], ids=str)
def test_no_way_in_changes_or_loses_a_column_without_a_note(
    kind: pa.DataType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"id": [1, 2], "odd": _odd(kind)})
    ways = {"arrow table": WAYS["arrow table"], "ipc file": ipc_file, "arrow stream": WAYS["arrow stream"]}
    for way, read in ways.items():
        caplog.clear()
        with caplog.at_level("INFO", "gpupipe"):
            dataset = read(table, tmp_path)
        (note,) = dataset.conversions
        assert (note.column, note.action) == ("odd", "converted" if kind in CONVERTED else "left out"), way
        assert str(kind) in note.reason
        assert "column 'odd'" in caplog.text
        assert "column 'odd'" in repr(gp.io.inspect(dataset))
        assert dataset.rejected == ()
        manifest = dataset.write_parquet(tmp_path / "out", overwrite=True)
        assert manifest.notes == (note,)
        assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["notes"][0]["column"] == "odd"
        found = pq.ParquetFile(next((tmp_path / "out").glob("*.parquet"))).schema_arrow
        if kind in CONVERTED:
            assert found.field("odd").type == CONVERTED[kind]
        else:
            assert found.names == ["id"]
            with pytest.raises(SchemaMismatch) as caught:
                dataset.select("odd")
            assert caught.value.where == "column 'odd'"
            assert caught.value.got == str(kind)


@pytest.mark.parametrize("unit", ["ns"])
def test_nanoseconds_are_rounded_down_by_every_way(unit: str, tmp_path: Path) -> None:
    table = pa.table({"at": pa.array([-1001, -1, 0, 999, 1001, None], pa.timestamp(unit))})
    for way, read in WAYS.items():
        dataset = read(table, tmp_path)
        assert [note.reason for note in dataset.conversions] == ["timestamp[ns]: rounded down to microseconds"] or (
            way == "pandas" and len(dataset.conversions) == 1
        )
        assert written(dataset, tmp_path / "out")["at"].cast(pa.int64()).to_pylist() == [-2, -1, 0, 0, 1, None]
    frame = pd.DataFrame({"at": pd.Series([-1001, 1001]).astype("datetime64[ns]")})
    assert gp.from_frame(frame).compute()["at"].astype("int64").tolist() == [-2, 1]


def test_files_of_several_zones_are_read_in_utc(tmp_path: Path) -> None:
    for name, zone in (("a", "Asia/Tokyo"), ("b", "Europe/Oslo")):
        pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("us", zone))}), tmp_path / f"{name}.parquet")
    dataset = gp.read_parquet(tmp_path)
    assert dataset.schema["at"].zone == "UTC"
    (note,) = dataset.conversions
    assert "Asia/Tokyo" in note.reason and "Europe/Oslo" in note.reason


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us")])
@pytest.mark.parametrize("zoned_first", [False, True])
def test_files_with_and_without_a_zone_are_put_together_only_when_asked(
    kind: pa.DataType, zoned_first: bool, tmp_path: Path
) -> None:
    kinds = [pa.timestamp("us", "Asia/Tokyo"), kind][:: 1 if zoned_first else -1]
    for name, each in zip("bc", kinds, strict=True):
        pq.write_table(pa.table({"at": pa.array([0], each)}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"at": pa.nulls(1)}), tmp_path / "a.parquet")
    with raises(SchemaMismatch, where=str(tmp_path / "c.parquet")) as caught:
        gp.read_parquet(tmp_path)
    assert f"times with{'' if zoned_first else 'out'} a time zone" in caught.value.expected
    assert "'cast'" in caught.value.remedy
    cast = gp.read_parquet(tmp_path, on_mismatch="cast")
    assert cast.schema["at"].written_as == "" and cast.compute()["at"].notna().tolist() == [False, True, True]
    assert len(gp.read_parquet(tmp_path, on_mismatch="skip")) == 2


def test_a_zone_nobody_knows_is_read_as_utc() -> None:
    table = pa.table({"at": pa.array([0, None], pa.timestamp("us", "Mars/Phobos"))})
    dataset = gp.from_frame(table)
    assert [note.action for note in dataset.conversions] == ["converted"]
    assert "Mars/Phobos" in dataset.conversions[0].reason
    assert str(dataset.compute()["at"].dtype) == "datetime64[us, UTC]"


def test_ordered_categories_are_sorted_as_text_and_noted_by_every_way(tmp_path: Path) -> None:
    levels = pd.CategoricalDtype(["lo", "hi"], ordered=True)
    frame = pd.DataFrame({"c": pd.Series(["lo", "hi", "lo"], dtype=levels), "x": [1, 2, 3]})
    table = pa.Table.from_pandas(frame)
    pq.write_table(table, tmp_path / "a.parquet")
    for dataset in (gp.from_frame(frame), gp.from_frame(table), gp.read_parquet(tmp_path)):
        assert dataset.sort("c").compute()["x"].tolist() == [2, 1, 3]
        assert ["order of its categories" in note.reason for note in dataset.conversions] == [True]


@pytest.mark.parametrize(("kind", "values"), [(pl.Object, [object(), None]), (pl.Int128, [2**100, 1])])
def test_what_only_polars_has_is_left_out_with_a_note(kind: Any, values: list[Any]) -> None:
    dataset = gp.from_frame(pl.DataFrame({"a": pl.Series(values, dtype=kind), "x": [1, 2]}))
    assert dataset.compute()["x"].tolist() == [1, 2]
    assert [(note.column, note.action) for note in dataset.conversions] == [("a", "left out")]


@pytest.mark.parametrize("names", [[0, 1], pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])])
def test_names_that_are_no_strings_are_offered_such(names: Any) -> None:
    frame = pd.DataFrame([[1, 2]], columns=names)
    with pytest.raises(SchemaMismatch) as caught:
        gp.from_frame(frame)
    assert caught.value.remedy is not None
    assert len(gp.from_frame(eval(caught.value.remedy, {"frame": frame})).columns) == 2


def test_an_index_with_names_or_values_is_noted() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    assert gp.from_frame(frame.iloc[::-1]).conversions == ()
    for index, name in ((pd.Index(["a", "b"]), "index"), (pd.Index([4, 5], name="day"), "day")):
        (note,) = gp.from_frame(frame.set_axis(index)).conversions
        assert (note.column, note.action) == (name, "left out")
        assert "reset_index()" in note.reason
    pairs = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["city", "year"])
    assert [note.column for note in gp.from_frame(frame.set_axis(pairs)).conversions] == ["city, year"]


def test_a_named_range_of_rows_that_is_only_in_the_metadata_of_pandas_is_noted(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=pd.RangeIndex(7, 9, name="order_id"))
    table = pa.Table.from_pandas(frame)
    frame.to_parquet(tmp_path / "a.parquet")
    for name, writer in (("b.arrow", pa.ipc.new_file), ("c.arrows", pa.ipc.new_stream)):
        with writer(str(tmp_path / name), table.schema) as out:
            out.write_table(table)
    ways = [
        gp.read_parquet(tmp_path / "a.parquet"),
        *(gp.read_ipc(tmp_path / name) for name in ("b.arrow", "c.arrows")),
    ]
    ways += [gp.from_frame(obj) for obj in (frame, table, table.to_reader(), pads.dataset(tmp_path / "a.parquet"))]
    for dataset in ways:
        (note,) = dataset.conversions
        assert (note.column, note.action) == ("order_id", "left out") and "data.reset_index()" in note.reason
        remedy = "data.reset_index() in pandas, before it is written or given"
        with raises(SchemaMismatch, where="column 'order_id'", match="index is no column", got="int64", remedy=remedy):
            dataset.select(["order_id"])
    with raises(SchemaMismatch, where="a.parquet", match="keeps it as pandas' RangeIndex"):
        gp.read_parquet(tmp_path / "a.parquet", columns=["x", "order_id"])
    assert gp.read_parquet(tmp_path / "a.parquet", columns=["x"]).conversions == ()
    for other in (frame.rename_axis(None), frame.reset_index(), frame.assign(order_id=1), frame.set_axis([1, 7])):
        other.to_parquet(tmp_path / "a.parquet")
        assert gp.read_parquet(tmp_path / "a.parquet").conversions == ()


def test_a_file_whose_index_is_a_column_in_another_file_is_named(tmp_path: Path) -> None:
    for name, ids in (("a", pd.Index([3, 8, 11])), ("b", pd.RangeIndex(40, 43))):
        pd.DataFrame({"v": 1.0}, ids.rename("order_id")).to_parquet(tmp_path / f"{name}.parquet")
    remedy = "data.reset_index() in pandas before it is written"
    with raises(SchemaMismatch, where="b.parquet", match="keeps it as pandas' RangeIndex", remedy=remedy):
        gp.read_parquet(tmp_path)
    cast = gp.read_parquet(tmp_path, on_mismatch="cast")
    assert [note.column for note in cast.conversions] == ["order_id"]
    assert cast.compute()["order_id"].isna().tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("groups", [(["x"], ()), (["t"], pre.DatetimeEncoder(["hour"]))])
def test_times_are_zoned_as_in_the_fit_or_an_error(groups: Any) -> None:
    features = gp.Features(groups, keep="t")
    zoned = pd.DataFrame({"t": pd.date_range("2020", periods=4, freq="h", tz="Asia/Tokyo"), "x": [1.0, 2.0, 3.0, 4.0]})
    naive = zoned.assign(t=zoned["t"].dt.tz_localize(None))
    for known, other in ((zoned, naive), (naive, zoned)):
        learned = gp.Pipeline([], features).fit(known)
        arrow = pa.Table.from_pandas(known)
        pd.testing.assert_frame_equal(learned.transform(arrow), learned.transform(known))
        for data in (other, gp.from_frame(other), pa.Table.from_pandas(other)):
            with pytest.raises(SchemaMismatch) as caught:
                learned.transform(data)
            assert "'t'" in caught.value.where
            names = {"data": data if isinstance(data, gp.Dataset) else other}
            if isinstance(data, gp.Dataset):
                exec(caught.value.remedy, names)
                fixed = names["frame"]
            else:
                fixed = other.assign(t=eval(caught.value.remedy, names))
            pd.testing.assert_frame_equal(learned.transform(fixed), learned.transform(known))
    learned = gp.Pipeline([], features).fit(zoned)
    elsewhere = zoned.assign(t=zoned["t"].dt.tz_convert("America/New_York"))
    pd.testing.assert_frame_equal(learned.transform(elsewhere), learned.transform(zoned))


@pytest.mark.parametrize("zone", [None, "Europe/Oslo"])
def test_times_that_are_all_missing_have_no_zone_to_differ(zone: str | None) -> None:
    known = pd.DataFrame({"t": pd.date_range("2020", periods=4, tz=zone), "x": [1.0, 2.0, 3.0, 4.0]})
    learned = gp.Pipeline([], gp.Features((["t"], [pre.DatetimeEncoder(["hour"]), pre.SimpleImputer()]))).fit(known)
    wanted = learned.transform(pd.DataFrame({"t": [None]}))
    for other in (None, "Asia/Tokyo"):
        lost = pd.DataFrame({"t": pd.Series([pd.NaT]).astype("datetime64[us]").dt.tz_localize(other)})
        pd.testing.assert_frame_equal(learned.transform(lost), wanted)


def test_a_cut_without_an_offset_is_in_utc_beside_any_zone() -> None:
    zoned = gp.from_frame(pd.DataFrame({"t": pd.date_range("2020", periods=4, freq="h", tz="Asia/Tokyo")}))
    for at in ("2019-12-31 17:00", "2020-01-01 02:00+09:00"):
        assert [len(part) for part in zoned.split(by="t", at=at)] == [2, 2]


def test_columns_nobody_uses_refuse_nothing() -> None:
    frame = pd.DataFrame(
        {
            "x": [1.0, 2.0, 3.0, 4.0],
            "y": [0, 1, 0, 1],
            "day": [dt.date(2024, 1, 1)] * 4,
            "span": pd.to_timedelta([1, 2, 3, 4]),
            "kind": pd.Categorical([1, 2, 1, 2]),
            "flag": pd.Series([True, None, False, True], dtype=object),
            "mixed": pd.Series([1, "a", None, b"x"], dtype=object),
            "month": pd.period_range("2024-01", periods=4, freq="M"),
        }
    )
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), target="y")).fit(frame)
    assert len(pipeline.transform(frame)) == 4
    assert pre.StandardScaler().fit(frame[["x"]]).transform(frame[["x"]]).shape == (4, 1)


REFUSED = (
    fixed()
    .select(["id", "c2", "c4", "c10", "c14", "c7", "c28"])
    .rename_columns(["id", "amount", "clock", "span", "place", "blob", "flag"])
)


@pytest.mark.parametrize("name", ["amount", "clock", "span", "place", "blob"])
def test_what_is_only_carried_is_refused_with_a_remedy(name: str) -> None:
    dataset = gp.from_frame(REFUSED)
    frame = dataset.compute()
    dtype = dataset.schema[name].dtype
    asks: list[Callable[[], Any]] = [
        lambda: dataset.sort(name),
        lambda: dataset.deduplicate(name),
        lambda: dataset.group_by(name).agg(n=("id", "size")),
        lambda: dataset.join(dataset, on=name),
        lambda: dataset.split(by=name, at=3),
        lambda: dataset.kfold(3, by=name),
        lambda: dataset.write_parquet("nowhere", partition_by=name),
        lambda: dataset.filter(f"{name} > 3"),
        lambda: T.Derive(new=f"{name} + 1").transform(frame),
        lambda: T.Replace({name: {1: 2}}).transform(frame),
        lambda: T.Clip(name, 0, 1).transform(frame),
        lambda: pre.StandardScaler().fit(frame[[name]]),
        lambda: pre.Categorify().fit(frame[[name]]),
        *(
            lambda features=features: gp.Pipeline([], features).fit(dataset)
            for features in (
                gp.Features([name], target="flag"),
                gp.Features(([name], pre.SimpleImputer()), target="flag"),
                gp.Features(["id"], target=name),
                gp.Features(["id"], target="flag", weight=name),
            )
        ),
    ]
    for ask in asks:
        with pytest.raises(GpupipeError) as caught:
            ask()
        shown = str(caught.value)
        assert name in shown and dtype in shown
        assert caught.value.remedy
    cast = f"T.Cast({{{name!r}: 'float64'}})"
    with pytest.raises(SchemaMismatch) as refused:
        dataset.sort(name)
    assert (cast in str(refused.value.remedy)) == (name in ("amount", "clock", "span"))
    if cast in str(refused.value.remedy):
        assert str(T.Cast({name: "float64"}).transform(frame)[name].dtype) == "float64"


@examples(100)
@given(
    st.recursive(
        st.sampled_from([kind for kind in EXACT if not pa.types.is_nested(kind)]),
        lambda inner: (
            st.builds(pa.list_, inner)
            | st.builds(pa.large_list, inner)
            | st.builds(pa.list_, inner, st.integers(1, 3))
            | st.builds(pa.map_, inner, inner, keys_sorted=st.booleans())
            | st.lists(
                st.tuples(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=4), inner),
                min_size=1,
                max_size=3,
            ).map(lambda items: pa.struct([pa.field(*item) for item in items]))
        ),
        max_leaves=6,
    )
)
def test_a_type_is_made_again_from_its_text(kind: pa.DataType) -> None:
    reading = read_as(kind)
    assert reading.dtype is not None
    if is_passenger(reading.dtype):
        assert arrow_type(reading.dtype) == kind
        assert not reading.change
        field = Field("x", reading.dtype)
        assert Schema.from_json(json.loads(json.dumps(Schema([field]).to_json()))) == Schema([field])


def test_the_newcomers_program(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "opened_at": [dt.time(9)] * 2,
            "address": [{"city": "Oslo"}] * 2,
            "blob": [b"x", b"y"],
            "nested": [[[1]], [[2]]],
            "amount": pa.array([Decimal("12345678901234567.89")] * 2),
        }
    )
    pq.write_table(table, tmp_path / "shop.parquet")
    dataset = gp.read_parquet(tmp_path / "shop.parquet")
    assert dataset.columns == table.column_names
    manifest = dataset.write_parquet(tmp_path / "out", shuffle="full", seed=1, files=1)
    assert manifest.notes == ()
    check(pq.read_table(tmp_path / "out").sort_by("id"), table)


_ONE = pa.struct([("a", pa.int64())])
_TWO = pa.struct([("a", pa.int64()), ("b", pa.int64())])
_AT = [pa.struct([("at", kind)]) for kind in (pa.date32(), pa.timestamp("us"))]


@pytest.mark.parametrize("inside", [lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)])
@pytest.mark.parametrize(
    ("fitted", "given", "value"),
    [(_ONE, _TWO, {"a": 1, "b": 2}), (_AT[0], _AT[1], {"at": pd.Timestamp("2020-01-01 05:00")})],
)
@pytest.mark.parametrize("of", [gp.from_frame, lambda table: table.to_pandas(types_mapper=pd.ArrowDtype)])
def test_what_the_type_of_the_fit_cannot_hold_is_an_error(
    inside: Any, fitted: pa.DataType, given: pa.DataType, value: Any, of: Any
) -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], keep=["k"]))
    pipeline.fit(gp.from_frame(pa.table({"x": [1.0], "k": pa.array([None], inside(fitted))})))
    for kind in (fitted, given):
        nested = inside(kind)
        values = [value] if nested is kind else [[value]] if pa.types.is_list(nested) else [[("key", value)]]
        if kind is fitted:
            pipeline.transform(of(pa.table({"x": [1.0], "k": pa.array([None], nested)})))
            continue
        with pytest.raises(SchemaMismatch) as caught:
            pipeline.transform(of(pa.table({"x": [1.0], "k": pa.array(values, nested)})))
        assert caught.value.where == "column 'k'"
        assert all(item.name in str(caught.value.got) for item in given.fields)


def test_fields_in_another_order_and_fields_that_are_missing_are_those_of_the_fit() -> None:
    pipeline = gp.Pipeline([], gp.Features(["x"], keep=["k"]))
    pipeline.fit(gp.from_frame(pa.table({"x": [1.0], "k": pa.array([{"a": 1, "b": 2}], _TWO)})))
    for kind, values in (
        (pa.struct([("b", pa.int64()), ("a", pa.int64())]), {"a": 1, "b": 2}),
        (_ONE, {"a": 1, "b": None}),
    ):
        made = pipeline.transform(gp.from_frame(pa.table({"x": [1.0], "k": pa.array([values], kind)})))
        assert made.to_pandas()["k"].tolist() == [values]


def _nul_in_a_file(reader: Any, write: Any) -> Any:
    def read(folder: Path) -> Any:
        write(folder / "nul")
        return reader(folder / "nul")

    return read


NUL = "a\0b"
_NAMED = pa.table({NUL: [2.0, 1.5], "k": ["x", "y"]})
_PLAIN = gp.from_frame(pa.table({"a": [2.0, 1.5], "k": ["x", "y"]}))


@pytest.mark.parametrize(
    "make",
    [
        lambda _: gp.from_frame(_NAMED),
        lambda _: gp.from_frame(_NAMED.to_pandas()),
        lambda _: gp.from_frame(pl.DataFrame({NUL: [1]})),
        lambda _: gp.from_frame(pa.table({"s": [{NUL: 1}]})),
        lambda _: gp.from_frame(pl.DataFrame({"s": [[{"in": {NUL: 1}}]]})),
        lambda _: T.Join(pl.DataFrame({"k": ["x"], NUL: [1]}), on="k"),
        lambda _: gp.Pipeline([], gp.Features(["k"])).fit(_NAMED.to_pandas()),
        lambda _: gp.Pipeline([T.Lag(NUL, 1, order_by="k")]).fit(_NAMED.to_pandas()),
        _nul_in_a_file(gp.read_parquet, lambda path: pq.write_table(_NAMED, path)),
        _nul_in_a_file(gp.read_csv, lambda path: path.write_text(f"{NUL},k\n1.5,x\n")),
        _nul_in_a_file(gp.read_json, lambda path: path.write_text(json.dumps({NUL: 1.5, "k": "x"}))),
        lambda _: _PLAIN.group_by("k").agg(**{NUL: ("a", "sum")}),
        lambda _: _PLAIN.join(_PLAIN, on="k", suffix="\0"),
        lambda _: gp.Pipeline([T.Rename({"a": NUL})]).fit(_PLAIN),
        lambda _: gp.Pipeline([T.Derive(**{NUL: "a + 1"})]).fit(_PLAIN),
        lambda _: gp.Pipeline([T.Map(lambda frame: frame.assign(**{NUL: 1}))]).fit(_PLAIN.compute()),
    ],
)
def test_a_name_with_a_nul_is_an_error_when_the_table_is_made(make: Any, tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        make(tmp_path)
    assert "NUL" in caught.value.problem and "frame.rename(columns=" in caught.value.remedy


@pytest.mark.parametrize("take", [gp.from_frame, lambda table: T.Join(table, on="k")], ids=["from_frame", "Join"])
def test_types_nested_deeper_than_arrow_hands_on_are_refused(take: Callable[[pa.Table], Any]) -> None:
    kind = reduce(lambda inner, _: pa.struct([("a", inner)]), range(400), pa.int64())
    with pytest.raises(SchemaMismatch, match=r"Arrow data cannot be opened \(Recursion level"):
        take(pa.table({"k": [1, 2], "deep": pa.nulls(2, kind)}))
