"""Schema: each column's dtype, kind, role, lineage and unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import groupby
from typing import Any, ClassVar

from gpupipe.errors import BadConfig, ColumnNotFound
from gpupipe.support.attributes import Answering
from gpupipe.support.calls import answer_calls
from gpupipe.support.origins import Origin, Origins, When, are_related, has_values, rename_tables, shift
from gpupipe.support.text import (
    arguments,
    escape_line,
    format_count,
    html_table,
    refer_to,
    text_table,
    write_cast,
    write_time_formats,
)
from gpupipe.support.times import from_microseconds
from gpupipe.support.validation import as_list

__all__ = ["DTYPES", "FLOATS", "INTEGERS", "LISTS", "Field", "Kind", "Role", "Schema"]

_MANY_FIELDS, _MOST_SOURCES = 60, 8  # for a table of them
_LARGEST_TIME = 62_000_000_000_000_000  # in microseconds since 1970, that a datetime holds before it and after
_LEGEND = "ids: 0 missing, 1 unknown or rare, 2.. vocabulary"

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
WIDE = ("int32", "int64", "uint32", "uint64", "float64")  # float32 does not hold them exactly
DTYPES = (*INTEGERS, *FLOATS, "bool", "string", "timestamp")  # timestamps are UTC, naive, microseconds
LISTS = tuple(f"list<{dtype}>" for dtype in DTYPES)
_PASSENGERS = (
    *("time32[", "time64[", "duration[", "decimal32(", "decimal64(", "decimal128(", "decimal256("),
    *("binary", "large_binary", "fixed_size_binary[", "fixed_size_list<item: ", "struct<", "map<"),
    *("list<item: ", "large_list<item: "),
)


def to_list_dtype(dtype: str) -> str:
    """Return the type of lists whose elements have that type."""
    return f"list<{dtype}>"


def get_element_dtype(dtype: str) -> str | None:
    """Return the type of a list's elements; None for a type that is no list's."""
    return dtype[5:-1] if dtype in LISTS else None


def is_passenger(dtype: str) -> bool:
    """Return whether columns of that Arrow type are only carried; see docs/decisions/023-column-types.md."""
    return dtype not in DTYPES and dtype not in LISTS and dtype.startswith(_PASSENGERS)


_KEEPING_STEPS = frozenset({"", "Cast", "Join"})  # which leave a key what it is
OF_A_DATASET = "of a Dataset gp.Pipeline([step]).fit(data).transform(data)"
"""How a step is applied to a lazy table, for an error's remedy."""


def suggest_conversion(name: str, dtype: str, *, text: bool = False) -> str:
    """Return an error's remedy for a column that is only carried: how to get numbers or text of it, or to keep it."""
    if text and dtype.startswith(("decimal", "binary", "large_binary")):
        return f"T.Cast({{{name!r}: 'string'}}) before, {OF_A_DATASET}"
    if dtype.startswith(("decimal", "duration", "time")):
        return f"T.Cast({{{name!r}: 'float64'}}) before, {OF_A_DATASET}"
    return f"keep=[{name!r}], which carries it beside the features; or a column of plain values made from it before"


def suggest_times(name: str, dtype: str, expression: str = "") -> str:
    """Return an error's remedy for a column that holds no times, or an expression that gives none: steps before.

    Example:
        >>> suggest_times("day", "string", "strip(day)")
        "T.Derive(day='strip(day)'), T.Cast({'day': 'timestamp'}) before"
    """
    if dtype == "string" and not expression:
        return f"{write_cast(name, 'timestamp')} before, of text in ISO 8601; {write_time_formats(name)}"
    if dtype not in (*INTEGERS, *FLOATS, "bool"):
        return f"{write_cast(name, 'timestamp', expression)} before"
    seconds = f"({expression})" if expression else refer_to(name)
    seconds = f"int({seconds} * 1000000)" if dtype in FLOATS else f"{seconds} * 1000000"
    condition = "if it holds seconds since 1970 (* 1000 of milliseconds; a cast reads microseconds)"
    remedy = f"T.Derive({arguments({name: seconds})}) {condition}, then {write_cast(name, 'timestamp')} before"
    return remedy if expression else f"{remedy}; {write_time_formats(name, 'digits like 20240131', '%Y%m%d')}"


