"""A folder in a store, where nothing can be renamed and nothing locked."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from glob import has_magic
from pathlib import Path

from gpupipe.cluster import LocalThreads
from gpupipe.errors import BadConfig, BadFile
from gpupipe.io.manifest import MANIFEST, QUARANTINE, RECORDS, Manifest, quarantine_lines
from gpupipe.io.stores.remote_file import StorageOptions, info_of, locate, stamp_of
from gpupipe.io.stores.retry import retried

__all__ = ["StoreFolder", "left_by_jobs"]

_AT_ONCE = 16
_log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class StoreFolder:
    """A folder, whose files are named from there on; each appears whole or not at all.

    Args:
        url: without a slash at its end.
        storage_options: see `locate`.
    """

    url: str
    storage_options: StorageOptions | None = field(repr=False)

    def check(self) -> None:
        """See that it is a folder that may be written.

        Raises:
            BadConfig: it is a whole bucket, in which there may be anything.
            BadFile: an object has its name.
        """
        fs, inner = locate(self.url, self.storage_options)
        if "/" not in inner.strip("/"):
            raise BadConfig(
                "write_parquet",
                "the URL is a whole bucket",
                got=self.url,
                expected="a folder in it",
                remedy=f"write_parquet({self.url + '/scores'!r})",
            )

        def is_file() -> bool:
            try:
                return str(info_of(fs, inner)["type"]) == "file"
            except FileNotFoundError:
                return False

        if retried(is_file, self.url, "read"):
            raise BadFile(
                self.url,
                "an object has this name",
                expected="a folder",
                remedy="another name, or one ending in .parquet",
            )

    def names(self) -> set[str]:
        """All files there are now, without the empty objects that some programs put where folders begin."""
        fs, inner = locate(self.url, self.storage_options)

        def find() -> list[str]:
            fs.invalidate_cache()
            try:
                return [name for name in fs.find(inner) if not name.endswith("/")]
            except FileNotFoundError:
                return []

        return {name[len(inner) :].lstrip("/") for name in retried(find, self.url, "listed")}

    def listed(self) -> set[str]:
        """What the manifest there lists; nothing where it is damaged."""
        try:
            found = Manifest.read(self.url, self.storage_options)
        except BadFile as error:
            if isinstance(error.__cause__, OSError):
                raise
            return set()
        return set(found.files) if found else set()

    def get(self, names: Iterable[str]) -> list[bytes]:
        """The files' content."""
        fs, inner = locate(self.url, self.storage_options)

        def read(name: str) -> bytes:
            # One by one: fsspec takes the names in a list for patterns.
            return bytes(retried(lambda: fs.cat_file(f"{inner}/{name}"), f"{self.url}/{name}", "read"))

        return list(LocalThreads(_AT_ONCE).map(read, list(names)))

    def put(self, local: Path, name: str) -> None:
        """Send a file of this machine."""
        fs, inner = locate(self.url, self.storage_options)
        retried(lambda: fs.put_file(str(local), f"{inner}/{name}"), f"{self.url}/{name}", "written")

    def put_text(self, text: str, name: str) -> None:
        """Send a file with this content."""
        fs, inner = locate(self.url, self.storage_options)
        retried(lambda: fs.pipe_file(f"{inner}/{name}", text.encode()), f"{self.url}/{name}", "written")

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are there."""
        fs, inner = locate(self.url, self.storage_options)
        paths = [f"{inner}/{name}" for name in names]
        for path in filter(has_magic, paths):
            retried(partial(fs.rm_file, path), self.url, "removed")
        if plain := [path for path in paths if not has_magic(path)]:  # a list is taken for patterns
            retried(lambda: fs.rm(plain), self.url, "removed")

    def publish(self, manifest: Manifest, seen: str | None) -> None:
        """Send the manifest, which makes its files the folder's content, if the one there still has this stamp.

        Where there was none, the store decides in one step whose is the first, if it can.

        Raises:
            BadFile: it has not, or some of the files are gone.
        """
        gone = sorted({*manifest.files} - self.names())
        if gone:
            raise BadFile(
                f"{self.url}/{gone[0]}",
                "it was written, and is gone",
                expected="nobody else to write to this folder, or to remove files there",
                remedy="the same call again when nobody does",
            )
        if lines := quarantine_lines(manifest.notes):
            self.put_text(lines, QUARANTINE)
        if stamp_of(f"{self.url}/{MANIFEST}", self.storage_options) == seen:
            if seen is not None:
                self.put_text(manifest.to_json(), MANIFEST)
                return
            if self._put_first(manifest.to_json(), MANIFEST):
                return
        if Manifest.read(self.url, self.storage_options) != manifest:
            raise BadFile(
                self.url,
                "another process wrote there at the same time, and was first",
                expected="one job at a time",
                remedy="the same call again: it tells whether both did the same; or another path",
            )

    def _put_first(self, text: str, name: str) -> bool:
        """Send a file if there is none of that name; whether there was none."""
        fs, inner = locate(self.url, self.storage_options)

        def put() -> bool:
            try:
                fs.pipe_file(f"{inner}/{name}", text.encode(), mode="create")
            except FileExistsError:
                return False
            except OSError as cause:
                if cause.errno != errno.ENOSYS:
                    raise
                fs.pipe_file(f"{inner}/{name}", text.encode())  # the store knows no such condition
            return True

        return retried(put, f"{self.url}/{name}", "written")

    def clean(self, manifest: Manifest, replaced: Collection[str] = ()) -> None:
        """Remove what jobs have left there, or what was replaced, that the manifest does not tell of."""
        told = {*manifest.files, MANIFEST, *([QUARANTINE] if quarantine_lines(manifest.notes) else [])}
        there = self.names()
        stray = sorted((left_by_jobs(there) | (there & set(replaced))) - told)
        try:
            # What shows that a job was not finished goes last.
            self.remove([name for name in stray if not name.startswith(RECORDS)])
            self.remove([name for name in stray if name.startswith(RECORDS)])
        except BadFile as error:
            _log.warning("%s: all is written; %d other files there cannot be removed (%s)", self.url, len(stray), error)


def left_by_jobs(names: Collection[str]) -> set[str]:
    """Those of a folder's files that jobs which have not ended left there; no manifest tells of them.

    Example:
        >>> begun, part = "_records/0123456789abcdef/begun", "part-00001-0123456789abcdef-0.parquet"
        >>> sorted(left_by_jobs([begun, f"month=3/{part}", "part-00001-fedcba9876543210.parquet", "a.csv"]))
        ['_records/0123456789abcdef/begun', 'month=3/part-00001-0123456789abcdef-0.parquet']
    """
    records = {name for name in names if name.startswith(f"{RECORDS}/")}
    jobs = {name.split("/")[1] for name in records}
    parts = {name: _PART.search(name) for name in names}
    return {name for name, part in parts.items() if name in records or name == QUARANTINE or (part and part[1] in jobs)}


_PART = re.compile(r"(?:^|/)part-\d{5,}-([0-9a-f]{16})(?:-\d+)?\.parquet$")
