"""Files on disks and in stores, by fsspec: found, read by byte ranges with retries; and manifests of folders."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.compression import compr
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import glob_translate, infer_compression

from gpupipe.backend.arrow import arrow_type
from gpupipe.cluster.executor import Executor
from gpupipe.errors import BackendMissing, BadConfig, BadData, BadFile
from gpupipe.support.strict_json import MOST_BYTES, parse_json
from gpupipe.support.text import format_count
from gpupipe.support.validation import is_sequence, is_utf8, refuse_argument

Result = TypeVar("Result")
PathLike: TypeAlias = str | os.PathLike[str]
Paths: TypeAlias = PathLike | Sequence[PathLike]
StorageOptions: TypeAlias = Mapping[str, Any]
Range: TypeAlias = tuple[int, int]
Keys: TypeAlias = Mapping[str, pa.Scalar]
"""The columns whose one value a file's folders tell."""

ATTEMPTS = 4
FIRST_WAIT = 0.5  # seconds before the second attempt; doubled for each further one, and up to half of it more or less
PIECE_BYTES = 8 << 20  # asked for in one request, so that little is lost when the connection is
STREAM_BYTES = 32 << 20  # asked for at once of a file that is read from its beginning to its end
MANIFEST = "_manifest.json"
RECORDS = "_records"  # in a store, the folder of records of the parts that are written, until the manifest lists them
_FORMAT = "gpupipe dataset 1"
_AT_ONCE = 16
# After these the same call again would fail the same.
_FINAL: tuple[type[Exception], ...] = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_FINAL += (NotImplementedError, TypeError, ValueError)
_FINAL_NUMBERS = (errno.ELOOP, errno.ENAMETOOLONG)
# What botocore and Google's packages raise before they ask a store.
_NOT_ASKED = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "DefaultCredentialsError")
_REFUSALS = (400, 401, 403, 404, 405)  # answers of HTTP; 400 is S3's to a wrong region too
_STAMPS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "created")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "pip install s3fs"),
    **dict.fromkeys(("gs", "gcs"), "pip install gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "pip install adlfs"),
}
_MISSING = "__HIVE_DEFAULT_PARTITION__"
_MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ": "xz"}
_OF_MACOS = "__MACOSX/"  # the folder of attributes that macOS adds to what it packs
_log = logging.getLogger("gpupipe")


# one file -------------------------------------------------------------------------------------------------------------
def call_with_retries(work: Callable[[], Result], path: str, doing: str) -> Result:
    """Call `work`, a few times with growing waits where a store or the network fails; return its result.

    Stores' own libraries try again too, each what it knows of; this is for the rest, and says so in the log. `work`
    must do no harm when called twice; messages name `path` and `doing`, such as `"read"`.

    Raises:
        BadFile: it failed each time, or there is no such file, or it may not be touched; has the last cause.
    """
    for attempt in count(1):
        try:
            return work()
        except Exception as cause:
            words = f"{type(cause).__name__}: {one_line(cause)}".strip()
            refused = _get_status(cause) in _REFUSALS and not isinstance(cause, TimeoutError)
            is_final = isinstance(cause, _FINAL) or getattr(cause, "errno", None) in _FINAL_NUMBERS
            if is_final or type(cause).__name__ in _NOT_ASKED or refused:
                problem, expected = f"it cannot be {doing} ({words})", "a file that is there and may be used"
                remedy = "its permissions" if isinstance(cause, PermissionError) else "what stands at that path or link"
                if "://" in path:
                    remedy = "the right path, endpoint and region; storage_options= or the environment for credentials"
                raise BadFile(path, problem, expected=expected, remedy=remedy) from cause
            if attempt == ATTEMPTS:
                problem = f"it cannot be {doing}: {attempt} attempts failed, the last with {words}"
                remedy = "the same call again when it does; or another endpoint, in storage_options="
                raise BadFile(path, problem, expected="a store that answers", remedy=remedy) from cause
            wait = FIRST_WAIT * 2 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311
            _log.warning("%s: attempt %d of %d failed (%s), again in %.1f s", path, attempt, ATTEMPTS, words, wait)
        time.sleep(wait)
    raise AssertionError


