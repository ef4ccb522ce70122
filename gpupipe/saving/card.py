"""Card of a saved model: what it is made of and for, by what its files say; nothing in them is built or run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpupipe import models, preprocessing, transforms
from gpupipe.io.stores import StorageOptions
from gpupipe.saving.artifact import Facts, read_facts
from gpupipe.schema import Role, Schema, count_features
from gpupipe.support.text import arguments, escape_line, format_columns, format_count

_LONGEST_VALUE = 60  # letters
_OF_THE_SCHEMA = ("numeric", "cardinalities", "lists", "numbers")  # which is shown
_HOMES = {module.__name__: module for module in (transforms, preprocessing)}


def describe_artifact(path: str | Path, storage_options: StorageOptions | None = None) -> str:
    """Describe a saved model: sizes and version, network, target, steps, features. Errors as of `load`.

    Memory: the files' descriptions; of a URL all files lie in a temporary folder meanwhile.

    Example:
        >>> import tempfile, pandas as pd, gpupipe as gp
        >>> pipeline = gp.Pipeline([], gp.Features(["distance"])).fit(pd.DataFrame({"distance": [100.0, 300.0]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gp.save(f"{folder}/run", pipeline)
        ...     print(describe_artifact(f"{folder}/run").partition(": ")[2].splitlines()[1])
        fitted on 2 rows
    """
    facts = read_facts(path, storage_options)
    return "\n".join(_list_lines(facts))


def _list_lines(facts: Facts) -> Iterator[str]:
    pipeline, schema = facts.pipeline, Schema.from_json(facts.pipeline["schema"])
    what = "a pipeline and its model" if facts.model else "a pipeline"
    size = f"{format_count(len(facts.sizes), 'file')} of {_format_bytes(sum(facts.sizes.values()))}"
    yield f"{facts.where}: {what}, {size}, saved by gpupipe {pipeline['gpupipe']}"
    if pipeline["rows"] is not None:
        yield f"fitted on {format_count(pipeline['rows'], 'row')}"
    if facts.model:
        yield f"model: {_format_model(facts)}"
    features = pipeline["features"]
    if features is not None and features["target"]:
        classes = {item.name: item.classes for item in schema.targets}
        descriptions = [f"classes {', '.join(map(str, each))}" for each in classes.values() if each is not None]
        yield escape_line(f"target: {', '.join([*features['target'], schema.task or '', *descriptions[:1]])}")
    yield from _list_steps("step", pipeline["steps"])
    if features is not None:
        for group in features["groups"]:
            steps = " -> ".join([format_columns(group["columns"]), *map(_format_step, group["steps"])])
            yield f"group: {steps}"
        yield from (f"weight: {escape_line(text)}" for text in [features["weight"]] if text)
        yield from (f"kept: {format_columns(names)}" for names in [features["keep"]] if names)
    yield ""
    yield f"{count_features(schema) if schema.with_role(Role.FEATURE) else format_count(len(schema), 'column')}:"
    yield repr(schema)


def _format_model(facts: Facts) -> str:
    model = facts.model
    config = {name: value for name, value in model.get("config", {}).items() if name not in _OF_THE_SCHEMA}
    name = f"{model.get('name')}, the user's own"
    if model["class"]:
        name = f"{model['class']}({_format_changed(getattr(models, model['class'], None), config)})"
    limits = f", threshold {model['threshold']}" if "threshold" in model else ""
    is_network = facts.num_nodes is None
    parts = (
        format_count(facts.num_parameters, "parameter") if is_network else format_count(facts.num_nodes or 0, "node")
    )
    return f"{name}, {parts}, {_format_bytes(facts.sizes['model.safetensors'])}{limits}"


def _list_steps(title: str, steps: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for step in steps:
        yield f"{title}: {_format_step(step)}"


def _format_step(step: Mapping[str, Any]) -> str:
    """Format a step's class and the parameters that are not its defaults."""
    home, _, name = step["class"].rpartition(".")
    return f"{name}({_format_changed(getattr(_HOMES.get(home), name, None), step['params'])})"


def _format_changed(cls: Any, values: Mapping[str, Any]) -> str:
    """Format the arguments that are not the defaults of a class; all where it is unknown here."""
    parameters = {} if cls is None else inspect.signature(cls).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    defaults = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    return arguments({name: _Text(value) for name, value in values.items() if value != defaults.get(name)})


class _Text:
    """Value of a parameter as JSON has it, shown in few letters; what is stored elsewhere, by its name."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if isinstance(value, dict) and (marks := [name for name in value if name.startswith("$")]):
            return f"<{marks[0].removeprefix('$')} {value[marks[0]]}>"
        text = repr(value)
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _format_bytes(size: int) -> str:
    """Format a number of bytes.

    Example:
        >>> _format_bytes(999), _format_bytes(1_234_000)
        ('999 bytes', '1.2 MB')
    """
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
