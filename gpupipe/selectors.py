"""Column selectors: columns chosen by dtype, kind or name pattern when a pipeline is fitted."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from operator import and_
from typing import Any

from gpupipe.errors import BadConfig
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, LISTS, Field, Kind, Schema
from gpupipe.support.validation import check_choice, check_name, is_sequence, refuse_argument

__all__ = ["Selector", "boolean", "by_dtype", "by_kind", "by_name", "everything", "exclude", "floating", "glob"]
__all__ += ["integer", "matches", "numeric", "string", "temporal"]


class Selector(ABC):
    """Column selector; `|`, `&`, `-` and `~` combine selectors.

    Columns that are only carried (decimals, structs and the like), which no feature is made of, are chosen by `by_name`
    and `by_kind` alone.

    Example:
        >>> schema = Schema([Field("dep_delay", "float64"), Field("day", "int8"), Field("carrier", "string")])
        >>> (numeric() - by_name("day")).names(schema), (~numeric()).names(schema)
        (['dep_delay'], ['carrier'])
    """

    @abstractmethod
    def takes(self, item: Field) -> bool:
        """Return whether a column is selected."""

    def check(self, schema: Schema) -> None:
        """Raise `ColumnNotFound` for a name that is not in the schema."""
        for part in vars(self).values():
            if isinstance(part, Selector):
                part.check(schema)

    def names(self, schema: Schema) -> list[str]:
        """List the selected columns, in the order of the schema.

        Raises:
            ColumnNotFound: a column that is named is not there.
        """
        self.check(schema)
        return [item.name for item in schema if self.takes(item)]

    def __or__(self, other: Selector) -> Selector:
        return _Joined("|", self, other)

    def __and__(self, other: Selector) -> Selector:
        return _Joined("&", self, other)

    def __sub__(self, other: Selector) -> Selector:
        return _Joined("-", self, other)

    def __invert__(self) -> Selector:
        return _Not(self)


@dataclass(frozen=True, repr=False)
class _Chosen(Selector):
    """Selector by one test of each column against some words."""

    function: str
    words: tuple[str, ...]

    def takes(self, item: Field) -> bool:
        if self.function in _FAMILIES:
            return item.dtype in _FAMILIES[self.function]
        carried = item.kind == Kind.PASSENGER and self.function in ("glob", "matches")
        return not carried and _TESTS[self.function](item, self.words)

    def check(self, schema: Schema) -> None:
        if self.function == "by_name":
            schema.require(self.words, repr(self))

    def __repr__(self) -> str:
        return f"{self.function}({', '.join(map(repr, self.words))})"


@dataclass(frozen=True, repr=False)
class _Joined(Selector):
    sign: str
    left: Selector
    right: Selector

    def __post_init__(self) -> None:
        where, remedy = f"{self.left!r} {self.sign} ...", f"by_name({self.right!r})"
        if not isinstance(self.right, Selector):
            raise BadConfig(where, "not a selector", got=self.right, expected="a selector on both sides", remedy=remedy)

    def takes(self, item: Field) -> bool:
        left, right = self.left.takes(item), self.right.takes(item)
        return {"|": left or right, "&": left and right, "-": left and not right}[self.sign]

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


@dataclass(frozen=True, repr=False)
class _Not(Selector):
    inner: Selector

    def takes(self, item: Field) -> bool:
        return item.kind != Kind.PASSENGER and not self.inner.takes(item)

    def __repr__(self) -> str:
        return f"~{self.inner!r}"


_TESTS: dict[str, Callable[[Field, tuple[str, ...]], bool]] = {
    "by_name": lambda item, words: item.name in words,
    "by_dtype": lambda item, words: item.dtype in words,
    "by_kind": lambda item, words: item.kind in words,
    "glob": lambda item, words: any(fnmatchcase(item.name, word) for word in words),
    "matches": lambda item, words: re.search(words[0], item.name) is not None,
}
_FAMILIES: dict[str, tuple[str, ...]] = {
    "everything": (*DTYPES, *LISTS),
    "numeric": (*INTEGERS, *FLOATS),
    "integer": INTEGERS,
    "floating": FLOATS,
    "boolean": ("bool",),
    "string": ("string",),
    "temporal": ("timestamp",),
}


def everything() -> Selector:
    """Select all columns.

    Example:
        >>> everything() - temporal()
        (everything() - temporal())
    """
    return _Chosen("everything", ())


def by_name(*names: str) -> Selector:
    """Select the columns of these names, all of which have to exist.

    Example:
        >>> by_name("day").names(Schema([Field("day", "int8"), Field("hour", "int8")]))
        ['day']
    """
    return _Chosen("by_name", _texts("by_name", names))


def by_dtype(*dtypes: str) -> Selector:
    """Select the columns stored as one of these types, of `schema.DTYPES` or `schema.LISTS`.

    Example:
        >>> by_dtype("int8", "int16").names(Schema([Field("day", "int8"), Field("x", "float64")]))
        ['day']
    """
    for dtype in dtypes:
        check_choice("by_dtype", (*DTYPES, *LISTS), dtypes=dtype)
    return _Chosen("by_dtype", dtypes)


def by_kind(*kinds: str) -> Selector:
    """Select the columns of these kinds: `continuous`, `categorical`, `text`, `time` or `list`.

    Example:
        >>> by_kind("time", "text").names(Schema([Field("at", "timestamp"), Field("x", "float64")]))
        ['at']
    """
    for kind in kinds:
        check_choice("by_kind", [str(kind) for kind in Kind], kinds=kind)
    return _Chosen("by_kind", kinds)


def glob(*patterns: str) -> Selector:
    """Select the columns whose names match a pattern of `*`, `?` and `[...]`, case-sensitive.

    Example:
        >>> glob("dep_*").names(Schema([Field("dep_delay", "float64"), Field("arr_delay", "float64")]))
        ['dep_delay']
    """
    return _Chosen("glob", _texts("glob", patterns, "patterns"))


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
    return _Chosen("matches", (pattern,))


def exclude(*names: str | Selector) -> Selector:
    """Select all columns but these, given by name or by selector.

    Example:
        >>> exclude("day", temporal())
        (~by_name('day') & ~temporal())
    """
    left_out = [~(name if isinstance(name, Selector) else by_name(name)) for name in names]
    return reduce(and_, left_out) if left_out else everything()


def numeric() -> Selector:
    """Select integers and floats; booleans are `boolean()`.

    Example:
        >>> numeric().names(Schema([Field("x", "float64"), Field("open", "bool")]))
        ['x']
    """
    return _Chosen("numeric", ())


def integer() -> Selector:
    """Select integers of any size, signed or not.

    Example:
        >>> integer().names(Schema([Field("x", "float64"), Field("day", "uint8")]))
        ['day']
    """
    return _Chosen("integer", ())


def floating() -> Selector:
    """Select floats of either size.

    Example:
        >>> floating().names(Schema([Field("x", "float64"), Field("day", "uint8")]))
        ['x']
    """
    return _Chosen("floating", ())


def boolean() -> Selector:
    """Select booleans.

    Example:
        >>> boolean().names(Schema([Field("x", "float64"), Field("open", "bool")]))
        ['open']
    """
    return _Chosen("boolean", ())


def string() -> Selector:
    """Select strings.

    Example:
        >>> string().names(Schema([Field("carrier", "string"), Field("open", "bool")]))
        ['carrier']
    """
    return _Chosen("string", ())


def temporal() -> Selector:
    """Select timestamps.

    Example:
        >>> temporal().names(Schema([Field("at", "timestamp"), Field("open", "bool")]))
        ['at']
    """
    return _Chosen("temporal", ())


def _texts(where: str, words: tuple[Any, ...], name: str = "names") -> tuple[str, ...]:
    for word in words:
        if not isinstance(word, str):
            remedy = f"{where}(*{word!r})" if is_sequence(word) else f"{where}('...')"
            raise refuse_argument(where, name, word, "text", remedy)
    return words
