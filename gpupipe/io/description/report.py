"""Report of what is in a table, column by column: as text, in a notebook, as one file to send, as a frame."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe.backend.report_frame import make_frame
from gpupipe.errors import ColumnNotFound
from gpupipe.files import replacing
from gpupipe.io.description.column_description import ColumnDescription, format_value
from gpupipe.io.stores import FileNote
from gpupipe.support.attributes import Answering
from gpupipe.support.bars import draw_bars, format_bars
from gpupipe.support.calls import answer_calls
from gpupipe.support.page import format_page
from gpupipe.support.text import escape_html, escape_line, flush_right, format_count, text_table
from gpupipe.support.validation import check_bool, is_path, refuse_argument

_NUM_TOP_SHOWN, _LEAST_TOP_SHARE, _TEXT_WIDTH = 3, 0.05, 24
_SECTIONS = (
    ("numbers", ("dtype", "missing", "distinct", "mean", "std", "min", "25%", "50%", "75%", "max")),
    ("times", ("missing", "distinct", "min", "50%", "max")),
    ("others", ("dtype", "missing", "distinct")),
)
_CELL, _NUMBER = 'style="text-align:left"', 'style="text-align:right"'


@answer_calls
@dataclass(frozen=True, repr=False)
class Description(Answering):
    """Description of a table: displays itself as text and in a notebook, and becomes a file or a frame.

    Args:
        columns: a `ColumnDescription` each, with all figures.
        target: what the columns' associations are with; None without one.
        num_sampled: the rows, drawn by identity, that the associations were computed on.
        notes: the files and columns that were skipped or converted in reading.
    """

    num_rows: int
    columns: tuple[ColumnDescription, ...]
    target: str | None = None
    num_sampled: int = 0
    notes: tuple[FileNote, ...] = ()

    def __getitem__(self, name: str) -> ColumnDescription:
        """Return the description of one column; `ColumnNotFound` for a name that is not there."""
        columns = {column.name: column for column in self.columns}
        if name not in columns:
            raise ColumnNotFound.among("describe()", name, columns)
        return columns[name]

    def __len__(self) -> int:
        return len(self.columns)

    def to_frame(self) -> Any:
        """Return the figures as a pandas frame with a row per column.

        Memory: a few hundred bytes a column, on the host.
        """
        rows = []
        for column in self.columns:
            value, count = column.top[0] if column.top else (None, None)
            row = {"column": column.name, "dtype": column.dtype, "count": column.num_rows - column.num_missing}
            row |= {"missing": column.missing, "distinct": column.num_distinct, "mean": column.mean, "std": column.std}
            row |= {"min": column.min, "25%": column.q25, "50%": column.median, "75%": column.q75, "max": column.max}
            row |= {"top": value, "freq": count}
            row |= {} if self.target is None else {"association": column.association}
            rows.append({**row, "notes": "; ".join(column.notes)})
        return make_frame(rows, index="column")

    def to_html(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the report as one HTML file that needs no other; it appears whole or not at all.

        Raises `BadFile`: something is there and `overwrite` is False, or it cannot be written; `BadConfig`: no path.
        Memory: about 4 KB a column, on the host.
        """
        if not is_path(path):
            raise refuse_argument("to_html", "path", path, "a path", "'report.html'")
        check_bool("to_html", overwrite=overwrite)
        with replacing(Path(path), overwrite=overwrite) as draft:
            draft.write_text(format_page(f"Table of {self._size}", self._repr_html_()), encoding="utf-8")

    @property
    def _size(self) -> str:
        return f"{format_count(self.num_rows, 'row')}, {format_count(len(self.columns), 'column')}"

    @property
    def _remarks(self) -> list[str]:
        """What is to be said below the table."""
        remarks = [f"{column.name or repr('')}: {'; '.join(column.notes)}" for column in self.columns if column.notes]
        if not all(column.is_exact for column in self.columns):
            remarks.append("~ an estimate, within about 1 %")
        if self.target is not None:
            of_rows = f" of {self.num_rows:,}" if self.num_sampled < self.num_rows else ""
            rows = f"{format_count(self.num_sampled, 'row')}{of_rows}"
            remarks.append(f"V: Cramér's V with {self.target}, 0 to 1, over {rows}; numbers are cut at their tenths")
        return [*map(escape_line, remarks), *map(str, self.notes)]

    def __repr__(self) -> str:
        sections: dict[str, list[ColumnDescription]] = {}
        for column in self.columns:
            sections.setdefault(_find_section(column), []).append(column)
        tables = [
            _format_section(name, names, sections[name], has_target=self.target is not None)
            for name, names in _SECTIONS
            if name in sections
        ]
        return "\n\n".join([self._size, *tables, *(["\n".join(self._remarks)] if self._remarks else [])])

    def _repr_html_(self) -> str:
        associated = [] if self.target is None else ["V"]
        names = ["column", "missing", "distinct", "mean", "std", "min", "25%", "50%", "75%", "max", *associated]
        head = "".join(f"<th {_CELL if name == 'column' else _NUMBER}>{name}</th>" for name in names)
        head += f"<th {_CELL}>distribution</th><th {_CELL}>most frequent</th>"
        body = "".join(f"<tr>{''.join(self._list_cells(column))}</tr>" for column in self.columns)
        remarks = "".join(f"<p>{escape_html(remark)}</p>" for remark in self._remarks)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{escape_html(self._size)}</p>{table}{remarks}"

    def _list_cells(self, column: ColumnDescription) -> Iterator[str]:
        figures = _format_figures(column)
        yield f"<td {_CELL}>{escape_html(column.name or repr(''))}<br><small>{escape_html(column.dtype)}</small></td>"
        names = ["missing", "distinct", "mean", "std", "min", "25%", "50%", "75%", "max"]
        for name in [*names, *([] if self.target is None else ["V"])]:
            yield f"<td {_NUMBER}>{escape_html(_shorten(figures[name]))}</td>"
        titles = [f"{bar.label}: {format_count(bar.size, 'row')}" for bar in column.bars]
        yield f"<td {_CELL}>{draw_bars([bar.size for bar in column.bars], titles) if column.bars else ''}</td>"
        yield f"<td {_CELL}>{'<br>'.join(map(escape_html, _list_top(column)))}</td>"


