from __future__ import annotations

import gc
import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound, SchemaMismatch
from gpupipe.io.relational import ndjson as json_lines
from gpupipe.io.relational import text_file
from tests.io.tables import arrow, flights, plain, values
from tests.raising import raises

several = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, *rows: Any) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_the_flights_come_back_from_text(tmp_path: Path, packed: str) -> None:
    table = flights().slice(0, 40_000)
    text = pl.DataFrame(table).write_ndjson().encode()
    codec = {"": None, ".gz": "gzip", ".zst": "zstd"}[packed]
    with pa.output_stream(tmp_path / f"flights.jsonl{packed}", compression=codec) as file:
        file.write(text)
    dataset = gp.read_json(tmp_path, partition_bytes=1 << 20)
    assert len(dataset) == 40_000
    assert dataset.num_partitions > 1
    assert dataset.schema["time_hour"].dtype == "timestamp"
    expected = pl.DataFrame(table)
    assert pl.DataFrame(arrow(dataset.compute())).cast(expected.schema).equals(expected)


_values = st.fixed_dictionaries(
    {
        "n": st.integers(-(2**63), 2**63 - 1),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "s": st.text(st.characters(exclude_categories=["Cs", "Cc"])).map(lambda text: f"s{text}"),
        "ok": st.booleans(),
    }
)


@pytest.mark.slow
@several
@given(rows=st.lists(_values, min_size=1, max_size=30), holes=st.randoms(), block=st.sampled_from([40, 8 << 20]))
def test_any_rows_come_back(tmp_path: Path, rows: list[dict[str, Any]], holes: Any, block: int) -> None:
    first, *rest = rows
    dtypes = {"n": "int64", "x": "float64", "s": "string", "ok": "bool"}
    kept = [first, *({name: value for name, value in row.items() if holes.random() < 0.8} for row in rest)]
    path = write(tmp_path / "any.jsonl", *kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "BLOCK_BYTES", block)
        found = plain(gp.read_json(path, dtypes=dtypes).select(list(dtypes)).compute())
    assert found == [{name: row.get(name) for name in dtypes} for row in kept]


def test_types_are_inferred_as_polars_does(tmp_path: Path) -> None:
    rows = [
        {"n": 1, "x": 1, "ok": True, "s": "a", "at": "2013-01-01T05:00:00+02:00", "day": "2013-01-01", "none": None},
        {"n": 2**53 + 1, "x": 2.5, "at": "2013-01-01 05:00:00.5Z"},
        {},
    ]
    path = write(tmp_path / "a.jsonl", *rows)
    # Without its type, times with fractions would be text.
    dataset = gp.read_json(path, dtypes={"at": "timestamp"})
    assert {item.name: item.dtype for item in dataset.schema} == {
        "at": "timestamp",
        "n": "int64",
        "x": "float64",
        "ok": "bool",
        "s": "string",
        "day": "timestamp",
        "none": "float64",
    }
    first, second, third = plain(dataset.compute())
    assert first["at"] == datetime.fromisoformat("2013-01-01T03:00Z")
    assert second["at"] == datetime.fromisoformat("2013-01-01T05:00:00.500000Z")
    assert (second["n"], second["x"], second["ok"]) == (2**53 + 1, 2.5, None)
    assert set(third.values()) == {None}
    other = pl.read_ndjson(path)
    for name in ("n", "x", "ok", "s"):
        assert other[name].to_list() == values(dataset, name)


def test_types_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"n": 1, "x": 1}, {"n": 300, "x": 2})
    dataset = gp.read_json(path, dtypes={"n": "uint16", "x": "float32", "later": "string"})
    assert {item.name: item.dtype for item in dataset.schema} == {"n": "uint16", "x": "float32", "later": "string"}
    assert values(dataset, "later") == [None, None]
    with raises(BadConfig, where="read_json(dtypes=)", got="text"):
        gp.read_json(path, dtypes={"x": "text"})
    with raises(SchemaMismatch, where="a.jsonl", got=300, match="row 2, column 'n'"):
        gp.read_json(path, dtypes={"n": "int8"})
    assert gp.read_json(path, columns="x").columns == ["x"]
    with raises(ColumnNotFound, where="a.jsonl", column="X"):
        gp.read_json(path, columns=["X"])


