"""Every name of RAPIDS that a file uses, and every call, held against the installed RAPIDS; nothing of it is run."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cudf
import cupy
import pylibcudf as plc
from cudf.core.accessors.categorical import CategoricalAccessor
from cudf.core.series import DatetimeProperties
from cudf_polars.dsl.ir import IR
from cudf_polars.dsl.translate import Translator
from cuml.cluster import KMeans
from cuml.decomposition import PCA

from .signatures import mismatch, signature_of

ROOTS = {
    "cudf",
    "cupy",
    "cuml",
    "rmm",
    "dask_cuda",
    "pylibcudf",
    "cuda",
    "raft_dask",
    "cudf_polars",
    "rapidsmpf",
}
RECEIVERS = (
    cudf.DataFrame,
    cudf.Series,
    cudf.Index,
    CategoricalAccessor,
    DatetimeProperties,
    cupy.ndarray,
    KMeans,
    PCA,
    IR,
    Translator,
    plc.io.orc.OrcReaderOptions,
    plc.io.orc.OrcReaderOptionsBuilder,
    plc.io.parquet.ChunkedParquetWriter,
    plc.io.parquet.ChunkedParquetWriterOptionsBuilder,
    plc.io.parquet.ParquetWriterOptions,
    plc.io.parquet.ParquetWriterOptionsBuilder,
    plc.io.types.ColumnInMetadata,
)
"""What a method call may be of when its receiver is a value: it has to fit one of those that have the method."""


@dataclass
class Report:
    problems: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    keywords: list[ast.keyword] = field(default_factory=list)
    unbound: set[str] = field(default_factory=set)  # what is called and tells its parameters nowhere


def users_of_rapids(package: Path) -> list[Path]:
    """The files of a package that import RAPIDS."""
    return [path for path in sorted(package.rglob("*.py")) if _imports(ast.parse(path.read_text()))]


def report_on(tree: ast.Module, *, methods: bool = True) -> Report:
    """What does not exist, or is called with arguments that do not fit; method calls too where values are RAPIDS'."""
    report, imported = Report(), _imports(tree)
    for path in imported.values():
        if _resolved(path) is None:
            report.problems.append(f"import of {path}: not there")
    for node in ast.walk(tree):
        path = _path(node, imported)
        if path is not None:
            report.names.add(path)
            if _resolved(path) is None:
                report.problems.append(f"line {node.lineno}: {path} is not there")  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            _check_call(node, imported, report, methods=methods)
    return report


def attributes_of_values(tree: ast.Module) -> set[str]:
    """The names of attributes that are read of values: neither of a module nor of `self`."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        and _root(node) not in modules
    }


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _check_call(call: ast.Call, imported: dict[str, str], report: Report, *, methods: bool) -> None:
    path = _path(call.func, imported)
    if path is not None:
        found = _resolved(path)
        targets = [] if found is None else [(path, found, False)]
    elif methods and isinstance(call.func, ast.Attribute) and not _is_self(call.func.value):
        targets = [(f"{owner.__name__}.{call.func.attr}", method, True) for owner, method in _methods(call.func.attr)]
    else:
        targets = []
    if not targets:
        return
    report.unbound |= {name for name, target, _ in targets if signature_of(target) is None}
    report.keywords += [keyword for keyword in call.keywords if keyword.arg is not None]
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    args = [] if starred else [None] * len(call.args)
    problems = [
        mismatch(target, args, [k.arg for k in call.keywords if k.arg], method=method) for _, target, method in targets
    ]
    if all(problems) and not starred:
        report.problems += [
            f"line {call.lineno}: {name}: {problem}" for (name, _, _), problem in zip(targets, problems, strict=True)
        ]


def _methods(name: str) -> Iterator[tuple[type, Any]]:
    for owner in RECEIVERS:
        method = getattr(owner, name, None)
        if callable(method):
            # A class method is bound already; its signature has no receiver.
            yield owner, method


def _is_self(node: ast.expr) -> bool:
    """A method of our own, or of something our own object holds."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _imports(tree: ast.Module) -> dict[str, str]:
    """Local names that stand for something of RAPIDS, with its dotted path."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in ROOTS:
                    names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ROOTS:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _path(node: ast.AST, imported: dict[str, str]) -> str | None:
    """The dotted path of a name or attribute that begins at an import of RAPIDS."""
    if isinstance(node, ast.Name):
        return imported.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _path(node.value, imported)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def _resolved(path: str) -> Any:
    module, _, rest = path.partition(".")
    found: Any = importlib.import_module(module)
    for name in rest.split(".") if rest else []:
        module = f"{module}.{name}"
        found = getattr(found, name, None)
        if found is None:
            try:
                found = importlib.import_module(module)
            except ImportError:
                return None
    return found
