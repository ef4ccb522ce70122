"""What a path, a pattern or a folder stands for."""

from __future__ import annotations

import builtins
import glob
import io
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe.errors import BadFile
from gpupipe.io.stores import Manifest
from tests.io.tables import plain, values
from tests.raising import raises


def write(path: Path, *numbers: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    return path


def test_linked_files_and_folders_are_read_and_loops_are_not(tmp_path: Path) -> None:
    write(tmp_path / "far" / "deep" / "x.parquet", 1)
    write(tmp_path / "near" / "y.parquet", 2)
    (tmp_path / "near" / "deep").symlink_to(tmp_path / "far" / "deep")
    (tmp_path / "near" / "loop").symlink_to(tmp_path / "near")
    (tmp_path / "near" / "z.parquet").symlink_to(tmp_path / "far" / "deep" / "x.parquet")
    assert values(gp.read_parquet(tmp_path / "near"), "n") == [1, 2, 1]
    (tmp_path / "near" / "zz.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadFile, match=r"zz\.parquet: .*No such file"):
        gp.read_parquet(tmp_path / "near")
    assert values(gp.read_parquet(tmp_path / "near", on_bad="skip"), "n") == [1, 2, 1]


@pytest.mark.parametrize("name", ["a b", "a [b] *c?", "50%25", "x#1", "é", "k=v"])
def test_names_that_mean_something_elsewhere(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name / f"{name}.parquet", 1, 2)
    for given in (path, str(path), [path], path.parent, str(path.parent), glob.escape(str(path.parent)) + "/*.parquet"):
        assert values(gp.read_parquet(given), "n") == [1, 2]
    out = tmp_path / name / f"out {name}"
    gp.read_parquet(path).write_parquet(out)
    assert values(gp.read_parquet(out), "n") == [1, 2]


def test_a_folder_of_several_kinds_of_files(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", 1)
    write(tmp_path / "2.PARQUET", 2)
    (tmp_path / "3.csv").write_text("n\n3\n")
    (tmp_path / "4.jsonl").write_text('{"n": 4}\n')
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".5.parquet.crc").write_bytes(b"crc")
    assert values(gp.read_parquet(tmp_path), "n") == [1, 2]
    assert values(gp.read_csv(tmp_path), "n") == [3]
    assert values(gp.read_json(tmp_path), "n") == [4]
    with pytest.raises(BadFile, match=r"3\.csv: not a Parquet file"):
        gp.read_parquet(str(tmp_path / "*"))


def test_a_folder_without_data_says_what_is_there(tmp_path: Path) -> None:
    for name in ("_x.parquet", ".hidden.parquet", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "_drafts").mkdir()
    write(tmp_path / "_drafts" / "a.parquet", 1)
    with pytest.raises(BadFile, match=r"holds no \.parquet file, got \['\.hidden\.parquet', '_drafts/a\.parquet', '_x"):
        gp.read_parquet(tmp_path)
    with raises(BadFile, where="files", got=""):
        gp.read_parquet(["a.parquet", ""])


def test_a_pattern_of_folders_as_other_writers_leave_them(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"day{number}.parquet" / "part-0.parquet", number)
        (tmp_path / f"day{number}.parquet" / "_SUCCESS").touch()
    assert values(gp.read_parquet(str(tmp_path / "*.parquet")), "n") == [1, 2]
    assert values(gp.read_parquet(tmp_path), "n") == [1, 2]
    (tmp_path / "empty.parquet").mkdir()
    with raises(BadFile, where="empty.parquet", got=[]):
        gp.read_parquet(str(tmp_path / "*.parquet"))


def test_a_pattern_of_our_folders_keeps_their_types_and_drafts_out(tmp_path: Path) -> None:
    table = pa.table({"code": ["007", None], "n": [1, 2]})
    for name in ("a", "b"):
        gp.from_frame(table).write_parquet(tmp_path / name, partition_by="code")
        write(tmp_path / name / "code=9" / "part-00009.parquet", 9)  # of an append that is not finished
    assert plain(gp.read_parquet(str(tmp_path / "?")).select(["code", "n"]).compute()) == table.to_pylist() * 2


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.csv", "a.csv.gz", "a.jsonl", "a.jsonl.gz", "a.orc", "a.arrow", "a.parquet/_manifest.json"]
)
def test_a_file_that_may_not_be_read_is_one_of_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # The tests may run as root, whom no permission stops.
    path, opening = tmp_path / name, builtins.open
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")

    def closed(file: Any, *args: Any, **options: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opening(file, *args, **options)

    monkeypatch.setattr(builtins, "open", closed)
    monkeypatch.setattr(io, "open", closed)
    reader = {"parquet": gp.read_parquet, "csv": gp.read_csv, "jsonl": gp.read_json, "orc": gp.read_orc}
    first = tmp_path / name.partition("/")[0]
    with pytest.raises(BadFile) as caught:
        reader.get(first.name.split(".")[1], gp.read_ipc)(first)
    assert caught.value.where == str(path)
    assert caught.value.remedy == "its permissions"


MANIFEST = '{"format": "gpupipe dataset 1", "job": null, "inputs": {}, "notes": [], "partition_by": {}, "parts": [%s]}'
PART = '{"name": "p", "files": %s, "rows_in": 1, "inputs": []%s}'


@pytest.mark.parametrize(
    ("files", "more", "problem"),
    [
        ('{"../secret/s.parquet": [1]}', "", "'../secret/s.parquet' is no file of the folder"),
        ('{"/etc/hostname": [1]}', "", "'/etc/hostname' is no file of the folder"),
        ('{"": [1]}', "", "'' is no file of the folder"),
        ("[]", "", r"parts\[0\].files is a list, not an object"),
        ('{"y.parquet": [null]}', "", r"parts\[0\].files.y.parquet\[0\] is null, not a whole number"),
        ('{"y.parquet": [1]}', ', "later": ' + "[" * 50_000, "nested too deep"),
    ],
)
def test_a_manifest_made_to_deceive_is_refused(tmp_path: Path, files: str, more: str, problem: str) -> None:
    write(tmp_path / "secret" / "s.parquet", 7)
    write(tmp_path / "data" / "y.parquet", 2)
    (tmp_path / "data" / "_manifest.json").write_text(MANIFEST % (PART % (files, more)))
    with pytest.raises(BadFile, match=problem):
        gp.read_parquet(tmp_path / "data")


def test_a_manifest_may_say_more_than_is_read(tmp_path: Path) -> None:
    write(tmp_path / "y.parquet", 2)
    (tmp_path / "_manifest.json").write_text(MANIFEST % (PART % ('{"y.parquet": [1]}', ', "halved": [], "later": [1]')))
    assert gp.read_parquet(tmp_path).compute()["n"].tolist() == [2]


@pytest.mark.parametrize("options", ["hush", [("secret", "hush")], {("secret",): "hush"}, {"hush"}, b"hush"])
def test_options_of_a_wrong_type_show_no_secret(options: Any) -> None:
    for path in ("no/such.parquet", "memory://no/such.parquet"):
        with pytest.raises(errors.GpupipeError) as caught:
            gp.read_parquet(path, storage_options=options)
        assert "hush" not in str(caught.value)
        assert isinstance(options, dict) or caught.value.problem == "no mapping"


def test_a_name_that_is_not_utf8_is_refused_alone_and_in_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "x.parquet", 1).rename(tmp_path / os.fsdecode(b"caf\xe9.parquet"))
    for path in (file, tmp_path, tmp_path / "*.parquet"):
        with raises(BadFile, where="files", got=str(file)) as caught:
            gp.read_parquet(path)
        assert "not UTF-8" in str(caught.value)
    with pytest.raises(BadFile, match="no such file") as missing:
        gp.read_parquet(tmp_path / os.fsdecode(b"\xe9"))
    assert str(missing.value).isascii()  # can be printed


def test_what_a_disk_will_never_give_is_asked_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (tmp_path / "a", tmp_path / ("long" * 100)):
        with pytest.raises(BadFile, match=r"it cannot be read \(OSError"):
            gp.read_parquet(path)
    assert caplog.messages == []


def test_a_manifest_takes_no_more_memory_than_it_has_bytes(tmp_path: Path) -> None:
    gp.from_frame(pd.DataFrame({"n": [1]})).write_parquet(tmp_path / "out")
    tracemalloc.start()
    try:
        Manifest.read(tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
