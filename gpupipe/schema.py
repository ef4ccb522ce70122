"""The vocabulary that travels beside the data: what each column is, where it comes from, what it is for."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpupipe.errors import BadConfig, ColumnNotFound
from gpupipe.words import as_list

__all__ = ["DTYPES", "FLOATS", "INTEGERS", "Field", "Kind", "Role", "Schema", "html_table", "text_table"]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
# Timestamps are UTC, naive, microseconds.
DTYPES = (*INTEGERS, *FLOATS, "bool", "string", "timestamp")


class Kind(StrEnum):
    """What a column's values mean, whatever they are stored as."""

    CONTINUOUS = "continuous"
    CATEGORICAL = "categorical"
    TEXT = "text"
    TIME = "time"


class Role(StrEnum):
    """What a column is for in training; raw data has none, but for the labels a pipeline has marked."""

    LABEL = "label"
    FEATURE = "feature"
    TARGET = "target"
    WEIGHT = "weight"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Field:
    """One column's description.

    Args:
        name: the column's name, unique in its schema.
        dtype: how it is stored, one of `DTYPES`.
        kind: what its values mean; by default it follows from `dtype`.
        nullable: whether values may be missing.
        cardinality: how many ids a categorical can take, missing (0) and unknown (1) included.
        lineage: the source columns its values are computed from, row by row.
        step: the step that made it; empty for a column of the source.
        role: what it is for in training.
        classes: a classification target's values in the order of their index.

    Example:
        >>> Field("carrier", "string").kind
        <Kind.TEXT: 'text'>
    """

    name: str
    dtype: str
    kind: Kind | None = None
    nullable: bool = True
    cardinality: int | None = None
    lineage: frozenset[str] = frozenset()
    step: str = ""
    role: Role | None = None
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise BadConfig(
                f"column {self.name!r}",
                "unknown type",
                got=self.dtype,
                expected=f"one of {', '.join(DTYPES)}",
                remedy="dtype='float64'",
            )
        if self.kind is None:
            object.__setattr__(self, "kind", _KIND_OF.get(self.dtype, Kind.CONTINUOUS))

    @classmethod
    def derived(cls, name: str, dtype: str, reads: Iterable[Field], step: str) -> Field:
        """A column computed row by row from `reads`: it has their lineage, and is a label as soon as one of them is."""
        sources = list(reads)
        lineage: frozenset[str] = frozenset().union(*(item.lineage for item in sources))
        role = Role.LABEL if any(item.role == Role.LABEL for item in sources) else None
        return cls(name, dtype, lineage=lineage, role=role, step=step)

    def as_source(self) -> Field:
        """The same column as the start of a lineage."""
        return replace(self, lineage=frozenset({self.name}))


_KIND_OF = {"string": Kind.TEXT, "timestamp": Kind.TIME}


