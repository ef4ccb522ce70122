"""Step: named parameters, a readable repr, and a copy without learned state, for every step of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from gpupipe.errors import BadConfig
from gpupipe.support.attributes import Answering
from gpupipe.support.calls import answer_calls, answer_constructor
from gpupipe.support.text import arguments, format_count
from gpupipe.support.validation import to_python

__all__ = ["Step"]

IN_STEP = "in step "  # what the note that `in_step` adds to an error begins with
_SHOWN_VALUES = 100  # a vocabulary of millions has no place in a message


class Step(Answering):
    """Base class of all steps; parameters are the constructor's arguments, stored under their own names.

    The protocol is scikit-learn's: the constructor checks its arguments and stores them, learned state ends in an
    underscore, `get_params` gives what the constructor was given.

    Example:
        >>> class Add(Step):
        ...     def __init__(self, amount=1.0):
        ...         self.amount = amount
        >>> Add(2.0), Add(2.0).get_params()
        (Add(amount=2.0), {'amount': 2.0})
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        answer_constructor(cls)

    @answer_calls
    def __init__(self) -> None:
        """Take no parameter; a step that has some says so."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, to_python(value))

    @property
    def class_name(self) -> str:
        """The name in plans and reports: the class, or that of the wrapped estimator."""
        return type(self).__name__

    @classmethod
    def _parameters(cls) -> list[inspect.Parameter]:
        named = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return [parameter for parameter in named if parameter.kind != parameter.VAR_POSITIONAL]

    @answer_calls
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name. `deep` is accepted for scikit-learn; steps hold no estimators."""
        return {p.name: getattr(self, p.name) for p in self._parameters() if p.kind != p.VAR_KEYWORD}

    def set_params(self, /, **params: Any) -> Self:
        """Set parameters by name, all or, with `BadConfig`, none; what was learned stays until the next `fit`."""
        parameters = self.get_params()
        for name in params:
            if name not in parameters:
                where, expected = type(self).__name__, f"one of {sorted(parameters)}"
                raise BadConfig(where, "no such parameter", got=name, expected=expected, remedy="get_params()")
        vars(self).update(vars(type(self)(**parameters | params)))
        return self

    def __repr__(self) -> str:
        parts = []
        for parameter in self._parameters():
            value = getattr(self, parameter.name, parameter.default)
            if parameter.kind == parameter.VAR_KEYWORD:
                parts += [arguments(value)] if value else []
            elif parameter.default is parameter.empty or not _same(value, parameter.default):
                parts.append(f"{parameter.name}={_format_value(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


@contextmanager
def in_step(step: Step) -> Iterator[None]:
    """Name the step in a note of whatever is raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{IN_STEP}{step!r}")
        raise


def _same(value: Any, default: Any) -> bool:
    """Return whether a parameter has its default; False for objects that cannot be compared, such as a frame."""
    return value is default or (isinstance(value, type(default)) and bool(value == default))


def _format_value(value: Any) -> str:
    """Format a parameter in one short line: a function by its name, a table or a long list by its type."""
    what = f"<{type(value).__name__} of "
    if hasattr(value, "columns"):
        return f"{what}{format_count(len(value.columns), 'column')}>"
    is_short = isinstance(value, str) or not hasattr(value, "__len__") or len(value) <= _SHOWN_VALUES
    if is_short and isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_format_value(item)}" for name, item in value.items()) + "}"
    if not is_short or (hasattr(value, "__len__") and "\n" in repr(value)):
        return f"{what}{format_count(len(value), 'value')}>"
    return str(getattr(value, "__qualname__", None) or repr(value))
