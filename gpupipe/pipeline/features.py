"""Features: columns with their learned steps, target, weight and keys; and a default set for a table."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from gpupipe.backend import Array, Backend, Column, Frame, infer_backend
from gpupipe.backend.columns import chain_columns
from gpupipe.errors import BadConfig, LeakageError, SchemaMismatch
from gpupipe.io import Dataset, as_dataset
from gpupipe.pipeline.feature_group import FeatureGroup, format_names, to_feature_group, to_learned_step
from gpupipe.pipeline.targets import TASKS, TargetSet, Weight
from gpupipe.preprocessing import Categorify, DatetimeEncoder, LearnedStep, SimpleImputer, StandardScaler
from gpupipe.schema import FLOATS, INTEGERS, Field, Kind, Role, Schema, get_element_dtype
from gpupipe.support.text import as_list, derive, shorten_list
from gpupipe.support.validation import check_choice, check_name, check_names, refuse_choice

_LOOKED_AT = 10_000  # rows
_FEW = 32  # distinct integers
_MIN_FREQUENCY = 10
_ROW_NAMES = re.compile(r"|__index_level_\d+__")
"""What pandas calls row names without a name of their own: nothing in CSV, the second in Parquet."""

_log = logging.getLogger("gpupipe")
_SHOWN = 12  # columns that are left out


class Features:
    """Step from frame to tensors: feature groups, target, weight and kept columns.

    Args:
        groups: each `(columns, step or steps)`, `(columns, steps, name)` or just columns; a column's name alone stands
            for a list of one, and a mapping from columns to steps for a group each. A scikit-learn or cuML estimator
            may stand in a list of steps. With a name the group's outputs are called `name_output`. A selector of
            `gpupipe.selectors` chooses columns at each `fit`, among those that are not the target, the weight, kept, or
            computed from what these are computed from (`allow_leak=` takes those, and `explain` and the fit report say
            which are left out).
        target: the label column, or an expression over label columns; a list of several conditions (of 0 and 1), or of
            several numbers, makes a model with as many outputs.
        task: `"classification"`, `"regression"`, or `"auto"`, which decides as scikit-learn's `type_of_target` and logs
            what and why: conditions, booleans, strings and two distinct whole numbers are classes, and so are up to 20
            distinct whole numbers, each in two rows or more on average, with a warning; other numbers are a
            regression's.
        target_transform: steps (a step) a regression's target goes through before it is stored and learned, such as
            `[pre.Log1p(), pre.StandardScaler()]`; `"auto"` standardises it, None leaves it as it is. Predictions and
            metrics are in the target's own units all the same.
        weight: the column or expression of sample weights.
        keep: columns carried along with the features and never fed to a model.
        allow_leak: label columns that a feature may read all the same.

    Example:
        >>> from gpupipe import preprocessing as pre
        >>> Features((["distance"], pre.StandardScaler()), ["night"], target="arr_delay > 15").groups[0].columns
        ['distance']
    """

    def __init__(
        self,
        *groups: Any,
        target: str | Sequence[str] | None = None,
        task: str = "auto",
        target_transform: LearnedStep | Sequence[LearnedStep] | str | None = "auto",
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        allow_leak: str | Sequence[str] = (),
    ) -> None:
        self.groups = [
            to_feature_group(one)
            for given in groups
            for one in (given.items() if isinstance(given, Mapping) else [given])
        ]
        _check_labels("Features", target, weight, keep)
        check_choice("Features", TASKS, task=task)
        check_names("Features", allow_leak=allow_leak)
        chain = _to_chain(target_transform)
        self.target = None if target is None else TargetSet(as_list(target), chain, task)
        self.weight = None if weight is None else Weight(weight)
        self.keep = as_list(keep)
        self.allow_leak = as_list(allow_leak)
        self.lineage_: str | None = None
        self.left_out: list[str] = []
        self.omitted: list[str] = []
        steps = [step for group in self._learned for step in group.steps]
        if len({id(step) for step in steps}) < len(steps):
            raise BadConfig(
                "Features",
                "one step stands in two places",
                got=[repr(step) for step in steps],
                expected="a step of its own in each place, since each learns its own state",
                remedy="a second one with the same parameters",
            )
        if not self.groups:
            raise BadConfig(
                "Features", "no columns are given", expected="at least one group", remedy="Features(['distance'])"
            )
        needing = [type(step).__name__ for step in steps if hasattr(step, "needs_target")] if self._cross_fits else []
        needing += [] if task == "auto" else ["task"]
        needing += [] if chain in ("auto", []) else ["target_transform"]
        if self.target is None and needing:
            raise BadConfig(
                f"Features, {needing[-1]}",
                "there is no target",
                expected="the column or expression it learns from",
                remedy="Features(..., target='arr_delay')",
            )

    @classmethod
    def auto(
        cls,
        data: Any,
        *,
        target: str | Sequence[str] | None = None,
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        min_frequency: int | None = None,
    ) -> Features:
        """Propose features by the columns' dtypes; the result's `repr` is the code that builds it.

        Numbers are imputed by the median and scaled; booleans are imputed by the most frequent; strings, and integers
        with at most 32 distinct values in the first 10,000 rows, become ids, and so do strings and integers in lists;
        times become the year, weekends and places in the year, the week and the day, imputed and scaled. Left out are
        numbers and times without a value in the first 10,000 rows, types that no step takes, and the row names that
        pandas writes (a column with an empty name, or `__index_level_0__`); the log, the `repr` and the fit report name
        them. It knows nothing of what the columns mean: look for those that are only known after the target is.

        Args:
            data: a Dataset or a frame; or a Schema, and then all integers are amounts.
            target: as for `Features`; its columns become no features.
            weight: the same.
            keep: the same.
            min_frequency: strings and ids that are rarer are all one; by default 10, and in a table of less than 10,000
                rows every value is kept.

        Raises:
            BadConfig: no column is left.

        Memory: the first 10,000 rows of the columns of numbers and times.

        Example:
            >>> from gpupipe.schema import Field, Schema
            >>> Features.auto(Schema([Field("distance", "float64"), Field("late", "bool")]), target="late")
            Features(
                (['distance'], [SimpleImputer(strategy='median'), StandardScaler()]),
                target='late',
            )
        """
        _check_labels("Features.auto", target, weight, keep)
        dataset = None if isinstance(data, Schema) else as_dataset(data)
        schema: Schema = data if dataset is None else dataset.schema
        taken = {*as_list(keep)}
        taken.update([] if target is None else TargetSet(as_list(target)).reads(schema))
        taken.update([] if weight is None else Weight(weight).reads(schema))
        ids, useless, is_small = _look_at_rows(schema, dataset)
        least = _MIN_FREQUENCY if min_frequency is None and not is_small else min_frequency
        free = [item for item in schema if item.name not in taken and item.name not in useless]
        groups = _propose_groups(free, ids, least)
        made = cls(*groups, target=target, weight=weight, keep=keep)
        used = taken.union(*(names for names, _ in groups))
        reasons = {item.name: useless.get(item.name, item.dtype) for item in schema if item.name not in used}
        made.omitted = [f"{name or repr(name)} ({reason})" for name, reason in reasons.items()]
        for note in made._omissions:
            _log.info("%s", note)
        for name in sorted(taken - set(schema.names)):
            _log.warning("Features.auto: no column %r is there: a step before the features has to make it", name)
        return made

    def _resolve(self, schema: Schema, *, strict: bool) -> None:
        """Resolve selectors against the columns after the transforms, which may lack some unless `strict`."""
        self.left_out = self._omissions
        if not any(group.selector is not None for group in self.groups):
            return
        there = [label for label in self._labels if label.is_in(schema)]
        named = {name for label in there for name in label.reads(schema)}
        secret = {source for name in named for source in schema[name].lineage | {name}} - set(self.allow_leak)
        kept = named | set(self.keep)
        tied = {item.name for item in schema if (item.lineage | {item.name}) & secret} - kept
        for position, group in enumerate(self.groups):
            if group.selector is None:
                continue
            if strict:
                group.selector.check(schema)
            taken = [item.name for item in schema if group.selector.takes(item)]
            lost = [name for name in taken if name in tied]
            sources = sorted({source for name in lost for source in schema[name].lineage | {name}} & secret)
            chosen = [name for name in taken if name not in kept | tied]
            if strict and not chosen:
                raise BadConfig(
                    f"Features({group.selector!r})",
                    "it chooses no column that may be a feature",
                    got=taken,
                    expected=f"one at least of {sorted({*schema.names} - kept - tied)}",
                    remedy=f"allow_leak={sources} if that is meant" if lost else "another selector, or names",
                )
            self.groups[position] = replace(group, columns=chosen)
            reason = f"computed from {', '.join(sources)}, as the target or weight is"
            of_labels = [name for name in taken if name in named]
            told = {"the target or weight": of_labels, f"{reason}; Features(allow_leak={sources}) takes them": lost}
            for reason, names in told.items():
                self.left_out += [f"{group.selector!r} leaves out {shorten_list(names)}: {reason}"] if names else []

    def __repr__(self) -> str:
        lines = []
        for group in self.groups:
            shown = format_names(group.columns, single=False) if group.selector is None else repr(group.selector)
            if group.steps or group.name:
                shown = f"({shown}, {group.steps!r}{'' if group.name is None else f', {group.name!r}'})"
            lines.append(shown)
        if self.target is not None:
            texts, steps = self.target.group.columns, self.target.group.steps
            lines.append(f"target={(texts[0] if len(texts) == 1 else texts)!r}")
            if self.target.task != "auto" and (self.target.auto or not steps):
                lines.append(f"task={self.target.task!r}")
            if not self.target.auto:
                lines.append(f"target_transform={steps or None!r}")
        lines += [] if self.weight is None else [f"weight={self.weight.text!r}"]
        lines += [
            f"{name}={format_names(getattr(self, name))}" for name in ("keep", "allow_leak") if getattr(self, name)
        ]
        lines = [f"    {line},\n" for line in lines]
        lines += [f"    # left out: {shorten_list(self.omitted, _SHOWN)}\n"] if self.omitted else []
        return f"Features(\n{''.join(lines)})"

    def __copy__(self) -> Features:
        """Copy the steps and labels too; what was learned is shared."""
        made = object.__new__(type(self))
        parts = {"groups": list(map(copy, self.groups)), "target": copy(self.target), "weight": copy(self.weight)}
        vars(made).update(vars(self) | parts)
        return made

    @property
    def _omissions(self) -> list[str]:
        return [f"Features.auto leaves out {shorten_list(self.omitted, _SHOWN)}"] if self.omitted else []

    @property
    def _learned(self) -> list[FeatureGroup]:
        """The groups, and that of the target where it goes through steps."""
        return self.groups + ([self.target.group] if self.target is not None and self.target.group.steps else [])

    @property
    def _cross_fits(self) -> bool:
        """Whether a step learns from the target, so that training rows need out-of-fold values."""
        return any(group.cross_fits for group in self.groups)

    @property
    def inputs(self) -> set[str]:
        """The columns the groups read once they are fitted."""
        return {name for group in self.groups for name in group.looks_at}

    def _label_reads(self, schema: Schema) -> set[str]:
        """Return the columns that target and weight read."""
        return {name for label in self._labels for name in label.reads(schema)}

    def _constants(self, schema: Schema) -> list[str]:
        """List the target or weight that reads no column, such as the name `1960` where no column has it."""
        each = [*([] if self.target is None else self.target.each), *([] if self.weight is None else [self.weight])]
        return [label.text for label in each if not label.reads(schema)]

    def _output_schema(self, schema: Schema, in_fit: Schema | None = None) -> Schema:
        """Return the schema of features, then target and weight where `schema` has their columns, then kept columns.

        A fitted step may look at fewer columns than it was fitted on; these are those of `in_fit`.
        """
        fields: list[Field] = []
        for group in self.groups:
            made = group.fields(schema if in_fit is None else in_fit)
            fields += [_feature(replace(item, name=group.rename(item.name))) for item in made]
        taken = {item.name for item in fields}
        for label in (label for label in self._labels if label.is_in(schema)):
            fields += [replace(item, name=_name_label(label, item.name, taken)) for item in label.fields(schema)]
        taken = {item.name for item in fields}
        fields += [replace(schema[n], name=out, role=Role.KEEP) for n, out in self._kept(schema, taken).items()]
        try:
            return Schema(fields)
        except BadConfig as error:
            remedy = "a name for one of the feature groups, (columns, steps, 'name'), or a column renamed before"
            raise BadConfig("Features", error.problem, got=error.got, expected=error.expected, remedy=remedy) from None

    def _reset(self) -> None:
        """Clear what an earlier `fit` learned about the target, the weight and the rows."""
        for label in self._labels:
            label.reset()
        self.lineage_ = None

    def _bind(self, schema: Schema) -> None:
        """Set `schema` as that after the transforms in the fit: a target or weight named by a column stays one."""
        for label in self._labels:
            label.bind(schema)

    @property
    def _labels(self) -> list[TargetSet | Weight]:
        return [label for label in (self.target, self.weight) if label is not None]

    def _kept(self, schema: Schema, taken: AbstractSet[str]) -> dict[str, str]:
        """Map the kept columns that exist to their output names, which are the same with labels and without."""
        texts = [] if self.target is None else self.target.group.columns
        taken = taken | {name for label in self._labels for name in (label.text, str(label.role), *texts)}
        return {name: f"{name}_keep" if name in taken else name for name in self.keep if name in schema}

    def _check_leaks(self, schema: Schema) -> None:
        """Raise `LeakageError` for a feature computed from a column the target is computed from."""
        if self.target is None:
            return
        secret = self.target.lineage(schema) - set(self.allow_leak)
        for group in self.groups:
            for item in group.fields(schema):
                leaked = sorted(item.lineage & secret)
                if leaked:
                    raise LeakageError(
                        f"feature {item.name!r}",
                        f"it is computed from {leaked}, which the target {self.target.text!r} is computed from too",
                        expected="features that are known before the target is",
                        remedy=f"leave it out, or allow_leak={leaked} if that is meant",
                    )

    def _columns(
        self, frame: Frame, schema: Schema, backend: Backend, row_ids: Array | None = None, *, stored: bool = False
    ) -> Mapping[str, Column]:
        """Compute all columns of `output_schema(schema)` for one frame, under their output names.

        With `row_ids`, the identity of each row, features learned from the target are out of fold. The target is in its
        own units, unless it is to be as it is `stored`.
        """
        made = [group.renamed(group.compute_columns(frame, backend, row_ids=row_ids)) for group in self.groups]
        there = [label for label in self._labels if label.is_in(schema)]
        taken = set[str]().union(*made) if there or self.keep else set[str]()
        labels = {
            _name_label(label, name, taken): column
            for label in there
            for name, column in label.columns(frame, schema, backend, stored=stored).items()
        }
        taken |= labels.keys()
        kept = {out: backend.column(frame, name) for name, out in self._kept(schema, taken).items()}
        return chain_columns(*made, labels, kept)

    def _label_sources(self, schema: Schema) -> list[str]:
        """List the columns of the data that target-learning steps and the target read, by the transformed `schema`."""
        names = {name for group in self.groups if group.cross_fits for name in group.columns}
        names |= set() if self.target is None else set(self.target.reads(schema))
        return sorted({source for name in names for source in schema[name].lineage})

    def _check_rows(self, lineage: str | None, out_of_fold: bool | None) -> None:
        """Raise where rows to train on, of this id, would leak their own target to a model."""
        if not self._cross_fits or self.lineage_ is None:
            return
        names = [name for group in self.groups if group.cross_fits for name in group.columns]
        same = lineage == self.lineage_
        if out_of_fold is None and same:
            raise LeakageError(
                "loader",
                f"these are the rows the pipeline was fitted on, and features of {names} hold their own target",
                expected="features learned from the target of other rows",
                remedy="loader(train, out_of_fold=True); False if that is meant, as to look at how a model overfits",
            )
        if out_of_fold and not same:
            raise BadConfig(
                "loader(out_of_fold=True)",
                "not the rows of the fit",
                got="other files, another query, or other values or another order of rows in memory",
                expected="the dataset or frame that was fitted on",
                remedy="loader(data) for rows that were not fitted on, or pipeline.fit(data) on these first",
            )


def _name_label(label: TargetSet | Weight, name: str, taken: AbstractSet[str]) -> str:
    """Return a label's output name: its role for an expression, or its text where a feature has that name."""
    return label.text if name in taken and name == label.role else name


