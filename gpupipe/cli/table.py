"""Tables named on the command line: the reader that goes with the files' suffixes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gpupipe import io
from gpupipe.errors import BadConfig
from gpupipe.io.formats.text import read_text

_READERS = {
    "read_parquet": "parquet",
    "read_orc": "orc",
    "read_ipc": "arrows?|feather|ipc",
    "read_csv": "csv",
    "read_json": "jsonl|ndjson|json",
}


def choose_reader(path: str) -> str:
    """Choose the function that reads a file, folder, pattern or URL, by the suffixes of its files."""
    folder = Path(path)
    files = [folder, *folder.rglob("[!._]*")] if folder.is_dir() else [folder]
    names = "\n".join(file.name for file in files)
    readers = (reader for reader, kinds in _READERS.items() if re.search(rf"\.({kinds})(\W|$)", names))
    return next(readers, "read_parquet")


def open_table(
    path: str, texts: Collection[str] = (), dialect: Mapping[str, Any] | None = None, **options: str
) -> io.Dataset:
    """Open a file, folder, pattern or URL by the suffixes of its files; Parquet where they tell nothing.

    `texts` are columns that CSV and JSON lines have as text, where they are there; `dialect` are arguments of
    `read_csv`, and `options` the reader's `on_bad` and `on_mismatch`. Raises `BadConfig` for a dialect of no CSV.
    """
    reader = choose_reader(path)
    if dialect and reader != "read_csv":
        remedy = f"the command without --{next(iter(dialect)).replace('_formats', '-format')}"
        raise BadConfig(
            "gpupipe", f"{path} is no CSV", got=dict(dialect), expected="files that end in .csv", remedy=remedy
        )
    if reader in ("read_csv", "read_json"):
        return read_text(reader.removeprefix("read_"), path, texts, dialect or {}, **options)
    dataset: io.Dataset = getattr(io, reader)(path, **options)
    return dataset
