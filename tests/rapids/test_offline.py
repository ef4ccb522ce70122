"""What travels to a GPU host without a network is whole: what each wheel asks for travels, too, or is on the host."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

WHEELS = Path(__file__).parents[2] / "benchmarks" / "gpu" / "offline" / "wheels.txt"
# The host has torch and CuPy for CUDA 13, scikit-learn and pytest, and so what these ask for.
ON_HOST = {
    *("cupy-cuda13x", "pyarrow", "scikit-learn", "scipy", "joblib", "threadpoolctl", "jinja2", "pygments"),
    *("torch", "typing-extensions", "cuda-toolkit", "nvidia-nccl-cu13"),
}
# The dashboard of Dask, and user functions in rolling windows of cuDF: nothing here asks for them.
LEFT_OUT = {"bokeh", "numba-cuda-mlir"}
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.3", "extra": ""}


def test_what_travelling_wheels_ask_for_travels_in_a_version_they_take() -> None:
    lines = (line for line in WHEELS.read_text().splitlines() if line and not line.startswith("#"))
    pins = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in map(Requirement, lines)}
    asked = 0
    for name in pins:
        try:
            found = distribution(name)
        except PackageNotFoundError:  # the tests' own, not RAPIDS'
            continue
        if Version(found.version).release[:2] != Version(pins[name]).release[:2]:  # may ask for other things
            continue
        wanted = [Requirement(line) for line in found.requires or []]
        for requirement in wanted:
            needed = canonicalize_name(requirement.name)
            if requirement.marker is not None and not requirement.marker.evaluate(PYTHON):
                continue
            if needed in ON_HOST | LEFT_OUT or needed.startswith("nvidia-cu"):
                continue
            assert needed in pins, f"{name} asks for {requirement}"
            assert requirement.specifier.contains(pins[needed]), (
                f"{name} asks for {requirement}, {pins[needed]} travels"
            )
            asked += 1
    assert asked > 50