def _check_labels(owner: str, target: Any, weight: Any, keep: Any) -> None:
    check_names(owner, None, empty=False, target=target)
    check_name(owner, None, weight=weight)
    check_names(owner, keep=keep)


def _to_chain(target_transform: Any) -> list[LearnedStep] | Literal["auto"]:
    if isinstance(target_transform, str):
        if target_transform == "auto":
            return "auto"
        raise refuse_choice("Features", "target_transform", target_transform, ["auto", None], "steps")
    given = () if target_transform is None else target_transform
    return list(given) if isinstance(given, list | tuple) else [to_learned_step(given)]


def _feature(item: Field) -> Field:
    of_lists = get_element_dtype(item.dtype) in ("string", "timestamp")
    if item.kind not in (Kind.TEXT, Kind.TIME) and not of_lists:
        return replace(item, role=Role.FEATURE)
    remedy = "another column" if of_lists else f"T.{derive(item.name, 'hour({})', 'hour')}"
    remedy = "pre.Categorify()" if item.kind == Kind.TEXT or item.dtype == "list<string>" else remedy
    raise SchemaMismatch(
        f"feature {item.name!r}",
        f"{item.dtype} values cannot be fed to a network",
        expected="lists of ids or numbers" if of_lists else "numbers or ids",
        remedy=remedy if of_lists else f"{remedy}, or keep=[{item.name!r}] to carry it beside the features",
    )


