"""Worker processes import the program's main file again: one without the usual guard would start workers for ever."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from gpupipe.errors import BadConfig

__all__ = ["check_main_guard"]


def check_main_guard(where: str) -> None:
    """Raise `BadConfig` where the running script has no `if __name__ == "__main__":`; notebooks and `-c` need none."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None:  # `python -m` has a spec, and imports by name
        return
    if not _has_guard(Path(path).read_text(encoding="utf-8")):
        raise BadConfig(
            where,
            f"the script {path} has no guard, and every worker process imports it",
            expected="what starts a cluster stands behind the guard",
            remedy='if __name__ == "__main__": main()',
        )


def _has_guard(source: str) -> bool:
    """Whether an `if` at the top level compares `__name__`.

    Example:
        >>> _has_guard("if __name__ == '__main__': main()"), _has_guard("main()")
        (True, False)
    """
    tests = [node.test for node in ast.parse(source).body if isinstance(node, ast.If)]
    return any(isinstance(n, ast.Name) and n.id == "__name__" for test in tests for n in ast.walk(test))
