"""From Parquet to a trained model: gpupipe beside itself on the CPU, a program by hand, and what tutorials show.

Each contender has a process of its own (not in a dry run) and a list of sizes; what it has no time for is told, and
its seconds at all rows are then scaled from the largest size it did (`scaled_from_rows`). The smallest sizes tell where
the CPU wins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import contender
from stage import DRY_ROWS, Stage, lines_of
from table import files_of

ROWS = 30_000_000
OURS, CPU, HAND = "gpupipe", "gpupipe on the CPU", "cuDF, slices"
SMALL, LARGE = [10_000, 100_000, 1_000_000], 10_000_000
Contenders = Mapping[str, tuple[list[int], float]]
# The sizes in the order they are run, and the share of the part's seconds. The second run is the one that is compared.
CONTENDERS: Contenders = {
    OURS: ([ROWS, ROWS, *SMALL], 0.28),
    HAND: ([ROWS, ROWS], 0.28),
    "cuDF, DataLoader": (SMALL[:2], 0.08),
    "pandas, scikit-learn, DataLoader": (SMALL[:2], 0.08),
    CPU: ([SMALL[0], *SMALL, LARGE, ROWS], 0.28),  # the last has what the others left over
}
ENDED_AFTER = 1.5  # times its share a contender is ended, which its first two runs may need


def measure(stage: Stage) -> None:
    runs = compared(stage, ROWS, CONTENDERS)
    stage.tell("rows below which the CPU wins", crossover(warm(runs[CPU]), warm(runs[OURS])))


def compared(stage: Stage, most: int, contenders: Contenders) -> dict[str, list[dict[str, Any]]]:
    """The runs of each, told with its seconds at the most rows."""
    folder = stage.scratch / "table"
    for rows in {stage.rows(rows) for sizes, _ in contenders.values() for rows in sizes}:
        files_of(folder, rows)
    shares = sum(share for _, share in contenders.values())
    runs: dict[str, list[dict[str, Any]]] = {}
    for name, (sizes, share) in contenders.items():
        now, left = time.time(), stage.left()
        until, ended = (now + left * min(part * share / shares, 1.0) for part in (1.0, ENDED_AFTER))
        shares -= share
        asked = [str(rows) for rows in (sizes if stage.gpu else [DRY_ROWS // 10, DRY_ROWS])]
        arguments = [name, str(folder), str(now), str(until), *asked, *([] if stage.gpu else ["--dry"])]
        found = lines_of("contender.py", arguments, ended) if stage.gpu else contender.lines(arguments)
        runs[name] = list(found)
        for line in runs[name]:
            if "seconds" not in line:
                stage.drop(f"{name}: {line}")
        stage.tell(name, {"runs": runs[name]} | summary(runs[name], most if stage.gpu else DRY_ROWS))
    return runs


def warm(runs: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Seconds by rows, the cold run left out."""
    return {run["rows"]: run["seconds"] for run in runs if "seconds" in run and not run["cold"]}


def summary(runs: Sequence[Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Seconds at so many rows, cold and warm; from fewer rows if it did not do them."""
    cold = [run["seconds"] for run in runs if run.get("cold") and run["rows"] == rows]
    told: dict[str, Any] = {"rows": rows, "cold_s": cold[0] if cold else None}
    found = warm(runs)
    if found:
        most = max(found)
        told["warm_s"] = found[most] * rows / most
        told |= {} if most == rows else {"scaled_from_rows": most}
    return told


def crossover(slow: Mapping[int, float], fast: Mapping[int, float]) -> float | None:
    """The rows at which both take as long, between two sizes on logarithmic scales; below them `slow` is faster.

    It is the smallest size that both did where `slow` does not win there, None where it wins at all sizes.

    Example:
        >>> round(crossover({10: 1.0, 1000: 100.0}, {10: 10.0, 1000: 10.0}))
        100
    """
    sizes = sorted(slow.keys() & fast.keys())
    gains = [math.log(slow[rows] / fast[rows]) for rows in sizes]
    for place, gain in enumerate(gains):
        if gain >= 0:
            if place == 0:
                return float(sizes[0])
            before, low, high = gains[place - 1], math.log(sizes[place - 1]), math.log(sizes[place])
            return math.exp(low + (high - low) * -before / (gain - before))
    return None
