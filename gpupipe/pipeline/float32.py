"""Digits that numbers lose as float32."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from gpupipe.schema import WIDE


def describe_coarse(name: str, dtype: str, low: float, high: float) -> str:
    """Describe float32's spacing at the larger bound where it exceeds 1/1000 of the range; else return nothing."""
    largest = max(abs(low), abs(high))
    if dtype not in WIDE or not low < high or (dtype != "float64" and largest <= 2**24):
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = float(np.spacing(np.float32(largest)))
    return f"{spacing:g} in a range of {high - low:g} ({name})" if spacing > (high - low) / 1000 else ""


def note_lost_digits(what: str, whose: str, facts: Sequence[str], remedy: str) -> list[tuple[str, int]]:
    """Return the note for the log, with its level, on the facts of `describe_coarse`; none without a fact."""
    fact = f"the batches' float32 is coarser than 1/1000 of {whose} range"
    return [(f"{what} digits: {fact}: {', '.join(facts)}; try {remedy}", logging.WARNING)] if facts else []
