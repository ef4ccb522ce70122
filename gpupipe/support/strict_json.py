"""The one reader of JSON that gpupipe writes: of a known shape, bounded in size and depth, of finite numbers.

A shape is a type, `object` for anything, None, [what each item is], {key: what is there} with `key?` where it may be
left out and `str` for all keys, or a tuple of those. Keys that it does not name may be there, and are not looked at.
"""

from __future__ import annotations

import json
import math
from typing import Any

MOST_BYTES = 1 << 30
MOST_LEVELS = 100  # the parser of Python ends at about a thousand, and what walks through the result before
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}
_WORDS |= {list: "a list", dict: "an object"}


def parse_json(content: str | bytes, shape: Any, *, finite: bool = True) -> Any:
    """Parse JSON of this shape; raises ValueError, which says what is wrong where; infinities and NaN if not `finite`.

    Example:
        >>> parse_json('{"rows": [1, 2]}', {"rows": [int]})
        {'rows': [1, 2]}
        >>> parse_json('{"rows": [1, "x"]}', {"rows": [int]})
        Traceback (most recent call last):
        ValueError: rows[1] is text, not a whole number
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, of at most {MOST_BYTES:,}")
    try:
        convert = _parse_finite if finite else float
        value = json.loads(content, parse_float=convert, parse_constant=convert)
    except RecursionError:
        raise ValueError("its values are nested too deep") from None
    _check_depth(value)
    check_shape(value, shape)
    return value


def check_shape(value: Any, shape: Any, path: str = "") -> None:
    """Raise ValueError where a value has another shape."""
    shapes = shape if isinstance(shape, tuple) else (shape,)
    kinds = {each if isinstance(each, type) else type(each): each for each in shapes}
    if object in kinds:
        return
    if type(value) not in kinds:
        words = " or ".join(map(_name_kind, kinds))
        raise ValueError(f"{path or 'the content'} is {_name_kind(type(value))}, not {words}")
    fitting = kinds[type(value)]
    if isinstance(fitting, list):
        for position, item in enumerate(value):
            check_shape(item, fitting[0], f"{path}[{position}]")
    elif isinstance(fitting, dict):
        for key, inner in fitting.items():
            for name in value if key is str else [key.rstrip("?")]:
                if name in value:
                    check_shape(value[name], inner, f"{path}.{name}" if path else name)
                elif not key.endswith("?"):
                    raise ValueError(f"{path or 'the content'} lacks {name!r}")


def _name_kind(kind: type) -> str:
    return _WORDS.get(kind, kind.__name__)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_LEVELS):
        lists = [item for item in level if isinstance(item, list | dict) and item]
        if not lists:
            return
        level = [
            item for container in lists for item in (container.values() if isinstance(container, dict) else container)
        ]
    raise ValueError(f"its values are nested deeper than {MOST_LEVELS} levels")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number
