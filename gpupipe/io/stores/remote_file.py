"""Bytes of files in stores, by fsspec: only the ranges that are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from gpupipe.errors import BackendMissing, BadConfig, BadFile
from gpupipe.io.stores.retry import retried, status_of

__all__ = [
    "StorageOptions",
    "change_since",
    "fetch",
    "find_kind",
    "is_local",
    "is_remote",
    "locate",
    "look_at",
    "opened",
    "stamp_of",
]

StorageOptions: TypeAlias = Mapping[str, Any]
Range: TypeAlias = tuple[int, int]

PIECE_BYTES = 8 << 20
"""Asked for in one request, so that little is lost when the connection is."""
STREAM_BYTES = 32 << 20
"""Of a file that is read from its beginning to its end, what is asked for at once."""

_STAMPS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "created")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "pip install s3fs"),
    **dict.fromkeys(("gs", "gcs"), "pip install gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "pip install adlfs"),
}


class Stat(NamedTuple):
    """A file's size in bytes, and what changes when it is replaced."""

    size: int
    stamp: str


def is_remote(path: str) -> bool:
    """Whether it is a URL of something that is not on this machine's disks."""
    return "://" in path and not path.startswith(("file://", "local://"))


def locate(path: str, storage_options: StorageOptions | None = None) -> tuple[Any, str]:
    """The file system that a path or URL belongs to, and the name it has there.

    Args:
        path: a path, or a URL that fsspec knows.
        storage_options: for the file system of a URL; local paths need none.

    Raises:
        BackendMissing: the package for such URLs is not installed.
        BadConfig: fsspec knows no such URLs, or the file system takes other options.
    """
    try:
        fs, inner = url_to_fs(path, **(storage_options or {} if is_remote(path) else {}))
    except ImportError as cause:
        remedy = _PACKAGES.get(path.partition("://")[0], "install what is named above")
        raise BackendMissing(path, str(cause), expected="the package for such URLs", remedy=remedy) from cause
    except (ValueError, TypeError, OSError) as cause:
        raise BadConfig(
            path,
            f"it cannot be reached ({type(cause).__name__}: {str(cause).partition(chr(10))[0]})",
            expected="a URL that fsspec knows, and storage_options= its file system takes",
            remedy="fsspec.available_protocols() has the kinds of URLs",
        ) from cause
    return fs, str(inner)


def is_local(fs: Any) -> bool:
    """Whether a file system is this machine's own."""
    return isinstance(fs, LocalFileSystem)


def info_of(fs: Any, inner: str) -> dict[str, Any]:
    """What a store tells of a name, whatever was seen of it before.

    Raises:
        FileNotFoundError: there is nothing of that name.
        Exception: what else the file system raises.
    """
    fs.invalidate_cache(inner)
    try:
        return dict(fs.info(inner))
    except FileNotFoundError as error:
        # fsspec's HTTP says so whatever the server has answered, and keeps the answer as the cause.
        answer = error.__cause__ if "http" in fs.protocol else None
        if answer is None or status_of(answer) in (404, 410):
            raise
        raise answer from None


def find_kind(path: str, storage_options: StorageOptions | None = None) -> str | None:
    """Tell `"file"` from `"directory"`; None where there is neither, whatever was seen of it before."""
    fs, inner = locate(path, storage_options)

    def ask() -> str | None:
        fs.invalidate_cache()
        try:
            return str(info_of(fs, inner)["type"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    return retried(ask, path, "read")


def look_at(path: str, storage_options: StorageOptions | None = None) -> Stat:
    """How large a file is and what its stamp is now, whatever was seen of it before.

    Raises:
        BadFile: there is none, or the store does not tell.
    """
    fs, inner = locate(path, storage_options)
    info = retried(lambda: info_of(fs, inner), path, "read")
    if info.get("size") is None:
        raise BadFile(path, "its size is not known", expected="a store that tells sizes", remedy="a copy of the file")
    changed = next((info[key] for key in _STAMPS if info.get(key)), "")
    return Stat(int(info["size"]), f"{info['size']} {changed}")


def stamp_of(path: str, storage_options: StorageOptions | None = None) -> str | None:
    """What changes when a file is replaced: size and time of change, or etag; None where there is no such file."""
    try:
        return look_at(path, storage_options).stamp
    except BadFile as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def change_since(path: str, stamp: str, storage_options: StorageOptions | None = None) -> str | None:
    """In words, what has become of a file that had this stamp; None where it still has, as had all that was read."""
    now = stamp_of(path, storage_options)
    if now is None:
        return "it is gone"
    return None if now == stamp else f"it was replaced after it was first looked at: {stamp} then, {now} now"


@contextmanager
def opened(path: str, storage_options: StorageOptions | None = None) -> Iterator[Any]:
    """A file open for reading; one in a store is read with patience.

    Raises:
        BadFile: it cannot be read; or it was replaced meanwhile, so that what was read may be of both versions.

    Memory: `STREAM_BYTES` on the host.
    """
    if not is_remote(path):
        with Path(locate(path)[1]).open("rb") as file:
            yield file
        return
    size, stamp = look_at(path, storage_options)
    fs, inner = locate(path, storage_options)
    options = {"url": path, "storage_options": storage_options}
    with _RemoteFile(fs, inner, block_size=STREAM_BYTES, size=size, **options) as file:
        yield file
    if change := change_since(path, stamp, storage_options):
        raise BadFile(path, change, expected="one version of it", remedy="the same call again, on files that stay")


def fetch(path: str, ranges: Sequence[Range], storage_options: StorageOptions | None = None) -> list[bytes]:
    """The bytes of these ranges of a file, all asked for at once; what did not come whole is asked for again.

    Raises:
        BadFile: they did not come whole; see `retried`.

    Memory: the bytes, on the host.
    """
    fs, inner = locate(path, storage_options)
    pieces = {whole: _pieces(*whole) for whole in ranges}
    found: dict[Range, bytes] = {}

    def ask() -> None:
        missing = [piece for own in pieces.values() for piece in own if piece not in found]
        if not missing:
            return
        starts, stops = [start for start, _ in missing], [stop for _, stop in missing]
        failures = []
        for piece, data in zip(missing, fs.cat_ranges([inner] * len(missing), starts, stops), strict=True):
            if isinstance(data, BaseException):
                failures.append(data)
            elif len(data) == piece[1] - piece[0]:
                found[piece] = data
            else:
                failures.append(OSError(f"{len(data)} bytes from {piece[0]} to {piece[1]}"))
        for failure in failures:
            raise failure

    retried(ask, path, "read")
    return [b"".join(found[piece] for piece in pieces[whole]) for whole in ranges]


class _RemoteFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec ships no types
    """A file in a store whose blocks come by `fetch`, as fsspec's own do not ask again for those that are not whole."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return fetch(self.kwargs["url"], [(start, end)], self.kwargs["storage_options"])[0]


def _pieces(start: int, stop: int) -> list[Range]:
    """A range in pieces of a size that is worth a request.

    Example:
        >>> _pieces(5, 5 + PIECE_BYTES + 1)
        [(5, 8388613), (8388613, 8388614)]
    """
    return [(first, min(first + PIECE_BYTES, stop)) for first in range(start, stop, PIECE_BYTES)]
