"""Sales by store and day, those known so far and the days to predict."""

from __future__ import annotations

import numpy as np
import pandas as pd

AHEAD = 42
BY_STORE = {"by": "store", "order_by": "date"}


def make_sales() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the sales known so far, and the days to predict, in no order."""
    days, rng = pd.date_range("2024-01-01", periods=120 + AHEAD), np.random.default_rng(0)
    frame = pd.DataFrame({"date": np.repeat(days, 3), "store": ["a", "b", "c"] * len(days)})
    frame["promo"] = rng.integers(0, 2, len(frame))
    frame["sales"] = rng.integers(0, 90, len(frame))
    frame = frame.sample(frac=1.0, random_state=1)
    known = frame["date"] < days[120]
    return frame[known].reset_index(drop=True), frame[~known].drop(columns="sales")
