"""What errors and notes on CSV and JSON lines tell people to do is what helps."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import gpupipe as gp
from gpupipe.errors import BadFile, SchemaMismatch


@pytest.mark.parametrize(("name", "text"), [("a.csv", b"x\n1\n"), ("a.jsonl", b'{"x": 1}\n')])
def test_a_packed_file_is_told_by_its_first_bytes(tmp_path: Path, name: str, text: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text))
    read = gp.read_csv if name.endswith("csv") else gp.read_json
    with pytest.raises(BadFile) as caught:
        read(path, backend="cpu")
    assert caught.value.remedy == f"rename it to {name}.gz"
    assert read(path.rename(tmp_path / f"{name}.gz"), backend="cpu").compute()["x"].tolist() == [1]


@pytest.mark.parametrize(("second", "dtypes", "offered"), [('"x"', None, "T.Cast"), ("2.5", "string", "columns=")])
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
