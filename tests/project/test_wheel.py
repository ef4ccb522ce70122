"""What is installed: the whole package, nothing besides, small, and of one version everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import gpupipe

ROOT = Path(__file__).parents[2]

pytest.importorskip("build", reason="build is not installed here: run `make setup`")
pytest.importorskip("hatchling", reason="hatchling is not installed here: run `make setup`")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist, made of what lies here, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    given = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--wheel", "--sdist"]
    done = subprocess.run([*given, "--outdir", str(folder), str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def sources() -> set[str]:
    found = (path for path in (ROOT / "gpupipe").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_wheel_is_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"gpupipe-{gpupipe.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        about = f"gpupipe-{gpupipe.__version__}.dist-info"
        metadata = Parser().parsestr(file.read(f"{about}/METADATA").decode())
        entries = file.read(f"{about}/entry_points.txt").decode()
    assert {name for name in names if not name.startswith(about)} == sources()
    assert "gpupipe/py.typed" in names and f"{about}/licenses/LICENSE" in names
    assert metadata["Version"] == gpupipe.__version__ and "gpupipe = gpupipe.cli.main:main" in entries
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_wheel_runs_from_another_folder_on_data_given_by_path(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"}
    given = [sys.executable, "-m", "gpupipe", "inspect", str(ROOT / "data" / "airports.parquet")]
    done = subprocess.run(given, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1,458 rows" in done.stdout, done.stdout + done.stderr


def test_the_sdist_has_what_make_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert sources() <= names
    needed = ["Makefile", "constraints-cpu.txt", "mkdocs.yml", "README.md", "LICENSE", "data/flights.parquet"]
    assert {*needed, "docs/index.md", "examples/etl_job.py", "tests/conftest.py", ".ci/run"} <= names
    assert not [name for name in names if name.startswith(("data/big", "build/", ".venv"))]


def test_the_version_is_semantic_and_the_same_everywhere() -> None:
    version = gpupipe.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.]+)?", version)
    newest = re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    cited = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert newest == version and cited == [version]
