"""From Parquet to a trained model at 100 million rows: `make bench-gpu-large`, for it takes the ten minutes alone."""

from __future__ import annotations

from stage import Stage

from parts.whole import CPU, HAND, LARGE, OURS, Contenders, compared

ROWS = 100_000_000
CONTENDERS: Contenders = {
    OURS: ([ROWS, ROWS], 0.3),
    HAND: ([ROWS, ROWS], 0.3),
    CPU: ([LARGE // 1000, LARGE, 3 * LARGE, ROWS], 0.4),
}


def measure(stage: Stage) -> None:
    compared(stage, ROWS, CONTENDERS)
