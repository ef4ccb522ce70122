"""Target encoding of categories, cross-fitted: a training row gets what the target of other rows taught."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.columns import floats
from gpupipe.backend.dictionaries import Dictionary, find_positions, make_dictionary, sort_values
from gpupipe.backend.groups import FUNCTIONS, Groups, State
from gpupipe.backend.kernels import splitmix64
from gpupipe.backend.moments import merge_moments
from gpupipe.errors import BadConfig, BadData, NotFitted
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing import learned_step as base
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.summaries import ColumnSummaries, GroupTable, encode_values
from gpupipe.schema import INTEGERS, Field
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_choice, check_integer, check_number, check_seed

_WHERE = "TargetEncoder"
_CATEGORY, _FOLD, _CLASS, _NUMBER = "category", "fold", "class", "target {}"


class CrossFittedStep(base.SeededStep):
    """Base class of steps that learn from the target; a training row is encoded from the other folds' targets.

    The rows of a fit are drawn into `cv` folds by splitmix64(random_state_, row identity): the same ones for any
    partitioning. What single folds taught is not saved.
    """

    needs_target = True  # `summarize` wants `target`, a column per target without missing values, and `row_numbers`
    cv: int

    @abstractmethod
    def summarize(
        self, columns: Columns, backend: Backend, target: Columns | None = None, row_numbers: Array | None = None
    ) -> Any:
        """Return one partition's summary. Without `row_numbers` the rows are numbered from 0."""

    @abstractmethod
    def cross_fitted_columns(self, columns: Columns, backend: Backend, row_numbers: Array) -> dict[str, Column]:
        """Return training rows' output, each from the folds without it; NotFitted if loaded, BadData for one fold."""

    def folds(self, row_numbers: Array, xp: Any) -> Array:
        """Return the fold of each row, 0 to `cv` - 1, as n int64."""
        bits = splitmix64(self.random_state_, row_numbers) >> np.uint64(32)
        return ((bits * np.uint64(self.cv)) >> np.uint64(32)).astype("int64")

    @answer_calls
    def fit(self, frame: Frame, y: Any = None) -> Self:
        """Learn from a user's frame, all columns, and its target: as many values, or a frame of several targets.

        Raises BadConfig or BadData where there is no target, it has another number of rows, or a value is missing.
        """
        where = type(self).__name__
        columns, backend = self._columns_to_fit(frame)
        target, _, _ = base.to_columns(_as_frame(y, frame, where), None, where)
        for name, column in target.items():
            missing = column.missing(backend.xp)
            if missing is not None and bool(missing.any()):
                problem = f"{int(missing.sum()):,} of {len(column):,} values are missing"
                expected, remedy = "a value in every row", "frame[y.notna()], y[y.notna()]"
                raise BadData(f"{where}, target {name!r}", problem, expected=expected, remedy=remedy)
        numbers = backend.xp.arange(len(frame))
        self.reset()
        return self.finalize(self.summarize(columns, backend, target=target, row_numbers=numbers))

    @answer_calls
    def fit_transform(self, frame: Frame, y: Any = None) -> Frame:
        """Fit, and encode each row from the folds without it; `fit(...).transform(...)` gives something else."""
        self.fit(frame, y)
        columns, _, backend = base.to_columns(frame, self.names_in_, type(self).__name__)
        return base.to_frame(self.cross_fitted_columns(columns, backend, backend.xp.arange(len(frame))), frame, backend)


def _as_frame(y: Any, frame: Frame, where: str) -> Frame:
    """Return the target as a frame of the same library, whatever its type."""
    got = None if y is None else len(y)
    if got != len(frame):
        problem, remedy = "the target has another number of rows", f"{where}().fit(frame, y)"
        if y is None:
            problem = "it learns from the target, and there is none"
        raise BadConfig(where, problem, got=got, expected=f"{len(frame)} values", remedy=remedy)
    if hasattr(y, "columns"):
        return y
    if getattr(y, "ndim", 1) > 1:
        expected = "one value in each row, or a frame with a named column for each target"
        remedy = f"{where}().fit(frame, pd.DataFrame(y, columns=[...]))"
        problem = "the target has more than one value in each row"
        raise BadConfig(where, problem, got=y.shape, expected=expected, remedy=remedy)
    if hasattr(y, "to_frame"):
        return y.to_frame(name="y" if y.name is None else y.name)
    return type(frame)({"y": y})


