"""Splits that keep groups whole: all rows of a group are in one part, which has its share of all rows or each class."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, Frame, select
from gpupipe.backend.kernels import hash_column, splitmix64
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig
from gpupipe.io.planning.partitions import Partition
from gpupipe.io.planning.row_filters import RandomSplit
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.table import Table
from gpupipe.support.origins import name_part
from gpupipe.support.text import format_count


@dataclass(frozen=True)
class GroupSplit(RandomSplit):
    """Split by listed groups: rows whose hash of column `by` is one of `groups`, ascending uint64; `digest` names them.

    `share` is the fraction of the rows that are in them.
    """

    groups: Any = field(default=None, repr=False, compare=False)
    digest: str = ""
    share: float = 0.0

    def name_part(self, drawn_from: str) -> str:
        return name_part(f"groups {self.seed} {self.by}", self.digest, outside=self.outside)

    def keep(self, frame: Frame, partition: Partition, backend: Backend) -> Array:
        xp = backend.xp
        hashes = hash_column(backend.column(frame, self.by or ""), 0, backend)
        groups = backend.to_device(self.groups)
        places = xp.minimum(xp.searchsorted(groups, hashes), len(groups) - 1)
        inside = groups[places] == hashes
        return ~inside if self.outside else inside


MOST_GROUPS = 1 << 16  # that folds share out by their rows; of more, chance makes folds even


def draw_group_parts(
    table: Table, shares: Sequence[float], seed: int, by: str, stratify: str | None, max_classes: int, where: str
) -> list[GroupSplit] | None:
    """Return a split per part, in one pass that counts the rows of each group by class; without `stratify` all alike.

    None where more than `MOST_GROUPS` are not stratified.

    Groups go one after the other, those that weigh most in their classes first and equal ones in an order drawn by
    `seed`, to the part where they move the shares of their classes least. The sum of (rows - share x total)^2 / (share
    x total^2) over parts and classes is what that keeps low: scikit-learn's StratifiedGroupKFold, whose measure is a
    standard deviation, and which has parts of one size alone.
    """
    backend = get_executor().resolve(table.backend)
    cells = list(run_partitions(partial(_count_cells, by, stratify, backend), table, backend, where))
    all_groups, all_classes, all_counts = (np.concatenate(each) for each in zip(*cells, strict=True))
    groups, of_group = np.unique(all_groups, return_inverse=True)
    classes, of_class = np.unique(all_classes, return_inverse=True)
    if stratify is None and len(groups) > MOST_GROUPS:
        return None
    if stratify is not None and len(classes) > max_classes:
        raise too_many_classes(stratify, max_classes)
    if len(groups) < len(shares):
        problem = f"column {by!r} has {format_count(len(groups), 'value')}, and each part needs one of its own"
        expected, where = "as many values as parts", f"{where}(by={by!r})"
        raise BadConfig(where, problem, got=len(shares), expected=expected, remedy="fewer parts")
    keys, places = np.unique(of_group * len(classes) + of_class, return_inverse=True)
    counts = np.bincount(places, weights=all_counts)
    group, kind = np.divmod(keys, len(classes))
    totals = np.bincount(kind, weights=counts)
    pulls = counts / totals[kind] ** 2
    weights = np.bincount(group, weights=counts * pulls)
    ends = np.searchsorted(group, np.arange(len(groups) + 1))
    part_of, parts = np.zeros(len(groups), dtype=np.int64), np.array(shares)
    rows = np.zeros((len(parts), len(classes)))
    for number in np.lexsort((splitmix64(seed, groups), -weights)):
        cell = slice(ends[number], ends[number + 1])
        costs = (2 * rows[:, kind[cell]] + counts[cell]) @ pulls[cell] / parts
        part_of[number] = part = costs.argmin()
        rows[part, kind[cell]] += counts[cell]
    members = [groups[part_of == number] for number in range(len(parts))]
    if not all(map(len, members)):
        problem, expected = "a part has no group: one group weighs more than a part's share", "many small groups"
        raise BadConfig(where, problem, got=len(groups), expected=expected, remedy="fewer parts, or no stratify=")
    sums = rows.sum(1) / rows.sum()
    digests = [hashlib.sha256(each.tobytes()).hexdigest() for each in members]
    return [
        GroupSplit(seed, 0, None, by, groups=each, digest=digest, share=float(share))
        for each, digest, share in zip(members, digests, sums, strict=True)
    ]


def _count_cells(by: str, stratify: str | None, backend_name: str, part: Table) -> tuple[Any, Any, Any]:
    """Count the rows of one partition by group and class: for each cell both hashes and the count, on the host."""
    backend = select(backend_name)
    frame = part.read(part.partitions[0], [by] if stratify is None else [by, stratify], backend)
    keys = hash_column(backend.column(frame, by), 0, backend)
    kinds = keys * 0 if stratify is None else hash_column(backend.column(frame, stratify), 0, backend)
    (groups, of_group), (classes, of_class) = (backend.xp.unique(each, return_inverse=True) for each in (keys, kinds))
    keys, counts = backend.xp.unique(of_group * len(classes) + of_class, return_counts=True)
    places, kinds = (keys // len(classes), keys % len(classes)) if len(classes) else (keys, keys)
    return backend.to_host(groups[places]), backend.to_host(classes[kinds]), backend.to_host(counts)


def too_many_classes(column: str, most: int) -> BadConfig:
    """Build the error for a column of too many values to stratify by."""
    problem = f"it has more than {most:,} values, of which most parts would have no row"
    remedy = f"by={column!r} to keep equal values together, or a column of coarser classes"
    return BadConfig(f"split(stratify={column!r})", problem, expected="a column of classes", remedy=remedy)
