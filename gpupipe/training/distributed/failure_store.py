"""Failure store of a fit: a failing rank writes its reason, waiting ranks poll the store instead of hanging.

The error of a broken connection names a port, not a cause. So rank 0 keeps a store of torch's: a failing rank writes
its reason, waiting ranks poll it, and a rank that stays silent for `ANSWER` seconds counts as dead.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence

from gpupipe.errors import ClusterLost
from gpupipe.tensors.process_group import open_store

__all__ = ["FailureStore", "choose_host"]

ANSWER = 5.0
"""Seconds in which each rank that lives can have noticed that another failed."""
_ALARM = "alarm"


class FailureStore:
    """Failure store of one fit, as one of its ranks sees it.

    Args:
        rank: this one.
        size: how many there are.
        address: the host and port where rank 0 keeps it; None on rank 0, which opens it.
    """

    def __init__(self, rank: int, size: int, address: tuple[str, int] | None = None) -> None:
        self.rank, self.size = rank, size
        self._store = open_store(address)
        self.port: int = self._store.port
        self._waits_for = {number for number in range(size) if number != rank}

    def any_failed(self) -> bool:
        """Return whether some rank has failed, or rank 0 is gone and the store with it."""
        try:
            return bool(self._store.check([_ALARM]))
        except RuntimeError:
            return True

    def report(self, reason: str) -> None:
        """Write why this rank ends; an empty reason means that it ends because another rank failed."""
        try:
            self._store.set(f"rank {self.rank}", reason)
            self._store.set(_ALARM, "")
        except RuntimeError:  # rank 0 is gone, and the store with it
            pass

    def make_lost_error(self, cause: Exception) -> ClusterLost:
        """Make the error of a rank that waits in vain: which ranks failed and why, and which do not answer."""
        self.report("")
        try:
            failed, silent = self._collect_reasons()
            self._store.set(f"read {self.rank}", "")
        except RuntimeError:
            failed, silent = {}, [0]
        self._waits_for -= {*silent, *failed}
        reports = [f"rank {rank} failed ({reason})" for rank, reason in failed.items()]
        if silent and not failed:
            reports.append(f"rank {', '.join(map(str, silent))} is gone or hangs")
        reason = "; ".join(reports) or str(cause).partition("\n")[0]
        return ClusterLost(
            f"Trainer.fit, rank {self.rank} of {self.size}",
            f"it cannot go on alone: {reason}",
            expected="all ranks at work until the end",
            remedy="read that rank's own output; then fit(..., resume='latest') where there are checkpoints",
        )

    def wait_for_readers(self) -> None:
        """Keep the store on rank 0 until the ranks that live have read it or failed, or for some seconds."""
        deadline = time.monotonic() + ANSWER
        while self.rank == 0 and self._waits_for and time.monotonic() < deadline:
            failed = {rank for rank, reason in self._read_reasons(self._waits_for).items() if reason}
            self._waits_for = {rank for rank in self._waits_for - failed if not self._store.check([f"read {rank}"])}
            time.sleep(0.05)

    def _collect_reasons(self) -> tuple[dict[int, str], list[int]]:
        """Return the reasons of ranks that failed by themselves, and the ranks that did not answer in time."""
        others, deadline = [rank for rank in range(self.size) if rank != self.rank], time.monotonic() + ANSWER
        while True:
            reasons = self._read_reasons(others)
            failed = {rank: reason for rank, reason in reasons.items() if reason}
            if failed or len(reasons) == len(others) or time.monotonic() > deadline:
                return failed, [rank for rank in others if rank not in reasons]
            time.sleep(0.05)

    def _read_reasons(self, ranks: Collection[int]) -> dict[int, str]:
        """Read the reasons that these ranks have written."""
        here = [rank for rank in ranks if self._store.check([f"rank {rank}"])]
        return {rank: self._store.get(f"rank {rank}").decode() for rank in here}


def choose_host(hosts: Sequence[str]) -> str:
    """Return the name by which ranks on these hosts reach the first: one machine needs no network.

    Example:
        >>> choose_host(["node1", "node1"])
        '127.0.0.1'
    """
    return "127.0.0.1" if len(set(hosts)) == 1 else os.environ.get("MASTER_ADDR") or socket.gethostbyname(hosts[0])
