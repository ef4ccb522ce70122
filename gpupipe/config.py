"""Process-wide defaults, for what a call leaves open."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from gpupipe.errors import BadConfig
from gpupipe.support.validation import check_choice, check_integer

__all__ = ["BACKENDS", "BLOCK_ROWS", "WINDOW", "Settings", "configure", "settings"]

BACKENDS = ("auto", "cpu", "gpu")
BLOCK_ROWS, WINDOW = 1 << 17, 8
"""Rows of a block that is shuffled, and blocks whose rows are mixed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults in force.

    Args:
        backend: what `backend="auto"` means: `"auto"` for the best this machine can run, `"cpu"` or `"gpu"`. The
            environment variable GPUPIPE_BACKEND gives its first value.
        partition_bytes: decoded bytes of a partition; None for the backend's own default.
        memory_limit: host bytes that reading and fitting should stay within; None for no limit. Partitions become
            smaller and fewer columns are kept between passes; vocabularies and results are not counted.
        device_memory: bytes of a GPU that frames and arrays may take; None for what training leaves. The environment
            variable GPUPIPE_DEVICE_MEMORY gives its first value. It holds from the GPU's first use.
    """

    backend: str = "auto"
    partition_bytes: int | None = None
    memory_limit: int | None = None
    device_memory: int | None = None

    def __post_init__(self) -> None:
        check_choice("configure", BACKENDS, backend=self.backend)
        for name in ("partition_bytes", "memory_limit", "device_memory"):
            check_integer("configure", "[1, inf)", None, **{name: getattr(self, name)})


_in_force: list[Settings] = []


def settings() -> Settings:
    """The defaults in force.

    Example:
        >>> settings().partition_bytes is None
        True
    """
    if not _in_force:
        backend = os.environ.get("GPUPIPE_BACKEND", "auto")
        _in_force.append(Settings(backend=backend, device_memory=_bytes_in("GPUPIPE_DEVICE_MEMORY")))
    return _in_force[-1]


def _bytes_in(variable: str) -> int | None:
    """The number of bytes that an environment variable gives; None where it is not set."""
    text = os.environ.get(variable)
    if text is not None and not text.isdecimal():
        raise BadConfig(
            variable, "no number of bytes", got=text, expected="digits only", remedy=f"{variable}=60000000000"
        )
    return None if text is None else int(text)


def configure(
    *,
    backend: str | None = None,
    partition_bytes: int | None = None,
    memory_limit: int | None = None,
    device_memory: int | None = None,
) -> Settings:
    """Set defaults of this process; what is not named stays. Returns the settings in force.

    Args:
        backend: as in `Settings`.
        partition_bytes: as in `Settings`.
        memory_limit: as in `Settings`.
        device_memory: as in `Settings`.

    Raises:
        BadConfig: a value that makes no sense.

    Example:
        >>> configure(backend="cpu").backend
        'cpu'
    """
    given: dict[str, Any] = {
        "backend": backend,
        "partition_bytes": partition_bytes,
        "memory_limit": memory_limit,
        "device_memory": device_memory,
    }
    _in_force[:] = [replace(settings(), **{name: value for name, value in given.items() if value is not None})]
    return _in_force[-1]
