"""Tables of figures, a row by name, that show themselves as text and HTML and convert to a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gpupipe.backend import to_pandas
from gpupipe.errors import BadConfig, nearest
from gpupipe.support.text import TableReport, flush_right


class RowTable(TableReport):
    """Base class of tables of figures; the first column names the row."""

    rows: list[dict[str, Any]]
    _formats: ClassVar[Mapping[str, Callable[[Any], str]]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        names = [next(iter(row.values())) for row in self.rows]
        if name not in names:
            near = nearest(name, names)
            remedy = f"[{names[0] if near is None else near!r}]"
            raise BadConfig(type(self).__name__, "no such row", got=name, expected=f"one of {names}", remedy=remedy)
        return self.rows[names.index(name)]

    def to_frame(self) -> Any:
        """Return the table as a pandas frame, a row per row."""
        return to_pandas(self.rows)

    def _table(self) -> list[list[str]]:
        head = list(self.rows[0]) if self.rows else ["model"]
        return flush_right([head, *([self._format(name, row[name]) for name in head] for row in self.rows)])

    def _format(self, name: str, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        return self._formats.get(name, _format_number)(value)


def _format_number(value: float) -> str:
    return format(value, ".4g")
