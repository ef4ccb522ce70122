"""Pipeline: transforms from frame to frame, then features, then tensors; its steps in JSON, and as a diagram."""

from __future__ import annotations

import hashlib
import html
import importlib
import json
import logging
import re
from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe import preprocessing, transforms
from gpupipe.backend import Backend, select
from gpupipe.backend.arrow import get_file_type
from gpupipe.backend.columns import check_names
from gpupipe.backend.estimators import export_state, is_estimator, rebuild_estimator
from gpupipe.cluster.executor import Executor, get_executor, use_executor
from gpupipe.config import BACKENDS
from gpupipe.errors import ArtifactError, BadConfig, ColumnNotFound, NotFitted, SchemaMismatch, nearest
from gpupipe.io import Dataset, as_dataset, as_rows, from_frame
from gpupipe.monitoring.reports import Drift, DriftReport, ExpectationReport, Profile
from gpupipe.pipeline.bound_pipeline import BoundPipeline, list_state, select_rows
from gpupipe.pipeline.column_stats import profile_rows
from gpupipe.pipeline.feature_group import FeatureGroup, GroupFields
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.fit import PipelineFit
from gpupipe.pipeline.fit_report import FitReport
from gpupipe.pipeline.loader_table import make_loader
from gpupipe.pipeline.partition_pass import check_rows
from gpupipe.pipeline.plan import explain_fit
from gpupipe.pipeline.row_sets import RowSet, compute_lineage
from gpupipe.pipeline.target import TargetInverse
from gpupipe.pipeline.transform_plan import TransformPlan
from gpupipe.schema import Schema, shorten_list
from gpupipe.step import Step
from gpupipe.support.attributes import Answering
from gpupipe.support.calls import answer_calls
from gpupipe.support.collector import pause_collector
from gpupipe.support.text import format_columns
from gpupipe.support.validation import check_bool, check_choice, check_instance, is_sequence, refuse_argument, to_python
from gpupipe.transforms import Transform
from gpupipe.transforms.join import TableJoin

if TYPE_CHECKING:
    from gpupipe.tensors import Loader, LoaderOptions

_log = logging.getLogger("gpupipe")
_DRIFT = Drift()  # the thresholds by default
_MOST_BOUND = 16


