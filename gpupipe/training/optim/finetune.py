"""Fine-tuning: load pretrained weights, report what does not fit, freeze parts; each fit trains what is not frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gpupipe.errors import BadConfig, BadFile, SchemaMismatch
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_bool, refuse_argument, refuse_choice


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Load report: the names of the weights that were loaded, and of those that were not.

    `missing` ones are the model's, were not given and are unchanged; `unexpected` ones were given, and are none of the
    model's; those of `other_shape` are in both, with the model's shape and the given one, and were not loaded.
    `new_ids` counts by column the ids whose values the given weights do not know; their rows are unchanged.

    Example:
        >>> print(LoadReport(["a"], ["b"], [], {}))
        1 loaded; missing: b
    """

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    other_shape: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    new_ids: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = [f"{name} {shape} for {model_shape}" for name, (model_shape, shape) in self.other_shape.items()]
        new = [f"{count:,} of {name!r}" for name, count in self.new_ids.items()]
        differences = {"missing": self.missing, "unexpected": self.unexpected, "other shape": shapes, "new ids": new}
        parts = [f"{what}: {', '.join(names)}" for what, names in differences.items() if names]
        return "; ".join([f"{len(self.loaded)} loaded", *parts])


@answer_calls
def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor] | str | Path, *, strict: bool = True, prefix: str = ""
) -> LoadReport:
    """Load the weights whose name and shape are the model's, rows of embeddings by the values of their ids.

    A pipeline that is fitted anew gives values other ids. Models of `from_schema` know which value each id is, and so
    do their weights: a row goes where the model has its value, and values that are new to the weights keep their rows.

    Args:
        model: changed in place.
        weights: by name; or a file of them: `.safetensors`, else one of `torch.save`, read without running code; or a
            folder that `gp.save` wrote.
        strict: whether all of the model's must be there, and no others.
        prefix: what the given names begin with, and the model's do not: "module.", "encoder.".

    Raises:
        SchemaMismatch: `strict`, and they do not fit, or it is not known which values the ids of a column stand for;
            the model is as it was. Without `strict` the rows of such a column stay.
        BadConfig: not one weight fits, or there is no model.
        BadFile: the file is missing, or holds no weights.

    Memory: copies into the model; a file is read to the host.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> print(load_weights(model, {"weight": torch.zeros(1, 2), "scale": torch.ones(1)}, strict=False))
        1 loaded; missing: bias; unexpected: scale
    """
    _check_model("load_weights", model)
    check_bool(load_weights, strict=strict)
    tensors: Any = weights
    if not isinstance(tensors, str | Path | Mapping):
        got, expected, remedy = type(weights), "tensors by name, or a file's path", "other.state_dict()"
        raise refuse_argument("load_weights", "weights", got, expected, remedy, problem="no weights")
    tensors = _read(tensors) if isinstance(tensors, str | Path) else tensors
    tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    matches = [
        module.match_ids(tensors, f"{name}." if name else "")
        for name, module in model.named_modules()
        if hasattr(module, "match_ids")
    ]
    keys = {match.keys: tensors.pop(match.keys) for match in matches}
    state = {name: value for name, value in model.state_dict().items() if name not in keys}
    both = [name for name in state if name in tensors]
    fitting = [name for name in both if state[name].shape == tensors[name].shape]
    shapes = {name: (tuple(state[name].shape), tuple(tensors[name].shape)) for name in both if name not in fitting}
    new_ids = {name: count for match in matches for name, count in match.new.items()}
    missing, unexpected = [n for n in state if n not in tensors], [n for n in tensors if n not in state]
    report = LoadReport(fitting, missing, unexpected, shapes, new_ids)
    unknown = [name for match in matches for name in match.unknown]
    if strict and unknown:
        where, problem = "load_weights", "it is not known which values the ids of the weights stand for"
        expected = "weights of a model that from_schema made, for the same columns of ids in the same order"
        remedy = "strict=False, which leaves the rows of these columns as they are"
        raise SchemaMismatch(where, problem, got=unknown, expected=expected, remedy=remedy)
    if strict and len(fitting) < len(state | tensors):
        where, problem = "load_weights", "the weights are not those of the model"
        remedy = "strict=False to load those that fit"
        if any(
            name.endswith(("embedding.table", "numbers.weight")) for name in shapes
        ):  # sized by the other fit's rows
            numbers = "numbers=gp.models.PiecewiseLinear.from_schema(earlier_pipeline.schema)"
            remedy = f"from_schema(pipeline.schema, embedding_dim=16, {numbers}) for both models"
        raise SchemaMismatch(where, problem, got=str(report), expected="the same names and shapes", remedy=remedy)
    if not fitting:
        where, problem = "load_weights", "not one weight fits the model"
        remedy = "prefix='module.' for what the given names begin with"
        raise BadConfig(where, problem, got=list(tensors)[:3], expected=f"names like {list(state)[:3]}", remedy=remedy)
    model.load_state_dict({name: tensors[name] for name in fitting} | keys, strict=False)
    return report


def _read(path: str | Path) -> Mapping[str, Tensor]:
    file, inside = Path(path), Path(path) / "model.safetensors"  # what gp.save wrote
    try:
        if inside.is_file() or file.suffix == ".safetensors":
            return load_file(inside if inside.is_file() else file)
        tensors: Mapping[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as cause:
        problem = f"no weights can be read from it ({str(cause).splitlines()[0]})"
        expected = "a .safetensors file, one of torch.save that holds tensors alone, or a folder of gp.save"
        raise BadFile(str(path), problem, expected=expected, remedy="torch.save(model.state_dict(), path)") from cause
    return tensors


@answer_calls
def freeze(model: nn.Module, *patterns: str) -> list[str]:
    """Freeze the parameters whose names match a pattern, for the next fits; return their names.

    Raises `BadConfig`: a pattern that matches none.

    Example:
        >>> freeze(nn.Linear(2, 1), "bias")
        ['bias']
    """
    return _switch("freeze", model, patterns, trained=False)


@answer_calls
def unfreeze(model: nn.Module, *patterns: str) -> list[str]:
    """Unfreeze the parameters whose names match a pattern, for the next fits; return their names.

    Raises `BadConfig`: a pattern that matches none.

    Example:
        >>> unfreeze(nn.Linear(2, 1).requires_grad_(False), "*")
        ['weight', 'bias']
    """
    return _switch("unfreeze", model, patterns, trained=True)


def _switch(owner: str, model: nn.Module, patterns: tuple[Any, ...], *, trained: bool) -> list[str]:
    _check_model(owner, model)
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatchcase(name, pattern) for name in parameters):
            raise refuse_choice(owner, "patterns", pattern, parameters, "a pattern of these, as 'embedding.*'")
    names = [name for name in parameters if any(fnmatchcase(name, pattern) for pattern in patterns)]
    for name in names:
        parameters[name].requires_grad_(trained)
    return names


def _check_model(owner: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        remedy = f"{owner}(trainer.model, ...)"
        raise refuse_argument(owner, "model", model, "a torch.nn.Module", remedy, problem="not a model")