def _get_status(cause: BaseException) -> int | None:
    """Return the HTTP status of an error, if any: aiohttp's has it, s3fs' has botocore's as its cause."""
    response = getattr(cause.__cause__, "response", None)
    metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = getattr(cause, "status", metadata.get("HTTPStatusCode"))
    return status if isinstance(status, int) else None


def is_remote(path: str) -> bool:
    """Return whether it is a URL of something that is not on this machine's disks."""
    return "://" in path and not path.startswith(("file://", "local://"))


def check_options(where: Any, storage_options: Any) -> StorageOptions | None:
    """Refuse options of a file system that are no mapping; return None where there are none."""
    if not isinstance(storage_options, Mapping | None):
        got, expected = type(storage_options), "a mapping of options by name, or None"  # the value may be a secret
        remedy = "storage_options={'key': ..., 'secret': ...}"
        raise refuse_argument(where, "storage_options", got, expected, remedy, problem="no mapping")
    return storage_options or None


def locate(path: str, storage_options: StorageOptions | None = None) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it; local paths need no options."""
    options = check_options(path, storage_options)
    try:
        fs, inner = url_to_fs(path, **(options if is_remote(path) and options else {}))
    except ImportError as cause:
        remedy = _PACKAGES.get(path.partition("://")[0], "install what is named above")
        raise BackendMissing(path, str(cause), expected="the package for such URLs", remedy=remedy) from cause
    except (ValueError, TypeError, OSError) as cause:
        problem = f"it cannot be reached ({type(cause).__name__}: {str(cause).partition(chr(10))[0]})"
        expected = "a URL that fsspec knows, and storage_options= its file system takes"
        remedy = "fsspec.available_protocols() has the kinds of URLs"
        raise BadConfig(path, problem, expected=expected, remedy=remedy) from cause
    return fs, str(inner)


def _get_info(fs: Any, inner: str) -> dict[str, Any]:
    """Return a store's metadata of a path, never from a cache; raise what the file system raises."""
    fs.invalidate_cache(inner)
    try:
        return dict(fs.info(inner))
    except FileNotFoundError as error:
        # fsspec's HTTP says so whatever the server has answered, and keeps the answer as the cause.
        answer = error.__cause__ if "http" in fs.protocol else None
        if answer is None or _get_status(answer) in (404, 410):
            raise
        raise answer from None


def find_kind(path: str, storage_options: StorageOptions | None = None) -> str | None:
    """Tell `"file"` from `"directory"`; None where there is neither, whatever was seen of it before."""
    fs, inner = locate(path, storage_options)

    def ask() -> str | None:
        fs.invalidate_cache()
        with suppress(FileNotFoundError, NotADirectoryError):
            return str(_get_info(fs, inner)["type"])
        return None

    return call_with_retries(ask, path, "read")


class Stat(NamedTuple):
    """File size in bytes, and a stamp that changes when the file is replaced."""

    size: int
    stamp: str


def get_stat(path: str, storage_options: StorageOptions | None = None) -> Stat:
    """Return the current size and stamp of a file, never from a cache; `BadFile` where the store does not tell."""
    fs, inner = locate(path, storage_options)
    info = call_with_retries(lambda: _get_info(fs, inner), path, "read")
    if info.get("size") is None:
        raise BadFile(path, "its size is not known", expected="a store that tells sizes", remedy="a copy of the file")
    changed = next((info[key] for key in _STAMPS if info.get(key)), "")
    return Stat(int(info["size"]), f"{info['size']} {changed}")


def get_stamp(path: str, storage_options: StorageOptions | None = None) -> str | None:
    """Return a stamp that changes with the file: size and modification time, or etag; None if it is missing."""
    stat = find_stat(path, storage_options)
    return None if stat is None else stat.stamp


def find_stat(path: str, storage_options: StorageOptions | None = None) -> Stat | None:
    """Return the current size and stamp of a file, as `get_stat` does; None if it is missing."""
    try:
        return get_stat(path, storage_options)
    except BadFile as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


