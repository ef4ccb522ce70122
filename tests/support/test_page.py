from __future__ import annotations

from gpupipe.support.page import format_page


def test_a_title_is_text_and_the_body_is_not() -> None:
    page = format_page("<flights>", "<p>body</p>")
    assert "<title>&lt;flights&gt;</title>" in page and "<body><p>body</p></body>" in page
