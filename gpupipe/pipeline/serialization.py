"""Serialization of steps to JSON, arrays, strings and tables; unknown values are refused, never pickled."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe import preprocessing, transforms
from gpupipe.backend import Backend, select
from gpupipe.backend.estimators import export_state, is_estimator, rebuild_estimator
from gpupipe.errors import ArtifactError, SchemaMismatch
from gpupipe.io import Dataset, as_dataset, from_frame
from gpupipe.pipeline.features import Features
from gpupipe.schema import Schema
from gpupipe.step import Step
from gpupipe.support.validation import to_python
from gpupipe.transforms import Transform
from gpupipe.transforms.join import TableJoin

MAX_TABLE_BYTES = 64 << 20  # a table to join with travels with the pipeline up to this size


class Encoder:
    """Encoder of steps as JSON, with a separate store for what JSON cannot hold.

    Tables to join with are read by `backend`; one larger than `max_table_bytes` is only named, and is given to `load`.
    """

    def __init__(self, backend: Backend, max_table_bytes: int) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.values: dict[str, pa.Array] = {}
        self.tables: dict[str, pa.Table] = {}
        self._backend, self._max_table_bytes = backend, max_table_bytes

    def step(self, step: Step) -> dict[str, Any]:
        """Describe a step's class, parameters and learned state."""
        params = step.get_params()
        if isinstance(step, TableJoin):
            params["right"] = self._table(step)
        described = self.unfitted(step, params)
        if hasattr(step, "get_state"):
            described["state"] = self._plain_items(step, step.get_state())
        return described

    def unfitted(self, step: Step, params: Mapping[str, Any]) -> dict[str, Any]:
        """Describe a step's class and these of its parameters."""
        return {"class": _class_path(step), "params": self._plain_items(step, params)}

    def _plain_items(self, step: Step, items: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._plain(value, f"{type(step).__name__}.{name}") for name, value in items.items()}

    def digest(self, description: Mapping[str, Any]) -> str:
        """Compute a hash of a description and the stored values it refers to."""
        found = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
        for array in self.arrays.values():
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(array.tobytes())
        for table in (*(pa.table([values], ["values"]) for values in self.values.values()), *self.tables.values()):
            with pa.ipc.new_stream(sink := pa.BufferOutputStream(), table.schema) as stream:
                stream.write_table(table.combine_chunks())
            found.update(sink.getvalue())
        return found.hexdigest()

    def features(self, features: Features | None) -> dict[str, Any] | None:
        """Describe groups, target, weight and the other arguments of `Features`."""
        if features is None:
            return None
        target = features.target
        return {
            "groups": [
                {"columns": group.columns, "name": group.name, "steps": [self.step(step) for step in group.steps]}
                for group in features.groups
            ],
            "target": None if target is None else target.group.columns,
            "task": "auto" if target is None else target.task,
            "standardised": target is None or target.auto,
            "target_transform": [] if target is None else [self.step(step) for step in target.group.steps],
            "classes": None if target is None else target.get_state(),
            "lineage": features.lineage_,
            "weight": None if features.weight is None else features.weight.text,
            "keep": features.keep,
            "allow_leak": features.allow_leak,
        }

    def _table(self, join: TableJoin) -> dict[str, Any]:
        kind = join.class_name
        where, remedy = f"{kind}({join.name!r})", f"{kind}(..., name='weather')"
        if not re.fullmatch(r"[\w-][\w .-]*", join.name):
            raise ArtifactError(where, "its name cannot be a file's", expected="letters and digits", remedy=remedy)
        table = self._backend.to_arrow(join.table(self._backend))
        if table.nbytes <= self._max_table_bytes:
            self.tables[join.name] = table
        return {"$table": join.name, "$schema": join.right_schema.select(table.column_names).to_json()}

    def _plain(self, value: Any, where: str) -> Any:
        """Convert a value to JSON; store arrays separately under a key."""
        is_text = isinstance(value, np.ndarray) and value.dtype.kind == "U"
        value = value.tolist() if is_text else to_python(value)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if np.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, np.ndarray) and value.dtype != object:
            self.arrays[key := f"array{len(self.arrays)}"] = np.ascontiguousarray(value)
            return {"$array": key}
        if isinstance(value, pa.Array):
            self.values[key := f"values{len(self.values)}"] = value
            return {"$values": key}
        if isinstance(value, list | tuple):
            return [self._plain(item, where) for item in value]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            if any(key.startswith("$") for key in value) and set(value) != {"$table", "$schema"}:
                raise _no_form(where, value, "names that do not begin with $")
            return {key: self._plain(item, where) for key, item in value.items()}
        if isinstance(value, Mapping):
            return {"$items": [[self._plain(key, where), self._plain(item, where)] for key, item in value.items()]}
        if is_estimator(value):
            return {"$estimator": self._plain(export_state(value, where), where)}
        if callable(value):
            return {"$function": _function_path(value, where)}
        raise _no_form(where, value, "numbers, strings, lists, arrays or importable functions")


