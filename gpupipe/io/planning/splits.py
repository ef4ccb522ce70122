"""Dataset splits: ranges of a column, random parts, and parts with the same fraction of every class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from gpupipe.backend import Array, select
from gpupipe.backend.columns import require_comparable_constant
from gpupipe.backend.hashing import splitmix64
from gpupipe.cluster import get_executor
from gpupipe.errors import BadConfig, BadData
from gpupipe.io.planning.row_filters import Between, RandomSplit, StratifiedSplit, draw_in_class
from gpupipe.io.planning.statistics import comparable
from gpupipe.io.planning.table import Table
from gpupipe.io.run import run_partitions
from gpupipe.schema import FLOATS, INTEGERS, Field
from gpupipe.support.validation import check_integer, is_integer, is_number, is_sequence, parse_duration_us


def check_call(by: str | None, at: Any, fraction: Any, stratify: str | None, gap: Any) -> None:
    """Raise unless the arguments of `split` name exactly one way to do it, by one column."""
    for name, column in (("by", by), ("stratify", stratify)):
        if not (column is None or isinstance(column, str)):
            raise BadConfig(
                "split",
                f"{name} is not one column",
                got=column,
                expected="the name of a column",
                remedy=f"{name}='key', a column made of several by transforms.Derive(key=...)",
            )
    if (
        (at is None) == (fraction is None)
        or (at is not None and by is None)
        or (stratify is not None and (by is not None or at is not None))
        or (gap is not None and at is None)
    ):
        raise BadConfig(
            "split",
            "not one way to split",
            got={"by": by, "at": at, "fraction": fraction, "stratify": stratify, "gap": gap},
            expected="by= and at= (and gap=), or fraction= (and by= or stratify=)",
            remedy="split(by='time', at='2013-10-01') or split(fraction=0.8)",
        )


def check_complete(item: Field, num_missing: int) -> None:
    """Raise where a value is missing, as its row would be on neither side of a cut."""
    if num_missing:
        shown = item.name if item.name.isidentifier() else f"col({item.name!r})"
        raise BadData(
            f"split(by={item.name!r})",
            f"a value is missing in {num_missing:,} {'row' if num_missing == 1 else 'rows'}, which belong to no part",
            expected="a value in every row",
            remedy=f'filter("notnull({shown})") before, to leave them out',
        )


def ranges(item: Field, at: Any, gap: Any = None) -> list[Between]:
    """Return a range per part, cut at one value or at ascending ones; `gap` is excluded before each cut.

    Raises:
        BadConfig: values that do not ascend, or cannot be compared with the column's; a gap that is none.
        SchemaMismatch: a time with an offset, of a column without a zone.
    """
    wanted = at if isinstance(at, list | tuple) else [at]
    for one in wanted:
        require_comparable_constant(item, one, "split")
    cuts = [comparable(one, item, "split") for one in wanted]
    if not cuts or any(left >= right for left, right in pairwise(cuts)):
        raise BadConfig(
            "split", "the cuts do not ascend", got=at, expected="values in ascending order", remedy="at=sorted(set(at))"
        )
    ends = cuts if gap is None else [cut - _width(gap, item) for cut in cuts]
    if any(low >= high for low, high in zip(cuts[:-1], ends[1:], strict=True)):
        raise BadConfig(
            f"split(by={item.name!r}, gap=)",
            "it leaves nothing between two cuts",
            got=gap,
            expected="less than lies between the values of at=",
            remedy="a smaller gap",
        )
    return [Between(item.name, low, high) for low, high in zip([None, *cuts], [*ends, None], strict=True)]


def _width(gap: Any, item: Field) -> int | float:
    """Convert a gap to the column's unit: times in microseconds."""
    width: int | float | None = None
    if item.dtype == "timestamp":
        width = parse_duration_us(gap)
    elif item.dtype in (*INTEGERS, *FLOATS) and is_number(gap):
        width = int(gap) if is_integer(gap) else float(gap)
    if width is None or not 0 < width < math.inf:
        times = "a timedelta, or text such as '7 days' or '36 hours'"
        raise BadConfig(
            f"split(by={item.name!r}, gap=)",
            f"no width of values of {item.dtype}",
            got=gap,
            expected=times if item.dtype == "timestamp" else "a number above 0",
            remedy="gap='7 days'" if item.dtype == "timestamp" else "gap=1",
        )
    return width


def draw_parts(shares: Sequence[float], seed: int, level: int, by: str | None) -> list[RandomSplit]:
    """Return one random split per part; together they contain every row once.

    Args:
        shares: of each part, as `get_fractions` gives them.
        seed: any integer.
        level: how many draws were made before on the same rows: a draw from a drawn part must not repeat it.
        by: the column whose value is drawn instead of the row.
    """
    cuts = [int(np.round(cut * 2**53)) << 11 for cut in np.cumsum(shares)[:-1]]
    own = int(splitmix64(seed, np.array([level]))[0])
    return [RandomSplit(own, low, high, by) for low, high in zip([0, *cuts], [*cuts, None], strict=True)]


def folds(n_splits: int) -> list[float]:
    """Return the fractions of `n_splits` equal parts.

    Raises:
        BadConfig: fewer than two.
    """
    check_integer("kfold", "[2, 1000]", n_splits=n_splits)
    return [1 / n_splits] * int(n_splits)


def get_fractions(fraction: float | Sequence[float]) -> list[float]:
    """Return the fraction of each part.

    Raises:
        BadConfig: shares that are not positive or do not sum to 1.
    """
    given: Any = fraction
    told: list[Any] = [given, 1 - given] if is_number(given) else list(given) if is_sequence(given) else [None]
    shares = [float(share) if is_number(share) else math.nan for share in told]
    if not all(share > 0 for share in shares) or not abs(sum(shares) - 1) <= 1e-9:
        raise BadConfig(
            "split",
            "the shares do not make up a whole",
            got=fraction,
            expected="a number between 0 and 1, or positive numbers whose sum is 1",
            remedy="fraction=0.8, or fraction=(0.8, 0.1, 0.1)",
        )
    return shares


