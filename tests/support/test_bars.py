from __future__ import annotations

import xml.etree.ElementTree as ET

from gpupipe.support.bars import draw_bars, format_bars


def test_a_line_of_bars() -> None:
    assert format_bars([0, 1, 50, 100]) == " ▁▄█" and format_bars([]) == "" and format_bars([0, 0]) == "  "


def test_an_svg_of_bars() -> None:
    drawn = ET.fromstring(draw_bars([4, 0, 2], ["<a>: 4", "b: 0", "c & d: 2"], width=90))
    bars = list(drawn)
    assert [bar[0].text for bar in bars] == ["<a>: 4", "b: 0", "c & d: 2"]
    heights = [float(bar.get("height") or 0) for bar in bars]
    assert heights == [32.0, 0.0, 16.0] and [bar.get("x") for bar in bars] == ["0.0", "30.0", "60.0"]