@dataclass(frozen=True)
class Listing:
    """Folder or pattern whose files are listed anew by each call that reads it.

    Args:
        protocol: of its file system.
        paths: the path in it, and of a local one also without links.
        suffixes: what the names of the files in a folder end in.
        is_pattern: whether `paths` are patterns, else they are a folder that has no manifest.
        has_folders: whether the pattern matched folders alone.
    """

    protocol: str | tuple[str, ...]
    paths: frozenset[str]
    suffixes: tuple[str, ...]
    is_pattern: bool = False
    has_folders: bool = False

    def includes(self, path: str) -> bool:
        """Return whether a file of this path would be read; see `find_files`."""
        above = [str(folder) for folder in PurePosixPath(path).parents]
        folders = [folder for folder in above if folder in self.paths]
        if self.is_pattern:
            patterns = [re.compile(glob_translate(pattern)) for pattern in self.paths]
            if any(pattern.match(path) for pattern in patterns):
                return not path.rpartition("/")[2].startswith(".")
            matches = [folder for folder in above if any(pattern.match(folder) for pattern in patterns)]
            folders = [folder for folder in matches if self.has_folders and PurePosixPath(folder).name[0] != "."]
        is_listed = path.lower().endswith(self.suffixes)
        return is_listed and any(_is_data(path[len(folder) :].strip("/").split("/")) for folder in folders)


@dataclass(frozen=True)
class Input:
    """Input file: a local path or URL, and its stamp and bytes before anything was read; None where not known."""

    path: str
    keys: Keys = field(default_factory=dict)  # the columns whose value its folders' names tell
    storage_options: StorageOptions | None = field(default=None, repr=False)  # may hold secrets
    stamp: str | None = None
    size: int | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # of `keys`, as text
    listing: Listing | None = field(default=None, compare=False, repr=False)  # by which it was met; None of a file

    def stamped(self) -> Input:
        """Return the file with its current stamp and size."""
        stat = get_stat(self.path, self.storage_options)
        return replace(self, stamp=stat.stamp, size=stat.size)

    def change(self) -> str | None:
        """Describe how the file has changed since it was stamped; None where it has not."""
        now = None if self.stamp is None else get_stamp(self.path, self.storage_options)
        if now == self.stamp:
            return None
        return f"it was replaced after it was first looked at: {self.stamp} then, {now} now" if now else "it is gone"


def fetch(path: str, ranges: Sequence[Range], storage_options: StorageOptions | None = None) -> list[bytes]:
    """Fetch these byte ranges of a file concurrently; request incomplete ones again."""
    fs, inner = locate(path, storage_options)
    pieces = {
        (start, stop): [(first, min(first + PIECE_BYTES, stop)) for first in range(start, stop, PIECE_BYTES)]
        for start, stop in ranges
    }
    contents: dict[Range, bytes] = {}

    def ask() -> None:
        missing = [piece for parts in pieces.values() for piece in parts if piece not in contents]
        if not missing:
            return
        starts, stops = [start for start, _ in missing], [stop for _, stop in missing]
        failure: BaseException | None = None
        for piece, data in zip(missing, fs.cat_ranges([inner] * len(missing), starts, stops), strict=True):
            if isinstance(data, BaseException):
                failure = failure or data
            elif len(data) == piece[1] - piece[0]:
                contents[piece] = data
            else:
                failure = failure or OSError(f"{len(data)} bytes from {piece[0]} to {piece[1]}")
        if failure is not None:
            raise failure

    call_with_retries(ask, path, "read")
    return [b"".join(contents[piece] for piece in pieces[whole]) for whole in ranges]


class _RemoteFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec ships no types
    """Remote file whose blocks come by `fetch`; fsspec's own does not ask again for blocks that are not whole."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return fetch(self.kwargs["url"], [(start, end)], self.kwargs["storage_options"])[0]


@contextmanager
def open_stored(path: str, storage_options: StorageOptions | None = None) -> Iterator[Any]:
    """Open a file for reading; one in a store is read with retries, and refused if it was replaced meanwhile."""
    if not is_remote(path):
        with call_with_retries(lambda: Path(locate(path)[1]).open("rb"), path, "read") as file:
            yield file
        return
    input_file = Input(path, storage_options=storage_options).stamped()
    fs, inner = locate(path, storage_options)
    options = {"url": path, "storage_options": storage_options}
    with _RemoteFile(fs, inner, block_size=STREAM_BYTES, size=input_file.size, **options) as file:
        yield file
    if change := input_file.change():
        raise BadFile(path, change, expected="one version of it", remedy="the same call again, on files that stay")


@contextmanager
def open_file(input_file: Input) -> Iterator[Any]:
    """Open a file for pyarrow's readers."""
    path = input_file.path
    with open_stored(path, input_file.storage_options) if is_remote(path) else pa.OSFile(path) as file:
        yield file


