"""Class weights: how much a row counts in training by its class, as scikit-learn's `class_weight`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gpupipe.errors import BadConfig, BadData
from gpupipe.schema import Schema
from gpupipe.support.validation import refuse_choice
from gpupipe.training.distributed.rank_group import RankGroup

ClassWeight: TypeAlias = str | Mapping[Any, float]


def compute_class_weights(
    wanted: ClassWeight, loader: Iterable[Any], schema: Schema | None, ranks: RankGroup | None = None
) -> Tensor:
    """Compute a float32 weight per class: n / (K count) for `"balanced"`, or the given ones, 1 for other classes.

    Args:
        wanted: `"balanced"`, or weights by class.
        loader: the rows of training; read once if it does not hold all targets in one `block`.
        schema: whose target has the classes.
        ranks: the ranks that the loader deals its rows to.

    Raises:
        BadConfig: the target has no classes, or not those that were named.
        BadData: a class has no row.
    """
    target = None if schema is None else schema.target
    if target is None or target.classes is None:
        raise BadConfig(
            "Trainer(class_weight=)",
            "the target has no classes" if target is not None else "nothing tells the classes",
            got=wanted,
            expected="a classification, and a loader of gp.Pipeline",
            remedy="class_weight=None, or Features(weight=...) for a weight per row",
        )
    if schema is not None and schema.task == "multilabel":
        raise BadConfig(
            "Trainer(class_weight=)",
            "a row has several targets, and one weight",
            got=[item.name for item in schema.targets],
            expected="a classification of one target",
            remedy="class_weight=None, or Features(weight=...) for a weight per row",
        )
    classes = list(target.classes)
    if not isinstance(wanted, str):
        for name in wanted:
            if name not in classes or not wanted[name] >= 0:
                raise BadConfig(
                    "Trainer(class_weight=)",
                    "no such class" if name not in classes else "a weight below 0",
                    got={name: wanted[name]},
                    expected=f"weights of some of {classes}",
                    remedy="class_weight='balanced'",
                )
        return torch.tensor([float(wanted.get(name, 1.0)) for name in classes])
    check_class_weight(wanted)
    streamed = getattr(loader, "residency", "stream") == "stream"
    counts = torch.zeros(len(classes), dtype=torch.int64)
    for batch in loader if streamed else [loader.table]:  # type: ignore[attr-defined]  # of a Loader
        target = batch.target
        if ranks is not None and ranks.size > 1 and batch.weight is not None:
            target = target[batch.weight > 0]  # padding has no weight
        counts += torch.bincount(target.long(), minlength=len(classes)).cpu()
    if ranks is not None and (streamed or "shards" in loader.state_dict()):  # type: ignore[attr-defined]
        counts = ranks.all_gather_scalar(counts).sum(0)
    if not counts.all():
        raise BadData(
            "Trainer(class_weight='balanced')",
            "a class has no row",
            got=dict(zip(classes, counts.tolist(), strict=True)),
            expected="rows of every class",
            remedy="a mapping from classes to weights, or more rows",
        )
    return (counts.sum() / (len(classes) * counts)).float()


def check_class_weight(wanted: str) -> None:
    """Raise for an unknown name of class weights.

    Raises:
        BadConfig: it is not `"balanced"`.
    """
    if wanted != "balanced":
        raise refuse_choice(
            "Trainer", "class_weight", wanted, ["balanced"], "a mapping from classes to weights, or None"
        )


def weight_by_class(batch: Any, weights: Tensor) -> Any:
    """Multiply each row's weight by that of its class."""
    if not is_dataclass(batch) or isinstance(batch, type):
        raise BadConfig(
            "Trainer(class_weight=)",
            "the batches have no weights to change",
            got=type(batch).__name__,
            expected="batches of gp.Pipeline's loader",
            remedy="pipeline.loader(...)",
        )
    own: Any = batch
    of_class = weights[own.target.long()]
    return replace(own, weight=of_class if own.weight is None else own.weight * of_class)
