"""Optimisers by name, and which parameters get which learning rate and weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from gpupipe.errors import BadConfig
from gpupipe.support.validation import refuse_choice
from gpupipe.training.optim.lamb import Lamb
from gpupipe.training.optim.rowwise_adagrad import RowWise, is_table

# Of the parameter groups and the learning rate, a tensor of one value that changes in place.
MakeOptimizer: TypeAlias = Callable[[Any, Tensor], Optimizer]
# Patterns of parameters' names, and what is different for them: {"embedding.*": {"lr": 1e-4, "weight_decay": 0.0}}.
Groups: TypeAlias = Mapping[str, Mapping[str, float]]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda groups, lr: AdamW(groups, lr=lr, fused=True, capturable=lr.is_cuda),
    "sgd": lambda groups, lr: SGD(groups, lr=lr, momentum=0.9, nesterov=True, fused=True),
    "lamb": lambda groups, lr: Lamb(groups, lr=lr),
    "rowwise": lambda groups, lr: RowWise(groups, lr=lr),
}


def check_optimizer(choice: object) -> None:
    """Raise for an unknown optimiser.

    Raises:
        BadConfig: an unknown name, an optimiser that is made already, or neither a name nor a function.
    """
    also = "a class of torch.optim, or a function of the parameters and the learning rate"
    if isinstance(choice, Optimizer):
        raise BadConfig(
            "Trainer(optimizer=)",
            "an optimiser that is made already",
            got=type(choice),
            expected=f"a name, or {also}: each fit makes its own",
            remedy=f"optimizer=torch.optim.{type(choice).__name__}",
        )
    if callable(choice) and not isinstance(choice, type):
        try:
            signature(choice).bind(None, None)
        except TypeError as cause:
            problem, remedy = f"the function takes {signature(choice)}", "optimizer=lambda parameters, lr: ..."
            raise BadConfig("Trainer(optimizer=)", problem, got=choice, expected=also, remedy=remedy) from cause
    if not callable(choice) and (not isinstance(choice, str) or choice not in OPTIMIZERS):
        raise refuse_choice("Trainer", "optimizer", choice, OPTIMIZERS, also)


def make_optimizer(choice: str | MakeOptimizer, groups: list[dict[str, Any]], lr: Tensor) -> Optimizer:
    """Make an optimiser by name, of a torch class, or by the caller's function of groups and rate.

    "adamw" (Loshchilov & Hutter, arXiv:1711.05101) and "sgd" (Nesterov momentum 0.9) are torch's fused ones; "lamb" and
    "rowwise" are `Lamb` and `RowWise`. A function gets the parameters alone, and says all else itself.

    Args:
        choice: which.
        groups: of `make_parameter_groups`; a class gets them as they are.
        lr: 0-d, on the device; the schedule writes to it.

    Raises:
        BadConfig: an unknown name, or an optimiser that would not follow the schedule.
    """
    check_optimizer(choice)
    if isinstance(choice, str):
        optimizer = OPTIMIZERS[choice](groups, lr)
    elif isinstance(choice, type):
        # Those that can count on the device do so where the host must not wait.
        capturable = {"capturable": True} if lr.is_cuda and "capturable" in signature(choice).parameters else {}
        optimizer = cast(Any, choice)(groups, lr=lr, **capturable)
    else:
        optimizer = choice([parameter for group in groups for parameter in group["params"]], lr)
    if not isinstance(optimizer, Optimizer):
        raise BadConfig(
            "Trainer(optimizer=)",
            "the function gives no optimiser",
            got=type(optimizer),
            expected="a torch.optim.Optimizer",
            remedy="optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)",
        )
    for group in optimizer.param_groups:
        if group["lr"] is not lr and not any(group["lr"] is own.get("lr") for own in groups):
            raise BadConfig(
                "Trainer(optimizer=)",
                "the optimiser has a learning rate of its own",
                got=group["lr"],
                expected="the tensor it is given, which the schedule writes to",
                remedy="optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)",
            )
    return optimizer


def make_parameter_groups(
    model: nn.Module,
    lr: Tensor,
    *,
    highest: float,
    weight_decay: float,
    groups: Groups | None = None,
    tables: bool = False,
) -> list[dict[str, Any]]:
    """Group a model's trained parameters by learning rate and weight decay.

    Weights decay; biases, scales of normalisations (fewer than two dimensions) and embeddings (parameters of a module
    whose class, or one it inherits from, is named so) do not: decay would draw rare ids to zero in all the batches they
    are not in. Nor do those that the model's own `no_weight_decay()` names, as timm's models have it.

    Args:
        model: its parameters with `requires_grad`.
        lr: 0-d, of all groups that are not given a rate of their own.
        highest: the highest learning rate of the run, which a group's own is a multiple of.
        weight_decay: of weights.
        groups: what is different for some, by pattern of name; the first pattern that fits counts.
        tables: mark large embeddings, for `RowWise`.

    Raises:
        BadConfig: nothing to train, or a pattern that fits no parameter.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> groups = make_parameter_groups(model, torch.ones(()), highest=1.0, weight_decay=0.1)
        >>> [group["weight_decay"] for group in groups]
        [0.1, 0.0]
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        raise BadConfig(
            "Trainer",
            "the model has nothing to train",
            got="no parameter with requires_grad",
            expected="a module with trainable parameters",
            remedy="model.requires_grad_(True)",
        )
    patterns = _check_groups(groups or {}, trained)
    embeddings = {id(parameter) for parameter in _embeddings(model)}
    spared = set(getattr(model, "no_weight_decay", tuple)())
    found: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        own = next((options for pattern, options in patterns.items() if fnmatchcase(name, pattern)), {})
        embedding = id(parameter) in embeddings
        decay = own.get("weight_decay", 0.0 if parameter.ndim < 2 or embedding or name in spared else weight_decay)
        key = (own.get("lr", highest) / highest, decay, tables and embedding and is_table(parameter))
        found.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": lr if factor == 1 else torch.zeros_like(lr),
            "lr_factor": factor,
            "weight_decay": decay,
            "table": table,
        }
        for (factor, decay, table), parameters in found.items()
    ]


def _embeddings(model: nn.Module) -> Iterable[nn.Parameter]:
    for module in model.modules():
        if any("embedding" in base.__name__.lower() for base in type(module).__mro__):
            yield from module.parameters(recurse=False)


def _check_groups(groups: Groups, trained: Iterable[str]) -> Groups:
    for pattern, options in groups.items():
        if not any(fnmatchcase(name, pattern) for name in trained):
            raise refuse_choice("Trainer", "param_groups", pattern, trained, "a pattern of these, as 'embedding.*'")
        for option, value in options.items():
            if option not in ("lr", "weight_decay"):
                raise refuse_choice("Trainer", "param_groups", option, ["lr", "weight_decay"])
            if not value >= 0:
                raise BadConfig(
                    f"Trainer(param_groups={{{pattern!r}: ...}})",
                    f"{option} makes no sense",
                    got=value,
                    expected="0 or more",
                    remedy="freeze(model, pattern) for what is to stay" if option == "lr" else "weight_decay=0.0",
                )
    return groups
