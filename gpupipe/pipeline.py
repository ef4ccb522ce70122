"""The pipeline: steps from frame to frame, then features, then tensors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from gpupipe.backend import Backend, select
from gpupipe.cluster import Executor, active, in_force
from gpupipe.config import BACKENDS, BLOCK_ROWS, WINDOW
from gpupipe.diagram import diagram, outline
from gpupipe.drift import Drift
from gpupipe.encoding import MAX_TABLE_BYTES, Encoder
from gpupipe.errors import ArtifactError, BadConfig, ColumnNotFound, NotFitted
from gpupipe.expectations import Expect, Expectations
from gpupipe.explaining import Explanation, explained, unsaveable
from gpupipe.features import Features
from gpupipe.fitting import Fitting
from gpupipe.io import as_dataset, as_rows
from gpupipe.plan import Prefix
from gpupipe.ranges import source_ranges
from gpupipe.reports import FitReport
from gpupipe.schema import Schema
from gpupipe.support.validation import check_choice, check_instance, is_sequence, refuse_argument
from gpupipe.transformation import Bindings, Transformation
from gpupipe.transforms import Join, Transform
from gpupipe.watched import Watched
from gpupipe.watching import categories_of, rows_in

if TYPE_CHECKING:
    from gpupipe.tensors import Loader
    from gpupipe.units import TargetUnits

__all__ = ["Pipeline"]

_log = logging.getLogger("gpupipe")
_DRIFT = Drift()


class Pipeline(Watched):
    """Steps from frame to frame, then one step from frame to tensors.

    Args:
        steps: transforms, in order; one alone stands for a list of it, and `Features` alone for no transforms.
        features: which columns become features, and how; without it `transform` gives the transformed frame.
        backend: `"auto"`, `"cpu"` or `"gpu"`.
        expect: what is expected of columns of the data as it is read, by name: looked at in `fit` (where something is
            learned) and wherever rows are transformed, in the same pass.
        on_violation: what becomes of rows that are not as expected: `"report"` logs them and counts them in
            `check_report`, `"raise"` is an error.
        drift: how far other rows may be from those of the fit before `drift_report` and the log say so; None remembers
            and compares nothing.

    A pipeline learns in copies of the steps it is given, so that two pipelines never share what they learned: look at
    `pipeline.steps` and `pipeline.features`.

    Raises:
        BadConfig: a step is no transform, two joins have one name, or something else makes no sense.

    Example:
        >>> import pandas as pd
        >>> from gpupipe import preprocessing as pre, transforms as T
        >>> flights = pd.DataFrame({"dep_delay": [2.0, None, 8.0, 2.0], "arr_delay": [20.0, 3.0, 30.0, None]})
        >>> pipeline = Pipeline([], Features(
        ...     (["dep_delay"], [pre.SimpleImputer(), pre.StandardScaler()]), target="arr_delay > 15"))
        >>> pipeline.fit(flights).transform(flights)["target"].tolist()
        [1.0, 0.0, 1.0, nan]
    """

    def __init__(
        self,
        steps: Sequence[Transform] | Transform | Features,
        features: Features | None = None,
        backend: str = "auto",
        *,
        expect: Mapping[str, Expect] | None = None,
        on_violation: str = "report",
        drift: Drift | None = _DRIFT,
    ) -> None:
        listed: Any = [steps] if isinstance(steps, Transform) else steps
        if isinstance(steps, Features) and features is None:
            listed, features = [], steps
        _check_steps(listed)
        check_instance(
            self, Features, "gp.Features(...)", None, remedy="features=gp.Features(['x'])", features=features
        )
        check_choice(self, BACKENDS, backend=backend)
        check_instance(self, Drift, "gp.Drift(...)", None, remedy="drift=gp.Drift()", drift=drift)
        names = [step.name for step in listed if isinstance(step, Join)]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise BadConfig(
                "Pipeline",
                "joins share a name",
                got=twice,
                expected="a name of its own for each join: reports and saved tables go by it",
                remedy=f"Join(..., name={twice[0] + '_2'!r})",
            )
        self.steps: list[Transform] = [copy(step) for step in listed]
        self.features = None if features is None else features.copy()
        self.backend = backend
        super().__init__(Expectations({} if expect is None else expect, on_violation), drift)
        self.fit_report: FitReport | None = None
        self._source: Schema | None = None
        self._schema: Schema | None = None
        self._bindings = Bindings()

    # learning ---------------------------------------------------------------------------------------------------------
    def fit(self, data: Any, y: None = None, *, executor: Executor | None = None) -> Self:
        """Learn every step's state from a Dataset or a frame; returns self.

        Rows whose target is missing are left out and counted in `fit_report`.

        Args:
            data: what to learn from, the target's column with it.
            y: None, as scikit-learn passes it; the target is named in `Features(target=)`.
            executor: a Cluster; by default the one whose `with` this stands in, or else this process.

        Raises:
            ColumnNotFound: a step reads a column that is not there.
            LeakageError: a feature is computed from a column the target is computed from.
            BadData: values a step cannot learn from.
            PartitionFailed: anything else that failed, with the partition's file and the cause.
            BadConfig: a target beside the data.

        Memory: one partition per thread, plus up to 1 GiB of the columns a later pass reads again.
        """
        _check_no_target("fit", y)
        for line in unsaveable(self.steps, self.features):
            _log.warning("%s", line)  # before a model is trained, not after it
        self._source = None  # until all of it has succeeded: half a new state must not pass for a whole one
        with in_force(executor):
            fitting = Fitting(
                self.steps,
                self.features,
                as_dataset(data),
                active().resolve(self.backend),
                self.expectations,
                samples=self.drift is not None,
            )
            self.fit_report = fitting.run()
        self.forget(fitting.profiles)
        self.bind(source_ranges(fitting.source, fitting.schema, fitting.seen), fitting.ranges)
        if not self.fit_report.checks.passed:
            self._warnings.once(rows_in(data), f"expect: {self.fit_report.checks.summary}")
        _log.info("%s", self.fit_report)
        return self

    def bind(self, source: Schema, ranges: Mapping[str, tuple[float, float]] | None = None) -> None:
        """Take `source` as the schema of the data, and the outputs' ranges; the steps hold their state already."""
        self._source = source
        self._after = Prefix(self.steps, source, None).output_schema
        schema = self._after if self.features is None else self.features.output_schema(self._after)
        self._schema = Schema(schema, ranges)

    @property
    def schema(self) -> Schema:
        """The schema of what it puts out: features, target, weight and kept columns.

        Raises:
            NotFitted: before `fit`.
        """
        if self._source is None or self._schema is None:
            raise _not_fitted()
        return self._schema

    @property
    def target_units(self) -> TargetUnits | None:
        """What brings stored targets and a model's outputs into the target's own units; None where they are."""
        target = None if self.features is None else self.features.target
        if target is None or not target.group.steps:
            return None
        units: TargetUnits = import_module("gpupipe.units").TargetUnits(target)
        return units

    def select_backend(self) -> Backend:
        """The backend this pipeline works on."""
        return select(self.backend)

    @property
    def source(self) -> Schema:
        """The schema of the data it was fitted on, label columns marked.

        Raises:
            NotFitted: before `fit`.
        """
        if self._source is None:
            raise _not_fitted()
        return self._source

    # applying ---------------------------------------------------------------------------------------------------------
    def transform(self, data: Any) -> Any:
        """The features of a frame (as a frame) or of a Dataset (as a lazy Dataset), in the order of its rows.

        Then come target and weight where their columns are there, then the kept columns; without `features`, all
        columns. Rows with a missing target stay.

        Args:
            data: whatever `fit` takes. A pandas or cuDF frame gives a frame of its library with its index; another
                table in memory (Polars, Arrow) gives a frame of this pipeline's backend, whose index counts the rows
                (not yet run on a GPU); a Dataset or a stream gives a lazy Dataset.

        Raises:
            NotFitted: before `fit`.
            ColumnNotFound, SchemaMismatch: the data is not like the data it was fitted on, or is no table.

        Memory: a new frame; a Dataset is worked on a partition at a time. Of an Arrow table strings are copied, and on
            a GPU all columns.
        """
        rows = as_rows(data, self.backend)
        run = self.bound_to(rows, given=data)
        return run.over(rows, run.apply, run.table_schema, self.backend, self.fingerprint, run.own)

    def fit_transform(self, data: Any, y: None = None, *, executor: Executor | None = None) -> Any:
        """`fit`, then the features of the same rows; see `transform`.

        Where a step learns from the target (`TargetEncoder`), each row gets what rows of other folds taught: what a
        model may be trained on. `transform` gives what all rows taught, which for these rows holds their own target.

        Errors and memory as for `fit` and `transform`. Memory: no more than theirs.

        Example:
            >>> from gpupipe import preprocessing as pre
            >>> import pandas as pd
            >>> flights = pd.DataFrame({"origin": ["JFK", "LGA", "JFK", "LGA"], "delay": [1.0, 3.0, 2.0, 4.0]})
            >>> encoder = pre.TargetEncoder(smooth=0.0, cv=2)
            >>> pipeline = Pipeline([], Features((["origin"], encoder), target="delay"))
            >>> pipeline.fit_transform(flights)["origin"].tolist(), pipeline.transform(flights)["origin"].tolist()
            ([2.0, 4.0, 1.0, 3.0], [1.5, 3.5, 1.5, 3.5])
        """
        _check_no_target("fit_transform", y)
        data = as_rows(data, self.backend)
        self.fit(data, executor=executor)
        run = self.bound_to(data, out_of_fold=True)
        # What single folds taught is no part of the fingerprint, so such a job is never taken for another one's rest.
        identity = self.fingerprint if self.features is None or not self.features.cross_fits else lambda: None
        return run.over(data, run.apply, run.table_schema, self.backend, identity, run.own)

    def loader(
        self,
        data: Any,
        *,
        batch_size: int = 4096,
        shuffle: bool | str = False,
        block_rows: int = BLOCK_ROWS,
        window: int = WINDOW,
        seed: int = 0,
        drop_last: bool = False,
        reuse_buffers: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        sharded: bool | Sequence[int] = False,
        sampler: Any = None,
        device: str = "auto",
        residency: str = "auto",
        dtype: str = "float32",
        out_of_fold: bool | None = None,
    ) -> Loader:
        """Transform `data` into one block of tensors and give a loader over it; a table too large is streamed instead.

        Rows whose target is missing are left out. The order depends on `seed`, the epoch and the number of rows alone.

        Where a step learns from the target (`TargetEncoder`), the rows of the fit must not be trained on with what they
        taught themselves. They are known by their values and places, in any partitions, after `save` and `load` too.

        Args:
            data: a Dataset or a frame.
            batch_size: rows per batch; this and all down to `sampler` as in `Loader`.
            shuffle: `"rows"` (or True), `"blocks"`, or False for the order of the data.
            block_rows: rows of a block that is shuffled.
            window: blocks whose rows are mixed.
            seed: of the order.
            drop_last: leave out a last batch that is not full.
            reuse_buffers: each batch overwrites the one before.
            rank: this process among those that train together.
            world_size: how many they are.
            sharded: whether each rank's `data` are rows of its own.
            sampler: how rows are drawn with replacement.
            device: where batches are wanted; the backend's by default.
            residency: `"device"` for the block there, `"host"` for a block in the host's memory, `"stream"` for no
                block: `data` is read and transformed anew in each epoch; `"auto"` for the first there is room for.
            dtype: of the stored numbers, `"float32"` or `"bfloat16"`.
            out_of_fold: True for the rows of the fit: each gets what rows of other folds taught. For any other rows
                leave it out. False gives the rows of the fit what all rows taught, theirs included.

        Raises:
            BadData: a missing or infinite value would reach the block; names the column and the remedy.
            LeakageError: a step learned from the target of these very rows, and `out_of_fold` is not said.
            BadConfig: `out_of_fold=True` and these are other rows, or options that do not go together.

        Memory: one block of 4 bytes per feature and row (padded to 32), and one partition per thread. Streamed: two
            windows of `block_rows * window` rows instead.
        """
        if out_of_fold not in (None, True, False):
            expected, remedy = "True, False or None", "out_of_fold=True"
            raise BadConfig("loader(out_of_fold=)", "makes no sense", got=out_of_fold, expected=expected, remedy=remedy)
        dataset, backend = as_dataset(data), active().resolve(self.backend)
        run = self.bound_to(dataset, with_target_only=True, out_of_fold=bool(out_of_fold), given=data)
        run.expect(dataset.schema)
        # PyTorch takes longer to import than a small fit.
        loader: Loader = import_module("gpupipe.loading").make_loader(
            run,
            run.meet(dataset, backend),
            backend,
            self.features,
            device=device,
            residency=residency,
            dtype=dtype,
            out_of_fold=out_of_fold,
            batch_size=batch_size,
            shuffle=shuffle,
            block_rows=block_rows,
            window=window,
            seed=seed,
            drop_last=drop_last,
            reuse_buffers=reuse_buffers,
            rank=rank,
            world_size=world_size,
            sharded=sharded,
            sampler=sampler,
            target_units=self.target_units,
        )
        return loader

    def bound_to(
        self,
        data: Any,
        *,
        with_target_only: bool = False,
        predicting: bool = False,
        out_of_fold: bool = False,
        given: Any = None,
    ) -> Transformation:
        """This pipeline bound to the columns of a Dataset or a frame, of which reports will tell from now on.

        `given` is what a user gave for it, where that is something else.
        """
        columns = data.columns.tolist() if hasattr(data.columns, "tolist") else data.columns
        source, names = self.source, tuple(name for name in columns if isinstance(name, str))
        known = None if self.features is None else categories_of(self.features, self._after)
        watch = self.watch(data, known, given)
        options = {"with_target_only": with_target_only, "predicting": predicting, "out_of_fold": out_of_fold}
        try:
            bound = self._bindings.bound(
                self.steps,
                self.features,
                source,
                (names, *options.values()),
                lambda: Transformation(self.steps, self.features, source, names, **options),
            )
        except ColumnNotFound as error:
            if error.column not in getattr(getattr(data, "index", None), "names", ()):
                raise
            problem, expected = f"column {error.column!r} is their index", "a column that is there"
            indexed = ColumnNotFound("the data", problem, expected=expected, remedy="data.reset_index()")
            indexed.column = error.column
            raise indexed from None
        return bound.watched(watch)

    def fingerprint(self) -> str | None:
        """A hash of the steps and what they have learned; None where a function has no import path.

        Memory: copies what was learned to the host, where lookup tables are read too: what drives a cluster asks for
            it, and should not touch a GPU.
        """
        encoder = Encoder(select("cpu"), MAX_TABLE_BYTES)
        try:
            steps = [encoder.step(step) for step in self.steps]
            known = {"steps": steps, "features": encoder.features(self.features)}
            known["expect"] = self.expectations.to_json()
            return encoder.digest(known)
        except ArtifactError:
            return None

    # looking ----------------------------------------------------------------------------------------------------------
    def explain(self, data: Any = None) -> Explanation:
        """What `fit` will do and what cannot be saved, as text; in a notebook with a diagram.

        Args:
            data: what would be fitted on; then the columns that are read and the expected peak memory are told too.

        Example:
            >>> from gpupipe import preprocessing as pre
            >>> print(Pipeline([], Features((["x", "y"], [pre.SimpleImputer(), pre.StandardScaler()]))).explain())
            pass 1: SimpleImputer + StandardScaler of x, y
        """
        dataset = None if data is None else as_dataset(data)
        return explained(self.steps, self.features, dataset, self.expectations, active().resolve(self.backend))

    def __repr__(self) -> str:
        return outline(self.steps, self.features)

    def _repr_html_(self) -> str:
        return diagram(self.steps, self.features)


