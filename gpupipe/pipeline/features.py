"""Features: columns with their learned steps, target, weight and keys; and a default set for a table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from gpupipe import preprocessing as pre
from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.columns import chain_columns
from gpupipe.errors import BadConfig, LeakageError, SchemaMismatch
from gpupipe.io import as_dataset
from gpupipe.pipeline.auto_features import ITS_TEXTS, look_at_rows, propose_groups
from gpupipe.pipeline.feature_group import FeatureGroup, GroupFields, format_names, to_feature_group, to_learned_step
from gpupipe.pipeline.labels import Weight
from gpupipe.pipeline.row_sets import RowSet
from gpupipe.pipeline.target import TASKS, TargetSet, decide_task
from gpupipe.schema import Field, Kind, Role, Schema, get_element_dtype, shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.origins import ANY_ROW, Origins, When, comes_later, find_leaks, is_key, shift
from gpupipe.support.text import derive, escape_line, format_count, refer_to
from gpupipe.support.validation import as_list, check_choice, check_name, check_names, refuse_choice
from gpupipe.transforms import WholeTableTransform

_log = logging.getLogger("gpupipe")
_EARLIER_WINDOWS = ("Expanding", "Lag", "Rolling")  # which may hold earlier rows alone
_WINDOWS = (*_EARLIER_WINDOWS, "CumulativeCount", "Difference")
_SHOWN = 12  # columns that are left out
_LEFT_OUT = {"evaluate": "valid", "calibrate": "calibration"}  # what rows to judge a scorer by are called


@answer_calls
class Features:
    """Step from frame to tensors: feature groups, target, weight and kept columns.

    Args:
        groups: each `(columns, step or steps)`, `(columns, steps, name)` (outputs are called `name_output`) or just
            columns, or a column's name; a mapping from columns to steps stands for a group each. A scikit-learn or cuML
            estimator may be a step. A selector of `gpupipe.selectors` chooses columns at each `fit`, among those that
            are not the target, the weight, kept, or computed from what these are computed from (`explain` and the fit
            report name those).
        target: the label column, or an expression over label columns; a list of several conditions (of 0 and 1), or of
            several numbers, makes a model with as many outputs.
        task: `"classification"`, `"regression"`, or `"auto"`, which decides as scikit-learn's `type_of_target` and logs
            why: conditions, booleans, strings and two distinct whole numbers are classes; with a warning, up to 20
            distinct whole numbers are, each in two rows or more on average; other numbers are a regression's. Of whole
            numbers the first fit decides for all later ones, because more rows could make the other task of them.
        target_transform: steps a regression's target goes through before it is learned, such as `[pre.Log1p()]`;
            `"auto"` standardises it, None leaves it. Predictions and metrics are in its own units.
        weight: the column or expression of sample weights.
        keep: columns carried along with the features and never fed to a model.
        allow_leak: features that may hold the target all the same, each by its column's own name; the fit report notes
            them, but not what alone tells the target. What is known before needs no permission: a `Lag` back, or a
            window with `closed="left"`, of a target, where no rows of a key are alike in `order_by`.

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
        target_transform: pre.LearnedStep | Sequence[pre.LearnedStep] | str | None = "auto",
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        allow_leak: str | Sequence[str] = (),
    ) -> None:
        listed = (argument.items() if isinstance(argument, Mapping) else [argument] for argument in groups)
        self.groups = [to_feature_group(entry) for entries in listed for entry in entries]
        _check_labels("Features", target, weight, keep)
        check_choice("Features", TASKS, task=task)
        check_names("Features", allow_leak=allow_leak)
        chain = _to_chain(target_transform)
        self.target = None if target is None else TargetSet(as_list(target), chain, task)
        self.weight = None if weight is None else Weight([weight])
        self.keep, self.allow_leak = as_list(keep), as_list(allow_leak)
        self.lineage_: str | None = None
        self._fitted_rows: RowSet | None = None  # not saved
        self.left_out: list[str] = []
        self.omitted: list[str] = []
        self.remarks: list[str] = []
        self.constants: AbstractSet[str] = frozenset()
        steps = self._steps
        if len({id(step) for step in steps}) < len(steps):
            problem, got = "one step stands in two places", [repr(step) for step in steps]
            expected = "a step of its own in each place, since each learns its own state"
            remedy = "a second one with the same parameters"
            raise BadConfig("Features", problem, got=got, expected=expected, remedy=remedy)
        if not self.groups:
            expected, remedy = "at least one group", "Features(['distance'])"
            raise BadConfig("Features", "no columns are given", expected=expected, remedy=remedy)
        needing = [type(step).__name__ for step in steps if hasattr(step, "needs_target")] if self._cross_fits else []
        needing += [] if task == "auto" else ["task"]
        needing += [] if chain in ("auto", []) else ["target_transform"]
        if self.target is None and needing:
            expected, remedy = "the column or expression it learns from", "Features(..., target='arr_delay')"
            raise BadConfig(f"Features, {needing[-1]}", "there is no target", expected=expected, remedy=remedy)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise BadConfig for labels that are set afterwards: the constructor makes them what a fit learns."""
        kinds: Mapping[str, Any] = {"target": TargetSet, "weight": Weight, "task": (), "target_transform": ()}
        if name in kinds and value is not None and not isinstance(value, kinds[name]):
            where, expected = f"Features.{name} = ...", "an argument of the constructor"
            remedy = f"gp.Features(..., {name}={value!r})"
            raise BadConfig(where, "it is chosen before", got=value, expected=expected, remedy=remedy)
        super().__setattr__(name, value)

    @classmethod
    def auto(
        cls,
        data: Any,
        *,
        target: str | Sequence[str] | None = None,
        task: str = "auto",
        weight: str | None = None,
        keep: str | Sequence[str] = (),
        min_frequency: int | None = None,
    ) -> Features:
        """Propose features by the columns' dtypes; the result's `repr` is the code that builds it, if not too long.

        Numbers are imputed by the median and scaled; strings and booleans with missing values become ids, and so do
        strings and integers in lists; integers of few values (in the first 10,000 rows at most 32, or at most 256 of 40
        rows each) become both, numbers called `number_<column>` and ids; times become the year, weekends and places in
        the year, the week and the day, imputed and scaled. Where numbers or times are missing in these rows, a feature
        `<column>_missing` or `<column>_year_missing` says so. Left out, and named by the log, the `repr` and the fit
        report, are columns without a value in any row, types that no step takes, row names that pandas writes (an empty
        name, or `__index_level_0__`), and what earlier pipelines computed from the target's columns. Said in the same
        places of columns that are taken: ids that no two rows share, one value in all rows, text that stands for
        numbers, money, percent or dates, a few marks such as `-` apart, with the steps that parse it, text of many
        values, with a step for its parts, and what alone tells the target, by its values, their order or where they are
        missing. It knows nothing of what the columns mean: look for those that are only known after the target is.

        `data` may be a Schema too, and then all integers are amounts. The columns of `target`, `weight` and `keep`
        become no features, nor does one by whose groups `data` was split, `split(by=, fraction=)`. A target of whole
        numbers other than 0 and 1 has its task written down where there are less than 10,000 rows, since part of them
        could decide otherwise. Strings and ids rarer than `min_frequency` are all one; by default 5, in less than 1,000
        rows none.

        Raises `BadConfig`: no column is left.
        Memory: the first 10,000 rows of the columns of numbers and times; a column without a value there is read on.

        Example:
            >>> from gpupipe.schema import Field, Schema
            >>> Features.auto(Schema([Field("distance", "float64"), Field("late", "bool")]), target="late")
            Features(
                (['distance'], [SimpleImputer(strategy='median'), StandardScaler()]),
                target='late',
            )
        """
        _check_labels("Features.auto", target, weight, keep)
        check_choice("Features.auto", TASKS, task=task)
        dataset = None if isinstance(data, Schema) else as_dataset(data)
        schema: Schema = data if dataset is None else dataset.schema
        labels = set() if target is None else {*TargetSet(as_list(target)).reads(schema)}
        role_names = {*as_list(keep), *labels, *([] if weight is None else Weight([weight]).reads(schema))}
        first = look_at_rows(schema, dataset, target if isinstance(target, str) and target else None)
        secret: Origins = frozenset().union(*(item.origins for item in schema if item.name in labels))
        leaks = {item.name: find_leaks(item.origins, secret) for item in schema}
        useless = {
            name: f"computed from {', '.join(sources)}, as the target is" for name, sources in leaks.items() if sources
        }
        useless |= first.useless
        for name in [] if dataset is None else dataset.group_columns:
            useless[name] = "rows were split by it: the other part has none of its values"
        least = first.min_frequency if min_frequency is None else min_frequency
        free = [item for item in schema if item.name not in role_names and item.name not in useless]
        groups = propose_groups(free, first, least)
        used = role_names.union(*(group[0] for group in groups))
        reasons = {item.name: useless.get(item.name, item.dtype) for item in schema if item.name not in used}
        omitted = [f"{name or repr(name)} ({reason})" for name, reason in reasons.items()]
        if not groups:
            roles = {name: "kept" if name in as_list(keep) else "the weight" for name in role_names}
            roles |= dict.fromkeys(labels, "the target")
            why = [*(f"{name} ({roles[name]})" for name in schema.names if name in roles), *omitted]
            leaked = [name for name in reasons if leaks[name] and schema[name].dtype != "timestamp"]
            remedy = "a table of more columns"
            if leaked:
                options = (
                    f"target={target!r}, {f'keep={format_names(as_list(keep))}, ' if keep else ''}allow_leak={leaked!r}"
                )
                remedy = f"gp.Pipeline(steps, gp.Features({leaked!r}, {options})) if they are known before the target"
            elif names := [name for name in as_list(keep) if name in schema and name not in labels]:
                remedy = f"keep={format_names([name for name in as_list(keep) if name != names[0]])}"
            problem = f"no column is left to be a feature: {shorten_list(why, _SHOWN) or 'there is none'}"
            raise BadConfig("Features.auto", problem, expected="a column besides these", remedy=remedy)
        doubt = ""
        if task == "auto" and dataset is not None and target is not None:
            task, doubt = decide_task(TargetSet(as_list(target)), dataset)
        features = cls(*groups, target=target, task=task, weight=weight, keep=keep)
        features.omitted = omitted
        remarks = {name: first.remarks.get(name, "") for name in schema.names if name in labels}
        texts = {name: remark for name, remark in remarks.items() if remark.startswith(ITS_TEXTS)}
        features.remarks = [f"the target {escape_line(name)}: {remark}" for name, remark in texts.items()]
        features.remarks += [doubt] if doubt else []
        features.remarks += [
            f"{escape_line(item.name)}: {first.remarks[item.name]}" for item in free if first.remarks.get(item.name)
        ]
        features.constants = first.constants
        for line in features._proposal_notes():
            _log.warning("%s", line)
        for name in sorted(role_names - set(schema.names)):
            _log.warning("Features.auto: no column %r is there: a step before the features has to make it", name)
        return features

    def _resolve(self, schema: Schema, *, strict: bool) -> None:
        """Resolve selectors against the columns after the transforms, which may lack some unless `strict`."""
        self.left_out = self._proposal_notes()
        if not any(group.selector is not None for group in self.groups):
            return
        labels = [label for label in self._labels if label.is_in(schema)]
        named = {name for label in labels for name in label.reads(schema)}
        role_names = named | set(self.keep)
        secret: Origins = frozenset().union(*(label.origins(schema) for label in labels))
        leaks = {item.name: find_leaks(item.origins, secret) for item in schema if item.name not in self.allow_leak}
        tied = {name for name, sources in leaks.items() if sources} - role_names
        for position, group in enumerate(self.groups):
            if group.selector is None:
                continue
            if strict:
                group.selector.check(schema)
            matches = [item.name for item in schema if group.selector.takes(item)]
            lost = [name for name in matches if name in tied]
            sources = sorted({source for name in lost for source in leaks[name]})
            columns = [name for name in matches if name not in role_names | tied]
            if strict and not columns:
                where, problem = f"Features({group.selector!r})", "it chooses no column that may be a feature"
                expected = f"one at least of {sorted({*schema.names} - role_names - tied)}"
                remedy = f"allow_leak={lost} if that is meant" if lost else "another selector, or names"
                raise BadConfig(where, problem, got=matches, expected=expected, remedy=remedy)
            self.groups[position] = replace(group, columns=columns)
            reason = f"computed from {', '.join(sources)}, as the target or weight is; "
            reason += f"Features(allow_leak={lost}) takes them"
            exclusions = {"the target or weight": [name for name in matches if name in named], reason: lost}
            for reason, names in exclusions.items():
                self.left_out += [f"{group.selector!r} leaves out {shorten_list(names)}: {reason}"] if names else []

    def _proposal_notes(self) -> list[str]:
        """List what `auto` has left out, and what it has seen in columns that it took."""
        notes = [f"Features.auto leaves out {shorten_list(self.omitted, _SHOWN)}"] if self.omitted else []
        more = len(self.remarks) - _SHOWN
        notes += [f"Features.auto takes {remark}" for remark in self.remarks[:_SHOWN]]
        return notes + ([f"Features.auto says as much of {more} columns more"] if more > 0 else [])

    def __repr__(self) -> str:
        lines = []
        for group in self.groups:
            text = format_names(group.columns, single=False) if group.selector is None else repr(group.selector)
            if group.steps or group.name:
                text = f"({text}, {group.steps!r}{'' if group.name is None else f', {group.name!r}'})"
            lines.append(text)
        if self.target is not None:
            texts, steps = self.target.texts, self.target.group.steps
            lines.append(f"target={(texts[0] if len(texts) == 1 else texts)!r}")
            if self.target.task != "auto" and (self.target.auto or not steps):
                lines.append(f"task={self.target.task!r}")
            if not self.target.auto:
                lines.append(f"target_transform={steps or None!r}")
        lines += [] if self.weight is None else [f"weight={self.weight.text!r}"]
        lines += [f"keep={format_names(self.keep)}"] if self.keep else []
        lines += [f"allow_leak={format_names(self.allow_leak)}"] if self.allow_leak else []
        lines = [f"    {line},\n" for line in lines]
        lines += [f"    # left out: {shorten_list(self.omitted, _SHOWN)}\n"] if self.omitted else []
        lines += [f"    # {remark}\n" for remark in self.remarks[:_SHOWN]]
        more = len(self.remarks) - _SHOWN
        lines += [f"    # as much of {more} columns more\n"] if more > 0 else []
        return f"Features(\n{''.join(lines)})"

    def __copy__(self) -> Features:
        """Copy the steps and labels too; what was learned is shared."""
        features = object.__new__(type(self))
        parts = {"groups": list(map(copy, self.groups)), "target": copy(self.target), "weight": copy(self.weight)}
        vars(features).update(vars(self) | parts)
        return features

    @property
    def _learned(self) -> list[FeatureGroup]:
        """The groups, and that of the target where it goes through steps."""
        return self.groups + ([self.target.group] if self.target is not None and self.target.group.steps else [])

    @property
    def _steps(self) -> list[pre.LearnedStep]:
        return [step for group in self._learned for step in group.steps]

    @property
    def _cross_fits(self) -> bool:
        """Whether a step learns from the target, so that training rows need out-of-fold values."""
        return any(group.cross_fits for group in self.groups)

    @property
    def inputs(self) -> set[str]:
        """The columns the groups read once they are fitted."""
        return {name for group in self.groups for name in group.looks_at}

    def _label_reads(self, schema: Schema) -> set[str]:
        return {name for label in self._labels for name in label.reads(schema)}

    def _output_fields(self, schema: Schema) -> GroupFields:
        return [(group, group.fields(schema)) for group in self.groups]

    def _output_schema(self, schema: Schema, outputs: GroupFields) -> Schema:
        """Return the schema of features, the `outputs`, and of labels and kept columns that are there."""
        fields = [_feature(item, group.rename(item.name)) for group, group_fields in outputs for item in group_fields]
        names = {item.name for item in fields}
        for label in (label for label in self._labels if label.is_in(schema)):
            fields += [replace(item, name=label.rename(item.name, names)) for item in label.fields(schema)]
        names = {item.name for item in fields}
        fields += [replace(schema[n], name=out, role=Role.KEEP) for n, out in self._name_keep(schema, names).items()]
        try:
            return Schema(fields)
        except BadConfig as error:
            name, texts = error.got, [] if self.target is None else self.target.texts
            if self.weight is not None and name == self.weight.text and name in texts:
                problem, expected = "the weight is the target", "another column, or an expression"
                remedy = f"no weight=; weight={f'1.0 * {refer_to(name)}'!r}, if larger targets count more"
                raise BadConfig("Features(weight=)", problem, got=name, expected=expected, remedy=remedy) from None
            remedy = "a name for one of the feature groups, (columns, steps, 'name'), or a column renamed before"
            raise BadConfig("Features", error.problem, got=error.got, expected=error.expected, remedy=remedy) from None

    @property
    def _labels(self) -> list[TargetSet | Weight]:
        return [label for label in (self.target, self.weight) if label is not None]

    def _name_keep(self, schema: Schema, names: AbstractSet[str]) -> dict[str, str]:
        """Map the kept columns that exist to their output names, which are the same with labels and without."""
        names = names | {name for label in self._labels for name in (label.text, str(label.role), *label.texts)}
        return {name: f"{name}_keep" if name in names else name for name in self.keep if name in schema}

    def _check_leaks(self, schema: Schema) -> list[str]:
        """Raise for a feature that holds the target, unless that is allowed; return notes on those that are."""
        columns = self._column_origins(schema)
        for name in self.allow_leak:
            if name not in columns:
                expected = f"features, each by its column's own name: {shorten_list(map(repr, columns), _SHOWN)}"
                remedy = "allow_leak=[] first: the error then names the features that need it"
                problem = "no feature is called so"
                raise BadConfig("Features(allow_leak=)", problem, got=name, expected=expected, remedy=remedy)
        if self.target is None:
            return []
        secret = self.target.origins(schema)
        leaks = {name: sources for name, origins in columns.items() if (sources := find_leaks(origins, secret))}
        lookups = {name for name in leaks if not find_leaks(_list_values(columns[name]), secret)}
        reasons = {
            name: f"it is {'of rows that are found by' if name in lookups else 'computed from'} {sources}, "
            f"which the target {self.target.text!r} is computed from too"
            for name, sources in leaks.items()
        }
        refused = [name for name in leaks if name not in self.allow_leak]
        if not refused:
            return [f"feature {name!r} may leak, as allow_leak permits: {why}" for name, why in reasons.items()]
        name = min(refused, key=lookups.__contains__)  # what holds values of the target first
        remainder, condition = [each for each in refused if each != name], "if that is meant"
        if name in lookups:
            keys = sorted({key for lookup in refused for key in leaks[lookup]})
            condition = f"if {keys} are known before the target is, as the time of a row may be"
        remedy = f"leave {'them' if remainder else 'it'} out, or {self._format_permission(refused)} {condition}"
        why, step, whens = reasons[name], schema[name].step, {origin.when for origin in columns[name]}
        is_later = any(map(comes_later, columns[name]))
        if _follows_order(columns[name], secret):
            why = "its step has no order_by that tells all rows apart, and they stand in the order of "
            why += f"{leaks[name]}, which the target {self.target.text!r} is computed from too"
            remedy = f"order_by= in its step, such as a time, or data.sort() by it before; or {remedy}"
        elif is_later and When.POSITION in whens and step in _EARLIER_WINDOWS and name not in lookups:
            remedy = f"order_by= in its step, such as a time, which tells what rows are earlier; or {remedy}"
        elif not is_later and step != "JoinAsOf" and _reads_ties(columns[name]):
            of_join = "" if step in _WINDOWS else ", or allow_exact_matches=False of a join_asof"
            remedy = f"a column in order_by of its step that tells rows of one time apart{of_join}; or {remedy}"
        if step in ("Rolling", "Expanding") and not is_later and name not in lookups:
            remedy = f"T.{step}(..., closed='left'), which leaves out the row's own value; or {remedy}"
        expected = "features that are known before the target is, as lags and windows of earlier rows are"
        raise LeakageError(f"feature {name!r}", why + _name_remainder(remainder), expected=expected, remedy=remedy)

    def _format_permission(self, refused: Sequence[str]) -> str:
        """Format the argument that permits all these features to leak, besides those that may already."""
        return f"Features(allow_leak={[*self.allow_leak, *refused]!r})"

    def _column_origins(self, schema: Schema) -> dict[str, Origins]:
        columns: dict[str, Origins] = {}
        for group in self.groups:
            stats = [step for step in group.steps if isinstance(step, pre.GroupStats | pre.CountEncoder)]
            whens = ANY_ROW if stats else (When.NOW,)
            keys = {name for step in stats for name in as_list(getattr(step, "by", group.columns))}
            found_by = [shift(schema[name].origins, When.KEY) for name in keys if name in schema]
            for name in group.columns:
                columns[name] = columns.get(name, frozenset()).union(shift(schema[name].origins, *whens), *found_by)
        return columns

    def _check_ties(
        self, schema: Schema, before: Schema, after: Schema, step: WholeTableTransform, num_ties: int
    ) -> list[str]:
        """Raise for a feature that only holds the target where the order of a window has ties; as `_check_leaks`.

        `schema` is that of the columns where it has, `before` where it has not, `after` where those of all steps have.
        """
        if self.target is None:
            return []
        notes, earlier, order = [], self._column_origins(before), [*step.keys, *step.order]
        for name, origins in self._column_origins(schema).items():
            leaked = find_leaks(origins, self.target.origins(schema))
            if not leaked or find_leaks(earlier[name], self.target.origins(before)):
                continue
            rows, target = format_count(num_ties, "row"), self.target.text
            why = f"in the order of {step.class_name}, by {order}, {rows} are alike to the row before, so that it may "
            why += f"tell {leaked} of the row's own time, which the target {target!r} is computed from"
            if name in self.allow_leak:
                notes.append(f"feature {name!r} may leak, as allow_leak permits: {why}")
                continue
            remedy = f"a column in order_by that tells these apart, or data.group_by({order}).agg(...) first; "
            secret = self.target.origins(after)
            columns = self._column_origins(after)
            leaks = [each for each in columns if find_leaks(columns[each], secret)]
            refused = [each for each in leaks if each not in self.allow_leak]
            remedy += f"or {self._format_permission(refused)} if that is meant"
            expected = "rows of which order_by tells which is earlier"
            why += _name_remainder([each for each in refused if each != name])
            raise LeakageError(f"feature {name!r}", why, expected=expected, remedy=remedy)
        return notes

    def _columns(
        self, frame: Frame, schema: Schema, backend: Backend, row_ids: Array | None = None, *, stored: bool = False
    ) -> Mapping[str, Column]:
        """Compute all columns of `_output_schema` for one frame; see `compute_columns`, `TargetSet.columns`."""
        groups = [group.renamed(group.compute_columns(frame, backend, row_ids=row_ids)) for group in self.groups]
        labels = [label for label in self._labels if label.is_in(schema)]
        names = set[str]().union(*groups) if labels or self.keep else set[str]()
        label_columns = {
            label.rename(name, names): column
            for label in labels
            for name, column in label.columns(frame, schema, backend, stored=stored).items()
        }
        names |= label_columns.keys()
        keep_columns = {out: backend.column(frame, name) for name, out in self._name_keep(schema, names).items()}
        return chain_columns(*groups, label_columns, keep_columns)

    def _mark_own_target(self, schema: Schema, after: Schema) -> Schema:
        """Return the output's schema, where columns learned from these rows' target have its origins too."""
        if self.target is None:
            return schema
        secret, groups = self.target.origins(after), [group for group in self.groups if group.cross_fits]
        names = [group.rename(item.name) for group in groups for item in group.fields(after)]
        return schema.assign(
            replace(schema[name], origins=schema[name].origins | secret) for name in names if name in schema
        )

    def _target_sources(self, schema: Schema) -> list[str]:
        """List the columns of the data that the target reads, by the transformed `schema`."""
        reads = [] if self.target is None else self.target.reads(schema)
        return sorted({source for name in reads for source in schema[name].lineage})

    def _label_sources(self, schema: Schema) -> list[str]:
        """List the columns of the data that target-learning steps and the target read, by the transformed `schema`."""
        names = {name for group in self.groups if group.cross_fits for name in group.columns}
        names |= set() if self.target is None else set(self.target.reads(schema))
        return sorted({source for name in names for source in schema[name].lineage})

    def _check_rows(self, lineage: str | None, out_of_fold: bool | None, shares_rows: bool, call: str) -> None:
        """Raise where rows that a call is given, of this id or some of the fit's, hold their own target."""
        if not self._cross_fits or self.lineage_ is None:
            return
        names = [name for group in self.groups if group.cross_fits for name in group.columns]
        same = lineage == self.lineage_
        if out_of_fold is None and (same or shares_rows):
            which = "the rows" if same else "of the table"
            problem = f"these are {which} the pipeline was fitted on, and features of {names} hold their own target"
            remedy = (
                "pipeline.loader(train, out_of_fold=True); False if that is meant, as to look at how a model overfits"
            )
            if call != "loader":
                remedy = f"train, {_LEFT_OUT[call]} = data.split(0.8) before a fit on train, and {_LEFT_OUT[call]} here"
                if call == "evaluate" and same and self._fitted_rows is not None:  # the folds are not saved either
                    remedy += "; or gp.Trainer(scorer.model).evaluate(scorer.pipeline.loader(train, out_of_fold=True))"
            elif not same:
                remedy = (
                    "fit on part of a split(), and load the other, with by=... a column that copies of a row share "
                )
                remedy += "where it has copies; out_of_fold=False if no row was in the fit"
            expected = "features learned from the target of other rows"
            raise LeakageError(call, problem, expected=expected, remedy=remedy)
        if out_of_fold and not same:
            where, expected = "loader(out_of_fold=True)", "the dataset or frame that was fitted on"
            got = "other files, another query, or other values or another order of rows in memory"
            remedy = "loader(data) for rows that were not fitted on, or pipeline.fit(data) on these first"
            raise BadConfig(where, "not the rows of the fit", got=got, expected=expected, remedy=remedy)


