"""Tables named on the command line: the reader that goes with the files' suffixes."""

from __future__ import annotations

import re
from pathlib import Path

from gpupipe import io

_READERS = {
    "read_parquet": "parquet",
    "read_orc": "orc",
    "read_ipc": "arrows?|feather|ipc",
    "read_csv": "csv",
    "read_json": "jsonl|ndjson|json",
}


def open_table(path: str, **options: str) -> io.Dataset:
    """Open a file, folder, pattern or URL by the suffixes of its files; Parquet where they tell nothing.

    `options` are the reader's `on_bad` and `on_mismatch`.
    """
    folder = Path(path)
    files = [folder, *folder.rglob("[!._]*")] if folder.is_dir() else [folder]
    names = "\n".join(file.name for file in files)
    readers = (reader for reader, kinds in _READERS.items() if re.search(rf"\.({kinds})(\W|$)", names))
    dataset: io.Dataset = getattr(io, next(readers, "read_parquet"))(path, **options)
    return dataset
