"""Check of the `__main__` guard: workers import the main file, and without a guard would start workers for ever."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

from gpupipe.errors import BadConfig

__all__ = ["check_main_guard"]


def check_main_guard(where: str) -> None:
    """Raise `BadConfig` if the running script calls this outside `if __name__ == "__main__":`.

    Notebooks, `python -c` and packages run with `python -m` (which workers do not import) need no guard.
    """
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if path is None or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):
        return
    try:
        source = Path(path).read_text(encoding="utf-8")
        guarded = _is_guarded(source, _find_main_line())
    except (OSError, ValueError, SyntaxError):  # not a file of Python's that workers could import
        return
    if not guarded:
        raise BadConfig(
            where,
            f"it is started outside a guard in {path}, which every worker process imports",
            expected="what starts a cluster behind the guard",
            remedy='if __name__ == "__main__": main()',
        )


def _find_main_line() -> int | None:
    """Return the line at the top level of the main file that led here; None in other threads."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return frame.f_lineno
        frame = frame.f_back
    return None


def _is_guarded(source: str, line: int | None) -> bool:
    """Return whether a line is in a top-level `if` that compares `__name__`; for None, whether there is such an `if`.

    Example:
        >>> text = "run()" + chr(10) + "if __name__ == '__main__': run()"
        >>> _is_guarded(text, 1), _is_guarded(text, 2), _is_guarded(text, None)
        (False, True, True)
    """
    guards = [node for node in ast.parse(source).body if isinstance(node, ast.If) and _names_main(node.test)]
    return any(line is None or node.lineno <= line <= (node.end_lineno or 0) for node in guards)


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
