"""The columns of many files: taken from the first one, and checked against every other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from gpupipe.backend.arrow import dtype_of
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.io.admission import Admission

if TYPE_CHECKING:
    from gpupipe.io.files import TableFile

__all__ = ["agreed"]

Files = TypeVar("Files", bound="TableFile")


def agreed(
    files: Mapping[int, Files], columns: Sequence[str] | None, admission: Admission
) -> tuple[dict[str, str], dict[str, str], dict[int, Files]]:
    """The columns' types, the types of those that cannot be worked with, and the files that have them.

    Args:
        files: in order.
        columns: the columns the files have to share; all of the first file's by default.
        admission: told of every file that differs.

    Raises:
        SchemaMismatch: a file differs, unless `admission` lets that pass.
        ColumnNotFound: one of `columns` is not in the first file.
    """
    kept: dict[int, Files] = {}
    dtypes: dict[str, str] = {}
    left_out: dict[str, str] = {}
    first: Files | None = None
    same: set[tuple[int, tuple[str, ...]]] = set()  # most files share one schema object with the first
    for number, file in files.items():
        try:
            if first is None:
                dtypes, left_out = _chosen(file, columns)
                first = file
            elif (id(file.schema), tuple(file.origin.keys)) not in same:
                _check_same(first, dtypes, file, admission, whole=columns is None)
                if not admission.casts:
                    same.add((id(file.schema), tuple(file.origin.keys)))
        except SchemaMismatch as error:
            admission.refuse(file.origin.path, error)
        else:
            kept[number] = file
    return dtypes, left_out, kept


def _chosen(file: TableFile, columns: Sequence[str] | None) -> tuple[dict[str, str], dict[str, str]]:
    types = _types(file)
    for name in columns or ():
        if name not in types:
            raise ColumnNotFound.among(file.origin.path, name, types)
    dtypes = {name: dtype_of(kind) for name, kind in types.items()}
    left_out = {name: str(types[name]) for name, dtype in dtypes.items() if dtype is None}
    wanted = {name: dtype for name, dtype in dtypes.items() if dtype and (columns is None or name in columns)}
    return wanted, left_out


def _types(file: TableFile) -> dict[str, pa.DataType]:
    names = file.schema.names
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaMismatch(
            file.origin.path, "columns share a name", got=twice, expected="unique names", remedy="write the file again"
        )
    held = {item.name: item.type for item in file.schema}
    return held | {name: value.type for name, value in file.origin.keys.items() if name not in held}


def _check_same(
    first: TableFile, wanted: Mapping[str, str], file: TableFile, admission: Admission, *, whole: bool
) -> None:
    types = _types(file)
    found = {name: dtype_of(kind) or str(kind) for name, kind in types.items()}
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if whole:
        differing += [name for name, kind in types.items() if name not in wanted and dtype_of(kind) is not None]
    unworkable = [name for name in differing if name in types and dtype_of(types[name]) is None]
    if differing and admission.casts and not unworkable:
        told = (f"column {name!r} is {_told(name, found, wanted)}" for name in differing)
        admission.adapt(file.origin.path, "; ".join(told))
    elif differing:
        name = (unworkable or differing)[0]
        raise SchemaMismatch(
            file.origin.path,
            f"column {name!r} is {found.get(name, 'not there')}",
            expected=f"{wanted.get(name, 'no such column')}, as in {first.origin.path}",
            remedy="columns=[...] with what the files share, on_mismatch='cast' or 'skip', or the file written again",
        )


def _told(name: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    if name not in wanted:
        return "new and left out"
    return f"{found[name]}, read as {wanted[name]}" if name in found else "not there and missing throughout"
