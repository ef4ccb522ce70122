"""Scorer: a fitted pipeline and its model, which predict and judge rows."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import torch

from gpupipe.backend import Array, Backend, Column, Frame, select
from gpupipe.backend.dictionaries import strings
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.io import Dataset, as_dataset, as_rows
from gpupipe.models.tabular import Tabular
from gpupipe.pipeline.bound_pipeline import BoundPipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.saving.calibrator import CalibratedNetwork, Calibrator, Conformal, reach_beyond
from gpupipe.saving.records import answer_records, is_records
from gpupipe.schema import Field, Role, Schema, count_features
from gpupipe.support.attributes import Answering
from gpupipe.support.calls import answer_calls
from gpupipe.support.origins import Origins
from gpupipe.support.validation import check_instance, check_integer, check_name
from gpupipe.tensors import FeatureTable, Loader, require_device
from gpupipe.training import Report, Trainer
from gpupipe.training.loop.ranking import is_positive
from gpupipe.training.loop.scored_rows import Threshold, check_threshold, get_limits

_log = logging.getLogger("gpupipe")


@answer_calls
class Scorer(Answering):
    """Scorer: a loaded pipeline and its model, which predict rows.

    Args:
        model: trained on the pipeline's output; None allows `transform` only.
        threshold: the probability from which on `predict` takes the second of two classes, 0.5 by default; of several
            targets one for all, or one by name. `Report.threshold` chooses it.
        device: where the model runs; the backend's by default.
        calibrator: of its probabilities, intervals or sets; `gp.calibrate` makes it.

    Raises:
        SchemaMismatch: the model was made for other features than the pipeline gives.
        NotFitted: the pipeline has not been fitted.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        model: torch.nn.Module | None,
        *,
        threshold: Threshold | None = None,
        device: str = "auto",
        calibrator: Calibrator | None = None,
    ) -> None:
        parts: list[tuple[str, Any, Any]] = [("pipeline", pipeline, Pipeline), ("model", model, torch.nn.Module | None)]
        for name, value, kind in parts:
            if not isinstance(value, kind):
                where, expected = f"Scorer({name}=)", "a fitted pipeline, then a torch.nn.Module or None"
                remedy = "gp.Scorer(pipeline, trainer.model)"
                raise BadConfig(where, f"not a {name}", got=type(value), expected=expected, remedy=remedy)
        schema = pipeline.schema
        if isinstance(model, Tabular):
            model.check_schema(schema)
            model.check_fitted()
        remedy = "scorer = gp.calibrate(scorer, data)"
        check_instance(self, Calibrator, "a Calibrator", None, remedy=remedy, calibrator=calibrator)
        self.pipeline, self.model, self.calibrator = pipeline, model, calibrator
        self.threshold = threshold
        if calibrator is not None:
            calibrator.check(schema, pipeline._after)
        self.device = select(pipeline.backend).device if device == "auto" else device
        if model is not None:
            require_device(self.device)
            model.to(self.device)

    @property
    def threshold(self) -> float | dict[str, float] | None:
        """The probability from which on `predict` takes the second class; None for other tasks."""
        return self._threshold

    @threshold.setter
    def threshold(self, value: Threshold | None) -> None:
        names = [item.name for item in self.schema.targets]
        self._threshold = check_threshold("Scorer", value, self.schema.task, names)

    @property
    def schema(self) -> Schema:
        """The schema of the features."""
        return self.pipeline.schema

    @property
    def calibrated_model(self) -> torch.nn.Module | None:
        """The model, or where its probabilities are calibrated a module around it that gives their logits."""
        probabilities = None if self.calibrator is None else self.calibrator.probabilities
        if self.model is None or probabilities is None:
            return self.model
        return CalibratedNetwork(self.model, probabilities, str(self.schema.task))

    def __repr__(self) -> str:
        schema, model = self.schema, "no model" if self.model is None else type(self.model).__name__
        features = self.pipeline.features
        target = "" if features is None or features.target is None else f" for {schema.task} {features.target.text!r}"
        limit = "" if self.threshold is None else f", threshold {self.threshold}"
        calibration = "" if self.calibrator is None else f", calibrated: {self.calibrator.title}"
        return f"Scorer of {model} on {self.device}: {count_features(schema)}{target}{limit}{calibration}"

    def transform(self, data: Any, *, history: Any = None) -> Any:
        """Compute the features of a frame or Dataset, as `pipeline.transform` does.

        Memory: as `Pipeline.transform`.
        """
        return self.pipeline.transform(data, history=history)

    def predict(self, data: Any, *, history: Any = None, batch_size: int = 32768) -> Any:
        """Predict the value of each row, in order, followed by the kept columns.

        Classes are given as the target has them: strings, int64, or booleans of a condition; of two the second one
        where its probability is `threshold` or more. A regression gives numbers in the target's own units, float64
        where there is a `target_transform`. Of several targets each has a column `prediction_<target>`, of a model with
        quantiles each of them: `prediction_q05`, `prediction_q50`, `prediction_q975` for 0.05, 0.5 and 0.975, ascending
        in each row.
        The model gets `batch_size` rows at a time. The result is bit-identical for the same backend, batch size and
        number of threads: of a Dataset a Dataset, of a dict, one row by column name, a dict of plain values, of a list
        of them a list, and of any other table, Polars' and Arrow's too, a frame of pandas or cuDF.

        `history` is a Dataset or a frame of earlier rows, which come before those of `data` in every window (`T.Lag`,
        `T.Rolling`) and are not predicted. What such windows alone read, and only of rows before (the target in a
        forecast), `data` may lack.

        Raises:
            ColumnNotFound, SchemaMismatch: the data or the history is not like the data the pipeline was fitted on, or
                is no table.
            BadConfig: there is no model, `batch_size` is no number of rows, or no window would look at the history.
            BadData: of a dict, the steps leave its row out, or a joined table has several rows for it.

        Memory: a frame's features as one block; a Dataset's a partition at a time. One value per row to the frame.
        """
        return self._score(data, history, batch_size, self._decided, self._decided_fields())

    def predict_proba(self, data: Any, *, history: Any = None, batch_size: int = 32768) -> Any:
        """Predict the probabilities of each row, in order, followed by the kept columns.

        It is `probability` (of true, or 1) for a condition or a target of 0 and 1, else `probability_<name>` for each
        class or each of several conditions. Arguments, errors and memory as for `predict`. Raises `BadConfig`: the task
        is a regression, or there is no model.
        """
        if self.schema.task == "regression":
            problem, expected = "a regression has no probabilities", "a classification's model"
            raise BadConfig("predict_proba", problem, expected=expected, remedy="predict(data)")
        return self._score(data, history, batch_size, self._probabilities, self._probability_fields())

    def predict_interval(self, data: Any, *, history: Any = None, batch_size: int = 32768) -> Any:
        """Predict for each row an interval that holds the truth with the coverage that the scorer is calibrated to.

        After the columns of `predict` come `lower` and `upper` (of several targets `lower_<target>` and
        `upper_<target>`) in the target's own units, then the kept columns. `gp.calibrate` says what the coverage means,
        and of which rows. Arguments and memory as for `predict`.

        Raises:
            BadConfig: the task is no regression, or the scorer has no intervals.
            ColumnNotFound, SchemaMismatch: as `predict`; or the column of the groups is not there.
        """
        conformal = self._get_conformal("predict_interval", "regression")
        names = [f"_{item.name}" for item in self.schema.targets] if len(self.schema.targets) > 1 else [""]
        ends = [Field(f"{end}{name}", "float64", nullable=False) for name in names for end in ("lower", "upper")]

        def read(output: torch.Tensor, backend: Backend, group: Column | None = None) -> list[Column]:
            limits = conformal.get_limits(group, backend, output.device)
            are_quantiles = bool(getattr(self.model, "quantiles", None))
            lower, upper = reach_beyond(self._in_units(output), limits, are_quantiles=are_quantiles)
            parts = torch.stack([lower, upper], 2).flatten(1).unbind(1)
            return [*self._decided(output, backend), *(_column(part, backend) for part in parts)]

        return self._score(data, history, batch_size, read, [*self._decided_fields(), *ends], conformal.by)

    def predict_set(self, data: Any, *, history: Any = None, batch_size: int = 32768) -> Any:
        """Predict for each row a set of classes that holds the true one with the coverage of the calibration.

        After the columns of `predict` comes a boolean `set_<class>` for each class, then the kept columns. A sure row
        has one class in its set; a set may be empty. `gp.calibrate` says what the coverage means, and of which rows.
        Arguments and memory as for `predict`.

        Raises:
            BadConfig: the task has no classes of one target, or the scorer has no sets.
            ColumnNotFound, SchemaMismatch: as `predict`; or the column of the groups is not there.
        """
        conformal = self._get_conformal("predict_set", "binary", "multiclass")
        flags = [Field(f"set_{name}", "bool", nullable=False) for name in self._classes]

        def read(output: torch.Tensor, backend: Backend, group: Column | None = None) -> list[Column]:
            chances = self._chances(output)
            inside = (chances >= conformal.get_limits(group, backend, output.device)).unbind(1)
            columns = (_class_column(part, backend, (False, True)) for part in inside)
            return [*self._decided(output, backend), *columns]

        return self._score(data, history, batch_size, read, [*self._decided_fields(), *flags], conformal.by)

    def _get_conformal(self, method: str, *tasks: str) -> Conformal:
        """Return the limits of intervals or sets; `BadConfig` where the task or the scorer has none."""
        if self.schema.task not in tasks:
            remedies = {"regression": "predict_interval(data)", "multilabel": "predict_proba(data)"}
            remedy, expected = remedies.get(self.schema.task or "", "predict_set(data)"), " or ".join(tasks)
            raise BadConfig(method, "not for this task", got=self.schema.task, expected=expected, remedy=remedy)
        conformal = None if self.calibrator is None else self.calibrator.conformal
        if conformal is None:
            expected, remedy = "a scorer that is calibrated", "scorer = gp.calibrate(scorer, data, coverage=0.9)"
            raise BadConfig(method, "the scorer has no coverage", expected=expected, remedy=remedy)
        return conformal

    def evaluate(
        self,
        data: Any,
        *,
        by: str | None = None,
        rows: str | None = None,
        history: Any = None,
        batch_size: int = 32768,
    ) -> Report:
        """Compute every metric of the task on rows with a target, and report on them, at the scorer's threshold.

        The rows are those of `pipeline.loader(data, rows=, history=)`, which leaves out those without a target, and
        those that a step leaves out of training; a warning says where rows of the fit are among them. `by` is a column,
        whose values are the groups of `report.by`; the rows of the fit may lack it.

        Raises:
            ColumnNotFound, SchemaMismatch: the data is not like the data the pipeline was fitted on, or is no table.
            LeakageError: features of these rows hold their own target.
            BadConfig: there is no model, the data has no target, or no window would look at the history.
            BadData: more than 1,000 groups, or `rows` selects none.

        Memory: as `Pipeline.loader` and `Trainer.evaluate`.
        """
        check_name(Scorer.evaluate, None, by=by)
        model = self._require_model("evaluate")
        dataset = as_dataset(data)
        pipeline = self.pipeline if by is None else self.pipeline._keep_also(by, dataset.schema)
        pipeline._check_rows(dataset, rows, None, "evaluate")
        loader = pipeline.loader(dataset, rows=rows, history=history, batch_size=batch_size, device=str(self.device))
        if not loader.schema.targets:
            problem, remedy = "the rows have no target", "predict(data), which needs none"
            expected = "the columns that the target is computed from"
            raise BadConfig("evaluate", problem, got=loader.schema.names, expected=expected, remedy=remedy)
        if pipeline._shares_rows(dataset if rows is None else dataset.filter(rows)):
            _log.warning(
                "evaluate: rows that the pipeline was fitted on are among these, and of those its model is too sure; "
                "evaluate rows that were left out: train, valid = data.split(0.8)"
            )
        trainer = Trainer(model, precision="32-true", device=self.device)
        return trainer.evaluate(loader, by=by, threshold=self.threshold)

    def _require_model(self, method: str) -> torch.nn.Module:
        model = self.calibrated_model
        if model is None:
            expected, remedy = "a pipeline saved with one", "gp.save(path, pipeline, model)"
            raise BadConfig(method, "there is no model", expected=expected, remedy=remedy)
        return model

    @property
    def _classes(self) -> tuple[Any, ...]:
        target = self.schema.target
        return () if target is None or target.classes is None else target.classes

    def _decided_fields(self) -> list[Field]:
        targets = self.schema.targets
        names = [f"prediction_{item.name}" if len(targets) > 1 else "prediction" for item in targets]
        number = "float32" if self.pipeline._target_units is None else "float64"
        if quantiles := getattr(self.model, "quantiles", None):
            return [Field(f"prediction_q{_name_digits(level)}", number, nullable=False) for level in quantiles]
        dtypes = [number if item.classes is None else _choose_dtype(item.classes) for item in targets]
        return [Field(name, dtype, nullable=False) for name, dtype in zip(names, dtypes, strict=True)]

    def _probability_fields(self) -> list[Field]:
        is_plain = self.schema.task == "binary" and self._classes == (False, True)  # which 0 and 1 equal
        each = [item.name for item in self.schema.targets] if self.schema.task == "multilabel" else self._classes
        names = ["probability"] if is_plain else [f"probability_{name}" for name in each]
        return [Field(name, "float32", nullable=False) for name in names]

    def _chances(self, output: torch.Tensor) -> torch.Tensor:
        """Compute probabilities: n x K of K classes, n x T of T conditions."""
        if self.schema.task == "binary":
            return torch.stack([torch.sigmoid(-output), torch.sigmoid(output)], 1)
        return torch.softmax(output, 1) if self.schema.task == "multiclass" else torch.sigmoid(output)

    def _in_units(self, output: torch.Tensor) -> torch.Tensor:
        """Convert a regression's outputs to the target's own units, n x T; n x K of quantiles."""
        units = self.pipeline._target_units
        return (output if units is None else units(output)).reshape(len(output), len(self._decided_fields()))

    def _probabilities(self, output: torch.Tensor, backend: Backend) -> list[Column]:
        chances = self._chances(output)[:, -len(self._probability_fields()) :]
        return [_column(part, backend) for part in chances.unbind(1)]

    def _decided(self, output: torch.Tensor, backend: Backend) -> list[Column]:
        if self.schema.task == "multiclass":
            return [_class_column(output.argmax(1), backend, self._classes)]
        if self.schema.task in ("binary", "multilabel"):
            limits = get_limits(self.threshold, [item.name for item in self.schema.targets], output.device)
            decisions = is_positive(output, limits).reshape(len(output), len(self.schema.targets)).unbind(1)
            classes = [item.classes or () for item in self.schema.targets]
            return [_class_column(decision, backend, each) for decision, each in zip(decisions, classes, strict=True)]
        return [_column(part, backend) for part in self._in_units(output).unbind(1)]

    def _score(
        self, data: Any, history: Any, batch_size: int, read: Any, fields: list[Field], by: str | None = None
    ) -> Any:
        self._require_model("predict")
        if not self.schema.targets:
            expected, remedy = "one with the target that the model has learned", "gp.Features(..., target='column')"
            raise BadConfig("predict", "the pipeline has no target", expected=expected, remedy=remedy)
        check_integer(Scorer.predict, "[1, inf)", batch_size=batch_size)
        earlier = None if history is None else as_dataset(history)

        def bind(rows: Any) -> tuple[Any, BoundPipeline]:
            table = as_rows(rows, self.pipeline.backend)
            return table, self.pipeline._bind_to(table, earlier, predicting=True, also=by)

        if is_records(data):
            source = self.pipeline._fitted_source()

            def score(rows: pa.Table) -> Any:
                return self._score(rows, earlier, batch_size, read, fields, by)

            return answer_records(data, source, score, lambda columns: bind(columns)[1].reads)
        table, run = bind(data)
        keep_fields, field_names = run.schema.with_role(Role.KEEP), {item.name for item in fields}
        keep = () if self.pipeline.features is None else self.pipeline.features.keep
        inputs = Schema(run.schema.with_role(Role.FEATURE))
        origins = self._locate_origins(table, inputs)
        fields = [item.replace(origins=origins) for item in fields]
        names = [name if name in keep else name.removesuffix("_keep") for name in (item.name for item in keep_fields)]
        names = [f"{name}_keep" if name in field_names else name for name in names]
        keys = [replace(item, name=name) for item, name in zip(keep_fields, names, strict=True)]
        schema = Schema([*fields, *keys])

        def rows(frame: Frame, backend: Backend, row_ids: Array | None = None) -> Frame:
            values, input_frame = run.columns(frame, backend, row_ids)
            block = FeatureTable.allocate(inputs, len(input_frame), self.device)
            block.write(0, values, backend)
            group = () if by is None else (backend.column(input_frame, by),)
            columns = read(self._output(block, batch_size), backend, *group)
            columns += [values[item.name] for item in keep_fields]
            result = backend.frame(dict(zip(schema.names, columns, strict=True)), len(input_frame))
            result.index = input_frame.index
            return result

        identity = partial(self._fingerprint, batch_size)
        return run.run_on(table, rows, schema, self.pipeline.backend, identity, history=earlier)

    def _locate_origins(self, table: Any, inputs: Schema) -> Origins:
        """Return where predictions come from: the features, and the target where these rows may be of the fit."""
        origins: Origins = frozenset().union(*(item.origins for item in inputs))
        pipeline, features = self.pipeline, self.pipeline.features
        if features is None or features.target is None or not isinstance(table, Dataset):
            return origins
        return origins | features.target.origins(pipeline._after) if pipeline._shares_rows(table) else origins

    def _fingerprint(self, batch_size: int) -> str | None:
        """Hash all that the predictions depend on; None where the pipeline has no fingerprint."""
        pipeline = self.pipeline._fingerprint()
        if pipeline is None or self.model is None:
            return None
        digest = hashlib.sha256(f"{pipeline} {self.model!r} {batch_size} {self.threshold}".encode())
        digest.update(repr(self.calibrator and self.calibrator.to_json()).encode())
        for name, tensor in self.model.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @torch.inference_mode()
    def _output(self, block: FeatureTable, batch_size: int) -> torch.Tensor:
        model = self._require_model("predict").eval()
        parts = [model(batch).float() for batch in Loader(block, batch_size=batch_size)]
        is_multiclass = self.schema.task == "multiclass"
        width = len(self._classes) if is_multiclass else len(self._decided_fields())
        if not parts:
            return torch.empty((0, width) if is_multiclass or width > 1 else 0, device=self.device)
        output = torch.cat(parts)
        if output.shape != (len(output), width) and (width > 1 or output.shape != (len(output),)):
            name, problem = type(model).__name__, "the model's output does not fit the target"
            got, expected = f"output {tuple(output.shape)}", f"{width} a row, for a {self.schema.task} target"
            remedy = f"{name if isinstance(model, Tabular) else 'MLP'}.from_schema(pipeline.schema)"
            raise SchemaMismatch(name, problem, got=got, expected=expected, remedy=remedy)
        return output if width > 1 else output.flatten()


def list_texts(scorer: Scorer) -> list[str]:
    """List the columns that were text in the data of the fit."""
    return [item.name for item in scorer.pipeline._fitted_source() if item.dtype == "string"]


def _name_digits(level: float) -> str:
    """Return the decimals of a number between 0 and 1, two at least: they sort as the numbers do."""
    return f"{Decimal(str(level)):f}"[2:].ljust(2, "0")


def _choose_dtype(classes: tuple[Any, ...]) -> str:
    if isinstance(classes[0], str | bool):
        return "string" if isinstance(classes[0], str) else "bool"
    return "int64" if classes[-1] < 1 << 63 else "uint64"


def _column(values: torch.Tensor, backend: Backend) -> Column:
    """Convert a tensor to a column, without a copy where it is on the backend's device already."""
    data = backend.xp.from_dlpack(values.to(backend.device).contiguous())
    return Column(data.dtype.name, data)


def _class_column(places: torch.Tensor, backend: Backend, classes: tuple[Any, ...]) -> Column:
    dtype, data = _choose_dtype(classes), _column(places.to(torch.int32), backend).data
    if dtype == "string":
        return Column("string", data, None, strings(classes))
    return Column(dtype, backend.xp.asarray(classes, dtype=dtype)[data])
