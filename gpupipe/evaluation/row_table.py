"""Tables of models' and features' figures, which convert to a frame."""

from __future__ import annotations

from typing import Any

from gpupipe.backend import to_pandas
from gpupipe.errors import BadConfig, nearest
from gpupipe.support.calls import answer_calls
from gpupipe.support.text import RowTable


@answer_calls
class FigureTable(RowTable):
    """Base class of tables of figures that users look rows up in, by name."""

    def __getitem__(self, name: Any) -> dict[str, Any]:
        names = [next(iter(row.values())) for row in self.rows]
        if name not in names:
            near = nearest(str(name), list(map(str, names)))
            remedy = f"[{names[0] if near is None else near!r}]" if names else "rows"
            raise BadConfig(type(self).__name__, "no such row", got=name, expected=f"one of {names}", remedy=remedy)
        return self.rows[names.index(name)]

    def to_frame(self) -> Any:
        """Return the table as a pandas frame, a row per row."""
        return to_pandas(self.rows)
