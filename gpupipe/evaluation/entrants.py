"""Entrants of a comparison: networks and estimators that learn from the same rows and give the same outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.backend.candidates import ESTIMATORS, Candidate, Layout, Rows, list_installed, make_named
from gpupipe.errors import BadConfig
from gpupipe.evaluation.host_rows import copy_to_host
from gpupipe.models.tabular import Tabular
from gpupipe.saving.artifact import Scorer
from gpupipe.schema import Schema
from gpupipe.support.validation import check_choice, check_name, is_sequence, refuse_argument
from gpupipe.tensors import FeatureTable, Loader, Permutation
from gpupipe.training import EarlyStopping, Trainer
from gpupipe.training.loop.metrics import Metric

HELD_OUT = 10  # one row of so many stops networks, and chooses how trees take ids
MAX_EPOCHS, PATIENCE = 20, 3  # of a bare module
_MODELS = "names, Trainers, modules, what gp.load gives, or objects with fit and predict or predict_proba"


class TrainRows:
    """Rows to learn from: all of a loader's block, and the same in two parts, the smaller to stop and choose by."""

    def __init__(self, loader: Loader, layout: Layout, seed: int) -> None:
        self.loader, self.layout, self.seed = loader, layout, seed

    @cached_property
    def parts(self) -> tuple[FeatureTable, FeatureTable]:
        """Nine tenths of the rows and the tenth held out, drawn by the seed; of each class the same share."""
        block = self.loader.table
        order = Permutation(len(block), seed=self.seed).order(block.device)
        if self.layout.task in ("binary", "multiclass") and block.target is not None:
            order = order[block.target[order].sort(stable=True).indices]
        held = torch.arange(len(block), device=block.device) % HELD_OUT == HELD_OUT - 1
        return block.take(order[~held]), block.take(order[held])

    @cached_property
    def host(self) -> Rows:
        """All rows, on the host."""
        return copy_to_host(self.loader.table)

    @cached_property
    def host_parts(self) -> tuple[Rows, Rows]:
        """The parts, on the host."""
        learned, held = self.parts
        return copy_to_host(learned), copy_to_host(held)

    def make_loader(self, part: FeatureTable) -> Loader:
        """Make a loader of a part that is shuffled, and else like that of all rows."""
        loader = self.loader
        options: Any = {"batch_size": loader.batch_size, "device": loader.device, "target_units": loader.target_units}
        return Loader(part, shuffle="rows", seed=self.seed, **options)


class NetworkEntrant:
    """Network in its trainer; one that was trained before is judged as it is."""

    ids = "embedded"

    def __init__(self, name: str, model: nn.Module | Trainer | Scorer, schema: Schema, seed: int) -> None:
        self.name = name
        if isinstance(model, Trainer):
            self.trainer, self.fits = model, model.history is None
        elif isinstance(model, Scorer):
            if model.model is None:
                problem, remedy = "there is no model", "gp.save(path, pipeline, model)"
                raise BadConfig("compare(models=)", problem, expected="a pipeline saved with one", remedy=remedy)
            self.trainer, self.fits = Trainer(model.model, max_epochs=1), False
        else:
            early = EarlyStopping(patience=PATIENCE)
            settings: Any = {"max_epochs": MAX_EPOCHS, "early_stopping": early, "seed": seed, "progress": False}
            self.trainer, self.fits = Trainer(copy.deepcopy(model), **settings), True
        if isinstance(self.model, Tabular):
            self.model.check_schema(schema)

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.trainer.model

    def fit(self, rows: TrainRows, metric: Metric) -> None:
        """Fit it on nine tenths of the rows, with the last one for validation."""
        if self.fits:
            self.trainer.fit(*map(rows.make_loader, rows.parts))

    def predict(self, loader: Loader) -> Tensor:
        """Predict logits, or a regression's stored values, of the loader's rows in the order of its block."""
        return self.trainer.predict(Loader(loader.table, batch_size=loader.batch_size, device=loader.device))

    def count_bytes(self) -> int:
        """Count the bytes of the state that `gp.save` writes."""
        return sum(value.nbytes for value in self.model.state_dict().values() if isinstance(value, Tensor))

    def list_notes(self) -> list[str]:
        """Say where it did not learn as the others."""
        return [] if self.fits else [f"{self.name}: trained before, on rows that are not known here"]


