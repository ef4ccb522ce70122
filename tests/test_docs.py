"""What is public is documented: a sentence, an example, what it costs in memory, what it raises."""

from __future__ import annotations

import ast
import builtins
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from gpupipe import errors

ROOT = Path(__file__).parents[1]
ROOMS = [
    "gpupipe",
    *(f"gpupipe.{floor}" for floor in ("config", "errors", "expressions", "schema", "step")),
    *(f"gpupipe.{path.parent.name}" for path in sorted((ROOT / "gpupipe").glob("*/__init__.py"))),
]

# Made, not called: shown where they come from.
WITHOUT_EXAMPLE = {"Scorer"}
# Parameters by which a function is given data.
DATA = {"data", "dataset", "frame", "obj", "path", "pipeline"}
# They look at data, and neither keep nor make any.
WITHOUT_MEMORY = {"Pipeline.explain"}


def public() -> dict[str, Any]:
    """The functions and classes of every `__all__` that are defined in gpupipe, by name."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in getattr(module, "__all__", ()):
            item = getattr(module, name)
            if inspect.isfunction(item) or (inspect.isclass(item) and item.__module__.startswith("gpupipe")):
                found[f"{item.__module__}.{name}"] = item
    return found


PUBLIC = public()
CLASSES = {name: item for name, item in PUBLIC.items() if inspect.isclass(item)}
STEPS = [item for item in CLASSES.values() if item.__module__.startswith(("gpupipe.transforms", "gpupipe.preproc"))]


def is_abstract(cls: type) -> bool:
    """Whether a class is there to be filled in: others say what they do and what it costs."""
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False)


def functions(cls: type) -> Iterator[FunctionType]:
    """The public methods and properties a class defines itself, and its constructor."""
    for name, item in vars(cls).items():
        function = item.fget if isinstance(item, property) else getattr(item, "__func__", getattr(item, "func", item))
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            yield function


def callables() -> list[tuple[FunctionType, str]]:
    """Each public function and method, with all that is written about it: its own text, its class' and its bases'."""
    found = [(item, inspect.getdoc(item) or "") for item in PUBLIC.values() if inspect.isfunction(item)]
    for cls in CLASSES.values():
        for function in functions(cls):
            texts = [getattr(getattr(base, function.__name__, None), "__doc__", "") or "" for base in cls.__mro__]
            found.append((function, "\n".join([*texts, *(base.__doc__ or "" for base in cls.__mro__)])))
    return found


def raised(function: FunctionType) -> set[str]:
    """The errors of the family that a function's own lines raise."""
    function = inspect.unwrap(function)
    if function.__code__.co_filename.startswith("<"):  # made by dataclass
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    causes = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    return {n.id for cause in causes for n in ast.walk(cause) if isinstance(n, ast.Name)} & set(errors.__all__)


def test_the_rooms_are_found() -> None:
    assert {"gpupipe.io", "gpupipe.transforms", "gpupipe.tensors", "gpupipe.schema", "gpupipe.backend"} <= set(ROOMS)
    assert len(PUBLIC) > 70 and len(callables()) > 150 and len(STEPS) > 15


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_is_in_one_line(name: str) -> None:
    first, *rest = (PUBLIC[name].__doc__ or "").split("\n")
    assert re.fullmatch(r"\S.*\.", first), f"the first line is no sentence: {first!r}"
    assert not rest or not rest[0].strip(), "a blank line stands behind the first"


def test_every_public_method_is_described() -> None:
    bare = {f.__qualname__ for f, text in callables() if f.__name__ != "__init__" and not text}
    assert not bare


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_it_has_an_example(name: str) -> None:
    item = PUBLIC[name]
    record = inspect.isclass(item) and (is_abstract(item) or is_dataclass(item) or issubclass(item, enum.Enum))
    named = inspect.isclass(item) and issubclass(item, errors.GpupipeError)  # the root has the example
    shown = "Example:" in (item.__doc__ or "")
    if item.__name__ in WITHOUT_EXAMPLE:
        assert not shown, "it has an example now: take it off the list"
    elif not record and not named:
        assert shown
    assert not shown or ">>> " in item.__doc__


@pytest.mark.parametrize("step", [step for step in STEPS if not is_abstract(step)], ids=lambda step: step.__name__)
def test_a_step_says_what_it_costs_in_memory(step: type) -> None:
    assert "Memory:" in (step.__doc__ or "")


def test_what_is_given_data_says_what_it_costs_in_memory() -> None:
    filled_in = {cls.__name__ for cls in CLASSES.values() if is_abstract(cls)} | {"Column"}
    given = {f.__qualname__: text for f, text in callables() if DATA & inspect.signature(f).parameters.keys()}
    given = {name: text for name, text in given.items() if name.partition(".")[0] not in filled_in}
    assert {"save", "Pipeline.fit", "Pipeline.loader", "Scorer.predict", "from_frame", "inspect"} <= given.keys()
    untold = {name for name, text in given.items() if not re.search("Memory:|memory as for `", text)}
    assert {name for name in untold if not name.endswith("__init__")} == WITHOUT_MEMORY


@pytest.mark.slow
def test_the_errors_a_function_raises_are_told() -> None:
    """A constructor need not say that it refuses values that make no sense: that is what BadConfig is."""
    untold = {
        f"{function.__qualname__}: {error}"
        for function, text in callables()
        for error in raised(function)
        if not re.search(rf"\b{error}\b", text) and (function.__name__, error) != ("__init__", "BadConfig")
    }
    assert not untold


def test_errors_that_are_told_exist() -> None:
    for function, text in callables():
        for line in re.findall(r"^ +((?:[A-Z]\w+(?:, )?)+): ", text.partition("Raises:")[2], re.MULTILINE):
            unknown = {name for name in line.split(", ") if name.endswith(("Error", "Missing", "Failed", "Mismatch"))}
            assert unknown <= {*errors.__all__, *dir(builtins)}, function.__qualname__
