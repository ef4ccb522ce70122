"""Folders that artifacts are saved to and loaded from: on this machine, or in a store that fsspec knows.

On this machine a folder takes its place by being renamed. In a store nothing can be renamed, so files of one artifact
lie in a folder named by its digest, beside the manifest that tells it, which is written last:

s3://bucket/run/manifest.json
s3://bucket/run/0a1b2c3d4e5f6071/pipeline.json
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.errors import ArtifactError, BadConfig, BadFile
from gpupipe.files import ScratchFolder, replacing, writing
from gpupipe.io.jobs.destination import StoreFolder
from gpupipe.io.stores import StorageOptions, find_kind, is_remote, locate
from gpupipe.support.validation import is_path

MANIFEST = "manifest.json"
_NAME_DIGITS = 16  # of a digest, in the name of a folder
_DIGEST_FOLDER = re.compile(rf"[0-9a-f]{{{_NAME_DIGITS}}}/")
_log = logging.getLogger("gpupipe")


class ArtifactFolder:
    """Artifact to be read: `path` is its folder, or a temporary one for the files of a store, gone with this object."""

    def __init__(self, path: object, storage_options: StorageOptions | None) -> None:
        where = _as_text(path)
        self._store = StoreFolder(where.rstrip("/"), storage_options) if is_remote(where) else None
        self._scratch = ScratchFolder() if self._store is not None else None
        self.path = Path(locate(where)[1] if "://" in where else where)
        if self._store is not None and self._scratch is not None:
            self.where, self.path = self._store.where, self._scratch.path
            self._fetch([MANIFEST], "")
        else:
            self.where = str(self.path)

    def fetch(self, digest: str, names: Iterable[str]) -> None:
        """Fetch the files that a manifest with this digest lists, checked before; beside it, or in their own folder."""
        folder = digest[:_NAME_DIGITS]
        if self._store is None:
            inner = self.path / folder
            self.path = inner if inner.is_dir() else self.path
        else:
            stored_names = self._store.names()
            self._fetch(names, f"{folder}/" if any(name.startswith(f"{folder}/") for name in stored_names) else "")

    def _fetch(self, names: Iterable[str], prefix: str) -> None:
        assert self._store is not None
        for name in names:
            target = self.path / name
            target.parent.mkdir(exist_ok=True)
            try:
                self._store.get(f"{prefix}{name}", target)
            except BadFile as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise  # else the reader says which file is missing


@contextmanager
def write_folder(
    path: object, storage_options: StorageOptions | None, *, overwrite: bool, is_ours: Callable[[str], bool]
) -> Iterator[Path]:
    """Yield a folder to write an artifact to, its manifest too; the artifact is at `path` once the block succeeds.

    Raises BadFile where an artifact is there and `overwrite` is False, ArtifactError where anything else is: files
    for which `is_ours` is False.
    """
    where = _as_text(path)
    if is_remote(where):
        store = StoreFolder(where.rstrip("/"), storage_options)
        before = store.names()
        _check_free(store.where, _select_published(before), overwrite=overwrite, is_ours=is_ours)
        with ScratchFolder() as scratch:
            yield scratch.path
            _upload(scratch.path, store, before)
        return
    target = Path(locate(where)[1] if "://" in where else where)
    with writing(target):
        _check_free(str(target), _list_local(target), overwrite=overwrite, is_ours=is_ours)
        target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, overwrite=True) as folder:
        folder.mkdir()
        yield folder


def is_artifact(path: str) -> bool:
    """Return whether a folder or URL holds an artifact, by its manifest."""
    if is_remote(path):
        return find_kind(f"{path.rstrip('/')}/{MANIFEST}") == "file"
    manifest = Path(path, MANIFEST)
    return manifest.is_file() and '"pipeline.json"' in manifest.read_text(errors="replace")


def _as_text(path: object) -> str:
    if not is_path(path):
        raise BadConfig("path", "not a path", got=path, expected="a folder's path or a URL", remedy="'runs/flights'")
    assert isinstance(path, str | os.PathLike)
    return str(path)


def _check_free(where: str, names: Iterable[str], *, overwrite: bool, is_ours: Callable[[str], bool]) -> None:
    """Raise an error unless nothing is there, or an artifact that may be replaced."""
    names = sorted(names)
    extras = [name for name in names if not is_ours(name)] if MANIFEST in names else names
    if extras:
        expected = "a new path, an empty folder or an earlier artifact, and nothing else in it"
        raise ArtifactError(where, "something else is there", got=extras[0], expected=expected, remedy="another path")
    if names and not overwrite:
        problem, expected = "an artifact is there already", "a new path"
        raise BadFile(where, problem, expected=expected, remedy="overwrite=True, which replaces it")


def _list_local(folder: Path) -> list[str]:
    """List the files in a folder, or what stands in its place."""
    if not folder.is_dir():
        return [folder.name] * os.path.lexists(folder)
    if not any(folder.iterdir()):  # raises where the system hides the folder, as `rglob` does not
        return []
    files = (item for item in folder.rglob("*") if item.is_symlink() or not item.is_dir())
    return _strip_digests(file.relative_to(folder).as_posix() for file in files)


def _select_published(names: Collection[str]) -> list[str]:
    """Return the files of a store's folder without those that an interrupted save left, which has no manifest."""
    whole = MANIFEST in names
    return _strip_digests(name for name in names if whole or not _DIGEST_FOLDER.match(name))


def _strip_digests(names: Iterable[str]) -> list[str]:
    return [_DIGEST_FOLDER.sub("", name) for name in names]


def _upload(folder: Path, store: StoreFolder, before: Iterable[str]) -> None:
    """Write a whole artifact to a store, its manifest last; then remove the files that were there before."""
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    prefix = manifest["digest"][:_NAME_DIGITS]
    for name in manifest["files"]:
        store.put(folder / name, f"{prefix}/{name}")
    store.put(folder / MANIFEST, MANIFEST)
    stale = {*before} - {MANIFEST, *(f"{prefix}/{name}" for name in manifest["files"])}
    try:
        store.remove(stale)
    except BadFile as error:
        _log.warning("%s: %d files of an earlier artifact cannot be removed (%s)", store.where, len(stale), error)