@dataclass(frozen=True)
class TargetSummary(ColumnSummaries[GroupTable]):
    """Summary of the target by category and fold, a table for each column: rows of each class, or sums of numbers."""

    targets: tuple[str, ...]
    is_binary: bool  # each value is a boolean, or the integer 0 or 1

    def __add__(self, other: Self) -> Self:
        return replace(super().__add__(other), is_binary=self.is_binary and other.is_binary)


class TargetEncoder(CrossFittedStep):
    """Target encoding: each category as the mean target of its rows, shrunk towards the mean of all; scikit-learn's.

    With n rows in a category whose mean is m, of all rows M, the value is `(n m + s M) / (n + s)` for `smooth=s`, and
    for `"auto"` the empirical Bayes estimate `l m + (1 - l) M`, `l = v n / (v n + w)`, v and w being the target's
    variance in all rows and within the category. A missing value is a category of its own. One that was not there in
    `fit` gets M. `transform` never asks for the target.

    Rows it was fitted on get values learned from the other folds: by `fit_transform`, `Pipeline.fit_transform` and
    `Pipeline.loader(..., out_of_fold=True)`. Folds are drawn by row (see `CrossFittedStep`), of nearly the same size;
    scikit-learn's are of equal size, and stratified for classes. A target of several classes gives a column
    `<name>_<class>` each, several targets `<name>_<target>`. Weights and a `target_transform` do not count.

    Args:
        categories: `"auto"`, or those that count, as a list per column in order or by column name; others are unknown,
            missing ones too unless None is listed.
        target_type: `"auto"` (strings are classes, numbers are numbers), `"continuous"`, `"binary"` or `"multiclass"`.
        smooth: `"auto"`, or how many rows of the mean M are added to each category.
        cv, random_state: how many folds, at least 2, and their seed; None draws one when the step is made.

    Attributes: by column name, `categories_`, ascending (Arrow, on the host), and `encodings_`, (2 + categories) x
    outputs float64: missing, unknown, then `categories_`; `target_mean_`, M of each output, `target_type_`, and
    `classes_` or None.
    Raises: BadConfig, ColumnNotFound for a target that is not of that type, or categories for a column that is not
    there; BadData for a target that is infinite or beyond 1e145, or has one class, or two outputs of one name;
    NotFitted for out-of-fold values of a step that was loaded.
    Memory: in fit 8 bytes per row for codes and for folds on the device; on the host (3 outputs + 3) x cv x 8 bytes per
    category, twice while partitions are merged. Transform allocates n int32 and n float32 per output on the device.
    Source: Micci-Barreca, "A preprocessing scheme for high-cardinality categorical attributes in classification and
    prediction problems", SIGKDD Explorations 3 (2001).

    Example:
        >>> import pandas as pd
        >>> frame, y = pd.DataFrame({"origin": ["JFK", "LGA", "JFK", "LGA"]}), [1.0, 3.0, 2.0, 4.0]
        >>> TargetEncoder(smooth=2.0).fit(frame, y).transform(frame)["origin"].tolist()
        [2.0, 3.0, 2.0, 3.0]
    """

    learned_shapes: ClassVar[Mapping[str, str]] = {
        **cats.CategoryStep.learned_shapes,
        "suffixes_": "text[S]",
        "encodings_": "finite[V+2, O]",
        "target_mean_": "finite[T]",
        "random_state_": "integer",
    }
    learned_by_name = ("categories_", "encodings_", "dtypes_in_")

    def __init__(
        self,
        *,
        categories: str | Mapping[str, Sequence[Any]] | Sequence[Sequence[Any]] = "auto",
        target_type: str = "auto",
        smooth: str | float = "auto",
        cv: int = 5,
        random_state: int | None = 0,
    ) -> None:
        cats.check_listed(self, "auto", categories=categories)
        check_choice(self, ("auto", "continuous", "binary", "multiclass"), target_type=target_type)
        check_number(self, "[0, inf)", "auto", smooth=smooth)
        check_integer(self, "[2, 1000]", cv=cv)
        check_seed(self, None, random_state=random_state)
        self.categories, self.target_type, self.smooth = categories, target_type, smooth
        self.cv, self.random_state = cv, random_state
        self._folds: dict[str, Any] = {}

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` one field per column stands for all its outputs."""
        cats.check_categories(fields, _WHERE)
        if not self.is_fitted:
            cats.resolve_categories(self, {item.name: item.dtype for item in fields})
            return [cats.make_number_field(item, item.name) for item in fields]
        return [cats.make_number_field(item, name) for item in fields for name in self._outputs(item.name)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [output for name in names for output in self._outputs(name)]

    def _outputs(self, name: str) -> list[str]:
        return [f"{name}_{suffix}" for suffix in getattr(self, "suffixes_", ())] or [name]

    def summarize(
        self, columns: Columns, backend: Backend, target: Columns | None = None, row_numbers: Array | None = None
    ) -> TargetSummary:
        assert target, "the target comes with the columns"
        numbers = backend.xp.arange(base.num_rows(columns)) if row_numbers is None else row_numbers
        strata, num_strata = self.folds(numbers, backend.xp), self.cv
        keys = {_FOLD: Column("int64", strata)}
        values: dict[str, Column] = {}
        if self._has_classes(target):
            if len(target) > 1:
                raise _unfit(target, "several targets have to be numbers", "one target, or int(...) of each")
            (keys[_CLASS],) = target.values()
            codes, classes = encode_values(keys[_CLASS], backend)
            strata, num_strata = strata * (len(classes) + 1) + codes, self.cv * (len(classes) + 1)
            states = [State("size", _FOLD)]
        else:
            if {"string", "timestamp"} & {item.dtype for item in target.values()}:
                raise _unfit(target, "it is no number", "target_type='auto' for text, or the time since another")
            for index, (name, item) in enumerate(target.items()):
                values[_NUMBER.format(index)] = _check_numbers(item, name, backend)
            states = [State(part, name) for name in values for part in FUNCTIONS["var"]]
        tables = []
        for column in columns.values():
            inputs, groups = {_CATEGORY: column, **keys, **values}, _group_densely(column, strata, num_strata, backend)
            tables.append(GroupTable.of(inputs, [_CATEGORY, *keys], states, backend, groups))
        is_binary = all(_is_binary(item, backend) for item in target.values())
        return TargetSummary(tuple(columns), tuple(tables), tuple(target), is_binary)

    def _has_classes(self, target: Columns) -> bool:
        """Return whether the target has classes rather than numbers, of which the mean of a condition is one."""
        dtypes = {item.dtype for item in target.values()}
        if self.target_type == "auto":
            return bool(dtypes & {"string", "bool"}) and not (len(target) > 1 and dtypes == {"bool"})
        return self.target_type != "continuous"

    def finalize(self, summary: TargetSummary) -> Self:
        groups = [table.merged() for table in summary.columns]
        outputs = self._learn_type(summary, groups[0])
        cells = [_tabulate_cells(frame, self.cv, len(summary.targets), outputs) for frame in groups]
        overall = np.stack(merge_moments(*cells[0][1].swapaxes(1, 2)))
        base.check_rows(int(overall[0].sum()), _WHERE)
        # The rows all values are learned from, then for each fold those of the others.
        every = [np.ones(self.cv, bool), *~np.eye(self.cv, dtype=bool)]
        self._counts = np.array([overall[0, mask, 0].sum() for mask in every[1:]])
        self.target_mean_ = merge_moments(*overall)[1]
        cats.check_distinct(self.output_names(summary.names), _WHERE)
        self.dtypes_in_ = {n: table.keys[0].dtype for n, table in zip(summary.names, summary.columns, strict=True)}
        self.categories_, self.encodings_, self._folds = {}, {}, {}
        vocabularies = cats.resolve_categories(self, self.dtypes_in_)
        for name, (fit_categories, learned) in zip(summary.names, cells, strict=True):
            categories, moments, has_missing = fit_categories, learned, True
            if name in vocabularies:
                values, has_missing = vocabularies[name]
                categories = sort_values(values)
                # A category that never occurred has no place (-1): the row of zeros.
                padded = np.concatenate([learned, np.zeros_like(learned[:, :, :1])], axis=2)
                moments = padded[:, :, np.append(find_positions(categories, fit_categories), len(fit_categories))]
            merged = [(merge_moments(*moments[:, rows]), merge_moments(*overall[:, rows])) for rows in every]
            tables = [self._table(*pair, has_missing) for pair in merged]
            self.categories_[name], self.encodings_[name] = categories, tables[0]
            self._folds[name] = np.stack(tables[1:])
        return super().finalize(summary)

    def _learn_type(self, summary: TargetSummary, groups: Frame) -> Dictionary | None:
        """Set the type of the target, and return the classes that become outputs, if it has any."""
        self.classes_: list[Any] | None = None
        self.target_type_, self.suffixes_ = "continuous", list(summary.targets) if len(summary.targets) > 1 else []
        if _CLASS not in groups:
            if summary.is_binary and self.target_type == "auto" and len(summary.targets) == 1:
                self.target_type_, self.classes_ = "binary", [0, 1]
            return None
        _, classes = cats.learn_ids(select("cpu").column(groups, _CLASS))
        if summary.is_binary and self.target_type != "multiclass":
            classes = make_dictionary([0, 1], "bool").cast(classes.type)
        if len(classes) < 2 or (self.target_type == "binary" and len(classes) > 2):
            problem = "it has one class" if len(classes) < 2 else f"it has {len(classes)} classes"
            expected = "two classes" if self.target_type == "binary" else "at least two classes"
            remedy = "target_type='auto'" if len(classes) > 2 else "more rows, or another target"
            where, got = f"{_WHERE}, target {summary.targets[0]!r}", classes.to_pylist()[:5]
            raise BadData(where, problem, got=got, expected=expected, remedy=remedy)
        self.classes_ = classes.to_pylist()
        if len(classes) == 2 and self.target_type != "multiclass":
            self.target_type_ = "binary"
            return classes[1:]
        self.target_type_, self.suffixes_ = "multiclass", [str(value) for value in self.classes_]
        return classes

    def _table(self, moments: tuple[Any, Any, Any], overall: tuple[Any, Any, Any], has_missing: bool) -> Any:
        """Return the values of missing, unknown and each category, from its moments (missing last) and all rows'."""
        (count, mean, m2), (total, middle, spread) = moments, overall
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.smooth == "auto":
                between = spread / total * count
                share = between / (between + m2 / count)
                values = share * mean + (1 - share) * middle
            else:
                values = (count * mean + float(self.smooth) * middle) / (count + float(self.smooth))
        values = np.where(np.isnan(values), middle, values)
        return np.concatenate([values[-1:] if has_missing else middle[None], middle[None], values[:-1]])

    def set_state(self, state: Mapping[str, Any]) -> Self:
        self._folds = {}  # the encodings of the single folds stay in the process
        return super().set_state(state)

    def _check_state(self) -> None:
        super()._check_state()
        for name in self.names_in_:
            cats.check_vocabulary(self.class_name, self.categories_[name], self.dtypes_in_[name])

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        outputs: dict[str, Column] = {}
        for name, column in columns.items():
            lookup = cats.find_lookup(self, name, column, self.categories_[name], self.dtypes_in_[name])
            outputs |= self._gathered(name, lookup.ids(column, backend), self.encodings_[name], backend)
        return outputs

    def cross_fitted_columns(self, columns: Columns, backend: Backend, row_numbers: Array) -> dict[str, Column]:
        self.check_fitted()
        if not self._folds:
            problem = "what its single folds taught is not there: a file holds only what all rows taught"
            expected = "the step as it was fitted in this process"
            raise NotFitted(_WHERE, problem, expected=expected, remedy="fit again for out-of-fold values")
        folds = self.folds(row_numbers, backend.xp)
        alone = backend.to_device(self._counts == 0)[folds]
        if base.any_true([alone.any()], backend):
            problem = "all rows fell into one fold, so there are no others to learn from"
            got, remedy = f"{int(self._counts.max())} rows, {self.cv} folds", "a larger cv, or fit(...).transform(...)"
            raise BadData(_WHERE, problem, got=got, expected="more rows", remedy=remedy)
        outputs: dict[str, Column] = {}
        for name, column in columns.items():
            tables = self._folds[name]
            lookup = cats.find_lookup(self, name, column, self.categories_[name], self.dtypes_in_[name])
            ids = lookup.ids(column, backend) + (folds * tables.shape[1])
            outputs |= self._gathered(name, ids, tables.reshape(-1, tables.shape[2]), backend)
        return outputs

    def _gathered(self, name: str, ids: Array, table: Any, backend: Backend) -> dict[str, Column]:
        """Gather the table's columns at these rows."""
        columns = zip(self._outputs(name), np.ascontiguousarray(table.T, dtype=np.float32), strict=True)
        return {output: Column("float32", base.gather(values, ids, backend)) for output, values in columns}


def _unfit(target: Columns, problem: str, remedy: str) -> BadConfig:
    got = {name: column.dtype for name, column in target.items()}
    expected = "a number per row and target, or one target of classes"
    return BadConfig(_WHERE, problem, got=got, expected=expected, remedy=remedy)


def _check_numbers(column: Column, name: str, backend: Backend) -> Column:
    xp, values = backend.xp, floats(column, backend.xp)
    bad = int(backend.to_host((~(xp.abs(values) <= base.LARGEST_SQUARED)).sum()[None])[0])
    if bad:
        problem = f"{bad:,} values are missing, infinite or beyond {base.LARGEST_SQUARED:g}"
        remedy = "a Filter before, or another unit"
        raise BadData(f"{_WHERE}, target {name!r}", problem, expected="finite numbers", remedy=remedy)
    return Column("float64", values)


def _is_binary(column: Column, backend: Backend) -> bool:
    if column.dtype not in INTEGERS:
        return column.dtype == "bool"
    return bool(backend.to_host(((column.data == 0) | (column.data == 1)).all()[None])[0])


def _group_densely(column: Column, strata: Array, num_strata: int, backend: Backend) -> Groups:
    """Group rows by their values and numbers below `num_strata`, by counting all pairs: without a sort of texts."""
    xp = backend.xp
    codes, values = encode_values(column, backend)
    cells = codes * num_strata + strata
    counts = xp.bincount(cells, minlength=(len(values) + 1) * num_strata)
    present = counts > 0
    return Groups((xp.cumsum(present) - 1)[cells], counts[present], xp)


def _tabulate_cells(groups: Frame, cv: int, num_targets: int, outputs: Dictionary | None) -> tuple[Dictionary, Any]:
    """Return the categories, and count, mean and M2 of each output: 3 x folds x (categories + missing) x outputs.

    Each of the classes that become outputs is a number that is 1 in its rows and 0 in all others.
    """
    cpu = select("cpu")
    ids, categories = cats.learn_ids(cpu.column(groups, _CATEGORY))
    fold, category = cpu.column(groups, _FOLD).data, np.where(ids == cats.MISSING, len(categories), ids - cats.FIRST)
    if outputs is None:
        cells = np.zeros((3, cv, len(categories) + 1, num_targets))
        for number in range(num_targets):
            states = [State(part, _NUMBER.format(number)) for part in FUNCTIONS["var"]]
            count, total, squares = (cpu.column(groups, state.name).data for state in states)
            cells[:, fold, category, number] = count, total / np.maximum(count, 1), squares
        return categories, cells
    class_ids, classes = cats.learn_ids(cpu.column(groups, _CLASS))
    counts = np.zeros((cv, len(categories) + 1, len(classes) + 1))  # the last for an output that is no class, at -1
    counts[fold, category, class_ids - cats.FIRST] = cpu.column(groups, State("size", _FOLD).name).data
    total, counts = counts.sum(axis=-1, keepdims=True), counts[..., find_positions(outputs, classes)]
    mean = counts / np.maximum(total, 1)
    return categories, np.stack([np.broadcast_to(total, mean.shape), mean, counts * (1 - mean)])
