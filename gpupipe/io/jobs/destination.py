"""Destinations of parts: a local folder, renamed last, or one in a store, whose manifest is written last."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

from gpupipe.cluster.executor import Executor
from gpupipe.errors import BadConfig, BadFile
from gpupipe.files import follow_links, local_scratch, publish, remove_folder, replacing, sync, writing
from gpupipe.io.stores import (
    MANIFEST,
    PART_SHAPE,
    RECORDS,
    FileNote,
    Listing,
    Manifest,
    Part,
    StorageOptions,
    call_with_retries,
    find_kind,
    get_stamp,
    is_remote,
    locate,
)
from gpupipe.support.strict_json import parse_json

QUARANTINE = "_quarantine.jsonl"
_AT_ONCE = 16
_LOCK = "lock"
Result = TypeVar("Result")
_log = logging.getLogger("gpupipe")


@contextmanager
def open_destination(where: str, storage_options: StorageOptions | None) -> Iterator[Destination]:
    """Open a folder to write to; a local one is locked until the block ends."""
    if is_remote(where):
        yield StoreFolder(where.rstrip("/"), storage_options)
    else:
        folder = LocalFolder(str(follow_links(where)))  # workers may run in another folder
        with writing(Path(folder.where)), folder.lock():
            yield folder


def refuse_output_among_input(
    listings: Iterable[Listing], where: str, names: Iterable[str], storage_options: StorageOptions | None
) -> None:
    """Raise `BadFile` where a call that reads the same again would read a file of these names, at `where` or below."""
    fs, path = locate(where, storage_options)
    paths = {path.rstrip("/")} if is_remote(where) else {path, os.path.realpath(path)}
    files = [f"{path}/{name}".rstrip("/") for path in paths for name in names]
    for listing in listings:
        is_replaced = not listing.is_pattern and paths & listing.paths  # its manifest will list what is written alone
        if listing.protocol == fs.protocol and not is_replaced and any(map(listing.includes, files)):
            folder = min(listing.paths)
            if listing.is_pattern:
                folder = re.split(r"[*?\[]", folder, maxsplit=1)[0].rpartition("/")[0]
            parent, name = folder.rpartition("/")[0], path.rstrip("/").rpartition("/")[2]
            beside = fs.unstrip_protocol(f"{parent}/{name}" if parent else f"{folder}/_{name}").removeprefix("file://")
            problem, expected = "the next call would read what is written there", "a folder outside of what is read"
            raise BadFile(where, problem, got=min(listing.paths), expected=expected, remedy=f"{beside!r}")


@contextmanager
def create_file(where: str, storage_options: StorageOptions | None, *, overwrite: bool) -> Iterator[Path]:
    """Yield a local path to write a file to; it is moved to `where` if the block ends without an error."""
    if is_remote(where):
        parent, _, name = where.rpartition("/")
        if not overwrite and get_stamp(where, storage_options) is not None:
            raise BadFile(where, "something is there already", expected="a new URL", remedy="overwrite=True")
        with _local_folder() as folder:
            yield folder / name
            StoreFolder(parent, storage_options).put(folder / name, name)
    elif Path(where).is_dir():
        raise BadFile(where, "a folder has this name", expected="the name of a file", remedy="another name")
    else:
        with replacing(Path(where), overwrite=overwrite) as draft:
            yield draft


def write_quarantine(notes: Sequence[FileNote], where: str, storage_options: StorageOptions | None = None) -> None:
    """Write a JSON line for each quarantined input file; no file if there is none."""
    records = [{"file": note.file, "reason": note.reason} for note in notes if note.action == "quarantined"]
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    if not is_remote(where):
        Path(where).write_text(lines, encoding="utf-8") if lines else Path(where).unlink(missing_ok=True)
    elif lines:
        parent, _, name = where.rpartition("/")
        StoreFolder(parent, storage_options).put_text(lines, name)


def _read_part(content: bytes, where: str) -> Part:
    try:
        return Part.from_json(parse_json(content, PART_SHAPE))
    except ValueError as cause:
        remedy = "the record removed: its part is written again"
        raise BadFile(where, f"damaged ({cause})", expected="the record of a part", remedy=remedy) from cause


@dataclass
class LocalFolder:
    """Local folder: a sibling draft `.name.draft/<digest>` holds parts and records until all are written.

    What it held before stays readable until `publish`. Workers get a copy.
    """

    where: str
    digest: str = ""
    suffix: str = ""  # of the files' names, behind the part's

    @property
    def drafts(self) -> Path:
        return Path(self.where).parent / f".{Path(self.where).name}.draft"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the drafts until the block or the process ends; an empty drafts folder is removed."""
        parent, drafts = Path(self.where).parent, self.drafts
        if not parent.is_dir():
            expected, remedy = "an existing folder", f"mkdir -p {parent}"
            raise BadFile(self.where, "its folder does not exist", expected=expected, remedy=remedy)
        drafts.mkdir(exist_ok=True)
        with (drafts / _LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_busy = os.fstat(lock.fileno()).st_nlink == 0  # whoever had it has just removed it
            except OSError as error:
                is_busy = isinstance(error, BlockingIOError)
                if not is_busy:
                    _log.warning("%s: no locks there (%s); let one process write at a time", self.where, error)
            if is_busy:
                expected, remedy = "one at a time", "waiting until it is done"
                raise BadFile(self.where, "another process is writing it", expected=expected, remedy=remedy)
            try:
                yield
            finally:
                if [inside.name for inside in drafts.iterdir()] == [_LOCK]:
                    (drafts / _LOCK).unlink()
                    with suppress(OSError):  # the next process is in it
                        drafts.rmdir()

    def find(self, *, overwrite: bool) -> Manifest | None:
        """Read the manifest of the folder, None if there is none; raise `BadFile` where no job may write."""
        path = Path(self.where)
        manifest = Manifest.read(path) if path.is_dir() else None
        entries = sorted(path.iterdir()) if path.is_dir() else [path] if path.exists() else []
        if manifest is None and entries:
            problem = "something is there that write_parquet did not write"
            expected = "a new path, an empty folder, or one that write_parquet wrote"
            raise BadFile(self.where, problem, got=entries[0].name, expected=expected, remedy="another path")
        return manifest

    def names(self) -> set[str]:
        path = Path(self.where)
        return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_symlink() or not file.is_dir()}

    def begin(self, digest: str) -> list[Part]:
        """Begin a job, or resume the one with this digest; return the records of the parts already written."""
        self.digest, draft = digest, self.drafts / digest
        self.clean(None, but=digest)
        (draft / "parts").mkdir(parents=True, exist_ok=True)
        parts = [_read_part(path.read_bytes(), str(path)) for path in sorted(draft.glob("*.record"))]
        return [part for part in parts if all((draft / "parts" / file).is_file() for file in part.files)]

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a local folder that is removed at the end of the block."""
        with writing(Path(self.where)), TemporaryDirectory(prefix="scratch-", dir=self.drafts / self.digest) as folder:
            yield Path(folder)

    def keep(self, scratch: Path, record: Part) -> None:
        """Move a part's files to the destination, then write its record."""
        draft, note = self.drafts / self.digest, scratch / "record"
        note.write_text(json.dumps(asdict(record)))
        moves = {scratch / file: draft / "parts" / file for file in record.files}
        for file, target in [*moves.items(), (note, draft / f"{record.name}.record")]:
            sync(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
            sync(target.parent)

    def publish(self, manifest: Manifest, replaced: Collection[str]) -> None:
        """Make the manifest's files the folder's content and remove those that they replace; other files stay."""
        parts = self.drafts / self.digest / "parts"
        write_quarantine(manifest.notes, str(parts / QUARANTINE))
        for name in self.names() - {MANIFEST, QUARANTINE, *replaced}:
            file, copy = Path(self.where, name), parts / name
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, copy)
                except OSError:  # this file system has no links
                    shutil.copy2(file, copy, follow_symlinks=False)
        (parts / MANIFEST).write_text(manifest.to_json())
        publish(parts, Path(self.where))
        self.clean(manifest)

    def clean(self, manifest: Manifest | None, but: str = _LOCK) -> None:
        """Remove files left by earlier jobs that the manifest does not list."""
        for draft in self.drafts.iterdir():
            if draft.name not in (but, _LOCK):
                remove_folder(draft)


