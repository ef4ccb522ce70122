"""The two backends are twins in their source: this needs no RAPIDS."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpupipe.backend import protocol

FOLDER = Path(protocol.__file__).parent


def public_methods(name: str, cls: str) -> dict[str, list[str]]:
    """Public method names in the order they are written, with their parameters."""
    tree = ast.parse((FOLDER / name).read_text())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls).body
    methods = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return {node.name: [arg.arg for arg in node.args.args] for node in methods}


@pytest.mark.parametrize(("name", "cls"), [("cpu.py", "CpuBackend"), ("gpu.py", "GpuBackend")])
def test_a_twin_has_the_protocols_verbs_in_its_order(name: str, cls: str) -> None:
    wanted = public_methods("protocol.py", "Backend")
    found = public_methods(name, cls)
    assert list(found.items()) == list(wanted.items())
