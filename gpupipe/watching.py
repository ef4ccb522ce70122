"""What is noticed of rows while they are worked on, and what the program makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any
from weakref import ref

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.check_report import CheckReport, places_in
from gpupipe.drift import Drift, DriftReport
from gpupipe.expectations import Expectations, Findings
from gpupipe.features import Features
from gpupipe.io import Dataset, Mailbox, Partition
from gpupipe.preprocessing import Categorify, SimpleImputer
from gpupipe.preprocessing.vocabulary import UNKNOWN
from gpupipe.profiles import Likeness, Profile, drawn_rows
from gpupipe.schema import FLOATS, INTEGERS, LISTS, WIDE, Schema

__all__ = [
    "Ledger",
    "Letter",
    "Warnings",
    "Watch",
    "categories_of",
    "numbers_of",
    "others_of",
    "rows_in",
    "unscaled_of",
]

_log = logging.getLogger("gpupipe")
_MOST_WARNINGS = 64


@dataclass(frozen=True)
class Letter:
    """What one partition told.

    Args:
        place: the identity of its first row.
        num_rows: rows of the partition as it lies in its file.
        findings: of what is expected.
        likeness: of what the fit has seen.
    """

    place: int
    num_rows: int
    findings: Findings
    likeness: Likeness


class Warnings:
    """The warnings that were logged, so that each is logged once of the same data.

    Data is the same where it is one object, or holds the same rows of the same files; changed in place it may have
    another result, which is another warning.
    """

    def __init__(self) -> None:
        self._given: list[tuple[Any, str]] = []
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[Warnings], tuple[()]]:
        """Another process has data of its own."""
        return Warnings, ()

    def once(self, rows: Any, text: str) -> None:
        """Log a warning unless it was logged of these rows, as `rows_in` tells them, before."""
        with self._lock:
            if any(said == text and _same(found, rows) for found, said in self._given):
                return
            self._given = [*self._given[1 - _MOST_WARNINGS :], (rows, text)]
        _log.warning("%s", text)


def rows_in(data: Any) -> tuple[Any, Any]:
    """What tells the rows of a Dataset or a frame from others: files with their stamps, or else the object.

    Memory: keeps no rows.
    """
    if isinstance(data, Dataset):
        files, query = data.source.inputs(), data.query.identity()
        rows = query, tuple(partition.spans for partition in data.partitions)
        if files is not None and query is not None:
            return sorted(files.items()), rows
        return (ref(data.source), rows) if query is not None else (ref(data), rows)
    return ref(data), None


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if one[1] != other[1]:
        return False
    if isinstance(one[0], ref) or isinstance(other[0], ref):
        return isinstance(one[0], ref) and isinstance(other[0], ref) and one[0]() is other[0]() is not None
    return bool(one[0] == other[0])


class Ledger:
    """What is known of the data last given to a pipeline, partition by partition; each is counted once.

    Args:
        expectations: what is expected.
        profiles: what the columns of the fit look like.
        drift: how far others may be.
        partitions: of a dataset; none for a frame.
        total: rows of all of them, or of the frame.
        warn: logs what is wrong with them.
    """

    def __init__(
        self,
        expectations: Expectations,
        profiles: Mapping[str, Profile],
        drift: Drift | None,
        partitions: Sequence[Partition],
        total: int,
        warn: Callable[[str], None],
    ) -> None:
        self._warn = warn
        self._expectations, self._profiles, self._drift, self._total = expectations, profiles, drift, total
        self._place = places_in(partitions)
        self._seen = dict[int, int]()
        self._findings, self._likeness = Findings(), dict[int, Likeness]()
        self._lock = Lock()
        self.mailbox = Mailbox(self.receive)

    @property
    def is_complete(self) -> bool:
        """Whether all rows have been seen."""
        return sum(self._seen.values()) >= self._total

    def receive(self, letter: Letter | Sequence[Partition]) -> None:
        """Take note of what one partition told; or that the rows lie in these partitions instead.

        Raises:
            BadData: a value is there twice that is to be unique; or, with the last partition, the columns have moved;
                where an error is asked for.
        """
        if not isinstance(letter, Letter):
            self._place, self._total = places_in(letter), sum(partition.num_rows for partition in letter)
            return
        with self._lock:
            if letter.place in self._seen:
                return
            self._seen[letter.place] = letter.num_rows
            self._findings += letter.findings
            self._likeness[letter.place] = letter.likeness
            is_last = self.is_complete
        self._expectations.enforce(self._findings)
        if is_last:
            checks, drift = self.check_report(), self.drift_report()
            if not checks.passed:
                self._warn(f"expect: {checks.summary}")
            if drift.moved:
                self._warn(f"drift since the fit: {drift.summary}; see pipeline.drift_report()")
            drift.enforce()

    def check_report(self) -> CheckReport:
        """What is not as expected, so far."""
        return CheckReport.of(self._findings, self._expectations, self._place, is_complete=self.is_complete)

    def drift_report(self) -> DriftReport:
        """What has moved since the fit, so far."""
        limits = self._drift or Drift()
        # In the order of the rows, not of the threads that were done with them: the same sums to the last bit.
        with self._lock:
            likeness = sum((self._likeness[place] for place in sorted(self._likeness)), Likeness())
        return DriftReport.of(likeness, self._profiles, limits, is_complete=self.is_complete)


@dataclass(frozen=True)
class Watch:
    """What a transformation looks at beside its work; goes to workers with it.

    Args:
        expectations: of the columns as they are read.
        profiles: of the columns that features see, in the fit; none where nothing is compared.
        ids: for a column of them that becomes ids, the name of those, and the first that is a bucket's.
        mailbox: where the program hears of it.
        total: rows of the data at most.
    """

    expectations: Expectations
    profiles: Mapping[str, Profile]
    ids: Mapping[str, tuple[str, int]]
    mailbox: Any
    total: int

    def look(self, frame: Frame, schema: Schema, backend: Backend, row_ids: Array | None) -> Letter:
        """What one frame, as it is read, has that is not expected.

        Raises:
            BadData: there is something, and an error is asked for.
        """
        place = 0 if row_ids is None or not len(row_ids) else int(backend.to_host(row_ids[:1])[0])
        num_rows = len(frame) if row_ids is None else len(row_ids)
        return Letter(place, num_rows, self.expectations.look(frame, schema, backend, place), Likeness())

    def tell(
        self, letter: Letter, seen: Frame, outputs: Mapping[str, Column], backend: Backend, row_ids: Array | None
    ) -> None:
        """Tell the program of one frame: what was found, and how its rows, as features see them, are like the fit's.

        Args:
            letter: what was found.
            seen: the rows after the transforms.
            outputs: the features made of them.
            backend: where they are.
            row_ids: the identities of the rows that the index of `seen` counts.

        Raises:
            BadData: see `Ledger.receive`.
        """
        if self.profiles:
            positions = backend.positions(seen)
            ids = positions if row_ids is None else row_ids[positions]
            rows = drawn_rows(ids, self.total, len(self.profiles), backend)
            columns = {name: backend.column(seen, name).take(rows) for name in self.profiles}
            unknown = {}
            for name, (output, first_bucket) in self.ids.items():
                data = outputs[output].data[rows]
                unknown[name] = (data == UNKNOWN) | (data >= first_bucket)
            letter = replace(letter, likeness=Likeness.of(columns, self.profiles, unknown, backend))
        if letter.num_rows:
            self.mailbox.send(letter)


def numbers_of(features: Features, schema: Schema) -> list[str]:
    """The columns that features see as numbers, of those after the transforms that a fit reads."""
    dtypes = (*FLOATS, *INTEGERS, "bool")
    groups = [group for group in features.groups if group.steps and not isinstance(group.steps[-1], Categorify)]
    names = {name for group in groups for name in group.looks_at}
    return [item.name for item in schema if item.name in names and item.dtype in dtypes]


def unscaled_of(features: Features, schema: Schema) -> list[str]:
    """The columns of wide numbers that are features as they are."""
    names = {name for group in features.groups if not group.steps for name in group.columns}
    return [item.name for item in schema if item.name in names and item.dtype in WIDE]


def others_of(features: Features, schema: Schema, numbers: Sequence[str]) -> list[str]:
    """The columns that go through steps of which only what is missing can be told, of those that a fit reads."""
    names = {name for group in features.groups if group.steps for name in group.looks_at} - set(numbers)
    return [item.name for item in schema if item.name in names and item.dtype not in LISTS]


def categories_of(features: Features, schema: Schema) -> dict[str, tuple[str, Categorify]]:
    """The columns that become ids as they are, but for missing values: the ids' name, and the step that makes them."""
    found: dict[str, tuple[str, Categorify]] = {}
    for group in (group for group in features.groups if group.steps):
        *before, last = group.steps
        if isinstance(last, Categorify) and all(isinstance(step, SimpleImputer) for step in before):
            names = [name for name in group.columns if name in schema and schema[name].dtype not in LISTS]
            found = {name: (group.rename(name), last) for name in names} | found
    return found
