"""Schema agreement of many files: the first one's columns, checked against every other file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from gpupipe.backend.arrow_types import Reading, dtype_from_arrow, read_as
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.io.formats.bad_files import BadFilePolicy
from gpupipe.io.formats.table_file import TableFile
from gpupipe.schema import FLOATS, INTEGERS, LISTS, get_element_dtype, is_passenger, to_list_dtype

__all__ = ["agree_on_schema"]

_UTC = "timestamp[us, tz=UTC]"
Files = TypeVar("Files", bound="TableFile")


def agree_on_schema(
    files: Mapping[int, Files], columns: Sequence[str] | None, policy: BadFilePolicy
) -> tuple[dict[str, Reading], dict[int, Files]]:
    """Return the dtypes the columns are read as, and the usable files; report differences to `policy`.

    A column of Arrow's type null has no value at all, and is one of any type: that of the first file with a value.
    Where files are cast, integers and floats are of the widest type of their kind in any file: none is rounded.

    Args:
        files: in order.
        columns: the columns the files have to share; all of the first file's by default.
        policy: handles every file that differs.

    Raises:
        SchemaMismatch: a file differs, unless `policy` lets that pass.
        ColumnNotFound: one of `columns` is not in the first file.
    """
    kept: dict[int, Files] = {}
    agreement = None
    widest = _widest(files.values()) if policy.casts else {}
    twice: set[str] = set()
    same: set[tuple[int, tuple[str, ...]]] = set()  # most files share one schema object with the first
    for number, file in files.items():
        try:
            if agreement is None:
                agreement = _Agreement(file, columns, widest)
            if (id(file.schema), tuple(file.origin.keys)) not in same:
                agreement.check(file, policy)
                if not policy.casts:
                    same.add((id(file.schema), tuple(file.origin.keys)))
        except SchemaMismatch as error:
            policy.refuse(file.origin.path, error)
        else:
            kept[number] = file
            for name in sorted({*file.origin.keys}.intersection(file.schema.names).difference(twice)):
                twice.add(name)
                told = f"column {name!r} is in the file and in its folder's name; the files' own is read"
                policy.adapt(file.origin.path, told)
    return _readings(agreement.dtypes, columns, kept, policy) if agreement else {}, kept


def _readings(
    dtypes: Mapping[str, str], columns: Sequence[str] | None, files: Mapping[int, TableFile], policy: BadFilePolicy
) -> dict[str, Reading]:
    """Return the dtypes of the columns if all files have the given ones; add a note on each converted column."""
    written: dict[str, set[str]] = {name: set() for name in dtypes}
    unknown: dict[str, tuple[str, tuple[object, Reading]]] = {}
    for file in {(id(file.schema), tuple(file.origin.keys)): file for file in files.values()}.values():
        read = {name: (kind, read_as(kind)) for name, kind in _types(file).items()}
        read = {name: pair for name, pair in read.items() if columns is None or name in columns}
        changed = {name: (kind, found) for name, (kind, found) in read.items() if not pa.types.is_null(kind)}
        policy.convert(file.origin.path, changed)
        for name in changed.keys() & written.keys():
            written[name].add(changed[name][1].written_as)
        unknown |= {name: (file.origin.path, pair) for name, pair in read.items() if pa.types.is_null(pair[0])}
    for name, (path, pair) in unknown.items():
        if name in written and not written[name]:
            policy.convert(path, {name: pair})
    found = {}
    for name, dtype in dtypes.items():
        ways = written[name] or {""}
        one = next(iter(ways)) if len(ways) == 1 else _UTC if all("tz=" in way for way in ways) else ""
        found[name] = Reading(dtype, one)
        if len(ways) > 1:
            kinds = " and ".join(sorted(way or "timestamp[us]" for way in ways))
            change = f"as the files differ, read as {one or 'timestamp[us]'}, the same times in UTC"
            policy.convert(next(iter(files.values())).origin.path, {name: (kinds, Reading(dtype, one, change))})
    return found


class _Agreement:
    """Columns' types by name, and the file each was first found in."""

    def __init__(self, first: TableFile, columns: Sequence[str] | None, widest: Mapping[str, str]) -> None:
        types = _types(first)
        for name in columns or ():
            if name not in types:
                raise ColumnNotFound.among(first.origin.path, name, types)
        self._widest = widest
        dtypes = {name: widest.get(name) or dtype_from_arrow(kind) for name, kind in types.items()}
        self.dtypes = {name: dtype for name, dtype in dtypes.items() if dtype and (columns is None or name in columns)}
        self._first, self._takes_all = first.origin.path, columns is None
        self._known_from = {name: self._first for name in self.dtypes if not pa.types.is_null(types[name])}

    def check(self, file: TableFile, policy: BadFilePolicy) -> None:
        """Raise unless a file has these columns, or is cast; learn the types of those that had no value before."""
        types = _types(file)
        named = {name: dtype_from_arrow(kind) for name, kind in types.items() if not pa.types.is_null(kind)}
        new = {name: dtype for name, dtype in named.items() if dtype and name not in self._known_from}
        new = {name: self._widest.get(name, dtype) for name, dtype in new.items() if name in self.dtypes}
        wanted = self.dtypes | new
        differing = [name for name in wanted if name not in types or (name in named and named[name] != wanted[name])]
        if self._takes_all:
            differing += [
                name for name, kind in types.items() if name not in wanted and dtype_from_arrow(kind) is not None
            ]
        unworkable = [name for name in differing if name in types and not _can_be(types[name], wanted.get(name))]
        if differing and (unworkable or not policy.casts):
            name = (unworkable or differing)[0]
            known_from = self._known_from.get(name, self._first)
            raise SchemaMismatch(
                file.origin.path,
                f"column {name!r} is {_format_type(types[name]) if name in types else 'not there'}",
                expected=f"{wanted.get(name, 'no such column')}, as in {known_from}",
                remedy="columns=[...] with what all files share, on_mismatch="
                + ("'skip', or it written anew" if policy.casts else "'cast' or 'skip', or it written anew"),
            )
        if differing:
            told = (f"column {name!r} is {_format_difference(name, types, wanted)}" for name in differing)
            policy.adapt(file.origin.path, "; ".join(told))
        self.dtypes |= new
        self._known_from |= dict.fromkeys(new, file.origin.path)


