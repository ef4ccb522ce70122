"""The two backends are twins in their source: this needs no RAPIDS."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpupipe.backend import columns

FOLDER = Path(columns.__file__).parent


def public_methods(name: str, cls: str) -> dict[str, ast.FunctionDef]:
    """Public methods in the order they are written."""
    tree = ast.parse((FOLDER / name).read_text())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls).body
    methods = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return {node.name: node for node in methods}


def parameters(methods: dict[str, ast.FunctionDef]) -> dict[str, list[str]]:
    return {name: [arg.arg for arg in node.args.args] for name, node in methods.items()}


@pytest.mark.parametrize(("name", "cls"), [("cpu.py", "CpuBackend"), ("gpu.py", "GpuBackend")])
def test_a_twin_has_the_bases_verbs_in_its_order(name: str, cls: str) -> None:
    base, found = public_methods("columns.py", "Backend"), public_methods(name, cls)
    required = {verb for verb, node in base.items() if len(node.body) == 1}  # others are done alike on both
    required -= {"trim", "make_room"} if name == "cpu.py" else set()  # where there is no device memory
    assert required <= set(found)
    wanted = [(verb, names) for verb, names in parameters(base).items() if verb in found]
    assert list(parameters(found).items()) == wanted
