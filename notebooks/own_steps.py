"""Steps of one's own for `06_bring_your_own.ipynb`, in a module because a pipeline is saved with their import paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from gpupipe.backend import Backend, Column
from gpupipe.preprocessing import Columns, LearnedStep
from gpupipe.schema import Field


def add_weekend(frame: Any) -> Any:
    """Whether a flight leaves on a Saturday or Sunday; in the API that pandas and cuDF share, so it runs on both.

    Example:
        >>> import pandas as pd
        >>> add_weekend(pd.DataFrame({"time_hour": pd.to_datetime(["2013-07-05", "2013-07-06"])}))["weekend"].tolist()
        [False, True]
    """
    frame["weekend"] = frame["time_hour"].dt.day_of_week >= 5
    return frame


@dataclass(frozen=True)
class Peaks:
    """The greatest value of each column, of some rows; of more rows, once added."""

    values: dict[str, float]

    def __add__(self, other: Self) -> Peaks:
        return Peaks({name: max(value, other.values[name]) for name, value in self.values.items()})


class ShareOfPeak(LearnedStep):
    """Each value divided by the greatest one of the fit: a fold in four methods.

    A column's `data` is an array of NumPy or CuPy, so there is one program for both. Missing values are to be filled
    before it, as `SimpleImputer` does.

    Example:
        >>> import pandas as pd
        >>> ShareOfPeak().fit_transform(pd.DataFrame({"x": [1.0, 4.0]}))["x"].tolist()
        [0.25, 1.0]
    """

    def summarize(self, columns: Columns, backend: Backend) -> Peaks:
        """What one partition knows: a number per column, which goes to the host by the one door there is."""
        greatest = {name: column.data.max()[None] for name, column in columns.items() if len(column)}
        return Peaks({name: float(backend.to_host(greatest[name])[0]) if name in greatest else 0.0 for name in columns})

    def finalize(self, summary: Peaks) -> Self:
        """What is learned from all of them: attributes that end in `_`."""
        self.names_in_ = list(summary.values)
        self.peaks_ = list(summary.values.values())
        return self

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """One partition's output."""
        peaks = dict(zip(self.names_in_, self.peaks_, strict=True))
        return {
            name: Column("float32", (column.data / peaks[name]).astype("float32")) for name, column in columns.items()
        }

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """What comes out, before anything is read."""
        return [Field.derived(item.name, "float32", [item], "ShareOfPeak") for item in fields]