def _widest(files: Iterable[TableFile]) -> dict[str, str]:
    """Return, by column, the type that holds all values of its files' types of the first one's kind."""
    widest: dict[str, str] = {}
    for file in {id(file.schema): file for file in files}.values():
        for item in file.schema:
            dtype = None if pa.types.is_null(item.type) else dtype_from_arrow(item.type)
            if dtype is not None:
                widest[item.name] = _wider(widest.get(item.name, dtype), dtype)
    return widest


def _wider(dtype: str, other: str) -> str:
    one, two = get_element_dtype(dtype), get_element_dtype(other)
    if one is not None and two is not None:
        return to_list_dtype(_wider(one, two))
    kind = next((kind for kind in (INTEGERS, FLOATS) if dtype in kind and other in kind), None)
    wider = str(np.promote_types(dtype, other)) if kind else dtype
    return wider if wider in (kind or ()) else dtype


def _types(file: TableFile) -> dict[str, pa.DataType]:
    names = file.schema.names
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatch(
            file.origin.path, "columns share a name", got=twice, expected="unique names", remedy="write the file again"
        )
    held = {item.name: item.type for item in file.schema}
    return held | {name: value.type for name, value in file.origin.keys.items() if name not in held}


def _can_be(kind: pa.DataType, wanted: str | None) -> bool:
    """Return whether values of a type can be cast to the one wanted, if any: lists only to lists."""
    dtype = dtype_from_arrow(kind)
    if dtype is None or wanted is None:
        return wanted is None
    return (dtype in LISTS) == (wanted in LISTS) and is_passenger(dtype) == is_passenger(wanted)


def _format_type(kind: pa.DataType) -> str:
    return dtype_from_arrow(kind) or str(kind)


def _format_difference(name: str, types: Mapping[str, pa.DataType], wanted: Mapping[str, str]) -> str:
    if name not in wanted:
        return "new and left out"
    return (
        f"{_format_type(types[name])}, read as {wanted[name]}" if name in types else "not there and missing throughout"
    )
