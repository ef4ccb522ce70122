"""Artifact manifest: integrity checks of a saved folder's files and JSON before any of it is used."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.errors import ArtifactError

FORMAT = 2

_ALWAYS = {"pipeline.json", "arrays.safetensors", "values.arrow"}
_WITH_MODEL = {"model.json", "model.safetensors"}
_TABLE = re.compile(r"tables/[\w-][\w .-]*\.parquet")

# Shapes: a type, `object` for anything, None, [what each item is], {key: what is there} with `key?` where it may be
# left out and `str` for all keys, or a tuple of those.
_OBJECT = {str: object}
_FIELD = {
    "name": str,
    "dtype": str,
    "kind": str,
    "nullable": bool,
    "cardinality": (int, None),
    "lineage": [str],
    "step": str,
    "role": (str, None),
    "classes": ([(str, bool, int, float)], None),
    "units": str,
    "range": ([(int, float)], None),
}
_STEP = {"class": str, "params": _OBJECT, "state?": _OBJECT}
_FEATURES = {
    "groups": [{"columns": [str], "name": (str, None), "steps": [_STEP]}],
    "target": ([str], None),
    "task": str,
    "standardised": bool,
    "target_transform": [_STEP],
    "classes": ([_OBJECT], None),
    "lineage": (str, None),
    "weight": (str, None),
    "keep": [str],
    "allow_leak": [str],
}
_MANIFEST = {"format": int, "files": {str: {"bytes": int, "sha256": str}}, "digest": str}
_NUMBER = (int, float)
_PROFILE = {
    "missing": _NUMBER,
    "mean": _NUMBER,
    "std": _NUMBER,
    "edges": [_NUMBER],
    "shares": [_NUMBER],
    "unknown": (int, float, None),
}
PIPELINE = {
    "source": [_FIELD],
    "schema": [_FIELD],
    "steps": [_STEP],
    "features": (_FEATURES, None),
    "profiles": {str: _PROFILE},
}
MODEL = {"class": (str, None), "config?": _OBJECT, "name?": str}

_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def write_manifest(folder: Path) -> None:
    """List all files of `folder`, with sizes and SHA-256, in its `manifest.json`."""
    files = sorted(item for item in folder.rglob("*") if item.is_file())
    listed = {item.relative_to(folder).as_posix(): _fingerprint(item) for item in files}
    write_json(folder / "manifest.json", {"format": FORMAT, "files": listed, "digest": _digest(listed)})


def list_other_files(folder: Path) -> list[str]:
    """List the files of a folder that `gpupipe.save` did not put there.

    Raises:
        OSError: the system does not show them.
    """
    if not any(folder.iterdir()):  # raises where the system hides the folder, as `rglob` does not
        return []
    files = (item for item in folder.rglob("*") if item.is_symlink() or not item.is_dir())
    names = sorted(file.relative_to(folder).as_posix() for file in files)
    if "manifest.json" not in names:
        return names
    ours = {"manifest.json", *_ALWAYS, *_WITH_MODEL}
    return [name for name in names if name not in ours and not _TABLE.fullmatch(name)]


def verify_files(folder: Path) -> list[str]:
    """Check that the folder has exactly the files of the manifest, each unaltered; return their names.

    Raises:
        ArtifactError: something else.
    """
    manifest = folder / "manifest.json"
    with blame_file(manifest):
        is_there = manifest.is_file()
    if not is_there:
        raise ArtifactError(
            str(folder),
            "it holds no saved pipeline (manifest.json is missing)",
            expected="a folder written by gpupipe.save",
            remedy="the folder's path",
        )
    found = read_json(manifest, {"format": int})["format"]
    if found != FORMAT:
        raise ArtifactError(
            str(manifest),
            "another format",
            got=found,
            expected=f"format {FORMAT}",
            remedy="the gpupipe version that wrote it",
        )
    content = read_json(manifest, _MANIFEST)
    listed = content["files"]
    if content["digest"] != _digest(listed):
        raise _make_damage_error(manifest, "its list of files was altered")
    needed = _ALWAYS | (_WITH_MODEL if _WITH_MODEL & listed.keys() else set())
    for name in sorted(needed - listed.keys()):
        raise _make_damage_error(manifest, f"it does not list {name}")
    for name, expected in listed.items():
        if name not in needed and not _TABLE.fullmatch(name):
            raise _make_damage_error(manifest, f"it lists a file that no artifact has, {name!r}")
        file = folder / name
        if not file.is_file():
            raise _make_damage_error(file, "the file is missing")
        with blame_file(file):
            if _fingerprint(file) != expected:
                raise _make_damage_error(file, "the file was altered or cut short")
    return list(listed)


@contextmanager
def blame_file(file: Path, *passing: type[Exception]) -> Iterator[None]:
    """Report exceptions raised inside as a fault of the file, except artifact errors and those of `passing`.

    Raises:
        ArtifactError: names the file and the first line of what failed.

    Example:
        >>> with blame_file(Path("pipeline.json")):
        ...     {}["steps"]
        Traceback (most recent call last):
        gpupipe.errors.ArtifactError: pipeline.json: its content cannot be used (KeyError: 'steps').
        Expected the file as it was saved.
        Try: saving again, or a copy that is whole
    """
    try:
        yield
    except Exception as cause:
        if isinstance(cause, (ArtifactError, *passing)):
            if str(file) not in str(cause):
                cause.add_note(f"in {file}")
            raise
        line = str(cause).partition("\n")[0]
        if isinstance(cause, PermissionError):
            problem, expected = f"it cannot be read ({line})", "a file that this process may read"
            raise ArtifactError(str(file), problem, expected=expected, remedy="its permissions") from cause
        raise _make_damage_error(file, f"its content cannot be used ({type(cause).__name__}: {line})") from cause


def write_json(file: Path, content: Any) -> None:
    """Write JSON, of finite numbers only."""
    file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(file: Path, shape: Any) -> Any:
    """Read a JSON file that has this shape and finite numbers only.

    Raises:
        ArtifactError: it is not; names the place in the file.
    """
    with blame_file(file):
        content = json.loads(file.read_bytes(), parse_float=_finite, parse_constant=_finite)
        _check(file, content, shape, "")
    return content


def _check(file: Path, value: Any, shape: Any, place: str) -> None:
    kinds = {
        one if isinstance(one, type) else type(one): one for one in (shape if isinstance(shape, tuple) else (shape,))
    }
    if object in kinds:
        return
    if type(value) not in kinds:
        words = " or ".join(_WORDS[kind] for kind in kinds)
        raise _make_damage_error(file, f"{place or 'the content'} is {_WORDS[type(value)]}, not {words}")
    fitting = kinds[type(value)]
    if isinstance(fitting, list):
        for position, item in enumerate(value):
            _check(file, item, fitting[0], f"{place}[{position}]")
    elif isinstance(fitting, dict):
        for key, inner in fitting.items():
            for name in value if key is str else [key.rstrip("?")]:
                if name in value:
                    _check(file, value[name], inner, f"{place}.{name}" if place else name)
                elif not key.endswith("?"):
                    raise _make_damage_error(file, f"{place or 'the content'} lacks {name!r}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _make_damage_error(file: Path, problem: str) -> ArtifactError:
    return ArtifactError(
        str(file), problem, expected="the file as it was saved", remedy="saving again, or a copy that is whole"
    )


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _digest(listed: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
