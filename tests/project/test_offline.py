"""The way to a GPU host without a network: wheels slimmed, cut into parts, carried, put together again."""

from __future__ import annotations

import ast
import csv
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.project.benchmark_scripts import BENCHMARKS, benchmark_script

ROOT = BENCHMARKS.parent
FOLDER = BENCHMARKS / "gpu" / "offline"
HOST_PYTHON = "3.12"
REAL = ["hypothesis", "pytest", "pluggy", "iniconfig"]
LARGE = 64 << 20
HOST: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:2])), "packages": ["tqdm"], "libraries": []}


def wheel_of(name: str, folder: Path) -> Path:
    """An installed package as the wheel it came as."""
    installed = distribution(name)
    paths = [path for path in installed.files or [] if path.parts[0] != ".." and path.suffix != ".pyc"]
    made = folder / f"{canonicalize_name(name)}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path in paths:
            archive.write(str(path.locate()), str(path))
    return made


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parts of some real wheels and of one large enough for its unpacking to be interrupted."""
    folder = tmp_path_factory.mktemp("carried")
    large = folder / "large-1.0-py3-none-any.whl"
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large.data/purelib/large/zeros.bin", bytes(LARGE))
        archive.writestr("large-1.0.dist-info/RECORD", "")
    with pytest.MonkeyPatch.context() as patch:
        pack = benchmark_script("gpu/offline/pack.py", patch)
        small = pack.slim_all([large, *(wheel_of(name, folder) for name in REAL)], folder / "small", 90)
        parts = pack.cut(small, folder, 300_000, HOST)
    assert len(parts) > 3 and max(part.stat().st_size for part in parts) == 300_000
    return folder


@pytest.fixture
def parts(carried: Path, tmp_path: Path) -> Path:
    """A copy of what travels."""
    for path in [carried / "manifest.json", carried / "unpack.py", *carried.glob("part-*")]:
        shutil.copy(path, tmp_path)
    return tmp_path


def unpacking(parts: Path, *options: str) -> subprocess.Popen[str]:
    call = [sys.executable, str(parts / "unpack.py"), str(parts / "env"), *options]
    return subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def unpacked(parts: Path, *options: str) -> tuple[int, str]:
    process = unpacking(parts, *options)
    told = "".join(process.communicate(timeout=120))
    return process.returncode, told


def test_the_environment_has_what_was_carried_and_behind_it_the_hosts_packages(parts: Path) -> None:
    status, told = unpacked(parts)
    assert status == 0 and "5 packages installed, 0 were there" in told, told
    assert f"make test-gpu PYTHON={parts}/env/bin/python" in told
    asked = "import hypothesis, pluggy, tqdm; print(hypothesis.__file__, pluggy.__file__, tqdm.__file__, sep='\\n')"
    found = subprocess.run(
        [parts / "env" / "bin" / "python", "-c", asked], capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()
    assert [Path(path).is_relative_to(parts / "env") for path in found] == [True, True, False]
    packages = next((parts / "env").glob("lib/python*/site-packages"))
    installed, carried = distribution("pytest"), packages / f"pytest-{distribution('pytest').version}.dist-info"
    for path in installed.files or []:
        if path.suffix == ".py" and path.parts[0] != "..":
            assert (packages / path).read_bytes() == path.read_binary(), path
    assert {row[0] for row in csv.reader((carried / "RECORD").read_text().splitlines())} >= {"pytest/__init__.py"}
    assert (packages / "large" / "zeros.bin").stat().st_size == LARGE
    assert unpacked(parts)[1].startswith("0 packages installed, 5 were there")


def test_what_was_ended_midway_is_taken_up_again(parts: Path) -> None:
    assert unpacked(parts)[0] == 0
    packages = parts / "env" / "lib" / f"python{HOST['python']}" / "site-packages"
    next((parts / "env" / "whole").glob("large-*")).unlink()
    whole = {path: path.stat().st_ctime_ns for path in packages.glob("*.dist-info/RECORD") if "large" not in str(path)}
    zeros = packages / "large" / "zeros.bin"
    zeros.unlink()
    os.mkfifo(zeros)  # who writes into it waits for a reader
    reader = os.open(zeros, os.O_RDONLY | os.O_NONBLOCK)
    process = unpacking(parts)
    begun, _, _ = select.select([reader], [], [], 120)
    process.kill()
    process.communicate(timeout=60)
    os.close(reader)
    assert begun and process.returncode == -signal.SIGKILL
    zeros.unlink()
    zeros.write_bytes(bytes(LARGE // 2))
    status, told = unpacked(parts)
    assert status == 0 and f"1 packages installed, {len(whole)} were there" in told and len(whole) == 4, told
    assert (packages / "large" / "zeros.bin").read_bytes() == bytes(LARGE)
    assert all(path.stat().st_ctime_ns == when for path, when in whole.items())


def test_what_has_arrived_is_installed_before_the_rest(parts: Path) -> None:
    *_, last = sorted(parts.glob("part-*"))
    away = last.rename(parts / "away")
    status, told = unpacked(parts, "--so-far")
    assert status == 0 and f"Bring {last.name} into" in told, told
    manifest = json.loads((parts / "manifest.json").read_text())
    late = {wheel["name"] for wheel in manifest["wheels"] if last.name in wheel["parts"]}
    packages = parts / "env" / "lib" / f"python{HOST['python']}" / "site-packages"
    assert late and f"{5 - len(late)} packages installed, 0 were there" in told
    assert {path.name for path in (parts / "env" / "whole").iterdir()} == {w["name"] for w in manifest["wheels"]} - late
    assert (packages / "large" / "zeros.bin").stat().st_size == LARGE
    host = parts / "of the host"
    host.write_text("older")
    (packages / "iniconfig").mkdir(exist_ok=True)
    (packages / "iniconfig" / "__init__.py").symlink_to(host)  # as a library that both bring
    away.rename(last)
    assert unpacked(parts, "--so-far")[1].startswith(f"{len(late)} packages installed, {5 - len(late)} were there")
    assert host.read_text() == "older"
    installed = Path(str(distribution("iniconfig").locate_file("iniconfig/__init__.py")))
    assert (packages / "iniconfig" / "__init__.py").read_bytes() == installed.read_bytes()


def test_parts_that_are_damaged_or_not_there_are_named(parts: Path) -> None:
    content = bytearray((parts / "part-01").read_bytes())
    content[1000] ^= 1
    (parts / "part-01").write_bytes(content)
    (parts / "part-02").write_bytes((parts / "part-02").read_bytes()[:-1])
    status, told = unpacked(parts)
    assert status == 1 and "Traceback" not in told
    assert "part-01 is damaged: it has 300,000 bytes of 300,000" in told and "Bring part-01 again" in told
    assert "part-02 is damaged: it has 299,999 bytes of 300,000" in told and "part-00" not in told
    (parts / "part-01").unlink()
    (parts / "part-02").unlink()
    count = len(json.loads((parts / "manifest.json").read_text())["parts"])
    status, told = unpacked(parts)
    assert status == 1 and f"{count - 2} of {count} parts are here and whole. Bring part-01, part-02 into" in told
    assert not (parts / "env").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"python": "3.7"}, "The parts are for Python 3.7"),
        ({"packages": ["tqdm", "no-such-package"]}, "has no no-such-package, and the parts bring none"),
        ({"libraries": ["libnone.so.1"]}, "No libnone.so.1 among the host's packages"),
    ],
)
def test_a_host_that_lacks_something_is_told(parts: Path, change: dict[str, Any], told: str) -> None:
    manifest = json.loads((parts / "manifest.json").read_text())
    manifest["host"] |= change
    (parts / "manifest.json").write_text(json.dumps(manifest))
    status, found = unpacked(parts)
    assert status == 1 and told in found and "Traceback" not in found


def test_an_option_is_no_environment(tmp_path: Path) -> None:
    call = [sys.executable, str(FOLDER / "unpack.py"), "--help"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "unpack.py ENVIRONMENT" in done.stderr and "Traceback" not in done.stderr


def test_a_host_that_cannot_compile_is_warned(
    carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack = benchmark_script("gpu/offline/unpack.py", monkeypatch)
    host, headers = json.loads((carried / "manifest.json").read_text())["host"], tmp_path / "include"
    monkeypatch.setattr(unpack.sysconfig, "get_path", lambda *_: str(headers))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    unpack.check_host(host)
    told = capsys.readouterr().out
    assert "no C compiler (gcc or clang) and no " in told and "Python.h here" in told and "Install gcc" in told
    headers.mkdir()
    (headers / "Python.h").touch()
    for name in ("cc", "clang"):  # Triton looks for the second, not the first
        assert unpack.not_compiling() == ["C compiler (gcc or clang)"]
        (tmp_path / name).touch(mode=0o755)
    unpack.check_host(host)
    assert not capsys.readouterr().out and not unpack.not_compiling()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert unpack.not_compiling() == ["C compiler (no-such-compiler)"]


def test_a_folder_of_something_else_is_left_alone(parts: Path) -> None:
    (parts / "env").mkdir()
    (parts / "env" / "mine").touch()
    status, told = unpacked(parts)
    assert status == 1 and "not made of these parts: remove it, or name another" in told
    assert [path.name for path in (parts / "env").iterdir()] == ["mine"]


def library(*containers: list[tuple[int, int]]) -> bytes:
    """Something like a library: ELF, noise, and containers of code by kind and architecture."""
    noise = np.random.default_rng(0).bytes(1000)
    made = b"\x7fELF" + noise + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 12345) + noise  # what only looks like one
    for entries in containers:
        body = b"".join(
            struct.pack("<HHIQ", kind, 1, 64, 256) + bytes(12) + struct.pack("<I", arch) + bytes(32) + noise[:256]
            for kind, arch in entries
        )
        made += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body + noise
    return made


def test_only_the_code_of_other_architectures_becomes_zeros(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slim = benchmark_script("gpu/offline/slim.py", monkeypatch)
    before = library([(2, 80), (2, 90), (1, 90)], [(1, 80), (8, 75)])
    after = slim.slimmed(before, 90)
    assert len(after) == len(before)
    first, second = slim.containers(before)
    assert [(entry.kind, entry.arch) for entry in first + second] == [(2, 80), (2, 90), (1, 90), (1, 80), (8, 75)]
    expected = bytearray(before)
    for entry in (first[0], first[2]):  # the second has no machine code for 90, which the driver makes of the rest
        expected[entry.start : entry.stop] = bytes(256)
    assert after == expected and after != before
    assert slim.slimmed(before, 120) == before

    wheel, small = tmp_path / "lib-1-py3-none-any.whl", tmp_path / "small.tar.xz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lib/lib64/lib.so", before)
        archive.writestr("libx/include/x.h", "not needed")
        archive.writestr("lib/tests/test_x.py", "not needed")
        archive.writestr("lib-1.data/scripts/x", "not needed")
        archive.writestr("lib-1.dist-info/RECORD", "lib/lib64/lib.so,,")
    for block in (100, 1 << 20):  # of many blocks or of one
        monkeypatch.setattr(slim, "BLOCK", block)
        slim.slim(wheel, small, 90)
        with tarfile.open(small) as archive:
            assert archive.getnames() == ["lib/lib64/lib.so", "lib-1.dist-info/RECORD"]
            file = archive.extractfile("lib/lib64/lib.so")
            assert file is not None and file.read() == expected
    slim.slim(wheel, small, None)
    with tarfile.open(small) as archive:
        file = archive.extractfile("lib/lib64/lib.so")
        assert file is not None and file.read() == before


def pins() -> dict[str, str]:
    """What travels, by name."""
    lines = (FOLDER / "wheels.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all([one.operator for one in pin.specifier] == ["=="] for pin in wanted)
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in wanted}


def test_what_travels_is_what_gpupipe_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, host = pins(), benchmark_script("gpu/offline/pack.py", monkeypatch).HOST["packages"]
    for line in [*project["dependencies"], *project["optional-dependencies"]["cuda13"]]:
        asked = Requirement(line)
        assert asked.name in host or asked.specifier.contains(found[asked.name]), line
    assert not set(host) & set(found)


def test_the_suite_runs_with_the_hosts_versions() -> None:
    """`make test-host` has what travels, but for what needs an older NumPy than the host's; its last result is kept."""
    lines = [line for line in (ROOT / "constraints-host.txt").read_text().splitlines() if line[0] != "#"]
    versions = dict(line.split("==") for line in lines)
    travelling = {name: version for name, version in pins().items() if name in versions and name != "numpy"}
    assert travelling == {name: versions[name] for name in travelling} and len(travelling) == 4
    result = json.loads((ROOT / "tests" / "host.json").read_text())
    ran = {name: version.split("+")[0] for name, version in result["libraries"].items() if name in versions}
    assert ran == {name: versions[name] for name in ran} and len(ran) > 6
    assert result["python"].startswith(HOST_PYTHON + ".") and result["failed"] == []


def test_what_tests_import_travels_or_is_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what they import by `pytest.importorskip`."""
    host, packages = benchmark_script("gpu/offline/pack.py", monkeypatch).HOST["packages"], packages_distributions()
    known = {*pins(), *host, "gpupipe"}
    skipped = {"cudf", "cupy", "cuml", "rmm", "pylibcudf", "triton"}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - skipped:
                if name in packages:
                    assert {canonicalize_name(one) for one in packages[name]} & known, (str(path), name)
