"""What errors and notes on CSV and JSON lines tell people to do is what helps."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile, SchemaMismatch
from tests.io.tables import values


@pytest.mark.parametrize(("name", "text"), [("a.csv", b"x\n1\n"), ("a.jsonl", b'{"x": 1}\n')])
def test_a_packed_file_is_told_by_its_first_bytes(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text))
    read = gp.read_csv if name.endswith("csv") else gp.read_json
    with pytest.raises(BadFile) as caught:
        read(path, backend="cpu")
    assert caught.value.remedy == f"rename it to {name}.gz"
    assert read(path.rename(tmp_path / f"{name}.gz"), backend="cpu").compute()["x"].tolist() == [1]


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"a;b\n1,5;x\n2,5;y\n", "sep=';', decimal=',' if numbers have it"),
        (b"a\tb\n1,5\tx\n", "sep='\\t', decimal=',' if numbers have it"),
        (b"# of today\na,b\n1,2\n", "comment='#', or skip_rows=1"),
        (b"a,b\n1,2,3\n", "quotes around values that hold the separator, or sep="),
        ("a,b\n1,x\n".encode("utf-16"), "encoding='utf-16'"),
        (b"PK\x03\x04\x14\x00\xff\n", "gp.from_frame(pandas.read_excel('{}')), by the file's first bytes"),
        (b"PAR1\x15\x04\xff\n", "gp.read_parquet('{}'), by the file's first bytes"),
    ],
)
def test_what_a_text_file_may_be_instead(tmp_path: Path, content: bytes, remedy: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(BadFile) as caught:
        gp.read_csv(path, backend="cpu")
    assert caught.value.remedy == remedy.format(path)


def test_an_array_of_objects_is_offered_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"x": 1}, {"x": 2}]')
    with pytest.raises(BadFile) as caught:
        gp.read_json(tmp_path / "a.json", backend="cpu")
    call = (caught.value.remedy or "").removesuffix(", for an array of objects")
    assert eval(call, {"gp": gp, "pandas": pd}).compute()["x"].tolist() == [1, 2]


def test_numbers_with_commas_are_offered_thousands(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a\n"1,234.50"\n')
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(tmp_path / "a.csv", dtypes={"a": "float64"}, backend="cpu").compute()
    assert caught.value.remedy == "thousands=',', or dtypes={'a': 'string'}"


@pytest.mark.parametrize(
    ("second", "dtypes", "offered"), [('"x"', None, "on_mismatch='cast' where"), ("2.5", "string", "columns=")]
)
def test_values_of_two_types_are_offered_no_type(tmp_path: Path, second: str, dtypes: str | None, offered: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{{"a": {second}}}\n')
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_json(tmp_path / "a.jsonl", dtypes=None if dtypes is None else {"a": dtypes}, backend="cpu")
    assert (caught.value.remedy or "").startswith(offered)


def test_a_first_file_without_values_does_not_settle_the_type(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a,b\n")
    (tmp_path / "1.csv").write_text("a,b\n1,x\n")
    found = gp.read_csv(tmp_path, backend="cpu")
    assert {item.name: item.dtype for item in found.schema} == {"a": "int64", "b": "string"}
    assert all("another file" in note.reason for note in found.conversions)


LATE: list[tuple[str, list[object], object]] = [
    ("int64", [2, 3], "x"),
    ("float64", [2.5, 3], "x"),
    ("string", ["a", "b"], None),
    ("timestamp", ["2013-01-01 05:00:00", "2013-01-02 00:00:00"], "soon"),
    ("bool", [True, False], "x"),
    ("uint64", [2**64 - 1, 2], -1),
]


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["csv", "json"])
@pytest.mark.parametrize(("dtype", "late", "wrong"), LATE)
def test_a_column_without_a_value_in_the_first_rows_is_of_the_type_of_later_ones(
    tmp_path: Path, reader: str, dtype: str, late: list[object], wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"gpupipe.io.relational.{'csv' if reader == 'csv' else 'ndjson'}.BLOCK_BYTES", 128)
    monkeypatch.setattr("gpupipe.io.relational.csv._SETTLING", 2)

    def read(*later: object) -> gp.Dataset:
        rows = [{"n": 1, "late": value, "never": None} for value in [None] * 30 + [*later] + [None]]
        if reader == "json":
            text = "".join(json.dumps(row) + "\n\n" for row in rows)
        else:
            text = pd.DataFrame(rows, dtype=object).to_csv(index=False)
        (tmp_path / f"a.{reader}").write_text(text)
        return (gp.read_csv if reader == "csv" else gp.read_json)(tmp_path / f"a.{reader}")

    found = read(*late)
    assert {item.name: item.dtype for item in found.schema} == {"n": "int64", "late": dtype, "never": "float64"}
    times = [pd.Timestamp(str(value)) if dtype == "timestamp" else value for value in late]
    assert values(found, "late") == [*[None] * 30, *times, None]
    assert [note.column for note in found.conversions] == ["never"]
    if wrong is not None:
        with pytest.raises(SchemaMismatch) as caught:
            read(*late, *[None] * 100, wrong)
        assert (caught.value.where, caught.value.got) == (
            str(tmp_path / f"a.{reader}"),
            str(wrong) if reader == "csv" else wrong,
        )
        assert "column 'late'" in caught.value.problem
        assert dtype in caught.value.expected and caught.value.remedy


def test_leading_zeros_after_integers_that_begin_late_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.io.relational.csv.BLOCK_BYTES", 64)
    monkeypatch.setattr("gpupipe.io.relational.csv._SETTLING", 2)
    (tmp_path / "a.csv").write_text("s,zip\n" + "x,\n" * 100 + "x,90210\n" * 10 + "x,01234\n")
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(tmp_path / "a.csv")
    assert "row 112, column 'zip'" in caught.value.problem
    assert caught.value.got == "01234"


def test_lists_and_objects_may_begin_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.io.relational.ndjson.BLOCK_BYTES", 64)
    rows = [{"a": None, "b": None}] * 20 + [{"a": [1], "b": None}] * 20 + [{"a": [2**64 - 1], "b": {"x": "2"}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SchemaMismatch) as caught:  # the first of them show int64
        gp.read_json(tmp_path / "a.jsonl")
    assert "row 41, column 'a'" in caught.value.problem
    found = gp.read_json(tmp_path / "a.jsonl", dtypes={"a": "list<uint64>"})
    assert [item.dtype for item in found.schema] == ["list<uint64>", "struct<x: large_string>"]
    assert values(found, "b")[-2:] == [None, {"x": "2"}]


def test_objects_of_several_forms_name_row_and_column(tmp_path: Path) -> None:
    for other in ([1], {"c": 1}):
        rows = [{"a": {"b": 1}}, {"a": {"b": other}}]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with pytest.raises(SchemaMismatch) as caught:
            gp.read_json(tmp_path / "a.jsonl")
        assert (caught.value.problem, caught.value.got) == ("row 2, column 'a' does not fit", other)


def test_one_and_zero_after_booleans_are_booleans(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("a\nTrue\n")
    (tmp_path / "1.csv").write_text("a\n0\n1\n")
    assert gp.read_csv(tmp_path, backend="cpu").compute()["a"].tolist() == [True, False, True]
    (tmp_path / "2.csv").write_text("a\n2\n")
    with pytest.raises(SchemaMismatch):
        gp.read_csv(tmp_path, backend="cpu")


def test_many_keys_of_json_keep_their_order(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(60)]
    (tmp_path / "a.jsonl").write_text("{" + ", ".join(f'"{name}": 1' for name in names) + "}\n")
    assert gp.read_json(tmp_path / "a.jsonl", backend="cpu").columns == names


@pytest.mark.parametrize("sep", [";", "\t", "|"])
def test_a_file_of_one_column_is_offered_the_separator_in_its_name(
    sep: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.csv"
    path.write_text(f"id{sep}x\n1{sep}2\n")
    assert len(gp.read_csv(path).columns) == 1
    assert f"events.csv: one column, {f'id{sep}x'!r}; sep={sep!r} would make several of it" in caplog.text
    caplog.clear()
    assert list(gp.read_csv(path, sep=sep).columns) == ["id", "x"]
    gp.read_csv(path, sep=sep, names=["id", "x"], skip_rows=1)
    assert "one column" not in caplog.text
    path.write_text(f"id,a{sep}b\n1,2\n")
    gp.read_csv(path)
    assert "sep=" not in caplog.text