def require_no_nul(name: str, within: str) -> None:
    """Raise `BadConfig` for a column whose name, or that of a field within it, has a NUL; Polars cannot hand it on."""
    if "\0" in name or "\0" in within:
        problem = "its name, or that of a field within it, has the character NUL"
        remedy = f"frame.rename(columns={{{name!r}: {name.replace(chr(0), '')!r}}}) before"
        raise BadConfig(f"column {name!r}", problem, expected="names without it", remedy=remedy)


class Kind(StrEnum):
    """Kind of a column's values, independent of their storage."""

    CONTINUOUS = "continuous"
    BOOLEAN = "boolean"
    CATEGORICAL = "categorical"
    TEXT = "text"
    TIME = "time"
    LIST = "list"
    PASSENGER = "passenger"


class Role(StrEnum):
    """Role of a column in training; raw data has none, but for the labels a pipeline has marked."""

    LABEL = "label"
    FEATURE = "feature"
    TARGET = "target"
    WEIGHT = "weight"
    KEEP = "keep"


@dataclass(frozen=True)
class Field:
    """Description of one column.

    Args:
        dtype: how it is stored: one of `DTYPES`, `list<...>` of one, or the text of an Arrow type that is only carried.
        kind: what its values mean; by default it follows from `dtype`.
        cardinality: how many ids a categorical, or a list's element, can take, missing (0) and unknown (1) included.
        lineage: the source columns its values are computed from, in its own row or in others.
        origins: the columns of tables read that its values come from, through earlier pipelines, verbs and files too.
        step: the step that made it; empty for a column of the source.
        classes: a classification target's values in the order of their index.
        units: what its numbers count, as the user has said; kept by steps that leave them what they are.
        written_as: the Arrow type of a timestamp in files, where that is a date or has a time zone.
        vocabulary: what a fit's ids stand for, a `Vocabulary`; in no comparison and no file.

    Raises `BadConfig`: there is no such type, or a name has the character NUL.

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
    units: str = ""
    written_as: str = ""
    vocabulary: Any = field(default=None, repr=False, compare=False)
    origins: Origins = field(default=frozenset(), repr=False, compare=False)

    def __post_init__(self) -> None:
        kind = _KIND_OF.get(self.dtype) or (Kind.PASSENGER if is_passenger(self.dtype) else None)
        if kind is None:
            where, expected = f"column {self.name!r}", f"one of {', '.join(DTYPES)}, or list<one of them>"
            raise BadConfig(where, "unknown type", got=self.dtype, expected=expected, remedy="dtype='float64'")
        require_no_nul(self.name, self.dtype)
        if self.kind is None or {self.kind, kind} == {
            Kind.CONTINUOUS,
            Kind.BOOLEAN,
        }:  # cast, or computed from the other
            object.__setattr__(self, "kind", kind)

    @classmethod
    def derived(cls, name: str, dtype: str, reads: Iterable[Field], step: str, written_as: str = "") -> Field:
        """Return a column computed from `reads`, with their lineage; a label as soon as one of them is."""
        sources = list(reads)
        lineage: frozenset[str] = frozenset().union(*(item.lineage for item in sources))
        origins: Origins = frozenset().union(*(item.origins for item in sources))
        role = Role.LABEL if any(item.role == Role.LABEL for item in sources) else None
        return cls(name, dtype, lineage=lineage, role=role, step=step, written_as=written_as, origins=origins)

    def replace(self, **attributes: Any) -> Field:
        """Return the field with other attributes: `dataclasses.replace` takes ten times as long."""
        copy = object.__new__(Field)
        object.__setattr__(copy, "__dict__", vars(self) | attributes)
        if "dtype" in attributes or "name" in attributes or "kind" in attributes:
            copy.__post_init__()
        return copy

    @property
    def zone(self) -> str:
        """The time zone of its times; empty where they have none."""
        return self.written_as.partition("tz=")[2].removesuffix("]")

    def with_instants(self) -> Field:
        """Return the column once its times are computed: no dates any more, but of the same zone."""
        return self if self.zone else replace(self, written_as="")

    def as_source(self) -> Field:
        """Return the column as the start of a lineage."""
        lineage = {self.name}
        return self if self.lineage == lineage else self.replace(lineage=frozenset(lineage))

    @property
    def is_unchanged(self) -> bool:
        """Whether equal values are equal ones of the column that it comes from, and no others."""
        return self.step in _KEEPING_STEPS

    def is_column_of(self, other: Field) -> bool:
        """Whether both hold the values of one column of one table, and none that are computed from it."""
        sides = [[origin for origin in item.origins if has_values(origin)] for item in (self, other)]
        if self.step or other.step or [*map(len, sides)] != [1, 1]:
            return False
        (left,), (right,) = sides
        is_same = left.column == right.column and left.when == right.when == When.NOW
        return is_same and are_related(left.table, right.table)

    def is_key_apart(self, other: Field) -> bool:
        """Whether both come from one table, but from other columns or in other ways: equal keys may be of other rows.

        As where `t` is joined to `t - 1`, or the end of a session to the start of one: the lag that is found there may
        be that of a later row.
        """
        origins, other_origins = (list(filter(has_values, item.origins)) for item in (self, other))
        related = [
            left.column == right.column and left.when == right.when
            for left in origins
            for right in other_origins
            if are_related(left.table, right.table)
        ]
        is_same_way = self.step == other.step or (self.is_unchanged and other.is_unchanged)
        return bool(related) and not (is_same_way and any(related))

    def as_origin(self, table: str = "") -> Field:
        """Return the column as one that comes from nowhere else but this table."""
        origins = {Origin(table, self.name)}
        return self if self.origins == origins else self.replace(origins=frozenset(origins))


_KIND_OF = dict.fromkeys(DTYPES, Kind.CONTINUOUS) | dict.fromkeys(LISTS, Kind.LIST)
_KIND_OF |= {"bool": Kind.BOOLEAN, "string": Kind.TEXT, "timestamp": Kind.TIME}


@answer_calls
@dataclass(frozen=True)
class Schema(Answering):
    """Ordered columns of a frame or of a pipeline's output.

    Names are unique. A fitted pipeline's schemas also know statistics of the rows of the fit: `ranges`, by the names of
    some columns the least and the greatest value; `edges`, by the names of numeric features the ascending edges of bins
    that hold about as many rows each; `num_rows`, how many rows the fit learned from; and `gaps`, by the names of what
    windows order rows by the longest distance between two values that follow each other, times in microseconds.

    Example:
        >>> schema = Schema([Field("dep_delay", "float64"), Field("carrier", "string")])
        >>> schema.names, schema["carrier"].dtype
        (['dep_delay', 'carrier'], 'string')
    """

    _ELSEWHERE: ClassVar = {"columns": "schema.names", "dtypes": "{item.name: item.dtype for item in schema}"}

    fields: tuple[Field, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    edges: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False, compare=False)
    num_rows: int | None = field(default=None, repr=False, compare=False)
    gaps: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    _index: dict[str, Field] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        fields: Iterable[Field] = (),
        ranges: Mapping[str, tuple[float, float]] | None = None,
        edges: Mapping[str, tuple[float, ...]] | None = None,
        num_rows: int | None = None,
        gaps: Mapping[str, float] | None = None,
    ) -> None:
        object.__setattr__(self, "fields", tuple(fields))
        object.__setattr__(self, "ranges", dict(ranges or {}))
        object.__setattr__(self, "edges", dict(edges or {}))
        object.__setattr__(self, "num_rows", num_rows)
        object.__setattr__(self, "gaps", dict(gaps or {}))
        index: dict[str, Field] = {}
        for item in self.fields:
            if item.name in index:
                problem, remedy = "two columns have the same name", "each once, or one of the columns renamed before"
                raise BadConfig("schema", problem, got=item.name, expected="unique names", remedy=remedy)
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
        """Return these columns, in the order given."""
        return Schema(self[name] for name in as_list(names))

    def drop(self, names: str | Iterable[str]) -> Schema:
        """Return all columns but these."""
        dropped_names = set(as_list(names))
        return Schema(item for item in self.fields if item.name not in dropped_names)

    def assign(self, fields: Iterable[Field]) -> Schema:
        """Return the schema with `fields` added at the end, or in place of the column of the same name."""
        new = {item.name: item for item in fields}
        existing_fields = [new.pop(item.name, item) for item in self.fields]
        return Schema([*existing_fields, *new.values()])

    def with_statistics(self, other: Schema) -> Schema:
        """Return these columns with the statistics of the fit that another schema knows."""
        return Schema(self.fields, other.ranges, other.edges, other.num_rows, other.gaps)

    def with_units(self, units: Mapping[str, str]) -> Schema:
        """Return the schema with units of columns' numbers, by column name; `ColumnNotFound` where one is not there."""
        self.require(units, "with_units")
        return self.assign(replace(self[name], units=unit) for name, unit in units.items())

    def with_origins(self, table: str, stated: Mapping[str, Origins]) -> Schema:
        """Return the schema of a table read: columns come from it, or from where their metadata, by name, have stated.

        Tables in memory are numbered there, as `#0`: those of two files are not the same.
        """
        sources = {
            name: rename_tables(origins, lambda other: f"{table}{other}" if other.startswith("#") else other)
            for name, origins in stated.items()
        }
        return Schema(
            replace(item, origins=sources[item.name]) if sources.get(item.name) else item.as_origin(table)
            for item in self
        )

    def with_order(self, names: Iterable[str]) -> Schema:
        """Return the schema of rows that were sorted by these columns, which a window without an order goes by."""
        return self._mark(names, When.ORDER)

    def with_choice(self, names: Iterable[str]) -> Schema:
        """Return the schema of rows that were kept or left out by the values of these columns."""
        return self._mark(names, When.CHOICE)

    def _mark(self, names: Iterable[str], when: When) -> Schema:
        marks = shift(frozenset().union(*(self[name].origins for name in names)), when)
        return Schema(item.replace(origins=item.origins | marks) for item in self) if marks else self

    def with_role(self, role: Role) -> list[Field]:
        """List the columns that have this role, in order."""
        return [item for item in self.fields if item.role == role]

    @property
    def numeric(self) -> list[Field]:
        """The features that are numbers, in the order of `Batch.numeric`."""
        return [item for item in self.with_role(Role.FEATURE) if item.kind not in (Kind.CATEGORICAL, Kind.LIST)]

    @property
    def categorical(self) -> list[Field]:
        """The features that are ids, in the order of `Batch.codes`."""
        return [item for item in self.with_role(Role.FEATURE) if item.kind == Kind.CATEGORICAL]

    @property
    def lists(self) -> list[Field]:
        """Features that are lists, which are in `Batch.lists` by their names."""
        return [item for item in self.with_role(Role.FEATURE) if item.kind == Kind.LIST]

    @property
    def vocabularies(self) -> dict[str, Any]:
        """The values of the features whose ids a fit has learned, Arrow arrays in the order of ids from 2 on."""
        vocabularies = {
            item.name: item.vocabulary for item in (*self.categorical, *self.lists) if item.vocabulary is not None
        }
        return {name: each.values for name, each in vocabularies.items() if each.values is not None}

    @property
    def target(self) -> Field | None:
        """The target's column, if there is one; the first of several."""
        return next(iter(self.targets), None)

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
        """`"binary"` (two classes), `"multiclass"`, `"multilabel"` (several conditions), `"regression"`, or None."""
        if self.target is None:
            return None
        if self.target.classes is None:
            return "regression"
        task = "binary" if len(self.target.classes) == 2 else "multiclass"
        return task if len(self.targets) == 1 else "multilabel"

    def to_json(self) -> list[dict[str, Any]]:
        """Convert columns, ranges, edges and gaps to plain lists, numbers and strings, for a file."""
        rows = []
        for item in self.fields:
            name = item.name
            lists = {"classes": item.classes, "range": self.ranges.get(name), "edges": self.edges.get(name)}
            plain = {key: None if values is None else list(values) for key, values in lists.items()}
            described = asdict(replace(item, vocabulary=None)) | {"lineage": sorted(item.lineage)} | plain
            described["gap"] = self.gaps.get(name)
            for name in ("vocabulary", "origins"):  # of one fit, and of data that may lie elsewhere tomorrow
                del described[name]
            rows.append(described)
        return rows

    @classmethod
    def from_json(cls, rows: Iterable[dict[str, Any]], num_rows: int | None = None) -> Schema:
        """Build the schema that `to_json` described."""
        fields, ranges, edges, gaps = [], {}, {}, {}
        types: dict[str, Callable[[Any], Any]] = {"kind": Kind, "role": Role, "lineage": frozenset, "classes": tuple}
        for row in rows:
            values = row | {name: convert(row[name]) for name, convert in types.items() if row[name] is not None}
            if (ends := values.pop("range")) is not None:
                ranges[row["name"]] = (ends[0], ends[1])
            if (bounds := values.pop("edges")) is not None:
                edges[row["name"]] = tuple(bounds)
            if (gap := values.pop("gap")) is not None:
                gaps[row["name"]] = gap
            fields.append(Field(**values))
        return cls(fields, ranges, edges, num_rows, gaps)

    def _table(self) -> list[Sequence[str]]:
        head = ["column", "dtype", "written as", "kind", "role", "ids", "nulls", "units", "range", "from", "step"]
        body = []
        for item in self.fields:
            what = [item.name, item.dtype, item.written_as, str(item.kind), str(item.role or "")]
            ids, nulls = "" if item.cardinality is None else str(item.cardinality), "yes" if item.nullable else "no"
            ends = " to ".join(_format_end(end, item.dtype) for end in self.ranges.get(item.name, ()))
            sources = sorted(item.lineage - {item.name})
            listed = ", ".join(sources[:_MOST_SOURCES]) + (" ..." if len(sources) > _MOST_SOURCES else "")
            body.append([*what, ids, nulls, item.units, ends, listed, item.step])
        if len(body) > _MANY_FIELDS:
            runs = groupby(body, key=lambda cells: (*cells[1:6], cells[7], cells[10]))
            body = [_one_row(list(run)) for _, run in runs]
        columns = [cells for cells in zip(head, *body, strict=True) if any(cells[1:]) or not body]
        return list(zip(*columns, strict=True))

    def __repr__(self) -> str:
        return f"{text_table(self._table())}\n{_LEGEND if self.categorical else ''}".rstrip()

    def _repr_html_(self) -> str:
        return html_table(self._table()) + (f"<p>{_LEGEND}</p>" if self.categorical else "")


