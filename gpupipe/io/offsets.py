"""Times as text, with an offset from UTC or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow_types import Reading

__all__ = ["MIXED", "OFFSETS", "offsets_of", "with_changes"]

OFFSETS = "written with offsets from UTC, read as the same times in UTC"
MIXED = "times with an offset from UTC and times without, read as text"
_TIME = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}.*)?$"
_OFFSET = r":[0-9]{2}([.][0-9]+)?([+-][0-9]{2}(:?[0-9]{2})?)$"
_ZONED = r":[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_UTC = r"(Z|[+-]00(:?00)?)$"


def offsets_of(texts: pa.Array | pa.ChunkedArray) -> str:
    """Say what becomes of the offsets of times written as text; nothing where there are none, or those of UTC alone.

    Example:
        >>> offsets_of(pa.array(["2020-01-01T00:00:00+02:00"])) == OFFSETS, offsets_of(pa.array(["JFK"]))
        (True, '')
    """
    present = texts.drop_null()
    zoned = pc.match_substring_regex(present, _ZONED)
    if not pc.any(zoned).as_py():
        return ""
    if not pc.all(zoned).as_py():
        return MIXED if pc.all(pc.match_substring_regex(present, _TIME)).as_py() else ""
    is_utc = pc.match_substring_regex(present, _UTC)
    return "" if pc.all(is_utc).as_py() else OFFSETS


def with_changes(
    columns: Mapping[str, tuple[object, Reading]], changes: Mapping[str, str]
) -> dict[str, tuple[object, Reading]]:
    """The columns of a file, and of some what their text shows beside what their types do."""
    found = dict(columns)
    for name, change in changes.items():
        if name in found:
            kind, reading = found[name]
            found[name] = kind, replace(reading, change=", ".join(filter(None, [reading.change, change])))
    return found