@contextmanager
def open_decompressed(input_file: Input) -> Iterator[Any]:
    """Open a file for sequential reading; decompress it where its name ends in `.gz`, `.zst`, `.zip` and the like."""
    with open_stored(input_file.path, input_file.storage_options) as packed:
        if input_file.path.endswith(".zst"):
            # pyarrow brings the codec; fsspec would need another package.
            with pa.CompressedInputStream(packed, "zstd") as file:
                yield file
        elif infer_compression(input_file.path) == "zip":
            with zipfile.ZipFile(packed) as archive, archive.open(_get_member(archive, input_file.path)) as file:
                yield file
        else:
            yield compr[infer_compression(input_file.path)](packed, mode="rb")


def _get_member(archive: zipfile.ZipFile, path: str) -> zipfile.ZipInfo:
    """Return the only file in an archive."""
    files = (member for member in archive.infolist() if not member.is_dir())
    members = [member for member in files if not member.filename.startswith(_OF_MACOS)]
    expected, remedy = "one file, which anybody may read", "unzip it, and read the files that are meant"
    if len(members) != 1:
        problem = f"the archive holds {format_count(len(members), 'file')}"
        raise BadFile(path, problem, got=[member.filename for member in members], expected=expected, remedy=remedy)
    if members[0].flag_bits & 1:
        raise BadFile(path, "the file in the archive is encrypted", expected=expected, remedy=remedy)
    return members[0]


def is_packed(path: str) -> bool:
    """Return whether a file's name says that it is compressed."""
    return path.endswith(".zst") or infer_compression(path) is not None


def refuse_packed(path: str, head: bytes) -> None:
    """Raise `BadFile` for a compressed file whose name does not say so, by its first bytes."""
    suffix = next((suffix for magic, suffix in _MAGIC.items() if head.startswith(magic)), None)
    if suffix is not None and not is_packed(path):
        problem, expected = f"it is packed (.{suffix}), and its name does not say so", "text, or a name ending in"
        remedy = f"rename it to {path.rpartition('/')[2]}.{suffix}"
        raise BadFile(path, problem, got=head[:4], expected=f"{expected} .{suffix}", remedy=remedy)


def peek(input_file: Input, num_bytes: int = 16) -> tuple[int, bytes, bytes]:
    """Read a file's size, its first and its last bytes."""
    size = get_stat(input_file.path, input_file.storage_options).size if input_file.size is None else input_file.size
    num_bytes = min(num_bytes, size)
    head, tail = fetch(input_file.path, [(0, num_bytes), (size - num_bytes, size)], input_file.storage_options)
    return size, head, tail


def one_line(cause: Exception) -> str:
    """Format a library's exception in one line, for use in a sentence."""
    return " ".join(str(cause).split())


def unreadable(input_file: Input, cause: Exception, kind: str, magic: bytes) -> BadFile:
    """Build the error for a file that is no `kind`, such as `"a Parquet file"`: gone, empty, another, or damaged."""
    path = input_file.path
    try:
        size, head, tail = peek(input_file)
    except OSError:
        problem, expected = f"cannot be opened ({one_line(cause)})", "a file this process may read"
        return BadFile(path, problem, expected=expected, remedy="its permissions")
    if size == 0:
        return BadFile(path, "the file is empty (0 bytes)", expected=kind, remedy="write it again")
    if not head.startswith(magic):
        is_text = head.isascii() and b"\0" not in head
        remedy = "gp.read_csv(...) or gp.read_json(...)" if is_text else "the right path, or the reader for such files"
        problem = f"not {kind}, its first bytes differ"
        return BadFile(path, problem, got=head, expected=repr(magic), remedy=remedy)
    problem = f"damaged or cut off: {size} bytes, the footer cannot be read ({one_line(cause)})"
    remedy = "the file copied or written again (write_parquet(..., overwrite=True) where that wrote it); or "
    remedy += "on_bad='skip', which reads the others"
    return BadFile(path, problem, got=tail[-4:], expected=f"{kind} with its footer", remedy=remedy)


