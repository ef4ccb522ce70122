"""Window transforms: new columns from other rows of the same key, by a Polars plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

import polars as pl

from gpupipe.backend import Backend, Frame
from gpupipe.backend.columns import require_comparable
from gpupipe.backend.polars_plans import columns_by_plan
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.schema import FLOATS, INTEGERS, ROW, Field, Schema
from gpupipe.support.text import as_list
from gpupipe.support.validation import check_names
from gpupipe.transforms.transform import Transform

__all__ = ["WholeTableTransform"]


class WholeTableTransform(Transform):
    """Base class of steps that add columns from other rows of the same key; rows and order stay the same.

    A frame is taken to hold all rows there are. Of a Dataset a pipeline makes the columns before its first pass, of
    the columns in `reads` alone; see docs/decisions/012.

    Args:
        by: the key columns. Rows with a missing key have missing values in the new columns. Without a key column all
            rows belong together.
        order_by: the columns by which the rows of a key are in order, missing values last; rows alike in them are
            ordered as in the table, and without any of these so do all.

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
        """The columns that order the rows of a key."""
        return [] if self.order_by is None else as_list(self.order_by)

    @property
    @abstractmethod
    def inputs(self) -> list[str]:
        """The columns the new ones are computed from, besides keys and order."""

    @property
    @abstractmethod
    def makes(self) -> list[str]:
        """The names of the new columns, whatever the types of the inputs."""

    @abstractmethod
    def made_fields(self, schema: Schema) -> list[Field]:
        """Return the new columns, named as in `makes`; checks types.

        Raises:
            SchemaMismatch: a column's type is not what the step works on.
        """

    @abstractmethod
    def plan(self, rows: pl.LazyFrame, schema: Schema, wanted: AbstractSet[str], backend: str) -> pl.LazyFrame:
        """Build the plan that computes the wanted ones of the new columns.

        Args:
            rows: the columns in `reads` and the row's identity, `schema.ROW`, in its order: of a frame or a Dataset all
                rows, or all rows of some keys. No float is NaN.
            schema: of all columns before the step.
            wanted: names of new columns, and maybe others.
            backend: `"cpu"` or `"gpu"`: whose engine runs the plan.

        Returns:
            the new columns and the identity, as many rows, in the order of the identities.
        """

    @property
    def reads(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.keys, *self.order, *self.inputs]))

    def output_schema(self, schema: Schema) -> Schema:
        where = type(self).__name__
        schema.require(self.reads, where)
        require_comparable(schema.select(dict.fromkeys([*self.keys, *self.order])), where)
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
        made = [item for item in self.made_fields(schema) if item.name in wanted]
        inputs = list(schema.select(self.reads))
        plan = partial(self.plan, schema=schema, wanted=wanted, backend=backend.name)
        return backend.assign(frame, columns_by_plan(plan, frame, inputs, made, backend))

    def _sorts(self, backend: str) -> bool:
        """Return whether all rows are sorted at once; those of each key are slow to sort by several columns."""
        return bool(self.order) and not (self.keys and (len(self.order) == 1 or backend == "gpu"))

    def _in_order(self, rows: pl.LazyFrame, backend: str) -> pl.LazyFrame:
        """Sort rows in window order, where `_over` does not do so."""
        return rows.sort(self.order, nulls_last=True, maintain_order=True) if self._sorts(backend) else rows

    def _in_place(self, rows: pl.LazyFrame, backend: str) -> pl.LazyFrame:
        """Sort rows back by their ids."""
        return rows.sort(ROW) if self._sorts(backend) or backend == "gpu" else rows

    def _over(self, value: pl.Expr, backend: str) -> pl.Expr:
        """Compute a value of the rows of each key in their order."""
        if not self.keys:
            return value
        if backend == "gpu":  # whose engines keep no order
            return value.over(self.keys, order_by=[*self.order, ROW], nulls_last=True)
        if self._sorts(backend) or not self.order:
            return value.over(self.keys)
        return value.over(self.keys, order_by=self.order, nulls_last=True)

    def _where_known(self, value: pl.Expr, schema: Schema) -> pl.Expr:
        """Keep a value where no key is missing."""
        missing = [pl.col(key).is_null() for key in self.keys if schema[key].nullable]
        return pl.when(~pl.any_horizontal(missing)).then(value) if missing else value

    def _name(self, column: str, *what: object) -> str:
        """Return the name of a new column: `dep_delay_lag_1_by_tailnum`."""
        keys = ["by", *self.keys] if self.keys else []
        return "_".join([*([column] if column else []), *map(str, what), *keys])

    def _numbers(self, schema: Schema, names: Sequence[str], *others: str) -> list[Field]:
        """Return the fields of these columns.

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
