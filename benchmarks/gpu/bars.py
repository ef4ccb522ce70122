"""What is asked for on an H200, beside what was found: each bar with its part, also where nothing was found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

__all__ = ["bars_of"]

Parts = Mapping[str, Mapping[str, Any]]


def _times(slow: str, part: str = "whole") -> Callable[[Parts], float]:
    return lambda parts: parts[part][slow]["warm_s"] / parts[part]["gpupipe"]["warm_s"]


def _copies(parts: Parts) -> float:
    return max(abs(hop["bytes_copied"]) + (not hop["same_memory"]) for hop in parts["handover"].values())


# The part, what is asked for, where it is found, and the least (or, with False, the most) it may be.
BARS: list[tuple[str, str, Callable[[Parts], float], float, bool]] = [
    (
        "features",
        "fused, share of a copy",
        lambda parts: parts["features"]["float32"]["fused"]["share_of_copy"],
        0.6,
        True,
    ),
    ("features", "fused beside unfused CuPy", lambda parts: parts["features"]["float32"]["times_unfused"], 5.0, True),
    ("handover", "bytes copied by any hand-over", _copies, 0.0, False),
    ("whole", "by hand: cuDF, slices, eager AdamW / gpupipe, warm", _times("cuDF, slices"), 1.8, True),
    ("whole", "gpupipe on the CPU / gpupipe, warm", _times("gpupipe on the CPU"), 8.0, True),
    ("large", "gpupipe on the CPU / gpupipe, warm", _times("gpupipe on the CPU", "large"), 15.0, True),
]


def bars_of(parts: Parts, asked: Collection[str]) -> list[dict[str, Any]]:
    """Each bar of the parts asked for as found, bar, met; one that its part did not get to is not met."""
    made = []
    for part, what, find, bar, at_least in (one for one in BARS if one[0] in asked):
        try:
            found = find(parts)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            found = None
        met = found is not None and (found >= bar if at_least else found <= bar)
        made.append({"part": part, "what": what, "found": found, "bar": bar, "at_least": at_least, "met": met})
    if "trainer" in asked:
        steps = parts.get("trainer", {}).get("bars")
        none = {"what": "all of its bars", "found": None, "bar": None, "met": False}
        made += [{"part": "trainer", **bar} for bar in steps or [none]]
    return made
