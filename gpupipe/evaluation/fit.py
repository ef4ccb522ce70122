"""Fit of a first model in one call: the features that are proposed, the network that is chosen, their scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gpupipe import models
from gpupipe.errors import BadData
from gpupipe.io import Dataset, as_dataset
from gpupipe.io.planning.splits import draw_parts
from gpupipe.pipeline.features import Features
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.target import FEW, NUM_FIRST
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, Schema
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_seed, refuse_argument
from gpupipe.tensors import Loader
from gpupipe.training import Trainer
from gpupipe.transforms import Transform, WholeTableTransform

LEARNED = 0.9  # of the rows, where no others say when to stop
_MOST_CLASSES = 1_000  # of text; more values, of which most are in few rows, say nothing when to stop


@answer_calls
def fit(
    train: Any,
    valid: Any = None,
    *,
    target: str | Sequence[str],
    task: str = "auto",
    steps: Sequence[Transform] | Transform = (),
    weight: str | None = None,
    keep: str | Sequence[str] = (),
    model: Callable[[Schema], nn.Module] | type[nn.Module] | None = None,
    seed: int = 0,
) -> Scorer:
    """Fit a model with the features that `Features.auto` proposes for a table, and return the scorer of both.

    For a beginning, and for the folds of `gp.cross_validate`. All else is changed in the program that it is:

        features = gp.Features.auto(gp.Pipeline(steps).fit_transform(train), target=target)
        pipeline = gp.Pipeline(steps, features).fit(train)
        trainer = gp.Trainer(gp.models.auto(pipeline.schema))
        trainer.fit(pipeline.loader(train, shuffle=True), pipeline.loader(valid))
        scorer = gp.Scorer(pipeline, trainer.model)

    Args:
        train: rows to learn from, in a Dataset or a frame; every column but those of the target is a feature, so none
            of them may be known only after the target is.
        valid: rows that say when to stop; None for a tenth of `train`, drawn by the seed, of each class the same share
            (the only row of a class is learned from); by whole groups, where `train` is of a `split(by=, fraction=)`.
            Rows of one time or group know too much of each other to be drawn: split by them. With windows among the
            steps (`T.Lag`, `T.Rolling`) None is for none, and rows that are given come after those of `train`, which
            their windows see.
        target: a column, an expression or several, as of `gp.Features`.
        task: "regression", "classification" or "auto", as of `gp.Features`.
        steps: transforms before the features, as of `gp.Pipeline`; what they add becomes features, too.
        weight: a column or an expression, of the rows' weights.
        keep: columns that go beside the features into what is predicted.
        model: a class of `gp.models` with `from_schema`, such as `gp.models.XGB`, or a function of the fitted
            pipeline's schema; None for `gp.models.auto`.
        seed: of the draw, the network's weights and the order of rows.

    Raises `BadConfig` and `BadData` as `Features.auto`, `Pipeline.fit` and `Trainer.fit` do.
    Memory: as of a fit, a loader for each part and the training.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"x": range(200), "y": [2.5 * number for number in range(200)]})
        >>> scorer = fit(frame, target="y", model=models.Linear)
        >>> list(scorer.predict(frame.head(2)))
        ['prediction']
    """
    check_seed("fit", seed=seed)
    model = models.auto if model is None else model
    if not makes_model(model):
        expected = "a class of gp.models, or a function of a schema that returns a torch.nn.Module"
        raise refuse_argument("fit", "model", model, expected, "model=gp.models.XGB")
    if isinstance(steps, Features):
        expected, remedy = "transforms: features are proposed here", "gp.Pipeline(steps, features).fit(train)"
        raise refuse_argument("fit", "steps", steps, expected, remedy)
    steps = Pipeline(steps).steps
    if valid is None and not any(isinstance(step, WholeTableTransform) for step in steps):
        train, valid = _hold_out(as_dataset(train), target, seed)
    options: dict[str, Any] = {"target": target, "task": task, "weight": weight, "keep": keep}
    pipeline, train_loader, valid_loader = fit_proposal(train, valid, seed, steps, **options)
    network = make_model(model, pipeline.schema, seed)
    Trainer(network, seed=seed).fit(train_loader, valid_loader)
    return Scorer(pipeline, network)


def _hold_out(dataset: Dataset, target: str | Sequence[str], seed: int) -> tuple[Dataset, Dataset | None]:
    """Draw nine tenths of the rows and the last one, if it has any; of what looks like classes the first has all.

    Rows that were split by groups are drawn by groups, too.
    """
    stratify, groups = None, dataset.group_columns
    if isinstance(target, str) and target in dataset.schema and dataset.schema[target].dtype in DTYPES:
        # Whole numbers with gaps are floats.
        most = FEW if dataset.schema[target].dtype in (*INTEGERS, *FLOATS) else _MOST_CLASSES
        stratify = target if dataset.select(target).head(NUM_FIRST)[target].nunique() <= most else None
    by, where = (groups[0], "kfold") if groups else (None, "split")
    parts = draw_parts(dataset, (LEARNED, 1 - LEARNED), seed, by, stratify, where, first_has_all=True)
    train, valid = map(dataset._then, parts)
    return (train, valid) if len(valid.head(1)) else (dataset, None)


def fit_proposal(
    train: Any, valid: Any, seed: int, steps: Sequence[Transform] = (), **options: Any
) -> tuple[Pipeline, Loader, Loader | None]:
    """Fit the features that `Features.auto` proposes behind steps, and load the table and the rows to validate."""
    train = as_dataset(train)
    features = Features.auto(Pipeline(steps).fit_transform(train) if steps else train, **options)
    pipeline = Pipeline(steps, features).fit(train)
    loader = pipeline.loader(train, shuffle=True, seed=seed)
    if valid is None:
        return pipeline, loader, None
    has_windows = bool(pipeline._bind_to(train).plan.window_steps)
    valid_loader = pipeline.loader(valid, history=train if has_windows else None)
    if not valid_loader.schema.targets:
        expected, remedy = f"rows with {options['target']!r}, as in train", "fit(train, target=), which holds out rows"
        got = list(valid.columns)
        raise BadData("fit(valid=)", "the rows have no target", got=got, expected=expected, remedy=remedy)
    return pipeline, loader, valid_loader


def makes_model(model: object) -> bool:
    """Return whether it is a class with `from_schema`, or a function of a schema."""
    if isinstance(model, type):
        return hasattr(model, "from_schema")
    return callable(model) and not isinstance(model, nn.Module) and not hasattr(model, "fit")


def make_model(model: Any, schema: Schema, seed: int) -> nn.Module:
    """Make the model of a class or a function for a schema."""
    network: nn.Module
    network = models.auto(schema, seed=seed) if model is models.auto else getattr(model, "from_schema", model)(schema)
    return network
