"""Loops that Numba compiles on their first call, caches on disk, and runs without the GIL."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib import import_module
from threading import Lock
from typing import Any, TypeAlias

from gpupipe.support.collector import pause_collector

Loop: TypeAlias = Callable[..., Any]
_one_at_a_time = Lock()  # or threads that meet at a loop would each compile their own
_preparations: list[Callable[[Any], object]] = []


def compile_loop(*relaxed: str) -> Callable[[Loop], Loop]:
    """Compile a function on its first call; the rules of float arithmetic that LLVM may relax are named."""

    def decorate(function: Loop) -> Loop:
        loops: list[Any] = []

        def load() -> None:
            compiler = partial(_import_numba().njit, nogil=True, fastmath=set(relaxed), error_model="numpy")
            while _preparations:
                _preparations.pop()(import_module("numba.extending"))
            try:
                loops.append(compiler(cache=True)(function))
            except RuntimeError:  # no folder to keep it in can be written to: each process compiles it
                loops.append(compiler()(function))

        @wraps(function)
        def run(*arguments: Any) -> Any:
            if not loops:
                with _one_at_a_time, pause_collector():
                    if not loops:
                        load()
                    return call(*arguments)  # which loads what is cached, or compiles it
            return call(*arguments)

        def call(*arguments: Any) -> Any:
            try:
                return loops[0](*arguments)
            except OSError:  # it is compiled, but the disk it is kept on is full: now it only runs
                return loops[0](*arguments)

        return run

    return decorate


def inline(function: Loop) -> Loop:
    """Let compiled loops call a function."""
    prepare(lambda extending: extending.register_jitable(function))
    return function


def prepare(preparation: Callable[[Any], object]) -> None:
    """Have `numba.extending` prepared before the next loop is compiled."""
    _preparations.append(preparation)


@cache
def _import_numba() -> Any:
    """Import Numba, which takes half a second."""
    # While it compiles, Numba logs thousands of debug lines. A level that somebody has set stays.
    if logging.getLogger("numba").level == logging.NOTSET:
        logging.getLogger("numba").setLevel(logging.INFO)
    return import_module("numba")
