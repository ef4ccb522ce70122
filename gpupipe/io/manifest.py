"""What a written folder says of itself: from which files its parts were made, by what, and how many rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from gpupipe.errors import BadFile

__all__ = ["MANIFEST", "Manifest", "Part", "stamp_of"]

MANIFEST = "_manifest.json"
_FORMAT = "gpupipe dataset 1"


@dataclass(frozen=True)
class Part:
    """What one partition became.

    Args:
        name: the part's.
        files: rows of each row group, by the file's name in the folder.
        rows_in: rows read, before any filter.
        inputs: the input files the rows came from.
    """

    name: str
    files: dict[str, list[int]]
    rows_in: int
    inputs: list[str]

    @property
    def rows_out(self) -> int:
        """Rows written."""
        return sum(sum(groups) for groups in self.files.values())


@dataclass(frozen=True)
class Manifest:
    """A folder's parts and where they came from; its text form tells how much of it the last call wrote.

    Args:
        job: tells the same pipeline with the same options apart from any other; None where that cannot be told.
        inputs: a stamp of each input file: its size and when it was changed, or its etag.
        parts: in order.
        num_done: how many of the parts had been written before the call.
    """

    job: str | None
    inputs: Mapping[str, str]
    parts: tuple[Part, ...]
    num_done: int = field(default=0, compare=False)

    @property
    def files(self) -> list[str]:
        """The files that hold the rows, in order."""
        return [name for part in self.parts for name in part.files]

    @property
    def rows_in(self) -> int:
        """Rows read, before any filter."""
        return sum(part.rows_in for part in self.parts)

    @property
    def rows_out(self) -> int:
        """Rows written."""
        return sum(part.rows_out for part in self.parts)

    def to_json(self) -> str:
        """The text of `_manifest.json`."""
        body = {"format": _FORMAT, "job": self.job, "rows_in": self.rows_in, "rows_out": self.rows_out}
        return json.dumps(body | {"inputs": self.inputs, "parts": [asdict(part) for part in self.parts]}, indent=1)

    @classmethod
    def read(cls, folder: str | Path) -> Manifest | None:
        """The manifest of a folder; None where it has none.

        Raises:
            BadFile: it is there but damaged.
        """
        path = f"{str(folder).rstrip('/')}/{MANIFEST}"
        try:
            with fsspec.open(path, "rt", encoding="utf-8") as file:
                body: dict[str, Any] = json.load(file)
            parts = tuple(Part(**part) for part in body["parts"])
            return {_FORMAT: cls}[body["format"]](body["job"], dict(body["inputs"]), parts)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError) as cause:
            raise BadFile(
                path, f"damaged ({cause})", expected="a manifest", remedy="the folder written again, overwrite=True"
            ) from cause

    def __repr__(self) -> str:
        new = len(self.parts) - self.num_done
        before = f", {self.num_done} of them before" if self.num_done else ""
        return f"{self.rows_out:,} of {self.rows_in:,} rows in {len(self.parts)} parts{before}; {new} written now"


def stamp_of(path: str) -> str | None:
    """What changes when a file is replaced: size and time of change, or etag; None where there is no such file."""
    fs, inner = url_to_fs(path)
    try:
        info = fs.info(inner)
    except (OSError, ValueError):
        return None
    changed = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
    return f"{info.get('size')} {changed}"
