"""The package says the same in every place that says something about it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import gpupipe
from gpupipe.backend.device.probe import CUPY_VERSION, RAPIDS, RAPIDS_VERSION

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(line) for line in PROJECT["optional-dependencies"][name]] for name in ("cuda13", "cuda12")}
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")


def conda_pins(file: str = "environment.yml") -> dict[str, str]:
    """Each package of a conda environment and what stands behind its name."""
    lines = (ROOT / file).read_text().splitlines()
    found = (re.match(r"  - ([a-z0-9-]+)([=<>][^ #]*)?", line) for line in lines)
    return {match[1]: match[2] or "" for match in found if match}


def plain(name: str) -> str:
    """A RAPIDS package's name without the CUDA it is built for."""
    return re.sub(r"-(cu|cuda)\d+x?$", "", name)


def as_conda(specifier: SpecifierSet) -> str:
    """`==26.10.*` is `=26.10` there; lower bounds are the same."""
    return re.sub(r"^==(.*)\.\*$", r"=\1", str(specifier))


def test_both_cuda_extras_pin_the_same() -> None:
    thirteen, twelve = (
        {(plain(requirement.name), str(requirement.specifier)) for requirement in EXTRAS[name]} for name in EXTRAS
    )
    assert thirteen == twelve
    for name, major in (("cuda13", "13"), ("cuda12", "12")):
        assert all(major in str(requirement).partition("==")[0].partition(">=")[0] for requirement in EXTRAS[name])


def test_conda_pins_rapids_as_the_extras_do() -> None:
    pins = conda_pins()
    for requirement in EXTRAS["cuda13"]:
        assert pins[plain(requirement.name)] == as_conda(requirement.specifier), requirement
    assert set(RAPIDS) <= {plain(requirement.name) for requirement in EXTRAS["cuda13"]}


@pytest.mark.parametrize(
    ("file", "torch"), [("environment.yml", "pytorch-gpu"), ("environment-cpu.yml", "pytorch-cpu")]
)
def test_conda_brings_the_base_dependencies_so_that_pip_adds_none(file: str, torch: str) -> None:
    pins = conda_pins(file)
    for requirement in BASE:
        name = {"torch": torch}.get(requirement.name, requirement.name)
        assert pins[name] == as_conda(requirement.specifier), requirement


def test_conda_brings_nothing_else() -> None:
    base = {requirement.name for requirement in BASE} - {"torch"} | {"python", "pip"}
    rapids = {plain(requirement.name) for requirement in EXTRAS["cuda13"]}
    assert conda_pins("environment-cpu.yml").keys() == base | {"pytorch-cpu"}
    assert conda_pins().keys() == base | rapids | {"pytorch-gpu", "cuda-version"}


@pytest.mark.parametrize("file", ["environment.yml", "environment-cpu.yml"])
def test_conda_python_is_one_we_support(file: str) -> None:
    assert conda_pins(file)["python"].removeprefix("=") in SpecifierSet(PROJECT["requires-python"])


def test_conda_is_for_a_cuda_that_there_are_wheels_for() -> None:
    """By wheels because no solver runs here: conda's packages of RAPIDS are built from the same sources."""
    assert f"cuda{conda_pins()['cuda-version'].removeprefix('=').partition('.')[0]}" in EXTRAS


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_conda_pins_what_the_installed_rapids_can_work_with(name: str) -> None:
    pins = conda_pins()
    for extra in EXTRAS[name]:
        try:
            wheel = metadata(extra.name)
        except PackageNotFoundError:
            pytest.skip(f"{extra.name} is not installed here: run `make test-rapids`")
        pinned = pins[plain(extra.name)]
        wanted = SpecifierSet(pinned if pinned.startswith(">") else f"={pinned}.*")
        assert wanted.contains(wheel["Version"]), extra.name
        if wheel["Requires-Python"]:
            assert SpecifierSet(wheel["Requires-Python"]).contains(pins["python"].removeprefix("="))
        for requirement in (Requirement(line) for line in wheel.get_all("Requires-Dist") or []):
            if requirement.marker is None and pins.get(requirement.name, "").startswith(">="):
                installed = version(requirement.name)  # one that both allow, so that a solver has an answer
                assert SpecifierSet(pins[requirement.name]).contains(installed), requirement
                assert requirement.specifier.contains(installed), requirement


def test_the_install_line_of_errors_names_the_pinned_release() -> None:
    pins = {str(requirement.specifier) for requirement in EXTRAS["cuda13"] if requirement.name.startswith("cu")}
    assert f"=={RAPIDS_VERSION}.*" in pins
    assert f">={CUPY_VERSION}" in pins


