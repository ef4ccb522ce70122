"""Writing a dataset to a folder in a store, where nothing can be renamed: part by part, and the manifest at the end."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from gpupipe.errors import BadConfig, BadFile
from gpupipe.io.atomic import writing
from gpupipe.io.manifest import MANIFEST, QUARANTINE, RECORDS, Manifest, Part, quarantine_lines
from gpupipe.io.parts import PartWriter, check_same_job, cut, digest_of, table_of, write_parts
from gpupipe.io.passes import over_partitions
from gpupipe.io.remote import StorageOptions, locate, retried, stamp_of
from gpupipe.io.writer import ParquetOptions, write_file

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["write_object", "write_store_folder"]

_log = logging.getLogger("gpupipe")


def write_store_folder(
    dataset: Dataset,
    url: str,
    options: ParquetOptions,
    backend: str,
    *,
    files: int | None,
    overwrite: bool,
    storage_options: StorageOptions | None,
) -> Manifest:
    """Write a part per partition to a folder in a store, which counts as written when its manifest is there.

    Files have names that no other job gives, so that what was there before is whole until the manifest is replaced.
    The same call again after a crash goes on with the parts that have no record; on a folder that it has finished it
    writes parts for those input files only that are new.

    A store has no locks: one process at a time must write to a folder. Where two do the same job, both end well; of
    two jobs one fails or is replaced as a whole.

    Raises:
        BadFile: something else is there, or its inputs have changed; or the store does not take what is written.
        BadConfig: the URL is a whole bucket.
    """
    url = url.rstrip("/")
    folder = _Folder(url, storage_options)
    folder.check_depth()
    job, inputs = dataset.job_id(options, files), dataset.source.inputs()
    seen, there, before = stamp_of(f"{url}/{MANIFEST}", storage_options), folder.names(), None
    if not overwrite and not all(map(_is_ours, there)):
        before = check_same_job(Manifest.read(url, storage_options), url, job, inputs, there.__contains__)
    if before is not None and inputs is not None:
        new = inputs.keys() - before.inputs.keys()
        if not new:
            folder.clean(before, everything=False)
            return replace(before, notes=tuple(dataset.source.notes), num_done=len(before.parts))
        dataset = dataset.of_files(new)
    piece_rows = max(partition.num_rows for partition in dataset.partitions)
    if files is not None:
        dataset = dataset.of_partitions(cut(dataset.partitions, files))
    known = job is not None and inputs is not None
    # With the manifest that is there, so that what it lists is never written over.
    digest = (
        digest_of(dataset, job, {**(inputs or {}), MANIFEST: seen or ""}, before) if known else uuid.uuid4().hex[:16]
    )
    writer = _StoreWriter(
        where=url,
        options=options,
        backend=backend,
        piece_rows=piece_rows,
        names={},
        mark=f"-{digest}",
        folder=folder,
        records_in=f"{RECORDS}/{digest}",
    )
    folder.put_text("", f"{writer.records_in}/begun")
    try:
        manifest = write_parts(dataset, writer, job, inputs, before)
        folder.publish(manifest)
    except BaseException:
        if not known:
            writer.forget()
        raise
    folder.clean(manifest, everything=overwrite)
    return manifest


def write_object(
    dataset: Dataset,
    url: str,
    options: ParquetOptions,
    backend: str,
    *,
    overwrite: bool,
    storage_options: StorageOptions | None,
) -> Manifest:
    """Write all rows to one file here, which is then sent to a store as a whole.

    Raises:
        BadFile: something is there and `overwrite` is False, or the store does not take it.
    """
    if not overwrite and stamp_of(url, storage_options) is not None:
        raise BadFile(url, "something is there already", expected="a new URL", remedy="overwrite=True")
    parent, _, name = url.rpartition("/")
    store = _Folder(parent, storage_options)
    tables = over_partitions(partial(table_of, backend), dataset, backend, "write")
    with _scratch() as folder:
        groups = write_file(tables, dataset.schema, folder / name, options)
        store.put(folder / name, name)
    if lines := quarantine_lines(dataset.source.notes):
        store.put_text(lines, f"{name.removesuffix('.parquet')}.quarantine.jsonl")
    rows_in = sum(partition.num_rows for partition in dataset.partitions)
    return Manifest(None, {}, (Part(name, {name: groups}, rows_in, []),), tuple(dataset.source.notes))


@dataclass(frozen=True)
class _Folder:
    """A folder in a store, whose files are named from there on; each appears whole or not at all."""

    url: str
    storage_options: StorageOptions | None = field(repr=False)

    def check_depth(self) -> None:
        """Raise `BadConfig` for a whole bucket, in which there may be anything."""
        if "/" not in locate(self.url, self.storage_options)[1].strip("/"):
            raise BadConfig(
                "write_parquet",
                "the URL is a whole bucket",
                got=self.url,
                expected="a folder in it",
                remedy=f"write_parquet({self.url + '/scores'!r})",
            )

    def names(self) -> set[str]:
        """All files there are now."""
        fs, inner = locate(self.url, self.storage_options)

        def find() -> list[str]:
            fs.invalidate_cache()
            try:
                return list(fs.find(inner))
            except FileNotFoundError:
                return []

        return {name[len(inner) :].lstrip("/") for name in retried(find, self.url, "listed")}

    def get(self, names: Iterable[str]) -> list[bytes]:
        """The files' content."""
        fs, inner = locate(self.url, self.storage_options)
        paths = [f"{inner}/{name}" for name in names]
        found = retried(lambda: fs.cat(paths), self.url, "read") if paths else {}
        return [found[path] for path in paths]

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
        if paths:
            retried(lambda: fs.rm(paths), self.url, "removed")

    def publish(self, manifest: Manifest) -> None:
        """Send the manifest, which makes its files the folder's content."""
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
        self.put_text(manifest.to_json(), MANIFEST)

    def clean(self, manifest: Manifest, *, everything: bool) -> None:
        """Remove what jobs have left that the manifest does not tell of, or all that it does not tell of."""
        told = {*manifest.files, MANIFEST, *([QUARANTINE] if quarantine_lines(manifest.notes) else [])}
        stray = sorted(name for name in self.names() - told if everything or _is_ours(name))
        try:
            # What shows that a job was not finished goes last.
            self.remove([name for name in stray if not name.startswith(RECORDS)])
            self.remove([name for name in stray if name.startswith(RECORDS)])
        except BadFile as error:
            _log.warning("%s: all is written; %d other files there cannot be removed (%s)", self.url, len(stray), error)


