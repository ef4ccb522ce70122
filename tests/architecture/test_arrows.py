"""Who may import whom: the arrows of the house, checked on the source itself."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gpupipe"
FLOOR = {
    "support",
    "words",
    "durations",
    "time_zones",
    "errors",
    "scratch",
    "atomic",
    "tables",
    "throttling",
    "schema",
    "config",
    "step",
    "expressions",
}
ROOMS = {"backend", "cluster", "io", "transforms", "preprocessing", "tensors", "training", "models"}

OURS: dict[str, set[str]] = {
    "words": set(),
    "durations": set(),
    "time_zones": set(),
    "errors": set(),
    "scratch": {"errors", "config"},
    "support": {"errors"},
    "atomic": {"errors"},
    "tables": set(),
    "throttling": set(),
    "schema": {"words", "errors", "tables"},
    "step": {"words", "errors"},
    "config": {"errors", "support"},
    "expressions": {"words", "errors", "schema", "time_zones"},
    "cluster": {"errors", "support", "config", "backend"},
    "backend": FLOOR,
    "io": FLOOR | {"backend", "cluster"},
    "transforms": FLOOR | {"backend"},
    "preprocessing": FLOOR | {"backend"},
    "tensors": FLOOR | {"backend"},
    "training": FLOOR | {"tensors"},
    "models": FLOOR | {"tensors"},
}
LIBRARIES = {
    "cuda",
    "packaging",
    "pandas",
    "cudf",
    "cudf_polars",
    "cupy",
    "cuml",
    "pylibcudf",
    "rmm",
    "sklearn",
    "torch",
    "polars",
    "pyarrow",
    "numpy",
    "safetensors",
    "tqdm",
    "fsspec",
    "pynvml",
    "cloudpickle",
    "dask",
    "distributed",
    "numba",
    "triton",
}
THEIRS: dict[str, set[str]] = {
    "backend": {
        *{"pandas", "sklearn", "pyarrow", "polars", "numba", "numpy", "packaging"},
        *{"cuda", "cudf", "cupy", "cuml", "pylibcudf", "rmm", "pynvml", "triton"},
    },
    "cluster": {"cloudpickle", "dask", "distributed"},
    "io": {"pyarrow", "numpy", "fsspec", "tqdm"},
    "io/relational": {"polars"},
    "transforms": {"numpy", "polars"},
    "preprocessing": {"numpy"},
    "tensors": {"torch", "numpy"},
    "training": {"torch", "tqdm", "safetensors", "pynvml"},
    "models": {"torch"},
}
# Files beside the rooms compose them; what each needs from outside is said here.
COMPOSE: dict[str, set[str]] = {
    **{file: {"numpy"} for file in ("drift", "profiles", "ranges", "seen")},
    "encoding": {"numpy", "pyarrow"},
    "demo": {"numpy"},
    "doctor": {"packaging"},
    "loading": {"torch"},
    "artifact": {"numpy", "pyarrow", "safetensors", "torch"},
    "comparison": {"torch"},
    "permuting": {"torch"},
    "scorer": {"torch"},
    "spread": {"torch", "safetensors"},
    "units": {"torch"},
    "warming": {"numpy", "pyarrow"},
}
ONLY_IN = {
    "torch": {"backend/device/memory.py"},
    **{name: {"io/relational/gpu_engine.py"} for name in ("cudf_polars", "rmm", "distributed")},
}
LAZY = {"gpupipe/__init__.py", "gpupipe/backend/__init__.py", "gpupipe/cluster/__init__.py", "gpupipe/cli/main.py"}
ABOVE = {"demo", "cli", "comparison", "permuting"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit(path: Path) -> str:
    """The room, or the file beside the rooms, that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether it is imported inside a function."""
    tree = ast.parse(path.read_text())
    inside = {
        id(n) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for n in ast.walk(f)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            if module == "gpupipe":
                for alias in node.names:
                    yield f"gpupipe.{alias.name}", id(node) in inside
            else:
                yield module, id(node) in inside


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows(path: Path) -> None:
    mine = unit(path)
    if mine == "__init__":
        return
    for name, _ in imports(path):
        top, _, rest = name.partition(".")
        if top == "gpupipe":
            other = rest.partition(".")[0]
            if other == mine or not other:
                continue
            if mine in OURS:
                assert other in OURS[mine], f"{mine} may not import {other}"
            elif mine not in ABOVE:
                assert other != "training", f"{mine} may not import training"
        elif top in LIBRARIES:
            local, folder = str(path.relative_to(PACKAGE)), str(path.parent.relative_to(PACKAGE))
            allowed = THEIRS.get(mine, COMPOSE.get(mine, set())) | THEIRS.get(folder, set())
            assert top in allowed or local in ONLY_IN.get(top, set()), f"{local} may not import {top}"
        else:
            known = top in sys.stdlib_module_names or mine in ABOVE
            assert known, f"{path}: {top} is no declared dependency"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_function_level_imports(path: Path) -> None:
    if str(path.relative_to(PACKAGE.parent)) in LAZY:
        return
    assert [name for name, inside in imports(path) if inside] == []


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_public_names_of_others(path: Path) -> None:
    for name, _ in imports(path):
        if name.partition(".")[0] != "gpupipe":
            assert not any(part.startswith("_") and part != "__future__" for part in name.split(".")), name


def test_no_cycles() -> None:
    edges: dict[str, set[str]] = {}
    for path in modules():
        mine = unit(path)
        if mine != "__init__":
            found = {name.split(".")[1] for name, _ in imports(path) if name.startswith("gpupipe.")}
            edges.setdefault(mine, set()).update(found - {mine})
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert node not in trail, " -> ".join([*trail, node])
        if node not in done:
            for other in sorted(edges.get(node, ())):
                visit(other, (*trail, node))
            done.add(node)

    for node in sorted(edges):
        visit(node, ())


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_name(path: Path) -> None:
    assert path.stem not in {"utils", "helpers", "common", "misc", "core"}
    assert len(path.relative_to(PACKAGE).parts) <= 3
