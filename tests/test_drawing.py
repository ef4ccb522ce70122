from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupipe.drawing import Drawing
from gpupipe.errors import BadConfig, BadFile
from tests.raising import raises


def test_a_drawing_is_shown_and_saved(tmp_path: Path) -> None:
    drawing, path = Drawing("<svg></svg>"), tmp_path / "curves.svg"
    drawing.save(path)
    assert path.read_text() == drawing._repr_html_() == "<svg></svg>"
    with raises(BadFile, where="curves.svg", remedy="overwrite=True"):
        drawing.save(path)
    drawing.save(str(path), overwrite=True)
    assert repr(drawing) == "Drawing of 11 bytes: save('curves.svg') writes it"


@pytest.mark.parametrize("path", [None, 3, ""])
def test_no_path(path: Any) -> None:
    with raises(BadConfig, where="Drawing.save(path=)"):
        Drawing("<svg/>").save(path)
