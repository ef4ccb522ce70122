"""String functions of expressions: computed on the distinct strings, on the host, and gathered by code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.dictionaries import find_positions, strings, unite_dictionaries
from gpupipe.backend.expressions.kleene import Truth
from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.expressions.tree import Constant

__all__ = ["compare_texts", "isin_texts", "length", "matches", "pick_text", "replace_texts", "rewrite_texts"]

_COMPARE: dict[str, Callable[..., Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_UFUNCS = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_REWRITE: dict[str, Callable[..., Any]] = {
    "lower": lambda texts: _change_case(texts, pc.utf8_lower, str.lower),
    "upper": lambda texts: _change_case(texts, pc.utf8_upper, str.upper),
    "strip": pc.utf8_trim_whitespace,
    "extract": lambda texts, pattern: pc.struct_field(pc.extract_regex(texts, _one_group(pattern)), "part"),
    "split": lambda texts, separator, part: _part(pc.split_pattern(texts, separator), part),
    "slice": pc.utf8_slice_codeunits,
    "replace": pc.replace_substring,
    "sub": pc.replace_substring_regex,
}
_MATCH: dict[str, Callable[..., Any]] = {
    "contains": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "search": pc.match_substring_regex,
}
_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?P<\w+>|(?!\?))", re.DOTALL)  # and what has no group in it


def compare_texts(operator: str, left: Column, right: Column | Constant, backend: Backend) -> Truth:
    """Compare strings per row, in the order of code points.

    Memory: the distinct strings are compared on the host; a few bytes per row.
    """
    if isinstance(right, Constant):
        return _gather_result(
            left, _COMPARE[operator](left.dictionary, pa.scalar(right.value, pa.large_string())), backend
        )
    texts = unite_dictionaries([left.dictionary, right.dictionary])
    ranks = np.empty(len(texts), dtype="int32")
    ranks[pc.sort_indices(texts).to_numpy()] = np.arange(len(texts), dtype="int32")
    a, b = (
        _translate_codes(column, ranks[find_positions(column.dictionary, texts)], backend) for column in (left, right)
    )
    return Truth.from_valid(getattr(backend.xp, _UFUNCS[operator])(a, b), (a >= 0) & (b >= 0))


def isin_texts(column: Column, values: Sequence[str], backend: Backend) -> Truth:
    """Test whether each string is one of `values`."""
    return _gather_result(column, pc.is_in(column.dictionary, value_set=strings(values)), backend)


def matches(name: str, column: Column, part: str, backend: Backend) -> Truth:
    """Match strings: `contains`, `startswith` and `endswith` compare literally, `search` by a regular expression."""
    return _gather_result(column, _MATCH[name](column.dictionary, part), backend)


def rewrite_texts(name: str, column: Column, backend: Backend, *constants: Any) -> Column:
    """Apply a function from text to text; strings that become equal get one code. Case is changed as in Python."""
    encoded = _REWRITE[name](column.dictionary, *constants).dictionary_encode()
    codes = _translate_codes(column, encoded.indices.fill_null(-1).to_numpy(), backend)
    return Column("string", codes, None, encoded.dictionary)


def _change_case(texts: pa.Array, of_ascii: Callable[..., Any], of_any: Callable[[str], str]) -> pa.Array:
    """Change case as Python does: Arrow maps each character to one, but Unicode maps `ß` to `SS`."""
    made, other = of_ascii(texts), pc.invert(pc.string_is_ascii(texts))
    if not pc.any(other).as_py():
        return made
    return pc.replace_with_mask(made, other, strings([of_any(text) for text in texts.filter(other).to_pylist()]))


def _one_group(pattern: str) -> str:
    """Name the first group of a pattern `part`, and drop all others; without a group name all of it.

    Example:
        >>> _one_group("(a)[(](b)"), _one_group("a+")
        ('(?P<part>a)[(](?:b)', '(?P<part>a+)')
    """
    openings = [found for found in _GROUPS.finditer(pattern) if found.group().startswith("(")]
    if not openings:
        return f"(?P<part>{pattern})"
    made, end = "", 0
    for number, found in enumerate(openings):
        made += pattern[end : found.start()] + ("(?:" if number else "(?P<part>")
        end = found.end()
    return made + pattern[end:]


def _part(lists: pa.Array, number: int) -> pa.Array:
    """Take one item of each list, counted from the end if `number` is negative; null if there is none."""
    offsets = lists.offsets.to_numpy()
    lengths = np.diff(offsets)
    place = offsets[:-1] + (number if number >= 0 else lengths + number)
    there = (number < lengths) if number >= 0 else (lengths >= -number)
    return lists.values.take(pa.array(place, mask=~there))


def replace_texts(
    column: Column, olds: Sequence[str], news: Sequence[str | None], fill: str | None, backend: Backend
) -> Column:
    """Replace whole strings `olds` by `news`, all at once, and missing ones by `fill`; None is missing."""
    place = pc.index_in(column.dictionary, value_set=strings(olds))
    texts = pc.if_else(pc.is_valid(place), strings(news).take(place), column.dictionary)
    encoded = pa.concat_arrays([texts, strings([fill])]).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy().astype("int32")  # the last one is that of missing values
    return Column("string", backend.to_device(codes)[column.data], None, encoded.dictionary)


def length(column: Column, backend: Backend) -> Column:
    """Count the characters (code points) of strings or the elements of lists, int64."""
    if column.elements is not None:
        return Column("int64", column.data[1:] - column.data[:-1], column.valid)
    counts = pc.utf8_length(column.dictionary).to_numpy(zero_copy_only=False)
    return Column("int64", backend.to_device(np.append(counts, 0).astype("int64"))[column.data], column.data >= 0)


def pick_text(condition: Truth, yes: Column | Constant, no: Column | Constant, backend: Backend) -> Column:
    """Select `yes` where the condition is true, `no` where it is false, missing elsewhere."""
    xp = backend.xp
    own = [strings([str(side.value)]) if isinstance(side, Constant) else side.dictionary for side in (yes, no)]
    texts = unite_dictionaries(own)
    a, b = (_map_codes(side, texts, dictionary, backend) for side, dictionary in zip((yes, no), own, strict=True))
    codes = xp.where(condition.true, a, b)
    known = condition.column().valid
    return Column("string", codes if known is None else xp.where(known, codes, np.int32(-1)), None, texts)


def _map_codes(side: Column | Constant, texts: pa.Array, own: pa.Array, backend: Backend) -> Array:
    positions = find_positions(own, texts).astype("int32")
    return positions[0] if isinstance(side, Constant) else _translate_codes(side, positions, backend)


def _translate_codes(column: Column, codes: Any, backend: Backend) -> Array:
    """Map the codes of a column to others (int32, one per entry of the dictionary); -1 stays."""
    return backend.to_device(np.append(codes, -1).astype("int32"))[column.data]


def _gather_result(column: Column, outcome: pa.Array, backend: Backend) -> Truth:
    """Gather a condition's result per entry of the dictionary for each row."""
    table = np.append(outcome.to_numpy(zero_copy_only=False), False).astype(bool)
    true, valid = backend.to_device(table)[column.data], column.data >= 0
    return Truth(true, true ^ valid)
