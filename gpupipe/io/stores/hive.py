"""Hive partitioning: folders such as `year=2013/month=1/`, whose values are columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from gpupipe.backend.arrow_types import parse_type
from gpupipe.errors import BadData, BadFile

__all__ = ["Keys", "cast_keys", "check_folder_text", "folder_name", "parse_keys"]

Keys = Mapping[str, pa.Scalar]
"""The columns whose one value a file's folders tell."""

_MISSING = "__HIVE_DEFAULT_PARTITION__"


def parse_keys(folders: Sequence[str]) -> dict[str, str | None]:
    """Parse folder names to text by column, None for a missing value.

    Example:
        >>> parse_keys(["2013", "month=1", "city=New%20York", "gate=__HIVE_DEFAULT_PARTITION__"])
        {'month': '1', 'city': 'New York', 'gate': None}
    """
    pairs = (folder.partition("=") for folder in folders if "=" in folder)
    return {unquote(name): None if text == _MISSING else unquote(text) for name, _, text in pairs if name}


def folder_name(name: str) -> str:
    """Escape a column's name for use before `=`; `parse_keys` parses it again.

    Example:
        >>> folder_name("größe"), folder_name("a=b"), folder_name("miles/hour")
        ('größe', 'a%3Db', 'miles%2Fhour')
    """
    return re.sub(r"[%=/\x00-\x1f]", lambda found: quote(found[0], safe=""), name)


def check_folder_text(name: str, values: pa.ChunkedArray) -> None:
    """Make sure that a column's texts come back from folders' names.

    Raises:
        BadData: one is the name of the folder of missing values, or has a NUL, at which pyarrow ends it.
    """
    lost = values.filter(pc.or_(pc.equal(values, _MISSING), pc.match_substring(values, "\0")))
    if len(lost):
        raise BadData(
            "write_parquet(partition_by=)",
            f"column {name!r} has a text that a folder's name cannot hold",
            got=lost[0].as_py(),
            expected=f"texts without the character NUL, other than {_MISSING!r}",
            remedy=f"T.Replace({{{name!r}: {{{lost[0].as_py()!r}: 'other'}}}}) before it",
        )


def cast_keys(keys: Sequence[Mapping[str, str | None]], dtypes: Mapping[str, str], where: str) -> list[Keys]:
    """Convert the keys of every file to dtypes that hold for all files.

    Args:
        keys: the texts, per file.
        dtypes: known types; else a key is int64 where all its texts are whole numbers, and string where not.
        where: the folder, for messages.

    Raises:
        BadFile: a text is no value of its known type.

    Example:
        >>> [keys["month"].as_py() for keys in cast_keys([{"month": "01"}, {"month": "12"}], {}, "flights")]
        [1, 12]
    """
    texts: dict[str, set[str | None]] = {}
    for one in keys:
        for name, text in one.items():
            texts.setdefault(name, set()).add(text)
    kinds = {name: parse_type(dtypes.get(name) or _infer_dtype(found)) for name, found in texts.items()}
    values = {(name, text): _value(name, text, kinds[name], where) for name, found in texts.items() for text in found}
    return [{name: values[name, text] for name, text in one.items()} for one in keys]


def _infer_dtype(texts: set[str | None]) -> str:
    present = [text for text in texts if text is not None]
    return "int64" if present and all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in present) else "string"


def _value(name: str, text: str | None, kind: pa.DataType, where: str) -> pa.Scalar:
    try:
        return pa.scalar(text, pa.large_string()).cast(kind)
    except pa.ArrowInvalid as cause:
        raise BadFile(
            where,
            f"the folder name {name}={text} holds no {kind}",
            expected="the folders as write_parquet(partition_by=) left them",
            remedy="the folder written again",
        ) from cause
