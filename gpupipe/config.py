"""Configuration: process-wide defaults of arguments."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpupipe.errors import BadConfig
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_choice, check_name, is_integer, refuse_argument

__all__ = ["Settings", "configure", "settings"]

BACKENDS = ("auto", "cpu", "gpu")
BLOCK_ROWS, WINDOW = 1 << 17, 8  # rows of a block that is shuffled, and blocks whose rows are mixed


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults in force.

    Args:
        backend: what `backend="auto"` means: `"auto"` for the best this machine can run, `"cpu"` or `"gpu"`;
            initially that of the environment variable GPUPIPE_BACKEND.
        partition_bytes: decoded bytes of a partition; None for the backend's own default.
        memory_limit: host bytes to stay within in reading and fitting, by smaller partitions and fewer columns kept
            between passes; None for no limit. Vocabularies and results are not counted.
        device_memory: bytes of a GPU that frames and arrays may take, from its first use on; None for what training
            leaves; initially that of the environment variable GPUPIPE_DEVICE_MEMORY.
        scratch: the folder for temporary results: a path, or a URL that fsspec knows, which all workers reach; None for
            TMPDIR. With a URL, what is too large for memory is written to the local disk first.
    """

    backend: str = "auto"
    partition_bytes: int | None = None
    memory_limit: int | None = None
    device_memory: int | None = None
    scratch: str | None = None

    def __post_init__(self) -> None:
        check_choice("configure", BACKENDS, backend=self.backend)
        for name in ("partition_bytes", "memory_limit", "device_memory"):
            value = getattr(self, name)
            if not (value is None or is_integer(value, 1, 2**63 - 1)):  # None is no remedy: it changes nothing
                expected = "bytes, an integer in [1, inf)"
                raise refuse_argument("configure", name, value, expected, f"{name}=2_000_000_000")
        check_name("configure", None, scratch=self.scratch)
        path = self.scratch
        if path is not None and "://" not in path and not (Path(path or " ").is_dir() and os.access(path, os.W_OK)):
            expected, remedy = "a folder that exists, or a URL that fsspec knows", f"mkdir -p {path or 'scratch'}"
            problem = "no folder that this process may write to"
            raise BadConfig("configure(scratch=)", problem, got=path, expected=expected, remedy=remedy)


_MEMORY = "GPUPIPE_DEVICE_MEMORY"
_in_force: list[Settings] = []


def settings() -> Settings:
    """Return the defaults in force.

    Raises `BadConfig`: an environment variable has no value that makes sense.

    Example:
        >>> settings().partition_bytes is None
        True
    """
    if not _in_force:
        memory = os.environ.get(_MEMORY)
        if memory is not None and not memory.isdecimal():
            remedy = f"{_MEMORY}=60000000000"
            raise BadConfig(_MEMORY, "no number of bytes", got=memory, expected="digits only", remedy=remedy)
        backend = os.environ.get("GPUPIPE_BACKEND", "auto")
        _in_force.append(Settings(backend=backend, device_memory=None if memory is None else int(memory)))
    return _in_force[-1]


@answer_calls
def configure(
    *,
    backend: str | None = None,
    partition_bytes: int | None = None,
    memory_limit: int | None = None,
    device_memory: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Settings:
    """Set defaults of this process, see `Settings`; what is not named stays. Returns the settings in force.

    Raises `BadConfig`: a value that makes no sense.

    Example:
        >>> configure(backend="cpu").backend
        'cpu'
    """
    folder = os.fspath(scratch) if isinstance(scratch, os.PathLike) else scratch
    folder = re.sub("^(file|local)://", "", folder) if isinstance(folder, str) else folder
    values: dict[str, Any] = {"backend": backend, "partition_bytes": partition_bytes, "memory_limit": memory_limit}
    values |= {"device_memory": device_memory, "scratch": folder}
    _in_force[:] = [replace(settings(), **{name: value for name, value in values.items() if value is not None})]
    return _in_force[-1]