def make_lost_file_error(path: str, cause: Exception) -> BadFile:
    """Build the error for a temporary file of ours that was altered or removed."""
    problem = f"a temporary file cannot be read ({one_line(cause)})"
    expected = "files that stay as long as the dataset, on all workers"
    remedy = "gp.configure(scratch=...) or TMPDIR= with a folder that is not tidied up and that all workers share"
    return BadFile(path, problem, expected=expected, remedy=remedy)


# the manifest of a folder ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FileNote:
    """Note on a file or column that is skipped or converted.

    Args:
        file: its name; of a table in memory `"frame"` or `"stream"`.
        action: of a file `"skipped"`, `"quarantined"` (and recorded next to the output) or `"cast"`; of a column
            `"converted"` or `"left out"`.
        reason: why, or the column's type and what becomes of it.
        column: its name, where it is about one.
    """

    file: str
    action: str
    reason: str
    column: str | None = None

    def __str__(self) -> str:
        where = self.file if self.column is None else f"{self.file}, column {self.column!r}"
        return f"{where}: {self.action}, {self.reason}"


@dataclass(frozen=True)
class Part:
    """Record of a written partition."""

    name: str
    files: dict[str, list[int]]  # rows of each row group, by the file's name in the folder
    rows_in: int  # before any filter
    inputs: list[str]  # the files the rows came from
    halved: list[str] = field(default_factory=list, compare=False)  # a line per piece too large for memory

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Part:
        """Build the part that was written; ValueError for a file that would lie outside the folder."""
        for name in (content["name"], *content["files"]):
            if not name or "\0" in name or name.startswith("/") or ".." in re.split(r"[/\\]", name):
                raise ValueError(f"{name!r} is no file of the folder")
        return cls(**{name: content[name] for name in cls.__dataclass_fields__ if name in content})


PART_SHAPE = {"name": str, "files": {str: [int]}, "rows_in": int, "inputs": [str], "halved?": [str]}
_NOTE = {"file": str, "action": str, "reason": str, "column": (str, None)}
_SHAPE: dict[str, Any] = {"format": str, "job": (str, None), "parts": [PART_SHAPE], "notes": [_NOTE]}
_SHAPE |= {"inputs": {str: str}, "partition_by": {str: str}, "origins?": {str: str}}


@dataclass(frozen=True)
class Manifest:
    """Parts of a folder and their input files; its repr states how much of it the last call wrote."""

    job: str | None  # identifies the pipeline and the options; None where a function has no name
    inputs: Mapping[str, str]  # a stamp of each input file: its size and when it was changed, or its etag
    parts: tuple[Part, ...]
    notes: tuple[FileNote, ...] = ()  # the input files that were not read, or were converted
    partition_by: Mapping[str, str] = field(default_factory=dict)  # the type of each column that became folders
    num_done: int = field(default=0, compare=False)  # how many of the parts had been written before the call
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)  # of each column, as in files' metadata

    @property
    def files(self) -> list[str]:
        """The files that hold the rows, in order."""
        return [name for part in self.parts for name in part.files]

    @property
    def rows_in(self) -> int:
        """The number of rows read, before any filter."""
        return sum(part.rows_in for part in self.parts)

    @property
    def rows_out(self) -> int:
        """The number of rows written."""
        return sum(sum(groups) for part in self.parts for groups in part.files.values())

    def to_json(self) -> str:
        """Return the text of `_manifest.json`."""
        body: dict[str, Any] = {"format": _FORMAT, "job": self.job, "rows_in": self.rows_in, "rows_out": self.rows_out}
        notes, parts = ([asdict(item) for item in items] for items in (self.notes, self.parts))
        body |= {"partition_by": self.partition_by, "origins": self.origins, "inputs": self.inputs}
        body |= {"notes": notes, "parts": parts}
        return json.dumps(body, indent=1)

    @classmethod
    def read(cls, folder: str | Path, storage_options: StorageOptions | None = None) -> Manifest | None:
        """Read the manifest of a folder; None if it has none, `BadFile` if it is damaged."""
        path = f"{str(folder).rstrip('/')}/{MANIFEST}"
        stat = find_stat(path, storage_options)
        if stat is None:
            return None
        try:
            with open_stored(path, storage_options) as file:
                body = parse_json(file.read(min(stat.size, MOST_BYTES) + 1), _SHAPE)
            parts = tuple(map(Part.from_json, body["parts"]))
            notes = tuple(FileNote(**{name: note.get(name) for name in _NOTE}) for note in body["notes"])
            for dtype in body["partition_by"].values():
                arrow_type(dtype)
            kind = {_FORMAT: cls}[body["format"]]
            return kind(
                body["job"], body["inputs"], parts, notes, body["partition_by"], origins=body.get("origins", {})
            )
        except (ValueError, KeyError) as cause:
            remedy = "the folder removed, and written again"
            raise BadFile(path, f"damaged ({cause})", expected="a manifest", remedy=remedy) from cause

    def __repr__(self) -> str:
        new = len(self.parts) - self.num_done
        before = f", {self.num_done} of them before" if self.num_done else ""
        parts = f"{format_count(len(self.parts), 'part')}{before}; {new} written now"
        rows = f"{self.rows_out:,} of {self.rows_in:,} rows in {parts}"
        return "\n".join([rows, *map(str, self.notes), *(line for part in self.parts for line in part.halved)])