@answer_calls
class Pipeline(Answering):
    """Pipeline of transforms from frame to frame, then one step from frame to tensors.

    It learns in copies of the steps it is given, `pipeline.steps` and `pipeline.features`.

    Args:
        steps: transforms, in order; one alone stands for a list of it, and `Features` alone for no transforms.
        features: which columns become features, and how; without it `transform` gives the transformed frame.
        backend: "cpu" (pandas, NumPy), "gpu" (cuDF, CuPy), or "auto" for a GPU if there is one.

    Raises `BadConfig`: a step is no transform, two joins have one name, or something else makes no sense.

    Example:
        >>> import pandas as pd
        >>> flights = pd.DataFrame({"dep_delay": [2.0, None, 8.0, 2.0], "arr_delay": [20.0, 3.0, 30.0, None]})
        >>> Pipeline([], Features(["dep_delay"], target="arr_delay > 15")).fit_transform(flights)["target"].tolist()
        [1.0, 0.0, 1.0, nan]
    """

    _ELSEWHERE = dict.fromkeys(
        ("fit_predict", "predict", "predict_proba"), "gp.Scorer(pipeline, trainer.model).predict(data)"
    )

    def __init__(
        self, steps: Sequence[Transform] | Transform | Features, features: Features | None = None, backend: str = "auto"
    ) -> None:
        listed: Any = [steps] if isinstance(steps, Transform) else steps
        if isinstance(steps, Features) and features is None:
            listed, features = [], steps
        _check_steps(listed)
        check_choice(self, BACKENDS, backend=backend)
        names = [step.name for step in listed if isinstance(step, TableJoin)]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            expected = "a name of its own for each join: reports and saved tables go by it"
            remedy = f"Join(..., name={twice[0] + '_2'!r})"
            raise BadConfig("Pipeline", "joins share a name", got=twice, expected=expected, remedy=remedy)
        self.steps: list[Transform] = [copy(step) for step in listed]
        self.features, self.backend = features, backend
        self.profiles: Mapping[str, Profile] = {}
        self.fit_report: FitReport | None = None
        self._source: Schema | None = None
        self._has_loaders = False
        self._bound: dict[Hashable, tuple[list[Any], BoundPipeline]] = {}  # by all that they depend on, which it holds

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; steps and features in the place of those of a fit have to be fitted again."""
        if name == "features":
            remedy = "features=gp.Features(['x'])"
            check_instance(self, Features, "gp.Features(...)", None, remedy=remedy, features=value)
            value = copy(value)
        if name in ("steps", "features"):
            self._source = None
        super().__setattr__(name, value)

    # learning ---------------------------------------------------------------------------------------------------------
    def fit(self, data: Any, y: None = None, *, rows: str | None = None, executor: Executor | None = None) -> Self:
        """Learn every step's state from a Dataset or a frame, of the rows with a target; returns self.

        `rows` is a condition, such as `"date < '2024-06-01'"`: only rows for which it is true are learned from, while
        windows (`T.Lag`, `T.Rolling`) look at all rows of `data`.

        `executor` is a Cluster; by default the one whose `with` this stands in, or else this process. `y` is None, as
        scikit-learn passes it: the target is named in `Features(target=)`.

        Raises:
            ColumnNotFound: a step reads a column that is not there.
            LeakageError: a feature is computed from a column the target is computed from, or holds it of the same time.
            BadData: values a step cannot learn from, or `rows` selects none.
            PartitionFailed: anything else that failed, with the partition's file and the cause.
            BadConfig: a target given separately from the data.

        Memory: one partition per thread, plus up to 1 GiB of the columns a later pass reads again. The pipeline keeps
            up to 64 MiB of sampled numbers until it is saved or compared with other rows.
        """
        _check_no_target("fit", y)
        for line in list_unsaveable(self.steps, self.features):
            _log.warning("%s", line)  # before a model is trained, not after it
        self._source = None  # until all of it has succeeded: half a new state must not pass for a whole one
        dataset = as_dataset(data)
        with use_executor(executor):
            try:
                fitting = PipelineFit(self.steps, self.features, dataset, get_executor().resolve(self.backend), rows)
                self.fit_report = fitting.run()
            except ColumnNotFound as error:
                if error.column in dataset.source.left_out:
                    dataset.require(error.column, "fit")  # which says why
                raise
        self.profiles = fitting.profiles
        num_rows = self.fit_report.num_rows - self.fit_report.num_without_target
        self._bind(fitting.source, Schema((), fitting.ranges, fitting.edges, num_rows or None), fitting.outputs)
        _log.info("%s", self.fit_report)
        if self._has_loaders:
            _log.warning("the pipeline was fitted anew: a model of its earlier batches has to learn from new ones")
            self._has_loaders = False
        return self

    @pause_collector()
    def _bind(self, source: Schema, statistics: Schema, outputs: GroupFields | None = None) -> None:
        """Set `source` as the data's schema, and compute the output's with its `statistics`; the steps are fitted.

        `outputs` are the features' fields, where they are computed of these columns already.
        """
        source = Schema(item.as_origin() for item in source).with_statistics(source)
        self._source, self._bound = source, {}
        schema = self._after = TransformPlan(self.steps, source, None).output_schema
        if self.features is not None:
            for label in self.features._labels:  # one named by a column of the fit stays one
                label.bind(self._after)
            schema = self.features._output_schema(schema, outputs or self.features._output_fields(schema))
        self._schema = schema.with_statistics(statistics)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_bound": {}}

    def _fitted_source(self) -> Schema:
        """Return the schema of the data it was fitted on, label columns marked."""
        if self._source is None:
            raise NotFitted("Pipeline", "it has not been fitted", expected="fit first", remedy="pipeline.fit(train)")
        return self._source

    @property
    def schema(self) -> Schema:
        """The schema of what it puts out: features, target, weight and kept columns; `NotFitted` before `fit`."""
        self._fitted_source()
        return self._schema

    @property
    def _target_units(self) -> TargetInverse | None:
        """The inverse that converts stored targets and model outputs to the target's own units; None if not needed."""
        target = None if self.features is None else self.features.target
        if target is None or not target.group.steps:
            return None
        return TargetInverse(target)

    # applying ---------------------------------------------------------------------------------------------------------
    def transform(self, data: Any, *, rows: str | None = None, history: Any = None) -> Any:
        """Transform a frame (to a frame) or a Dataset (to a lazy Dataset) into its features, in row order.

        Then come target and weight where their columns are there, then the kept columns; without `features`, all
        columns. Rows with a missing target stay. A pandas or cuDF frame gives one of its library with its index;
        another table in memory a frame of this pipeline's backend (not yet run on a GPU); a Dataset or a stream a lazy
        Dataset.

        Args:
            data: a Dataset, a frame, or another table in memory.
            rows: a condition; only rows for which it is true come out, after windows (`T.Lag`) have looked at all.
            history: a Dataset or a frame of earlier rows, which come before those of `data` in every window and do not
                come out. A column may be in it alone where all windows over it end before a row, such as the target.

        Raises:
            NotFitted: before `fit`.
            ColumnNotFound, SchemaMismatch: the data or the history is not like the data it was fitted on, or no table.
            BadConfig: a history, and no window that would look at it.
            BadData: `rows` selects none.

        Memory: a new frame; a Dataset is worked on a partition at a time. Of an Arrow table strings are copied, and on
            a GPU all columns.
        """
        table, earlier = as_rows(data, self.backend), None if history is None else as_dataset(history)
        run = self._bind_to(table, earlier)
        identity, columns, schema = self._fingerprint, run.owned_columns, run.table_schema
        if isinstance(table, Dataset) and self.features is not None and self._shares_rows(select_rows(table, rows)):
            schema = self.features._mark_own_target(schema, self._after)
        return run.run_on(table, run.apply, schema, self.backend, identity, columns, rows, earlier)

    def fit_transform(
        self, data: Any, y: None = None, *, rows: str | None = None, executor: Executor | None = None
    ) -> Any:
        """`fit`, then the features of the same rows; see `transform`.

        Where a step learns from the target (`TargetEncoder`), each row gets what rows of other folds taught: what a
        model may be trained on. `transform` gives what all rows taught, which for these rows holds their own target.
        Memory: no more than `fit` and `transform`, whose errors it raises.

        Example:
            >>> import pandas as pd
            >>> from gpupipe import preprocessing as pre
            >>> flights = pd.DataFrame({"origin": ["JFK", "LGA", "JFK", "LGA"], "delay": [1.0, 3.0, 2.0, 4.0]})
            >>> pipeline = Pipeline([], Features((["origin"], pre.TargetEncoder(smooth=0.0, cv=2)), target="delay"))
            >>> pipeline.fit_transform(flights)["origin"].tolist(), pipeline.transform(flights)["origin"].tolist()
            ([2.0, 4.0, 1.0, 3.0], [1.5, 3.5, 1.5, 3.5])
        """
        _check_no_target("fit_transform", y)
        data = as_rows(data, self.backend)
        self.fit(data, rows=rows, executor=executor)
        run = self._bind_to(data, out_of_fold=True)
        # What single folds taught is no part of the fingerprint, so such a job is never taken for another one's rest.
        identity = self._fingerprint if self.features is None or not self.features._cross_fits else lambda: None
        return run.run_on(data, run.apply, run.table_schema, self.backend, identity, run.owned_columns, rows)

    def loader(
        self,
        data: Any,
        *,
        rows: str | None = None,
        history: Any = None,
        device: str = "auto",
        residency: str = "auto",
        dtype: str = "float32",
        out_of_fold: bool | None = None,
        **options: Unpack[LoaderOptions],
    ) -> Loader:
        """Transform `data` into one block of tensors and give a loader over it; a table too large is streamed instead.

        Rows whose target is missing are left out. Where a step learns from the target (`TargetEncoder`), the rows of
        the fit must not be trained on with what they taught themselves. They are known, in any partitions and after
        `save` and `load` too, by their files and query, rows in memory by their values in this order.

        Args:
            data: a Dataset or a frame.
            rows: a condition; only rows for which it is true are loaded, after windows (`T.Lag`) have looked at all.
            history: a Dataset or a frame of earlier rows, which only windows look at; see `transform`.
            device: where batches are wanted; the backend's by default.
            residency: `"device"` or `"host"` for the block there, `"stream"` for none: `data` is read and transformed
                anew in each epoch; `"auto"` for the first there is room for.
            dtype: of the stored numbers, `"float32"` or `"bfloat16"`.
            out_of_fold: True for the rows of the fit: each gets what rows of other folds taught; False gives them what
                all rows taught, theirs included. For any other rows leave it out.
            options: of `Loader`, such as batch_size and shuffle; sharded where each rank's `data` are its own rows.

        Raises:
            BadData: a missing or infinite value would reach the block; names the column and the remedy. Or `rows`
                selects none.
            ColumnNotFound: the data lacks a feature's column, or has the target but not the weight of the fit.
            LeakageError: a step learned from the target of these very rows, and `out_of_fold` is not said; or a joined
                table was computed of it.
            BadConfig: `out_of_fold=True` and these are other rows, options that do not go together, or a history and
                no window that would look at it.

        Memory: one block of 4 bytes per feature and row (padded to 32), and one partition per thread. Streamed: two
            windows of `block_rows * window` rows instead.
        """
        check_bool("loader", None, out_of_fold=out_of_fold)
        backend = get_executor().resolve(self.backend)
        earlier = None if history is None else as_dataset(history)
        run, dataset = self._bind_to_train(as_dataset(data), out_of_fold, backend, rows=rows, history=earlier)
        more: dict[str, Any] = {**options, "target_units": self._target_units}
        self._has_loaders = True
        loader = make_loader(run, dataset, backend, device=device, residency=residency, dtype=dtype, **more)
        table = as_dataset(data)
        loader.row_set = self._describe_rows(table if rows is None else table.filter(rows))
        return loader

    def _keep_also(self, name: str, data_schema: Schema) -> Pipeline:
        """Return this pipeline, its learned state shared, with one more column of the data carried beside the features.

        The data that was fitted on may lack it.
        """
        source = self._fitted_source()
        if self.features is None or name in self.features.keep:
            return self
        changed, features = copy(self), copy(self.features)
        vars(changed)["features"] = features  # which stay fitted
        if name in data_schema and name not in source and name not in self._after:
            changed._bind(Schema([*source, data_schema[name]]), self._schema)
        changed._after.require(name, "Scorer.evaluate(by=)")
        features.keep = [*features.keep, name]
        return changed

    def _describe_rows(self, dataset: Dataset) -> RowSet | None:
        """Describe the rows whose targets a dataset has; None without a target."""
        if self.features is None or self.features.target is None:
            return None
        return RowSet.of(dataset, self.features._target_sources(self._after))

    def _shares_rows(self, dataset: Dataset) -> bool:
        """Whether the fit may have learned from some of these rows; False where nobody knows."""
        fitted = None if self.features is None else self.features._fitted_rows
        return fitted is not None and fitted.may_share(self._describe_rows(dataset))

    def _check_rows(self, dataset: Dataset, rows: str | None, out_of_fold: bool | None, call: str) -> None:
        """Raise where a step has learned from the target of rows that a call is given, or of some of them."""
        if self.features is not None and self.features._cross_fits and self._source is not None:
            part = select_rows(dataset, rows)
            lineage = compute_lineage(part, self.features._label_sources(self._after))
            self.features._check_rows(lineage, out_of_fold, self._shares_rows(part), call)

    def _bind_to_train(
        self,
        dataset: Dataset,
        out_of_fold: bool | None,
        backend: str,
        also: str | None = None,
        rows: str | None = None,
        history: Dataset | None = None,
        call: str = "loader",
    ) -> tuple[BoundPipeline, Dataset]:
        """Bind this pipeline to rows to train on, unless they leak their own target; return also the rows it reads."""
        self._check_rows(dataset, rows, out_of_fold, call)
        run = self._bind_to(dataset, history, with_target_only=True, out_of_fold=bool(out_of_fold), also=also)
        if self.features is not None:  # a joined table may be computed of these very rows, if not of those of the fit
            origins = {item.name: item.origins for item in dataset.locate_origins()}
            self.features._check_leaks(run.plan.compute_schema(frozenset(), origins))
        return run, run.prepare(dataset, backend, rows, history)

    def _bind_to(self, data: Any, history: Dataset | None = None, **options: Any) -> BoundPipeline:
        """Bind this pipeline to the columns of a table and its history; `options` as for `BoundPipeline`."""
        columns = data.columns.tolist() if hasattr(data.columns, "tolist") else data.columns
        names = tuple(name for name in columns if isinstance(name, str))
        if history is not None:
            options["history"] = frozenset(history.columns)
        source = self._fitted_source()
        state, unchanged = list_state(self.steps, self.features, source)
        key = (names, *options.items(), unchanged)
        try:
            entry = self._bound.get(key)
            if entry is None:
                entry = state, BoundPipeline(self.steps, self.features, source, names, **options)
                entry[1].schema = entry[1].schema.with_statistics(self.schema)  # networks are sized by it, too
        except ColumnNotFound as error:
            if error.column in map(str, columns):  # a number or the like, where the fit had its text
                check_names(columns)
            if error.column not in getattr(getattr(data, "index", None), "names", ()):
                raise
            problem, expected = f"column {error.column!r} is their index", "a column that is there"
            indexed = ColumnNotFound("the data", problem, expected=expected, remedy="data.reset_index()")
            indexed.column = error.column
            raise indexed from None
        if key not in self._bound:  # threads may ask at once: the worst is that two of them make the same
            self._bound = {**dict([*self._bound.items()][1 - _MOST_BOUND :]), key: entry}
        return copy(entry[1])  # which then learns the data's types

    def _fingerprint(self) -> str | None:
        """Compute a hash of the steps and their learned state; None where a function has no import path."""
        encoder = Encoder(select("cpu"), MAX_TABLE_BYTES)  # what drives a cluster should not touch a GPU
        try:
            steps = [encoder.step(step) for step in self.steps]
            return encoder.digest({"steps": steps, "features": encoder.features(self.features)})
        except ArtifactError:
            return None

    # comparing --------------------------------------------------------------------------------------------------------
    def check(self, data: Any) -> ExpectationReport:
        """Count the rows that break a rule of a `T.Expect` among the steps, in one pass; change nothing.

        Columns that `data` lacks are not checked. Raises `NotFitted` before `fit`, and `BadData` where rows break a
        rule that has `on_violation="raise"`.
        Memory: one partition per thread; see `T.Expect`.
        """
        dataset, backend = as_dataset(data), get_executor().resolve(self.backend)
        run = BoundPipeline(self.steps, None, self._fitted_source(), dataset.columns, outputs=set(), counting=True)
        dataset = run.prepare(dataset, backend)
        return check_rows(run.plan, backend, self.steps, dataset)

    def drift(self, data: Any, thresholds: Drift = _DRIFT) -> DriftReport:
        """Compare rows with those of the fit, in one pass: each column that learned steps read, after the transforms.

        Rows without a target are left out, where `data` has the target. `thresholds` say how far a column may be from
        that of the fit. Raises `NotFitted` before `fit`, and `BadConfig` where there are no features.
        Memory: one partition per thread, and 8 bytes per number of some 32,768 rows, which are drawn by identity.

        Example:
            >>> import pandas as pd
            >>> from gpupipe import preprocessing as pre
            >>> flights = pd.DataFrame({"distance": [float(number) for number in range(2000)]})
            >>> pipeline = Pipeline([], Features((["distance"], pre.StandardScaler()))).fit(flights)
            >>> pipeline.drift(flights + 500.0).summary
            'distance (mean +0.866, psi +1.73)'
        """
        check_instance("Pipeline.drift", Drift, "gp.Drift(...)", remedy="gp.Drift(psi=0.3)", thresholds=thresholds)
        source, features = self._fitted_source(), self.features
        if features is None:
            expected, remedy = "a pipeline with features", "gp.Features(...)"
            raise BadConfig("Pipeline.drift", "nothing was learned", expected=expected, remedy=remedy)
        dataset, backend = as_dataset(data), get_executor().resolve(self.backend)
        labels = [] if features.target is None else features.target.reads(self._after)
        data_columns = {*dataset.columns}
        labelled = all(self._after[name].lineage & {*source.names} <= data_columns for name in labels)
        outputs = {*self.profiles, *(labels if labelled else ())}
        run = BoundPipeline(self.steps, features, source, dataset.columns, predicting=not labelled, outputs=outputs)
        dataset = run.prepare(dataset, backend)
        sample, profiles = profile_rows(run.plan, backend, features, run.plan_schema, dataset)
        return DriftReport.of(sample.num_rows, sample.sorted_values, profiles, self.profiles, thresholds)

    # looking ----------------------------------------------------------------------------------------------------------
    def explain(self, data: Any = None) -> Explanation:
        """Explain what `fit` will do and what cannot be saved, as text; in a notebook with a diagram.

        With the data to fit on, it also lists the columns that are read, and estimates the peak memory.

        Example:
            >>> from gpupipe import preprocessing as pre
            >>> print(Pipeline([], Features((["x", "y"], [pre.SimpleImputer(), pre.StandardScaler()]))).explain())
            pass 1: SimpleImputer + StandardScaler of x, y
        """
        dataset = None if data is None else as_dataset(data)
        lines = explain_fit(self.steps, self.features, dataset, get_executor().resolve(self.backend))
        explanation = Explanation("\n".join([*lines, *list_unsaveable(self.steps, self.features)]))
        explanation.picture = self._repr_html_()
        return explanation

    def __repr__(self) -> str:
        lines, features = [repr(step) for step in self.steps], self.features
        if features is not None:
            lines += [f"features: {' -> '.join([group.caption, *map(repr, group.steps)])}" for group in features.groups]
            if features.target is not None:
                lines.append(f"target: {' -> '.join([features.target.text, *map(repr, features.target.group.steps)])}")
            lines += [] if features.weight is None else [f"weight: {features.weight.text}"]
            lines += [f"keep: {format_columns(features.keep)}"] if features.keep else []
        return "Pipeline\n  " + "\n  ".join(lines or ["nothing"])

    def _repr_html_(self) -> str:
        tables = [_box(f"table {step.name}", sign="+") for step in self.steps if isinstance(step, TableJoin)]
        rows = [[_box("data"), *tables, *map(_box_step, self.steps)]]
        if (features := self.features) is not None:
            rows += [_draw_group(group, "features") for group in features.groups]
            rows += [] if features.target is None else [_draw_group(features.target.group, "target")]
            rows += [] if features.weight is None else [[_box(features.weight.text), _box("weight", sign="&rarr;")]]
            keep_row = [_box(shorten_list(features.keep), format_columns(features.keep)), _box("kept", sign="&rarr;")]
            rows += [keep_row] if features.keep else []
        lines = "".join(f'<div style="{_ROW}">{"".join(cells)}</div>' for cells in rows)
        return f'<div style="font-family:monospace;font-size:90%">{lines}</div>'


