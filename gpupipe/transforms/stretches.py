"""What the values of a stretch of neighbours come to, for every row's own stretch at once.

Stretches of 1, 2, 4, 8 and so on values are put together from each other; any stretch is made of one of some of these.
A value is never taken away again, as sums that slide along do: nothing is left of a large value behind its window, and
rounding grows with the logarithm of a stretch's length, not with the table's. Source: the sparse table of Bender and
Farach-Colton, "The LCA problem revisited", 2000, with each length used at most once, so that sums can be taken of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpupipe.backend import Array, Backend

__all__ = ["STATS", "folded", "statistics"]

State: TypeAlias = tuple[Array, ...]
"""What is known of one stretch for each row."""

STATS = ("count", "sum", "mean", "std", "var", "min", "max")
"""The statistics there are, of the values that are not missing."""


@dataclass(frozen=True)
class _Rule:
    """How two neighbouring stretches become one.

    Args:
        join: both states, the left one first, to theirs together.
        none: the state of a stretch without a value.
    """

    join: Callable[[State, State], State]
    none: tuple[float, ...]


def folded(state: State, rule: _Rule, first: Array, behind: Array, longest: int, backend: Backend) -> State:
    """The state of the places from `first` up to but without `behind`, for each row.

    Args:
        state: of each of n places alone.
        rule: how states are joined.
        first: the first place of each row's stretch, n int64.
        behind: the place behind it; an empty stretch is fine.
        longest: at least the places of the longest stretch.
        backend: whose arrays they are.

    Memory: three times the state, and four arrays of n int64.
    """
    xp, size = backend.xp, len(first)
    made = tuple(xp.full(size, value) for value in rule.none)
    length, place, step = behind - first, first, 1
    while step <= longest:
        taken = (length & step) > 0
        here = xp.clip(place, 0, max(size - 1, 0))
        chosen = tuple(xp.where(taken, part[here], value) for part, value in zip(state, rule.none, strict=True))
        made = rule.join(made, chosen)
        place = place + xp.where(taken, step, 0)
        later = tuple(
            xp.concatenate([part[step:], xp.full(min(step, size), value)])
            for part, value in zip(state, rule.none, strict=True)
        )
        state = rule.join(state, later)
        step *= 2
    return made


def statistics(
    wanted: Sequence[str],
    values: Array,
    first: Array,
    behind: Array,
    longest: int,
    min_periods: int,
    backend: Backend,
) -> dict[str, Array]:
    """These statistics of each row's stretch; NaN where it has too few values.

    Args:
        wanted: of `STATS`; `count` comes as int64 and is never missing.
        values: n float64, NaN where missing.
        first: as for `folded`, and so are the next two.
        behind: the place behind each stretch.
        longest: at least the places of the longest one.
        min_periods: so many values a stretch has to have.
        backend: whose arrays they are.

    Source: for deviations Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979. The error of a sum is at most log2(longest) eps times the sum of absolute values.

    Memory: ten arrays of n float64 at a time.
    """
    xp = backend.xp
    there = ~xp.isnan(values)
    before = xp.concatenate([xp.zeros(1, dtype="int64"), xp.cumsum(there)])
    count = before[behind] - before[first]
    enough = count >= max(min_periods, 1)
    made: dict[str, Array] = {}
    stretch = first, behind, longest, backend
    with np.errstate(all="ignore"):
        if {"sum", "mean"} & set(wanted):
            (total,) = folded((xp.where(there, values, 0.0),), _Rule(_added, (0.0,)), *stretch)
            made["sum"] = xp.where(count >= min_periods, total, xp.nan)
            made["mean"] = xp.where(enough, total / xp.maximum(count, 1), xp.nan)
        if {"std", "var"} & set(wanted):
            alone = there.astype("float64"), xp.where(there, values, 0.0), xp.zeros(len(values))
            _, _, squares = folded(alone, _Rule(_moments, (0.0, 0.0, 0.0)), *stretch)
            made["var"] = xp.where(enough & (count > 1), squares / xp.maximum(count - 1, 1), xp.nan)
            made["std"] = xp.sqrt(made["var"])
        for name, function, none in (("min", xp.minimum, xp.inf), ("max", xp.maximum, -xp.inf)):
            if name in wanted:
                (end,) = folded((xp.where(there, values, none),), _Rule(_each(function), (none,)), *stretch)
                made[name] = xp.where(enough, end, xp.nan)
    made["count"] = count
    return {name: made[name] for name in wanted}


def _added(left: State, right: State) -> State:
    return (left[0] + right[0],)


def _each(function: Callable[[Array, Array], Array]) -> Callable[[State, State], State]:
    return lambda left, right: (function(left[0], right[0]),)


def _moments(left: State, right: State) -> State:
    """Counts, means and squared deviations from them."""
    count = left[0] + right[0]
    share = right[0] / (count + (count == 0))
    shift = right[1] - left[1]
    # In this order nothing that is not there can become infinite.
    return count, left[1] + shift * share, left[2] + right[2] + shift * (left[0] * share) * shift