def test_base_dependencies_have_lower_bounds_only() -> None:
    for requirement in BASE:
        assert [bound.operator for bound in requirement.specifier] == [">="], requirement


def test_no_extra_asks_for_an_address() -> None:
    """A package index refuses what is to be fetched from somewhere else, and pip refuses all of the package with it."""
    assert [item.name for group in (BASE, *EXTRAS.values()) for item in group if item.url] == []


def test_constraints_fix_torch_and_nothing_else() -> None:
    lines = (ROOT / "constraints-cpu.txt").read_text().splitlines()
    (line,) = (line for line in lines if line and not line.startswith("#"))
    name, _, pinned = line.partition("==")
    (torch,) = (requirement for requirement in BASE if requirement.name == "torch")
    assert name == "torch"
    assert pinned in torch.specifier


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    # cuDF brings cuda-bindings, Numba llvmlite
    distribution = {"sklearn": "scikit-learn", "pynvml": "nvidia-ml-py", "cuda": "cudf", "cudf_polars": "cudf-polars"}
    distribution |= {"llvmlite": "numba"}
    imported = set()
    for path in (ROOT / "gpupipe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
                names += [item.value for item in node.args if isinstance(item, ast.Constant)]
            imported |= {name.partition(".")[0] for name in names}
    outside = {distribution.get(name, name) for name in imported - set(sys.stdlib_module_names) - {"gpupipe"}}
    base = {requirement.name for requirement in BASE}
    assert base <= outside
    (triton,) = (Requirement(line) for line in PROJECT["optional-dependencies"]["triton"])
    optional = {triton.name, *(plain(requirement.name) for requirement in EXTRAS["cuda13"])}
    assert outside - base <= optional | {"xgboost"}  # which the extra `trees` has as xgboost-cpu


def test_the_installed_package_is_this_one() -> None:
    try:
        installed = version("gpupipe")
    except PackageNotFoundError:
        pytest.skip("gpupipe runs from its folder here, it is not installed")
    assert installed == gpupipe.__version__


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_installed_rapids_is_what_the_extra_asks_for(name: str) -> None:
    for requirement in EXTRAS[name]:
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed here: run `make test-rapids`")
        assert requirement.specifier.contains(installed), (str(requirement), installed)


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_what_rapids_needs_is_inside_our_ranges(name: str) -> None:
    """Some version of each base dependency satisfies RAPIDS' range and ours: the installed one does."""
    ours = {requirement.name: requirement.specifier for requirement in BASE}
    for extra in EXTRAS[name]:
        try:
            theirs = [Requirement(line) for line in requires(extra.name) or []]
        except PackageNotFoundError:
            pytest.skip(f"{extra.name} is not installed here: run `make test-rapids`")
        for requirement in theirs:
            if requirement.name in ours and requirement.marker is None:
                installed = version(requirement.name)
                assert requirement.specifier.contains(installed), (extra.name, str(requirement), installed)
                assert ours[requirement.name].contains(installed), (requirement.name, installed)


@needs_make
def test_make_lists_every_target() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert sorted(re.findall(r"^make ([a-z-]+)", listed, re.MULTILINE)) == sorted(targets)


def test_ci_can_be_run_and_calls_targets_that_exist() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = re.findall(r"^make ([^#\n]+)", script.read_text(), re.MULTILINE)
    called = [word for line in lines for word in line.split() if re.fullmatch("[a-z][a-z-]*", word)]
    makefile = (ROOT / "Makefile").read_text()
    assert called == ["check", "test-all"]
    rest = r"--nbmake notebooks gpupipe tests --ignore tests/architecture$"  # `make check` has run these
    assert re.search(rf"^test-all: .*\btest-rapids\b.*\n.*{rest}", makefile, re.MULTILINE)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in called)


@needs_make
@pytest.mark.parametrize(
    ("driver", "index", "options"),
    [
        ("580.82.07", "", "-e '.[cuda13]'"),
        ("550.54.15", "", "-e '.[cuda12]'"),
        ("550.54.15", "https://torch.example/cu126", "--extra-index-url https://torch.example/cu126 -e '.[cuda12]'"),
        ("470.239.06", "", "-c constraints-cpu.txt -e '.'"),
        ("NVIDIA-SMI has failed", "", "-c constraints-cpu.txt -e '.'"),
    ],
)
def test_the_driver_decides_what_is_installed(driver: str, index: str, options: str, tmp_path: Path) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\necho '{driver}'\necho '{driver}'\n")
    fake.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TORCH_INDEX": index}
    command = ["make", "--dry-run", "demo", f"VENV={tmp_path}/none"]
    planned = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"pip install +{re.escape(options)}$", planned, re.MULTILINE), planned