def _not_fitted() -> NotFitted:
    return NotFitted("Pipeline", "it has not been fitted", expected="fit first", remedy="pipeline.fit(train)")


def _check_no_target(method: str, y: object) -> None:
    if y is not None:
        raise refuse_argument(
            f"Pipeline.{method}",
            "y",
            y,
            "None: the target is a column of the data, named in Features",
            "gp.Features(..., target='y'), and data with that column",
            problem="the target stands beside the data",
        )


def _check_steps(steps: Any) -> None:
    if not is_sequence(steps):
        expected = "a list of steps from gpupipe.transforms, which may be empty"
        raise refuse_argument("Pipeline", "steps", steps, expected, "gp.Pipeline([], features)")
    for step in steps:
        if isinstance(step, Transform):
            continue
        remedy = "Features((columns, step))"
        if isinstance(step, Features):
            remedy = "gp.Pipeline(steps, features)"
        elif isinstance(step, type) and issubclass(step, Transform):
            remedy = f"T.{step.__name__}(...)"
        elif isinstance(step, tuple) and any(isinstance(part, Transform) for part in step):
            remedy = "the step alone: steps have no names here"
        elif callable(step) and not hasattr(step, "fit"):
            remedy = "T.Map(function, reads=[...], adds=[...])"
        raise BadConfig(
            "Pipeline",
            "a step is no transform",
            got=step,
            expected="steps from gpupipe.transforms; learned steps belong in Features",
            remedy=remedy,
        )
