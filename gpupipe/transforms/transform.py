"""Transform: base of the steps from frame to frame, with nothing learned and declared columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from gpupipe.backend import Backend, Frame, infer_backend
from gpupipe.schema import Schema
from gpupipe.step import Step
from gpupipe.support.calls import answer_calls

Names: TypeAlias = str | Sequence[str]  # of one column, or of several


class Transform(Step, ABC):
    """Base class of pure maps from frame to frame.

    A subclass says what it needs and what comes out, so that a pass reads and computes only what is asked for.
    `outputs` is always the set of columns that something downstream still uses.
    """

    changes_rows: bool = False  # whether rows may go or move; such a step has a parameter `when`: "train" or "always"
    adds_rows: bool = False  # whether more rows may come out than go in

    @abstractmethod
    def output_schema(self, schema: Schema) -> Schema:
        """Return the schema after this step; raises ColumnNotFound and BadConfig (two columns of one name)."""

    @abstractmethod
    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        """Return the columns of the input (`schema`) that this step reads for `outputs`."""

    @abstractmethod
    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        """Return the coded frame after this step, holding at least `outputs`.

        `frame` holds at least `needs(outputs, schema)`; `schema` has all columns of the unpruned input.
        """

    def list_owned(self, owned: AbstractSet[str], schema: Schema) -> AbstractSet[str]:
        """List the columns that come out in memory nobody else holds, given those that come in so."""
        return frozenset()

    @answer_calls
    def transform(self, frame: Frame) -> Frame:
        """Apply the step alone to a user's frame; strings come back plain, the index goes with the rows.

        Memory: columns the step does not touch are shared, strings are copied.
        """
        backend = infer_backend(frame)
        coded = backend.encode(frame)
        schema = backend.schema_of(coded, backend.classify(frame))
        result = self.apply(coded, schema, frozenset(self.output_schema(schema).names), backend)
        schema = self.output_schema(schema)
        output = backend.decode(backend.select(result, schema.names), schema=schema)
        output.index = frame.index.take(backend.positions(result))
        return output


class ColumnwiseTransform(Transform):
    """Base class of steps that make each column of itself alone."""

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        return set(outputs)
