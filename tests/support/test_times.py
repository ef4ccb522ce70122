"""Times as text, to microseconds."""

from __future__ import annotations

import pytest

from gpupipe.support.times import parse_microseconds


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01", 0),
        ("1969-12-31 23:59:59.999999", -1),
        ("2013-10-01T05:00:00Z", 1380603600000000),
        ("2013-10-01 07:00+02:00", 1380603600000000),
        ("0001-01-01T00:00+23:59", -62135683140000000),
    ],
)
def test_times(text: str, micros: int) -> None:
    assert parse_microseconds(text) == micros
