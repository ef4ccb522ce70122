"""The executor in use, and the one on the threads of this process."""

from __future__ import annotations

import threading

import pytest

from gpupipe.cluster.executor import Executor, default_threads, get_executor, use_executor
from gpupipe.errors import BadConfig, PartitionFailed


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_items_order(workers: int) -> None:
    assert list(Executor(workers).map(abs, range(-9, 0))) == list(range(9, 0, -1))


def test_the_innermost_executor_is_in_use() -> None:
    assert get_executor().in_process and 1 <= default_threads() <= 4
    with use_executor(Executor(1)), use_executor(Executor(7)) as inner, use_executor(None):
        assert get_executor() is inner and inner.num_workers == 7
    with pytest.raises(BadConfig), use_executor(7):  # type: ignore[arg-type]
        pass


def test_a_system_that_starts_no_thread_is_told_of() -> None:
    threading.stack_size(1 << 46)  # more than there are addresses
    try:
        with pytest.raises(PartitionFailed, match=r"no thread can be started[\s\S]*ulimit"):
            list(Executor(2).map(abs, [-1]))
    finally:
        threading.stack_size(0)
