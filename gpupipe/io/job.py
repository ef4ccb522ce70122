"""Writing a dataset to a folder: part by part, resumable, visible only when all of it is there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gpupipe.errors import BadFile
from gpupipe.io.lock import draft_folder
from gpupipe.io.manifest import MANIFEST, QUARANTINE, Manifest, Part, write_quarantine
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
from gpupipe.io.writer import ParquetOptions, group_rows
from gpupipe.support.files import publish, replacing, sync, writing

__all__ = ["write_folder", "write_single"]


def write_folder(
    dataset: Table, path: Path, options: ParquetOptions, backend: str, *, files: int | None, overwrite: bool
) -> Manifest:
    """Write a part per partition to a hidden folder beside `path`, which gets the name when all are there.

    The same call again after a crash goes on with the parts that are missing; on a folder that it has finished it
    writes parts for those input files only that are new, and both show at once.

    With `overwrite`, the files that the old manifest lists go; any other file of the folder stays.

    Raises:
        BadFile: at `path` stands something else, or its inputs have changed; another process is writing there; or the
            system does not let this one write.
    """
    path = Path(os.path.realpath(path))  # workers may stand in another folder
    job, inputs = dataset.job_id(options, files), dataset.source.inputs()
    with writing(path), draft_folder(path) as drafts:
        found = _manifest_of(path) if os.path.lexists(path) else None
        before, replaced = None, found.files if found and overwrite else []
        if os.path.lexists(path) and not overwrite:
            before = check_same_job(found, str(path), job, inputs, lambda name: (path / name).is_file())
        if before is not None and inputs is not None:
            new = only_new(dataset, before, inputs, options)
            if new is None:
                _remove_all(drafts, but=None)
                return replace(before, notes=tuple(dataset.source.notes), num_done=len(before.parts))
            dataset = new
        dataset = in_order(dataset, options)
        piece_rows = largest_partition(dataset)
        dataset = in_parts(dataset, options, files, backend)
        resumable = job is not None and inputs is not None
        draft = drafts / digest_of(dataset, job, inputs, before)
        _remove_all(drafts, but=draft if resumable else None)
        (draft / "parts").mkdir(parents=True, exist_ok=True)
        try:
            writer = _DraftWriter(
                where=str(path), options=options, backend=backend, piece_rows=piece_rows, names={}, draft=draft
            )
            manifest = write_parts(dataset, writer, job, inputs, before)
            _publish(draft, path, manifest, replaced)
        finally:
            if not resumable:
                shutil.rmtree(draft, ignore_errors=True)
    return manifest


def write_single(dataset: Table, path: Path, options: ParquetOptions, backend: str, *, overwrite: bool) -> Manifest:
    """Write all rows to one file, which gets its name when they are there.

    Raises:
        BadFile: something is at `path` and `overwrite` is False, a folder is, or it cannot be written.
    """
    if path.is_dir():
        raise BadFile(str(path), "a folder has this name", expected="the name of a file", remedy="another name")
    with replacing(path, overwrite=overwrite) as draft:
        dataset = in_order(dataset, options)
        rows_in = write_whole(dataset, draft, options, backend)
        groups = group_rows(draft)
    write_quarantine(dataset.source.notes, path.with_suffix(".quarantine.jsonl"))
    return Manifest(None, {}, (Part(path.name, {path.name: groups}, rows_in, []),), tuple(dataset.source.notes))


@dataclass(frozen=True, kw_only=True)
class _DraftWriter(PartWriter):
    """Writes into a draft: a folder of parts, and beside it their records."""

    draft: Path

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with writing(Path(self.where)), TemporaryDirectory(prefix="scratch-", dir=self.draft) as folder:
            yield Path(folder)

    def keep(self, scratch: Path, record: Part) -> None:
        for file in record.files:
            sync(scratch / file)
            target = self.draft / "parts" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (scratch / file).replace(target)
            sync(target.parent)
        note = scratch / "record"
        note.write_text(json.dumps(asdict(record)))
        sync(note)
        note.replace(self.draft / f"{record.name}.record")

    def records(self) -> list[Part]:
        found = [Part(**json.loads(path.read_text())) for path in sorted(self.draft.glob("*.record"))]
        return [part for part in found if all((self.draft / "parts" / file).is_file() for file in part.files)]


def _manifest_of(path: Path) -> Manifest | None:
    """Read the manifest of what is there; None for an empty folder.

    Raises:
        BadFile: no job wrote what is there, so that none may replace it.
    """
    found = Manifest.read(path) if path.is_dir() else None
    others = sorted(inside.name for inside in path.iterdir()) if path.is_dir() else [path.name]
    if found is None and others:
        raise BadFile(
            str(path),
            "something is there that write_parquet did not write",
            got=others[0],
            expected="a new path, an empty folder, or one that write_parquet wrote",
            remedy="another path",
        )
    return found


def _publish(draft: Path, path: Path, manifest: Manifest, replaced: Sequence[str]) -> None:
    """Give the parts their name, together with the files that have it already, but for those that are replaced."""
    parts = draft / "parts"
    write_quarantine(manifest.notes, parts / QUARANTINE)
    gone = {path / name for name in (MANIFEST, QUARANTINE, *replaced)}
    for file in (file for file in path.rglob("*") if file.is_symlink() or not file.is_dir()):
        copy = parts / file.relative_to(path)
        if file not in gone and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            _link(file, copy)
    (parts / MANIFEST).write_text(manifest.to_json())
    publish(parts, path)
    shutil.rmtree(draft)


def _link(file: Path, copy: Path) -> None:
    """The same file under another name; a copy where the file system has no such thing."""
    try:
        os.link(file, copy)
    except OSError:
        shutil.copy2(file, copy, follow_symlinks=False)


def _remove_all(drafts: Path, but: Path | None) -> None:
    """Remove the drafts of other jobs and other inputs."""
    for draft in drafts.iterdir():
        if draft.is_dir() and draft != but:
            shutil.rmtree(draft)
