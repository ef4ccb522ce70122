"""The notebooks in the repository: with outputs and pictures, with one program for CPU and GPU, and found by readers.

`make notebooks` runs them, `make renew-notebooks` keeps what they put out.
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

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MODULES = sorted((ROOT / "notebooks").glob("*_steps.py"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def text(path: Path, kind: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in cells(path, kind))


def outputs(path: Path) -> list[dict[str, Any]]:
    return [output for cell in cells(path, "code") for output in cell["outputs"]]


# Absolute paths, addresses, warnings with the file they are from, objects without a `repr`, and bars of progress.
FOLDERS = "home|root|tmp|usr|opt|work|var|mnt|Users"
OF_A_MACHINE = rf"(?<![\w.<:])/(?:{FOLDERS})/|site-packages|://\d|\w+Warning:| object at 0x|it/s"


def _without_pictures(output: dict[str, Any]) -> dict[str, Any]:
    data = {kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"}
    return output | {"data": data}


def test_all_six_are_there() -> None:
    assert [path.name[:2] for path in PATHS] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
class TestNotebook:
    def test_it_was_run_from_top_to_bottom_without_an_error(self, path: Path) -> None:
        found = cells(path, "code")
        assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
        assert "error" not in {output["output_type"] for output in outputs(path)}

    def test_it_has_pictures_and_they_are_small(self, path: Path) -> None:
        pictures = [output["data"]["image/png"] for output in outputs(path) if "image/png" in output.get("data", {})]
        assert pictures and max(map(len, pictures)) < 80_000
        assert path.stat().st_size < 160_000

    def test_it_shows_nothing_of_the_machine_that_ran_it(self, path: Path) -> None:
        shown = json.dumps([_without_pictures(output) for output in outputs(path)])
        assert re.findall(OF_A_MACHINE, shown) == []
        notebook = json.loads(path.read_text())
        assert all(cell["metadata"] == {} for cell in notebook["cells"])
        assert notebook["metadata"]["language_info"] == {"name": "python"}

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