_BINS = 1 << 12  # a first look counts rows by class and the upper 12 bits, a second one sorts those in the bins to cut
_NEVER = 1 << 63  # beyond all bits
_MOST_CLASSES = 10_000  # whose bins take 320 MB

_Table: TypeAlias = dict[int, Any]  # by class: counts of its bins, or the bits of some of its rows


def stratify_parts(dataset: Table, column: str, shares: Sequence[float], seed: int) -> list[StratifiedSplit]:
    """Return a random split per part, each with its exact fraction of the rows of every class.

    The rows of a class are put in order by bits drawn by `seed` and a row's identity, and cut where the shares are.

    Raises:
        BadConfig: there are more than 10,000 classes.

    Memory: 32 KiB per class; two passes over the column.
    """
    backend = get_executor().resolve(dataset.backend)
    own = int(splitmix64(seed, np.array([dataset.query.num_draws]))[0])
    nothing: _Table = {}
    counted = nothing
    for table in run_partitions(partial(_counts, column, own, backend), dataset, backend, "split"):
        counted = _add_tables(counted, table)
        _check_few(len(counted), column)
    ends = {key: np.cumsum(counts) for key, counts in sorted(counted.items())}
    upto = np.cumsum(shares)[:-1]
    # Where a share is no whole number of rows, chance rounds it, for each class anew: rounded all alike, classes of few
    # rows would all miss the same part.
    chances = (splitmix64(own, np.array(list(ends), dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53
    # A part begins with the row of this rank, which lies in this bin: behind the last one where the part has no row.
    ranks = {
        key: np.floor(upto * below[-1] + chance).astype(np.int64)
        for (key, below), chance in zip(ends.items(), chances, strict=True)
    }
    bins = {key: np.searchsorted(below, ranks[key], side="right") for key, below in ends.items()}
    looked = run_partitions(partial(_bits, column, own, bins, backend), dataset, backend, "split")
    found = reduce(_together, looked, nothing)
    edges = [[0, *_cuts(ranks[key], bins[key], below, found[key]), _NEVER] for key, below in ends.items()]
    whole = [0, *(int(cut * 2**53) << 10 for cut in upto), _NEVER]
    return [
        StratifiedSplit(
            own,
            whole[part],
            whole[part + 1],
            column,
            classes=tuple(ends),
            bounds=tuple((edge[part], edge[part + 1]) for edge in edges),
        )
        for part in range(len(shares))
    ]


def _cuts(ranks: Any, bins: Any, below: Any, bits: Any) -> list[int]:
    """Return the bits at these ranks in a class; `below` counts its rows up to each bin, `bits` are those in `bins`."""
    ordered, cuts = np.sort(bits), []
    for rank, at in zip(ranks.tolist(), bins.tolist(), strict=True):
        if at == _BINS:
            cuts.append(_NEVER)
        else:
            first = int(np.searchsorted(ordered, np.uint64(at << 51)))
            cuts.append(int(ordered[first + rank - (int(below[at - 1]) if at else 0)]))
    return cuts


def _draw(column: str, seed: int, backend_name: str, part: Table) -> tuple[Any, Array, Array, Array]:
    """Return the classes of one partition, on the host, and each row's class index, bits and bin."""
    backend, partition = select(backend_name), part.partitions[0]
    frame = part.read(partition, [column], backend)
    row_ids = partition.row_ids(backend.xp)
    of_class, bits = draw_in_class(backend.column(frame, column), seed, row_ids, frame, backend)
    classes, place = backend.xp.unique(of_class, return_inverse=True)
    return backend.to_host(classes), place, bits, (bits >> np.uint64(51)).astype("int64")


def _counts(column: str, seed: int, backend_name: str, part: Table) -> _Table:
    """Count the rows of one partition by class and bin."""
    classes, place, _, upper = _draw(column, seed, backend_name, part)
    backend = select(backend_name)
    _check_few(len(classes), column)
    table = backend.xp.bincount(place * _BINS + upper, minlength=len(classes) * _BINS)
    return dict(zip(classes.tolist(), backend.to_host(table).reshape(-1, _BINS), strict=True))


def _bits(column: str, seed: int, bins: Mapping[int, Any], backend_name: str, part: Table) -> _Table:
    """Return the bits of the rows of one partition in bins to cut, by class."""
    classes, place, bits, upper = _draw(column, seed, backend_name, part)
    backend, keys = select(backend_name), classes.tolist()
    wanted = np.zeros((len(keys), _BINS + 1), dtype=bool)
    for number, key in enumerate(keys):
        wanted[number, bins[key]] = True
    here = backend.to_device(wanted)[place, upper]
    chosen, of_class = backend.to_host(bits[here]), backend.to_host(place[here])
    return {key: chosen[of_class == number] for number, key in enumerate(keys)}


def _check_few(num_classes: int, column: str) -> None:
    if num_classes > _MOST_CLASSES:
        raise BadConfig(
            f"split(stratify={column!r})",
            f"it has more than {_MOST_CLASSES:,} values, of which most parts would have no row",
            expected="a column of classes",
            remedy=f"by={column!r} to keep equal values together, or a column of coarser classes",
        )


def _add_tables(left: _Table, right: _Table) -> _Table:
    return left | {key: left[key] + counts if key in left else counts for key, counts in right.items()}


def _together(left: _Table, right: _Table) -> _Table:
    return left | {key: np.concatenate([left[key], bits]) if key in left else bits for key, bits in right.items()}
