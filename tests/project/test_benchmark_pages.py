"""What the pages say was measured is what the result files hold."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.project.benchmark_scripts import BENCHMARKS, benchmark_script

DOCS = BENCHMARKS.parent / "docs"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return benchmark_script("bench.py", monkeypatch)


@pytest.mark.parametrize("page", ["benchmarks.md", "how-cost-grows.md"])
def test_tables_and_plots_are_made_of_the_result_files(page: str, bench: ModuleType, tmp_path: Path) -> None:
    made = Path(shutil.copy(DOCS / page, tmp_path))
    names = [name for name in bench.PAGES[DOCS / page] if bench.result_file(name).exists()]
    assert names
    bench.write_page(made, names)
    assert made.read_text() == (DOCS / page).read_text(), "renew it: python benchmarks/bench.py --docs"
    for picture in (tmp_path / "plots").iterdir():
        assert picture.read_text() == (DOCS / "plots" / picture.name).read_text()


def test_every_result_file_is_on_a_page(bench: ModuleType) -> None:
    told = {bench.result_file(name) for names in bench.PAGES.values() for name in names}
    others = set(bench.RESULTS.glob("*.json")) - told
    assert not others
