"""Entrants of a comparison: networks and estimators that learn from the same rows and give the same outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from gpupipe.backend.candidates import (
    ESTIMATORS,
    Candidate,
    Layout,
    Rows,
    list_encodings,
    make_named,
    name_encoding,
)
from gpupipe.errors import BackendMissing, BadConfig
from gpupipe.evaluation.fit import make_model, makes_model
from gpupipe.evaluation.host_rows import copy_to_host
from gpupipe.models import XGB, Linear
from gpupipe.models.booster import MAX_CATEGORIES
from gpupipe.models.tabular import Tabular
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import Schema
from gpupipe.support.validation import check_name, is_sequence, refuse_argument, refuse_choice
from gpupipe.tensors import FeatureTable, Loader, Permutation
from gpupipe.training import Trainer
from gpupipe.training.loop.metrics import Metric
from gpupipe.training.loop.quantiles import get_quantiles

HELD_OUT = 10  # one row of so many stops networks, and chooses how trees take ids
TREES = "xgboost"
_MODELS = "names, Trainers, modules or classes, what gp.load gives, or objects with fit and predict or predict_proba"


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
        is_held_out = torch.arange(len(block), device=block.device) % HELD_OUT == HELD_OUT - 1
        return block.take(order[~is_held_out]), block.take(order[is_held_out])

    @cached_property
    def host(self) -> Rows:
        """All rows, on the host."""
        return copy_to_host(self.loader.table)

    @cached_property
    def host_parts(self) -> tuple[Rows, Rows]:
        """The parts, on the host."""
        train, valid = self.parts
        return copy_to_host(train), copy_to_host(valid)

    def make_loader(self, part: FeatureTable) -> Loader:
        """Make a loader of a part that is shuffled; the batches are those of the loader if that is shuffled, too."""
        loader = self.loader
        size: int | str = loader.batch_size if loader.shuffle else "auto"
        options: Any = {"device": loader.device, "target_units": loader.target_units}
        return Loader(part, batch_size=size, shuffle="rows", seed=self.seed, **options)


class NetworkEntrant:
    """Network, or trees that learn from loaders, with a trainer for each encoding of ids; one trained before stays."""

    def __init__(self, name: str, trainers: Mapping[str, Trainer], *, fits: bool) -> None:
        self.name, self.fits, self._trainers = name, fits, trainers
        self.ids, self.trainer = next(iter(trainers.items()))
        self._scores: dict[str, float | None] = {}

    @property
    def model(self) -> nn.Module:
        """The network itself."""
        return self.trainer.model

    def fit(self, rows: TrainRows, metric: Metric) -> None:
        """Fit it on nine tenths of the rows, with the last one for validation and for the choice of an encoding."""
        for encoding, trainer in self._trainers.items() if self.fits else ():
            trainer.fit(*map(rows.make_loader, rows.parts))
            if len(self._trainers) > 1:
                output = trainer.predict(Loader(rows.parts[1], device=rows.loader.device))
                self._scores[encoding] = measure(metric, output, rows.parts[1])
        self.ids = choose_best(self._scores, metric, self.ids)
        self.trainer = self._trainers[self.ids]

    def predict(self, loader: Loader) -> Tensor:
        """Predict logits, or a regression's stored values, of the loader's rows in the order of its block."""
        return self.trainer.predict(Loader(loader.table, batch_size=loader.batch_size, device=loader.device))

    def count_bytes(self) -> int:
        """Count the bytes of the state that `gp.save` writes."""
        return sum(value.nbytes for value in self.model.state_dict().values() if isinstance(value, Tensor))

    def count_parts(self) -> dict[str, int]:
        """Count the parameters of a network, or the nodes of trees."""
        if isinstance(self.model, XGB):
            return {"nodes": self.model.num_nodes}
        return {"parameters": sum(weights.numel() for weights in self.model.parameters())}

    def list_notes(self) -> list[str]:
        """Say which encoding was chosen by what, and where it did not learn as the others."""
        if not self.fits:
            return [f"{self.name}: trained before, on rows that are not known here"]
        return describe_choice(self.name, self.ids, self._scores)


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
            train, valid = rows.host_parts
            for encoding in self.candidate.encodings:
                self.candidate.fit(train, encoding)
                output = torch.as_tensor(self.candidate.predict(valid))
                self._scores[encoding] = measure(metric, output, rows.parts[1])
        self.ids = choose_best(self._scores, metric, self.ids)
        self.candidate.fit(rows.host, self.ids)
        self._ignores_weights = rows.host.weight is not None and not self.candidate.takes_weights

    def predict(self, loader: Loader) -> Tensor:
        """Predict as a network does."""
        return torch.as_tensor(self.candidate.predict(copy_to_host(loader.table)))

    def count_bytes(self) -> int | None:
        """Count the bytes of the fitted estimator; None where pickle, which counts them, cannot write it."""
        return self.candidate.count_bytes()

    def count_parts(self) -> dict[str, int]:
        """Count the parameters of a linear model, or the nodes of trees."""
        return self.candidate.count_parts()

    def list_notes(self) -> list[str]:
        """Say which encoding was chosen by what, and what else is not its library's way."""
        notes = self.candidate.notes + (["takes no weights, so it learned without"] if self._ignores_weights else [])
        name = self.candidate.name
        return describe_choice(name, self.ids, self._scores) + [f"{name}: {note}" for note in notes]