class EstimatorEntrant:
    """Estimator of scikit-learn's protocol."""

    fits = True

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.ids = next(iter(candidate.encodings))
        self._scores: dict[str, float | None] = {}
        self._ignores_weights = False

    @property
    def model(self) -> Any:
        """The fitted estimator."""
        return self.candidate.fitted

    def fit(self, rows: TrainRows, metric: Metric) -> None:
        """Fit it on all rows, with the encoding of ids that is best on the tenth held out."""
        if len(self.candidate.encodings) > 1:
            (learned, held), block = rows.host_parts, rows.parts[1]
            for encoding in self.candidate.encodings:
                self.candidate.fit(learned, encoding)
                self._scores[encoding] = measure(metric, torch.as_tensor(self.candidate.predict(held)), block)
            sign = 1 if metric.higher_is_better else -1
            defined = {name: sign * score for name, score in self._scores.items() if score is not None}
            self.ids = max(defined, key=defined.__getitem__, default=self.ids)
        self.candidate.fit(rows.host, self.ids)
        self._ignores_weights = rows.host.weight is not None and not self.candidate.takes_weights

    def predict(self, loader: Loader) -> Tensor:
        """Predict as a network does."""
        return torch.as_tensor(self.candidate.predict(copy_to_host(loader.table)))

    def count_bytes(self) -> int | None:
        """Count the bytes of the fitted estimator; None where pickle, which counts them, cannot write it."""
        return self.candidate.count_bytes()

    def list_notes(self) -> list[str]:
        """Say which encoding was chosen by what, and what else is not its library's way."""
        notes = list(self.candidate.notes)
        if self._scores:
            scores = (
                f"{name} {'undefined' if score is None else f'{score:.4g}'}" for name, score in self._scores.items()
            )
            notes.append(f"takes ids as {self.ids}, by a tenth of train ({', '.join(scores)})")
        if self._ignores_weights:
            notes.append("takes no weights, so it learned without")
        return [f"{self.candidate.name}: {note}" for note in notes]


def make_entrants(
    models: Sequence[Any] | Mapping[str, Any] | None, schema: Schema, layout: Layout, seed: int, *, on_gpu: bool
) -> dict[str, NetworkEntrant | EstimatorEntrant]:
    """Make an entrant of each model, by name; `BadConfig` for what is none and for a name that two have."""
    entrants: dict[str, NetworkEntrant | EstimatorEntrant] = {}
    for name, model in _name_models(models):
        if name in entrants:
            problem, remedy = f"two models are called {name!r}", f"models={{'first {name}': ..., 'second {name}': ...}}"
            expected = "a name of its own for each, or a mapping from names"
            raise refuse_argument("compare", "models", models, expected, remedy, problem=problem)
        if isinstance(model, nn.Module | Trainer | Scorer):
            entrants[name] = NetworkEntrant(name, model, schema, seed)
        elif isinstance(model, str):
            check_choice("compare", ESTIMATORS, models=model)
            entrants[name] = EstimatorEntrant(make_named(model, layout, seed, on_gpu=on_gpu))
        else:
            _check_estimator(model, layout)
            entrants[name] = EstimatorEntrant(Candidate(name, model, layout))
    return entrants


def _name_models(models: Any) -> Iterator[tuple[str, Any]]:
    if models is None:
        models = list_installed()
    if not (isinstance(models, Mapping) or is_sequence(models)) or not len(models):
        remedy = "models=['linear', 'hist-gradient-boosting', trainer]"
        expected = f"a list, or a mapping from names, of {_MODELS}"
        raise refuse_argument("compare", "models", models, expected, remedy, problem="no models")
    if isinstance(models, Mapping):
        for name in models:
            check_name("compare", models=name)
        yield from models.items()
        return
    for model in models:
        inner = model.model if isinstance(model, Trainer | Scorer) else model
        yield model if isinstance(model, str) else type(inner).__name__, model


def _check_estimator(model: Any, layout: Layout) -> None:
    """Raise `BadConfig` for what has no `fit`, for a class, and for a classifier without probabilities."""
    if isinstance(model, type):
        remedy = (
            f"{model.__name__}.from_schema(pipeline.schema)" if issubclass(model, nn.Module) else f"{model.__name__}()"
        )
        raise refuse_argument("compare", "models", model, _MODELS, remedy, problem="a class in place of an object")
    method = "predict" if layout.task == "regression" else "predict_proba"
    lacking = [name for name in ("fit", method) if not callable(getattr(model, name, None))]
    if lacking:
        remedy = "models=['linear', 'hist-gradient-boosting', trainer]"
        if lacking == ["predict_proba"] and hasattr(model, "predict"):
            remedy = f"sklearn.calibration.CalibratedClassifierCV({type(model).__name__}())"
        problem = f"a {type(model).__name__} has no {' and no '.join(lacking)}"
        raise refuse_argument("compare", "models", type(model), _MODELS, remedy, problem=problem)


def measure(metric: Metric, output: Tensor, block: FeatureTable) -> float | None:
    """Compute a metric of outputs for a block's rows; None where it is not defined."""
    metric.reset()
    metric.update(output.to(block.device), block.batch_of(block.words))
    return metric.compute()