def test_values_inside_values_are_carried(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"n": 1, "tags": [["a"]], "place": {"lat": 1.5, "names": ["x", None]}, "steps": [{"at": 1}]},
        {"n": 2, "tags": [], "place": {"lat": None}},
        {"n": None, "place": None, "steps": [{"at": None}, None, {"at": 2**60}]},
    ]
    dataset = gp.read_json(write(tmp_path / "a.jsonl", *rows))
    assert dataset.columns == ["n", "tags", "place", "steps"]
    assert "struct<lat: double" in dataset.schema["place"].dtype
    assert values(dataset, "tags") == [[["a"]], [], None]
    assert values(dataset, "place") == [rows[0]["place"], {"lat": None, "names": None}, None]
    assert values(dataset, "steps")[2] == rows[2]["steps"]
    dataset.write_parquet(tmp_path / "out")
    assert values(gp.read_parquet(tmp_path / "out"), "place") == values(dataset, "place")
    assert values(gp.read_json(tmp_path / "a.jsonl", columns=["place"]), "place") == values(dataset, "place")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("late", "problem"),
    [
        ({"place": {"lat": 1.5, "alt": 3}}, "column 'place.alt' is new in row 21"),
        ({"place": {"lat": "north"}}, "row 21, column 'place' does not fit"),
        ({"place": [1.5]}, "row 21, column 'place' does not fit"),
        ({"tags": [5]}, "row 21, column 'tags' does not fit"),
        ({"s": 5}, "row 21, column 's' does not fit"),
        ({"s": {"x": 1}}, "row 21, column 's' does not fit"),
        ({"at": 20}, "row 21, column 'at' does not fit"),
        ({"at": "soon"}, "row 21, column 'at' does not fit"),
        ({"n": "5"}, "row 21, column 'n' does not fit"),
        ({"n": 2.0}, "row 21, column 'n' does not fit"),
        ({"ok": 1}, "row 21, column 'ok' does not fit"),
    ],
)
@pytest.mark.parametrize("columns", [None, ["at", "place", "tags", "s", "n", "ok", "none"]])
def test_no_later_value_is_changed_or_lost(
    tmp_path: Path, late: dict[str, Any], problem: str, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 200)
    first = {"n": 1, "s": "a", "ok": True, "place": {"lat": 1.5}, "tags": ["x"], "at": "2020-01-01", "none": None}
    path = write(tmp_path / "a.jsonl", *[first] * 20, late)
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_json(path, columns=columns)
    assert problem in caught.value.problem


def test_objects_without_keys_are_left_out_and_explained(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"n": 1, "place": {}}, {"n": 2})
    dataset = gp.read_json(path)
    assert plain(dataset.compute()) == [{"n": 1}, {"n": 2}]
    for ask in (lambda: dataset.select("place"), lambda: gp.read_json(path, columns=["place"])):
        with pytest.raises(SchemaMismatch, match=r"column 'place': .*, got 'struct<>'"):
            ask()


def test_odd_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"a" : "x\\\\", "b":  null}\n{"a":"say \\"b\\": null", "b": 1}\n{"a": "\\ud83d\\ude00:", "b" :2}\n'
    )
    assert plain(gp.read_json(path).compute()) == [
        {"a": "x\\", "b": None},
        {"a": 'say "b": null', "b": 1},
        {"a": "\U0001f600:", "b": 2},
    ]
    for line, problem in (('{"a": "\\ud83d"}', "surrogate"), ('{"a": "x", "a": "y"}', "'a' is there twice")):
        with pytest.raises(BadFile) as caught:
            gp.read_json(write(path, {"a": "x"}, line))
        assert "row 2 is no JSON object" in caught.value.problem
        assert problem in caught.value.problem


def test_forms_of_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": "x"}\r\n\r\n  \n{"a": "y"}')
    assert values(gp.read_json(path), "a") == ["x", "y"]
    long = "x" * 300_000
    assert values(gp.read_json(write(path, {"a": long}, {"a": "é\n"})), "a") == [long, "é\n"]


