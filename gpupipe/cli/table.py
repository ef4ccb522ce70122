"""Tables named on the command line: the reader that goes with the files' suffixes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from gpupipe import io
from gpupipe.errors import BadConfig
from gpupipe.io.formats.text import CSV_SUFFIXES, JSON_SUFFIXES, read_text
from gpupipe.io.stores import find_files
from gpupipe.support.text import format_count

_READERS = {
    "read_parquet": "parquet",
    "read_orc": "orc",
    "read_ipc": "arrows?|feather|ipc",
    "read_csv": "csv|tsv|txt",
    "read_json": "jsonl|ndjson|json",
}
_FOLDER_SUFFIXES = [".parquet", ".orc", ".arrow", ".arrows", ".feather", ".ipc", *CSV_SUFFIXES, *JSON_SUFFIXES]


def choose_reader(path: str) -> str:
    """Choose the function that reads a file, folder, pattern or URL, by the suffixes of its files.

    Parquet where they tell nothing. Raises `BadConfig` for files of two formats: a reader leaves out those of others.
    """
    endings: dict[str, Counter[str]] = {}
    for file in find_files(path, _FOLDER_SUFFIXES):
        name = file.path.rpartition("/")[2].lower()
        matches = ((reader, re.search(rf"\.({kinds})(\W.*)?$", name)) for reader, kinds in _READERS.items())
        reader, ending = next(((reader, match[0]) for reader, match in matches if match), ("read_parquet", ""))
        endings.setdefault(reader, Counter())[ending] += 1
    if len(endings) > 1:
        commonest = max(endings.values(), key=Counter.total)
        pattern = f"*{min(commonest)}{'*' * (len(commonest) > 1)}"
        remedy = f"each by its own command, '{path.rstrip('/')}/**/{pattern}' first"
        if re.search(r"[*?\[]", path):
            remedy = f"each by its own command, a pattern that ends in {pattern[1:]} first"
        counts = [
            f"{format_count(n, 'file')} {ending}".rstrip() for each in endings.values() for ending, n in each.items()
        ]
        problem, expected = (
            f"{path} has files of several formats",
            "files of one format: those of others would be left out",
        )
        raise BadConfig("gpupipe", problem, got=counts, expected=expected, remedy=remedy)
    return next(iter(endings))


def open_table(
    path: str, texts: Collection[str] = (), dialect: Mapping[str, Any] | None = None, **options: str
) -> io.Dataset:
    """Open a file, folder, pattern or URL by the suffixes of its files; Parquet where they tell nothing.

    `texts` are columns that CSV and JSON lines have as text, where they are there; `dialect` are arguments of
    `read_csv`, and `options` the reader's `on_bad` and `on_mismatch`. Raises `BadConfig` for a dialect of no CSV, and
    for files of several formats.
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
