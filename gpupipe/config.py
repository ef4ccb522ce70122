"""Process-wide defaults, for what a call leaves open."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpupipe.errors import BadConfig

__all__ = ["Settings", "configure", "settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The defaults in force.

    Args:
        backend: what `backend="auto"` means: `"auto"` for the best this machine can run, `"cpu"` or `"gpu"`. The
            environment variable GPUPIPE_BACKEND gives its first value.
        partition_bytes: decoded bytes of a partition; None for the backend's own default.
    """

    backend: str = "auto"
    partition_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "cpu", "gpu"):
            raise BadConfig(
                "configure", "no such backend", got=self.backend, expected="auto, cpu or gpu", remedy="backend='auto'"
            )
        if self.partition_bytes is not None and self.partition_bytes < 1:
            raise BadConfig(
                "configure",
                "partition_bytes is too small",
                got=self.partition_bytes,
                expected="a number of bytes, or None",
                remedy="partition_bytes=128 << 20",
            )


_in_force: list[Settings] = []


def settings() -> Settings:
    """The defaults in force.

    Example:
        >>> settings().partition_bytes is None
        True
    """
    if not _in_force:
        _in_force.append(Settings(backend=os.environ.get("GPUPIPE_BACKEND", "auto")))
    return _in_force[-1]


def configure(*, backend: str | None = None, partition_bytes: int | None = None) -> Settings:
    """Set defaults of this process and return the settings then in force; what is not named stays.

    Args:
        backend: as in `Settings`.
        partition_bytes: as in `Settings`.

    Raises:
        BadConfig: a value that makes no sense.

    Example:
        >>> configure(backend="auto").backend
        'auto'
    """
    before = settings()
    _in_force[:] = [
        Settings(
            before.backend if backend is None else backend,
            before.partition_bytes if partition_bytes is None else partition_bytes,
        )
    ]
    return _in_force[-1]