@pytest.mark.parametrize("block", [32, 8 << 20])
def test_a_bad_line_is_named(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", block)
    good = [{"n": 1, "s": "a"}] * 20
    for line, error, message in (
        ('{"n": 1', BadFile, r"a\.jsonl: row 21 is no JSON object \(.*\), got b'\{\"n\": 1'"),
        ("[1, 2]", BadFile, r"row 21 is no JSON object \(does not begin with \{\), got b'\[1, 2\]'"),
        ("null", BadFile, r"row 21 is no JSON object"),
        ("garbage", BadFile, r"row 21 is no JSON object"),
        ({"n": 1.5}, SchemaMismatch, r"row 21, column 'n' does not fit, got 1\.5.\nExpected int64"),
        ({"n": "x"}, SchemaMismatch, r"row 21, column 'n' does not fit, got 'x'"),
        ({"n": 2**80}, SchemaMismatch, r"row 21, column 'n' does not fit, got 1208925819614629174706176"),
    ):
        with pytest.raises(error, match=message):
            gp.read_json(write(tmp_path / "a.jsonl", *good, line, *good), dtypes={"n": "int64"})


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_python_writes_of_numbers_that_are_none_is_offered_null(tmp_path: Path, word: str) -> None:
    line = json.dumps({"note": f'"{word}", ' * 40, "parts": [1.5, float(word)]})
    with pytest.raises(BadFile, match=f"row 2 is no JSON object \\({word} is no JSON value\\)") as caught:
        gp.read_json(write(tmp_path / "a.jsonl", {"parts": [1.5]}, line))
    assert f"[1.5, {word}]" in str(caught.value)
    remedy = str(caught.value.remedy)
    assert "one object per line" not in remedy and "allow_nan=False" in remedy
    call = re.search(r"frame.to_json\(.*?\)", remedy).group()
    eval(call, {"frame": pd.DataFrame({"x": [1.5, float(word)]}), "path": tmp_path / "a.jsonl"})
    assert values(gp.read_json(tmp_path / "a.jsonl"), "x") == [1.5, None]


def test_a_fault_of_a_long_line_is_quoted(tmp_path: Path) -> None:
    for line in (
        '{"note": "%s", "n": 1 "m": 2}',
        '{"note": "%s", "n": 1 "m": "é"}',
        '{"note": "%s", "n": 1e400, "m": 2}',
    ):
        with pytest.raises(BadFile) as caught:
            gp.read_json(write(tmp_path / "a.jsonl", line % ("é" * 100)))
        assert '"n": 1' in str(caught.value) and '"m": ' in str(caught.value)


def test_a_line_that_begins_the_file_with_null_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="row 1 is no JSON object"):
        gp.read_json(write(tmp_path / "a.jsonl", "null", {"n": 1}))


def test_types_that_change_within_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"n": 1}, {"n": "x"})
    with raises(SchemaMismatch, where="a.jsonl", got="x", match="row 2, column 'n'"):
        gp.read_json(path)


def test_a_key_that_is_new_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 20)
    path = write(tmp_path / "a.jsonl", {"n": 1}, {"n": 2}, {"n": 3, "new": "x"}, {"n": 4, "new": "y"})
    with raises(SchemaMismatch, where="a.jsonl", got="new", match="new in row 3"):
        gp.read_json(path)
    assert values(gp.read_json(path, columns=["n"]), "n") == [1, 2, 3, 4]
    assert values(gp.read_json(path, dtypes={"new": "string"}), "new") == [None, None, "x", "y"]
    cast = gp.read_json(path, on_mismatch="cast")
    assert cast.columns == ["n"]
    (note,) = cast.source.notes
    assert (note.column, note.reason) == ("new", f"key: the first rows of {path} do not have it")


