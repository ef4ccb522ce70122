"""Target encoding of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, make_dictionary, sort_values
from gpupipe.errors import BadData, NotFitted
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.cross_fitted import CrossFittedStep
from gpupipe.preprocessing.learned_step import Columns
from gpupipe.preprocessing.numeric import any_true, gather, num_rows, refuse_no_rows
from gpupipe.preprocessing.summaries.groups import ClassCounts, MeanStats, TargetSummary
from gpupipe.preprocessing.summaries.moments import merge_moments
from gpupipe.schema import Field
from gpupipe.support.validation import check_choice, check_integer, check_number, check_seed

_WHERE = "TargetEncoder"


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

    Source: Micci-Barreca, "A preprocessing scheme for high-cardinality categorical attributes in classification and
    prediction problems", SIGKDD Explorations 3 (2001).

    Args:
        categories: `"auto"`, or those that count, as a list per column in order or by column name; others are unknown,
            missing ones too unless None is listed.
        target_type: `"auto"` (strings are classes, numbers are numbers), `"continuous"`, `"binary"` or `"multiclass"`.
        smooth: `"auto"`, or how many rows of the mean M are added to each category.
        cv: how many folds, at least 2.
        random_state: the seed of the folds; None draws one when the step is made.

    Attributes:
        categories_: for each column, by name, its values in ascending order, as an Arrow array on the host.
        encodings_: for each column, by name, (2 + categories) x outputs float64: missing, unknown, then `categories_`.
        target_mean_: M of each output.
        target_type_, classes_: what the target was; `classes_` is None for a continuous one.

    Raises:
        BadConfig: a target that is not of that type.
        BadData: a target that is infinite or beyond 1e145, or has one class; two outputs of one name.
        ColumnNotFound: categories for a column that is not there.
        NotFitted: out-of-fold values of a step that was loaded.

    Memory: in fit 8 bytes per row for codes and for folds on the device; on the host (2 outputs + 1) x cv x 8 bytes per
        category, twice while partitions are merged. Transform allocates n int32 and n float32 per output on the device.

    Example:
        >>> import pandas as pd
        >>> frame, y = pd.DataFrame({"origin": ["JFK", "LGA", "JFK", "LGA"]}), [1.0, 3.0, 2.0, 4.0]
        >>> TargetEncoder(smooth=2.0).fit(frame, y).transform(frame)["origin"].tolist()
        [2.0, 3.0, 2.0, 3.0]
    """

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
        return [cats.make_number_field(item, name) for item in fields for name in self._outputs(item.name)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [made for name in names for made in self._outputs(name)]

    def _outputs(self, name: str) -> list[str]:
        return [f"{name}_{suffix}" for suffix in getattr(self, "suffixes_", ())] or [name]

    def summarize(
        self, columns: Columns, backend: Backend, target: Columns | None = None, row_numbers: Array | None = None
    ) -> TargetSummary:
        assert target, "the target comes with the columns"
        numbers = backend.xp.arange(num_rows(columns)) if row_numbers is None else row_numbers
        folds = self.folds(numbers, backend.xp)
        return TargetSummary.of(columns, target, folds, self.cv, self.target_type, _WHERE, backend)

    def finalize(self, summary: TargetSummary) -> Self:
        columns, whole = summary.merged()
        classes = self._learn_type(summary, whole)
        overall = _moments(_numbers(whole, classes))[:, :, 0]
        if not overall[0].any():
            refuse_no_rows(_WHERE)
        # The rows all values are learned from, then for each fold those of the others.
        every = [np.ones(self.cv, bool), *~np.eye(self.cv, dtype=bool)]
        self._others = np.array([overall[0, others, 0].sum() for others in every[1:]])
        self.target_mean_ = merge_moments(*overall)[1]
        cats.check_distinct(self.output_names(summary.names), _WHERE)
        self.names_in_ = list(summary.names)
        self.dtypes_in_ = dict(zip(summary.names, summary.dtypes, strict=True))
        self.categories_, self.encodings_, self._folds = {}, {}, {}
        given = cats.resolve_categories(self, self.dtypes_in_)
        for name, cells in zip(summary.names, columns, strict=True):
            values, has_missing = given.get(name, (cells.categories, True))
            categories = sort_values(values)
            moments = _moments(_numbers(cells, classes).among(categories))
            merged = [(merge_moments(*moments[:, rows]), merge_moments(*overall[:, rows])) for rows in every]
            tables = [self._table(*pair, has_missing) for pair in merged]
            self.categories_[name], self.encodings_[name] = categories, tables[0]
            self._folds[name] = np.stack(tables[1:])
        return self

    def _learn_type(self, summary: TargetSummary, whole: MeanStats | ClassCounts) -> Dictionary | None:
        """Set the type of the target, and return the classes that become outputs, if it has any."""
        self.classes_: list[Any] | None = None
        self.target_type_, self.suffixes_ = "continuous", list(summary.targets) if len(summary.targets) > 1 else []
        if isinstance(whole, MeanStats):
            if summary.is_binary and self.target_type == "auto" and len(summary.targets) == 1:
                self.target_type_, self.classes_ = "binary", [0, 1]
            return None
        classes = sort_values(whole.classes)
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

    def _table(self, there: tuple[Any, Any, Any], overall: tuple[Any, Any, Any], has_missing: bool) -> Any:
        """Return the values of missing, unknown and each category, from its moments (missing last) and all rows'."""
        (count, mean, m2), (total, middle, spread) = there, overall
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.smooth == "auto":
                between = spread / total * count
                share = between / (between + m2 / count)
                found = share * mean + (1 - share) * middle
            else:
                found = (count * mean + float(self.smooth) * middle) / (count + float(self.smooth))
        found = np.where(np.isnan(found), middle, found)
        return np.concatenate([found[-1:] if has_missing else middle[None], middle[None], found[:-1]])

    def set_state(self, state: Mapping[str, Any]) -> Self:
        self._folds = {}  # the encodings of the single folds stay in the process
        return super().set_state(state)

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        made: dict[str, Column] = {}
        for name, column in columns.items():
            lookup = cats.find_lookup(self, name, column, self.categories_[name], self.dtypes_in_[name])
            made |= self._gathered(name, lookup.ids(column, backend), self.encodings_[name], backend)
        return made

    def cross_fitted_columns(self, columns: Columns, backend: Backend, row_numbers: Array) -> dict[str, Column]:
        self.check_fitted()
        if not self._folds:
            problem = "what its single folds taught is not there: a file holds only what all rows taught"
            expected = "the step as it was fitted in this process"
            raise NotFitted(_WHERE, problem, expected=expected, remedy="fit again for out-of-fold values")
        folds = self.folds(row_numbers, backend.xp)
        alone = backend.to_device(self._others == 0)[folds]
        if any_true([alone.any()], backend):
            problem = "all rows fell into one fold, so there are no others to learn from"
            got, remedy = f"{int(self._others.max())} rows, {self.cv} folds", "a larger cv, or fit(...).transform(...)"
            raise BadData(_WHERE, problem, got=got, expected="more rows", remedy=remedy)
        made: dict[str, Column] = {}
        for name, column in columns.items():
            tables = self._folds[name]
            lookup = cats.find_lookup(self, name, column, self.categories_[name], self.dtypes_in_[name])
            ids = lookup.ids(column, backend) + (folds * tables.shape[1])
            made |= self._gathered(name, ids, tables.reshape(-1, tables.shape[2]), backend)
        return made

    def _gathered(self, name: str, ids: Array, table: Any, backend: Backend) -> dict[str, Column]:
        """Gather the table's columns at these rows."""
        columns = zip(self._outputs(name), np.ascontiguousarray(table.T, dtype=np.float32), strict=True)
        return {output: Column("float32", gather(values, ids, backend)) for output, values in columns}


def _numbers(cells: MeanStats | ClassCounts, classes: Dictionary | None) -> MeanStats:
    return cells if isinstance(cells, MeanStats) else cells.numbers(classes)


def _moments(cells: MeanStats) -> Any:
    """Return count, mean and M2 of each output: 3 x folds x (categories + 1) x outputs."""
    return np.stack([np.broadcast_to(cells.count[..., None], cells.mean.shape), cells.mean, cells.m2])