def _check_no_target(method: str, y: object) -> None:
    if y is not None:
        expected = "None: the target is a column of the data, named in Features"
        remedy = "gp.Features(..., target='y'), and data with that column"
        problem = "the target is given separately from the data"
        raise refuse_argument(f"Pipeline.{method}", "y", y, expected, remedy, problem=problem)


def _check_steps(steps: Any) -> None:
    if not is_sequence(steps):
        expected = "a list of steps from gpupipe.transforms, which may be empty"
        raise refuse_argument("Pipeline", "steps", steps, expected, "gp.Pipeline([], features)")
    for step in steps:
        if isinstance(step, Transform):
            continue
        remedy, problem = "Features((columns, step))", "a step is no transform"
        if isinstance(step, type):
            problem = "a class in the place of a step"
        if isinstance(step, Features):
            remedy = "gp.Pipeline(steps, features)"
        elif isinstance(step, type) and issubclass(step, Transform):
            remedy = f"T.{step.__name__}(...)"
        elif isinstance(step, type) and issubclass(step, preprocessing.LearnedStep):
            remedy = f"Features((columns, pre.{step.__name__}()))"
        elif isinstance(step, tuple) and any(isinstance(part, Transform) for part in step):
            remedy = "the step alone: steps have no names here"
        elif callable(step) and not hasattr(step, "fit"):
            remedy = "T.Map(function, reads=[...], adds=[...])"
        expected = "steps from gpupipe.transforms; learned steps belong in Features"
        raise BadConfig("Pipeline", problem, got=step, expected=expected, remedy=remedy)


