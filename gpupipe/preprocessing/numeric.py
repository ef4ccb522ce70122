"""Numeric columns: float64 blocks of rows, the loops over them, checks of their values, and the normal distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from gpupipe.backend import Array, Backend, Column, Matrix
from gpupipe.backend.columns import floats
from gpupipe.backend.float_kernels import (
    compute_moments,
    compute_moments_each,
    fill_into,
    find_bounds,
    scale_each,
    scale_into,
)
from gpupipe.backend.fused.program import Scale
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

    Example:
        >>> from gpupipe.backend import select
        >>> [rows.stop for rows in row_blocks(40_000, select("cpu"))]
        [32768, 40000]
    """
    on_cpu = _LOOPED_NUMBERS if looped else _CACHED_NUMBERS
    size = max((on_cpu if backend.name == "cpu" else _DEVICE_NUMBERS) // width, 1024)
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def stack_rows(columns: Columns, rows: slice, xp: ModuleType) -> Array:
    """Copy these rows of all columns into one F x R float64 array, NaN where missing.

    Memory: copies on the device.
    """
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

    Memory: copies B x C x `width` numbers to the host, once.
    """
    xp = backend.xp
    if isinstance(columns, Matrix) and function in (find_bounds, compute_moments):
        return _tabulate_matrix(
            columns, width, backend, np.zeros(len(columns)) if centres is None else np.array(centres)
        )
    results = []
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(num_rows(columns), backend, looped=True):
            for place, column in enumerate(columns.values()):
                more = () if centres is None else (centres[place],)
                found = function(floats(column.take(rows), xp), xp, *more)
                results += [xp.asarray(item, dtype=xp.float64) for item in found]
    table = backend.to_host(xp.stack(results)) if results else np.zeros(0)
    return table.reshape(-1, len(columns), width)


def _tabulate_matrix(columns: Matrix, width: int, backend: Backend, centres: Any) -> Any:
    """Compute the table of a matrix, of which a compiled loop processes many columns in one call."""
    tables = [np.zeros((0, width))]
    for rows in row_blocks(columns.data.shape[1], backend, looped=True):
        for places in columns.pieces(rows.stop - rows.start):
            block = columns.data[places, rows].astype(np.float64, copy=False)
            tables.append(compute_moments_each(block, centres[places])[:, :width])
    return backend.to_host(np.concatenate(tables)).reshape(-1, len(columns), width)


def fill_matrix(columns: Matrix, instead: Any, backend: Backend, where: str) -> Matrix:
    """Replace missing values of the columns by C float64.

    Raises:
        BadData: an infinity.

    Memory: allocates the result.
    """
    out, infinite = np.empty(columns.data.shape, dtype=columns.dtype), False
    for rows in row_blocks(columns.data.shape[1], backend, looped=True):
        for places in columns.pieces(rows.stop - rows.start):
            infinite |= fill_into(out[places, rows], columns.data[places, rows], instead[places], np)
    if infinite:
        refuse(columns, backend, where)
    return Matrix(columns.names, out)


def float32_columns(
    columns: Columns, function: Callable[[str, Array], Array], backend: Backend, where: str
) -> dict[str, Column]:
    """Map each column through `function(name, block)` in float64, stored as float32; missing stays NaN.

    Raises:
        BadData: a result is infinite.

    Memory: n float32 per column on the device, and one float64 block at a time.
    """

    def write(name: str, out: Array, block: Array) -> Array:
        out[:] = function(name, block)
        return backend.xp.isinf(out).any()

    return _write_columns(columns, write, backend, where, looped=False)


def float64_columns(
    columns: Columns, function: Callable[[str, Array], Array], backend: Backend, where: str
) -> dict[str, Column]:
    """Map columns as `float32_columns` does, stored as float64: for values whose size float32 may not resolve.

    Memory: n float64 per column on the device.
    """

    def write(name: str, out: Array, block: Array) -> Array:
        out[:] = function(name, block)
        return backend.xp.isinf(out).any()

    return _write_columns(columns, write, backend, where, looped=False, dtype="float64")


def scale_columns(
    columns: Columns,
    offsets: Mapping[str, float],
    divisors: Mapping[str, float],
    by: Scale,
    backend: Backend,
    where: str,
) -> Columns:
    """Scale columns as `float32_columns` does, each by its offset and divisor, and the rest of `by`.

    Memory: n float32 per column on the device, and one float64 block of a column of another type at a time.
    """
    if isinstance(columns, Matrix):
        first, second = (np.array([known[name] for name in columns]) for known in (offsets, divisors))
        return _scale_matrix(columns, first, second, by, backend, where)

    def write(name: str, out: Array, block: Array) -> Array:
        return scale_into(out, block, replace(by, offset=offsets[name], divisor=divisors[name]), backend.xp)

    return _write_columns(columns, write, backend, where, looped=True)


def _scale_matrix(columns: Matrix, offsets: Any, divisors: Any, by: Scale, backend: Backend, where: str) -> Matrix:
    out, infinite = np.empty(columns.data.shape, dtype=np.float32), False
    for rows in row_blocks(columns.data.shape[1], backend, looped=True):
        for places in columns.pieces(rows.stop - rows.start):
            block = columns.data[places, rows].astype(np.float64, copy=False)
            infinite |= scale_each(out[places, rows], block, offsets[places], divisors[places], by)
    if infinite:
        refuse(columns, backend, where, too_large="a result does not fit float32")
    return Matrix(columns.names, out)


def _write_columns(
    columns: Columns,
    write: Callable[[str, Array, Array], Array],
    backend: Backend,
    where: str,
    *,
    looped: bool,
    dtype: str = "float32",
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
    """Compute columns of these names from blocks of whole rows: `function` maps F x R float64 to as many rows.

    Raises:
        BadData: a value is missing, or a result is infinite.

    Memory: n float32 per output on the device, and one float64 block at a time.
    """
    xp, size = backend.xp, num_rows(columns)
    made = {name: Column("float32", xp.empty(size, dtype=xp.float32)) for name in names}
    finite = []
    with np.errstate(over="ignore", invalid="ignore"):
        for rows in row_blocks(size, backend, len(columns)):
            for column, values in zip(made.values(), function(stack_rows(columns, rows, xp)), strict=True):
                column.data[rows] = values
                finite.append(xp.isfinite(column.data[rows]).all())
    if finite and not backend.to_host(xp.stack(finite)).all():
        refuse(columns, backend, where, too_large="a result does not fit float32", missing=True)
    return made


def float32_fields(fields: Sequence[Field], where: str) -> list[Field]:
    """Return the fields of numbers or booleans that become other numbers of the same names; checks types."""
    check_numeric(fields, where)
    return [replace(item, dtype="float32", kind=Kind.CONTINUOUS, cardinality=None, classes=None) for item in fields]


def num_rows(columns: Columns) -> int:
    """Return the number of rows of these columns."""
    return len(next(iter(columns.values())))


def refuse(
    columns: Columns, backend: Backend, where: str, *, too_large: str = "a value is too large", missing: bool = False
) -> NoReturn:
    """Raise the error that explains why these columns cannot be processed; called once a problem was found.

    Args:
        columns: numeric columns of which one holds an infinity, a value that is too large, or a missing value.
        backend: where they live.
        where: the step, for the message.
        too_large: the problem where all values are finite.
        missing: whether a missing value is a problem.

    Raises:
        BadData: naming column, count and value.
    """
    xp = backend.xp
    largest = (0.0, "")
    for name, column in columns.items():
        values = floats(column, xp)
        absent, infinite = xp.isnan(values), xp.isinf(values)
        counts = backend.to_host(xp.stack([infinite.sum(), absent.sum()]))
        if counts[0]:
            value = float(backend.to_host(values[infinite][:1])[0])
            raise BadData(
                f"{where}, column {name!r}",
                format_count(int(counts[0]), "infinite value"),
                got=value,
                expected="finite numbers or missing values",
                remedy=f"{derive(name, 'clip({}, low, high)')}, or 'where(...)' to replace them",
            )
        if missing and counts[1]:
            raise BadData(
                f"{where}, column {name!r}",
                format_count(int(counts[1]), "missing value"),
                expected="no missing values",
                remedy="put a SimpleImputer before this step",
            )
        known = xp.abs(values[~absent])
        if len(known):
            largest = max(largest, (float(backend.to_host(known.max()[None])[0]), name))
    raise BadData(
        f"{where}, column {largest[1]!r}",
        too_large,
        got=largest[0],
        expected="values of a size that can be worked with",
        remedy=f"{derive(largest[1], 'clip({}, low, high)')}, or another unit",
    )


def check_finite(names: Sequence[str], numbers: Any, where: str) -> None:
    """Raise `BadData` for the first column whose number (C float64) has left the range of floats."""
    for name, number in zip(names, numbers, strict=True):
        if not np.isfinite(number):
            raise BadData(
                f"{where}, column {name!r}",
                "its range is too large for a float",
                expected="values less than 1.8e308 apart",
                remedy=f"{derive(name, 'clip({}, low, high)')}, or another unit",
            )


def check_values(names: Sequence[str], counts: Any, where: str) -> None:
    """Raise `BadData` for the first column without a value, its count being 0."""
    for name, count in zip(names, counts, strict=True):
        if not count:
            raise BadData(
                f"{where}, column {name!r}",
                "it has no value, so there is no scale to learn",
                expected="at least one value that is not missing",
                remedy=f"SimpleImputer(strategy='constant') before it, or leave {name!r} out",
            )


def check_squares(columns: Columns, mean: Any, m2: Any, backend: Backend, where: str) -> None:
    """Raise `BadData` where a value is missing, or too large for squares to be summed, however the rows are split.

    Args:
        columns: numeric columns.
        mean: their means in this partition, C float64.
        m2: their sums of squared deviations, C float64: what is small there needs no second look at the values.
        backend: where the columns live.
        where: the step, for the message.
    """
    farthest = np.abs(mean) + np.sqrt(np.abs(m2))  # from 0; no value is farther
    if (farthest < LARGEST_SQUARED / 2).all():
        return
    xp = backend.xp
    for column in columns.values():
        fine = xp.abs(floats(column, xp)) <= LARGEST_SQUARED
        if not backend.to_host(fine.all()[None])[0]:
            refuse(columns, backend, where, too_large="a value is too large to be squared", missing=True)


def check_numeric(fields: Sequence[Field], where: str, of_strings: str = "Categorify() for strings") -> None:
    """Raise `SchemaMismatch` for the first field that is neither number nor boolean; for text with that remedy."""
    for item in fields:
        if item.dtype not in (*FLOATS, *INTEGERS, "bool"):
            remedy = f"{derive(item.name, 'hour({})', 'hour')} for parts of a time"
            if item.dtype == "string":
                remedy = of_strings
            elif item.kind == Kind.LIST:
                remedy = f"{derive(item.name, 'len({})', f'{item.name}_length')} for the number of elements"
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                "not a number",
                got=item.dtype,
                expected="numbers or booleans",
                remedy=remedy,
            )
        if item.kind == Kind.CATEGORICAL:
            raise SchemaMismatch(
                f"{where}, column {item.name!r}",
                "its values are ids, whose size means nothing",
                got=item.kind.value,
                expected="a column of numbers",
                remedy=f"leave {item.name!r} out of this step",
            )


CLIP = 1e-7
"""Probabilities nearer to 0 or 1 than this are clipped: beyond is only noise."""

_SQRT_HALF = 0.7071067811865476

# Wichura's coefficients, highest power first.
_NEAR_P = (
    2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
    13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608,
)  # fmt: skip
_NEAR_Q = (
    5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
    5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0,
)  # fmt: skip
_FAR_P = (
    7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
    3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734,
)  # fmt: skip
_FAR_Q = (
    1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
    0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0,
)  # fmt: skip

# Cody's coefficients, highest power first.
_ERF_P = (
    0.185777706184603153,
    3.16112374387056560,
    113.864154151050156,
    377.485237685302021,
    3209.37758913846947,
)
_ERF_Q = (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062)
_ERFC_P = (
    2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295, 298.635138197400131,
    881.95222124176909, 1712.04761263407058, 2051.07837782607147, 1230.33935479799725,
)  # fmt: skip
_ERFC_Q = (
    1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
    3290.79923573345963, 4362.61909014324716, 3439.36767414372164, 1230.33935480374942,
)  # fmt: skip


def normal_quantile(shares: Array, xp: ModuleType) -> Array:
    """Return the quantile of the standard normal distribution; probabilities are clipped to [CLIP, 1 - CLIP].

    Relative error below 1e-15. Source: M. J. Wichura, "Algorithm AS 241: the percentage points of the normal
    distribution", Applied Statistics 37 (1988).

    Args:
        shares: n float64; NaN stays.
        xp: numpy or cupy.

    Memory: some ten arrays of n float64 at a time.

    Example:
        >>> import numpy as np
        >>> normal_quantile(np.array([0.5, 0.975]), np).round(6).tolist()
        [0.0, 1.959964]
    """
    shares = xp.clip(shares, CLIP, 1 - CLIP)
    centred = shares - 0.5
    near = 0.180625 - centred * centred
    middle = centred * _ratio(_NEAR_P, _NEAR_Q, near)
    far = xp.sqrt(-xp.log(xp.minimum(shares, 1 - shares))) - 1.6
    tail = _ratio(_FAR_P, _FAR_Q, far)
    return xp.where(xp.abs(centred) <= 0.425, middle, xp.where(centred < 0, -tail, tail))


def normal_share(values: Array, xp: ModuleType) -> Array:
    """Return the cumulative probability of the standard normal distribution; values are clipped to [-5.6, 5.6].

    Error below 1e-15. Source: W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of
    Computation 23 (1969).

    Args:
        values: n float64; NaN stays.
        xp: numpy or cupy.

    Memory: some ten arrays of n float64 at a time.

    Example:
        >>> import numpy as np
        >>> normal_share(np.array([0.0, 1.959964]), np).round(6).tolist()
        [0.5, 0.975]
    """
    root = xp.clip(values, -5.6, 5.6) * _SQRT_HALF
    size = xp.abs(root)
    square = xp.minimum(size * size, 0.25)
    middle = 0.5 + 0.5 * root * _ratio(_ERF_P, _ERF_Q, square)
    tail = 0.5 * xp.exp(-size * size) * _ratio(_ERFC_P, _ERFC_Q, size)
    return xp.where(size <= 0.46875, middle, xp.where(root < 0, tail, 1 - tail))


def _ratio(above: Sequence[float], below: Sequence[float], x: Array) -> Array:
    """Divide one polynomial by another, each evaluated by Horner's rule."""
    return _polynomial(above, x) / _polynomial(below, x)


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    first, *rest = coefficients
    value = first * x + rest[0]
    for coefficient in rest[1:]:
        value = value * x + coefficient
    return value
