"""Writing a dataset to a folder in a store, where nothing can be renamed: part by part, and the manifest at the end."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gpupipe.errors import BadFile
from gpupipe.io.manifest import MANIFEST, RECORDS, Manifest, Part, quarantine_lines
from gpupipe.io.parts import (
    PartWriter,
    check_same_job,
    digest_of,
    in_order,
    in_parts,
    only_new,
    write_parts,
    write_whole,
)
from gpupipe.io.planning.table import Table
from gpupipe.io.relational.planned import largest_partition
from gpupipe.io.remote_folder import StoreFolder, left_by_jobs
from gpupipe.io.stores.remote_file import StorageOptions, stamp_of
from gpupipe.io.writer import ParquetOptions, group_rows
from gpupipe.scratch import local_scratch
from gpupipe.support.files import writing

__all__ = ["write_object", "write_store_folder"]

_log = logging.getLogger("gpupipe")


def write_store_folder(
    dataset: Table,
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

    A store has no locks: one process at a time should write to a folder. Where two do the same job, both end well; of
    two jobs the one that is ready last fails and publishes nothing, or loses its parts to the other and says so.

    With `overwrite`, files go that a job has left or the manifest lists; what others have put there stays.

    Raises:
        BadFile: something else is there, or its inputs have changed; the store does not take what is written; or
            another process wrote there at the same time.
        BadConfig: the URL is a whole bucket.
    """
    url = url.rstrip("/")
    folder = StoreFolder(url, storage_options)
    folder.check()
    job, inputs = dataset.job_id(options, files), dataset.source.inputs()
    seen, there, before = stamp_of(f"{url}/{MANIFEST}", storage_options), folder.names(), None
    replaced = folder.listed() if overwrite else set()
    if not overwrite and there - left_by_jobs(there):
        before = check_same_job(Manifest.read(url, storage_options), url, job, inputs, there.__contains__)
    if before is not None and inputs is not None:
        new = only_new(dataset, before, inputs, options)
        if new is None:
            folder.clean(before)
            return replace(before, notes=tuple(dataset.source.notes), num_done=len(before.parts))
        dataset = new
    dataset = in_order(dataset, options)
    piece_rows = largest_partition(dataset)
    dataset = in_parts(dataset, options, files, backend)
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
    if any(name.startswith(f"{RECORDS}/") and not name.startswith(writer.records_in) for name in there):
        _log.warning(
            "%s: another job was begun there and has not ended; if it still runs, one of the two will fail", url
        )
    folder.put_text("", f"{writer.records_in}/begun")
    try:
        manifest = write_parts(dataset, writer, job, inputs, before)
        folder.publish(manifest, seen)
    except BaseException:
        if not known:
            writer.forget()
        raise
    folder.clean(manifest, replaced)
    return manifest


def write_object(
    dataset: Table,
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
    store = StoreFolder(parent, storage_options)
    dataset = in_order(dataset, options)
    with _scratch() as folder:
        rows_in = write_whole(dataset, folder / name, options, backend)
        groups = group_rows(folder / name)
        store.put(folder / name, name)
    if lines := quarantine_lines(dataset.source.notes):
        store.put_text(lines, f"{name.removesuffix('.parquet')}.quarantine.jsonl")
    return Manifest(None, {}, (Part(name, {name: groups}, rows_in, []),), tuple(dataset.source.notes))


@dataclass(frozen=True, kw_only=True)
class _StoreWriter(PartWriter):
    """Writes files here and sends them to the folder whole, then the part's record."""

    folder: StoreFolder
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
    with TemporaryDirectory(prefix="gpupipe-", dir=local_scratch()) as name, writing(Path(name)):
        yield Path(name)