MAX_TABLE_BYTES = 64 << 20  # a table to join with travels with the pipeline up to this size
_NO_FORM = "this value has no form in an artifact"
_OURS = {module.__name__: module for module in (transforms, preprocessing)}


class Encoder:
    """Encoder of steps as JSON, and stores of arrays, strings and tables up to `max_table_bytes`."""

    def __init__(self, backend: Backend, max_table_bytes: int) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.values: dict[str, pa.Array] = {}
        self.tables: dict[str, pa.Table] = {}
        self._backend, self._max_table_bytes = backend, max_table_bytes

    def step(self, step: Step) -> dict[str, Any]:
        """Describe a step's class, parameters and learned state."""
        tables = {"right": self._table(step)} if isinstance(step, TableJoin) else {}
        described = self.unfitted(step, **tables)
        if hasattr(step, "get_state"):
            described["state"] = self._plain_items(step, step.get_state())
        return described

    def unfitted(self, step: Step, /, **instead: Any) -> dict[str, Any]:
        """Describe a step's class and parameters, some of them by others in their place."""
        cls = type(step)
        homes = (module for module, namespace in _OURS.items() if vars(namespace).get(cls.__name__) is cls)
        home = next(homes, None)
        path = f"{home}.{cls.__name__}" if home else _function_path(cls, f"step {cls.__name__}")
        return {"class": path, "params": self._plain_items(step, step.get_params() | instead)}

    def _plain_items(self, step: Step, items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._plain(value, f"{type(step).__name__}.{name}") for name, value in items.items()}

    def digest(self, description: Mapping[str, Any]) -> str:
        """Compute a hash of a description and the stored values it refers to."""
        hasher = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
        for array in self.arrays.values():
            hasher.update(f"{array.dtype} {array.shape}".encode())
            hasher.update(array.tobytes())
        for table in (*(pa.table([values], ["values"]) for values in self.values.values()), *self.tables.values()):
            with pa.ipc.new_stream(sink := pa.BufferOutputStream(), table.schema) as stream:
                stream.write_table(table.combine_chunks())
            hasher.update(sink.getvalue())
        return hasher.hexdigest()

    def features(self, features: Features | None) -> dict[str, Any] | None:
        """Describe groups, target, weight and the other arguments of `Features`."""
        if features is None:
            return None
        target, groups = features.target, features.groups
        return {
            "groups": [{"columns": g.columns, "name": g.name, "steps": list(map(self.step, g.steps))} for g in groups],
            "target": None if target is None else target.texts,
            "task": "auto" if target is None else target.task,
            "standardised": target is None or target.auto,
            "target_transform": [] if target is None else list(map(self.step, target.group.steps)),
            "classes": None if target is None else target.get_state(),
            "lineage": features.lineage_,
            "weight": None if features.weight is None else features.weight.text,
            "keep": features.keep,
            "allow_leak": features.allow_leak,
        }

    def _table(self, join: TableJoin) -> dict[str, Any]:
        kind = join.class_name
        where, remedy = f"{kind}({join.name!r})", f"{kind}(..., name='weather')"
        if not re.fullmatch(r"[\w-][\w .-]*", join.name):
            raise ArtifactError(where, "its name cannot be a file's", expected="letters and digits", remedy=remedy)
        table = self._backend.to_arrow(join.table(self._backend))
        for item in join.right_schema.select(table.column_names):
            if item.written_as:  # times of a zone, and dates
                values = table[item.name].cast(get_file_type(item))
                table = table.set_column(table.column_names.index(item.name), item.name, values)
        if table.nbytes <= self._max_table_bytes:
            self.tables[join.name] = table
        return {"$table": join.name, "$schema": join.right_schema.select(table.column_names).to_json()}

    def _plain(self, value: Any, where: str) -> Any:
        """Convert a value to JSON; store arrays separately under a key."""
        is_text = isinstance(value, np.ndarray) and value.dtype.kind == "U"
        value = value.tolist() if is_text else to_python(value)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, np.ndarray) and value.dtype != object:
            self.arrays[key := f"array{len(self.arrays)}"] = np.ascontiguousarray(value)
            return {"$array": key}
        if isinstance(value, pa.Array):
            self.values[key := f"values{len(self.values)}"] = value
            return {"$values": key}
        if isinstance(value, list | tuple):
            return [self._plain(item, where) for item in value]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            if any(key.startswith("$") for key in value) and set(value) != {"$table", "$schema"}:
                expected = "names that do not begin with $"
                raise ArtifactError(where, _NO_FORM, got=value, expected=expected, remedy="a plain value")
            return {key: self._plain(item, where) for key, item in value.items()}
        if isinstance(value, Mapping):
            return {"$items": [[self._plain(key, where), self._plain(item, where)] for key, item in value.items()]}
        if is_estimator(value):
            return {"$estimator": self._plain(export_state(value, where), where)}
        if callable(value):
            return {"$function": _function_path(value, where)}
        expected = "numbers, strings, lists, arrays or importable functions"
        raise ArtifactError(where, _NO_FORM, got=value, expected=expected, remedy="a plain value")


