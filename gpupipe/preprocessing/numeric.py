"""Numeric columns: float64 blocks of rows, the loops over them, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from gpupipe.backend import Array, Backend, Column, Matrix
from gpupipe.backend.columns import floats
from gpupipe.backend.kernels import (
    Scale,
    compute_moments,
    compute_moments_each,
    fill_into,
    find_bounds,
    scale_each,
    scale_into,
)
from gpupipe.errors import BadData, SchemaMismatch
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind
from gpupipe.support.text import derive, format_count

# 256 KiB of float64: a block and a temporary of its size stay in a core's second-level cache.
_CACHED_NUMBERS = 1 << 15
# Compiled loops have no temporaries but a block's own float64, and take longer to call than to leave the cache.
_LOOPED_NUMBERS = 1 << 17
# 512 MiB: more at once does not make a GPU faster.
_DEVICE_NUMBERS = 1 << 26
# The squares of 10^17 numbers of this size still have a sum that is a float.
LARGEST_SQUARED = 1e145


def row_blocks(num_rows: int, backend: Backend, width: int = 1, *, looped: bool = False) -> Iterator[slice]:
    """Yield slices that cover the rows, for work on `width` float64 per row; none for no rows.

    On a CPU they are pieces that stay in cache, longer ones for compiled loops, on a GPU (nearly always) everything.
    """
    on_cpu = _LOOPED_NUMBERS if looped else _CACHED_NUMBERS
    size = max((on_cpu if backend.name == "cpu" else _DEVICE_NUMBERS) // width, 1024)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def gather(table: Any, places: Array, backend: Backend) -> Array:
    """Return `table[places]` for a table on the host, in blocks of rows on the device."""
    known, out = backend.to_device(table), backend.xp.empty(len(places), dtype=table.dtype)
    for rows in row_blocks(len(places), backend):
        out[rows] = known[places[rows]]
    return out


def any_true(flags: Sequence[Array], backend: Backend) -> bool:
    """Return whether one of these booleans of the device is true; they are read at once."""
    return bool(flags) and bool(backend.to_host(backend.xp.stack(flags)).any())


def stack_rows(columns: Columns, rows: slice, xp: ModuleType) -> Array:
    """Copy these rows of all columns into one F x R float64 array, NaN where missing."""
    if isinstance(columns, Matrix):
        return columns.data[:, rows].astype(xp.float64)
    return xp.stack([floats(column.take(rows), xp) for column in columns.values()])


def tabulate(
    columns: Columns,
    function: Callable[..., Sequence[Any]],
    width: int,
    backend: Backend,
    centres: Sequence[float] | None = None,
) -> Any:
    """Compute `function(block, xp)` for each block of rows of each column: B x C x `width` float64 on the host.

    With `centres`, one for each column, it is `function(block, xp, centre)`. Blocks are shared. Columns of a `Matrix`
    are processed together where `function` is `find_bounds` or `compute_moments`, with the same results.
    """
    xp = backend.xp
    if isinstance(columns, Matrix) and function in (find_bounds, compute_moments):
        around = np.zeros(len(columns)) if centres is None else np.array(centres)
        tables = [np.zeros((0, width))]
        for rows, places in _matrix_pieces(columns, backend):
            block = columns.data[places, rows].astype(np.float64, copy=False)
            tables.append(compute_moments_each(block, around[places])[:, :width])
        return backend.to_host(np.concatenate(tables)).reshape(-1, len(columns), width)
    results = []
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(num_rows(columns), backend, looped=True):
            for place, column in enumerate(columns.values()):
                more = () if centres is None else (centres[place],)
                found = function(floats(column.take(rows), xp), xp, *more)
                results += [xp.asarray(item, dtype=xp.float64) for item in found]
    table = backend.to_host(xp.stack(results)) if results else np.zeros(0)
    return table.reshape(-1, len(columns), width)


def _matrix_pieces(columns: Matrix, backend: Backend) -> Iterator[tuple[slice, Any]]:
    """Yield blocks of rows, and pieces of the columns that a compiled loop processes in one call."""
    for rows in row_blocks(columns.data.shape[1], backend, looped=True):
        for places in columns.pieces(rows.stop - rows.start):
            yield rows, places


def fill_matrix(columns: Matrix, instead: Any, backend: Backend, where: str) -> Matrix:
    """Return the columns with missing values replaced by C float64; refuses infinities."""
    out, infinite = np.empty(columns.data.shape, dtype=columns.dtype), False
    for rows, places in _matrix_pieces(columns, backend):
        infinite |= fill_into(out[places, rows], columns.data[places, rows], instead[places], np)
    if infinite:
        refuse(columns, backend, where)
    return Matrix(columns.names, out)


def map_columns(
    columns: Columns, function: Callable[[str, Array], Array], backend: Backend, where: str, dtype: str = "float32"
) -> dict[str, Column]:
    """Map each column through `function(name, block)` in float64 blocks; missing stays NaN, infinite is refused."""

    def write(name: str, out: Array, block: Array) -> Array:
        out[:] = function(name, block)
        return backend.xp.isinf(out).any()

    return _write_columns(columns, write, backend, where, dtype)


def scale_columns(
    columns: Columns,
    offsets: Mapping[str, float],
    divisors: Mapping[str, float],
    by: Scale,
    backend: Backend,
    where: str,
) -> Columns:
    """Scale columns to float32, each by its offset and divisor, and the rest of `by`; refuses infinite results."""
    if isinstance(columns, Matrix):
        data, infinite = np.empty(columns.data.shape, dtype=np.float32), False
        first, second = (np.array([known[name] for name in columns]) for known in (offsets, divisors))
        for rows, places in _matrix_pieces(columns, backend):
            block = columns.data[places, rows].astype(np.float64, copy=False)
            infinite |= scale_each(data[places, rows], block, first[places], second[places], by)
        if infinite:
            refuse(columns, backend, where, too_large="a result does not fit float32")
        return Matrix(columns.names, data)

    def write(name: str, out: Array, block: Array) -> Array:
        return scale_into(out, block, replace(by, offset=offsets[name], divisor=divisors[name]), backend.xp)

    return _write_columns(columns, write, backend, where, "float32", looped=True)


def _write_columns(
    columns: Columns,
    write: Callable[[str, Array, Array], Array],
    backend: Backend,
    where: str,
    dtype: str,
    *,
    looped: bool = False,
) -> dict[str, Column]:
    """Return columns filled block by block by `write(name, out, block)`, which says whether a result is infinite."""
    xp = backend.xp
    made, names, infinite = {}, [], []
    with np.errstate(over="ignore", invalid="ignore"):
        for name, column in columns.items():
            out = xp.empty(len(column), dtype=dtype)
            for rows in row_blocks(len(column), backend, looped=looped):
                infinite.append(xp.asarray(write(name, out[rows], floats(column.take(rows), xp))))
                names.append(name)
            made[name] = Column(dtype, out)
    found = backend.to_host(xp.stack(infinite)) if infinite else np.zeros(0, dtype=bool)
    if found.any():
        name = names[int(found.argmax())]
        refuse({name: columns[name]}, backend, where, too_large=f"a result does not fit {dtype}")
    return made


def float32_rows(
    columns: Columns, names: Sequence[str], function: Callable[[Array], Sequence[Array]], backend: Backend, where: str
) -> dict[str, Column]:
    """Compute float32 columns from blocks of rows, F x R float64; refuses missing values and infinite results."""
    xp, size = backend.xp, num_rows(columns)
    made = {name: Column("float32", xp.empty(size, dtype=xp.float32)) for name in names}
    bad = []
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(size, backend, len(columns)):
            for column, values in zip(made.values(), function(stack_rows(columns, rows, xp)), strict=True):
                column.data[rows] = values
                bad.append(~xp.isfinite(column.data[rows]).all())
    if any_true(bad, backend):
        refuse(columns, backend, where, too_large="a result does not fit float32", missing=True)
    return made


def float32_fields(fields: Sequence[Field], where: str) -> list[Field]:
    """Return the fields of numbers or booleans that become other numbers of the same names; checks types."""
    check_numeric(fields, where)
    return [replace(item, dtype="float32", kind=Kind.CONTINUOUS, cardinality=None, classes=None) for item in fields]


def derive_fields(names: Sequence[str], dtype: str, fields: Sequence[Field], step: str) -> list[Field]:
    """Return the fields of numbers that a step computes from whole rows without missing values."""
    return [replace(Field.derived(name, dtype, fields, step), nullable=False) for name in names]


def num_rows(columns: Columns) -> int:
    """Return the number of rows of these columns."""
    return len(next(iter(columns.values())))


def refuse(
    columns: Columns, backend: Backend, where: str, *, too_large: str = "a value is too large", missing: bool = False
) -> NoReturn:
    """Raise `BadData` for an infinity, for a missing value if that is a problem, or else for what is `too_large`."""
    xp = backend.xp
    largest = (0.0, "")
    for name, column in columns.items():
        values = floats(column, xp)
        absent, infinite = xp.isnan(values), xp.isinf(values)
        counts = backend.to_host(xp.stack([infinite.sum(), absent.sum()]))
        if counts[0]:
            value = float(backend.to_host(values[infinite][:1])[0])
            problem, expected = format_count(int(counts[0]), "infinite value"), "finite numbers or missing values"
            remedy = f"{derive(name, 'clip({}, low, high)')}, or 'where(...)' to replace them"
            raise BadData(f"{where}, column {name!r}", problem, got=value, expected=expected, remedy=remedy)
        if missing and counts[1]:
            problem, remedy = format_count(int(counts[1]), "missing value"), "put a SimpleImputer before this step"
            raise BadData(f"{where}, column {name!r}", problem, expected="no missing values", remedy=remedy)
        known = xp.abs(values[~absent])
        if len(known):
            largest = max(largest, (float(backend.to_host(known.max()[None])[0]), name))
    value, name = largest
    expected = "values of a size that can be worked with"
    remedy = f"{derive(name, 'clip({}, low, high)')}, or another unit"
    raise BadData(f"{where}, column {name!r}", too_large, got=value, expected=expected, remedy=remedy)


def check_finite(names: Sequence[str], numbers: Any, where: str) -> None:
    """Raise `BadData` for the first column whose number (C float64) has left the range of floats."""
    for name, number in zip(names, numbers, strict=True):
        if not np.isfinite(number):
            problem, expected = "its range is too large for a float", "values less than 1.8e308 apart"
            remedy = f"{derive(name, 'clip({}, low, high)')}, or another unit"
            raise BadData(f"{where}, column {name!r}", problem, expected=expected, remedy=remedy)


def check_values(names: Sequence[str], counts: Any, where: str) -> None:
    """Raise `BadData` for the first column without a value, its count being 0."""
    for name, count in zip(names, counts, strict=True):
        if not count:
            remedy = f"SimpleImputer(strategy='constant') before it, or leave {name!r} out"
            refuse_empty(name, where, "it has no value, so there is no scale to learn", remedy)


def refuse_empty(name: str, where: str, problem: str, remedy: str) -> NoReturn:
    """Raise `BadData` for a column without a value to learn from."""
    expected = "at least one value that is not missing"
    raise BadData(f"{where}, column {name!r}", problem, expected=expected, remedy=remedy)


def refuse_no_rows(where: str) -> NoReturn:
    """Raise `BadData` for a fit without a row."""
    raise BadData(where, "there are no rows to learn from", expected="at least one", remedy="fit on more rows")


def check_squares(columns: Columns, mean: Any, m2: Any, backend: Backend, where: str) -> None:
    """Raise `BadData` where a value is missing, or too large for squares to be summed, however the rows are split.

    `mean` and `m2` are the columns' moments in this partition: what is small there needs no second look at the values.
    """
    farthest = np.abs(mean) + np.sqrt(np.abs(m2))  # from 0; no value is farther
    if (farthest < LARGEST_SQUARED / 2).all():
        return
    xp = backend.xp
    for column in columns.values():
        if any_true([~(xp.abs(floats(column, xp)) <= LARGEST_SQUARED).all()], backend):
            refuse(columns, backend, where, too_large="a value is too large to be squared", missing=True)


def fits(dtype: str, value: Any) -> bool:
    """Return whether a type of numbers or booleans can hold a number; NaN is none."""
    if dtype in FLOATS:
        return abs(float(value)) <= float(np.finfo(dtype).max)
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(low <= value <= high and value == int(value))


def check_numeric(fields: Sequence[Field], where: str, of_strings: str = "Categorify() for strings") -> None:
    """Raise `SchemaMismatch` for the first field that is neither number nor boolean; for text with that remedy."""
    for item in fields:
        if item.dtype not in (*FLOATS, *INTEGERS, "bool"):
            remedy = f"{derive(item.name, 'hour({})', 'hour')} for parts of a time"
            if item.dtype == "string":
                remedy = of_strings
            elif item.kind == Kind.LIST:
                remedy = f"{derive(item.name, 'len({})', f'{item.name}_length')} for the number of elements"
            column, expected = f"{where}, column {item.name!r}", "numbers or booleans"
            raise SchemaMismatch(column, "not a number", got=item.dtype, expected=expected, remedy=remedy)
        if item.kind == Kind.CATEGORICAL:
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                "its values are ids, whose size means nothing",
                got=item.kind.value,
                expected="a column of numbers",
                remedy=f"leave {item.name!r} out of this step",
            )
