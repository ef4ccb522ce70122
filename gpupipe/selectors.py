"""Column selectors: columns chosen by dtype, kind or name pattern when a pipeline is fitted."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from gpupipe.errors import BadConfig
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, LISTS, Field, Kind, Schema
from gpupipe.support.attributes import answer_names
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_choice, check_name, is_sequence, refuse_argument

__all__ = ["Selector", "boolean", "by_dtype", "by_kind", "by_name", "everything", "exclude", "floating", "glob"]
__all__ += ["integer", "matches", "numeric", "string", "temporal"]

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)

_DTYPES: dict[str, tuple[str, ...]] = {"everything": (*DTYPES, *LISTS), "numeric": (*INTEGERS, *FLOATS)}
_DTYPES |= {"integer": INTEGERS, "floating": FLOATS}
_DTYPES |= {"boolean": ("bool",), "string": ("string",), "temporal": ("timestamp",)}
_TESTS: dict[str, Callable[..., bool]] = {
    "by_name": lambda item, *names: item.name in names,
    "by_dtype": lambda item, *dtypes: item.dtype in dtypes,
    "by_kind": lambda item, *kinds: item.kind in kinds,
    "glob": lambda item, *patterns: any(fnmatchcase(item.name, pattern) for pattern in patterns),
    "matches": lambda item, pattern: re.search(pattern, item.name) is not None,
    "|": lambda item, left, right: left.takes(item) or right.takes(item),
    "&": lambda item, left, right: left.takes(item) and right.takes(item),
    "-": lambda item, left, right: left.takes(item) and not right.takes(item),
    "~": lambda item, inner: not inner.takes(item),
}


@dataclass(frozen=True, repr=False)
class Selector:
    """Column selector; `|`, `&`, `-` and `~` combine selectors.

    Columns that are only carried (decimals, structs and the like), which no feature is made of, are chosen by `by_name`
    and `by_kind` alone.

    Example:
        >>> schema = Schema([Field("x", "float64"), Field("day", "int8"), Field("open", "bool")])
        >>> (integer() | boolean()).names(schema), (~numeric() - by_name("day")).names(schema)
        (['day', 'open'], ['open'])
    """

    _function: str
    _words: tuple[Any, ...] = ()

    def takes(self, item: Field) -> bool:
        """Return whether a column is selected."""
        if self._function in _DTYPES:
            return item.dtype in _DTYPES[self._function]
        carried = item.kind == Kind.PASSENGER and self._function in ("glob", "matches", "~")
        return not carried and _TESTS[self._function](item, *self._words)

    def check(self, schema: Schema) -> None:
        """Raise `ColumnNotFound` for a name that is not in the schema."""
        if self._function == "by_name":
            schema.require(self._words, repr(self))
        for part in self._words:
            if isinstance(part, Selector):
                part.check(schema)

    def names(self, schema: Schema) -> list[str]:
        """List the selected columns, in the schema's order; `ColumnNotFound` where one that is named is not there."""
        self.check(schema)
        return [item.name for item in schema if self.takes(item)]

    def _join(self, sign: str, other: object) -> Selector:
        if not isinstance(other, Selector):
            where, remedy = f"{self!r} {sign} ...", f"by_name({other!r})"
            raise BadConfig(where, "not a selector", got=other, expected="a selector on both sides", remedy=remedy)
        return Selector(sign, (self, other))

    def __or__(self, other: Selector) -> Selector:
        return self._join("|", other)

    def __and__(self, other: Selector) -> Selector:
        return self._join("&", other)

    def __sub__(self, other: Selector) -> Selector:
        return self._join("-", other)

    def __invert__(self) -> Selector:
        return Selector("~", (self,))

    def __repr__(self) -> str:
        operands = [*map(repr, self._words)]
        if self._function == "~":
            return f"~{operands[0]}"
        if self._function in "|&-":
            return f"({operands[0]} {self._function} {operands[1]})"
        return f"{self._function}({', '.join(operands)})"


@answer_calls
def everything() -> Selector:
    """Select all columns.

    Example:
        >>> everything() - temporal()
        (everything() - temporal())
    """
    return Selector("everything")


@answer_calls
def by_name(*names: str) -> Selector:
    """Select the columns of these names, all of which have to exist.

    Example:
        >>> by_name("day").names(Schema([Field("day", "int8"), Field("hour", "int8")]))
        ['day']
    """
    return _select_by_text("by_name", "names", names)


@answer_calls
def by_dtype(*dtypes: str) -> Selector:
    """Select the columns stored as one of these types, of `schema.DTYPES` or `schema.LISTS`.

    Example:
        >>> by_dtype("int8", "int16").names(Schema([Field("day", "int8"), Field("x", "float64")]))
        ['day']
    """
    for dtype in dtypes:
        check_choice("by_dtype", (*DTYPES, *LISTS), dtypes=dtype)
    return Selector("by_dtype", dtypes)


@answer_calls
def by_kind(*kinds: str) -> Selector:
    """Select the columns of these kinds: `continuous`, `boolean`, `categorical`, `text`, `time` or `list`.

    Example:
        >>> by_kind("time", "text").names(Schema([Field("at", "timestamp"), Field("x", "float64")]))
        ['at']
    """
    for kind in kinds:
        check_choice("by_kind", [str(kind) for kind in Kind], kinds=kind)
    return Selector("by_kind", kinds)


@answer_calls
def glob(*patterns: str) -> Selector:
    """Select the columns whose names match a pattern of `*`, `?` and `[...]`, case-sensitive.

    Example:
        >>> glob("dep_*").names(Schema([Field("dep_delay", "float64"), Field("arr_delay", "float64")]))
        ['dep_delay']
    """
    return _select_by_text("glob", "patterns", patterns)


@answer_calls
def matches(pattern: str) -> Selector:
    """Select the columns in whose names a Python regular expression is found.

    Example:
        >>> matches("_delay$").names(Schema([Field("dep_delay", "float64"), Field("delay_dep", "float64")]))
        ['dep_delay']
    """
    check_name("matches", pattern=pattern)
    try:
        re.compile(pattern)
    except re.error as cause:
        problem, remedy = f"no regular expression ({cause})", "matches('_delay$')"
        raise BadConfig("matches", problem, got=pattern, expected="one", remedy=remedy) from None
    return Selector("matches", (pattern,))


@answer_calls
def exclude(*names: str | Selector) -> Selector:
    """Select all columns but these, given by name or by selector.

    Example:
        >>> exclude("day", temporal())
        (~by_name('day') & ~temporal())
    """
    left_out = [~(name if isinstance(name, Selector) else by_name(name)) for name in names]
    return reduce(and_, left_out) if left_out else everything()


@answer_calls
def numeric() -> Selector:
    """Select integers and floats; booleans are `boolean()`."""
    return Selector("numeric")


@answer_calls
def integer() -> Selector:
    """Select integers of any size, signed or not."""
    return Selector("integer")


@answer_calls
def floating() -> Selector:
    """Select floats of either size."""
    return Selector("floating")


@answer_calls
def boolean() -> Selector:
    """Select booleans."""
    return Selector("boolean")


@answer_calls
def string() -> Selector:
    """Select strings."""
    return Selector("string")


@answer_calls
def temporal() -> Selector:
    """Select timestamps."""
    return Selector("temporal")


def _select_by_text(function: str, name: str, words: tuple[Any, ...]) -> Selector:
    for word in words:
        if not isinstance(word, str):
            remedy = f"{function}(*{word!r})" if is_sequence(word) else f"{function}('...')"
            raise refuse_argument(function, name, word, "text", remedy)
    return Selector(function, words)
