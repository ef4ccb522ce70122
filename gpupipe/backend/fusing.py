"""Whether and how a GPU writes whole rows of a block in one kernel; looked for once, and told of."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from gpupipe.backend.memory import on_default_stream
from gpupipe.backend.protocol import Array, Column

__all__ = ["FusedRows"]

_ROWS = "gpupipe.backend.feature_rows"  # imports Triton
_log = logging.getLogger("gpupipe")


class FusedRows:
    """The kernel of `feature_rows` on one device, if Triton is there and works.

    Args:
        xp: cupy.
        device: its index.
    """

    def __init__(self, xp: ModuleType, device: int) -> None:
        self._xp, self._device = xp, device
        self._works: bool | None = None

    def works(self) -> bool:
        """Whether rows can be written; the first time one is, which compiles a kernel, and a refusal is logged."""
        if self._works is None:
            reason = "Triton is not installed"
            if find_spec("triton") is not None:
                with on_default_stream(self._device):
                    reason = import_module(_ROWS).why_not(self._xp)
            if reason:
                _log.warning("feature block: written column by column, not in one pass (%s)", reason)
            self._works = not reason
        return self._works

    def write(self, words: Array, columns: Sequence[Column], ids: Sequence[bool], halves: int) -> bool:
        """As `Backend.write_rows`."""
        if not self.works():
            return False
        with on_default_stream(self._device):  # on it runs all else of a backend; Triton would take torch's own
            return bool(import_module(_ROWS).write_rows(words, columns, ids, self._xp, halves))
