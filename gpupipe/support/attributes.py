"""Attributes that modules and objects lack, answered in the family's words with the name that was meant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from gpupipe.errors import AttributeNotFound, nearest

_PROBLEM = "there is no such name"


class Answering:
    """Base class of objects that answer a misspelt attribute; other programs' probes, of `_repr_html_`, stay cheap.

    So do those of scikit-learn for learned state, whose names end in an underscore.

    Example:
        >>> class Fitter(Answering):
        ...     def fit(self): ...
        >>> Fitter().fitt
        Traceback (most recent call last):
        gpupipe.errors.AttributeNotFound: Fitter.fitt: there is no such name.
        Expected one of fit.
        Try: 'fit' (the closest name)
    """

    _ELSEWHERE: ClassVar[Mapping[str, str]] = {}
    """What to write for a name of another library."""

    if not TYPE_CHECKING:  # for which any name would be one

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeNotFound with the name that was meant."""
            if name.startswith("_") or name.endswith("_") or hasattr(type(self), name):  # a property fails again
                return object.__getattribute__(self, name)
            names = sorted(each for each in {*dir(type(self)), *vars(self)} if not each.startswith("_"))
            near, where, expected = nearest(name, names), f"{type(self).__name__}.{name}", f"one of {', '.join(names)}"
            unlike = "to_frame(), a frame of pandas" if "to_frame" in names else f"help({type(self).__name__})"
            remedy = self._ELSEWHERE.get(name, unlike if near is None else f"{near!r} (the closest name)")
            raise AttributeNotFound(where, _PROBLEM, expected=expected, remedy=remedy)


def _suggest_nothing(name: str) -> None:
    """Know no name of another library."""


def answer_names(
    module: str, names: Sequence[str], suggest: Callable[[str], str | None] = _suggest_nothing
) -> Callable[[str], NoReturn]:
    """Make the `__getattr__` of a public module, which answers a name that is misspelt or another public module's.

    `suggest` returns what to write for a name of another library.
    """

    def refuse(name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        loaded = [home for home in sys.modules if home.startswith("gpupipe.") and home.count(".") == 1]
        homes = [f"{home}.{name}" for home in loaded if name in getattr(sys.modules[home], "__all__", ())]
        near, alias = nearest(name, names), module.replace("gpupipe", "gp", 1)
        remedy = next(iter(homes), "").replace("gpupipe", "gp", 1) or suggest(name)
        remedy = remedy or (f"help({alias})" if near is None else f"{alias}.{near}")
        raise AttributeNotFound(f"{module}.{name}", _PROBLEM, expected=f"a name of dir({alias})", remedy=remedy)

    return refuse
