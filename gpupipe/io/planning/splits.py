"""Dataset splits: ranges of a column, random parts, and parts with the same fraction of every class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gpupipe.backend import Array, Backend, select
from gpupipe.backend.columns import (
    require_comparable,
    require_comparable_constant,
    require_time_order,
    sample_texts,
)
from gpupipe.backend.kernels import splitmix64
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BadConfig, BadData, GpupipeError
from gpupipe.expressions import parse
from gpupipe.io.planning.group_split import draw_group_parts, too_many_classes
from gpupipe.io.planning.query import Query
from gpupipe.io.planning.row_filters import Between, RandomSplit, StratifiedSplit, comparable
from gpupipe.io.planning.run_partitions import run_partitions
from gpupipe.io.planning.table import Table
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema, suggest_times
from gpupipe.support.text import format_count, refer_to
from gpupipe.support.text_dates import find_dates_in_other_formats, shorten_date
from gpupipe.support.text_kinds import recognise_texts, suggest_parsing
from gpupipe.support.validation import is_integer, is_number, is_sequence, parse_duration_us


def check_call(table: Table, where: str, by: Any, at: Any, fraction: Any, stratify: Any, gap: Any) -> None:
    """Raise unless the arguments of a split name exactly one way to do it, by one column."""
    arguments = {"by": by, "at": at, "fraction": fraction, "stratify": stratify, "gap": gap}
    for name, column in (("by", by), ("stratify", stratify)):
        if not (column is None or isinstance(column, str)):
            problem, remedy = f"{name} is not one column", f"{name}='key', a column made of several by "
            remedy += "data.assign(key=...)"
            raise BadConfig("split", problem, got=column, expected="the name of a column", remedy=remedy)
    is_cut = at is not None and by is not None and fraction is None and stratify is None
    is_drawn = at is None and gap is None and fraction is not None and (by is None or by != stratify)
    if not is_cut and not is_drawn:
        expected = "by= and at= (and gap=), or fraction= (and by=, stratify= or both, of two columns)"
        remedy = "split(by='time', at='2013-10-01') or split(fraction=0.8)"
        raise BadConfig("split", "not one way to split", got=arguments, expected=expected, remedy=remedy)
    for argument, name in (("by", by), ("stratify", stratify)):
        if name is None:
            continue
        refuse_expressions(table, name, where, f"{argument}=")
        table.require([name], where)
        require_comparable(table.schema.select(name), where)


def refuse_expressions(table: Table, keys: object, verb: str, argument: str = "") -> None:
    """Raise BadConfig for a key that is no column, but an expression over columns, with the call that makes it one."""
    for key in keys if isinstance(keys, list | tuple) else [keys]:
        if isinstance(key, str) and key not in table.columns and _is_expression(key, table.schema):
            problem, expected = "a key is an expression", "names of columns"
            remedy = f"data.assign(key={key!r}).{verb}({argument}'key')"
            raise BadConfig(verb, problem, got=key, expected=expected, remedy=remedy)


def _is_expression(text: str, schema: Schema) -> bool:
    try:
        return bool(parse(text, "").check(schema))
    except GpupipeError:
        return False


def cut_ranges(table: Table, by: str, at: Any, gap: Any = None) -> list[Between]:
    """Return a range per part, cut at one value or at ascending ones; `gap` is excluded before each cut."""
    item, values = table.schema[by], at if isinstance(at, list | tuple) else [at]
    for value in values:
        require_comparable_constant(item, value, "split")
    cuts = [comparable(value, item, "split") for value in values]
    if not cuts or any(left >= right for left, right in pairwise(cuts)):
        expected, remedy = "values in ascending order", "at=sorted(set(at))"
        raise BadConfig("split", "the cuts do not ascend", got=at, expected=expected, remedy=remedy)
    ends = cuts if gap is None else [cut - parse_width(gap, item, "split") for cut in cuts]
    if any(low >= high for low, high in zip(cuts[:-1], ends[1:], strict=True)):
        where, expected = f"split(by={by!r}, gap=)", "less than lies between the values of at="
        raise BadConfig(where, "it leaves nothing between two cuts", got=gap, expected=expected, remedy="a smaller gap")
    refuse_missing(count_missing(table, by), by, f"split(by={by!r})")
    check_order(table, by, "split", cuts)
    return [Between(by, low, high) for low, high in zip([None, *cuts], [*ends, None], strict=True)]


def check_order(table: Table, by: str, where: str, cuts: Sequence[Any] = ()) -> None:
    """Raise `BadData` where the column that is cut holds dates as text, and `BadConfig` for cuts in another format."""
    if table.schema[by].dtype == "string":
        backend, first = get_executor().resolve(table.backend), table.of_partitions(table.partitions[:1])
        list(run_partitions(partial(_check_texts, by, where, cuts, backend), first, backend, where))


def _check_texts(by: str, where: str, cuts: Sequence[Any], backend_name: str, part: Table) -> None:
    backend, (partition,) = select(backend_name), part.partitions
    column = backend.column(part.read(partition, [by], backend), by)
    require_time_order(column, by, where)
    texts = sample_texts(column)
    for cut in cuts:
        if dates := find_dates_in_other_formats(texts, cut, "<"):
            problem, expected = "dates as text are cut by their letters", f"text such as {dates[0]!r}"
            remedy = suggest_parsing(by, recognise_texts(dates) or "dates", texts)
            remedy = f"at={short!r}; or {remedy}" if (short := shorten_date(cut, dates[0])) else remedy
            raise BadConfig(f"{where}(by={by!r}, at=)", problem, got=cut, expected=expected, remedy=remedy)


def refuse_missing(num_missing: int, by: str, where: str) -> None:
    """Raise `BadData` where values of the column that is cut are missing: their rows would be on neither side."""
    if num_missing:
        problem = f"a value is missing in {format_count(num_missing, 'row')}, which belong to no part"
        remedy = f'filter("notnull({refer_to(by)})") before, to leave them out'
        raise BadData(where, problem, expected="a value in every row", remedy=remedy)


def count_missing(table: Table, name: str) -> int:
    """Count a column's missing values: from the files' footers, or else by one pass over it."""
    if not table.schema[name].nullable:
        return 0
    null_count = table.source.null_count(name) if table.query == Query() else None
    if null_count is not None:
        return null_count
    backend, total = select(table.backend), 0
    for partition in table.partitions:
        missing = backend.column(table.read(partition, [name], backend), name).missing(backend.xp)
        total += 0 if missing is None else int(missing.sum())
    return total


def parse_width(gap: Any, item: Field, method: str) -> int | float:
    """Convert a gap to the column's unit: times in microseconds."""
    width: int | float | None = None
    expected, remedy = "a number above 0", "gap=1"
    if item.dtype == "timestamp":
        width = parse_duration_us(gap)
        expected, remedy = "a timedelta, or text such as '7 days' or '36 hours'", "gap='7 days'"
    elif item.dtype == "string":
        expected, remedy = "times or numbers", suggest_times(item.name, item.dtype)
    elif item.dtype in (*INTEGERS, *FLOATS) and is_number(gap):
        width = int(gap) if is_integer(gap) else float(gap)
    if width is None or not 0 < width < math.inf:
        problem = f"no width of values of {item.dtype}"
        raise BadConfig(f"{method}(by={item.name!r}, gap=)", problem, got=gap, expected=expected, remedy=remedy)
    return width


