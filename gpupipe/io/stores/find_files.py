"""File discovery: from a path, a list, a pattern, a folder or a URL, with the columns of Hive folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.compression import compr
from fsspec.utils import infer_compression

from gpupipe.backend.arrow import arrow_type
from gpupipe.cluster.executor import LocalThreads
from gpupipe.errors import BadData, BadFile
from gpupipe.io.jobs.destination import MANIFEST, RECORDS, Manifest
from gpupipe.io.stores.remote_file import (
    StorageOptions,
    call_with_retries,
    change_since,
    fetch,
    find_kind,
    get_stat,
    is_local,
    is_remote,
    locate,
    open_stored,
)
from gpupipe.support.validation import check_instance, is_sequence, refuse_argument

Keys = Mapping[str, pa.Scalar]
"""The columns whose one value a file's folders tell."""

_MISSING = "__HIVE_DEFAULT_PARTITION__"
_MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ": "xz"}
PathLike: TypeAlias = str | os.PathLike[str]
_AT_ONCE = 16


def _parse_keys(folders: Sequence[str]) -> dict[str, str | None]:
    """Parse folder names such as `city=New%20York` to text by column, None for a missing value."""
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {unquote(name): None if text == _MISSING else unquote(text) for name, _, text in pairs if name}


def folder_name(name: str) -> str:
    """Escape a column's name for use before `=`; `_parse_keys` parses it again."""
    return re.sub(r"[%=/\x00-\x1f]", lambda found: quote(found[0], safe=""), name)


def check_folder_text(name: str, values: pa.ChunkedArray) -> None:
    """Raise `BadData` for a text that no folder's name gives back: that of missing values, or one with a NUL."""
    lost = values.filter(pc.or_(pc.equal(values, _MISSING), pc.match_substring(values, "\0")))
    if len(lost):
        text, problem = lost[0].as_py(), f"column {name!r} has a text that a folder's name cannot hold"
        expected = f"texts without the character NUL, other than {_MISSING!r}"
        remedy = f"T.Replace({{{name!r}: {{{text!r}: 'other'}}}}) before it"
        raise BadData("write_parquet(partition_by=)", problem, got=text, expected=expected, remedy=remedy)


def _cast_keys(keys: Sequence[Mapping[str, str | None]], dtypes: Mapping[str, str], where: str) -> list[Keys]:
    """Convert the keys of every file to known types; else to int64 where all texts are whole numbers, or to string."""
    texts: dict[str, set[str | None]] = {}
    for one in keys:
        for name, text in one.items():
            texts.setdefault(name, set()).add(text)
    values: dict[tuple[str, str | None], pa.Scalar] = {}
    for name, found in texts.items():
        present = [text for text in found if text is not None]
        whole = bool(present) and all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in present)
        kind = arrow_type(dtypes.get(name) or ("int64" if whole else "string"))
        for text in found:
            try:
                values[name, text] = pa.scalar(text, pa.large_string()).cast(kind)
            except pa.ArrowInvalid as cause:
                problem = f"the folder name {name}={text} holds no {kind}"
                expected = "the folders as write_parquet(partition_by=) left them"
                raise BadFile(where, problem, expected=expected, remedy="the folder written again") from cause
    return [{name: values[name, text] for name, text in one.items()} for one in keys]


@dataclass(frozen=True)
class Input:
    """Input file: a local path or URL, and its stamp and bytes before anything was read; None where not known."""

    path: str
    keys: Keys = field(default_factory=dict)  # the columns whose value its folders' names tell
    storage_options: StorageOptions | None = field(default=None, repr=False)  # may hold secrets
    stamp: str | None = None
    size: int | None = None

    def stamped(self) -> Input:
        """Return the file with its current stamp and size."""
        found = get_stat(self.path, self.storage_options)
        return replace(self, stamp=found.stamp, size=found.size)

    def change(self) -> str | None:
        """Describe how the file has changed since it was stamped; None where it has not."""
        return None if self.stamp is None else change_since(self.path, self.stamp, self.storage_options)


def find_files(
    paths: PathLike | Sequence[PathLike], suffixes: Sequence[str], storage_options: StorageOptions | None = None
) -> list[Input]:
    """Find the named files, in the order given; those of a folder or pattern sorted by name.

    A folder stands for the files below it whose names end in one of `suffixes`, in small or capital letters, but not
    with `.` or `_` at the beginning: writers use such names for what is not data. Where it has a manifest of ours, it
    stands for the files listed there, in that order. A pattern stands for the files it matches but hidden ones; one
    that matches folders alone, for the files below these. Folders named `key=value`, below the folder or from a
    pattern's first wildcard on, give columns.
    """
    listed: Iterable[PathLike] = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not is_sequence(listed) or not all(isinstance(path, str | os.PathLike) for path in listed):
        raise refuse_argument("read", "path", paths, "a path, or a list of paths", "'data.parquet'")
    check_instance("read", Mapping, "options by name", None, storage_options=storage_options)
    names = [os.fspath(path) for path in listed]
    if "" in names:
        raise BadFile("files", "a path is empty", got="", expected="a path", remedy="'data.parquet', or '.'")
    threads = LocalThreads(_AT_ONCE if any(map(is_remote, names)) else 1)
    expand = partial(_expand, suffixes=suffixes, storage_options=storage_options)
    found = [file for files in threads.map(expand, names) for file in files]
    if not found:
        raise BadFile("files", "the list of paths is empty", expected="one path at least", remedy="['data.parquet']")
    return found


@contextmanager
def open_file(one: Input) -> Iterator[Any]:
    """Open a file for readers: yield the path itself where it is local, else a file object (`open_stored`)."""
    if is_remote(one.path):
        with open_stored(one.path, one.storage_options) as file:
            yield file
    else:
        yield one.path


