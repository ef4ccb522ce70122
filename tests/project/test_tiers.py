"""What `make test` runs, and what it leaves to `make test-all`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hypothesis import settings
from packaging.requirements import Requirement

from tests.conftest import ROOT, SLOW
from tests.examples import examples

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = {
    name: {Requirement(line).name for line in lines}
    for name, lines in PROJECT["project"]["optional-dependencies"].items()
}
# What a test imports -> the package of an extra that brings it; others have the module's name.
BROUGHT_BY = {
    "cudf": "cudf-cu13",
    "cudf_polars": "cudf-polars-cu13",
    "dask_cuda": "dask-cuda",
    "nvforest": "cuml-cu13",
    "xgboost": "xgboost-cpu",
}
BASE = {"scipy"}  # scikit-learn brings it
NEEDS = re.compile(r"""(?:importorskip\(|skipif\(not (?:importlib\.util\.)?find_spec\()"(\w+)""")


def ci_runs() -> list[tuple[set[str], list[Path]]]:
    """What `make test-all` runs: the packages of the extras in an environment, and the paths that pytest is given."""
    text = (ROOT / "Makefile").read_text()

    def rule(target: str) -> tuple[str, str]:
        (found,) = re.findall(rf"^{re.escape(target)}:([^#\n]*)[^\n]*\n((?:\t.*\n)*)", text, re.MULTILINE)
        return found

    def packages(environment: str) -> set[str]:
        extras = re.findall(r"-e '\.\[(\w[\w,]*)", rule(environment)[1])
        return set().union(*(EXTRAS[extra] for extra in extras[0].split(",")))

    runs = []
    for target in ("test-all", *re.findall(r"[a-z-]+", rule("test-all")[0].replace("$(VENV)/.dev", ""))):
        for environment, words in re.findall(r"\$\((BIN|RAPIDS)\)\S* -m pytest (.*)", rule(target)[1]):
            paths = [ROOT / word for word in words.split() if (ROOT / word).exists()]
            runs.append((packages("$(VENV)/.dev" if environment == "BIN" else "$(RAPIDS)/.installed"), paths))
    return runs


TESTS = sorted((ROOT / "tests").rglob("*.py"))


def test_each_file_runs_in_an_environment_that_has_what_it_needs() -> None:
    """A test that skips in each environment of the checks holds nothing: the feature kernel's did, and nobody saw."""
    runs, unseen = ci_runs(), []
    for file in TESTS:
        needs = {BROUGHT_BY.get(name, name) for name in NEEDS.findall(file.read_text())} - BASE
        there = [packages for packages, paths in runs if any(map(file.is_relative_to, paths))]
        unseen += [(file.name, needed) for needed in sorted(needs) if not any(needed in packages for packages in there)]
    assert unseen == []
    assert all(any(map(file.is_relative_to, paths)) for file in TESTS for _, paths in runs[:1])


def test_pytest_finds_each_test_and_leaves_out_no_example() -> None:
    with_tests = [
        file for file in TESTS if re.search(r"^(async )?def test_|^class Test", file.read_text(), re.MULTILINE)
    ]
    assert [file.name for file in with_tests if not file.name.startswith("test_")] == []
    ignored = [
        word.partition("=")[2] for word in PROJECT["tool"]["pytest"]["ini_options"]["addopts"] if "--ignore=" in word
    ]
    assert ignored and all(">>>" not in (ROOT / path).read_text() for path in ignored)


def test_no_test_waits_for_a_package_to_be_missing() -> None:
    """Every environment of the checks has the extras: such a test would never run."""
    waiting = re.compile(r"skipif\(bool\((?:importlib\.util\.)?find_spec")
    assert [file.name for file in TESTS if waiting.search(file.read_text())] == []


def test_every_slow_area_is_there() -> None:
    assert [path for path in SLOW if not (ROOT / path).exists()] == []


def test_each_tier_tries_more_examples_and_all_but_the_last_the_same() -> None:
    few, fixed, random = map(settings.get_profile, ("few", "fixed", "random"))
    assert [profile.max_examples for profile in (few, fixed, random)] == [12, 25, 100]
    assert [profile.derandomize for profile in (few, fixed, random)] == [True, True, False]
    assert examples(40).max_examples == 40 * settings.default.max_examples // 100
    assert examples(2).max_examples == 2
