"""Launch of the fused kernel: its table of columns, its grid, and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from subprocess import SubprocessError
from types import ModuleType
from typing import Self

import numpy as np
import triton.language as tl
from triton.errors import TritonError

from gpupipe.backend.columns import Array, Column, RawColumn
from gpupipe.backend.fused.kernel import write_tile
from gpupipe.backend.kernels import ElementwiseProgram, Scale, split_program
from gpupipe.schema import FLOATS, INTEGERS

_TILE = 2048  # values of one program: 16 for each of its threads
_WORDS, _HALVES = 8, 16  # columns of a tile: 32 bytes, a sector of the memory
_TYPES = {"bool": tl.uint8, **{name: getattr(tl, name) for name in (*INTEGERS, *FLOATS)}}
_AS_IS, _PLAIN = Scale(offset=0.0, divisor=1.0), ElementwiseProgram()


def write_rows(words: Array, columns: Sequence[Column], ids: Sequence[bool], xp: ModuleType, halves: int = 0) -> bool:
    """Write rows of a block, each word once, as `Backend.write_rows` defines."""
    if not len(words):
        return True
    width = words.shape[1]
    assert _address(words) % 16 == 0, "the kernel stores 16 bytes at a time"
    assert width % _WORDS == 0
    assert words.strides == (4 * width, 4)
    sources = [_Source.from_column(column, is_id, xp) for column, is_id in zip(columns, ids, strict=True)]
    flag = xp.zeros(1, dtype=xp.int32)
    if halves:
        _launch(words, sources[:halves], _HALVES, 0, flag, xp)
    if len(columns) > halves or not halves:
        begin = -(-halves // 2)
        _launch(words, [_NOTHING] * begin + sources[halves:], _WORDS, begin, flag, xp)
    return not bool(flag[0])


def find_obstacle(xp: ModuleType) -> str:
    """Return why no kernel can run here, such as a missing C compiler, by writing one value; empty if one can."""
    try:
        write_rows(xp.zeros((1, 8), dtype=xp.int32), [Column("float32", xp.zeros(1, dtype=xp.float32))], [False], xp)
    except (TritonError, RuntimeError, OSError, ImportError, SubprocessError) as cause:
        return f"Triton: {cause}"
    return ""


@dataclass(frozen=True, slots=True)
class _Source:
    """Source column of the kernel: addresses of values and mask, and the elementwise program."""

    stored: RawColumn | None
    program: ElementwiseProgram
    is_id: bool

    @classmethod
    def from_column(cls, column: Column, is_id: bool, xp: ModuleType) -> Self:
        stored, program = split_program(column)
        mask = None if stored.mask is None else xp.ascontiguousarray(stored.mask)
        return cls(replace(stored, data=xp.ascontiguousarray(stored.data), mask=mask), program, is_id)

    def integers(self, types: Sequence[tl.dtype]) -> list[int]:
        """Return the first rows of the table: address, type, mask, its first bit and bits a byte, id, logarithm."""
        stored = self.stored
        if stored is None:
            return [0, -1, 0, 0, 1, 0, 0]
        kind = types.index(_TYPES[stored.data.dtype.name])
        mask = 0 if stored.mask is None else _address(stored.mask)
        return [_address(stored.data), kind, mask, stored.first, stored.per_byte, self.is_id, self.program.log]

    def numbers(self) -> list[float]:
        """Return the other rows of the table: fill, limits, scale."""
        scale, fill = self.program.scale or _AS_IS, nan if self.program.fill is None else self.program.fill
        constants = (scale.offset, scale.divisor, scale.multiplier, scale.shift, scale.low, scale.high)
        return [fill, *(self.program.clip or (-inf, inf)), *constants]


_NOTHING = _Source(None, _PLAIN, is_id=False)


def _launch(words: Array, sources: list[_Source], tile: int, first: int, flag: Array, xp: ModuleType) -> None:
    """Launch the kernel over all rows; a second launch, with narrower loads, writes the rows of the partial tile."""
    num_rows, width = words.shape
    num_columns = width if tile == _WORDS else -(-len(sources) // tile) * tile
    sources = sources + [_NOTHING] * (num_columns - len(sources))
    names = dict.fromkeys(source.stored.data.dtype.name for source in sources if source.stored is not None)
    types = tuple(dict.fromkeys(_TYPES[name] for name in sorted(names)))
    integers = np.array([source.integers(types) for source in sources], dtype=np.int64).T
    numbers = np.array([source.numbers() for source in sources]).view(np.int64).T
    logs = integers[6].reshape(-1, tile).max(axis=1).repeat(tile)  # of each column, whether its tile has a logarithm
    table = xp.asarray(np.ascontiguousarray(np.concatenate([integers, [logs], numbers])))
    programs = [source.program for source in sources]
    whole = num_rows // (_TILE // tile) * (_TILE // tile) if not (integers[0] % 16).any() else 0
    for start, end, values in ((0, whole, _TILE), (whole, num_rows, _TILE // 4)):
        if start == end:
            continue
        rows = values // tile
        write_tile[(-(-(end - start) // rows) * (num_columns // tile),)](
            _address(table),
            _address(words),
            _address(flag),
            start,
            num_rows,
            num_columns,
            width // _WORDS,
            first,
            TYPES=types,
            ROWS=rows,
            COLUMNS=tile,
            WHOLE=end == whole,
            MASKS=bool(integers[2].any()),
            CLIPS=any(program.clip for program in programs),
            LOGS=bool(logs.any()),
            MOVES=any(program.scale is not None and program.scale.moves for program in programs),
            IDS=any(source.is_id for source in sources),
            FIRST=first > 0,
            enable_fp_fusion=False,  # a fused multiply and add has other bits than NumPy
        )


def _address(array: Array) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)