@dataclass
class StoreFolder:
    """Folder in object storage, where nothing can be renamed: its manifest lists the files that count.

    A job's files have its digest in their names, so that what was there before is whole until the manifest is replaced.
    A store has no locks: one job at a time should write to a folder. Its URL `where` has no slash at its end.
    """

    where: str
    storage_options: StorageOptions | None = field(repr=False)
    digest: str = ""
    suffix: str = ""

    def find(self, *, overwrite: bool) -> Manifest | None:
        if "/" not in locate(self.where, self.storage_options)[1].strip("/"):
            problem, remedy = "the URL is a whole bucket", f"write_parquet({self.where + '/scores'!r})"
            raise BadConfig("write_parquet", problem, got=self.where, expected="a folder in it", remedy=remedy)
        if find_kind(self.where, self.storage_options) == "file":
            expected, remedy = "a folder", "another name, or one ending in .parquet"
            raise BadFile(self.where, "an object has this name", expected=expected, remedy=remedy)
        names = self.names()
        try:
            manifest = Manifest.read(self.where, self.storage_options)
        except BadFile as error:
            if not overwrite or isinstance(error.__cause__, OSError):
                raise
            return None
        if manifest is None and not overwrite and names - _find_leftovers(names):
            expected, remedy = "a new path", "overwrite=True"
            raise BadFile(self.where, "something is there already", expected=expected, remedy=remedy)
        return manifest

    def names(self) -> set[str]:
        """List all files, without the empty objects that some programs write as folder markers."""

        def find(fs: Any, folder: str) -> set[str]:
            fs.invalidate_cache()
            try:
                return {name[len(folder) :].lstrip("/") for name in fs.find(folder) if not name.endswith("/")}
            except FileNotFoundError:
                return set()

        return self._call(find, "listed")

    def begin(self, digest: str) -> list[Part]:
        self.digest, self.suffix, names = digest, f"-{digest}", self.names()
        if any(name.startswith(f"{RECORDS}/") and digest not in name for name in names):
            _log.warning("%s: another job was begun there; if it still runs, one of the two will fail", self.where)
        self.put_text("", f"{RECORDS}/{digest}/begun")

        def read(name: str) -> Part:
            # One by one: fsspec takes the names in a list for patterns.
            return _read_part(self._call(lambda fs, path: fs.cat_file(path), "read", name), name)

        records = sorted(name for name in names if name.startswith(f"{RECORDS}/{digest}/") and name.endswith(".json"))
        return [part for part in Executor(_AT_ONCE).map(read, records) if names.issuperset(part.files)]

    def scratch(self) -> AbstractContextManager[Path]:
        return _local_folder()

    def keep(self, scratch: Path, record: Part) -> None:
        for file in record.files:
            self.put(scratch / file, file)
        self.put_text(json.dumps(asdict(record)), f"{RECORDS}/{self.digest}/{record.name}.json")

    def publish(self, manifest: Manifest, replaced: Collection[str]) -> None:
        if missing_files := sorted({*manifest.files} - self.names()):
            expected = "nobody else to write to this folder, or to remove files there"
            remedy = "the same call again when nobody does"
            path, problem = f"{self.where}/{missing_files[0]}", "it was written, and is gone"
            raise BadFile(path, problem, expected=expected, remedy=remedy)
        write_quarantine(manifest.notes, f"{self.where}/{QUARANTINE}", self.storage_options)
        self.put_text(manifest.to_json(), MANIFEST)
        self.clean(manifest, replaced)

    def clean(self, manifest: Manifest | None, replaced: Collection[str] = ()) -> None:
        names = self.names()
        listed = {MANIFEST, *(manifest.files if manifest else ())}
        if manifest and any(note.action == "quarantined" for note in manifest.notes):
            listed.add(QUARANTINE)
        stray = (_find_leftovers(names) | (names & {*replaced})) - listed
        records = {name for name in stray if name.startswith(RECORDS)}
        try:
            self.remove(stray - records)
            self.remove(records)  # last, as they show that a job was not finished
        except BadFile as error:
            message = "%s: %d files that its manifest does not list cannot be removed (%s)"
            _log.warning(message, self.where, len(stray), error)

    def put(self, local: Path, name: str) -> None:
        self._call(lambda fs, path: fs.put_file(str(local), path), "written", name)

    def put_text(self, text: str, name: str) -> None:
        self._call(lambda fs, path: fs.pipe_file(path, text.encode()), "written", name)

    def get(self, name: str, local: Path) -> None:
        self._call(lambda fs, path: fs.get_file(path, str(local)), "read", name)

    def remove(self, names: Collection[str]) -> None:
        if names:  # a list of names is one of patterns to fsspec
            self._call(lambda fs, path: fs.rm([escape(f"{path}/{name}") for name in names]), "removed")

    def _call(self, work: Callable[[Any, str], Result], doing: str, name: str = "") -> Result:
        """Call `work` with the file system and a path in it, with retries."""
        fs, inner = locate(self.where, self.storage_options)
        where, path = (f"{folder}/{name}".rstrip("/") for folder in (self.where, inner))
        return call_with_retries(lambda: work(fs, path), where, doing)


Destination: TypeAlias = LocalFolder | StoreFolder


def _find_leftovers(names: Collection[str]) -> set[str]:
    """Select the files that unfinished jobs left in a folder, with their digest in the name; no manifest lists them."""
    jobs = {name.split("/")[1] for name in names if name.startswith(f"{RECORDS}/")}
    return {name for name in names if name == QUARANTINE or any(job in name for job in jobs)}


@contextmanager
def _local_folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="gpupipe-", dir=local_scratch()) as name, writing(Path(name)):
        yield Path(name)
