"""State of a fitted step that comes from a file, checked against what the step's class declares.

A declaration is a kind of value and, for an array or a list, its lengths:

"finite[O, C]"      an array of finite float64; C is the number of columns of the step, O that of its outputs
"int64[n_bins]"     as many as the step's parameter or attribute of this name says
"values[V]", "counts[V+1]"   distinct values (Arrow), and one more number: V is the same in the whole step, or for
                             what is learned for each column, in the column
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import numpy as np

from gpupipe.backend.dictionaries import is_dictionary
from gpupipe.errors import ArtifactError
from gpupipe.schema import DTYPES

_DECLARATION = re.compile(r"(?P<kind>\w+)(?:\[(?P<lengths>.*)\])?")
_LENGTH = re.compile(r"(?P<name>\w+)(?:\+(?P<more>\d+))?")
_ARRAYS = {
    "finite": ("float64", np.isfinite),
    "float64": ("float64", None),
    "positive": ("float64", lambda values: np.isfinite(values) & (values > 0)),
    "counts": ("int64", lambda values: values >= 0),
    "int64": ("int64", None),
    "bool": ("bool", None),
}
_WORDS: dict[str, Any] = {
    "text": lambda item: isinstance(item, str),
    "dtype": lambda item: item in DTYPES,
    "integer": lambda item: isinstance(item, int) and not isinstance(item, bool),
    "count": lambda item: isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63,
}


def check_value(where: str, name: str, value: Any, declaration: str, lengths: dict[str, int]) -> None:
    """Raise `ArtifactError` unless a value is as declared; what it says about lengths is added to `lengths`."""
    parts = _DECLARATION.fullmatch(declaration)
    assert parts is not None
    kind, dims = parts["kind"], [] if parts["lengths"] is None else parts["lengths"].split(", ")
    if kind in _ARRAYS:
        dtype, test = _ARRAYS[kind]
        if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != len(dims):
            _refuse(where, name, value, declaration)
        _check_lengths(where, name, value, value.shape, declaration, dims, lengths)
        if test is not None and not test(value).all():
            _refuse(where, name, value, declaration)
    elif kind == "values":
        if not is_dictionary(value):
            _refuse(where, name, value, declaration)
        _check_lengths(where, name, value, (len(value),), declaration, dims, lengths)
    elif dims:
        if not isinstance(value, list) or not all(map(_WORDS[kind], value)):
            _refuse(where, name, value, declaration)
        _check_lengths(where, name, value, (len(value),), declaration, dims, lengths)
    elif not _WORDS[kind](value):
        _refuse(where, name, value, declaration)


def find_lengths(declaration: str) -> list[str]:
    """Return the names of the lengths in a declaration."""
    return [parts["name"] for parts in _LENGTH.finditer(declaration.partition("[")[2])]


def require_state(condition: bool, where: str, name: str, value: Any, expected: str) -> None:
    """Raise `ArtifactError` for a piece of state that does not go with another."""
    if not condition:
        _refuse(where, name, value, expected)


def _check_lengths(
    where: str, name: str, value: Any, shape: Any, declaration: str, dims: list[str], lengths: dict[str, int]
) -> None:
    for size, dim in zip(shape, dims, strict=True):
        parts = _LENGTH.fullmatch(dim)
        assert parts is not None
        length = size - int(parts["more"] or 0)
        if length < 0 or lengths.setdefault(parts["name"], length) != length:
            sizes = {letter: number for letter, number in lengths.items() if letter in declaration}
            _refuse(where, name, value, f"{declaration} with {sizes}")


def _refuse(where: str, name: str, value: Any, declaration: str) -> NoReturn:
    got = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else value
    problem = f"its saved state is of another type, shape or range: {name}"
    raise ArtifactError(where, problem, got=got, expected=declaration, remedy="saving again, or a copy that is whole")
