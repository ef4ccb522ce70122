"""Frames of figures, for whoever wants to go on with a report in pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd


def make_frame(rows: Iterable[Mapping[str, Any]], index: str | None = None) -> pd.DataFrame:
    """Make a pandas frame of rows of figures, missing where a row lacks one; `index` is the column that names rows.

    Memory: copies, on the host.
    """
    frame = pd.DataFrame.from_records(list(rows))
    return frame if index is None or frame.empty else frame.set_index(index)