def _look_at_rows(schema: Schema, dataset: Dataset | None) -> tuple[set[str], dict[str, str], bool]:
    """Look at the first rows: which integers are few, which columns tell nothing and why, and whether these are all."""
    useless = {name: "row names, as pandas writes them" for name in schema.names if _ROW_NAMES.fullmatch(name)}
    names = [item.name for item in schema if item.dtype in (*INTEGERS, *FLOATS, "bool", "string", "timestamp")]
    first = () if dataset is None else dataset.select(names or schema.names[:1]).head(_LOOKED_AT)
    is_small = dataset is not None and len(first) < _LOOKED_AT
    if not names or not len(first):
        return set(), useless, is_small
    backend = infer_backend(first)
    xp, coded, there = backend.xp, backend.encode(first), dict[str, Array]()
    for name in names:
        column = backend.column(coded, name)
        missing = column.missing(xp)
        there[name] = column.data if missing is None else column.data[~missing]
    empty = {name: f"no value in the first {_LOOKED_AT:,} rows" for name, data in there.items() if not len(data)}
    whole = [item.name for item in schema if item.dtype in INTEGERS and item.name not in empty]
    return {name for name in whole if len(xp.unique(there[name])) <= _FEW}, empty | useless, is_small


def _propose_groups(
    free: Sequence[Field], ids: AbstractSet[str], least: int | None
) -> list[tuple[list[str], list[LearnedStep]]]:
    """Propose groups of columns and their steps; `ids` are integers that are names of things, not amounts."""
    words = [i.name for i in free if i.dtype == "string" or i.kind == Kind.CATEGORICAL or i.name in ids]
    amounts = [i.name for i in free if i.dtype in (*FLOATS, *INTEGERS) and i.name not in words]
    flags = [i.name for i in free if i.dtype == "bool"]
    times = [i.name for i in free if i.dtype == "timestamp"]
    several = [i.name for i in free if get_element_dtype(i.dtype) in ("string", *INTEGERS)]
    groups: list[tuple[list[str], list[LearnedStep]]] = [
        (amounts, [SimpleImputer(strategy="median"), StandardScaler()]),
        (flags, [SimpleImputer(strategy="most_frequent")]),
        (words, [Categorify(min_frequency=least)]),
        (several, [Categorify(min_frequency=least)]),
        (times, [DatetimeEncoder(), SimpleImputer(strategy="median"), StandardScaler()]),
    ]
    return [(names, steps) for names, steps in groups if names]
