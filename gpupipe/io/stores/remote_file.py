"""Remote files, by fsspec: reads of only the byte ranges that are needed, with retries."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from gpupipe.errors import BackendMissing, BadConfig, BadFile

Result = TypeVar("Result")

ATTEMPTS = 4
# Seconds before the second attempt; doubled for each further one, and up to half of it more or less by chance.
FIRST_WAIT = 0.5
# After these the same call again would fail the same.
_FINAL: tuple[type[Exception], ...] = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_FINAL += (NotImplementedError, TypeError, ValueError)
# What botocore and Google's packages raise before they ask a store.
_NOT_ASKED = ("NoCredentialsError", "PartialCredentialsError", "ParamValidationError", "DefaultCredentialsError")
_REFUSALS = (400, 401, 403, 404, 405)  # answers of HTTP; 400 is S3's to a wrong region too
_log = logging.getLogger("gpupipe")


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
            words = " ".join(f"{type(cause).__name__}: {cause}".split())
            refused = _get_status(cause) in _REFUSALS and not isinstance(cause, TimeoutError)
            if isinstance(cause, _FINAL) or type(cause).__name__ in _NOT_ASKED or refused:
                here = "its permissions" if isinstance(cause, PermissionError) else "what stands at that path or link"
                elsewhere = "the right path, endpoint and region; storage_options= or the environment for credentials"
                problem, expected = f"it cannot be {doing} ({words})", "a file that is there and may be used"
                remedy = elsewhere if "://" in path else here
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
    found = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    status = getattr(cause, "status", found.get("HTTPStatusCode"))
    return status if isinstance(status, int) else None


StorageOptions: TypeAlias = Mapping[str, Any]
Range: TypeAlias = tuple[int, int]

PIECE_BYTES = 8 << 20  # asked for in one request, so that little is lost when the connection is
STREAM_BYTES = 32 << 20  # asked for at once of a file that is read from its beginning to its end
_STAMPS = ("ETag", "etag", "mtime", "LastModified", "Last-Modified", "last_modified", "created")
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "pip install s3fs"),
    **dict.fromkeys(("gs", "gcs"), "pip install gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "pip install adlfs"),
}


class Stat(NamedTuple):
    """File size in bytes, and a stamp that changes when the file is replaced."""

    size: int
    stamp: str


def is_remote(path: str) -> bool:
    """Return whether it is a URL of something that is not on this machine's disks."""
    return "://" in path and not path.startswith(("file://", "local://"))


def locate(path: str, storage_options: StorageOptions | None = None) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it; local paths need no options."""
    try:
        fs, inner = url_to_fs(path, **(storage_options or {} if is_remote(path) else {}))
    except ImportError as cause:
        remedy = _PACKAGES.get(path.partition("://")[0], "install what is named above")
        raise BackendMissing(path, str(cause), expected="the package for such URLs", remedy=remedy) from cause
    except (ValueError, TypeError, OSError) as cause:
        problem = f"it cannot be reached ({type(cause).__name__}: {str(cause).partition(chr(10))[0]})"
        expected = "a URL that fsspec knows, and storage_options= its file system takes"
        remedy = "fsspec.available_protocols() has the kinds of URLs"
        raise BadConfig(path, problem, expected=expected, remedy=remedy) from cause
    return fs, str(inner)


def is_local(fs: Any) -> bool:
    """Return whether a file system is this machine's own."""
    return isinstance(fs, LocalFileSystem)


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
    try:
        return get_stat(path, storage_options).stamp
    except BadFile as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def change_since(path: str, stamp: str, storage_options: StorageOptions | None = None) -> str | None:
    """Describe how a file with this stamp has changed; None where it has not, and what was read was unchanged."""
    now = get_stamp(path, storage_options)
    if now is None:
        return "it is gone"
    return None if now == stamp else f"it was replaced after it was first looked at: {stamp} then, {now} now"


@contextmanager
def open_stored(path: str, storage_options: StorageOptions | None = None) -> Iterator[Any]:
    """Open a file for reading; one in a store is read with retries, and refused if it was replaced meanwhile."""
    if not is_remote(path):
        with Path(locate(path)[1]).open("rb") as file:
            yield file
        return
    size, stamp = get_stat(path, storage_options)
    fs, inner = locate(path, storage_options)
    options = {"url": path, "storage_options": storage_options}
    with _RemoteFile(fs, inner, block_size=STREAM_BYTES, size=size, **options) as file:
        yield file
    if change := change_since(path, stamp, storage_options):
        raise BadFile(path, change, expected="one version of it", remedy="the same call again, on files that stay")


def fetch(path: str, ranges: Sequence[Range], storage_options: StorageOptions | None = None) -> list[bytes]:
    """Fetch these byte ranges of a file concurrently; request incomplete ones again."""
    fs, inner = locate(path, storage_options)
    pieces = {
        (start, stop): [(first, min(first + PIECE_BYTES, stop)) for first in range(start, stop, PIECE_BYTES)]
        for start, stop in ranges
    }
    found: dict[Range, bytes] = {}

    def ask() -> None:
        missing = [piece for own in pieces.values() for piece in own if piece not in found]
        if not missing:
            return
        starts, stops = [start for start, _ in missing], [stop for _, stop in missing]
        failure: BaseException | None = None
        for piece, data in zip(missing, fs.cat_ranges([inner] * len(missing), starts, stops), strict=True):
            if isinstance(data, BaseException):
                failure = failure or data
            elif len(data) == piece[1] - piece[0]:
                found[piece] = data
            else:
                failure = failure or OSError(f"{len(data)} bytes from {piece[0]} to {piece[1]}")
        if failure is not None:
            raise failure

    call_with_retries(ask, path, "read")
    return [b"".join(found[piece] for piece in pieces[whole]) for whole in ranges]


class _RemoteFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec ships no types
    """Remote file whose blocks come by `fetch`; fsspec's own does not ask again for blocks that are not whole."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return fetch(self.kwargs["url"], [(start, end)], self.kwargs["storage_options"])[0]
