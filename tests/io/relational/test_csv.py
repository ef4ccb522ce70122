from __future__ import annotations

import bz2
import csv as python_csv
import gc
import gzip
import lzma
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe.errors import BadConfig, BadFile, ColumnNotFound, GpupipeError, SchemaMismatch
from gpupipe.io.relational import csv, text_file
from tests.io.tables import arrow, flights, plain, values
from tests.raising import raises


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.slow
def test_the_flights_come_back_from_text(tmp_path: Path) -> None:
    expected = flights().slice(0, 60_000).to_pandas()
    expected.to_csv(tmp_path / "flights.csv", index=False, na_rep="NA")
    found = gp.read_csv(tmp_path / "flights.csv", partition_bytes=2 << 20)
    assert len(found) == 60_000
    assert found.num_partitions > 1
    assert {item.name: item.dtype for item in found.schema}["time_hour"] == "timestamp"
    read = pl.DataFrame(arrow(found.compute()))
    wanted = pl.DataFrame(flights().slice(0, 60_000))
    assert read.cast(wanted.schema).equals(wanted)


def test_types_are_inferred_once_from_the_values(tmp_path: Path) -> None:
    text = (
        "n,x,ok,s,naive,zoned,day,clock,none,big\n"
        "1,1,true,a,2013-01-01 05:00:00,2013-01-01T05:00:00+02:00,2013-01-01,12:30,,9007199254740993\n"
        ",2.5,,NA,,,,,,\n"
    )
    dataset = gp.read_csv(write(tmp_path / "a.csv", text))
    assert [item.dtype for item in dataset.schema] == [
        *("int64", "float64", "bool", "string", "timestamp", "timestamp", "timestamp", "string", "float64", "int64")
    ]
    first, second = plain(dataset.compute())
    assert first["big"] == 9007199254740993
    assert first["zoned"] == pd.Timestamp("2013-01-01 03:00Z").to_pydatetime()
    assert dataset.schema["zoned"].zone == "UTC"
    assert first["clock"] == "12:30"
    assert {name for name, value in second.items() if value is None} == set(dataset.columns) - {"x"}


def test_types_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "zip,x,at,when\n01234,1,01/10/2013,2013-01-01T00:00:00Z\n")
    dataset = gp.read_csv(
        path,
        dtypes={"zip": "string", "x": "float32", "at": "timestamp", "when": "timestamp"},
        timestamp_formats=["%d/%m/%Y"],
    )
    (row,) = plain(dataset.compute())
    assert row == {
        "zip": "01234",
        "x": 1.0,
        "at": pd.Timestamp("2013-10-01").to_pydatetime(),
        "when": pd.Timestamp("2013-01-01 00:00Z").to_pydatetime(),
    }
    with raises(BadConfig, where="read_csv(dtypes=)", got="text"):
        gp.read_csv(path, dtypes={"x": "text"})
    with raises(ColumnNotFound, where="a.csv", column="zpi"):
        gp.read_csv(path, dtypes={"zpi": "string"})


def test_forms_of_text(tmp_path: Path) -> None:
    assert plain(gp.read_csv(write(tmp_path / "1.csv", "\ufeffa;b\n1;'x'\n"), sep=";").compute()) == [
        {"a": 1, "b": "'x'"}
    ]
    assert plain(gp.read_csv(write(tmp_path / "2.csv", 'a,b\n"x\ny, z",2\n')).compute()) == [{"a": "x\ny, z", "b": 2}]
    assert plain(gp.read_csv(write(tmp_path / "3.csv", "1,x\n2,\n"), names=["n", "s"]).compute()) == [
        {"n": 1, "s": "x"},
        {"n": 2, "s": None},
    ]
    markers = plain(gp.read_csv(write(tmp_path / "4.csv", 'a,b\n-1,""\n-99,NA\n,\n'), null_values=["-99"]).compute())
    assert markers == [{"a": -1, "b": None}, {"a": None, "b": "NA"}, {"a": None, "b": None}]
    assert plain(gp.read_csv(write(tmp_path / "5.csv.gz", gzip.compress(b"a\n1\n", mtime=0))).compute()) == [{"a": 1}]
    with raises(BadConfig, where="read_csv", got="::"):
        gp.read_csv(tmp_path / "1.csv", sep="::")


