"""Writing a dataset to a folder: part by part, resumable, visible only when all of it is there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import select
from gpupipe.errors import BadFile
from gpupipe.io.atomic import publish, sync
from gpupipe.io.manifest import MANIFEST, Manifest, Part
from gpupipe.io.passes import in_halves, over_partitions
from gpupipe.io.source import Partition
from gpupipe.io.writer import ParquetOptions, write_file, write_hive

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["table_of", "write_folder"]

_SCRATCH = ".scratch-"


def write_folder(
    dataset: Dataset, path: Path, options: ParquetOptions, backend: str, *, files: int | None, overwrite: bool
) -> Manifest:
    """Write a part per partition to a hidden folder beside `path`, which gets the name when all are there.

    The same call again after a crash goes on with the parts that are missing; on a folder that it has finished it
    writes parts for those input files only that are new.

    Raises:
        BadFile: at `path` stands something else, or its inputs have changed; or another process is writing there.
    """
    job, inputs = dataset.job_id(options, files), dataset.source.inputs()
    before = _check(path, job, inputs) if os.path.lexists(path) and not overwrite else None
    if before is not None and inputs is not None:
        if inputs.keys() <= before.inputs.keys():
            return replace(before, num_done=len(before.parts))
        dataset = dataset.of_files(inputs.keys() - before.inputs.keys())
    piece_rows = max(partition.num_rows for partition in dataset.partitions)
    if files is not None:
        dataset = dataset.of_partitions(_cut(dataset.partitions, files))
    known = job is not None and inputs is not None
    cuts = [[astuple(span) for span in partition.spans] for partition in dataset.partitions]
    draft = path.parent / f".{path.name}.{_digest(job, inputs, before, cuts) if known else uuid.uuid4().hex[:16]}.draft"
    with _locked(draft, path):
        try:
            done = {part.name: part for part in _records(draft)}
            first = 0 if before is None else 1 + max(int(part.name.rpartition("-")[2]) for part in before.parts)
            names = {part.index: f"part-{first + part.index:05d}" for part in dataset.partitions}
            work = _WritePart(draft, options, names, backend, piece_rows)
            missing = dataset.of_partitions([part for part in dataset.partitions if names[part.index] not in done])
            num_done = len(done) + (0 if before is None else len(before.parts))
            done |= {part.name: part for part in over_partitions(work, missing, backend, "write")}
            parts = (*(before.parts if before else ()), *(done[name] for name in names.values()))
            manifest = Manifest(job, {**(before.inputs if before else {}), **(inputs or {})}, parts, num_done)
            _finish(draft, path, manifest, list(names.values()) if before else None)
        finally:
            if not known:
                shutil.rmtree(draft, ignore_errors=True)
    return manifest


def _check(path: Path, job: str | None, inputs: Mapping[str, str] | None) -> Manifest:
    """The manifest of what is there, if this job wrote it."""
    before = Manifest.read(path) if path.is_dir() else None
    if before is None or job is None or inputs is None:
        raise BadFile(str(path), "something is there already", expected="a new path", remedy="overwrite=True")
    if before.job != job:
        raise BadFile(
            str(path),
            "it was written by another pipeline, or with other options",
            expected="the same job, which would add what is new",
            remedy="another path, or overwrite=True",
        )
    changed = sorted(name for name, stamp in before.inputs.items() if inputs.get(name, stamp) != stamp)
    if changed:
        raise BadFile(
            str(path),
            f"{len(changed)} of its input files have changed since",
            got=changed[0],
            expected="new files beside the old ones",
            remedy="overwrite=True, which writes everything again",
        )
    return before


@dataclass(frozen=True)
class _WritePart:
    """Write one partition's rows into the draft, on a worker; what it leaves there is whole or has no record."""

    draft: Path
    options: ParquetOptions
    names: Mapping[int, str]
    backend: str
    piece_rows: int

    def __call__(self, part: Dataset) -> Part:
        (partition,) = part.partitions
        name = self.names[partition.index]
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=self.draft) as scratch:
            work = partial(table_of, self.backend)
            tables = (table for piece in self._pieces(part) for table in in_halves(work, piece))
            files = self._write(tables, part, Path(scratch), name)
            for file in files:
                target = self.draft / file
                target.parent.mkdir(parents=True, exist_ok=True)
                sync(Path(scratch, file))
                Path(scratch, file).replace(target)
            record = Part(name, files, partition.num_rows, part.source.files_of(partition))
            note = Path(scratch, "record")
            note.write_text(json.dumps(asdict(record)))
            sync(note)
            note.replace(self.draft / f"{name}.record")
        return record

    def _write(self, tables: Iterator[pa.Table], part: Dataset, scratch: Path, name: str) -> dict[str, list[int]]:
        if not self.options.partition_by:
            file = f"{name}.parquet"
            return {file: write_file(tables, part.schema, scratch / file, self.options)}
        write_hive(tables, part.schema, scratch, name, self.options)
        found = sorted(path for path in scratch.rglob("*.parquet"))
        return {str(path.relative_to(scratch)): _groups(path) for path in found}

    def _pieces(self, part: Dataset) -> Iterator[Dataset]:
        """The partition in parts that are no larger than it was before files were counted."""
        (rest,) = part.partitions
        while rest.num_rows > self.piece_rows:
            piece, rest = rest.split_at(self.piece_rows)
            yield part.of_partitions([piece])
        yield part.of_partitions([rest])