@dataclass(frozen=True, kw_only=True)
class _StoreWriter(PartWriter):
    """Writes files here and sends them to the folder whole, then the part's record."""

    folder: _Folder
    records_in: str

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with _scratch() as folder:
            yield folder

    def keep(self, scratch: Path, record: Part) -> None:
        for file in record.files:
            self.folder.put(scratch / file, file)
        self.folder.put_text(json.dumps(asdict(record)), f"{self.records_in}/{record.name}.json")

    def records(self) -> list[Part]:
        there = self.folder.names()
        notes = sorted(name for name in there if name.startswith(self.records_in) and name.endswith(".json"))
        found = [Part(**json.loads(content)) for content in self.folder.get(notes)]
        return [part for part in found if there.issuperset(part.files)]

    def forget(self) -> None:
        """Remove what was kept."""
        names = sorted(self.folder.names())
        self.folder.remove([name for name in names if self.mark in name and not name.startswith(RECORDS)])
        self.folder.remove([name for name in names if name.startswith(self.records_in)])


@contextmanager
def _scratch() -> Iterator[Path]:
    with TemporaryDirectory(prefix="gpupipe-") as name, writing(Path(name)):
        yield Path(name)


def _is_ours(name: str) -> bool:
    """Whether a file in a folder is one that a job has left, which no manifest tells of.

    Example:
        >>> [_is_ours(name) for name in ("month=3/part-00001-0123456789abcdef-0.parquet", "_records/0/begun", "a.csv")]
        [True, True, False]
    """
    return name.startswith(f"{RECORDS}/") or name == QUARANTINE or _PART.search(name) is not None


_PART = re.compile(r"(^|/)part-\d{5,}-[0-9a-f]{16}(-\d+)?\.parquet$")
