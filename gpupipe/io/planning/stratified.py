"""Stratified splits: parts with the same fraction of every class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

import numpy as np

from gpupipe.backend import Array, select
from gpupipe.backend.hashing import splitmix64
from gpupipe.cluster import get_executor
from gpupipe.errors import BadConfig
from gpupipe.io.planning.row_filters import StratifiedSplit, draw_in_class
from gpupipe.io.planning.table import Table
from gpupipe.io.run import run_partitions

__all__ = ["stratify_parts"]

_BINS = 1 << 12  # a first look counts rows by class and the upper 12 bits, a second one sorts those in the bins to cut
_NEVER = 1 << 63  # beyond all bits
_MOST_CLASSES = 10_000  # whose bins take 320 MB

_Table: TypeAlias = dict[int, Any]  # by class: counts of its bins, or the bits of some of its rows


def stratify_parts(dataset: Table, column: str, shares: Sequence[float], seed: int) -> list[StratifiedSplit]:
    """Return a random split per part, each with its exact fraction of the rows of every class.

    The rows of a class are put in order by bits drawn by `seed` and a row's identity, and cut where the shares are.

    Raises:
        BadConfig: there are more than 10,000 classes.

    Memory: 32 KiB per class; two passes over the column.
    """
    backend = get_executor().resolve(dataset.backend)
    own = int(splitmix64(seed, np.array([dataset.query.num_draws]))[0])
    nothing: _Table = {}
    counted = nothing
    for table in run_partitions(partial(_counts, column, own, backend), dataset, backend, "split"):
        counted = _add_tables(counted, table)
        _check_few(len(counted), column)
    ends = {key: np.cumsum(counts) for key, counts in sorted(counted.items())}
    upto = np.cumsum(shares)[:-1]
    # Where a share is no whole number of rows, chance rounds it, for each class anew: rounded all alike, classes of few
    # rows would all miss the same part.
    chances = (splitmix64(own, np.array(list(ends), dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53
    # A part begins with the row of this rank, which lies in this bin: behind the last one where the part has no row.
    ranks = {
        key: np.floor(upto * below[-1] + chance).astype(np.int64)
        for (key, below), chance in zip(ends.items(), chances, strict=True)
    }
    bins = {key: np.searchsorted(below, ranks[key], side="right") for key, below in ends.items()}
    looked = run_partitions(partial(_bits, column, own, bins, backend), dataset, backend, "split")
    found = reduce(_together, looked, nothing)
    edges = [[0, *_cuts(ranks[key], bins[key], below, found[key]), _NEVER] for key, below in ends.items()]
    whole = [0, *(int(cut * 2**53) << 10 for cut in upto), _NEVER]
    return [
        StratifiedSplit(
            own,
            whole[part],
            whole[part + 1],
            column,
            classes=tuple(ends),
            bounds=tuple((edge[part], edge[part + 1]) for edge in edges),
        )
        for part in range(len(shares))
    ]


def _cuts(ranks: Any, bins: Any, below: Any, bits: Any) -> list[int]:
    """Return the bits at these ranks in a class; `below` counts its rows up to each bin, `bits` are those in `bins`."""
    ordered, cuts = np.sort(bits), []
    for rank, at in zip(ranks.tolist(), bins.tolist(), strict=True):
        if at == _BINS:
            cuts.append(_NEVER)
        else:
            first = int(np.searchsorted(ordered, np.uint64(at << 51)))
            cuts.append(int(ordered[first + rank - (int(below[at - 1]) if at else 0)]))
    return cuts


def _draw(column: str, seed: int, backend_name: str, part: Table) -> tuple[Any, Array, Array, Array]:
    """Return the classes of one partition, on the host, and each row's class index, bits and bin."""
    backend, partition = select(backend_name), part.partitions[0]
    frame = part.read(partition, [column], backend)
    row_ids = partition.row_ids(backend.xp)
    of_class, bits = draw_in_class(backend.column(frame, column), seed, row_ids, frame, backend)
    classes, place = backend.xp.unique(of_class, return_inverse=True)
    return backend.to_host(classes), place, bits, (bits >> np.uint64(51)).astype("int64")


def _counts(column: str, seed: int, backend_name: str, part: Table) -> _Table:
    """Count the rows of one partition by class and bin."""
    classes, place, _, upper = _draw(column, seed, backend_name, part)
    backend = select(backend_name)
    _check_few(len(classes), column)
    table = backend.xp.bincount(place * _BINS + upper, minlength=len(classes) * _BINS)
    return dict(zip(classes.tolist(), backend.to_host(table).reshape(-1, _BINS), strict=True))


def _bits(column: str, seed: int, bins: Mapping[int, Any], backend_name: str, part: Table) -> _Table:
    """Return the bits of the rows of one partition in bins to cut, by class."""
    classes, place, bits, upper = _draw(column, seed, backend_name, part)
    backend, keys = select(backend_name), classes.tolist()
    wanted = np.zeros((len(keys), _BINS + 1), dtype=bool)
    for number, key in enumerate(keys):
        wanted[number, bins[key]] = True
    here = backend.to_device(wanted)[place, upper]
    chosen, of_class = backend.to_host(bits[here]), backend.to_host(place[here])
    return {key: chosen[of_class == number] for number, key in enumerate(keys)}


def _check_few(num_classes: int, column: str) -> None:
    if num_classes > _MOST_CLASSES:
        raise BadConfig(
            f"split(stratify={column!r})",
            f"it has more than {_MOST_CLASSES:,} values, of which most parts would have no row",
            expected="a column of classes",
            remedy=f"by={column!r} to keep equal values together, or a column of coarser classes",
        )


def _add_tables(left: _Table, right: _Table) -> _Table:
    return left | {key: left[key] + counts if key in left else counts for key, counts in right.items()}


def _together(left: _Table, right: _Table) -> _Table:
    return left | {key: np.concatenate([left[key], bits]) if key in left else bits for key, bits in right.items()}
