"""A fitted pipeline with its model, on data without labels: one row out per row in."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import torch

from gpupipe.backend import Array, Backend, Column, Frame
from gpupipe.backend.dictionaries import strings
from gpupipe.errors import BadConfig
from gpupipe.pipeline import Pipeline
from gpupipe.schema import Field, Role, Schema
from gpupipe.tensors import Block, Loader, require_device

__all__ = ["Scorer"]


class Scorer:
    """What `load` gives: the pipeline, the model, and predictions.

    Args:
        pipeline: fitted.
        model: trained on its output; None allows `transform` through `.pipeline` only.
        device: where the model runs; the backend's by default.
    """

    def __init__(self, pipeline: Pipeline, model: torch.nn.Module | None, *, device: str = "auto") -> None:
        self.pipeline = pipeline
        self.model = model
        self.device = pipeline.select_backend().device if device == "auto" else device
        if model is not None:
            require_device(self.device)
            model.to(self.device)

    @property
    def schema(self) -> Schema:
        """The schema of the features."""
        return self.pipeline.schema

    def predict(self, data: Any, *, batch_size: int = 32768) -> Any:
        """The predicted value of each row, in order, then the kept columns.

        A binary task gives booleans (probability at least 0.5), classes give their names, a regression numbers in the
        target's own units; of several targets each has a column `prediction_<target>`.

        Args:
            data: a frame, which gives a frame with its index, or a Dataset, which gives a lazy Dataset.
            batch_size: rows per call of the model; for the same backend, batch size and number of threads the result is
                bit-identical.

        Raises:
            ColumnNotFound, SchemaMismatch: the data is not like the data the pipeline was fitted on.
            BadConfig: there is no model.

        Memory: a frame's features as one block; a Dataset's a partition at a time. One value per row to the frame.
        """
        return self._score(data, batch_size, self._decided, self._decided_fields())

    def predict_proba(self, data: Any, *, batch_size: int = 32768) -> Any:
        """The probability of each row, in order, then the kept columns.

        It is `probability` for a binary task, else `probability_<name>` for each class or each of several conditions.
        Arguments, errors and memory as for `predict`.

        Raises:
            BadConfig: the task is a regression, or there is no model.
        """
        if self._task == "regression":
            raise BadConfig(
                "predict_proba",
                "a regression has no probabilities",
                expected="a classification's model",
                remedy="predict(data)",
            )
        return self._score(data, batch_size, self._probabilities, self._probability_fields())

    @property
    def _task(self) -> str | None:
        return self.schema.task

    @property
    def _classes(self) -> tuple[Any, ...]:
        target = self.schema.target
        return () if target is None or target.classes is None else target.classes

    def _decided_fields(self) -> list[Field]:
        dtype = {"binary": "bool", "multilabel": "bool", "multiclass": "string"}.get(self._task or "", "float32")
        targets = self.schema.targets
        if len(targets) > 1:
            return [Field(f"prediction_{item.name}", dtype, nullable=False) for item in targets]
        return [Field("prediction", dtype, nullable=False)]

    def _probability_fields(self) -> list[Field]:
        each = self._classes if self._task == "multiclass" else [item.name for item in self.schema.targets]
        names = ["probability"] if self._task == "binary" else [f"probability_{name}" for name in each]
        return [Field(name, "float32", nullable=False) for name in names]

    def _probabilities(self, output: torch.Tensor, backend: Backend) -> list[Column]:
        if self._task == "binary":
            return [_column(torch.sigmoid(output), backend)]
        chances = torch.softmax(output, 1) if self._task == "multiclass" else torch.sigmoid(output)
        return [_column(part, backend) for part in chances.unbind(1)]

    def _decided(self, output: torch.Tensor, backend: Backend) -> list[Column]:
        if self._task in ("binary", "multilabel"):
            decided = torch.sigmoid(output) >= 0.5
            return [_column(part, backend) for part in (decided.unbind(1) if decided.ndim == 2 else [decided])]
        if self._task == "multiclass":
            return [_column(output.argmax(1), backend, classes=self._classes)]
        units = self.pipeline.target_units
        output = output if units is None else units(output)
        return [_column(part, backend) for part in (output.unbind(1) if output.ndim == 2 else [output])]

    def _score(self, data: Any, batch_size: int, read: Any, fields: list[Field]) -> Any:
        if self.model is None:
            raise BadConfig(
                "predict",
                "there is no model",
                expected="a pipeline saved with one",
                remedy="gp.save(path, pipeline, model)",
            )
        run = self.pipeline.bound_to(data, predicting=True)
        kept, taken = run.schema.with_role(Role.KEEP), {item.name for item in fields}
        inputs = Schema(run.schema.with_role(Role.FEATURE))
        schema = Schema(
            [*fields, *(replace(item, name=f"{item.name}_keep") if item.name in taken else item for item in kept)]
        )

        def rows(frame: Frame, backend: Backend, row_ids: Array | None = None) -> Frame:
            made, seen = run.columns(frame, backend, row_ids)
            block = Block.allocate(inputs, len(seen), self.device)
            block.write(0, made, backend)
            columns = read(self._output(block, batch_size), backend)
            columns += [made[item.name] for item in kept]
            result = backend.frame(dict(zip(schema.names, columns, strict=True)), len(seen))
            result.index = seen.index
            return result

        return run.over(data, rows, schema, self.pipeline.backend, lambda: self._fingerprint(batch_size))

    def _fingerprint(self, batch_size: int) -> str | None:
        """What the predictions follow from; None where the pipeline has no fingerprint."""
        pipeline = self.pipeline.fingerprint()
        if pipeline is None or self.model is None:
            return None
        found = hashlib.sha256(f"{pipeline} {self.model!r} {batch_size}".encode())
        for name, tensor in self.model.state_dict().items():
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()

    @torch.inference_mode()
    def _output(self, block: Block, batch_size: int) -> torch.Tensor:
        assert self.model is not None
        self.model.eval()
        parts = [self.model(batch).float() for batch in Loader(block, batch_size=batch_size)]
        if parts:
            return torch.cat(parts)
        width = len(self._classes) if self._task == "multiclass" else len(self.schema.targets)
        return torch.empty((0, width) if self._task == "multiclass" or width > 1 else 0, device=self.device)


def _column(values: torch.Tensor, backend: Backend, classes: tuple[Any, ...] | None = None) -> Column:
    """A tensor as a column, shared where it lies on the backend's device already."""
    data = backend.xp.from_dlpack(values.to(backend.device).contiguous())
    if classes is None:
        return Column("bool" if values.dtype == torch.bool else "float32", data)
    return Column("string", data.astype("int32"), None, strings(classes))