@pytest.mark.parametrize("thousands", [None, ","])
def test_a_text_may_be_a_missing_value_in_one_column_alone(tmp_path: Path, thousands: str | None) -> None:
    """A stray word among dates is a class of the target."""
    text = "day,kind,n\n02.01.2024,Career,-\nCareer,NA,2\n,Paid,None\n"
    data = gp.read_csv(
        write(tmp_path / "1.csv", text),
        null_values={"day": "Career", "n": ["-", "?"]},
        timestamp_formats={"day": "%d.%m.%Y"},
        thousands=thousands,
    )
    assert [item.dtype for item in data.schema] == ["timestamp", "string", "int64"]
    assert plain(data.compute()) == [
        {"day": pd.Timestamp("2024-01-02"), "kind": "Career", "n": None},
        {"day": None, "kind": None, "n": 2},
        {"day": None, "kind": "Paid", "n": None},
    ]
    assert plain(gp.read_csv(tmp_path / "1.csv", columns="n", null_values={"n": "-"}).compute())[0] == {"n": None}
    kinds = gp.read_csv(tmp_path / "1.csv", null_values={"kind": "Paid"}).compute()["kind"]
    assert kinds.fillna("").tolist() == ["Career", "", ""]
    with pytest.raises(ColumnNotFound, match="column 'dey' not found"):
        gp.read_csv(tmp_path / "1.csv", null_values={"dey": "-"})


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "a,b\r\n\r\n"])
def test_a_header_alone_is_an_empty_dataset(tmp_path: Path, text: str) -> None:
    dataset = gp.read_csv(write(tmp_path / "a.csv", text))
    assert (dataset.columns, len(dataset), dataset.num_partitions) == (["a", "b"], 0, 1)


