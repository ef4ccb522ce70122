"""An error is known by its class and its attributes; its sentences may be worded otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def raises(kind: Any, *, where: str, match: str | None = None, **facts: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error of this class at this place: a step, a call, a column, or a file's name without its folder.

    `facts` are other attributes of it: what was `got`, which `column`, what is the `remedy`. `match` is for what its
    sentence alone has: a row's number, a count, or which of two errors of the same place it is.
    """
    with pytest.raises(kind, match=match) as caught:
        yield caught
    error = caught.value
    assert error.where == where or error.where.endswith(f"/{where}"), f"where: {error.where!r}, expected {where!r}"
    found = {name: getattr(error, name) for name in facts}
    assert found == facts, f"{found}, expected {facts}"
