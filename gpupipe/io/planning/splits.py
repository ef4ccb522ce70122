"""Dataset splits: ranges of a column and random parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpupipe.backend.columns import require_comparable_constant
from gpupipe.backend.hashing import splitmix64
from gpupipe.errors import BadConfig, BadData
from gpupipe.io.planning.row_filters import Between, RandomSplit
from gpupipe.io.planning.statistics import comparable
from gpupipe.schema import FLOATS, INTEGERS, Field
from gpupipe.support.durations import parse_duration_us
from gpupipe.support.validation import check_integer, is_integer, is_number, is_sequence

__all__ = ["check_call", "check_complete", "draw_parts", "folds", "get_fractions", "ranges"]


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
