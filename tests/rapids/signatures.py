"""What RAPIDS' own classes and functions take: the signatures that every call is bound to."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any

from rmm.pylibrmm import memory_resource

_NAMED_ONLY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@cache
def signature_of(target: Any) -> inspect.Signature | None:
    """The parameters of a function, method or class of RAPIDS; None where it tells them nowhere.

    Compiled code often has none: then RMM's source has it, pylibcudf's stubs, or the first line of the docstring.
    """
    try:
        found = inspect.signature(target)
    except (TypeError, ValueError):
        return _from_source(target) or _from_stub(target) or _from_docstring(target)
    if (
        isinstance(target, type)
        and hasattr(target, "get_params")
        and {p.kind for p in found.parameters.values()} <= _NAMED_ONLY
    ):
        names = target().get_params()
        return inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
        )
    return found


def mismatch(target: Any, args: Iterable[Any], keywords: Iterable[str], *, method: bool = False) -> str | None:
    """Why a call with these arguments does not fit `target`; None when it does.

    A keyword has to be named by the signature: `read_parquet(**kwargs)` takes a misspelt one and fails on the device.
    """
    if not callable(target):
        return "is not callable"
    signature = signature_of(target)
    if signature is None:
        return None
    own = [None] if method and "self" in signature.parameters else []
    signature = _named(signature)
    try:
        signature.bind(*own, *args, **dict.fromkeys(keywords))
    except TypeError as problem:
        return f"{problem}; it takes {signature}"
    return None


def check(path: str, target: Any, args: Iterable[Any], kwargs: Mapping[str, Any], *, method: bool = False) -> None:
    """Refuse a call that RAPIDS would refuse."""
    problem = mismatch(target, args, kwargs, method=method)
    if problem is not None:
        raise TypeError(f"{path}: {problem}")


def checked(path: str, target: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a stand-in's function run only for calls that fit the real one. A method is given with its `self`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            check(path, target, args, kwargs)
            return function(*args, **kwargs)

        return call

    return decorate


def not_imitated(path: str, owner: Any, name: str) -> Exception:
    """What to raise for an attribute that a stand-in lacks."""
    if name.startswith("__") or not hasattr(owner, name):
        return AttributeError(f"{path} has no attribute {name!r}")
    return NotImplementedError(f"the stand-in does not imitate {path}.{name}")


def _named(signature: inspect.Signature) -> inspect.Signature:
    """Without `**kwargs`, unless they are all it takes."""
    kept = [p for p in signature.parameters.values() if p.kind != inspect.Parameter.VAR_KEYWORD]
    return signature.replace(parameters=kept) if {p.name for p in kept} - {"self", "args"} else signature


def _from_docstring(target: Any) -> inspect.Signature | None:
    line = (getattr(target, "__doc__", None) or "").strip().partition("\n")[0]
    found = re.match(r"[\w.]*\((.*)\)(?: ->.*)?$", line)
    return None if found is None else _parsed(found[1])


def _from_source(target: Any) -> inspect.Signature | None:
    if not isinstance(target, type) or not target.__module__.startswith("rmm.pylibrmm.memory_resource"):
        return None
    source = Path(memory_resource.__file__).with_name("_memory_resource.pyx").read_text()
    found = re.search(rf"cdef class {target.__name__}\b.*?def __cinit__\(\s*self,?(.*?)\)\s*:", source, re.DOTALL)
    return None if found is None else _parsed(found[1])


def _from_stub(target: Any) -> inspect.Signature | None:
    """A signature from the `.pyi` beside a compiled module."""
    file = getattr(sys.modules.get(getattr(target, "__module__", None) or ""), "__file__", None)
    if file is None:
        return None
    stub = Path(file).with_name(Path(file).name.partition(".")[0] + ".pyi")
    if not stub.is_file():
        return None
    found: Any = ast.parse(stub.read_text())
    for name in [*target.__qualname__.split("."), *(["__init__"] if isinstance(target, type) else [])]:
        found = next((node for node in found.body if getattr(node, "name", None) == name), None)
        if found is None:
            return None
    if not isinstance(found, ast.FunctionDef):
        return None
    for parameter in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs):
        parameter.annotation = None
    if isinstance(target, type):
        del found.args.args[0]
    return _parsed(ast.unparse(found.args))


def _parsed(parameters: str) -> inspect.Signature | None:
    """A signature from Cython's text: types stand before names."""
    plain = [
        re.sub(r"^(?:[\w\[\]:.]+\s+)+(?=\w)", "", part.strip()) for part in parameters.replace("\\*", "*").split(",")
    ]
    text = ", ".join(part for part in plain if part)
    namespace: dict[str, Any] = {}
    try:
        exec(f"def parsed({re.sub(r'=[^,]+', '=None', text)}): pass", namespace)
    except SyntaxError:
        return None
    return inspect.signature(namespace["parsed"])
