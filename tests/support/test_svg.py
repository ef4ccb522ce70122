"""Drawings: where lines and cells come to stand, what is escaped."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from gpupipe.support.svg import BLUE, HEIGHT, LEFT, MARGIN, WIDTH, Line, draw_matrix, draw_panel, join_drawings

SVG = "{http://www.w3.org/2000/svg}"


def points_of(drawing: ET.Element) -> list[list[tuple[float, float]]]:
    lines = (element.attrib["points"] for element in drawing.iter(f"{SVG}polyline"))
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]


def words_of(drawing: ET.Element) -> list[str]:
    return [element.text or "" for element in drawing.iter(f"{SVG}text")]


def test_a_line_fills_the_panel_unless_the_axes_have_ends() -> None:
    line = Line([(1.0, 2.0), (3.0, 4.0)])
    axes, found = points_of(ET.fromstring(draw_panel("auc", [line], "")))
    assert found == [(LEFT, HEIGHT - MARGIN), (WIDTH - MARGIN, MARGIN)]
    assert axes == [(LEFT, MARGIN), (LEFT, HEIGHT - MARGIN), (WIDTH - MARGIN, HEIGHT - MARGIN)]
    wide = ET.fromstring(draw_panel("auc", [line], "", x=(1.0, 5.0), y=(2.0, 4.0), height=200))
    assert points_of(wide)[1] == [(LEFT, 200 - MARGIN), ((LEFT + WIDTH - MARGIN) / 2, MARGIN)]


def test_the_axes_have_numbers_at_their_ends() -> None:
    drawing = ET.fromstring(draw_panel("auc", [Line([(1, 0.12345678), (20, 1234567.0)])], "epoch"))
    assert {"1", "20", "0.1235", "1.235e+06", "auc", "epoch"} == {*words_of(drawing)}


def test_a_point_alone_stands_in_the_middle() -> None:
    _, (point,) = points_of(ET.fromstring(draw_panel("auc", [Line([(7.0, 7.0)])], "")))
    assert point == ((LEFT + WIDTH - MARGIN) / 2, HEIGHT / 2)


def test_drawings_stand_side_by_side() -> None:
    panels = [draw_panel(name, [Line([(0, 0), (1, 1)])], "") for name in ("a", "b")]
    drawing = ET.fromstring(join_drawings(panels))
    assert [element.get("x") for element in drawing.findall(f"{SVG}svg")] == ["0", str(WIDTH)]
    assert drawing.get("width") == str(2 * WIDTH)


def test_a_reference_line_is_dashed_and_has_no_dots() -> None:
    drawing = ET.fromstring(draw_panel("auc", [Line([(0, 0), (1, 1)], dots=False, dashed=True)], ""))
    assert ["stroke-dasharray" in line.attrib for line in drawing.iter(f"{SVG}polyline")] == [False, True]
    assert not list(drawing.iter(f"{SVG}circle"))


def test_cells_are_as_dark_as_their_share_and_names_are_escaped() -> None:
    text = draw_matrix("matrix", [[1.0, 0.0], [0.25, 0.75]], [["9", "0"], ["1", "3"]], ["<no>", "a very long name"])
    drawing = ET.fromstring(text)
    shades = [float(cell.attrib["fill-opacity"]) for cell in drawing.iter(f"{SVG}rect")]
    assert shades == sorted(shades, reverse=True)[:1] + shades[1:] and shades[0] > shades[3] > shades[2] > shades[1] > 0
    words = [element.text for element in drawing.iter(f"{SVG}text")]
    assert words.count("<no>") == 2 and words.count("a very lo…") == 2 and {"9", "0", "1", "3"} <= {*words}
    assert all(cell.attrib["fill"] == BLUE for cell in drawing.iter(f"{SVG}rect"))