def _follows_order(feature: Origins, target: Origins) -> bool:
    """Return whether a feature holds the target only because its rows stand in the target's order."""
    sorts = frozenset(origin._replace(when=When.NOW) for origin in feature if origin.when == When.ORDER)
    is_by_position = any(origin.when == When.POSITION for origin in feature)
    return is_by_position and bool(find_leaks(sorts, target)) and not find_leaks(_list_values(feature), target)


def _reads_ties(feature: Origins) -> bool:
    """Return whether a feature may be of other rows of its time, as in windows and as-of joins; a group's is not."""
    positions = {origin for origin in feature if origin.when == When.POSITION}
    return not {origin._replace(when=When.GROUP) for origin in positions} <= feature


def _name_remainder(names: Sequence[str]) -> str:
    """Go on after the reason why a feature is refused with those that are refused beside it."""
    return f"; {shorten_list(map(repr, names), _SHOWN)} may leak, too" if names else ""


def _list_values(origins: Origins) -> Origins:
    return frozenset(origin for origin in origins if not is_key(origin))


def _check_labels(owner: str, target: Any, weight: Any, keep: Any) -> None:
    check_names(owner, None, empty=False, target=target)
    check_name(owner, None, weight=weight)
    check_names(owner, keep=keep)


def _to_chain(target_transform: Any) -> list[pre.LearnedStep] | Literal["auto"]:
    if isinstance(target_transform, str):
        if target_transform != "auto":
            raise refuse_choice("Features", "target_transform", target_transform, ["auto", None], "steps")
        return "auto"
    steps = () if target_transform is None else target_transform
    return list(steps) if isinstance(steps, list | tuple) else [to_learned_step(steps)]


def _feature(item: Field, name: str) -> Field:
    item = item.replace(name=name, role=Role.FEATURE)
    of_lists = get_element_dtype(item.dtype) in ("string", "timestamp")
    if item.kind not in (Kind.TEXT, Kind.TIME) and not of_lists:
        return item
    remedy = "another column" if of_lists else f"T.{derive(item.name, 'hour({})', 'hour')}"
    remedy = "pre.Categorify()" if item.kind == Kind.TEXT or item.dtype == "list<string>" else remedy
    remedy += "" if of_lists else f", or keep=[{item.name!r}] to carry it beside the features"
    problem = f"{item.dtype} values cannot be fed to a network"
    expected = "lists of ids or numbers" if of_lists else "numbers or ids"
    raise SchemaMismatch(f"feature {item.name!r}", problem, expected=expected, remedy=remedy)
