"""Functions of text, worked out once per distinct text on the host and gathered by code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.columns import Array, Backend, Column, gather
from gpupipe.backend.dictionaries import strings
from gpupipe.backend.groups import group_by_keys
from gpupipe.expressions.comparisons import gather_result
from gpupipe.expressions.operands import Call, Truth
from gpupipe.expressions.tree import Constant

_GROUPS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?P<\w+>|(?!\?))", re.DOTALL)  # and what has no group in it

_FAR = 1 << 32  # Arrow's lists and texts are shorter


def rewrite(call: Call) -> Column:
    """Compute text from text."""
    column, constants = call.first, [item.value for item in call.constants]
    return _gather_texts(column, _REWRITE[call.name](column.dictionary, *constants), call.backend)


def concatenate(call: Call) -> Column:
    """Write one text behind the other; missing where one of the two is."""
    left, right = call.values
    if isinstance(right, Constant):
        column = call.column(left)
        return _gather_texts(
            column, _join(column.dictionary, pa.scalar(str(right.value), pa.large_string())), call.backend
        )
    if isinstance(left, Constant):
        column = call.column(right)
        return _gather_texts(
            column, _join(pa.scalar(str(left.value), pa.large_string()), column.dictionary), call.backend
        )
    columns = [call.column(left), call.column(right)]
    pairs = group_by_keys(columns, call.backend)  # each distinct pair is joined once
    examples = pairs.examples
    texts = [_take_texts(column, examples, call.backend) for column in columns]
    encoded = _join(*texts).dictionary_encode()
    codes = call.backend.to_device(encoded.indices.fill_null(-1).to_numpy())
    return Column("string", codes[pairs.ids], None, encoded.dictionary)


def _join(left: Any, right: Any) -> pa.Array:
    return pc.binary_join_element_wise(left, right, pa.scalar("", pa.large_string()))


def _take_texts(column: Column, rows: Array, backend: Backend) -> pa.Array:
    codes = backend.to_host(column.data[rows])
    texts: Any = column.dictionary
    return texts.take(pa.array(codes, mask=codes < 0))


def split(call: Call) -> Column:
    """Split each text into the list of its parts."""
    column = call.first
    lists = pc.split_pattern(column.dictionary, str(call.constants[0].value))
    encoded = lists.flatten().dictionary_encode()
    offsets = np.append(lists.offsets.to_numpy(), lists.offsets[-1].as_py())  # the last one is that of missing texts
    codes, offsets = (call.backend.to_device(part) for part in (encoded.indices.to_numpy(), offsets.astype("int64")))
    parts = Column("list<string>", offsets, None, None, Column("string", codes, None, encoded.dictionary))
    return replace(parts.take(column.data), valid=column.data >= 0)


def match(call: Call) -> Truth:
    """Compute a condition of text: `contains`, `startswith`, `endswith`, `search`."""
    column = call.first
    return gather_result(column, _MATCH[call.name](column.dictionary, str(call.constants[0].value)), call.backend)


def count_characters(call: Call) -> Column:
    """Count the characters (code points) of each text, int64."""
    column = call.first
    counts = pc.utf8_length(column.dictionary).to_numpy(zero_copy_only=False).astype("int64")
    return Column("int64", gather(column, counts, 0, call.backend), column.data >= 0)


def replace_texts(
    column: Column, olds: Sequence[str], news: Sequence[str | None], fill: str | None, backend: Backend
) -> Column:
    """Replace whole strings `olds` by `news`, all at once, and missing ones by `fill`; None is missing."""
    positions = pc.index_in(column.dictionary, value_set=strings(olds))
    texts = pc.if_else(pc.is_valid(positions), strings(news).take(positions), column.dictionary)
    encoded = pa.concat_arrays([texts, strings([fill])]).dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy().astype("int32")  # the last one is that of missing values
    return Column("string", backend.to_device(codes)[column.data], None, encoded.dictionary)


def _gather_texts(column: Column, texts: pa.Array, backend: Backend) -> Column:
    """Gather for each row of strings its text among these, one per dictionary entry; equal ones get one code."""
    encoded = texts.dictionary_encode()
    codes = gather(column, encoded.indices.fill_null(-1).to_numpy(), -1, backend)
    return Column("string", codes, None, encoded.dictionary)


def _change_case(texts: pa.Array, of_ascii: Callable[..., Any], of_any: Callable[[str], str]) -> pa.Array:
    """Change case as Python does: Arrow maps each character to one, but Unicode maps `ß` to `SS`."""
    result, other = of_ascii(texts), pc.invert(pc.string_is_ascii(texts))
    if not pc.any(other).as_py():
        return result
    return pc.replace_with_mask(result, other, strings([of_any(text) for text in texts.filter(other).to_pylist()]))


def _one_group(pattern: str) -> str:
    """Name the first group of a pattern `part`, and drop all others; without a group name all of it."""
    openings = [opening for opening in _GROUPS.finditer(pattern) if opening.group().startswith("(")]
    if not openings:
        return f"(?P<part>{pattern})"
    text, end = "", 0
    for number, opening in enumerate(openings):
        text += pattern[end : opening.start()] + ("(?:" if number else "(?P<part>")
        end = opening.end()
    return text + pattern[end:]


def _within_text(number: int) -> int:
    """Return a place in a text or a list, or one that is beyond the end of each, as this is."""
    return max(-_FAR, min(number, _FAR))


def _part(lists: pa.Array, number: int) -> pa.Array:
    """Take one item of each list, counted from the end if `number` is negative; null if there is none."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    starts, ends = offsets[:-1], offsets[1:]
    positions = (starts if number >= 0 else ends) + _within_text(number)
    return lists.values.take(pa.array(positions, mask=(positions < starts) | (positions >= ends)))


_REWRITE: dict[str, Callable[..., Any]] = {
    "lower": lambda texts: _change_case(texts, pc.utf8_lower, str.lower),
    "upper": lambda texts: _change_case(texts, pc.utf8_upper, str.upper),
    "strip": pc.utf8_trim_whitespace,
    "extract": lambda texts, pattern: pc.struct_field(pc.extract_regex(texts, _one_group(pattern)), "part"),
    "split": lambda texts, separator, part: _part(pc.split_pattern(texts, separator), part),
    "slice": lambda texts, *ends: pc.utf8_slice_codeunits(texts, *map(_within_text, ends)),
    "replace": pc.replace_substring,
    "sub": pc.replace_substring_regex,
}
_MATCH: dict[str, Callable[..., Any]] = {"contains": pc.match_substring, "search": pc.match_substring_regex}
_MATCH |= {"startswith": pc.starts_with, "endswith": pc.ends_with}