@pytest.mark.parametrize("block", [64, 8 << 20])
def test_a_ragged_row_is_named(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", block)
    path = write(tmp_path / "a.csv", "a,b\n" + "1,2\n" * 100 + "3,4,5\n" + "1,2\n")
    with raises(BadFile, where="a.csv", got="3,4,5", match="row 102 has 3 values"):
        gp.read_csv(path)
    with raises(BadFile, where="a.csv", got="3", match="row 2 has 1 value"):
        gp.read_csv(write(path, "a,b\n3\n"))
    write(path, "a,b,c\n" + "1,2,3\n" * 100 + "4,5,6,7\n" + "8,9\n")  # as many values as the rows need
    with raises(BadFile, where="a.csv", got="4,5,6,7"):
        gp.read_csv(path, columns="a")


def test_a_value_that_fits_no_longer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    head = "n,when,b\n" + "1,2013-01-01 00:00:00,2\n" * 50
    for row, message in (
        ("x,,2", r"row 52, column 'n': invalid value, got 'x'.\nExpected int64.*\nTry: dtypes=\{'n': 'string'\}"),
        ("1.5,,2", r"row 52, column 'n': invalid value, got '1.5'.\n.*\nTry: dtypes=\{'n': 'float64'\}"),
        ("1,1/2/2013,2", r"row 52, column 'when': invalid value, got '1/2/2013'.\n.*\nTry: timestamp_formats="),
        ("1,,3000000000000000000000", "row 52, column 'b'"),
    ):
        with pytest.raises(SchemaMismatch, match=message):
            gp.read_csv(write(tmp_path / "a.csv", head + row + "\n"))
    # A column that is not asked for is not looked at, and columns are counted as the file has them.
    path = write(tmp_path / "a.csv", head + "x,,z\n")
    assert len(gp.read_csv(path, columns=["when"])) == 51
    with raises(SchemaMismatch, where="a.csv", got="z", match="row 52, column 'b'"):
        gp.read_csv(path, columns=["b"])


def test_files_of_one_table(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.csv", "a,b\n1,x\n"), write(tmp_path / "2.csv", "b,a\ny,2\n")
    dataset = gp.read_csv(tmp_path)
    assert plain(dataset.compute()) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert [span.file for part in dataset.partitions for span in part.spans] == [0, 1]
    assert str(two) in gp.read_csv([one, two], partition_bytes=1).partitions[1].description
    write(two, "b,a,c\ny,2,3\n")
    assert gp.read_csv(tmp_path).columns == ["a", "b"]
    assert plain(gp.read_csv(tmp_path, columns=["a"]).compute()) == [{"a": 1}, {"a": 2}]
    write(two, "b\ny\n")
    with raises(SchemaMismatch, where="2.csv", got=["b"]):
        gp.read_csv(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        ("a,b\nJosé,2\n".encode("latin1"), "cannot be read as CSV .*utf-8.*\nExpected text in UTF-8"),
        (b"a,a\n1,2\n", r"columns share a name, got \['a'\]"),
        (gzip.compress(b"a\n1\n", mtime=0), "it is packed"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(GpupipeError, match=message):
        gp.read_csv(write(tmp_path / "a.csv", content))


@pytest.mark.parametrize(
    ("content", "options", "remedy"),
    [
        ("1,5,5\n2,3,4\n", {}, "names=[...], since the first row seems to hold values and no names"),
        ("0.5,x,0.5\n1.5,y,2.5\n", {}, "names=[...], since the first row seems to hold values and no names"),
        ("p,x,x\ne,y,s\np,x,s\n", {}, "names=[...], since the first row seems to hold values and no names"),
        ("a,b,b\n1,2,3\n", {}, "names=[...] with skip_rows=1, or another header row"),
        ("a note\na,b,b\n1,2,3\n", {"skip_rows": 1}, "names=[...] with skip_rows=2, or another header row"),
        ("land,1990,1991,1991\nx,1,2,3\n", {}, "names=[...] with skip_rows=1, or another header row"),
        ("a,,\n1,,\n", {}, "names=[...] with skip_rows=1, or another header row"),
    ],
)
def test_a_first_row_of_values_is_not_skipped(
    tmp_path: Path, content: str, options: dict[str, Any], remedy: str
) -> None:
    file = write(tmp_path / "a.csv", content)
    with raises(SchemaMismatch, where="a.csv", remedy=remedy):
        gp.read_csv(file, **options)


def test_text_that_turns_unreadable_later(tmp_path: Path) -> None:
    content = b"a\n" + b"x\n" * 100_000 + b"Jos\xe9\n"
    with pytest.raises(BadFile, match=r"cannot be read as CSV .*utf-8"):
        gp.read_csv(write(tmp_path / "a.csv", content))
    cut = gzip.compress(b"a\n" + bytes(str(list(range(50_000))), "ascii") + b"\n")[:-20]
    with pytest.raises(BadFile, match="cannot be unpacked"):
        gp.read_csv(write(tmp_path / "a.csv.gz", cut), sep=";")


def test_long_texts(tmp_path: Path) -> None:
    long = "x" * 300_000
    assert plain(gp.read_csv(write(tmp_path / "a.csv", f"a,b\n{long},1\n")).compute()) == [{"a": long, "b": 1}]


@pytest.mark.slow
def test_temporary_files_go_with_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    dataset = gp.read_csv(write(tmp_path / "a.csv", "a\n1\n2\n"))
    part = dataset.filter("a > 1")
    del dataset
    gc.collect()
    assert values(part, "a") == [2]
    del part
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []
    with pytest.raises(BadFile):
        gp.read_csv(write(tmp_path / "a.csv", "a\n1\n2,3\n"))
    gc.collect()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_types_come_from_the_first_file_with_a_value(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("n,s,t\n")
    (tmp_path / "2.csv").write_text("n,s,t\n1,,\n")
    (tmp_path / "3.csv").write_text("n,s,t\n2,x,2013-01-01\n")
    dataset = gp.read_csv(tmp_path)
    assert {item.name: item.dtype for item in dataset.schema} == {"n": "int64", "s": "string", "t": "timestamp"}
    assert values(dataset, "n") == [1, 2]
    assert values(dataset, "s") == [None, "x"]
    assert values(dataset.filter("t >= '2013-01-01'"), "n") == [2]
    assert not dataset.schema["n"].nullable
    (tmp_path / "4.csv").write_text("n,s,t\nx,,\n")
    with raises(SchemaMismatch, where="4.csv", got="x", match="row 2, column 'n'"):
        gp.read_csv(tmp_path)


several = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
_texts = st.text(st.sampled_from("ab0 ,;\"\n\ré#'"), max_size=6)


@pytest.mark.slow
@several
@given(rows=st.lists(st.tuples(_texts, _texts), min_size=1, max_size=8), quoting=st.sampled_from([0, 1]))
def test_any_text_comes_back(tmp_path: Path, rows: list[tuple[str, str]], quoting: int) -> None:
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as file:
        python_csv.writer(file, quoting=quoting).writerows([("p", "q"), *rows])
    found = plain(gp.read_csv(tmp_path / "a.csv", dtypes={"p": "string", "q": "string"}, null_values=()).compute())
    assert [(row["p"], row["q"]) for row in found] == [(p or None, q or None) for p, q in rows]


@pytest.mark.slow
@several
@given(text=st.text(st.sampled_from('ab0,"\n\r'), max_size=16))
def test_any_file_is_what_pandas_reads_or_an_error(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.csv", f"p,q\n{text}")
    try:
        found = plain(gp.read_csv(path, dtypes={"p": "string", "q": "string"}).compute())
    except BadFile:
        return
    wanted = pd.read_csv(path, dtype=str, index_col=False)
    assert [[*row.values()] for row in found] == wanted.astype(object).where(wanted.notna(), None).to_numpy().tolist()


def survey_by_characters(text: str, num_columns: int) -> csv.Survey:
    """What the survey says, one character after the other; of the rows up to the first that is irregular."""
    num_rows = num_delimiters = 0
    is_inside, is_regular, has_signs = False, True, False
    text += "" if text.endswith(("\n", "\r")) else "\n"
    for place, character in enumerate(text):
        before, following = text[place - 1] if place else "\n", text[place + 1 : place + 2]
        is_start = before == '"' or (before in "\n," and not is_inside)
        has_signs |= is_start and (character == "+" or (character == "0" and following in [*"0123456789"]))
        if character == '"':
            is_regular &= is_inside or before in [*'\n,"']
            is_inside = not is_inside
        elif not is_inside:
            is_regular &= character != "\r" or following == "\n"
            is_regular &= not (character in "\n\r" and before == "\n")
            num_delimiters += character == ","
            if character == "\n":
                is_regular &= num_delimiters == num_columns - 1
                num_rows, num_delimiters = num_rows + 1, 0
    return csv.Survey(num_rows, is_regular and not is_inside, has_signs)


_VALUES = st.sampled_from(
    ["", "a", "0", "00", "+1", "-1", '"x"', '"y\nz"', '"p, q"', '"a ""b"""', '"\r\n\n,+0"', " ", "1" * 70]
)
_ROWS = st.lists(st.tuples(_VALUES, _VALUES), min_size=1, max_size=30)
_ODD = st.text(st.sampled_from('a0+,"\n\r'), max_size=8)


@several
@given(
    rows=_ROWS,
    num_columns=st.sampled_from([1, 2]),
    odd=st.none() | _ODD,
    end=st.sampled_from(["\n", "\r\n"]),
    part=st.sampled_from([1, 70, 4 << 20]),
)
def test_the_survey_is_that_of_each_character(
    tmp_path: Path, rows: list[tuple[str, str]], num_columns: int, odd: str | None, end: str, part: int
) -> None:
    lines = [",".join(row[:num_columns]) for row in rows]
    text = end.join(lines if odd is None else [*lines[1:], odd, lines[0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_file, "_PART_BYTES", part)
        found = csv.survey_rows(write(tmp_path / "a.csv", text or "x"), ",", num_columns)
    wanted = survey_by_characters(text or "x", num_columns)
    assert found.is_regular == wanted.is_regular
    assert found == wanted or not wanted.is_regular


@pytest.mark.parametrize(
    "text",
    [
        'p,q\n5" pipe,1\n6" pipe,2\n7,3\n',
        'p,q\nx"y""z,1\n"a""b",2\n',
        'p,q\n"xy"z,1\nw,2\n',
        "p,q\rx,1\ry,2\r",
        "p,q\r\nx,1\r\n\r\n\r\ny,2",
        "\n\np,q\n\nx,1\n\n\ny,2\n\n",
        '\ufeff"p",q\nx,1\n',
        "p,q\nx , 1\ny, 2 \n",
        'p,q\n"NA",1\n"",\nNA,\nx,\n',
        "p,q\n,\n,\nx,3\n",
    ],
)
def test_odd_forms_of_text_are_read_as_pandas_does(tmp_path: Path, text: str) -> None:
    found = gp.read_csv(write(tmp_path / "a.csv", text))
    wanted = pd.read_csv(tmp_path / "a.csv")
    rows = wanted.astype(object).where(wanted.notna(), None).to_dict("records")
    assert plain(found.compute()) == rows
    assert (found.schema["p"].dtype, found.schema["q"].dtype) == ("string", "int64")


def test_options_of_other_countries(tmp_path: Path) -> None:
    text = "# Bericht\nPreis;Menge;Ort\n1.234,5;1.000;Köln\n# Schluss\n-0,25;;1,5 km\n"
    path = write(tmp_path / "a.csv", text.encode("cp1252"))
    form: dict[str, Any] = {"sep": ";", "decimal": ",", "thousands": ".", "comment": "#", "encoding": "cp1252"}
    dataset = gp.read_csv(path, **form)
    assert {item.name: item.dtype for item in dataset.schema} == {"Preis": "float64", "Menge": "int64", "Ort": "string"}
    found = dataset.compute()
    wanted = pd.read_csv(
        path, sep=";", **{name: form[name] for name in ("decimal", "thousands", "comment", "encoding")}
    )
    assert plain(found) == wanted.astype(object).where(wanted.notna(), None).to_dict("records")
    # A point is no decimal point there, and without separators of thousands no number at all.
    assert gp.read_csv(write(path, "a\n1.5\n2,5\n"), sep=";", decimal=",").schema["a"].dtype == "string"
    sixteen = write(tmp_path / "b.csv", "a,b\n1,é\n".encode("utf-16"))
    assert plain(gp.read_csv(sixteen, encoding="utf-16").compute()) == [{"a": 1, "b": "é"}]
    for wrong in ({"encoding": "utf-9"}, {"decimal": ",", "thousands": ","}, {"comment": ""}, {"skip_rows": -1}):
        with pytest.raises(BadConfig):
            gp.read_csv(path, **wrong)
    with pytest.raises(BadFile) as caught:
        gp.read_csv(write(tmp_path / "c.csv", b"a\n1"), encoding="utf-16")
    assert "encoding=" in caught.value.remedy


def test_skipped_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'made by "us\n\na,a\n1,2\n')
    assert plain(gp.read_csv(path, skip_rows=3, names=["a", "b"]).compute()) == [{"a": 1, "b": 2}]
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(path, skip_rows=2)
    assert "skip_rows=3" in caught.value.remedy


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd"])
def test_packed_files(tmp_path: Path, codec: str) -> None:
    suffix = {"gzip": "gz", "bz2": "bz2", "zstd": "zst"}[codec]
    with pa.output_stream(tmp_path / f"a.csv.{suffix}", compression=codec) as file:
        file.write(b'a,b\n1,"x\ny"\n')
    assert plain(gp.read_csv(tmp_path / f"a.csv.{suffix}").compute()) == [{"a": 1, "b": "x\ny"}]


def pack(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def test_an_archive_of_one_file_is_read_and_no_other(tmp_path: Path) -> None:
    text = "a\n1\n2\n"
    path = pack(tmp_path / "a.csv.zip", **{"days/": "", "days/a.csv": text, "__MACOSX/._a.csv": "\0"})
    assert values(gp.read_csv(path), "a") == [1, 2]
    for members in ({"a.csv": text, "b.csv": text}, {}):
        with pytest.raises(BadFile, match="the archive holds") as caught:
            gp.read_csv(pack(tmp_path / "a.zip", **members))
        assert caught.value.got == list(members)
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "w") as archive:
        archive.writestr("a.csv", "a\nJosé\n".encode("latin1"))
    with pytest.raises(BadFile, match="cannot be read as CSV") as caught:
        gp.read_csv(path)
    assert (caught.value.remedy or "").startswith("encoding=")
    assert values(gp.read_csv(path, encoding="latin1"), "a") == ["José"]
    with pytest.raises(BadFile, match="the archive holds 2 files"):
        gp.read_json(pack(tmp_path / "a.jsonl.zip", **{"a.jsonl": '{"x": 1}', "b.jsonl": '{"x": 1}'}))
    whole = pack(tmp_path / "a.zip", a=text).read_bytes()
    encrypted = bytearray(whole)
    encrypted[6] |= 1
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    for damaged, problem in (
        (whole[:-9], "cannot be unpacked"),
        (whole.replace(b"1\n2", b"1\n3"), "cannot be unpacked"),
        (bytes(encrypted), "encrypted"),
    ):
        (tmp_path / "a.zip").write_bytes(damaged)
        with pytest.raises(BadFile, match=problem):
            gp.read_csv(tmp_path / "a.zip")


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_what_cannot_be_unpacked_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.csv.{suffix}"
    path.write_bytes({"gz": gzip.compress(b"a\n1\n")[:-3]}.get(suffix, b"\xfd7zXZ" * 9))
    with pytest.raises(BadFile, match="cannot be unpacked"):
        gp.read_csv(path)


def test_a_folder_has_its_packed_files(tmp_path: Path) -> None:
    packers = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    for number, (suffix, packer) in enumerate(packers.items()):
        (tmp_path / f"{number}.csv{suffix}").write_bytes(packer(f"a\n{number}\n".encode()))
    pack(tmp_path / "4.csv.zip", **{"4.csv": "a\n4\n"})
    assert values(gp.read_csv(tmp_path), "a") == [0, 1, 2, 3, 4]


def test_leading_zeros_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert values(gp.read_csv(write(tmp_path / "a.csv", "zip\n90210\n01234\n")), "zip") == ["90210", "01234"]
    assert "column 'zip' has integers with leading zeros" in caplog.text
    assert values(gp.read_csv(tmp_path / "a.csv", dtypes={"zip": "int32"}), "zip") == [90210, 1234]
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    for late, end in (("01234", "\n"), ('"01234"', "\n"), ("+1234", "\n"), ("01234", "\r")):
        lines = ["zip,n", *["90210,0"] * 100, f"{late},0", ""]
        with pytest.raises(SchemaMismatch) as caught:
            gp.read_csv(write(tmp_path / "a.csv", end.join(lines)))
        assert "row 102, column 'zip'" in caught.value.problem
        assert caught.value.got == late.strip('"')
        assert "string" in caught.value.remedy
    clocks = write(tmp_path / "a.csv", "n,clock\n" + "7,05:30\n" * 100)
    assert values(gp.read_csv(clocks), "n") == [7] * 100


def test_numbers_are_exact(tmp_path: Path) -> None:
    numbers = ["0.1", "2.2250738585072014e-308", "1.7976931348623157e308", "123456789.123456789", "5e-324", "-0.0"]
    found = gp.read_csv(write(tmp_path / "a.csv", "x\n" + "\n".join(numbers) + "\n"))
    assert [repr(value) for value in values(found, "x")] == [repr(float(text)) for text in numbers]
    ids = [2**63 - 1, -(2**63), 2**53 + 1]
    found = gp.read_csv(write(tmp_path / "a.csv", "n\n" + "\n".join(map(str, ids)) + "\n"))
    assert values(found, "n") == ids


def test_a_marker_of_missing_values_that_comes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv, "_COPIED", 64)
    path = write(tmp_path / "a.csv", "n,s,t\n" + "1,x,2013-01-01\n" * 50 + "N/A,null,NA\nNaN,None,\n")
    found = gp.read_csv(path)
    for name in ("n", "s", "t"):
        assert values(found, name)[50:] == [None, None]
    assert found.schema["n"].dtype == "int64"


def test_booleans(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "p,q\ntrue,1\nFALSE,0\nTrue,\n")
    found = gp.read_csv(path, dtypes={"q": "bool"})
    assert (values(found, "p"), values(found, "q")) == ([True, False, True], [True, False, None])
    with raises(SchemaMismatch, where="a.csv", got="2", match="row 3, column 'q'"):
        gp.read_csv(write(path, "p,q\ntrue,1\nFALSE,2\n"), dtypes={"q": "bool"})


@pytest.mark.slow
@pytest.mark.parametrize("name", ['height "in"', '"a"', 'a""b', '"', 'a\n"b"'])
def test_a_name_in_the_header_has_quotation_marks(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({name: [1, 2], "b": ["x", 'y "z"']})
    frame.to_csv(tmp_path / "a.csv", index=False)
    pd.testing.assert_frame_equal(gp.read_csv(tmp_path / "a.csv").compute(), frame)
    assert gp.read_csv(tmp_path / "a.csv", columns=["b"], dtypes={"b": "string"}).compute()["b"].tolist() == [
        "x",
        'y "z"',
    ]
    (tmp_path / "b.csv").write_text('5" wide,b\n1,x\n')
    assert gp.read_csv(tmp_path / "b.csv").compute().columns.tolist() == ['5" wide', "b"]
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(tmp_path / "a.csv", dtypes={"b": "int64"}).compute()
    assert "row" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("formats", [["%d/%m/%Y %z"], ["%d/%m/%Y", "%d/%m/%Y %z"]])
def test_a_format_with_an_offset_that_fits_no_value_is_named(tmp_path: Path, formats: list[str]) -> None:
    (tmp_path / "a.csv").write_text("at\n01/02/2020 +0200\n")
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(tmp_path / "a.csv", timestamp_formats=formats, dtypes={"at": "timestamp"}).compute()
    assert caught.value.got == "01/02/2020 +0200"
    (tmp_path / "b.csv").write_text("at\n01/02/2020 00:00 +0200\n")
    made = gp.read_csv(tmp_path / "b.csv", timestamp_formats=["%d/%m/%Y %H:%M %z"], dtypes={"at": "timestamp"})
    assert made.compute()["at"][0] == pd.Timestamp("2020-01-31 22:00", tz="UTC")


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c", "d"]])
def test_a_wrong_number_of_names_is_said(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "a.csv").write_text("1,2,3\n4,5,6\n")
    with pytest.raises(BadFile) as caught:
        gp.read_csv(tmp_path / "a.csv", names=names)
    assert "names=" in str(caught.value.expected)
    assert "names= with 3" in str(caught.value.remedy)
    (tmp_path / "b.csv").write_text("1,2\n4,5,6\n")
    with pytest.raises(BadFile) as caught:
        gp.read_csv(tmp_path / "b.csv", names=["a", "b"])
    assert "sep=" in str(caught.value.remedy)


@pytest.mark.slow
@pytest.mark.parametrize("decimal", [",", "."])
@pytest.mark.parametrize(
    "value",
    [".5", "-.5", "1.2.3", "12.34", "5.", "1.234,5", "1,5.6", "1.234.567", "-1.234", ",5", "1,5", " 1.234", "+.5"],
)
def test_separators_of_thousands_are_those_of_pandas(tmp_path: Path, decimal: str, value: str) -> None:
    thousands = "," if decimal == "." else "."
    value = value if decimal == "," else value.translate(str.maketrans(",.", ".,"))
    (tmp_path / "a.csv").write_text(f"x;y\n{value};1\n")
    form: dict[str, Any] = {"decimal": decimal, "thousands": thousands}
    expected = pd.read_csv(tmp_path / "a.csv", sep=";", **form)["x"].tolist()
    assert gp.read_csv(tmp_path / "a.csv", sep=";", **form).compute()["x"].tolist() == expected
    (tmp_path / "b.csv").write_text(f"x;y\n1{decimal}5;1\n{value};1\n")
    if isinstance(expected[0], str):
        with pytest.raises(SchemaMismatch) as caught:
            gp.read_csv(tmp_path / "b.csv", sep=";", dtypes={"x": "float64"}, **form)
        assert caught.value.got == value


@pytest.mark.parametrize("day", ["11.02.2024", "01.02.2024"])
def test_dates_in_a_format_that_is_asked_for_are_no_numbers_with_thousands(tmp_path: Path, day: str) -> None:
    (tmp_path / "a.csv").write_text(f"price;day;rows\n1.234,5;{day};1.000\n2,5;13.02.2024;12\n")
    form: dict[str, Any] = {"sep": ";", "decimal": ",", "thousands": "."}
    frame = gp.read_csv(tmp_path / "a.csv", timestamp_formats=["%d.%m.%Y"], **form).compute()
    assert frame["day"].tolist() == [pd.to_datetime(day, dayfirst=True), pd.Timestamp("2024-02-13")]
    assert frame["price"].tolist() == [1234.5, 2.5]
    assert frame["rows"].tolist() == [1000, 12]


@pytest.mark.parametrize(
    ("first", "own", "offered"),
    [
        ("2024-04-16T22:55:00", None, "['%d.%m.%Y %H:%M']"),
        ("2024-04-16T22:55:00Z", None, "{'at': ['%Y-%m-%dT%H:%M:%SZ', '%d.%m.%Y %H:%M']}"),
        ("2024/04/16", {"at": "%Y/%m/%d"}, "{'at': ['%Y/%m/%d', '%d.%m.%Y %H:%M']}"),
        ("2024/04/16", ["%Y/%m/%d"], "['%Y/%m/%d', '%d.%m.%Y %H:%M']"),
    ],
)
def test_a_file_with_times_in_another_form_is_offered_the_formats_of_both(
    tmp_path: Path, first: str, own: Any, offered: str
) -> None:
    write(tmp_path / "a.csv", f"at,x\n{first},1\n")
    write(tmp_path / "b.csv", "at,x\n18.04.2024 22:55,2\n")
    options = {} if own is None else {"timestamp_formats": own}
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(tmp_path, **options).compute()
    assert (caught.value.remedy or "").startswith(f"timestamp_formats={offered}")
    times = gp.read_csv(tmp_path, timestamp_formats=eval(offered)).compute()["at"]
    assert times.dt.date.astype(str).tolist() == ["2024-04-16", "2024-04-18"]