def draw_parts(
    table: Table,
    shares: Sequence[float],
    seed: int,
    by: str | None,
    stratify: str | None,
    where: str = "split",
    *,
    first_has_all: bool = False,
) -> Sequence[RandomSplit]:
    """Return one random split per part, by rows or by the values of a column; together they have every row once.

    A `split` puts a value where the seed alone says, and `kfold` the values by their rows: no fold of few is empty.
    With `first_has_all` the first part has a row of each class of `stratify`, also where a class has no other.
    """
    # A draw from a drawn part must not repeat the draw before.
    split_seed = int(splitmix64(seed, np.array([table.num_draws]))[0])
    if by is not None and (stratify is not None or where == "kfold"):
        parts = draw_group_parts(table, shares, split_seed, by, stratify, _MOST_CLASSES, where)
        if parts is not None:
            return parts
    elif stratify is not None:
        return _stratify_parts(table, stratify, shares, split_seed, least=int(first_has_all))
    cuts = [int(np.round(cut * 2**53)) << 11 for cut in np.cumsum(shares)[:-1]]
    return [RandomSplit(split_seed, low, high, by) for low, high in zip([0, *cuts], [*cuts, None], strict=True)]


def get_fractions(fraction: float | Sequence[float]) -> list[float]:
    """Return the fraction of each part; raise for shares that are not positive or do not sum to 1."""
    fractions: Any = fraction
    values: list[Any] = (
        [fractions, 1 - fractions] if is_number(fractions) else list(fractions) if is_sequence(fractions) else [None]
    )
    shares = [float(share) if is_number(share) else math.nan for share in values]
    if not all(share > 0 for share in shares) or not abs(sum(shares) - 1) <= 1e-9:
        expected = "a number between 0 and 1, or positive numbers whose sum is 1"
        remedy = "fraction=0.8, or fraction=(0.8, 0.1, 0.1)"
        raise BadConfig("split", "the shares do not make up a whole", got=fraction, expected=expected, remedy=remedy)
    return shares


_BINS = 1 << 12  # a first look counts rows by class and the upper 12 bits, a second one sorts those in the bins to cut
_NEVER = 1 << 63  # beyond all bits
_MOST_CLASSES = 10_000  # whose bins take 320 MB


