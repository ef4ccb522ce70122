from __future__ import annotations

from gpupipe.backend.report_frame import make_frame


def test_rows_become_a_frame() -> None:
    frame = make_frame([{"name": "a", "x": 1}, {"name": "b", "y": 2.0}], index="name")
    assert frame.loc["a", "x"] == 1 and frame.loc["b", "y"] == 2.0 and frame["y"].isna().tolist() == [True, False]
    assert make_frame([]).empty and make_frame([], index="name").empty
