"""Tables of models' and features' figures, which convert to a frame."""

from __future__ import annotations

from typing import Any

from gpupipe.backend import to_pandas
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import RowTable


@answer_calls
class FigureTable(RowTable):
    """Base class of tables of figures that users look rows up in, by name."""

    def to_frame(self) -> Any:
        """Return the table as a pandas frame, a row per row."""
        return to_pandas(self.rows)
