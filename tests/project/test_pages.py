"""Every block of Python in README and docs is run as it stands, a page's blocks one after the other.

A block that cannot be run here has a comment above it that says why: `<!-- not run: a queue of a cluster -->`.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from gpupipe.models.mlp import MLP
from gpupipe.models.tabular import Tabular
from tests.project.page_setup import BEFORE, COMMON, ELSEWHERE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The code that is to be run."""
    return [match["code"] for match in BLOCK.finditer(page.read_text()) if not match["why"]]


RUN = [page for page in PAGES if page.name not in ELSEWHERE and blocks(page)]


def test_blocks_are_found() -> None:
    texts = {page: page.read_text() for page in PAGES}
    fences = sum(len(re.findall("^```python", text, re.MULTILINE)) for text in texts.values())
    assert fences == sum(len(BLOCK.findall(text)) for text in texts.values()) > 60
    assert sum(len(blocks(page)) for page in PAGES) > 50
    assert {page.name for page in PAGES} >= BEFORE.keys() | ELSEWHERE.keys()
    for page, test in ELSEWHERE.items():
        assert f'"{page}"' in (ROOT / test).read_text(), f"{test} does not run {page}"


def test_the_cookbook_has_twenty_nine_recipes() -> None:
    text = (ROOT / "docs" / "cookbook.md").read_text()
    assert re.findall(r"^### (\d+)\. ", text, re.MULTILINE) == [str(number) for number in range(1, 30)]
    assert len(blocks(ROOT / "docs" / "cookbook.md")) == 31


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "gpupipe")
    for network in (Tabular, MLP):
        monkeypatch.setattr(network, "updates", 100)  # instead of 1,200: that a page runs, not how well it learns
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    (tmp_path / "data").symlink_to(ROOT / "data")
    names: dict[str, Any] = {"__name__": "page"}
    setup = COMMON + BEFORE.get(page.name, "")
    with warnings.catch_warnings():
        exec(compile(setup, f"before {page.name}", "exec"), names)
        for code in blocks(page):
            if "__main__" in code:
                run_as_script(f"{setup}\n{code}", tmp_path)
            else:
                exec(compile(code, str(page), "exec"), names)


def run_as_script(code: str, folder: Path) -> None:
    """A block with workers: they import the file it is in."""
    script = folder / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    given = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
