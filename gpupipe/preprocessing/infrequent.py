"""Infrequent categories: which are too rare for an output of their own, and the groups left; scikit-learn's rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.support.validation import check_integer, check_number, is_integer

__all__ = ["check_limits", "group_rare", "rare"]


def check_limits(owner: object, min_frequency: float | None, max_categories: int | None) -> None:
    """Raise `BadConfig` unless they are positive integers, a fraction of the rows between 0 and 1, or None."""
    check_integer(owner, "[1, inf)", None, max_categories=max_categories)
    if not is_integer(min_frequency, 1):
        check_number(owner, "(0, 1)", None, min_frequency=min_frequency)


def rare(counts: Any, num_rows: int, min_frequency: float | None, max_categories: int | None) -> Any:
    """Return K booleans, True for the categories that are in the one group of infrequent ones.

    Args:
        counts: K int64, how often each category was there.
        num_rows: what a share is of.
        min_frequency: a category of fewer rows, or of a smaller fraction of them, is rare.
        max_categories: how many groups there may be, that of the rare ones included. Of equally frequent categories
            the first ones become rare.

    Example:
        >>> rare(np.array([5, 1, 9, 5]), 20, None, 3).tolist()
        [True, True, False, False]
    """
    least = min_frequency or 0
    found = counts < (least * num_rows if least < 1 else least)
    if max_categories is not None and max_categories < len(counts) - found.sum() + 1:
        found[np.argsort(counts, kind="stable")[: len(counts) - (max_categories - 1)]] = True
    return found


def group_rare(is_rare: Any) -> tuple[Any, int]:
    """Return the group of each category, frequent ones in order and then all rare ones, and the number of groups.

    Example:
        >>> group_rare(np.array([False, True, False]))
        (array([0, 2, 1]), 3)
    """
    frequent = int((~is_rare).sum())
    return np.where(is_rare, frequent, np.cumsum(~is_rare) - 1), frequent + int(is_rare.any())