class LinearEntrant(EstimatorEntrant):
    """Linear model of scikit-learn, whose weights become a `gp.models.Linear`, which is judged and can be saved."""

    def __init__(self, candidate: Candidate, schema: Schema) -> None:
        super().__init__(candidate)
        self._linear = Linear.from_schema(schema)
        trainer = Trainer(self._linear, progress=False)
        self._network = NetworkEntrant(candidate.name, {self.ids: trainer}, fits=False)

    @property
    def model(self) -> Linear:
        """The network."""
        return self._linear

    def fit(self, rows: TrainRows, metric: Metric) -> None:
        """Fit scikit-learn's model on all rows, and take its weights over."""
        super().fit(rows, metric)
        weights, bias = map(torch.as_tensor, self.candidate.compute_weights())
        split = len(self._linear.weight)
        with torch.no_grad():
            self._linear.weight.copy_(weights[:split])
            self._linear.bias.copy_(bias)
            if self._linear.embedding is not None:
                self._linear.embedding.table.copy_(weights[split:])

    def predict(self, loader: Loader) -> Tensor:
        """Predict as the network does."""
        return self._network.predict(loader)

    def count_bytes(self) -> int:
        """Count the bytes of the state that `gp.save` writes."""
        return self._network.count_bytes()

    def count_parts(self) -> dict[str, int]:
        """Count the parameters."""
        return self._network.count_parts()


def make_entrants(
    models: Sequence[Any] | Mapping[str, Any] | None, schema: Schema, layout: Layout, seed: int
) -> dict[str, NetworkEntrant | EstimatorEntrant]:
    """Make an entrant of each model, by name; `BadConfig` for what is none and for a name that two have."""
    entrants: dict[str, NetworkEntrant | EstimatorEntrant] = {}
    named = list(_name_models(models, schema, seed))
    quantiles = _find_quantiles(named)
    for name, model in named:
        if name in entrants:
            problem, remedy = f"two models are called {name!r}", f"models={{'first {name}': ..., 'second {name}': ...}}"
            expected = "a name of its own for each, or a mapping from names"
            raise refuse_argument("compare", "models", models, expected, remedy, problem=problem)
        if isinstance(model, nn.Module | Trainer | Scorer):
            entrants[name] = _make_network(name, model, schema, layout, seed)
        elif isinstance(model, str):
            if model not in (*ESTIMATORS, TREES):
                raise refuse_choice("compare", "models", model, [*ESTIMATORS, TREES], form="[%r]")
            if model == TREES:
                entrants[name] = _make_trees(name, schema, layout, seed, quantiles)
            else:
                candidate = make_named(model, name, layout, seed)
                is_network = model == "linear" and not schema.lists  # whose columns for estimators are others
                entrants[name] = LinearEntrant(candidate, schema) if is_network else EstimatorEntrant(candidate)
        else:
            _check_estimator(model, layout)
            entrants[name] = EstimatorEntrant(Candidate(name, model, layout))
    return entrants


def _make_network(
    name: str, model: nn.Module | Trainer | Scorer, schema: Schema, layout: Layout, seed: int
) -> NetworkEntrant:
    """Make the entrant of a network: fitted here, unless a trainer has a history or an artifact holds it."""
    module = model if isinstance(model, nn.Module) else model.model
    if module is None:
        problem, remedy = "there is no model", "gp.save(path, pipeline, model)"
        raise BadConfig("compare(models=)", problem, expected="a pipeline saved with one", remedy=remedy)
    if isinstance(module, Tabular):
        Tabular.check_schema(module, schema)
    fits = model.history is None if isinstance(model, Trainer) else not isinstance(model, Scorer)
    if isinstance(model, nn.Module):
        module = copy.deepcopy(module)
    trainer = model if isinstance(model, Trainer) else Trainer(module, seed=seed, progress=False)
    ids = name_encoding(layout, module.layout.max_categories) if isinstance(module, XGB) else "embedded"
    return NetworkEntrant(name, {ids: trainer}, fits=fits)