def table_of(backend_name: str, part: Dataset) -> pa.Table:
    """The rows of one partition on the host."""
    backend = select(backend_name)
    return backend.to_arrow(part.read(part.partitions[0], None, backend))


def _cut(partitions: Sequence[Partition], num_parts: int) -> list[Partition]:
    """The same rows in as many partitions of nearly equal size."""
    rest = Partition(0, tuple(span for partition in partitions for span in partition.spans), "")
    total, cut = rest.num_rows, []
    for index in range(num_parts):
        first, last = total * index // num_parts, total * (index + 1) // num_parts
        part, rest = rest.split_at(last - first)
        cut.append(replace(part, index=index, description=f"rows {first:,} to {last:,}"))
    return cut


def _groups(path: Path) -> list[int]:
    metadata = pq.read_metadata(path)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _records(draft: Path) -> list[Part]:
    return [Part(**json.loads(path.read_text())) for path in sorted(draft.glob("*.record"))]


def _finish(draft: Path, path: Path, manifest: Manifest, new: list[str] | None) -> None:
    """Give the draft its name; or, with `new` parts for a folder that is there, move them in and then tell of them."""
    if new is None:
        for record in draft.glob("*.record"):
            record.unlink()
        for left in draft.glob(f"{_SCRATCH}*"):  # of a worker that was killed
            shutil.rmtree(left)
        (draft / MANIFEST).write_text(manifest.to_json())
        publish(draft, path)
        return
    for part in manifest.parts:
        for file in part.files if part.name in new else ():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            if (draft / file).exists():  # else an earlier call was stopped right here
                (draft / file).replace(path / file)
    note = draft / MANIFEST
    note.write_text(manifest.to_json())
    sync(note)
    note.replace(path / MANIFEST)
    sync(path)
    shutil.rmtree(draft)


def _digest(*facts: Any) -> str:
    text = json.dumps([fact.to_json() if isinstance(fact, Manifest) else fact for fact in facts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _locked(draft: Path, path: Path) -> Iterator[None]:
    """The draft folder, for this process alone; drafts of other jobs for the same path that nobody works on go."""
    if not path.parent.is_dir():
        raise BadFile(
            str(path), "its folder does not exist", expected="an existing folder", remedy=f"mkdir -p {path.parent}"
        )
    draft.mkdir(exist_ok=True)
    with _lock(draft) as ours:
        if not ours:
            raise BadFile(
                str(path), "another process is writing it", expected="one at a time", remedy="waiting until it is done"
            )
        for other in path.parent.glob(f".{path.name}.*.draft"):
            if other != draft:
                with _lock(other) as stale:
                    if stale:
                        shutil.rmtree(other, ignore_errors=True)
        yield


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Whether this process could lock the folder; the system unlocks it when the process ends, however it does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)
