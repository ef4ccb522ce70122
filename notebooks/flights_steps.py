"""The quickstart's own step, in a module because a pipeline is saved with the import paths of its functions."""

from __future__ import annotations

from typing import Any

HOLIDAYS = ["2013-01-01", "2013-05-27", "2013-07-04", "2013-09-02", "2013-11-28", "2013-12-25"]


def add_holiday(frame: Any) -> Any:
    """Whether a flight leaves on a federal holiday; in the API that pandas and cuDF share, so it runs on both.

    Example:
        >>> import pandas as pd
        >>> add_holiday(pd.DataFrame({"time_hour": pd.to_datetime(["2013-07-04", "2013-07-08"])}))["holiday"].tolist()
        [True, False]
    """
    frame["holiday"] = frame["time_hour"].dt.strftime("%Y-%m-%d").isin(HOLIDAYS)
    return frame
