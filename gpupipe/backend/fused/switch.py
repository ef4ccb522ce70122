"""Guard of the fused kernel: tried once, then compared with the plain path, before it is used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from gpupipe.backend.columns import Array, Column
from gpupipe.backend.device.memory import on_default_stream
from gpupipe.backend.kernels import DeferredColumn

_ROWS = "gpupipe.backend.fused.launch"  # imports Triton
_TILE = 256  # rows; only blocks of more have whole tiles
_APART, _HALVES_APART = 1e-3, 2.0**-7  # relative to 1 + |value|; a logarithm's last bit may be scaled up
_REFUSED = "feature block: written column by column, not in one pass (%s)"
_log = logging.getLogger("gpupipe")


class FusedRows:
    """Fused kernel on one device, used until the first block of a kind of columns differs from the steps' results."""

    def __init__(self, xp: ModuleType, device: int) -> None:
        self._xp, self._device = xp, device
        self._works: bool | None = None
        self._compared: set[object] = set()

    def works(self) -> bool:
        """Return whether the kernel works; the first call compiles one, and logs why if it does not."""
        if self._works is None:
            reason = "Triton is not installed"
            if find_spec("triton") is not None:
                with on_default_stream(self._device):
                    reason = import_module(_ROWS).find_obstacle(self._xp)
            self._works = not reason
            if reason:
                _log.warning(_REFUSED, reason)
        return self._works

    def write(self, words: Array, columns: Sequence[Column], ids: Sequence[bool], halves: int) -> bool:
        """Write rows; see `Backend.write_rows`."""
        if not self.works():
            return False
        with on_default_stream(self._device):  # on it runs all else of a backend; Triton would take torch's own
            if not import_module(_ROWS).write_rows(words, columns, ids, self._xp, halves):
                return False
        kind = len(words) > _TILE, halves > 0, frozenset(map(_kind, columns, ids))
        if kind not in self._compared:
            self._compared.add(kind)
            wrong = self._count_differences(words, columns, ids, halves)
            if wrong:
                self._works = False
                _log.warning(_REFUSED, f"{wrong} of its numbers are not those of the steps: please report this")
        return self._works is True

    def _count_differences(self, words: Array, columns: Sequence[Column], ids: Sequence[bool], halves: int) -> int:
        """Count the words of a block that differ from the steps' results. Memory: the columns, and four temporaries."""
        counts, first = [], -(-halves // 2) - halves
        for number, (column, is_id) in enumerate(zip(columns, ids, strict=True)):
            values = column.data
            stored, apart = words[:, first + number], _APART
            if is_id:
                counts.append((stored != values.astype("int32")).sum())
                continue
            if number < halves:
                stored, apart = words.view("int16")[:, number].astype("int32") << 16, _HALVES_APART
            counts.append((~(abs(stored.view("float32") - values) <= apart * (1 + abs(values)))).sum())
        return int(self._xp.stack(counts).sum()) if counts else 0


def _kind(column: Column, is_id: bool) -> object:
    """Return what determines the kernel compiled for a column, and the branches it takes."""
    if not isinstance(column, DeferredColumn):
        return column.data.dtype.name, is_id
    source, program = column.source, column.program
    form = None if source.mask is None else source.per_byte
    return source.data.dtype.name, form, *program.parts, program.scale is not None and program.scale.moves