@dataclass(frozen=True)
class Schema:
    """The ordered columns of a frame or of a pipeline's output.

    Args:
        fields: the columns; names are unique.

    Raises:
        BadConfig: two columns have the same name.

    Example:
        >>> schema = Schema([Field("dep_delay", "float64"), Field("carrier", "string")])
        >>> schema.names, schema["carrier"].dtype
        (['dep_delay', 'carrier'], 'string')
    """

    fields: tuple[Field, ...] = ()
    _index: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __init__(self, fields: Iterable[Field] = ()) -> None:
        object.__setattr__(self, "fields", tuple(fields))
        index: dict[str, Field] = {}
        for item in self.fields:
            if item.name in index:
                raise BadConfig(
                    "schema",
                    "two columns have the same name",
                    got=item.name,
                    expected="unique names",
                    remedy="rename one, or give the feature group a name: (columns, steps, 'name')",
                )
            index[item.name] = item
        object.__setattr__(self, "_index", index)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> Field:
        try:
            return self._index[name]
        except KeyError:
            raise ColumnNotFound.among("schema", name, self.names) from None

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return [item.name for item in self.fields]

    def require(self, names: str | Iterable[str], where: str) -> None:
        """Raise `ColumnNotFound` naming `where` for the first of `names` that is not there."""
        for name in as_list(names):
            if name not in self._index:
                raise ColumnNotFound.among(where, name, self.names)

    def select(self, names: str | Iterable[str]) -> Schema:
        """These columns, in the order given."""
        return Schema(self[name] for name in as_list(names))

    def drop(self, names: str | Iterable[str]) -> Schema:
        """All columns but these."""
        gone = set(as_list(names))
        return Schema(item for item in self.fields if item.name not in gone)

    def assign(self, fields: Iterable[Field]) -> Schema:
        """With `fields` added at the end, or put in the place of the column of the same name."""
        new = {item.name: item for item in fields}
        kept = [new.pop(item.name, item) for item in self.fields]
        return Schema([*kept, *new.values()])

    def with_role(self, role: Role) -> list[Field]:
        """The columns that have this role, in order."""
        return [item for item in self.fields if item.role == role]

    @property
    def numeric(self) -> list[Field]:
        """Features that are numbers, in the order they stand in `Batch.numeric`."""
        return [item for item in self.with_role(Role.FEATURE) if item.kind != Kind.CATEGORICAL]

    @property
    def categorical(self) -> list[Field]:
        """Features that are ids, in the order they stand in `Batch.codes`."""
        return [item for item in self.with_role(Role.FEATURE) if item.kind == Kind.CATEGORICAL]

    @property
    def target(self) -> Field | None:
        """The target's column, if there is one; the first of several."""
        return next(iter(self.with_role(Role.TARGET)), None)

    @property
    def targets(self) -> list[Field]:
        """The targets' columns: one, or those of a model with several outputs."""
        return self.with_role(Role.TARGET)

    @property
    def weight(self) -> Field | None:
        """The sample weight's column, if there is one."""
        return next(iter(self.with_role(Role.WEIGHT)), None)

    @property
    def task(self) -> str | None:
        """`"binary"`, `"multiclass"`, `"multilabel"` (several conditions) or `"regression"`; None without a target."""
        if self.target is None:
            return None
        classes = self.target.classes
        if classes is None:
            return "regression"
        if len(self.targets) > 1:
            return "multilabel"
        return "binary" if classes == (False, True) else "multiclass"

    def to_json(self) -> list[dict[str, Any]]:
        """Plain lists and strings, for a file."""
        rows = []
        for item in self.fields:
            row = asdict(item)
            row["lineage"] = sorted(item.lineage)
            row["classes"] = None if item.classes is None else list(item.classes)
            rows.append(row)
        return rows

    @classmethod
    def from_json(cls, rows: Iterable[dict[str, Any]]) -> Schema:
        """The schema that `to_json` wrote."""
        return cls(
            Field(
                **{
                    **row,
                    "kind": Kind(row["kind"]),
                    "role": None if row["role"] is None else Role(row["role"]),
                    "lineage": frozenset(row["lineage"]),
                    "classes": None if row["classes"] is None else tuple(row["classes"]),
                }
            )
            for row in rows
        )

    def _table(self) -> list[Sequence[str]]:
        head = ["column", "dtype", "kind", "role", "ids", "nulls", "from"]
        body = [
            [
                item.name,
                item.dtype,
                str(item.kind),
                str(item.role or ""),
                "" if item.cardinality is None else str(item.cardinality),
                "yes" if item.nullable else "no",
                ", ".join(sorted(item.lineage - {item.name})),
            ]
            for item in self.fields
        ]
        told = [cells for cells in zip(head, *body, strict=True) if any(cells[1:]) or not body]
        return list(zip(*told, strict=True))

    @property
    def _legend(self) -> str:
        return "ids: 0 missing, 1 unknown or rare, 2.. vocabulary" if self.categorical else ""

    def __repr__(self) -> str:
        return f"{text_table(self._table())}\n{self._legend}".rstrip()

    def _repr_html_(self) -> str:
        return html_table(self._table()) + (f"<p>{self._legend}</p>" if self._legend else "")


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first the head, in aligned columns.

    Example:
        >>> print(text_table([["column", "dtype"], ["x", "float64"]]))
        column  dtype
        x       float64
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the first the head, as HTML.

    Example:
        >>> html_table([["column"], ["a<b"]])
        '<table><thead><tr><th>column</th></tr></thead><tbody><tr><td>a&lt;b</td></tr></tbody></table>'
    """
    head, *body = [[html.escape(cell) for cell in row] for row in rows]
    cells = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
