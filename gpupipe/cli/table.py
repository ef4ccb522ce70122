"""Tables named on the command line: the reader that goes with the files' suffixes."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Any

from gpupipe import io
from gpupipe.errors import BadConfig
from gpupipe.io.formats.text import CSV_SUFFIXES, JSON_SUFFIXES, read_text
from gpupipe.io.stores import find_files
from gpupipe.support.text import format_count

_log = logging.getLogger("gpupipe")
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

    Parquet where they tell nothing. Raises `BadConfig` for files of several formats, of which a reader takes one.
    """
    endings: dict[str, Counter[str]] = {}
    for file in find_files(path, _FOLDER_SUFFIXES):
        name = file.path.rpartition("/")[2].lower()
        matches = ((reader, re.search(rf"\.({kinds})(\W.*)?$", name)) for reader, kinds in _READERS.items())
        reader, ending = next(((reader, match[0]) for reader, match in matches if match), ("read_parquet", ""))
        endings.setdefault(reader, Counter())[ending] += 1
    is_pattern = re.search(r"[*?\[]", path) is not None
    if len(endings) > 1 and not is_pattern and set(endings.get("read_json", ())) == {".json"}:  # mostly a manifest
        _log.warning("%s: read without %s .json", path, format_count(endings.pop("read_json").total(), "file"))
    if len(endings) > 1:
        commonest = max(endings.values(), key=Counter.total)
        letters = takewhile(lambda column: len(set(column)) == 1, zip(*commonest, strict=False))
        ending = "".join(column[0] for column in letters)  # .csv. of .csv.bz2 and .csv.gz; of .jsonl and .ndjson a dot
        pattern = f"*{ending}{'*' * (len(commonest) > 1)}"
        pattern = f"a pattern that ends in {pattern[1:]}" if is_pattern else f"'{path.rstrip('/')}/**/{pattern}'"
        counts = [f"{format_count(n, 'file')} {end}".rstrip() for each in endings.values() for end, n in each.items()]
        problem, expected = f"{path} has files of several formats", "files of one format: others would be left out"
        remedy = f"each format by its own command, {pattern} first" if ending != "." else "a folder for each format"
        raise BadConfig("gpupipe", problem, got=counts, expected=expected, remedy=remedy)
    return next(iter(endings))


def open_table(
    path: str,
    texts: Collection[str] = (),
    dialect: Mapping[str, Any] | None = None,
    *,
    of_csv_alone: bool = True,
    **options: str,
) -> io.Dataset:
    """Open a file, folder, pattern or URL by the suffixes of its files; Parquet where they tell nothing.

    `texts` are columns that CSV and JSON lines have as text, where they are there; `dialect` are arguments of
    `read_csv`, and `options` the reader's `on_bad` and `on_mismatch`. Raises `BadConfig` for files of several formats,
    and for a dialect of no CSV, which other files may have without `of_csv_alone`.
    """
    reader = choose_reader(path)
    if dialect and of_csv_alone and reader != "read_csv":
        remedy = f"the command without --{next(iter(dialect)).rstrip('s').replace('_', '-')}"
        raise BadConfig(
            "gpupipe", f"{path} is no CSV", got=dict(dialect), expected="files that end in .csv", remedy=remedy
        )
    if reader in ("read_csv", "read_json"):
        return read_text(reader.removeprefix("read_"), path, texts, dialect or {}, **options)
    dataset: io.Dataset = getattr(io, reader)(path, **options)
    return dataset