# many files -----------------------------------------------------------------------------------------------------------
def find_files(paths: Paths, suffixes: Sequence[str], storage_options: StorageOptions | None = None) -> list[Input]:
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
    names = [os.fspath(path) for path in listed]
    if "" in names:
        raise BadFile("files", "a path is empty", got="", expected="a path", remedy="'data.parquet', or '.'")
    if not names:
        raise BadFile("files", "the list of paths is empty", expected="one path at least", remedy="['data.parquet']")
    threads = Executor(_AT_ONCE if any(map(is_remote, names)) else 1)
    expand = partial(_expand, suffixes=suffixes, storage_options=check_options("read", storage_options))
    inputs = [file for files in threads.map(expand, names) for file in files]
    for file in inputs:
        if not is_utf8(file.path):
            problem, remedy = "the name of a file is not UTF-8", "another name (`mv`, or `convmv` for many)"
            raise BadFile("files", problem, got=file.path, expected="a name in UTF-8", remedy=remedy)
    return inputs


def _expand(path: str, suffixes: Sequence[str], storage_options: StorageOptions | None) -> list[Input]:
    fs, inner = locate(path, storage_options)
    kind, is_local = find_kind(path, storage_options), isinstance(fs, LocalFileSystem)
    if kind == "file" and not (is_remote(path) and path.endswith("/")):  # a store may have both of a name
        return [Input(path if is_remote(path) or "://" not in path else inner, storage_options=storage_options)]
    files, fixed, folders, dtypes, origins = list[str](), inner, {path: inner}, dict[str, str](), dict[str, str]()
    if kind is None:  # a pattern
        matches = call_with_retries(lambda: dict(fs.glob(inner, detail=True)), path, "listed")
        names = sorted(name for name in matches if not name.rstrip("/").rpartition("/")[2].startswith("."))
        fixed = re.split(r"[*?\[]", inner, maxsplit=1)[0].rpartition("/")[0]
        files = [name for name in names if matches[name]["type"] == "file"]
        below = [name.rstrip("/") for name in names if not files and matches[name]["type"] == "directory"]
        folders = {folder if is_local else fs.unstrip_protocol(folder): folder for folder in below}
        if not files and not folders:
            raise _make_missing_error(fs, path, inner)
    paths = {inner, os.path.realpath(fixed or "/") + inner[len(fixed) :]} if is_local else {inner.rstrip("/")}
    listing: Listing | None = Listing(fs.protocol, frozenset(paths), tuple(suffixes), kind is None, not files)
    for url, folder in folders.items():
        inside, manifest = _list_folder(fs, url, folder, suffixes, storage_options)
        files += inside
        if manifest is not None:
            listing = listing if kind is None else None  # what the manifest lists is read, and no other file
            dtypes |= manifest.partition_by
            origins |= {name: manifest.origins[name] for name in manifest.partition_by if name in manifest.origins}
    keys = _cast_keys([_parse_keys(name[len(fixed) :].split("/")[:-1]) for name in files], dtypes, path)
    full = files if is_local else [fs.unstrip_protocol(name) for name in files]
    return [
        Input(name, each, storage_options, origins=origins, listing=listing)
        for name, each in zip(full, keys, strict=True)
    ]


