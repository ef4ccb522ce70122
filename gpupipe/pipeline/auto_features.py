"""What `Features.auto` sees in the first rows of a table, and the groups that it proposes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Column, infer_backend
from gpupipe.backend.kernels import sort_unique
from gpupipe.io import Dataset
from gpupipe.io.relational.text_file import LEADING_ZEROS
from gpupipe.pipeline.leak_hints import find_element_hint, find_hint, is_row_id, list_present
from gpupipe.pipeline.target import NUM_FIRST, TargetSet
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Schema, get_element_dtype
from gpupipe.support.text_kinds import explain_likeness, explain_texts

ITS_TEXTS = "its texts "
"""What a remark begins with that names the step by which texts are parsed, or become equal."""
_FEW, _MANY_VALUES, _ROWS_EACH = 32, 256, 40  # distinct integers; rows of each where there are more than a few
_MIN_FREQUENCY, _FEWEST_ROWS = 5, 1_000  # rows that an id should have, in tables of so many rows and more
_LEAST_ROWS = 20  # rows that show whether values occur twice
_CYCLES = ("dayofyear", "dayofweek", "hour")  # of times
_MANY_TEXTS = 1_000  # distinct ones, of which most are in few rows
_BETWEEN_WORDS = re.compile(r"[^\w.-]")
_ROW_NAMES = re.compile(r"|__index_level_\d+__")
"""What pandas calls row names without a name of their own: nothing in CSV, the second in Parquet."""


class FirstRows(NamedTuple):
    """First rows of a table.

    `ids` are integers of few values; `incomplete` are columns with missing values; `useless` says of columns why they
    tell nothing; `remarks` says what may be wrong with a column that becomes a feature, and what to do: of `constants`
    that they have one value.
    """

    num_rows: int
    ids: set[str]
    incomplete: set[str]
    useless: dict[str, str]
    remarks: dict[str, str]
    constants: set[str]

    @property
    def min_frequency(self) -> int | None:
        """How often a category should be there, to be one."""
        return _MIN_FREQUENCY if self.num_rows >= _FEWEST_ROWS else None


def look_at_rows(schema: Schema, dataset: Dataset | None, label: str | None = None) -> FirstRows:
    """Look at the first rows of a dataset, whose target is `label`, a column or an expression.

    Without a dataset all integers are amounts, and nothing is known of values.
    """
    useless = {name: "row names, as pandas writes them" for name in schema.names if _ROW_NAMES.fullmatch(name)}
    names = [item.name for item in schema if item.dtype in (*INTEGERS, *FLOATS, "bool", "string", "timestamp")]
    lists = [item.name for item in schema if get_element_dtype(item.dtype) in ("string", *INTEGERS)]
    if dataset is None:
        return FirstRows(NUM_FIRST, set(), set(), useless, {}, set())
    frame = dataset.select([*names, *lists] or schema.names[:1]).head(NUM_FIRST)
    first = FirstRows(len(frame), set(), set(), useless, {}, set())
    if not names or not first.num_rows:
        return first
    backend = infer_backend(frame)
    coded = backend.encode(frame)
    reasons = {note.reason for note in dataset.source.notes}
    targets = TargetSet([] if label is None else [label])
    of_target = {*targets.reads(schema)}
    target = next(iter(targets.raw_columns(coded, schema, backend).values()), None) if of_target <= {*names} else None
    first_rows = f"in the first {first.num_rows:,} rows"
    hints = ((name, find_element_hint(backend.column(coded, name), target, backend)) for name in lists)
    first.remarks.update((name, hint.format(repr(label), first_rows)) for name, hint in hints if hint)
    for name in names:
        column, beside = backend.column(coded, name), None if name in of_target else target
        values = list_present(column, backend)
        if len(values) < first.num_rows:
            first.incomplete.add(name)
        if not len(values) and first.num_rows == NUM_FIRST:  # a column that may begin later
            later = dataset.select([name]).filter(f"notnull(col({name!r}))").head(NUM_FIRST)
            column, beside = backend.column(backend.encode(later), name), None
            values = list_present(column, backend)
        if not len(values):
            first.useless[name] = "no value"
            continue
        distinct = sort_unique(values, backend.xp)
        count, rows = len(distinct), len(values)
        if column.dtype in INTEGERS and (count <= _FEW or (count <= _MANY_VALUES and rows >= _ROWS_EACH * count)):
            first.ids.add(name)
        if count == 1 and first.num_rows > 1:
            first.constants.add(name)
        if hint := find_hint(name, column, beside, backend):
            first.remarks[name] = hint.format(repr(label), first_rows, repr(name))
        elif name in first.constants:
            same = "one value or missing" if name in first.incomplete else "the same value"
            first.remarks[name] = f"{same} in each of the first {first.num_rows:,} rows"
        else:
            is_code = f"column {name!r} {LEADING_ZEROS}" in reasons  # in whichever row
            is_id = is_row_id(name, column, distinct, rows, backend)
            first.remarks[name] = _remark(name, column, values, backend, is_id=is_id, is_code=is_code)
    return first


def _remark(name: str, column: Column, values: Array, backend: Backend, *, is_id: bool, is_code: bool) -> str:
    """Say what may be wrong with a column, by its present values (codes, of text); else return nothing.

    The digits of a code, such as 00501, are no number.
    """
    distinct, num_present, texts = sort_unique(values, backend.xp), len(values), list[str]()
    count = len(distinct)
    if column.dictionary is not None:
        texts = column.dictionary.take(backend.to_host(distinct)).to_pylist()
        counts = backend.to_host(backend.xp.bincount(values)[distinct]).tolist()
        kinds = "" if is_code else explain_texts(name, dict(zip(texts, counts, strict=True)))
        if kinds:
            return f"{ITS_TEXTS}are {kinds}"
        if count < _MANY_TEXTS and (likeness := explain_likeness(name, texts)):
            return f"{ITS_TEXTS}{likeness}"
    if num_present < _LEAST_ROWS:
        return ""
    has_words = bool(_BETWEEN_WORDS.search("".join(texts[:_LEAST_ROWS])))
    if is_id or (texts and count == num_present and not has_words):
        return f"no value occurs twice: an id is no feature, keep=[{name!r}] carries it"
    if texts and (2 * count > num_present or count >= _MANY_TEXTS):
        step = "HashedNgrams()" if has_words else "HashedNgrams(analyzer='char', ngram_range=(2, 3))"
        return f"{count:,} different texts in {num_present:,} rows: ([{name!r}], pre.{step}) learns from their parts"
    return ""


def propose_groups(free: Sequence[Field], first: FirstRows, least: int | None) -> list[tuple[Any, ...]]:
    """Propose groups of columns and their steps; integers of few values may be names or amounts.

    An hour or a number of rooms has an order, a code of a shop has none. As both, a network takes what helps. That a
    value is missing may tell as much as a value; of names an id says so.
    """
    free_names = {i.name for i in free}
    words = [i.name for i in free if i.dtype == "string" or i.kind == Kind.CATEGORICAL or i.name in first.ids]
    amounts = [i.name for i in free if i.dtype in (*FLOATS, *INTEGERS) and i.name not in words]
    flags, times = ([i.name for i in free if i.dtype == dtype] for dtype in ("bool", "timestamp"))
    several = [i.name for i in free if get_element_dtype(i.dtype) in ("string", *INTEGERS)]
    # What says already that another one is missing needs no indicator beside it.
    indicated = {i.name.removesuffix("_missing").removesuffix("_year") for i in free if i.name.endswith("_missing")}
    incomplete = first.incomplete - indicated

    def scale(*, add_indicator: bool = False) -> list[pre.LearnedStep]:
        return [pre.SimpleImputer(strategy="median", add_indicator=add_indicator), pre.StandardScaler()]

    def part(names: Sequence[str], *, complete: bool) -> list[str]:
        return [name for name in names if (name not in incomplete) == complete]

    def encode(names: Sequence[str], parts: Sequence[str], cycles: Sequence[str]) -> dict[pre.LearnedStep, list[str]]:
        """Group times by the encoder of those parts that are no columns yet, as the parts of `T.DateParts` are."""
        names_by_parts: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for name in names:
            new_parts = tuple(part for part in parts if f"{name}_{part}" not in free_names)
            new_cycles = tuple(cycle for cycle in cycles if f"{name}_{cycle}_sin" not in free_names)
            if new_parts or new_cycles:
                names_by_parts.setdefault((new_parts, new_cycles), []).append(name)
        return {pre.DatetimeEncoder(parts, cyclic=cycles): names for (parts, cycles), names in names_by_parts.items()}

    complete_times, incomplete_times = (part(times, complete=is_complete) for is_complete in (True, False))
    groups: list[tuple[Any, ...]] = [
        (part(amounts, complete=True), scale()),
        (part(amounts, complete=False), scale(add_indicator=True)),
        ([name for name in words if name in first.ids], scale(), "number"),
        (part(flags, complete=True), [pre.SimpleImputer(strategy="most_frequent")]),
        (part(flags, complete=False), [pre.Categorify()]),
        (words, [pre.Categorify(min_frequency=least)]),
        (several, [pre.Categorify(min_frequency=least)]),
        *((names, [step, *scale()]) for step, names in encode(complete_times, ("year", "is_weekend"), _CYCLES).items()),
        *(
            (names, [step, *scale(add_indicator=True)])
            for step, names in encode(incomplete_times, ("year",), ()).items()
        ),
        *((names, [step, *scale()]) for step, names in encode(incomplete_times, ("is_weekend",), _CYCLES).items()),
    ]
    return [group for group in groups if group[0]]
