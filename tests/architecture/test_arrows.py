"""Who may import whom: the arrows between folders, and no circle among files; checked on the source itself."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "gpupipe"
BASE = {"version", "progress", "drawing", "support", "errors", "schema", "config", "files", "step"}
STAGES = {"io", "transforms", "preprocessing", "tensors"}

# What each folder or file at the top may import of the others.
OURS: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "support": {"errors"},
    "schema": {"support", "errors"},
    "selectors": {"support", "errors", "schema"},
    "step": {"support", "errors"},
    "config": {"support", "errors"},
    "progress": set(),
    "drawing": {"support", "files"},
    "files": {"config", "errors", "support"},
    "expressions": BASE | {"backend"},
    "cluster": {"support", "errors", "config", "backend"},
    "backend": BASE,
    "io": BASE | {"backend", "cluster", "expressions"},
    "transforms": BASE | {"backend", "expressions"},
    "preprocessing": BASE | {"backend"},
    "tensors": BASE | {"backend"},
    "training": BASE | {"backend", "tensors"},
    "models": BASE | {"tensors"},
    "monitoring": BASE | STAGES | {"backend"},
    "pipeline": BASE | STAGES | {"backend", "cluster", "expressions", "selectors", "monitoring"},
    "saving": BASE | STAGES | {"backend", "models", "monitoring", "pipeline", "training"},
    "evaluation": BASE | STAGES | {"backend", "models", "pipeline", "saving", "training"},
    "cli": BASE | STAGES | {"backend", "pipeline", "saving"},
}
LIBRARIES = {
    *{
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
    },
    *{
        "safetensors",
        "tqdm",
        "fsspec",
        "pynvml",
        "cloudpickle",
        "dask",
        "distributed",
        "numba",
        "triton",
        "cuda",
        "packaging",
        "xgboost",
    },
}
THEIRS: dict[str, set[str]] = {
    "backend": {
        *{"pandas", "sklearn", "pyarrow", "polars", "numba", "numpy", "packaging"},
        *{"cuda", "cudf", "cudf_polars", "cupy", "cuml", "pylibcudf", "rmm", "pynvml", "triton"},
    },
    "cluster": {"cloudpickle", "dask", "distributed"},
    "progress": {"tqdm"},
    "expressions": {"numpy", "polars", "pyarrow"},
    "io": {"pyarrow", "numpy", "fsspec"},
    "io/relational": {"polars"},
    "transforms": {"numpy", "polars"},
    "preprocessing": {"numpy"},
    "tensors": {"torch", "numpy"},
    "training": {"torch", "safetensors", "pynvml"},
    "models": {"torch"},
    "monitoring": {"numpy"},
    "pipeline": {"numpy", "pyarrow", "safetensors", "torch"},
    "saving": {"numpy", "pyarrow", "safetensors", "torch"},
    "evaluation": {"torch"},
    "cli": {"numpy", "packaging", "pyarrow"},
}
ONLY_IN = {
    "torch": {"backend/device/memory.py"},
    "xgboost": {"models/xgboost_fit.py", "models/xgboost_rows.py"},
    **{name: {"io/relational/gpu_engine.py"} for name in ("rmm", "distributed")},
    "cudf_polars": {"backend/gpu.py", "io/relational/gpu_engine.py"},
}
LAZY = {"__init__.py", "backend/__init__.py", "backend/gpu.py", "cluster/__init__.py", "cli/main.py"}  # of RAPIDS
ENDS = {"cli", "evaluation"}  # above everything else: they import what they like, lazily where that spares time
FILES_AT_THE_TOP, FILES_IN_A_FOLDER, DEPTH = 12, 26, 3


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def local(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def unit(path: Path) -> str:
    """The folder, or the file at the top, that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Every imported module, those for type checkers too, and whether it is imported inside a function."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
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
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                is_module = PACKAGE.parent.joinpath(*whole.split(".")).with_suffix(".py").exists()
                yield whole if module == "gpupipe" or is_module else module, id(node) in inside


def test_arrows() -> None:
    wrong = []
    for path in modules():
        mine = unit(path)
        if mine in {"__init__", "__main__"}:
            continue
        for name, _ in imports(path):
            top, _, rest = name.partition(".")
            if top == "gpupipe":
                other = rest.partition(".")[0]
                if other and other != mine and other not in OURS[mine]:
                    wrong.append(f"{local(path)} may not import {other}")
            elif top in LIBRARIES:
                folder = str(path.parent.relative_to(PACKAGE))
                allowed = THEIRS.get(mine, set()) | THEIRS.get(folder, set())
                if top not in allowed and local(path) not in ONLY_IN.get(top, set()):
                    wrong.append(f"{local(path)} may not import {top}")
            elif top not in sys.stdlib_module_names and mine not in ENDS:
                wrong.append(f"{local(path)}: {top} is no declared dependency")
    assert not wrong, "\n".join(wrong)


def test_no_function_level_imports() -> None:
    wrong = [
        f"{local(path)}: {name}"
        for path in modules()
        if local(path) not in LAZY
        for name, inside in imports(path)
        if inside
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_but_what_calls_cuml_loads_it() -> None:
    """The GPU backend works where cuML, the largest of the libraries, has not arrived."""
    all_imports = [(local(path), name, inside) for path in modules() for name, inside in imports(path)]
    of_cuml = [(path, inside) for path, name, inside in all_imports if name.partition(".")[0] == "cuml"]
    assert of_cuml and all(inside for _, inside in of_cuml), of_cuml


def test_only_public_names_of_others() -> None:
    wrong = [
        f"{local(path)}: {name}"
        for path in modules()
        for name, _ in imports(path)
        if name.partition(".")[0] != "gpupipe"
        and any(part.startswith("_") and part != "__future__" for part in name.split("."))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circle_among_files() -> None:
    places = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in modules()}
    names = {name.removesuffix(".__init__"): path for path, name in places.items()}
    edges = {
        name: sorted({other for other, _ in imports(path) if other in names} - {name}) for name, path in names.items()
    }
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert node not in trail, " -> ".join([*trail[trail.index(node) :], node])
        if node not in done:
            for other in edges[node]:
                visit(other, (*trail, node))
            done.add(node)

    for node in edges:
        visit(node, ())


def test_places() -> None:
    """Few files at the top, folders that can be read at a glance, no drawer for what has no name."""
    wrong = [local(path) for path in modules() if path.stem in {"utils", "helpers", "common", "misc", "core"}]
    wrong += [local(path) for path in modules() if len(path.relative_to(PACKAGE).parts) > DEPTH]
    for folder in {path.parent for path in modules()}:
        limit = FILES_AT_THE_TOP if folder == PACKAGE else FILES_IN_A_FOLDER
        count = len(list(folder.glob("*.py")))
        if count > limit:
            wrong.append(f"{folder.relative_to(PACKAGE.parent)}: {count} files, at most {limit}")
    assert not wrong, "\n".join(wrong)