def _find_quantiles(named: Sequence[tuple[str, Any]]) -> tuple[float, ...] | None:
    """Return the quantiles that all models predict; None where none does; `BadConfig` where they differ."""
    levels = {
        name: get_quantiles(model.model if isinstance(model, Trainer | Scorer) else model)
        for name, model in named
        if not (isinstance(model, str) and model == TREES)  # which predict what the others do
    }
    first = next(filter(None, levels.values()), None)
    for name, each in levels.items():
        if each != first:
            problem = f"{name} predicts {'one value' if each is None else 'other quantiles'}, another model quantiles"
            expected, remedy = "models of the same quantiles, or of none", f"models of {first}, 'xgboost' among them"
            raise refuse_argument("compare", "models", each, expected, remedy, problem=problem)
    return first


def _make_trees(
    name: str, schema: Schema, layout: Layout, seed: int, quantiles: tuple[float, ...] | None
) -> NetworkEntrant:
    """Make the entrant of XGBoost's trees, which choose an encoding; `BackendMissing` where it is not installed."""
    if not find_spec("xgboost"):
        problem, expected = "XGBoost is not installed", "the package xgboost-cpu, or xgboost where rows lie on a GPU"
        remedy = "pip install xgboost-cpu"
        raise BackendMissing("compare(models=)", problem, got=name, expected=expected, remedy=remedy)
    trainers = {
        encoding: Trainer(XGB.from_schema(schema, max_categories=most, quantiles=quantiles, seed=seed), progress=False)
        for encoding, most in list_encodings(layout, MAX_CATEGORIES).items()
    }
    return NetworkEntrant(name, trainers, fits=True)


def _name_models(models: Any, schema: Schema, seed: int) -> Iterator[tuple[str, Any]]:
    if models is None:
        models = [*ESTIMATORS, *([TREES] if find_spec("xgboost") and not schema.lists else [])]
    if not (isinstance(models, Mapping) or is_sequence(models)) or not models:
        remedy = "models=['linear', 'hist-gradient-boosting', trainer]"
        expected = f"a list, or a mapping from names, of {_MODELS}"
        raise refuse_argument("compare", "models", models, expected, remedy, problem="no models")
    if isinstance(models, Mapping):
        for name in models:
            check_name("compare", models=name)
    for name, each in models.items() if isinstance(models, Mapping) else [(None, each) for each in models]:
        model = make_model(each, schema, seed) if makes_model(each) else each
        inner = model.model if isinstance(model, Trainer | Scorer) else model
        yield name or (model if isinstance(model, str) else type(inner).__name__), model


def _check_estimator(model: Any, layout: Layout) -> None:
    """Raise `BadConfig` for what has no `fit`, for a class, and for a classifier without probabilities."""
    if isinstance(model, type):
        problem, remedy = "a class in place of an object", f"{model.__name__}()"
        raise refuse_argument("compare", "models", model, _MODELS, remedy, problem=problem)
    method = "predict" if layout.task == "regression" else "predict_proba"
    lacking = [name for name in ("fit", method) if not callable(getattr(model, name, None))]
    if lacking:
        remedy = "models=['linear', 'hist-gradient-boosting', trainer]"
        if getattr(getattr(model, "__sklearn_tags__", lambda: None)(), "estimator_type", None) == "regressor":
            remedy = "models=['linear'], which is a logistic regression where there are classes; or another classifier"
        elif lacking == ["predict_proba"] and hasattr(model, "predict"):
            remedy = f"sklearn.calibration.CalibratedClassifierCV({type(model).__name__}())"
        problem = f"a {type(model).__name__} has no {' and no '.join(lacking)}"
        raise refuse_argument("compare", "models", type(model), _MODELS, remedy, problem=problem)


def choose_best(scores: Mapping[str, float | None], metric: Metric, default: str) -> str:
    """Choose the name of the best score, of those that are defined."""
    sign = 1 if metric.higher_is_better else -1
    defined = {name: sign * score for name, score in scores.items() if score is not None}
    return max(defined, key=defined.__getitem__, default=default)


def describe_choice(name: str, ids: str, scores: Mapping[str, float | None]) -> list[str]:
    """Say which encoding was chosen, by which scores."""
    texts = (f"{encoding} {'undefined' if score is None else f'{score:.4g}'}" for encoding, score in scores.items())
    return [f"{name}: takes ids as {ids}, by a tenth of train ({', '.join(texts)})"] if scores else []


def measure(metric: Metric, output: Tensor, block: FeatureTable) -> float | None:
    """Compute a metric of outputs for a block's rows; None where it is not defined."""
    metric.reset()
    metric.update(output.to(block.device), block.batch_of(block.words))
    return metric.compute()
