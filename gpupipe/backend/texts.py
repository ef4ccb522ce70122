"""Text computed from text: on the distinct strings, on the host, and gathered by code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.dictionaries import positions_in, strings, united
from gpupipe.backend.logic import Truth
from gpupipe.backend.protocol import Array, Backend, Column
from gpupipe.expressions.tree import Constant

__all__ = ["compare_texts", "length", "matches", "pick_text", "rewritten", "text_is_in"]

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
    "lower": pc.utf8_lower,
    "upper": pc.utf8_upper,
    "strip": pc.utf8_trim_whitespace,
}
_MATCH: dict[str, Callable[..., Any]] = {
    "contains": pc.match_substring,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
}


def compare_texts(operator: str, left: Column, right: Column | Constant, backend: Backend) -> Truth:
    """`left operator right` per row, in the order of code points.

    Memory: the distinct strings are compared on the host; a few bytes per row.
    """
    if isinstance(right, Constant):
        return _gathered(left, _COMPARE[operator](left.dictionary, pa.scalar(right.value, pa.large_string())), backend)
    texts = united([left.dictionary, right.dictionary])
    ranks = np.empty(len(texts), dtype="int32")
    ranks[pc.sort_indices(texts).to_numpy()] = np.arange(len(texts), dtype="int32")
    a, b = (_translated(column, ranks[positions_in(column.dictionary, texts)], backend) for column in (left, right))
    return Truth.known(getattr(backend.xp, _UFUNCS[operator])(a, b), (a >= 0) & (b >= 0))


def text_is_in(column: Column, values: Sequence[str], backend: Backend) -> Truth:
    """Whether the text is one of `values`."""
    return _gathered(column, pc.is_in(column.dictionary, value_set=strings(values)), backend)


def matches(name: str, column: Column, part: str, backend: Backend) -> Truth:
    """`contains`, `startswith` or `endswith`: whether `part` is there, character by character."""
    return _gathered(column, _MATCH[name](column.dictionary, part), backend)


def rewritten(name: str, column: Column, backend: Backend) -> Column:
    """`lower`, `upper` or `strip`, by Unicode's rules as Arrow has them; strings that become equal get one code."""
    encoded = _REWRITE[name](column.dictionary).dictionary_encode()
    codes = _translated(column, encoded.indices.to_numpy(), backend)
    return Column("string", codes, None, encoded.dictionary)


def length(column: Column, backend: Backend) -> Column:
    """The number of characters (code points), int64."""
    counts = pc.utf8_length(column.dictionary).to_numpy(zero_copy_only=False)
    return Column("int64", backend.to_device(np.append(counts, 0).astype("int64"))[column.data], column.data >= 0)


def pick_text(condition: Truth, yes: Column | Constant, no: Column | Constant, backend: Backend) -> Column:
    """`yes` where the condition holds, `no` where it does not, missing elsewhere."""
    xp = backend.xp
    own = [strings([str(side.value)]) if isinstance(side, Constant) else side.dictionary for side in (yes, no)]
    texts = united(own)
    a, b = (_codes_in(side, texts, dictionary, backend) for side, dictionary in zip((yes, no), own, strict=True))
    codes = xp.where(condition.true, a, b)
    known = condition.column().valid
    return Column("string", codes if known is None else xp.where(known, codes, np.int32(-1)), None, texts)


def _codes_in(side: Column | Constant, texts: pa.Array, own: pa.Array, backend: Backend) -> Array:
    positions = positions_in(own, texts).astype("int32")
    return positions[0] if isinstance(side, Constant) else _translated(side, positions, backend)


def _translated(column: Column, codes: Any, backend: Backend) -> Array:
    """Other codes (int32, one per entry of the dictionary) in place of the column's own; -1 stays."""
    return backend.to_device(np.append(codes, -1).astype("int32"))[column.data]


def _gathered(column: Column, outcome: pa.Array, backend: Backend) -> Truth:
    """A condition's outcome per entry of the dictionary, for each row."""
    table = np.append(outcome.to_numpy(zero_copy_only=False), False).astype(bool)
    true, valid = backend.to_device(table)[column.data], column.data >= 0
    return Truth(true, true ^ valid)
