"""What a step is that looks at other rows: new columns, made where all rows of a key are together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.columns import require_comparable
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema
from gpupipe.support.validation import check_names
from gpupipe.transforms.transform import Transform
from gpupipe.words import as_list

__all__ = ["WholeTableTransform"]


class WholeTableTransform(Transform):
    """Adds columns to each row by other rows with the same key; as many rows come out, in the same order.

    A frame is taken to hold all rows there are. Of a Dataset a pipeline brings the rows of each key together first,
    on disk, with the columns in `reads` alone; see docs/decisions/012.

    Args:
        by: the key columns. Rows with a missing key have missing values in the new columns. Without a key column all
            rows belong together.
        order_by: the columns by which the rows of a key are in order, missing values last; rows alike in them stand as
            in the table, and without any of these so do all.

    Raises:
        SchemaMismatch: at `output_schema`, when a key or an order is a column of lists.
        BadConfig: at `output_schema`, when a new column would have another one's name.
    """

    def __init__(self, by: str | Sequence[str] | None, order_by: str | Sequence[str] | None) -> None:
        check_names(self, None, by=by, order_by=order_by)
        self.by, self.order_by = by, order_by

    @property
    def keys(self) -> list[str]:
        """The key columns."""
        return [] if self.by is None else as_list(self.by)

    @property
    def order(self) -> list[str]:
        """The columns by which the rows of a key are in order."""
        return [] if self.order_by is None else as_list(self.order_by)

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """The columns the new ones are made of, besides keys and order."""

    @property
    @abstractmethod
    def makes(self) -> list[str]:
        """The names of the new columns, whatever the types of the inputs."""

    @abstractmethod
    def made_fields(self, schema: Schema) -> list[Field]:
        """The new columns, named as `makes` says; checks types.

        Raises:
            SchemaMismatch: a column's type is not what the step works on.
        """

    @abstractmethod
    def made_columns(
        self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend
    ) -> dict[str, Column]:
        """Those of the new columns that are wanted, for a coded frame in which all rows of each key are."""

    @property
    def reads(self) -> list[str]:
        """All columns that are looked at."""
        return list(dict.fromkeys([*self.keys, *self.order, *self.inputs]))

    def output_schema(self, schema: Schema) -> Schema:
        where = type(self).__name__
        schema.require(self.reads, where)
        require_comparable(schema.select([*self.keys, *self.order]), where)
        made = self.made_fields(schema)
        for name in self.makes:
            if name in schema or self.makes.count(name) > 1:
                raise BadConfig(
                    where,
                    "a new column would have another one's name",
                    got=name,
                    expected="a name of its own for each column",
                    remedy=f"Rename({{{name!r}: {name + '_before'!r}}}) before it",
                )
        keys = [schema[name] for name in [*self.keys, *self.order]]
        sources = [Field.derived(item.name, item.dtype, [item, *keys], where) for item in made]
        return schema.assign(
            replace(item, lineage=source.lineage, role=source.role, step=where)
            for item, source in zip(made, sources, strict=True)
        )

    def needs(self, wanted: AbstractSet[str], schema: Schema) -> set[str]:
        made = set(self.makes)
        return {*(wanted - made), *self.reads} if wanted & made else set(wanted)

    def apply(self, frame: Frame, schema: Schema, wanted: AbstractSet[str], backend: Backend) -> Frame:
        if wanted.isdisjoint(self.makes):
            return frame
        return backend.assign(frame, self.made_columns(frame, schema, wanted, backend))

    def _name(self, column: str, *what: object) -> str:
        """What a new column is called: `dep_delay_lag_1_by_tailnum`."""
        keys = ["by", *self.keys] if self.keys else []
        return "_".join([*([column] if column else []), *map(str, what), *keys])

    def _numbers(self, schema: Schema, names: Sequence[str], *others: str) -> list[Field]:
        """The fields of these columns.

        Raises:
            SchemaMismatch: one holds neither numbers or booleans, nor one of the other types.
        """
        for name in names:
            if schema[name].dtype not in (*FLOATS, *INTEGERS, "bool", *others):
                raise SchemaMismatch(
                    f"{type(self).__name__}, column {name!r}",
                    "not a number",
                    got=schema[name].dtype,
                    expected=" or ".join(["numbers", "booleans", *(f"{other}s" for other in others)]),
                    remedy="another column, or numbers made of it before",
                )
        return [schema[name] for name in names]
