"""What a Dataset is split into; parts are predicates, so that they cost nothing until they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from gpupipe.backend import select
from gpupipe.backend.columns import require_comparable
from gpupipe.io.planning.query import EVERYTHING
from gpupipe.io.planning.row_filters import Draw, Selection
from gpupipe.io.planning.splits import check_call, check_complete, draw_parts, folds, ranges, shares_of
from gpupipe.io.planning.stratified import stratified_parts
from gpupipe.support.validation import check_seed

if TYPE_CHECKING:
    from gpupipe.io.dataset import Dataset

__all__ = ["Splitting"]


class Splitting:
    """The part of `Dataset` that gives parts."""

    def split(
        self,
        fraction: float | Sequence[float] | None = None,
        *,
        by: str | None = None,
        at: Any = None,
        seed: int = 0,
        stratify: str | None = None,
        gap: Any = None,
    ) -> tuple[Dataset, ...]:
        """Parts that together have every row once: cut at values of a column, or drawn at random.

        Args:
            fraction: the share of the first of two parts, or the share of each part. Every row is drawn by `seed` and
                its identity alone (or by the value of `by`), so the parts do not depend on partitioning or backend.
            by: the column that is cut; with `fraction`, the column whose equal values stay together (missing ones too).
            at: the value where the second part begins (left `<`, right `>=`), or an ascending list for more parts.
                Times are text in ISO format, dates or datetimes; those without an offset are in UTC, also where the
                column has a time zone.
            seed: an integer of at most 64 bits; only for `fraction`.
            stratify: a column of each of whose values (missing is one; 10,000 at most) each part has its share, to a
                row.
            gap: with `at`, how wide a stretch before each cut belongs to no part, such as what a feature looks ahead: a
                number, or for times a timedelta or text such as `"7 days"`.

        Raises:
            BadData: `by` is missing in some rows; says in how many.
            BadConfig: not one of `at` and `fraction`, or values that make no sense.
            ColumnNotFound: no such column.

        Memory: none; where the files do not tell that `by` is never missing, one pass over that column. `stratify`
            takes two passes over its column, and 32 KiB per value.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"month": [1, 9, 10, 12], "late": [True, False, True, False]}))
            >>> early, late = flights.split(by="month", at=10)
            >>> len(early), late.compute()["month"].tolist()
            (2, [10, 12])
            >>> [part.compute()["month"].tolist() for part in flights.split(by="month", at=12, gap=3)]
            [[1], [12]]
            >>> [part.compute()["late"].tolist() for part in flights.split(fraction=0.5, stratify="late")]
            [[False, True], [True, False]]
        """
        dataset = cast("Dataset", self)
        check_call(by, at, fraction, stratify, gap)
        check_seed("split", seed=seed)
        for name in (by, stratify):
            if name is not None:
                dataset.require([name], "split")
                require_comparable(dataset.schema.select(name), "split")
        parts: Sequence[Selection]
        if at is not None:
            item = dataset.schema[by or ""]
            parts = ranges(item, at, gap)
            check_complete(item, _count_missing(dataset, by or ""))
        else:
            assert fraction is not None, "check_call looks at that"
            shares = shares_of(fraction)
            if stratify is not None:
                parts = stratified_parts(dataset, stratify, shares, seed)
            else:
                parts = draw_parts(shares, seed, dataset.query.num_draws, by)
        return tuple(replace(dataset, query=dataset.query.then(part)) for part in parts)

    def kfold(
        self, n_splits: int = 5, *, by: str | None = None, seed: int = 0, stratify: str | None = None
    ) -> list[tuple[Dataset, Dataset]]:
        """`n_splits` pairs of a dataset to train on and one to validate on; each row is in one of the latter.

        Args:
            n_splits: at least 2.
            by: a column whose equal values stay together.
            seed: an integer of at most 64 bits; rows (or the values of `by`) are drawn as by `split`, so that sizes are
                nearly equal.
            stratify: a column of each of whose values each fold has its share, to a row.

        Raises:
            BadConfig: fewer than two folds, or both `by` and `stratify`.
            ColumnNotFound: no such column.

        Memory: none; two passes over the column for `stratify`.

        Example:
            >>> import pandas as pd, gpupipe as gp
            >>> flights = gp.from_frame(pd.DataFrame({"flight": range(6), "tail": [1, 2, 3, 1, 2, 3]}))
            >>> [sorted(set(valid.compute()["tail"])) for train, valid in flights.kfold(2, by="tail", seed=1)]
            [[2, 3], [1]]
        """
        dataset = cast("Dataset", self)
        shares = folds(n_splits)
        check_call(by, None, shares, stratify, None)
        check_seed("kfold", seed=seed)
        for name in (by, stratify):
            if name is not None:
                dataset.require([name], "kfold")
                require_comparable(dataset.schema.select(name), "kfold")
        drawn: Sequence[Draw] = (
            draw_parts(shares, seed, dataset.query.num_draws, by)
            if stratify is None
            else stratified_parts(dataset, stratify, shares, seed)
        )
        sides = [(replace(part, outside=True), part) for part in drawn]
        return [
            (replace(dataset, query=dataset.query.then(a)), replace(dataset, query=dataset.query.then(b)))
            for a, b in sides
        ]


def _count_missing(dataset: Dataset, name: str) -> int:
    """Missing values of a column: from the files' footers, or else by one pass over it."""
    if not dataset.schema[name].nullable:
        return 0
    known = dataset.source.null_count(name) if dataset.query == EVERYTHING else None
    if known is not None:
        return known
    backend, total = select(dataset.backend), 0
    for partition in dataset.partitions:
        missing = backend.column(dataset.read(partition, [name], backend), name).missing(backend.xp)
        total += 0 if missing is None else int(missing.sum())
    return total
