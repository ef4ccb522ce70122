"""JSON of our own files: what has another shape, or is made to exhaust a reader, is a ValueError that says where."""

from __future__ import annotations

from typing import Any

import pytest

from gpupipe.support import strict_json
from gpupipe.support.strict_json import parse_json

SHAPE = {"rows": [(int, None)], "by?": {str: str}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "the content is a list, not an object"),
        ("{}", "the content lacks 'rows'"),
        ('{"rows": [1, null, true]}', r"rows\[2\] is true or false, not a whole number or null"),
        ('{"rows": [], "by": {"x": 1}}', "by.x is a whole number, not text"),
        ('{"rows": [1e400]}', "1e400 is no finite number"),
        ('{"rows": [NaN]}', "nan is no finite number|NaN is no finite number"),
        ('{"rows": [], "more": %s}' % ("[" * 200 + "]" * 200), "nested deeper than 100 levels"),
        ('{"rows": %s}' % ("[" * 50_000), "nested too deep"),
        ('{"rows": [%s]}' % ("9" * 5_000), "integer string conversion"),
        ('{"rows": [', "Expecting value"),
        (b"\xff\xfe\xfd", "decode"),
    ],
)
def test_other_content_is_refused_with_its_place(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(content, SHAPE)


def test_keys_that_are_not_named_may_be_there() -> None:
    assert parse_json(b'{"rows": [1, null], "later": [[]]}', SHAPE)["rows"] == [1, None]


def test_large_content_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="it has 12 bytes, of at most 10"):
        parse_json('{"rows": []}', SHAPE)
