"""Row filters and samples."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

import numpy as np

from gpupipe.backend import Array, Backend, Frame
from gpupipe.backend.kernels import splitmix64
from gpupipe.errors import BadConfig
from gpupipe.expressions import parse
from gpupipe.expressions.evaluate import evaluate
from gpupipe.expressions.operands import truth
from gpupipe.schema import Schema
from gpupipe.support.validation import as_list, check_choice, check_names, check_number, check_seed
from gpupipe.transforms.transform import ColumnwiseTransform, Names, Transform

When: TypeAlias = Literal["train", "always"]
_WHEN = ("train", "always")
_SAMPLE = 1 << 32  # the stream of bits samples are drawn from; splits and shuffles of the same seed have others


class Filter(Transform):
    """Keep the rows for which an expression is true; where it is missing, the row goes.

    Args:
        expr: such as `"distance >= 200 and dep_delay < 600"`; no condition raises ExpressionError, at `output_schema`.
        when: `"train"` acts in `fit`, `transform` and every loader and is skipped when a loaded pipeline predicts;
            `"always"` acts there too, and predictions then have the surviving rows only.

    Memory: copies the kept rows of every column; nothing when all stay.

    Example:
        >>> import pandas as pd
        >>> Filter("distance >= 200").transform(pd.DataFrame({"distance": [100.0, 500.0, None]}))["distance"].tolist()
        [500.0]
    """

    changes_rows = True

    def __init__(self, expr: str, *, when: When = "train") -> None:
        parse(expr, "Filter")
        check_choice(self, _WHEN, when=when)
        self.expr, self.when = expr, when

    def output_schema(self, schema: Schema) -> Schema:
        expression = parse(self.expr, "Filter")
        expression.check_condition(schema)
        return schema.with_choice(expression.compares)

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        return {*outputs, *parse(self.expr, "Filter").reads}

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        expression = parse(self.expr, "Filter")
        columns = {name: backend.column(frame, name) for name in expression.reads}
        keep = truth(evaluate(expression, columns, backend, len(frame)), backend.xp)
        return backend.filter(backend.select(frame, [n for n in frame.columns if n in outputs]), keep)


class DropMissing(Transform):
    """Drop the rows in which a value is missing; raises ColumnNotFound, and BadConfig where no column is looked at.

    Args:
        columns: the columns that are checked; all by default, labels too, which then are all read.
        how: `"any"` drops a row where one of them is missing, `"all"` where every one is.
        when: as for `Filter`; by default a loaded pipeline predicts for every row.

    Memory: copies the kept rows of every column; nothing when all stay.

    Example:
        >>> import pandas as pd
        >>> DropMissing("x").transform(pd.DataFrame({"x": [1.0, None], "origin": [None, "JFK"]}))["x"].tolist()
        [1.0]
    """

    changes_rows = True

    def __init__(
        self, columns: Names | None = None, *, how: Literal["any", "all"] = "any", when: When = "train"
    ) -> None:
        check_names(self, None, empty=False, columns=columns)
        check_choice(self, ("any", "all"), how=how)
        check_choice(self, _WHEN, when=when)
        self.columns = None if columns is None else as_list(columns)
        self.how, self.when = how, when

    def output_schema(self, schema: Schema) -> Schema:
        names = self._looked_at(schema)
        if not names:
            expected, remedy = "at least one", "columns=None for all"
            raise BadConfig("DropMissing", "no column to look at", got=names, expected=expected, remedy=remedy)
        schema.require(names, "DropMissing")
        return schema

    def needs(self, outputs: AbstractSet[str], schema: Schema) -> set[str]:
        return {*outputs, *self._looked_at(schema)}

    def apply(self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend) -> Frame:
        xp, names = backend.xp, self._looked_at(schema)
        missing = [backend.column(frame, name).missing(xp) for name in names]
        masks = [mask for mask in missing if mask is not None]
        frame = backend.select(frame, [n for n in frame.columns if n in outputs])
        if not masks or (self.how == "all" and len(masks) < len(names)):
            return frame
        is_dropped = masks[0]
        for mask in masks[1:]:
            is_dropped = is_dropped | mask if self.how == "any" else is_dropped & mask
        return backend.filter(frame, ~is_dropped)

    def _looked_at(self, schema: Schema) -> list[str]:
        return schema.names if self.columns is None else self.columns


class Sample(ColumnwiseTransform):
    """Keep a random `fraction` in (0, 1] of the rows: each is drawn by the seed, of 64 bits, and its row id alone.

    The same rows are kept however the data is partitioned, on both backends and in every pass. A row's identity is its
    file and number there, or its number in a frame; rows that one row was joined into are kept or go together. Two
    samples of one seed keep the same rows. For `when` see `Filter`; a loaded pipeline predicts for all by default.

    Memory: 24 bytes per row while drawing; copies the kept rows of every column.

    Example:
        >>> import pandas as pd
        >>> Sample(0.5, seed=3).transform(pd.DataFrame({"x": range(6)}))["x"].tolist()
        [0, 2]
    """

    changes_rows = True

    def __init__(self, fraction: float, *, seed: int = 0, when: When = "train") -> None:
        check_number(self, "(0, 1]", fraction=fraction)
        check_seed(self, seed=seed)
        check_choice(self, _WHEN, when=when)
        self.fraction, self.seed, self.when = fraction, seed, when

    def output_schema(self, schema: Schema) -> Schema:
        return schema

    def apply(
        self, frame: Frame, schema: Schema, outputs: AbstractSet[str], backend: Backend, row_ids: Array | None = None
    ) -> Frame:
        """Return the drawn rows; `row_ids` are the ids of the rows that the index counts, by default its numbers."""
        rows = backend.positions(frame)
        seed = int(splitmix64(self.seed, np.array([_SAMPLE]))[0])
        bits = splitmix64(seed, rows if row_ids is None else row_ids[rows])
        keep = bits >> np.uint64(11) < np.uint64(np.round(self.fraction * 2**53))
        return backend.filter(frame, keep)
