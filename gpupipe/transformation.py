"""A fitted pipeline bound to data that holds certain columns: what is read, cast, transformed and put out."""

from __future__ import annotations

from collections.abc import Sequence

from gpupipe.backend import Backend, Column, Frame
from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import missing_column
from gpupipe.errors import ColumnNotFound, SchemaMismatch
from gpupipe.features import Features
from gpupipe.plan import Prefix
from gpupipe.schema import Schema
from gpupipe.transforms import Transform

__all__ = ["Transformation"]


class Transformation:
    """A fitted pipeline bound to data that holds certain columns.

    Args:
        steps, features: fitted.
        source: the schema of the data they were fitted on, labels marked.
        there: the data's own schema.
        with_target_only: leave out rows whose target is missing.
        predicting: features and kept columns only; steps that drop rows only in training are skipped.

    Raises:
        ColumnNotFound, SchemaMismatch: the data is not like the data the pipeline was fitted on.
    """

    def __init__(
        self,
        steps: Sequence[Transform],
        features: Features | None,
        source: Schema,
        there: Schema,
        *,
        with_target_only: bool = False,
        predicting: bool = False,
    ) -> None:
        wanted = None
        if features is not None:
            after = Prefix(steps, source, None, predicting=predicting).output_schema
            wanted = _wanted(features, after, source, there, predicting)
        self._prefix = Prefix(steps, source, wanted, predicting=predicting)
        self._seen = self._prefix.output_schema.select(self._prefix.wanted)
        self._features = features
        self._only_with_target = with_target_only and features is not None and features.target is not None
        self.schema = self._seen if features is None else features.output_schema(self._seen)
        self.reads = self._prefix.reads
        self.keeps_rows = self._prefix.keeps_rows and not self._only_with_target
        self._casts = _casts(source, there, self.reads)

    def columns(self, frame: Frame, backend: Backend) -> dict[str, Column]:
        """The output columns of one coded frame that holds `reads`."""
        return self._outputs(self._run(frame, backend), backend)

    def apply(self, frame: Frame, backend: Backend) -> Frame:
        """The output frame of one coded frame; its index says which rows it has."""
        seen = self._run(frame, backend)
        if self._features is None:
            return seen
        made = backend.frame(self._outputs(seen, backend), len(seen))
        made.index = seen.index
        return made

    def _run(self, frame: Frame, backend: Backend) -> Frame:
        # What else a user's frame holds must not meet the names the steps give.
        frame = backend.select(frame, self.reads)
        if self._casts:
            frame = backend.assign(
                frame, {n: _cast(backend.column(frame, n), d, n, backend) for n, d in self._casts.items()}
            )
        seen = self._prefix.run(frame, backend)
        if self._only_with_target:
            assert self._features is not None
            target = self._features.target
            if target is not None and target.is_in(self._seen):
                present = target.present(seen, self._seen, backend)
                seen = seen if present is None else backend.filter(seen, present)
        return seen

    def _outputs(self, seen: Frame, backend: Backend) -> dict[str, Column]:
        if self._features is None:
            return {name: backend.column(seen, name) for name in seen.columns}
        return self._features.columns(seen, self._seen, backend)


def _wanted(features: Features, after: Schema, source: Schema, there: Schema, predicting: bool) -> set[str]:
    """Features and kept columns, and those labels whose source columns are all in the data."""
    wanted = features.inputs | {name for name in features.keep if _is_there(after, name, source, there)}
    for label in (features.target, features.weight):
        if label is not None and not predicting:
            reads = label.reads(after)
            if all(_is_there(after, name, source, there) for name in reads):
                wanted |= set(reads)
    return wanted


def _is_there(after: Schema, name: str, source: Schema, there: Schema) -> bool:
    """Whether every source column that `name` is computed from is in the data."""
    after.require([name], "Features")
    return all(column in there for column in after[name].lineage if column in source)


def _casts(source: Schema, there: Schema, reads: Sequence[str]) -> dict[str, str]:
    """The columns stored as another type than in fit; raises where a column is missing or of another family."""
    casts = {}
    for name in reads:
        if name not in there:
            raise ColumnNotFound.among("the data", name, there.names)
        found, wanted = there[name].dtype, source[name].dtype
        if found == wanted:
            continue
        # A column in which every value is missing may come as float64; it is looked at again with its values.
        if found != "float64" and {"string", "timestamp"} & {found, wanted}:
            raise _another_type(name, found, wanted)
        casts[name] = wanted
    return casts


def _cast(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    missing = column.missing(backend.xp)
    if missing is not None and bool(missing.all()):
        return missing_column(dtype, len(column), backend.xp)
    if dtype in ("string", "timestamp"):
        raise _another_type(name, column.dtype, dtype)
    return cast_column(column, dtype, name, backend)


def _another_type(name: str, found: str, wanted: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"column {name!r}",
        "another type than in fit",
        got=found,
        expected=wanted,
        remedy=f"the column as {wanted} before it is given",
    )
