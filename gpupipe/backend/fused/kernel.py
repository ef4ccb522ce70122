"""Triton kernel that writes whole rows of a block: each value is read once, computed in registers and stored once.

A tile of 8 columns (16 that are stored as bfloat16) is read along the columns, where values lie side by side, turned
inside the chip, and stored along the rows: 32 bytes of each, a sector of the memory, so that none is written twice.
Columns of several types share a tile: each type's columns are read by a load of their own that leaves the others out.

Not yet run on a GPU: Triton's interpreter runs it on the CPU, and its compiler compiles it for several chips.
"""

# Triton compiles what is below.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0912, PLR0915

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _log1p(x):
    """Compute the logarithm of 1 + x, exact for a small x too: the rounding of 1 + x is compensated (Kahan)."""
    more = 1.0 + x
    increment = more - 1.0
    return tl.where(increment == 0.0, x, tl.log(more) * (x / tl.where(increment == 0.0, 1.0, increment)))


@triton.jit
def _word(table, row: tl.constexpr, num_columns, columns):
    """Load one int64 of the table for each column, as a column vector."""
    return tl.load(table + row * num_columns + columns)[:, None]


@triton.jit
def _number(table, row: tl.constexpr, num_columns, columns):
    """Load one float64 of the table for each column, as a column vector."""
    return _word(table, row, num_columns, columns).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["first_row", "num_rows", "num_columns", "row_sectors", "first"])
def write_tile(
    table_at,
    out_at,
    flag_at,
    first_row,
    num_rows,
    num_columns,
    row_sectors,
    first,
    TYPES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WHOLE: tl.constexpr,
    MASKS: tl.constexpr,
    CLIPS: tl.constexpr,
    LOGS: tl.constexpr,
    MOVES: tl.constexpr,
    IDS: tl.constexpr,
    FIRST: tl.constexpr,
):
    """Write one tile of rows; `launch.py` defines the table.

    Of `num_rows` rows those from `first_row` on. WHOLE: all tiles are full, and all columns begin at a multiple of 16
    bytes. Rows always do. `launch.py` ensures both, as Triton does not check `multiple_of`. FIRST: words before
    `first` are not written. COLUMNS is 8 for words, 16 for bfloat16.
    """
    tiles = num_columns // COLUMNS
    first_column = tl.program_id(0) % tiles * COLUMNS
    columns = first_column + tl.arange(0, COLUMNS)
    rows = first_row + (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    table = table_at.to(tl.pointer_type(tl.int64))
    along = rows[None, :]
    inside = tl.full([1, ROWS], True, tl.int1) if WHOLE else along < num_rows

    address, kind = _word(table, 0, num_columns, columns), _word(table, 1, num_columns, columns)
    x = tl.full([COLUMNS, ROWS], 0.0, tl.float64)
    for position in tl.static_range(len(TYPES)):
        values = address.to(tl.pointer_type(TYPES[position])) + along
        if WHOLE:
            values = tl.multiple_of(values, [1, 16])  # along a column, whose values lie side by side
        is_of_type = kind == position
        x = tl.where(is_of_type, tl.load(values, mask=is_of_type & inside, other=0).to(tl.float64), x)

    missing = x != x  # noqa: PLR0124 - NaN
    if MASKS:
        mask = _word(table, 2, num_columns, columns)
        bit = _word(table, 3, num_columns, columns) + along
        per_byte = _word(table, 4, num_columns, columns)
        byte = tl.load(mask.to(tl.pointer_type(tl.uint8)) + bit // per_byte, mask=(mask != 0) & inside, other=255)
        missing |= ((byte.to(tl.int64) >> bit % per_byte) & 1) == 0
    x = tl.where(missing, _number(table, 8, num_columns, columns), x)
    unsound = tl.abs(x) == float("inf")
    if CLIPS:
        low, high = _number(table, 9, num_columns, columns), _number(table, 10, num_columns, columns)
        x = tl.where(x < low, low, tl.where(x > high, high, x))
    if LOGS:
        log = _word(table, 6, num_columns, columns) != 0
        if tl.load(table + 7 * num_columns + first_column) != 0:  # tiles without one are not made to wait
            unsound |= log & (x <= -1.0)
            x = tl.where(log, _log1p(tl.where(x <= -1.0, 0.0, x)).to(tl.float32).to(tl.float64), x)
    x = (x - _number(table, 11, num_columns, columns)) / _number(table, 12, num_columns, columns)
    if MOVES:
        x = x * _number(table, 13, num_columns, columns) + _number(table, 14, num_columns, columns)
        floor, ceiling = _number(table, 15, num_columns, columns), _number(table, 16, num_columns, columns)
        x = tl.where(x < floor, floor, tl.where(x > ceiling, ceiling, x))

    number = x.to(tl.float32)
    bits = number.to(tl.int32, bitcast=True)
    unsound |= (bits & 0x7F800000) == 0x7F800000
    flag = flag_at.to(tl.pointer_type(tl.int32)) + tl.full([COLUMNS, ROWS], 0, tl.int32)
    tl.store(flag, tl.full([COLUMNS, ROWS], 1, tl.int32), mask=unsound & inside)

    if COLUMNS == 16:
        bits = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
        out = out_at.to(tl.pointer_type(tl.int16))
    else:
        if IDS:
            ids = _word(table, 5, num_columns, columns) != 0
            bits = tl.where(ids, tl.where(ids, x, 0.0).to(tl.int32), bits)
        out = out_at.to(tl.pointer_type(tl.int32))
    places = out + rows[:, None] * (row_sectors * COLUMNS) + columns[None, :]
    places, turned = tl.multiple_of(places, [1, 16]), tl.trans(bits)  # along a row
    if FIRST:
        tl.store(places, turned, mask=(columns[None, :] >= first) & (rows[:, None] < num_rows))
    elif WHOLE:
        tl.store(places, turned)
    else:
        tl.store(places, turned, mask=rows[:, None] < num_rows)
