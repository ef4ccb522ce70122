"""Manifest of a written folder: its parts, the input files they were made of, and the job that wrote them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpupipe.errors import BadFile
from gpupipe.io.planning.partitions import FileNote
from gpupipe.io.stores.remote_file import StorageOptions, get_stamp, open_stored
from gpupipe.support.text import format_count

MANIFEST = "_manifest.json"
QUARANTINE = "_quarantine.jsonl"
RECORDS = "_records"
"""In a store, the folder of records of the parts that are written, until the manifest lists them."""
_FORMAT = "gpupipe dataset 1"


@dataclass(frozen=True)
class Part:
    """Record of a written partition."""

    name: str
    files: dict[str, list[int]]  # rows of each row group, by the file's name in the folder
    rows_in: int  # before any filter
    inputs: list[str]  # the files the rows came from
    halved: list[str] = field(default_factory=list, compare=False)  # a line per piece too large for memory

    @property
    def rows_out(self) -> int:
        """The number of rows written."""
        return sum(sum(groups) for groups in self.files.values())


@dataclass(frozen=True)
class Manifest:
    """Parts of a folder and their input files; its repr states how much of it the last call wrote.

    Args:
        job: identifies the pipeline and the options; None where a function has no name.
        inputs: a stamp of each input file: its size and when it was changed, or its etag.
        parts: in order.
        notes: the input files that were not read, or were converted.
        partition_by: the type of each column that became folders.
        num_done: how many of the parts had been written before the call.
    """

    job: str | None
    inputs: Mapping[str, str]
    parts: tuple[Part, ...]
    notes: tuple[FileNote, ...] = ()
    partition_by: Mapping[str, str] = field(default_factory=dict)
    num_done: int = field(default=0, compare=False)

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
        return sum(part.rows_out for part in self.parts)

    def to_json(self) -> str:
        """Return the text of `_manifest.json`."""
        body: dict[str, Any] = {"format": _FORMAT, "job": self.job, "rows_in": self.rows_in, "rows_out": self.rows_out}
        notes, parts = ([asdict(item) for item in items] for items in (self.notes, self.parts))
        body |= {"partition_by": self.partition_by, "inputs": self.inputs, "notes": notes, "parts": parts}
        return json.dumps(body, indent=1)

    @classmethod
    def read(cls, folder: str | Path, storage_options: StorageOptions | None = None) -> Manifest | None:
        """Read the manifest of a folder; None if it has none, `BadFile` if it is damaged."""
        path = f"{str(folder).rstrip('/')}/{MANIFEST}"
        if get_stamp(path, storage_options) is None:
            return None
        try:
            with open_stored(path, storage_options) as file:
                body: dict[str, Any] = json.load(file)
            parts = tuple(Part(**part) for part in body["parts"])
            notes = tuple(FileNote(**note) for note in body["notes"])
            kind = {_FORMAT: cls}[body["format"]]
            return kind(body["job"], dict(body["inputs"]), parts, notes, dict(body["partition_by"]))
        except (ValueError, KeyError, TypeError) as cause:
            remedy = "the folder removed, and written again"
            raise BadFile(path, f"damaged ({cause})", expected="a manifest", remedy=remedy) from cause

    def __repr__(self) -> str:
        new = len(self.parts) - self.num_done
        before = f", {self.num_done} of them before" if self.num_done else ""
        parts = f"{format_count(len(self.parts), 'part')}{before}; {new} written now"
        rows = f"{self.rows_out:,} of {self.rows_in:,} rows in {parts}"
        return "\n".join([rows, *map(str, self.notes), *(line for part in self.parts for line in part.halved)])


def list_quarantined(notes: Sequence[FileNote]) -> str:
    """Format a JSON line for each quarantined input file."""
    found = [{"file": note.file, "reason": note.reason} for note in notes if note.action == "quarantined"]
    return "".join(f"{json.dumps(one)}\n" for one in found)