def shorten_list(words: Iterable[str], most: int = 4) -> str:
    """Join words in one short line, and count the rest."""
    every = list(map(escape_line, words))
    num_more = len(every) - most
    return ", ".join(every[:most]) + (f" and {num_more:,} more" if num_more > 0 else "")


ROW = "⟨row⟩"
"""The column that holds the rows' identities in plans over whole tables; no table may have one of that name."""
ID = Field(ROW, "uint64", nullable=False)


def _format_end(end: float, dtype: str) -> str:
    if dtype == "timestamp" and abs(end) < _LARGEST_TIME:
        return str(from_microseconds(int(end)))
    return f"{end:.6g}"


def _one_row(run: Sequence[list[str]]) -> list[str]:
    """Format neighbours that differ only in names, missing values, ranges and sources as one row of a table."""
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    same = [cell if all(row[index] == cell for row in run) else "" for index, cell in enumerate(first)]
    same[0], same[6] = f"{first[0]} ... {last[0]} ({format_count(len(run), 'column')})", same[6] or "some"
    return same


def count_features(schema: Schema) -> str:
    """Count a schema's features, in words.

    Example:
        >>> count_features(Schema([Field("x", "float32", role=Role.FEATURE)]))
        '1 feature'
    """
    return format_count(len(schema.with_role(Role.FEATURE)), "feature")
