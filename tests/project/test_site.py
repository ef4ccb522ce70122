"""The documentation site builds without a warning, has every public name, and asks nobody else for anything."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.test_docs import ROOMS

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("guide-*.md"))

pytest.importorskip("mkdocs", reason="mkdocs is not installed here: run `make setup`")


class Page(HTMLParser):
    """What a browser would fetch for a page, and the anchors in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found["id"]} if found.get("id") else set()
        self.fetched |= {found[name] or "" for name in ("src", "srcset", "poster", "data") if name in found}
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.fetched.add(found["href"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    given = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > 60
    for path, page in pages.items():
        assert page.fetched, path
        for address in page.fetched:
            assert not re.match(r"(?:\w+:)?//", address), f"{path.name} fetches {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    for room in (room for room in ROOMS if getattr(importlib.import_module(room), "__all__", ())):
        page = Page((site / "reference" / f"{room.removeprefix('gpupipe.')}.html").read_text())
        assert set(importlib.import_module(room).__all__) <= page.anchors, room


def test_docstrings_are_shown_in_their_parts(site: Path) -> None:
    text = (site / "reference" / "preprocessing.html").read_text()
    step = text.partition('id="Categorify"')[2].partition("<h2")[0]
    for part in ("Args", "Memory", "Example"):
        assert f"<strong>{part}</strong>" in step
    assert "<code>min_frequency</code>: values that occur less often share id 1" in step


def test_every_decision_is_listed(site: Path) -> None:
    listed = (site / "decisions" / "index.html").read_text()
    found = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert len(found) > 10
    assert all(f'href="{path.stem}.html"' in listed for path in found)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_says_what_goes_in_and_out_what_it_costs_and_how_it_fails(guide: Path) -> None:
    headings = re.findall(r"^## (.*)$", guide.read_text(), re.MULTILINE)
    assert [heading for heading in headings if heading in ("In", "Out", "Memory", "Failure")] == [
        "In",
        "Out",
        "Memory",
        "Failure",
    ]
