"""Window warnings: of features by windows that see fewer rows, or more, than one would think."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial

from gpupipe.backend import Backend, Frame, select
from gpupipe.cluster.executor import get_executor
from gpupipe.io import Dataset, run_partitions
from gpupipe.io.relational.side_columns import SideColumns
from gpupipe.pipeline.stretches import Stretches, find_stretches, is_longer
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema, shorten_list
from gpupipe.support.text import format_count
from gpupipe.transforms import WholeTableTransform

_log = logging.getLogger("gpupipe")
WindowSteps = Mapping[int, tuple[WholeTableTransform, Schema, list[str]]]
"""By its position each window step whose columns are wanted, the schema before it, and these columns."""
_FEWEST_ROWS = 5  # of a key whose end is compared with that of the others
_MOST_WITHOUT_PAST = 0.1  # of the rows, those of new keys
_FEWEST_TOGETHER = 0.5  # of the keys, those whose rows end at one time
_FIRST, _LAST, _COUNT = "first of history", "last of history", "count of history"
_GAP_DTYPES = (*INTEGERS, "timestamp")  # types of which a gap between two values tells rows that are not there


def list_orders(steps: WindowSteps, source: Schema) -> list[str]:
    """List the columns of the source by whose values windows order rows."""
    orders = {step.order[0]: schema for step, schema, _ in steps.values() if step.order}
    kinds = (*INTEGERS, *FLOATS, "timestamp")
    return [
        name
        for name, schema in orders.items()
        if name in source and source[name].dtype in kinds and schema[name] == source[name]
    ]


def find_ends(dataset: Dataset, names: Sequence[str], backend: str) -> dict[str, tuple[float, float]]:
    """Find the least and the greatest value of columns of numbers and times, those in microseconds; in one pass."""
    ends: dict[str, tuple[float, float]] = {}
    with closing(run_partitions(partial(_find_part_ends, names, backend), dataset, backend, "windows")) as parts:
        for part in parts:
            for name, (low, high) in part.items():
                ends[name] = min(low, ends.get(name, (low, high))[0]), max(high, ends.get(name, (low, high))[1])
    return ends


def _find_part_ends(names: Sequence[str], backend_name: str, part: Dataset) -> dict[str, tuple[float, float]]:
    backend, (partition,) = select(backend_name), part.partitions
    return find_frame_ends(part.read(partition, names, backend), names, backend)


def find_frame_ends(frame: Frame, names: Sequence[str], backend: Backend) -> dict[str, tuple[float, float]]:
    """Find the least and the greatest value of columns of a coded frame, of those that have values."""
    ends: dict[str, tuple[float, float]] = {}
    for name in names:
        column = backend.column(frame, name)
        missing = column.missing(backend.xp)
        values = column.data if missing is None else column.data[~missing]
        if len(values):
            ends[name] = values.min().item(), values.max().item()
    return ends


def warn_of_later_rows(
    steps: WindowSteps, fit_ends: Mapping[str, tuple[float, float]], ends: Mapping[str, tuple[float, float]]
) -> bool:
    """Warn of windows that see rows later than all of the fit, whose rows they would see in `history=`."""
    later = {name for name, (low, _) in ends.items() if name in fit_ends and low > fit_ends[name][1]}
    blind = [step.class_name for step, *_ in steps.values() if step.order and step.order[0] in later]
    if blind:
        _log.warning(
            "%s: all rows of the data are after those of the fit, by %s, and see none of them; history= takes the rows "
            "before the data",
            shorten_list(dict.fromkeys(blind)),
            shorten_list(sorted(later)),
        )
    return bool(blind)


def warn_of_cuts(steps: WindowSteps, dataset: Dataset) -> bool:
    """Warn of window steps that look at a part of a table without the rows before it."""
    blind = [step.class_name for step, *_ in steps.values() if dataset.cuts_history(step.keys)]
    if blind:
        _log.warning(
            "%s: a split part of the data, whose rows do not see those of the other parts; give all of it, and the "
            "part as a condition, fit(data, rows=\"date < '2024-06-01'\"), or the rows before it as history=",
            shorten_list(dict.fromkeys(blind)),
        )
    return bool(blind)


def warn_of_overlap(
    steps: WindowSteps,
    history: Dataset,
    data: Dataset,
    tables: tuple[Dataset, Dataset],
    fit_gaps: Mapping[str, float],
) -> None:
    """Warn of rows of the history whose key and time rows of the data have, too: they may be the same rows.

    `tables` are both as they are given, whose times are read without any other column; `fit_gaps` are the longest of
    the rows of the fit.
    """
    for keys, order in dict.fromkeys(
        (tuple(step.keys), tuple(step.order)) for step, *_ in steps.values() if step.order
    ):
        names, time = [*dict.fromkeys((*keys, *order))], order[0]
        if not {*names} <= {*data.schema.names}:
            continue  # computed by earlier steps
        past, start = _find_past(*tables, time)
        if past is not None and past.ends[1] < start:
            if not _warn_of_hole(past, start, fit_gaps.get(time), tables[0].schema[time]) and keys:
                _warn_of_late_keys(history, data, keys, time)
            continue
        # The data are the fewer rows: these are hashed, and the history is only looked up.
        rows = data.select(names).deduplicate(names)
        if num_shared := len(history.select(names).join(rows, on=names, how="inner")):
            _log.warning(
                "history= overlaps the data: %s of it have the %s of rows there, whose windows see their values; "
                "history.filter(...) leaves those out",
                format_count(num_shared, "row"),
                shorten_list(names),
            )


def warn_of_copies(history: Dataset) -> None:
    """Warn of rows that a history has twice."""
    names = [item.name for item in history.schema if item.dtype in (*INTEGERS, *FLOATS, "bool", "string", "timestamp")]
    if num_copies := len(history) - len(history.select(names).deduplicate()):
        _log.warning(
            "history= has %s again, and windows see both; history.deduplicate() leaves them out",
            format_count(num_copies, "row"),
        )


def warn_of_no_past(
    steps: WindowSteps,
    side_columns: Mapping[int, SideColumns],
    data: Dataset,
    *,
    has_history: bool,
) -> None:
    """Warn of columns of windows that have no value in any row of `data`; of a tenth where there is a history.

    `side_columns` are their values, by position.
    """
    names_by_step = {position: list(names) for position, (*_, names) in steps.items()}
    if not names_by_step:
        return
    num_rows, num_missing = Counter[int](), Counter[tuple[int, str]]()
    backend = get_executor().resolve(data.backend)
    count = partial(_count_gaps, side_columns, names_by_step, backend)
    with closing(run_partitions(count, data, backend, "windows")) as parts:
        for rows, gaps in parts:
            num_rows.update(rows)
            num_missing.update(gaps)
            if not has_history and all(num_missing[key] < num_rows[key[0]] for key in gaps):
                return
    for position, names in names_by_step.items():
        most = _MOST_WITHOUT_PAST * num_rows[position] if has_history else num_rows[position]
        blind = [name for name in names if num_missing[position, name] >= most]
        if blind and num_rows[position]:
            step, least = steps[position][0], min(num_missing[position, name] for name in blind)
            warn_of_gaps(step, blind, least, num_rows[position], has_history=has_history)


def _count_gaps(
    side_columns: Mapping[int, SideColumns],
    names_by_step: Mapping[int, Sequence[str]],
    backend_name: str,
    part: Dataset,
) -> tuple[Counter[int], Counter[tuple[int, str]]]:
    """Count by window step the rows of a partition that it has seen, and by column those without a value."""
    num_rows, num_missing = Counter[int](), Counter[tuple[int, str]]()
    backend, (partition,) = select(backend_name), part.partitions
    positions = backend.positions(part.read(partition, [], backend))
    for step, names in names_by_step.items():
        ids = side_columns[step].keep(partition.row_ids(backend.xp)[positions], backend)
        num_rows[step] = len(ids)
        columns = side_columns[step].columns(names, ids, backend) if len(ids) else {}
        for name in names:
            missing = columns[name].missing(backend.xp) if name in columns else None
            num_missing[step, name] = 0 if missing is None else int(missing.sum())
    return num_rows, num_missing


def warn_of_gaps(
    step: WholeTableTransform, names: Sequence[str], num_missing: int, num_rows: int, *, has_history: bool
) -> None:
    """Warn of columns of a window step that have no value in `num_missing` rows."""
    if has_history:
        counts = f"{num_missing:,} of {num_rows:,} rows of the data no value"
        _log.warning(
            "history= gives %s of %s: the %s there are others, the times later, or the values missing",
            counts if num_missing < num_rows else "no row of the data a value",
            shorten_list(names),
            shorten_list(step.keys) or "rows",
        )
    else:
        _log.warning(
            "no row of the data has a value of %s: %s sees the rows that are given alone; history= takes those before "
            "them, or all are given, and these by rows= as a condition",
            shorten_list(names),
            step.class_name,
        )


def _find_past(history: Dataset, data: Dataset, order: str) -> tuple[Stretches | None, float]:
    """Find the values of the order in the history, and the first one of the data; None where one has no such values."""
    if any(order not in table.schema or table.schema[order].dtype not in _GAP_DTYPES for table in (history, data)):
        return None, 0.0
    past = find_stretches(history, [order], get_executor().resolve(history.backend))
    ends = find_ends(data, [order], get_executor().resolve(data.backend))
    return (past[order], ends[order][0]) if past and ends else (None, 0.0)


def _warn_of_hole(past: Stretches, start: float, fit_gap: float | None, order: Field) -> bool:
    """Warn where more time lies between the history and the data than anywhere in the rows of the fit and the history.

    After a fit of days, of which the longest gap is a weekend, the history ends on Thursday and the data is Monday's.
    Where no gap of a fit is known, a history counts that is twice as long as the hole.
    """
    (first, last), gap = past.ends, past.longest_gap
    hole = start - last
    if fit_gap is None and (gap is None or last - first < 2 * hole):
        return False
    if is_hole := is_longer(hole, max(fit_gap or 0, gap or 0)):
        _log.warning(
            "history= ends %s before the data, by %r, and has no gap as long: windows take its last rows for those "
            "just before the data; the rows between belong to history=, too",
            timedelta(microseconds=hole) if order.dtype == "timestamp" else f"{hole:g}",
            order.name,
        )
    return is_hole


def _warn_of_late_keys(history: Dataset, data: Dataset, keys: Sequence[str], order: str) -> None:
    """Warn of keys of the data whose history ends long before that of most others, which all end together.

    Long is three times what lies between two rows of such a key. Of stores with a row a day, until May 9 those of a
    and b, until May 2 those of c: c ends 7 days before the others. Those of customers end at any time: nothing is said.
    """
    ends = history.group_by(keys).agg(**{_FIRST: (order, "min"), _LAST: (order, "max"), _COUNT: (order, "count")})
    shared = ends.join(data.select(keys).deduplicate(keys), on=keys, how="inner").to_pandas()
    first, last, count = (shared[name] for name in (_FIRST, _LAST, _COUNT))
    behind = last.max() - last
    is_late = (count >= _FEWEST_ROWS) & (behind > (last - first) / (count - 1) * 3)
    if not is_late.any() or (last == last.max()).mean() < _FEWEST_TOGETHER:
        return
    example = shared[is_late].iloc[0]
    _log.warning(
        "history= ends for %d of %s up to %s before it ends for the others, by %r, as for %s: their windows take its "
        "last rows for those just before the data; the rows between belong to history=, too",
        is_late.sum(),
        format_count(len(shared), "key"),
        behind[is_late].max(),
        order,
        ", ".join(f"{key} {example[key]}" for key in keys),
    )
