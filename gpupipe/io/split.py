"""The parts a dataset is split into."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gpupipe.backend.hashing import splitmix64
from gpupipe.errors import BadConfig, BadData
from gpupipe.io.bounds import comparable
from gpupipe.io.selection import Between, Draw
from gpupipe.schema import Field

__all__ = ["check_call", "check_complete", "draw_parts", "ranges"]


def check_call(by: str | None, at: Any, fraction: Any) -> None:
    """Raise unless the arguments of `split` say one way to do it."""
    if (at is None) == (fraction is None) or (at is not None and by is None):
        raise BadConfig(
            "split",
            "not one way to split",
            got={"by": by, "at": at, "fraction": fraction},
            expected="by= and at=, or fraction=",
            remedy="split(by='time', at='2013-10-01') or split(fraction=0.8)",
        )


def check_complete(item: Field, num_missing: int) -> None:
    """Raise where a value is missing, whose row would lie on neither side of a cut."""
    if num_missing:
        shown = item.name if item.name.isidentifier() else f"col({item.name!r})"
        raise BadData(
            f"split(by={item.name!r})",
            f"a value is missing in {num_missing:,} {'row' if num_missing == 1 else 'rows'}, which belong to no part",
            expected="a value in every row",
            remedy=f'filter("notnull({shown})") before, to leave them out',
        )


def ranges(item: Field, at: Any) -> list[Between]:
    """A range per part, cut at one value or at ascending ones.

    Raises:
        BadConfig: values that do not ascend, or cannot be compared with the column's.
    """
    cuts = [comparable(one, item, "split") for one in (at if isinstance(at, list | tuple) else [at])]
    if not cuts or any(left >= right for left, right in pairwise(cuts)):
        raise BadConfig(
            "split", "the cuts do not ascend", got=at, expected="values in ascending order", remedy="at=sorted(set(at))"
        )
    return [Between(item.name, low, high) for low, high in zip([None, *cuts], [*cuts, None], strict=True)]


def draw_parts(fraction: float | Sequence[float], seed: int, level: int, by: str | None) -> list[Draw]:
    """One draw per part; together they take every row once.

    Args:
        fraction: the first of two parts, or the share of each part.
        seed: any integer.
        level: how many draws were made before on the same rows: a draw from a drawn part must not repeat it.
        by: the column whose value is drawn instead of the row.

    Raises:
        BadConfig: shares that are not positive or do not sum to 1.
    """
    shares = [fraction, 1 - fraction] if isinstance(fraction, int | float) else list(fraction)
    if min(shares, default=0) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise BadConfig(
            "split",
            "the shares do not make up a whole",
            got=fraction,
            expected="a number between 0 and 1, or positive numbers whose sum is 1",
            remedy="fraction=0.8, or fraction=(0.8, 0.1, 0.1)",
        )
    cuts = [int(np.round(sum(shares[:part]) * 2**53)) << 11 for part in range(1, len(shares))]
    own = int(splitmix64(seed, np.array([level]))[0])
    return [Draw(own, low, high, by) for low, high in zip([0, *cuts], [*cuts, None], strict=True)]