@dataclass
class Decoder:
    """Decoder of steps that an `Encoder` described; imports nothing that `allow` does not name."""

    arrays: Mapping[str, Any]
    values: Mapping[str, pa.Array]
    embedded: Mapping[str, Path]
    tables: dict[str, Any]
    allow: frozenset[str]
    _table_names: set[str] = field(default_factory=set)

    def step(self, described: Mapping[str, Any]) -> Any:
        """Build the step with its learned state."""
        cls = self._class(described["class"])
        params = {name: self.value(value) for name, value in described["params"].items()}
        step: Any = cls(**params)
        if "state" in described:
            step.set_state({name: self.value(value) for name, value in described["state"].items()})
        return step

    def features(self, described: Mapping[str, Any] | None) -> Features | None:
        """Build `Features` with every step's learned state."""
        if described is None:
            return None
        steps = list(map(self.step, described["target_transform"]))
        groups = ((item["columns"], list(map(self.step, item["steps"])), item["name"]) for item in described["groups"])
        options = {name: described[name] for name in ("target", "task", "weight", "keep", "allow_leak")}
        features = Features(*groups, target_transform="auto" if described["standardised"] else steps, **options)
        if features.target is not None:
            features.target.set_state(described["classes"], steps)
        features.lineage_ = described["lineage"]
        for group in features.groups:
            group.check_state()
        return features

    def check_all_used(self) -> None:
        """Raise for a table given under a name no join has."""
        for name in self.tables.keys() - self._table_names:
            where, expected = "load(tables=...)", f"one of {sorted(self._table_names)}"
            near = nearest(name, sorted(self._table_names)) or next(iter(sorted(self._table_names)), None)
            remedy = "load without tables=, since no step joins one" if near is None else f"tables={{{near!r}: ...}}"
            raise ArtifactError(where, "no join has this name", got=name, expected=expected, remedy=remedy)

    def value(self, value: Any) -> Any:
        """Decode a parameter or a piece of state, including separately stored values."""
        match value:
            case {"$table": name}:
                return self._table(name, Schema.from_json(value["$schema"]))
            case {"$array": key}:
                return self.arrays[key]
            case {"$values": key}:
                return self.values[key]
            case {"$float": text}:
                return float(text)
            case {"$items": pairs}:
                return {self.value(key): self.value(item) for key, item in pairs}
            case {"$function": path}:
                return self._import_allowed(path)
            case {"$estimator": state}:
                return rebuild_estimator(self.value(state), "pipeline.json")
            case dict():
                return {key: self.value(item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
        return value

    def _table(self, name: str, schema: Schema) -> Dataset:
        self._table_names.add(name)
        if name in self.tables:
            table = as_dataset(self.tables[name])
        elif name in self.embedded:
            rows = pq.read_table(self.embedded[name])
            rows.validate(full=True)
            table = from_frame(rows)
        else:
            problem = "it was too large to be saved and is not given"
            expected, remedy = f"a table with the columns {schema.names}", f"gp.load(path, tables={{{name!r}: table}})"
            raise ArtifactError(f"table {name!r}", problem, expected=expected, remedy=remedy)
        for item in schema:
            if (dtype := table.schema[item.name].dtype) != item.dtype:
                where, problem = f"table {name!r}, column {item.name!r}", "another type than when it was saved"
                remedy = "the same table with newer rows"
                raise SchemaMismatch(where, problem, got=dtype, expected=item.dtype, remedy=remedy)
        return table

    def _class(self, path: str) -> type[Step]:
        module, _, name = path.rpartition(".")
        namespace = _OURS.get(module)
        cls = getattr(namespace, name) if namespace and name in namespace.__all__ else self._import_allowed(path)
        if not (isinstance(cls, type) and issubclass(cls, Step)):
            expected = "a class of steps"
            raise ArtifactError("pipeline.json", "it is no step", got=path, expected=expected, remedy="saving again")
        return cls

    def _import_allowed(self, path: str) -> Any:
        """Import the function or class at a path, if `allow` names it."""
        if path not in self.allow:
            problem, expected = "the pipeline uses code of the user's own", "that its import path is allowed"
            remedy = f"gp.load(path, allow=[{path!r}]) if you trust it"
            raise ArtifactError("pipeline.json", problem, got=path, expected=expected, remedy=remedy)
        module, _, name = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as cause:
            problem, expected = f"it cannot be imported ({cause})", "a module on sys.path"
            remedy = f"the module {module!r}"
            raise ArtifactError("pipeline.json", problem, got=path, expected=expected, remedy=remedy) from cause


def list_unsaveable(steps: Sequence[Transform], features: Features | None) -> list[str]:
    """List a line for each step that `save` would refuse, judged by the steps' parameters."""
    lines, encoder = list[str](), Encoder(select("cpu"), 0)
    for step in (*steps, *([] if features is None else features._steps)):
        try:
            encoder.unfitted(step, **({"right": None} if isinstance(step, TableJoin) else {}))
        except ArtifactError as error:
            lines.append(f"cannot be saved: {error.where}, {error.problem}: {error.got}")
    return lines


def _function_path(function: Any, where: str) -> str:
    """Return a function's or class's import path; refuse what a new process could not import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    importable = module not in (None, "__main__", "builtins") and name.isidentifier()
    if not importable or getattr(importlib.import_module(str(module)), name, None) is not function:
        problem = "it cannot be found again in a new process"
        expected = "a function (or class) defined by name in a module"
        remedy = "moving it into a file of its own and importing it from there"
        raise ArtifactError(where, problem, got=f"{module}.{name}", expected=expected, remedy=remedy)
    return f"{module}.{name}"


# Borders and text have the page's own colour, so that light and dark notebooks both show them.
_BOX = "border:1px solid;border-radius:4px;padding:2px 8px;margin:2px;display:inline-block;vertical-align:middle"
_ROW = "display:flex;flex-wrap:wrap;align-items:center;margin:2px 0"
_PALE = "opacity:.7"
_LONGEST_DETAIL = 60  # letters


def _draw_group(group: FeatureGroup, label: str) -> list[str]:
    names = group.caption if group.selector is not None else shorten_list(group.columns)
    steps = list(map(_box_step, group.steps))
    label = label if group.name is None else f"{label} {group.name}_*"
    return [_box(names, group.caption), *steps, _box(label, sign="&rarr;")]


def _box_step(step: Step) -> str:
    """Draw a step: its class, and below it in small letters what it is told to do."""
    whole = repr(step)
    settings = whole.partition("(")[2].removesuffix(")")
    detail = settings if len(settings) <= _LONGEST_DETAIL else f"{settings[:_LONGEST_DETAIL]}…"
    return _box(step.class_name, whole, "&rarr;", detail)


def _box(text: str, title: str = "", sign: str = "", detail: str = "") -> str:
    tooltip = f' title="{html.escape(title)}"' if title and title != text else ""
    before = f'<span style="{_PALE}">{sign}</span>' if sign else ""
    small = f"<br><small>{html.escape(detail)}</small>" if detail else ""
    return f'{before}<span style="{_BOX}"{tooltip}>{html.escape(text)}{small}</span>'


class Explanation(str):
    """Text that a notebook shows below a diagram."""

    __slots__ = ("picture",)
    picture: str  # HTML

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"{self.picture}<pre>{html.escape(self)}</pre>"