def _stratify_parts(
    dataset: Table, column: str, shares: Sequence[float], split_seed: int, least: int
) -> list[StratifiedSplit]:
    """Return a random split per part, each with its exact fraction of the rows of every class, in two passes.

    The rows of a class are in the order of bits drawn by `split_seed` and a row's identity, cut where the shares are.
    """
    backend = get_executor().resolve(dataset.backend)
    counts_by_class: dict[int, Any] = {}
    for table in run_partitions(partial(_counts, column, split_seed, backend), dataset, backend, "split"):
        counts_by_class = counts_by_class | {
            key: counts_by_class.get(key, 0) + part_counts for key, part_counts in table.items()
        }
        _check_few(len(counts_by_class), column)
    ends = {key: np.cumsum(part_counts) for key, part_counts in sorted(counts_by_class.items())}
    upto = np.cumsum(shares)[:-1]
    # Where a share is no whole number of rows, chance rounds it, for each class anew: rounded all alike, classes of few
    # rows would all miss the same part.
    chances = (splitmix64(split_seed, np.array(list(ends), dtype=np.uint64)) >> np.uint64(11)) * 2.0**-53
    # A part begins with the row of this rank, which lies in this bin: behind the last one where the part has no row.
    exact = [(key, upto * ends[key][-1] + chance) for key, chance in zip(ends, chances, strict=True)]
    ranks = {key: np.maximum(np.floor(rank).astype(np.int64), least) for key, rank in exact}
    bins = {key: np.searchsorted(below, ranks[key], side="right") for key, below in ends.items()}
    cut_bits: dict[int, list[Any]] = {}
    for part_bits in run_partitions(partial(_bits, column, split_seed, bins, backend), dataset, backend, "split"):
        for key, bits in part_bits.items():
            cut_bits.setdefault(key, []).append(bits)
    edges = [[0, *_cuts(ranks[key], bins[key], ends[key], np.concatenate(cut_bits[key])), _NEVER] for key in ends]
    limits = [0, *(int(cut * 2**53) << 10 for cut in upto), _NEVER]
    parts = []
    for part, (low, high) in enumerate(pairwise(limits)):
        bounds = tuple((edge[part], edge[part + 1]) for edge in edges)
        parts.append(StratifiedSplit(split_seed, low, high, column, classes=tuple(ends), bounds=bounds))
    return parts


def _cuts(ranks: Any, bins: Any, below: Any, bits: Any) -> list[int]:
    """Return the bits at these ranks in a class; `below` counts its rows up to each bin, `bits` are those in `bins`."""
    ordered, cuts = np.sort(bits), []
    for rank, number in zip(ranks.tolist(), bins.tolist(), strict=True):
        first = int(np.searchsorted(ordered, np.uint64(number << 51)))
        position = first + rank - (int(below[number - 1]) if number else 0)
        cuts.append(_NEVER if number == _BINS else int(ordered[position]))
    return cuts


def _draw(column: str, seed: int, backend: Backend, part: Table) -> tuple[list[int], Array, Array, Array]:
    """Return the classes of one partition, on the host, and each row's class index, bits and bin."""
    partition = part.partitions[0]
    frame = part.read(partition, [column], backend)
    hashes, bits = StratifiedSplit.draw(frame, column, seed, partition, backend)
    classes, indices = backend.xp.unique(hashes, return_inverse=True)
    return backend.to_host(classes).tolist(), indices, bits, (bits >> np.uint64(51)).astype("int64")


def _counts(column: str, seed: int, backend_name: str, part: Table) -> dict[int, Any]:
    """Count the rows of one partition by class and bin."""
    backend = select(backend_name)
    classes, indices, _, upper = _draw(column, seed, backend, part)
    _check_few(len(classes), column)
    table = backend.xp.bincount(indices * _BINS + upper, minlength=len(classes) * _BINS)
    return dict(zip(classes, backend.to_host(table).reshape(-1, _BINS), strict=True))


def _bits(column: str, seed: int, bins: Mapping[int, Any], backend_name: str, part: Table) -> dict[int, Any]:
    """Return the bits of the rows of one partition in bins to cut, by class."""
    backend = select(backend_name)
    classes, indices, bits, upper = _draw(column, seed, backend, part)
    is_cut = np.zeros((len(classes), _BINS + 1), dtype=bool)
    for number, key in enumerate(classes):
        is_cut[number, bins[key]] = True
    in_bins = backend.to_device(is_cut)[indices, upper]
    values, class_numbers = backend.to_host(bits[in_bins]), backend.to_host(indices[in_bins])
    return {key: values[class_numbers == number] for number, key in enumerate(classes)}


def _check_few(num_classes: int, column: str) -> None:
    if num_classes > _MOST_CLASSES:
        raise too_many_classes(column, _MOST_CLASSES)
