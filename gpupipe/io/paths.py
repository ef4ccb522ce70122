"""From what a caller names to files: a path, a list, a pattern, a folder, a URL that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import Any, TypeAlias

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from gpupipe.errors import BadFile

__all__ = ["PathLike", "find_files", "open_file", "peek"]

PathLike: TypeAlias = str | os.PathLike[str]


def find_files(paths: PathLike | Sequence[PathLike], suffixes: Sequence[str]) -> list[str]:
    """The files meant, in the order given; those of a folder or pattern sorted by name.

    A folder stands for the files below it whose names end in one of `suffixes`, but not in `.` or `_` at the beginning:
    writers use such names for what is not data. A pattern matches no hidden file.

    Raises:
        BadFile: nothing is there, or a folder's subfolders carry values (`year=2013`) that would be lost.
    """
    listed: Iterable[PathLike] = [paths] if isinstance(paths, str | os.PathLike) else paths
    found = [file for path in listed for file in _expand(os.fspath(path), suffixes)]
    if not found:
        raise BadFile("files", "the list of paths is empty", expected="one path at least", remedy="['data.parquet']")
    return found


def open_file(path: str) -> AbstractContextManager[Any]:
    """What readers take, as a context: the path itself where it is local, else the opened file."""
    if "://" in path:
        opened: AbstractContextManager[Any] = fsspec.open(path, "rb")
        return opened
    return nullcontext(path)


def peek(path: str, num_bytes: int = 16) -> tuple[int, bytes, bytes]:
    """A file's size, its first and its last bytes."""
    fs, inner = url_to_fs(path)
    size = int(fs.size(inner))
    with fs.open(inner, "rb") as file:
        head = file.read(num_bytes)
        file.seek(max(0, size - num_bytes))
        return size, head, file.read(num_bytes)


def _expand(path: str, suffixes: Sequence[str]) -> list[str]:
    fs, inner = url_to_fs(path)

    def named(names: Iterable[str]) -> list[str]:
        return (
            sorted(names) if isinstance(fs, LocalFileSystem) else [fs.unstrip_protocol(name) for name in sorted(names)]
        )

    if fs.isfile(inner):
        return [path]
    if fs.isdir(inner):
        inside = {name: name[len(inner) :].strip("/").split("/") for name in fs.find(inner)}
        files = {n: p for n, p in inside.items() if n.endswith(tuple(suffixes)) and not any(s[:1] in "._" for s in p)}
        for parts in files.values():
            _refuse_hive(path, parts[:-1])
        if not files:
            raise BadFile(
                path,
                f"the folder holds no {' or '.join(suffixes)} file",
                got=sorted("/".join(p) for p in inside.values())[:5],
                expected="at least one",
                remedy="the list of files, or a pattern: 'folder/*'",
            )
        return named(files)
    found = [name for name in fs.glob(inner) if fs.isfile(name) and not name.rpartition("/")[2].startswith(".")]
    if not found:
        raise _missing(fs, path, inner)
    return named(found)


def _refuse_hive(folder: str, parts: Sequence[str]) -> None:
    for part in parts:
        if "=" in part:
            raise BadFile(
                folder,
                f"the subfolder {part!r} carries a column's values, which would be lost",
                expected="files that hold all their columns",
                remedy="gp.from_frame(pyarrow.dataset.dataset(path, partitioning='hive').scanner().to_reader())",
            )


def _missing(fs: Any, path: str, inner: str) -> BadFile:
    parent, _, name = inner.rpartition("/")
    siblings = [item.rpartition("/")[2] for item in fs.ls(parent, detail=False)] if fs.isdir(parent) else []
    near = get_close_matches(name, siblings, n=1, cutoff=0.5)
    if near:
        remedy = f"{near[0]!r} (the closest name there)"
    elif siblings:
        remedy = "one of the names in that folder"
    else:
        remedy = "a path that exists; this one's folder does not"
    return BadFile(path, "no such file", expected="a file, a folder, a pattern with a match, or a URL", remedy=remedy)
