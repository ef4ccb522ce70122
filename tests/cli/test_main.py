"""The command, as a person types it: what it prints, and the code it exits with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc

import gpupipe as gp
from gpupipe import __version__, backend
from gpupipe.backend.device.probe import probe
from gpupipe.cli import warm_up
from gpupipe.cli.main import main

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"


def gpupipe(*arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own; `python -m gpupipe` is the same as `gpupipe`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    given = [sys.executable, "-m", "gpupipe", *map(str, arguments)]
    return subprocess.run(given, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_demo_goes_from_parquet_to_a_saved_model(tmp_path: Path) -> None:
    done = gpupipe("demo", "--data", DATA, "--no-reference", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "252,392 flights before 2013-10-01 to learn from, 84,384 after it to check" in done.stdout
    head, *rows = re.findall(r"^(?: *epoch| +\d) .*$", done.stdout, re.MULTILINE)[:4]
    last = dict(zip(head.split(), rows[-1].split(), strict=False))
    assert last["epoch"] == "3" and float(last["valid_auc"]) > 0.88
    assert "a second process loads it and gives the same scores, bit for bit" in done.stdout
    assert float(re.findall(r"at most ([\d.]+) GB", done.stdout)[0]) < 2.0
    assert (tmp_path / "runs/demo/manifest.json").is_file()


@pytest.mark.slow
def test_demo_without_its_data(tmp_path: Path) -> None:
    done = gpupipe("demo", "--data", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpupipe demo: flights.parquet is not there, got {str(tmp_path)!r}.")
    assert "Try: gpupipe demo --data PATH" in done.stderr


@pytest.mark.skipif(bool(probe().gpus), reason="there is a GPU here: what is right depends on what is installed")
@pytest.mark.parametrize("runs", [True, False])
def test_doctor_compiles_the_kernels_of_a_gpu(
    runs: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(backend: str) -> None:
        if not runs:
            raise OSError("no compiler")

    monkeypatch.setattr(warm_up, "_run", run)
    monkeypatch.setattr(backend, "resolve", lambda: "gpu")
    monkeypatch.setenv("CUPY_CACHE_DIR", "/scratch/kernels")
    assert main(["doctor"]) == (0 if runs else 1)
    found = capsys.readouterr().out.splitlines()
    assert "kernels are compiled" in found[-2 if runs else -3]
    if runs:
        assert found[-1].startswith("ok    small pipeline  runs; 0 s") and found[-1].endswith("/scratch/kernels")
    else:
        assert found[-2] == "fail  small pipeline  fails: OSError: no compiler"


def test_doctor_finds_a_machine_without_a_gpu_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok", "warn", " ")) for line in lines)
    named = [line.split()[1] for line in lines if not line.startswith(" ")]
    assert {"Python", "GPU", "numpy", "pandas", "pyarrow", "torch", "backend"} <= set(named)
    assert lines[-1].startswith("ok    backend") and "cpu: " in lines[-1]


def test_inspect_shows_a_parquet_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(DATA / "flights.parquet")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "336,776 rows, 19 columns"
    table = {line.split()[0]: line.split()[1:] for line in lines if line and not line.startswith("0:")}
    assert table["dep_delay"][:9] == ["float64", "2.5%", "527", "12.6391", "40.2101", "-43", "-5", "-2", "11"]
    assert table["origin"][:3] == ["string", "0%", "3"] and "EWR 35.9%" in " ".join(table["origin"])
    assert "336,776 rows, 19 columns, 1 partition" in lines and lines[-2].startswith("layout: 6 row groups")


def test_inspect_takes_a_target_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = tmp_path / "a.csv", tmp_path / "report.html"
    path.write_text("town,km\nUlm,12.5\nBonn,7\nUlm,13\nBonn,6\n")
    page.write_text("the last one")
    assert main(["inspect", str(path), "--html", str(page)]) == 2
    assert "Try: --overwrite" in capsys.readouterr().err and page.read_text() == "the last one"
    assert main(["inspect", str(path), "--target", "km > 10", "--html", str(page), "--overwrite"]) == 0
    assert "Cramér's V with km > 10" in capsys.readouterr().out and "<svg" in page.read_text()
    assert main(["inspect", str(path), "--target", "towns"]) == 2
    assert "'town' (the closest name)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "stream", "unbuffered"),
    [
        (["inspect", DATA / "flights.parquet"], "stdout", ""),
        (["inspect", DATA / "flights.parquet"], "stdout", "1"),
        (["inspect", "none.csv"], "stderr", ""),
        (["--help"], "stdout", ""),
    ],
)
@pytest.mark.slow
def test_a_pipe_that_is_read_no_more_ends_quietly(arguments: list[object], stream: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writing}
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "gpupipe", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, **streams)
    os.close(writing)
    assert (done.returncode, done.stdout or done.stderr or b"") == (141, b"")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"gpupipe {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "folder", "pattern"])
@pytest.mark.parametrize(
    "name",
    ["a.parquet", "a.orc", "a.arrow", "a.feather", "a.csv", "a.csv.gz", "a.json", "a.jsonl", "a.ndjson", "a.jsonl.gz"],
)
def test_inspect_shows_any_kind_of_file(
    tmp_path: Path, name: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    table = pa.table({"town": ["Ulm", None], "km": [12, 7]})
    if "parquet" in name:
        pq.write_table(table, path)
    elif "orc" in name:
        orc.write_table(table, path)
    elif "arrow" in name or "feather" in name:
        feather.write_feather(table, path)
    else:
        text = "town,km\nUlm,12\n,7\n" if "csv" in name else '{"town": "Ulm", "km": 12}\n{"km": 7}\n'
        with pa.output_stream(path) as file:  # packs where the name says so
            file.write(text.encode())
    given = {"file": path, "folder": tmp_path, "pattern": tmp_path / f"*{name[1:]}"}[place]
    assert main(["inspect", str(given)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 rows, 2 columns" and "2 rows, 2 columns, 1 partition" in lines
    table = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert table["town"][:3] == ["string", "50.0%", "1"]
    assert table["km"][:3] == ["int64", "0%", "2"]


def test_inspect_shows_a_folder_that_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gp.from_frame(pa.table({"n": [1, 2]})).write_parquet(tmp_path / "out")
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("2 rows, 1 column")


def test_inspect_shows_a_csv_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trips.csv"
    path.write_text("town,km\nUlm,12.5\n,7\nUlm,\n")
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    table = {line.split()[0]: line.split()[1:] for line in told.splitlines() if line}
    assert told.startswith("3 rows, 2 columns\n")
    assert table["town"][:3] == ["string", "33.3%", "1"] and table["km"][:3] == ["float64", "33.3%", "2"]


def test_a_missing_file_is_bad_input_and_the_closest_name_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(DATA / "flihgts.parquet")]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "flihgts.parquet: no such file" in seen.err and "'flights.parquet' (the closest name there)" in seen.err


def test_an_error_in_a_partition_says_in_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(DATA / "weather.parquet", tmp_path)
    group = pq.read_metadata(DATA / "flights.parquet").row_group(0)
    (distance,) = (c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == "distance")
    content = bytearray((DATA / "flights.parquet").read_bytes())
    content[distance.data_page_offset : distance.data_page_offset + 100] = bytes(100)
    (tmp_path / "flights.parquet").write_bytes(content)
    assert main(["demo", "--data", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{tmp_path / 'flights.parquet'}: row groups 0-5 cannot be read")
    assert told.rstrip().splitlines()[-1].startswith("(in partition 0: ")


def test_an_unknown_command_lists_the_known_ones() -> None:
    done = gpupipe("dmeo")
    assert done.returncode == 2
    assert re.search(
        r"invalid choice: 'dmeo' \(choose from '?demo'?, '?doctor'?, '?inspect'?, '?score'?\)", done.stderr
    )


def test_no_command_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "required: command" in capsys.readouterr().err