@dataclass
class Decoder:
    """Decoder of steps that an `Encoder` described; imports nothing that `allow` does not name."""

    arrays: Mapping[str, Any]
    values: Mapping[str, pa.Array]
    embedded: Mapping[str, Path]
    tables: dict[str, Any]
    allow: frozenset[str]
    _seen: set[str] = field(default_factory=set)

    def step(self, described: Mapping[str, Any]) -> Any:
        """Build the step with its learned state."""
        cls = self._class(described["class"])
        params = {name: self.value(value) for name, value in described["params"].items()}
        step: Any = cls(**params)
        if "state" in described:
            step.set_state({name: self.value(value) for name, value in described["state"].items()})
        return step

    def features(self, described: Mapping[str, Any] | None) -> Features | None:
        """Build `Features` with every step's learned state."""
        if described is None:
            return None
        steps = [self.step(step) for step in described["target_transform"]]
        features = Features(
            *(
                (item["columns"], [self.step(step) for step in item["steps"]], item["name"])
                for item in described["groups"]
            ),
            target=described["target"],
            task=described["task"],
            target_transform="auto" if described["standardised"] else steps,
            weight=described["weight"],
            keep=described["keep"],
            allow_leak=described["allow_leak"],
        )
        if features.target is not None:
            features.target.set_state(described["classes"], steps)
        features.lineage_ = described["lineage"]
        return features

    def check_all_used(self) -> None:
        """Raise for a table given under a name no join has."""
        for name in self.tables.keys() - self._seen:
            where, expected = "load(tables=...)", f"one of {sorted(self._seen)}"
            raise ArtifactError(where, "no join has this name", got=name, expected=expected, remedy="tables={}")

    def value(self, value: Any) -> Any:
        """Decode a parameter or a piece of state, including separately stored values."""
        match value:
            case {"$table": name}:
                return self._table(name, Schema.from_json(value["$schema"]))
            case {"$array": key}:
                return self.arrays[key]
            case {"$values": key}:
                return self.values[key]
            case {"$float": text}:
                return float(text)
            case {"$items": pairs}:
                return {self.value(key): self.value(item) for key, item in pairs}
            case {"$function": path}:
                return self._import_allowed(path)
            case {"$estimator": state}:
                return rebuild_estimator(self.value(state), "pipeline.json")
            case dict():
                return {key: self.value(item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
        return value

    def _table(self, name: str, schema: Schema) -> Dataset:
        self._seen.add(name)
        if name in self.tables:
            table = as_dataset(self.tables[name])
        elif name in self.embedded:
            table = from_frame(pq.read_table(self.embedded[name]))
        else:
            raise ArtifactError(
                f"table {name!r}",
                "it was too large to be saved and is not given",
                expected=f"a table with the columns {schema.names}",
                remedy=f"gp.load(path, tables={{{name!r}: table}})",
            )
        for item in schema:
            if table.schema[item.name].dtype != item.dtype:
                raise SchemaMismatch(
                    f"table {name!r}, column {item.name!r}",
                    "another type than when it was saved",
                    got=table.schema[item.name].dtype,
                    expected=item.dtype,
                    remedy="the same table with newer rows",
                )
        return table

    def _class(self, path: str) -> type[Step]:
        module, _, name = path.rpartition(".")
        for room in (transforms, preprocessing):
            if module == room.__name__ and name in room.__all__:
                found: type[Step] = getattr(room, name)
                return found
        cls = self._import_allowed(path)
        if not (isinstance(cls, type) and issubclass(cls, Step)):
            expected = "a class of steps"
            raise ArtifactError("pipeline.json", "it is no step", got=path, expected=expected, remedy="saving again")
        return cls

    def _import_allowed(self, path: str) -> Any:
        """Import the function or class at a path, if `allow` names it."""
        if path not in self.allow:
            raise ArtifactError(
                "pipeline.json",
                "the pipeline uses code of the user's own",
                got=path,
                expected="that its import path is allowed",
                remedy=f"gp.load(path, allow=[{path!r}]) if you trust it",
            )
        module, _, name = path.rpartition(".")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as cause:
            problem, expected, remedy = (
                f"it cannot be imported ({cause})",
                "a module on sys.path",
                f"the module {module!r}",
            )
            raise ArtifactError("pipeline.json", problem, got=path, expected=expected, remedy=remedy) from cause


def list_unsaveable(steps: Sequence[Transform], features: Features | None) -> list[str]:
    """List a line for each step that `save` would refuse, judged by the steps' parameters."""
    found, encoder = list[str](), Encoder(select("cpu"), 0)
    for step in (*steps, *([] if features is None else features._steps)):
        try:
            encoder.unfitted(step, {name: value for name, value in step.get_params().items() if name != "right"})
        except ArtifactError as error:
            found.append(f"cannot be saved: {error.where}, {error.problem}: {error.got}")
    return found


def _class_path(step: Step) -> str:
    cls = type(step)
    for room in (transforms, preprocessing):
        if getattr(room, cls.__name__, None) is cls:
            return f"{room.__name__}.{cls.__name__}"
    return _function_path(cls, f"step {cls.__name__}")


def _function_path(function: Any, where: str) -> str:
    """Return a function's or class's import path; refuse what a new process could not import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    importable = module not in (None, "__main__", "builtins") and name.isidentifier()
    if not importable or getattr(importlib.import_module(str(module)), name, None) is not function:
        raise ArtifactError(
            where,
            "it cannot be found again in a new process",
            got=f"{module}.{name}",
            expected="a function (or class) defined by name in a module",
            remedy="moving it into a file of its own and importing it from there",
        )
    return f"{module}.{name}"


def _no_form(where: str, value: Any, expected: str) -> ArtifactError:
    problem = "this value has no form in an artifact"
    return ArtifactError(where, problem, got=value, expected=expected, remedy="a plain value")