def test_files_of_one_table(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", {"a": 1, "b": "x"})
    two = write(tmp_path / "2.ndjson", {"b": "y"}, {"a": 2})
    dataset = gp.read_json(tmp_path)
    assert plain(dataset.compute()) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 2, "b": None}]
    assert [span.file for part in dataset.partitions for span in part.spans] == [0, 1]
    write(two, {"a": "x"})
    with raises(SchemaMismatch, where="2.ndjson", got="x", match="row 1, column 'a'"):
        gp.read_json(tmp_path)
    kept = gp.read_json(tmp_path, on_mismatch="skip")
    assert (values(kept, "a"), [note.file for note in kept.rejected]) == ([1], [str(two)])


def test_a_file_without_any_value_of_a_key_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A key that was renamed is a column of missing values from then on, as one that is written in few lines."""
    for number, lines in enumerate(
        ['{"id": 1, "temp": 1.5}', '{"id": 2, "temperature": 1.5}', '{"id": 3}', '{"id": 4}\n{"id": 5, "temp": 2.5}']
    ):
        (tmp_path / f"{number}.jsonl").write_text(lines + "\n")
    frame = gp.read_json(tmp_path).compute()
    assert frame["id"].tolist() == [1, 2, 3, 4, 5] and frame["temp"].isna().tolist() == [False, True, True, True, False]
    (warning,) = [record.getMessage() for record in caplog.records if "no line has" in record.getMessage()]
    assert "1.jsonl: cast, no line has a value of 'temp', which is missing throughout; new keys are temp" in warning
    assert "2.jsonl" not in warning, "each column once"
    caplog.clear()
    gp.read_json([tmp_path / "0.jsonl", tmp_path / "3.jsonl"])
    assert "no line has" not in caplog.text


def test_types_come_from_the_first_file_with_a_value(tmp_path: Path) -> None:
    write(tmp_path / "1.jsonl", {"n": 1, "s": None, "t": None})
    write(tmp_path / "2.jsonl", {"n": 2, "s": "x"}, {"n": 3, "t": "2013-01-01"})
    dataset = gp.read_json(tmp_path)
    assert {item.name: item.dtype for item in dataset.schema} == {"n": "int64", "s": "string", "t": "timestamp"}
    assert values(dataset, "s") == [None, "x", None]
    write(tmp_path / "2.jsonl", {"n": 2, "s": ["x"]})
    assert [item.dtype for item in gp.read_json(tmp_path).schema][:2] == ["int64", "list<string>"]
    write(tmp_path / "2.jsonl", {"n": 2, "s": [["x"]]})
    assert values(gp.read_json(tmp_path), "s") == [None, [["x"]]]


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for content in (b"", b"\n \n"):
        path.write_bytes(content)
        with pytest.raises(BadFile, match="the file is empty"):
            gp.read_json(path)
    path.write_bytes('{"a": "José"}\n'.encode("latin1"))
    with pytest.raises(BadFile, match=r"row 1 is no JSON object \(.*utf-8"):
        gp.read_json(path)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"a": 1}\n' * 10_000)[:-20])
    with pytest.raises(BadFile, match="cannot be unpacked"):
        gp.read_json(packed)


@pytest.mark.slow
def test_temporary_files_go_with_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    dataset = gp.read_json(write(tmp_path / "a.jsonl", {"a": 1}, {"a": 2}))
    assert values(dataset.filter("a > 1"), "a") == [2]
    del dataset
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("inside", [lambda one: one, lambda one: [[one]], lambda one: {"deep": one}])
@pytest.mark.parametrize("count", [32, 33, 200])
def test_fields_within_a_column_are_in_the_order_of_the_file(tmp_path: Path, inside: Any, count: int) -> None:
    names = [f"f{(7 * number) % count}" for number in range(count) if count != 7]
    names = list(dict.fromkeys([*names, *(f"g{number}" for number in range(count))]))[: count + 1]
    first, later = dict.fromkeys(names[:-2], 1.5), dict.fromkeys([names[-1], names[0], names[-2]], "x")
    path = write(tmp_path / "a.jsonl", {"a": None}, {"a": inside(first)}, {"a": inside({**later, names[0]: 2.5})})
    table = arrow(gp.read_json(path).compute())
    kind = table["a"].type
    while not pa.types.is_struct(kind) or "deep" in kind.names:
        kind = kind.field("deep").type if pa.types.is_struct(kind) else kind.value_type
    assert kind.names == [*names[:-2], names[-1], names[-2]]
    assert table["a"].to_pylist()[1] == inside(first | {names[-1]: None, names[-2]: None})


def test_a_key_that_is_there_twice_in_a_wide_row_is_named(tmp_path: Path) -> None:
    row = "{" + ", ".join(f'"c{number}": 1' for number in [*range(40), 3]) + "}"
    with pytest.raises(BadFile, match=r"row 1 is no JSON object .*'c3' is there twice"):
        gp.read_json(write(tmp_path / "a.jsonl", row))


def count_by_python(lines: list[dict[str, Any]], names: list[str] | None) -> list[tuple[int, int]]:
    def leaves(value: Any) -> Iterator[tuple[str | None, Any]]:
        for name, one in value.items() if isinstance(value, dict) else ((None, one) for one in value):
            yield name, one
            if isinstance(one, dict | list):
                yield from leaves(one)

    found = [pair for line in lines for pair in leaves(line)]
    if names is None:
        keyed = sum(name is not None and value is not None for name, value in found)
        return [(keyed, sum(isinstance(value, str) for _, value in found))]
    values = [[value for name, value in found if name == each and value is not None] for each in names]
    return [(len(each), sum(isinstance(value, str) for value in each)) for each in values]


_STRINGS = st.text(st.sampled_from('a\\":,{}n '), max_size=5) | st.sampled_from(["null", "x" * 70, "\u00e9", "\\" * 65])
_LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | _STRINGS
_INNER = _LEAVES | st.lists(_LEAVES, max_size=3) | st.dictionaries(st.sampled_from(["a", "n"]), _LEAVES, max_size=2)
_OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "b" * 70, "na", 'q"', "\\"]), _INNER, max_size=5)


@several
@given(
    lines=st.lists(_OBJECTS, min_size=1, max_size=8),
    names=st.none() | st.just(["b", "a", "b" * 70, "\\"]),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (",", ":   ")]),
    part=st.sampled_from([1, 100, 4 << 20]),
)
def test_values_are_counted_as_python_does(
    tmp_path: Path, lines: list[dict[str, Any]], names: list[str] | None, separators: Any, part: int
) -> None:
    text = "\n".join(json.dumps(line, separators=separators, ensure_ascii=False) for line in lines)
    (tmp_path / "a.jsonl").write_text(text)
    quoted = None if names is None else [json.dumps(name) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_file, "_PART_BYTES", part)
        assert json_lines.count_values(tmp_path / "a.jsonl", quoted) == count_by_python(lines, names)


def test_half_a_character_makes_counts_doubtful(tmp_path: Path) -> None:
    for text, is_doubtful in ((r"\ud83d\ude00", False), (r"\ud83d", True), (r"\\ud83d", False), (r"\u00e9", False)):
        (tmp_path / "a.jsonl").write_text(f'{{"a": "{text}"}}\n')
        assert json_lines.count_values(tmp_path / "a.jsonl", None) == (None if is_doubtful else [(1, 1)])


def test_a_file_whose_numbers_are_in_quotes_is_offered_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 38.5}\n{"x": 40.5}\n')
    (tmp_path / "b.jsonl").write_text('{"x": "39.1"}\n{"x": null}\n')
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_json(tmp_path).compute()
    assert caught.value.remedy.startswith("on_mismatch='cast' where all values of this file are in quotes")
    assert gp.read_json(tmp_path, on_mismatch="cast").compute()["x"].tolist()[:3] == [38.5, 40.5, 39.1]


@pytest.mark.parametrize("text", ['"199.5"', '""'])
def test_a_text_among_numbers_is_named_where_files_are_cast(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1.5}\n' * 9)
    (tmp_path / "b.jsonl").write_text('{"x": 0.5}\n' * 9 + f'{{"x": {text}}}\n')
    for on_mismatch in ("raise", "cast"):
        with raises(SchemaMismatch, where="b.jsonl", got=text.strip('"'), match="row 10, column 'x'"):
            gp.read_json(tmp_path, on_mismatch=on_mismatch).compute()
