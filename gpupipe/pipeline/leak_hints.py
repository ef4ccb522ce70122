"""Leak hints: columns that alone tell the target in the first rows of a table, by values, order, gaps or elements."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.columns import floats, gather
from gpupipe.backend.kernels import sort_unique
from gpupipe.io.description.column_description import looks_like_id
from gpupipe.io.description.column_summary import are_whole
from gpupipe.schema import FLOATS, INTEGERS
from gpupipe.support.text import format_count
from gpupipe.support.text_kinds import parse_amounts

_ROWS_EACH = 40  # of a value or a class, where there are few
_LEAST_ROWS = 20  # that show whether values occur twice
_LEAST_GAPS = 5  # rows without a value, and with one, that show whether gaps tell the target
_MANY_ROWS = 200  # that show whether classes are ranges of a number
_HEAD = slice(_MANY_ROWS)  # rows that show nearly always that a column does not tell the target
_FEWEST_RANGES = 4  # of a target in fewer digits
_LEAST_DISTINCT = 0.9  # of pairs of a number and the target: a logarithm in few digits has the same value for several
_MOST_EXCEPTIONS, _MOST_OF_OTHERS = 0.01, 0.05  # of the rows, and of those that are not of the largest class
_SLACK = 2  # changes that few rows may show by chance
_WHERE_KNOWN = "{}: is it known before that is?"
_LINEAR = 1 - 1e-9  # the correlation of a column with what is computed from it


def list_hints(columns: Mapping[str, Column], target: Column, label: str, backend: Backend) -> dict[str, str]:
    """Say of the first rows' columns, by name, how they alone tell the target, called `label`, where they do."""
    hints, rows = dict[str, str](), _choose_rows(target, backend)
    for name, column in columns.items():
        if column.elements is None:
            hint = find_hint(name, column, target, backend, rows) if len(list_present(column, backend)) else ""
        else:
            is_of_ids = column.elements.dtype in ("string", *INTEGERS)
            hint = find_element_hint(column, target, backend) if is_of_ids else ""
        if hint:
            hints[name] = hint.format(repr(label), f"in the first {len(column):,} rows", repr(name))
    return hints


def find_hint(
    name: str, column: Column, target: Column | None, backend: Backend, few_rows: Array | slice = _HEAD
) -> str:
    """Say how a column alone tells the target, as a format of its name, the rows' and the column's; else nothing.

    The order of ids says nothing where rows are in it: a trend, and rows that are sorted by the target, follow it.
    `few_rows` are looked at first.
    """
    if target is None:
        return ""
    if gaps := _decides_by_gaps(column, target, backend):
        return f"{gaps} {_WHERE_KNOWN}"
    if not _may_decide(column, target, few_rows, backend.xp):
        return ""
    values = list_present(column, backend)
    distinct = sort_unique(values, backend.xp)
    is_id = is_row_id(name, column, distinct, len(values), backend)
    has_order = _ROWS_EACH * len(distinct) > len(column) and not (is_id and _is_sorted(values))
    if _decides(column, target, backend) or (has_order and _decides_by_order(column, target, backend)):
        return f"it alone tells {{}} {_WHERE_KNOWN}"
    # The other way round: a score of 40, 55, 90 tells its grade, "D", "C", "A", by its order.
    if not is_id and target.dtype in (*INTEGERS, *FLOATS) and _decides_by_order(target, column, backend):
        return f"each of its values is a range of {{}} {_WHERE_KNOWN}"
    if _decides_by_groups(column, target, backend):
        return "rows alike in it have one {0} {1}: split(by={2}, fraction=0.8) keeps them together"
    if num_exceptions := _count_exceptions(column, target, backend, has_order=not is_id):
        return f"it alone tells {{}} but for {format_count(num_exceptions, 'row')} {_WHERE_KNOWN}"
    return ""


