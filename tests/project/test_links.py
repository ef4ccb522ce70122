"""Links between pages lead to a file and, where they name one, to a heading; the README's figures are measured ones."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "data/README.md", ROOT / "benchmarks/README.md"]
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """The addresses a page links to, those in code and of other sites left out."""
    found = re.findall(r"\]\(([^)\s]+)\)", CODE.sub("``", page.read_text()))
    return [address for address in found if not re.match(r"\w+:", address)]


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as the forge and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_are_found() -> None:
    assert len(PAGES) > 40 and sum(len(links(page)) for page in PAGES) > 70
    assert "the-manifest" in anchors(ROOT / "docs" / "guide-jobs.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for address in links(page):
        path, _, anchor = address.partition("#")
        if path.startswith("reference/"):
            continue  # made when the site is built, which looks for it
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {address}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {address}"


def test_every_guide_is_linked_from_the_home_page() -> None:
    linked = {address.partition("#")[0] for address in links(ROOT / "docs" / "index.md")}
    assert {path.name for path in (ROOT / "docs").glob("guide-*.md")} <= linked


def test_figures_of_the_readme_are_in_the_benchmarks() -> None:
    """Each number of its table stands behind its engine in the section it links to, made of benchmarks/results."""
    sections = re.split(r"^## ", (ROOT / "docs" / "benchmarks.md").read_text(), flags=re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", text.partition("\n")[0].lower()).replace(" ", "-"): text for text in sections}
    table = (ROOT / "README.md").read_text().partition("| job | gpupipe | other |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    assert len(rows) == 3
    for job, ours, others in rows:
        measured = named[re.findall(r"benchmarks\.md#([\w-]+)\)", job)[0]]
        for figure, engine in [(ours, "gpupipe"), *(other.split(" ", 1) for other in others.split("; "))]:
            found = [line for line in measured.splitlines() if line.startswith(f"| {engine} |")]
            assert any(f"| {figure} (" in line for line in found), f"{job}: {engine} {figure}"
