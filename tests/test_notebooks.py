"""The notebooks as they lie in the repository: without outputs, with one program for CPU and GPU, and found by readers.

`make notebooks` runs them.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "notebooks").glob("*.py"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def text(path: Path, kind: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in cells(path, kind))


def test_all_six_are_there() -> None:
    assert [path.name[:2] for path in PATHS] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestNotebook:
    def test_it_holds_no_outputs(self, path: Path) -> None:
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))
        assert set(json.loads(path.read_text())["metadata"]) == {"kernelspec", "language_info"}

    def test_it_begins_with_a_title_and_explains_itself(self, path: Path) -> None:
        first = json.loads(path.read_text())["cells"][0]
        assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")
        assert len(cells(path, "markdown")) >= len(cells(path, "code")) / 3

    def test_no_cell_asks_for_the_backend(self, path: Path) -> None:
        for node in ast.walk(ast.parse(text(path, "code"))):
            if isinstance(node, ast.If | ast.IfExp):
                assert not re.search(r"cuda|gpu|device", ast.unparse(node.test))

    def test_no_cell_calls_what_only_one_library_of_frames_has(self, path: Path) -> None:
        """cuDF's `tolist` raises, and pandas has no `to_pandas`; both have `to_numpy`."""
        assert not re.search(r"\.(tolist|to_pandas|from_pandas)\(", text(path, "code"))

    def test_its_links_lead_somewhere(self, path: Path) -> None:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(path, "markdown"))
        assert links
        assert [link for link in links if not (path.parent / link).exists()] == []

    def test_the_readme_names_it(self, path: Path) -> None:
        assert f"(notebooks/{path.name})" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_examples_of_its_module_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(path.parent))
    done = doctest.testmod(importlib.import_module(path.stem))
    assert done.attempted > 0 and done.failed == 0