@contextmanager
def open_decompressed(one: Input) -> Iterator[Any]:
    """Open a file for sequential reading; decompress it where its name ends in `.gz`, `.zst` and the like."""
    with open_stored(one.path, one.storage_options) as packed:
        if one.path.endswith(".zst"):
            # pyarrow brings the codec; fsspec would need another package.
            with pa.CompressedInputStream(packed, "zstd") as file:
                yield file
        else:
            yield compr[infer_compression(one.path)](packed, mode="rb")


def is_packed(path: str) -> bool:
    """Return whether a file's name says that it is compressed."""
    return path.endswith(".zst") or infer_compression(path) is not None


def refuse_packed(path: str, head: bytes) -> None:
    """Raise `BadFile` for a compressed file whose name does not say so, by its first bytes."""
    suffix = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), None)
    if suffix is not None and not is_packed(path):
        problem, expected = (
            f"it is packed (.{suffix}), and its name does not say so",
            f"text, or a name ending in .{suffix}",
        )
        remedy = f"rename it to {path.rpartition('/')[2]}.{suffix}"
        raise BadFile(path, problem, got=head[:4], expected=expected, remedy=remedy)


def peek(one: Input, num_bytes: int = 16) -> tuple[int, bytes, bytes]:
    """Read a file's size, its first and its last bytes."""
    size = get_stat(one.path, one.storage_options).size if one.size is None else one.size
    num_bytes = min(num_bytes, size)
    head, tail = fetch(one.path, [(0, num_bytes), (size - num_bytes, size)], one.storage_options)
    return size, head, tail


def _expand(path: str, suffixes: Sequence[str], storage_options: StorageOptions | None) -> list[Input]:
    storage_options = storage_options or None
    fs, inner = locate(path, storage_options)
    kind = find_kind(path, storage_options)
    if kind == "file" and not (is_remote(path) and path.endswith("/")):  # a store may have both of a name
        return [Input(path if is_remote(path) or "://" not in path else inner, storage_options=storage_options)]
    found, fixed, folders, dtypes = list[str](), inner, {path: inner}, dict[str, str]()
    if kind is None:  # a pattern
        matches = call_with_retries(lambda: dict(fs.glob(inner, detail=True)), path, "listed")
        names = sorted(name for name in matches if not name.rstrip("/").rpartition("/")[2].startswith("."))
        fixed = re.split(r"[*?\[]", inner, maxsplit=1)[0].rpartition("/")[0]
        found = [name for name in names if matches[name]["type"] == "file"]
        below = [name.rstrip("/") for name in names if not found and matches[name]["type"] == "directory"]
        folders = {folder if is_local(fs) else fs.unstrip_protocol(folder): folder for folder in below}
        if not found and not folders:
            raise _missing(fs, path, inner)
    for url, folder in folders.items():
        inside, types = _inside(fs, url, folder, suffixes, storage_options)
        found += inside
        dtypes |= types
    keys = _cast_keys([_parse_keys(name[len(fixed) :].split("/")[:-1]) for name in found], dtypes, path)
    full = found if is_local(fs) else [fs.unstrip_protocol(name) for name in found]
    return [Input(name, own, storage_options) for name, own in zip(full, keys, strict=True)]


def _inside(
    fs: Any, path: str, folder: str, suffixes: Sequence[str], storage_options: StorageOptions | None
) -> tuple[list[str], Mapping[str, str]]:
    """List the files in a folder, and the dtypes of its Hive columns where those are known."""
    below = _below if is_local(fs) else fs.find
    listed = call_with_retries(lambda: list(below(folder)), path, "listed")
    inside = {name: name[len(folder) :].strip("/").split("/") for name in listed}
    dtypes: Mapping[str, str] = {}
    names = sorted(n for n, parts in inside.items() if not any(part[:1] in "._" for part in parts))
    manifest = Manifest.read(path, storage_options) if [MANIFEST] in inside.values() else None
    if manifest is not None:
        names, dtypes = [f"{folder.rstrip('/')}/{name}" for name in manifest.files], manifest.partition_by
    elif any(parts[0] == RECORDS for parts in inside.values()):
        problem = "it is being written, or was left unfinished: it has no manifest yet"
        remedy = "the same write_parquet call again, which goes on where it stopped"
        raise BadFile(path, problem, expected="a folder that is whole", remedy=remedy)
    names = [name for name in names if name.lower().endswith(tuple(suffixes))]
    if not names:
        problem, got = f"the folder holds no {' or '.join(suffixes)} file", sorted(map("/".join, inside.values()))[:5]
        remedy = "the list of files, or a pattern: 'folder/*'"
        raise BadFile(path, problem, got=got, expected="at least one", remedy=remedy)
    return names, dtypes


def _below(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield all files below a local folder, also in linked folders; skip links to a parent folder."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _below(f"{folder.rstrip('/')}/{entry.name}", (*above, real))
            else:
                yield f"{folder.rstrip('/')}/{entry.name}"


def _missing(fs: Any, path: str, inner: str) -> BadFile:
    parent, _, name = inner.rpartition("/")
    siblings: list[str] = []
    with suppress(OSError):  # permission to read a file does not imply permission to list its folder
        siblings = [item.rpartition("/")[2] for item in fs.ls(parent, detail=False)] if fs.isdir(parent) else []
    near = get_close_matches(name, siblings, n=1, cutoff=0.5)
    if near:
        remedy = f"{near[0]!r} (the closest name there)"
    elif siblings:
        remedy = "one of the names in that folder"
    else:
        remedy = f"a path that exists; this one's folder{' or bucket' if is_remote(path) else ''} does not"
    return BadFile(path, "no such file", expected="a file, a folder, a pattern with a match, or a URL", remedy=remedy)