def _find_section(column: ColumnDescription) -> str:
    if column.std is not None or (column.mean is not None and column.dtype != "timestamp"):
        return "numbers" if column.dtype != "bool" else "others"
    return "times" if column.dtype == "timestamp" and column.median is not None else "others"


def _format_section(title: str, names: Sequence[str], columns: Sequence[ColumnDescription], *, has_target: bool) -> str:
    """Format columns of one sort as a table: figures flush right, then the bars and the frequent values."""
    names = [*names, *(["V"] if has_target else [])]
    rows, tails = [[title, *names]], [["", ""]]
    for column in columns:
        figures = _format_figures(column)
        rows.append([column.name or repr(""), *(_shorten(figures[name]) for name in names)])
        tails.append([format_bars([bar.size for bar in column.bars]), ", ".join(_list_top(column))])
    return text_table([[*row, *tail] for row, tail in zip(flush_right(rows), tails, strict=True)])


def _format_figures(column: ColumnDescription) -> dict[str, str]:
    is_date = column.dtype == "timestamp" and all(
        format_value(value).endswith(" 00:00:00") for value in (column.min, column.max)
    )
    named = {"mean": column.mean, "std": column.std, "min": column.min, "max": column.max}
    named |= {"25%": column.q25, "50%": column.median, "75%": column.q75}
    figures = {name: format_value(value, is_date=is_date) for name, value in named.items()}
    association = "" if column.association is None else f"{column.association:.2f}"
    missing = _format_share(column.missing) if column.num_missing else "0%"
    return figures | {"dtype": column.dtype, "missing": missing, "distinct": column.distinct_text, "V": association}


def _format_share(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _list_top(column: ColumnDescription) -> list[str]:
    """List the most frequent values with their shares: of numbers and times those that stand out, of others three."""
    least = 1 if column.median is None else max(1, _LEAST_TOP_SHARE * column.num_rows)
    texts = []
    for value, count in column.top[:_NUM_TOP_SHOWN]:
        if count > least and column.num_distinct != 1:
            texts.append(f"{_shorten(format_value(value)) or repr(value)} {_format_share(count / column.num_rows)}")
    return texts


def _shorten(text: str) -> str:
    return text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 1]}…"