def find_element_hint(column: Column, target: Column | None, backend: Backend) -> str:
    """Say which element is in lists of one class alone, and in half of its rows or more, or that all are; else nothing.

    Of the sessions that buy, the list of pages has "paid", and of no other. Of orders by their category the items are
    of one each: 300 items in 3,000 rows, where chance would show most of them in rows of several.
    """
    elements = column.elements
    if target is None or elements is None:
        return ""
    xp, unknown = backend.xp, target.missing(backend.xp)
    rows = xp.searchsorted(column.data[1:], xp.arange(len(elements)), side="right")
    absent = elements.missing(xp)
    is_used = xp.ones(len(rows), dtype=bool) if absent is None else ~absent
    is_used = is_used if unknown is None else is_used & ~unknown[rows]
    labels = _to_sortable(target.data if unknown is None else target.data[~unknown])
    classes, rows, values = sort_unique(labels, xp), rows[is_used], elements.data[is_used]
    sizes = xp.bincount(xp.searchsorted(classes, labels), minlength=1)
    if not len(values) or len(labels) < _LEAST_ROWS or _ROWS_EACH * len(classes) > len(labels):
        return ""
    distinct = sort_unique(values, xp)
    pairs = sort_unique(xp.searchsorted(distinct, values) * len(column) + rows, xp)  # each element once a row
    ranks = xp.searchsorted(classes, _to_sortable(target.data)[pairs % len(column)])
    counts = xp.bincount(pairs // len(column) * len(classes) + ranks, minlength=len(distinct) * len(classes))
    counts = counts.reshape(-1, len(classes))
    num_rows = counts.sum(axis=1)
    is_alone = counts == num_rows[:, None]
    num_repeats = int(num_rows.sum()) - len(num_rows)  # of an element after its first row
    if bool(is_alone.any(axis=1).all()) and num_repeats * float(1 - ((sizes / len(labels)) ** 2).sum()) >= _LEAST_ROWS:
        return f"each of its elements is in rows of one {{}} alone {_WHERE_KNOWN}"
    is_alone &= 2 * counts >= sizes
    is_alone &= counts * (1 - sizes / len(labels)) >= _LEAST_ROWS
    if not bool(is_alone.any()):
        return ""
    value = distinct[int(xp.where(is_alone.any(axis=1), num_rows, 0).argmax())].item()
    text = repr(value if elements.dictionary is None else elements.dictionary[value].as_py())
    return f"rows with {text.replace('{', '{{').replace('}', '}}')} in it have one {{}} {_WHERE_KNOWN}"


def _choose_rows(target: Column, backend: Backend) -> Array | slice:
    """Choose rows that show best what tells a target: of few classes as many of each, by turns."""
    xp, labels = backend.xp, _to_sortable(target.data)
    classes = backend.to_host(sort_unique(labels, xp))
    if not 0 < _ROWS_EACH * len(classes) <= _MANY_ROWS:
        return _HEAD
    rows = [xp.flatnonzero(labels == each)[: _MANY_ROWS // len(classes)] for each in classes]
    turns = xp.concatenate([xp.arange(len(each)) / len(each) for each in rows])
    return xp.concatenate(rows)[xp.argsort(turns)]


def _may_decide(column: Column, target: Column, few_rows: Array | slice, xp: ModuleType) -> bool:
    """Return False where a few rows, or all, show that no other hint follows, at the cost of a few sorts.

    Text of many values passes: numbers in it have another order than its codes.
    """
    if column.dictionary is not None and _ROWS_EACH * len(column.dictionary) > len(column):
        return True
    for rows in (few_rows, slice(None)):
        part, labels = column.take(rows), target.take(rows)
        missing = part.missing(xp)
        if (
            missing is not None
            and bool(missing.any())
            and _follows(*_pair_values(Column("bool", ~missing), labels, xp), xp)
        ):
            continue
        values, classes = _pair_values(part, labels, xp)
        may_repeat = rows is few_rows and column.dtype not in FLOATS  # in other rows
        if not (_follows(values, classes, xp, without_ties=may_repeat) or _follows(classes, values, xp)):
            return False
    return True


def _follows(keys: Array, values: Array, xp: ModuleType, *, without_ties: bool = False) -> bool:
    """Return whether, in the order of keys, values change or turn half as often as by chance; or where keys are equal.

    By the keys 1, 1, 2, 3, 4, 5 the values a, a, a, b, b, b change once, where chance has 3 changes.
    """
    order = xp.argsort(keys)
    keys, values = keys[order], values[order]
    is_change, is_rise, is_tie = values[1:] != values[:-1], values[1:] > values[:-1], keys[1:] == keys[:-1]
    distinct = xp.sort(values)
    shares = xp.bincount(xp.cumsum(distinct[1:] != distinct[:-1]), minlength=1) / max(len(is_change), 1)
    chance = (1 - float(shares @ shares)) / 2
    num_ties = int(xp.count_nonzero(is_tie))
    steps = is_rise[~is_tie]  # from one key to the next: rows of one key may be in any order
    return (
        int(xp.count_nonzero(is_change)) <= chance * len(is_change) + _SLACK
        or int(xp.count_nonzero(is_rise[1:] != is_rise[:-1])) <= chance * 2 / 3 * len(is_change) + _SLACK
        or (
            4 * len(steps) >= len(is_change)
            and int(xp.count_nonzero(steps[1:] != steps[:-1])) <= chance * 2 / 3 * len(steps) + _SLACK
        )
        or (num_ties == 0 and without_ties)
        or (num_ties > 0 and int(xp.count_nonzero(is_change & is_tie)) <= chance * num_ties + _SLACK)
    )


def _decides(column: Column, target: Column, backend: Backend) -> bool:
    """Return whether each value goes with one value of the target, or the target is a linear function of it."""
    xp = backend.xp
    values, labels = _pair_values(column, target, xp)
    pairs = _rank_pairs(values, labels, xp)
    if _ROWS_EACH * pairs.num_values <= len(values):
        return len(values) >= _LEAST_ROWS and pairs.num_labels > 1 and len(pairs.labels) == pairs.num_values
    are_numbers = {column.dtype, target.dtype} <= {*INTEGERS, *FLOATS}
    return are_numbers and _is_linear(column.take(_HEAD), target.take(_HEAD), xp) and _is_linear(column, target, xp)


def _decides_by_groups(column: Column, target: Column, backend: Backend) -> bool:
    """Return whether each of many values goes with one value of the target, where chance would show others.

    Of 300 patients, half of them ill, each has 6 visits: the id tells who is, where 300 ids of one visit each do not.
    """
    xp = backend.xp
    values, labels = _pair_values(column, target, xp)
    pairs = _rank_pairs(values, labels, xp)
    if column.dtype in FLOATS or len(pairs.labels) > pairs.num_values or _ROWS_EACH * pairs.num_values <= len(values):
        return False
    shares = xp.bincount(pairs.labels_of_rows) / max(len(labels), 1)
    num_repeats = len(values) - pairs.num_values  # rows whose value an earlier row has
    return num_repeats * (1 - float((shares**2).sum())) >= _LEAST_ROWS


def _decides_by_order(column: Column, target: Column, backend: Backend) -> bool:
    """Return whether the target rises or falls with numbers throughout, or each of its classes is one range of them.

    For example, 3, 5, 8, 9 tell the classes a, a, b, b, and the numbers 40, 20, 10, 5; 3, 5, 5, 9 tell neither.
    """
    xp = backend.xp
    has_classes = _ROWS_EACH * len(sort_unique(target.data, xp)) <= len(target)
    if not (has_classes or target.dtype in (*INTEGERS, *FLOATS)):
        return False
    for rows in (_HEAD, slice(None)):
        numbers = _to_floats(column.take(rows), backend)
        if numbers is None:
            return False
        values, labels = _pair_values(numbers, target.take(rows), xp)
        pairs = _rank_pairs(values, labels, xp)
        if has_classes:
            num_changes = int((xp.diff(pairs.labels) != 0).sum())
            is_decided = len(pairs.labels) == pairs.num_values and num_changes < pairs.num_labels
        else:
            orders = (pairs.labels, _rank_pairs(-values, labels, xp).labels)
            is_decided = any(bool((xp.diff(order) >= 0).all()) for order in orders)
        if not is_decided:
            return False
    if has_classes:
        num_most = int(xp.bincount(pairs.labels_of_rows).max())
        return len(labels) >= _MANY_ROWS and len(labels) - num_most >= _LEAST_ROWS
    least = min(pairs.num_values, pairs.num_labels)
    # Fewer values are a target in fewer digits, 12.3 and 12.4 both 12; or a year, in whose order a series grows.
    is_rounded = len(labels) >= _MANY_ROWS and not _is_sorted(values)
    return least >= _FEWEST_RANGES and (
        is_rounded or (least >= _LEAST_ROWS and least >= _LEAST_DISTINCT * len(pairs.labels))
    )


def _count_exceptions(column: Column, target: Column, backend: Backend, *, has_order: bool) -> int:
    """Count the rows in which a column does not tell the class; 0 where they are more than a few.

    It tells it by being there, by its value where many rows have each, or by being below or above a number; whichever
    has the fewest exceptions. A date of death, which of the living is the end of the study, tells who has died, but for
    those who died on its last day.
    """
    xp = backend.xp
    missing, unknown = column.missing(xp), target.missing(xp)
    labelled_rows = slice(None) if unknown is None else ~unknown
    values, labels = (_to_sortable(each.data)[labelled_rows] for each in (column, target))
    is_there = xp.ones(len(labels), dtype=bool) if missing is None else ~missing[labelled_rows]
    classes = sort_unique(labels, xp)
    labels = xp.searchsorted(classes, labels)
    num_others = len(labels) - int(xp.bincount(labels, minlength=1).max())
    if len(labels) < _MANY_ROWS or num_others < _LEAST_ROWS or _ROWS_EACH * len(classes) > len(labels):
        return 0

    def count(groups: Array, rows: Array) -> int:
        """Count the rows that are not of the class that most rows of their group have."""
        num_pairs = xp.bincount(groups * len(classes) + rows, minlength=len(classes) * (int(groups.max()) + 1))
        return len(rows) - int(num_pairs.reshape(-1, len(classes)).max(axis=1).sum())

    exceptions, num_absent = [], 0
    if not bool(is_there.all()):
        exceptions.append(count(is_there.astype("int64"), labels))
        num_absent = count(xp.zeros(int((~is_there).sum()), dtype="int64"), labels[~is_there])
    values, labels_there = values[is_there], labels[is_there]
    distinct = sort_unique(values, xp)
    ranks = xp.searchsorted(distinct, values)
    if len(distinct) > 1 and _ROWS_EACH * len(distinct) <= len(values):
        exceptions.append(num_absent + count(ranks, labels_there))
    elif len(distinct) > 1 and len(classes) == 2 and has_order and column.dtype in (*INTEGERS, *FLOATS):
        # Up to each value the rows of the second class less those of the first: of 1 a, 2 a, 3 b, 4 a, 5 b, 6 b it is
        # -1, -2, -1, -2, -1, 0. Cut behind the least, 2 of a and 3 of b are right, 3 - (-2), and one row is not.
        surplus = xp.cumsum(xp.bincount(ranks, weights=2 * labels_there - 1))
        num_second = int(labels_there.sum())
        num_right = xp.maximum(num_second - surplus, len(labels_there) - num_second + surplus)
        exceptions.append(num_absent + len(labels_there) - int(num_right.max()))
    fewest = min(exceptions, default=0)
    return fewest if fewest <= min(_MOST_EXCEPTIONS * len(labels), _MOST_OF_OTHERS * num_others) else 0


def _to_floats(column: Column, backend: Backend) -> Column | None:
    """Convert numbers, or texts of numbers, percentages or money; None for any other column."""
    if column.dtype in (*INTEGERS, *FLOATS):
        return Column("float64", floats(column, backend.xp))
    if column.dictionary is None:
        return None
    codes = backend.to_host(sort_unique(list_present(column, backend), backend.xp))
    amounts = parse_amounts(column.dictionary.take(codes).to_pylist())
    if amounts is None:
        return None
    table = np.full(len(column.dictionary), np.nan)
    table[codes] = amounts
    return Column("float64", gather(column, table, np.nan, backend))


def _decides_by_gaps(column: Column, target: Column, backend: Backend) -> str:
    """Say in which rows, those with a value of the column or those without, the target has one value; else nothing.

    They are so many that others were to be expected, or all that have it: a fee of 60 of 100 customers who do not pay.
    """
    xp = backend.xp
    missing, is_unknown = column.missing(xp), target.missing(xp)
    if missing is None:
        return ""
    labels = target.data
    if is_unknown is not None:
        missing, labels = missing[~is_unknown], labels[~is_unknown]
    num_missing = int(missing.sum())
    if len(missing) < _LEAST_ROWS or min(num_missing, len(missing) - num_missing) < _LEAST_GAPS:
        return ""
    for rows, where in ((missing, "missing"), (~missing, "there")):
        has_label = labels == labels[rows.argmax()]
        if bool((has_label == rows).all()):
            return "it is missing, or there, exactly where {} has one certain value"
        share = float(has_label.mean())
        if bool(has_label[rows].all()) and int(rows.sum()) * (1 - share) >= _LEAST_ROWS:
            return f"where it is {where}, {{}} has one value"
    return ""


def _is_linear(column: Column, target: Column, xp: ModuleType) -> bool:
    values, labels = (each.astype(xp.float64) for each in _pair_values(column, target, xp))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return len(values) >= _LEAST_ROWS and bool(abs(xp.corrcoef(values, labels)[0, 1]) > _LINEAR)


def _pair_values(column: Column, target: Column, xp: ModuleType) -> tuple[Array, Array]:
    """Return the values of the rows that have both; booleans as numbers."""
    is_present = xp.ones(len(column), dtype=bool)
    for each in (column, target):
        missing = each.missing(xp)
        is_present = is_present if missing is None else is_present & ~missing
    pair = (each.data[is_present] for each in (column, target))
    values, labels = map(_to_sortable, pair)
    return values, labels


def _is_sorted(values: Array) -> bool:
    """Return whether values rise or fall from row to row, or stay."""
    return bool((values[1:] >= values[:-1]).all()) or bool((values[1:] <= values[:-1]).all())


def _to_sortable(data: Array) -> Array:
    """Return booleans as numbers, which searchsorted takes everywhere."""
    return data.view("uint8") if data.dtype == bool else data


class _Pairs(NamedTuple):
    """Different pairs of a value and a label, by the value and then the label: the labels' ranks among the distinct.

    `labels_of_rows` are those of all rows.
    """

    labels: Array
    num_values: int
    num_labels: int
    labels_of_rows: Array


def _rank_pairs(values: Array, labels: Array, xp: ModuleType) -> _Pairs:
    distinct, classes = sort_unique(values, xp), sort_unique(labels, xp)
    ranks = xp.searchsorted(classes, labels)
    pairs = xp.searchsorted(distinct, values) * len(classes) + ranks
    return _Pairs(sort_unique(pairs, xp) % max(len(classes), 1), len(distinct), len(classes), ranks)


def is_row_id(name: str, column: Column, distinct: Array, num_present: int, backend: Backend) -> bool:
    """Return whether a column has whole numbers, each in one row alone, that are ids and no amounts."""
    if not 0 < len(distinct) == num_present or not are_whole(distinct, column.dtype, backend):
        return False
    return looks_like_id(name, num_present, int(distinct[0]), int(distinct[-1]))


def list_present(column: Column, backend: Backend) -> Array:
    """Return the values that are not missing; of text their codes."""
    missing = column.missing(backend.xp)
    return column.data if missing is None else column.data[~missing]