def _list_folder(
    fs: Any, path: str, folder: str, suffixes: Sequence[str], storage_options: StorageOptions | None
) -> tuple[list[str], Manifest | None]:
    """List the files in a folder; return them with its manifest, where it has one."""
    below = _iter_files if isinstance(fs, LocalFileSystem) else fs.find
    listed = call_with_retries(lambda: list(below(folder)), path, "listed")
    inside = {name: name[len(folder) :].strip("/").split("/") for name in listed}
    names = sorted(name for name, parts in inside.items() if _is_data(parts))
    manifest = Manifest.read(path, storage_options) if [MANIFEST] in inside.values() else None
    if manifest is not None:
        names = [f"{folder.rstrip('/')}/{name}" for name in manifest.files]
    elif any(parts[0] == RECORDS for parts in inside.values()):
        problem = "it is being written, or was left unfinished: it has no manifest yet"
        remedy = "the same write_parquet call again, which goes on where it stopped"
        raise BadFile(path, problem, expected="a folder that is whole", remedy=remedy)
    names = [name for name in names if name.lower().endswith(tuple(suffixes))]
    if not names:
        problem, got = f"the folder holds no {' or '.join(suffixes)} file", sorted(map("/".join, inside.values()))[:5]
        remedy = "the list of files, or a pattern: 'folder/*'"
        if manifest is not None and not manifest.files:
            problem, remedy = "the table that was written there has no rows", "write_parquet without partition_by="
        raise BadFile(path, problem, got=got, expected="at least one", remedy=remedy)
    return names, manifest


def _is_data(parts: Sequence[str]) -> bool:
    """Return whether a file holds data, by the parts of its path in a folder: writers hide what does not."""
    return not any(part[:1] in "._" for part in parts)


def _iter_files(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield all files below a local folder, also in linked folders; skip links to a parent folder."""
    real = os.path.realpath(folder)
    if real in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{folder.rstrip('/')}/{entry.name}"
            yield from _iter_files(name, (*above, real)) if entry.is_dir() else [name]


def _make_missing_error(fs: Any, path: str, inner: str) -> BadFile:
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


def folder_name(name: str) -> str:
    """Escape a column's name for use before `=`; `_parse_keys` parses it again."""
    return re.sub(r"[%=/\x00-\x1f]", lambda match: quote(match[0], safe=""), name)


def check_folder_text(name: str, values: pa.ChunkedArray) -> None:
    """Raise `BadData` for a text that no folder's name gives back: that of missing values, or one with a NUL."""
    lost = values.filter(pc.or_(pc.equal(values, _MISSING), pc.match_substring(values, "\0")))
    if len(lost):
        text, problem = lost[0].as_py(), f"column {name!r} has a text that a folder's name cannot hold"
        expected = f"texts without the character NUL, other than {_MISSING!r}"
        remedy = f"T.Replace({{{name!r}: {{{text!r}: 'other'}}}}) before it"
        raise BadData("write_parquet(partition_by=)", problem, got=text, expected=expected, remedy=remedy)


def _parse_keys(folders: Sequence[str]) -> dict[str, str | None]:
    """Parse folder names such as `city=New%20York` to text by column, None for a missing value."""
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {unquote(name): None if text == _MISSING else unquote(text) for name, _, text in pairs if name}


def _cast_keys(keys: Sequence[Mapping[str, str | None]], dtypes: Mapping[str, str], where: str) -> list[Keys]:
    """Convert the keys of every file to known types; else to int64 where all texts are whole numbers, or to string."""
    values: dict[tuple[str, str | None], pa.Scalar] = {}
    for name in dict.fromkeys(name for file_keys in keys for name in file_keys):
        texts = {file_keys[name] for file_keys in keys if name in file_keys}
        present = [text for text in texts if text is not None]
        whole = bool(present) and all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in present)
        kind = arrow_type(dtypes.get(name) or ("int64" if whole else "string"))
        for text in texts:
            try:
                values[name, text] = pa.scalar(text, pa.large_string()).cast(kind)
            except pa.ArrowInvalid as cause:
                problem = f"the folder name {name}={text} holds no {kind}"
                expected = "the folders as write_parquet(partition_by=) left them"
                raise BadFile(where, problem, expected=expected, remedy="the folder written again") from cause
    return [{name: values[name, text] for name, text in file_keys.items()} for file_keys in keys]
