"""Errors: one family, with texts built from their attributes.

GpupipeError
├── ColumnNotFound, SchemaMismatch, BadData, BadConfig, BadCall, AttributeNotFound, NotFitted     what the caller gave
├── ExpressionError, LeakageError                                     what a pipeline says
├── BadFile, ArtifactError, PartitionFailed, PlanFailed               what lies on disk
├── BackendMissing, ClusterLost                                       the machine
└── CopyRequired, OutOfDeviceMemory                                   memory

A message has four facts: where it happened, what is wrong with the value that was seen, what was expected, what to try.
The facts are attributes as well, and every class survives pickling (workers send errors between processes).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from difflib import get_close_matches

__all__ = ["ArtifactError", "AttributeNotFound", "BackendMissing", "BadCall", "BadConfig", "BadData", "BadFile"]
__all__ += ["ClusterLost", "ColumnNotFound", "CopyRequired", "ExpressionError", "GpupipeError", "LeakageError"]
__all__ += ["NotFitted", "OutOfDeviceMemory", "PartitionFailed", "PlanFailed", "SchemaMismatch"]

_UNSEEN = object()
_ALIKE = 0.7  # below it difflib calls names alike that share nothing but letters
_LONGEST = 200  # characters of a value
_TELLING = 3  # characters that a part of a name needs to stand for it


class GpupipeError(Exception):
    """Base class of all errors of gpupipe; its text is built from its attributes.

    Args:
        where: the file, column, step or call the problem was met in.
        expected: what would have done, a full sentence's middle ("a column of the dataset").
        remedy: one action, as code where possible.
        got: the value seen; shown by `repr`, shortened.

    Example:
        >>> print(BadConfig("PCA", "n_components is too large", got=9, expected="at most 3", remedy="n_components=3"))
        PCA: n_components is too large, got 9.
        Expected at most 3.
        Try: n_components=3
    """

    def __init__(self, where: str, problem: str, *, expected: str, remedy: str, got: object = _UNSEEN) -> None:
        self.where, self.problem, self.expected, self.remedy = where, problem, expected, remedy
        self.got = None if got is _UNSEEN else got
        value = re.sub(r"\s*\n\s*", " ", repr(got))  # of a frame
        suffix = "" if got is _UNSEEN else f", got {value if len(value) <= _LONGEST else f'{value[: _LONGEST - 3]}...'}"
        text = f"{_escape(where)}: {problem}{suffix}.\nExpected {expected}.\nTry: {remedy}"
        super().__init__("\n".join(map(_escape, text.split("\n"))))

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _escape(text: str) -> str:
    """Escape what moves a terminal's cursor or colours it, and bytes in names of files that are not UTF-8."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def _rebuild(cls: type[GpupipeError], args: tuple[object, ...], facts: dict[str, object]) -> GpupipeError:
    error = cls("", "", expected="", remedy="")  # MemoryError's children cannot be made by `cls.__new__`
    error.args = args
    error.__dict__.update(facts)
    return error


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Find the name that was meant: misspelt, in other capitals, without its underscores, or cut short; else None."""
    key, plain = _plain(str(name)), {_plain(str(word)): word for word in reversed([*names])}
    near = [word for word in plain if sorted(word) == sorted(key)]  # letters in another order, of short names too
    near = near or get_close_matches(key, plain, n=1, cutoff=_ALIKE)
    if not near and len(key) >= _TELLING:
        longer = [word for word in plain if key in word or (len(word) >= _TELLING and word in key)]
        near = sorted(longer, key=lambda word: abs(len(word) - len(key)))
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name.lower())


class ColumnNotFound(GpupipeError, KeyError):
    """Column not found; the closest name is suggested."""

    column: str = ""

    @classmethod
    def among(
        cls, where: str, name: str, names: Iterable[str], offer: str | None = None, other_names: Container[str] = ()
    ) -> ColumnNotFound:
        """Build the error for `name`, which is not one of `names`; `offer` is the remedy where none is like it.

        `other_names` are those of other columns: `name` is none of them misspelt.
        """
        columns = list(names)
        near = nearest(name, (column for column in columns if column not in other_names))
        offer = offer or ("one of the names above" if columns else "data that has columns")
        remedy = offer if near is None else f"{near!r} (the closest name)"
        error = cls(where, f"column {name!r} not found", got=columns, expected="a column that is there", remedy=remedy)
        error.column = name
        return error


class SchemaMismatch(GpupipeError, ValueError):
    """Schema mismatch: a frame or file has other columns or dtypes than its schema; `column` has a value of another."""

    column: str | None = None


class BadData(GpupipeError, ValueError):
    """Invalid values: infinities, an all-missing column, duplicate keys; `row` is the first one's position if known."""

    row: int | None = None


class BadConfig(GpupipeError, ValueError):
    """Invalid parameter value."""


class BadCall(GpupipeError, TypeError):
    """Call with an argument that is not there, with one too many, or without one that is needed."""


class AttributeNotFound(GpupipeError, AttributeError):
    """Attribute that is not there, such as one of pandas' frames; what does the same is suggested."""


class NotFitted(GpupipeError, RuntimeError):
    """Not fitted: learned state was requested before `fit`."""


class ExpressionError(GpupipeError, ValueError):
    """Expression that does not parse, or contains something that is not allowed."""


class LeakageError(GpupipeError, ValueError):
    """Target leakage: a feature reads a column that the target is computed from."""


class BadFile(GpupipeError, OSError):
    """File that cannot be read in its format."""


class ArtifactError(GpupipeError, ValueError):
    """Saved pipeline that is damaged, altered, of another version, or not allowed to load."""


class PartitionFailed(GpupipeError, RuntimeError):
    """Partition that failed; names its file, its row groups and the cause."""


class PlanFailed(GpupipeError, RuntimeError):
    """Plan over a whole table that failed; names the verb, or the operation that an engine does not have."""


class ClusterLost(GpupipeError, ConnectionError):
    """Cluster lost: the scheduler or all workers disappeared while work was waiting for them."""


class BackendMissing(GpupipeError, ImportError):
    """Backend that cannot run on this machine."""


class CopyRequired(GpupipeError, ValueError):
    """Copy required: memory cannot be used by both sides, and copying was not allowed."""


class OutOfDeviceMemory(GpupipeError, MemoryError):
    """Device out of memory; reports bytes requested and free."""

    requested: int | None = None
    free: int | None = None
