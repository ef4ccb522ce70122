"""Numbers and times in CSV and JSON lines: exactly as they are written, or an error that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.errors import BadFile, SchemaMismatch
from gpupipe.io import inspect
from gpupipe.io.relational import csv
from tests.io.tables import values
from tests.raising import raises

LARGE = 2**64 - 1


def csv_file(folder: Path, *texts: str) -> Path:
    path = folder / "a.csv"
    path.write_text("\n".join(["v", *texts, ""]))
    return path


def json_file(folder: Path, *texts: str) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(f'{{"v": {text}}}\n' for text in texts))
    return path


@pytest.mark.parametrize("reader", ["csv", "json"])
def test_large_ids_are_exact(tmp_path: Path, reader: str) -> None:
    write, read = (csv_file, gp.read_csv) if reader == "csv" else (json_file, gp.read_json)
    dataset = read(write(tmp_path, str(LARGE), str(LARGE - 1), "7"))
    assert dataset.schema["v"].dtype == "uint64"
    assert values(dataset, "v") == [LARGE, LARGE - 1, 7]
    assert inspect(dataset).notes == ()


def test_lists_of_large_ids_are_exact(tmp_path: Path) -> None:
    dataset = gp.read_json(json_file(tmp_path, f"[{LARGE}, 1]", "[]", "null"))
    assert dataset.schema["v"].dtype == "list<uint64>"
    assert values(dataset, "v") == [[LARGE, 1], [], None]


@pytest.mark.parametrize("large", [[str(LARGE), "-1"], [str(LARGE + 1), "1"], [f"+{LARGE}", "1"]])
def test_integers_beyond_64_bits_are_text_in_csv_and_logged(
    tmp_path: Path, large: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = gp.read_csv(csv_file(tmp_path, *large))
    assert values(dataset, "v") == large
    assert "column 'v' has integers that no type of 64 bits holds" in caplog.text
    assert [note.action for note in inspect(dataset).notes] == ["cast"]


@pytest.mark.parametrize(("large", "row"), [([LARGE, -1], 2), ([LARGE + 1, 1], 1), ([[5], [1, 2**70]], 2)])
def test_integers_beyond_64_bits_are_an_error_in_json(tmp_path: Path, large: list[Any], row: int) -> None:
    path = json_file(tmp_path, *map(json.dumps, large))
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_json(path)
    assert caught.value.where == str(path)
    assert f"row {row}, column 'v'" in caught.value.problem
    assert caught.value.got in (-1, LARGE + 1, 2**70)
    assert "float64" in caught.value.remedy
    kind = "list<float64>" if isinstance(large[0], list) else "float64"
    assert len(gp.read_json(path, dtypes={"v": kind})) == 2
    path.write_text('{"w": 2}\n' + path.read_text())
    assert values(gp.read_json(path, columns=["w"]), "w") == [2, None, None]


@pytest.mark.parametrize("text", ["18446744073709551615", "1e20", "1.5"])
def test_a_fraction_or_an_exponent_makes_a_column_of_floats(tmp_path: Path, text: str) -> None:
    for dataset in (gp.read_csv(csv_file(tmp_path, text, "2.5")), gp.read_json(json_file(tmp_path, text, "2.5"))):
        assert dataset.schema["v"].dtype == "float64"
        assert values(dataset, "v") == [float(text), 2.5]


def test_a_plus_sign(tmp_path: Path) -> None:
    assert values(gp.read_csv(csv_file(tmp_path, "+2", "3")), "v") == [2.0, 3.0]


def test_a_large_id_after_the_first_block_says_which_type_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    for value, dtype in ((str(LARGE), "uint64"), (str(LARGE + 1), "string"), ("-1" + "0" * 19, "string")):
        path = csv_file(tmp_path, *["1"] * 100, value)
        with pytest.raises(SchemaMismatch) as caught:
            gp.read_csv(path)
        assert "row 102, column 'v'" in caught.value.problem
        assert caught.value.remedy == f"dtypes={{'v': '{dtype}'}}"
        assert str(values(gp.read_csv(path, dtypes={"v": dtype}), "v")[-1]) == value


def test_hexadecimal_is_text(tmp_path: Path) -> None:
    assert values(gp.read_csv(csv_file(tmp_path, "0x10", "3")), "v") == ["0x10", "3"]
    assert values(gp.read_csv(csv_file(tmp_path, "3", "0XfF")), "v") == ["3", "0XfF"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0x10", "0X1f", " 0x2"])
@pytest.mark.parametrize("rows", range(90, 125))
def test_hexadecimal_among_integers_later_is_an_error(
    tmp_path: Path, text: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    path = csv_file(tmp_path, *["1"] * rows, text, "2")
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(path)
    assert f"row {rows + 2}, column 'v'" in caught.value.problem
    assert caught.value.got == text
    assert values(gp.read_csv(path, dtypes={"v": "string"}), "v")[-2] == text
    path.write_text("\n".join(["v,w", *["1,a"] * rows, f"1,{text}", ""]))
    assert values(gp.read_csv(path), "v") == [1] * (rows + 1)


@pytest.mark.parametrize("reader", ["csv", "json"])
def test_what_overflows_float32_is_an_error(tmp_path: Path, reader: str) -> None:
    write, read = (csv_file, gp.read_csv) if reader == "csv" else (json_file, gp.read_json)
    path = write(tmp_path, "0.1", "1e39")
    with pytest.raises(SchemaMismatch) as caught:
        read(path, dtypes={"v": "float32"})
    assert f"row {3 if reader == 'csv' else 2}, column 'v'" in caught.value.problem
    assert float(caught.value.got) == 1e39
    assert values(read(write(tmp_path, "0.1"), dtypes={"v": "float32"}), "v") == [float(np.float32(0.1))]
    assert values(gp.read_csv(csv_file(tmp_path, "inf"), dtypes={"v": "float32"}), "v") == [float("inf")]


def test_float32_beyond_the_first_row_group(tmp_path: Path) -> None:
    path = csv_file(tmp_path, *["1"] * 1000, "1e39")
    with raises(SchemaMismatch, where="a.csv", got="1e39", match="row 1002, column 'v'"):
        gp.read_csv(path, dtypes={"v": "float32"}, partition_bytes=400)
    path.write_text(path.read_text().removeprefix("v\n"))
    with raises(SchemaMismatch, where="a.csv", got="1e39", match="row 1001, column 'v'"):
        gp.read_csv(path, dtypes={"v": "float32"}, names="v", partition_bytes=400)


def test_a_number_beyond_float64(tmp_path: Path) -> None:
    assert values(gp.read_csv(csv_file(tmp_path, "1e400")), "v") == [float("inf")]
    with pytest.raises(BadFile, match="row 1 is no JSON object"):
        gp.read_json(json_file(tmp_path, "1e400"))


@pytest.mark.parametrize(
    ("texts", "times"),
    [
        (["2020-01-01 12:00:00.5", "2020-01-01 12:00:01"], ["2020-01-01 12:00:00.5", "2020-01-01 12:00:01"]),
        (["2020-01-01T12:00:00.123456"], ["2020-01-01 12:00:00.123456"]),
        (["2020-01-01T12:00:00.5+02:00", "2020-01-01T12:00:00.5Z"], ["2020-01-01 10:00:00.5", "2020-01-01 12:00:00.5"]),
    ],
)
def test_times_with_a_fraction_in_json_are_times_as_in_csv(tmp_path: Path, texts: list[str], times: list[str]) -> None:
    from_csv, from_json = (
        gp.read_csv(csv_file(tmp_path, *texts)),
        gp.read_json(json_file(tmp_path, *map(json.dumps, texts))),
    )
    for dataset in (from_csv, from_json):
        assert dataset.schema["v"].dtype == "timestamp"
        found = pd.to_datetime(dataset.to_pandas()["v"], utc=True)
        assert found.tolist() == pd.to_datetime(times, utc=True, format="ISO8601").tolist()


@pytest.mark.parametrize(
    "texts", [["2020-01-01 12:00:00.5", "soon"], ["2020-01-01 12:00:00.5", "2020-01-01T12:00:00Z"]]
)
def test_other_texts_stay_text_in_json(tmp_path: Path, texts: list[str]) -> None:
    assert values(gp.read_json(json_file(tmp_path, *map(json.dumps, texts))), "v") == texts
