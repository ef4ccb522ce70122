"""Target summary of a partition: the target by category and fold, for steps that learn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import make_dictionary
from gpupipe.errors import BadConfig, BadData
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import LARGEST_SQUARED, floats, num_rows
from gpupipe.preprocessing.summaries.target_stats import ClassCounts, MeanStats, encode_values
from gpupipe.schema import INTEGERS

__all__ = ["TargetSummary"]

# Parts wait to be merged until together they have this many categories: merging a thousand small ones one by one would
# go through the large one they make a thousand times.
_WAITING = 1 << 18

_Parts = tuple[Any, ...]  # of MeanStats or of ClassCounts, one kind


@dataclass(frozen=True)
class TargetSummary:
    """Target statistics by category and fold, for some columns.

    Args:
        names, dtypes: of the columns.
        targets: names of the targets.
        columns: for each column, cells that wait to be merged.
        whole: the same for all rows, as the missing ones of a column without a category.
        is_binary: whether each value of the target is a boolean, or the integer 0 or 1.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    targets: tuple[str, ...]
    columns: tuple[_Parts, ...]
    whole: _Parts
    is_binary: bool

    @classmethod
    def of(
        cls, columns: Columns, target: Columns, folds: Array, num_folds: int, kind: str, where: str, backend: Backend
    ) -> Self:
        """Summarize one partition.

        Args:
            columns: the categories.
            target: by name, without missing values.
            folds: the fold of each row, n int64.
            num_folds: how many there are.
            kind: `"auto"` (strings and booleans are classes), `"continuous"`, or anything else for classes.
            where: the step, for messages.
            backend: where the columns live.

        Raises:
            BadConfig: the target is not of that kind.
            BadData: a number is infinite, missing or beyond 1e145.

        Memory: three temporaries of 8 bytes a row; a few numbers per category and fold go to the host.
        """
        xp = backend.xp
        dtypes = {item.dtype for item in target.values()}
        if kind == "auto" and len(target) > 1 and dtypes == {"bool"}:
            kind = "continuous"  # the mean of a condition is how often it holds
        if (kind == "auto" and dtypes & {"string", "bool"}) or kind not in ("auto", "continuous"):
            if len(target) > 1:
                raise _unfit(where, target, "several targets have to be numbers", "one target, or int(...) of each")
            (labels,) = target.values()
            made: list[Any] = [
                ClassCounts.of(*codes, folds, num_folds, labels, backend) for codes in _codes(columns, backend)
            ]
        else:
            if dtypes & {"string", "timestamp"}:
                raise _unfit(where, target, "it is no number", "target_type='auto' for text, or the time since another")
            values = [_check_values(floats(item, xp), name, where, backend) for name, item in target.items()]
            made = [MeanStats.of(*codes, folds, num_folds, values, backend) for codes in _codes(columns, backend)]
        return cls(
            tuple(columns),
            tuple(item.dtype for item in columns.values()),
            tuple(target),
            tuple((cells,) for cells in made[:-1]),
            (made[-1],),
            all(_is_binary(item, backend) for item in target.values()),
        )

    def __add__(self, other: Self) -> Self:
        pairs = zip((*self.columns, self.whole), (*other.columns, other.whole), strict=True)
        *columns, whole = (_waiting((*mine, *theirs)) for mine, theirs in pairs)
        both = self.is_binary and other.is_binary
        return replace(self, columns=tuple(columns), whole=whole, is_binary=both)

    def merged(self) -> tuple[list[Any], Any]:
        """Return the statistics of each column, and of all rows, as `MeanStats` or `ClassCounts`."""
        *columns, whole = (_one(parts) for parts in (*self.columns, self.whole))
        return columns, whole


def _codes(columns: Columns, backend: Backend) -> Sequence[tuple[Array, Any]]:
    """Return codes and dictionary of each column, and of one without a category."""
    none = backend.xp.zeros(num_rows(columns), dtype="int64"), make_dictionary([], "string")
    return [*(encode_values(column, backend) for column in columns.values()), none]


def _waiting(parts: _Parts) -> _Parts:
    sizes = [len(part.categories) + 64 for part in parts]
    return parts if sum(sizes) <= max(_WAITING, 2 * max(sizes)) else (_one(parts),)


def _one(parts: _Parts) -> Any:
    return parts[0] if len(parts) == 1 else type(parts[0]).merged(parts)


def _check_values(values: Array, name: str, where: str, backend: Backend) -> Array:
    xp = backend.xp
    bad = int(backend.to_host((~(xp.abs(values) <= LARGEST_SQUARED)).sum()[None])[0])
    if bad:
        raise BadData(
            f"{where}, target {name!r}",
            f"{bad:,} values are missing, infinite or beyond {LARGEST_SQUARED:g}",
            expected="finite numbers",
            remedy="a Filter before, or another unit",
        )
    return values


def _is_binary(column: Column, backend: Backend) -> bool:
    if column.dtype not in INTEGERS:
        return column.dtype == "bool"
    return bool(backend.to_host(((column.data == 0) | (column.data == 1)).all()[None])[0])


def _unfit(where: str, target: Columns, problem: str, remedy: str) -> BadConfig:
    return BadConfig(
        where,
        problem,
        got={name: column.dtype for name, column in target.items()},
        expected="a number per row and target, or one target of classes",
        remedy=remedy,
    )
