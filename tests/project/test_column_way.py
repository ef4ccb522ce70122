"""The page about the architecture lists the files that a column passes, as a run of today has them."""

from __future__ import annotations

import importlib.util

from tests.conftest import ROOT


def test_the_page_lists_the_files_of_a_run() -> None:
    spec = importlib.util.spec_from_file_location("column_way", ROOT / "docs/column_way.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.listing(script.run()) in script.PAGE.read_text(), "python docs/column_way.py --write"
