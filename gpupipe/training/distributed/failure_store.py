"""Where ranks leave word when one of them fails, so that the others can say which one, and why, instead of waiting.

What a broken connection tells is a port. So beside the group there is a small store of torch's, which rank 0 keeps:
who fails writes the reason there, who is told to wait looks into it, and who has nothing written has gone.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Sequence

from gpupipe.errors import ClusterLost
from gpupipe.tensors.process_group import open_store

__all__ = ["RollCall", "host_for"]

ANSWER = 5.0
"""Seconds in which each rank that lives can have noticed that another failed."""
_ALARM = "alarm"


class RollCall:
    """The store of one fit, as one of its ranks sees it.

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

    def alarm(self) -> bool:
        """Whether some rank has failed, or rank 0 is gone and the store with it."""
        try:
            return bool(self._store.check([_ALARM]))
        except RuntimeError:
            return True

    def leave(self, reason: str) -> None:
        """Say why this rank goes; an empty reason says that it goes because another one does."""
        try:
            self._store.set(f"rank {self.rank}", reason)
            self._store.set(_ALARM, "")
        except RuntimeError:  # rank 0 is gone, and nobody can be told
            pass

    def lost(self, cause: Exception) -> ClusterLost:
        """What to raise where a rank waits in vain: which ranks have failed and why, and which do not answer."""
        self.leave("")
        try:
            failed, silent = self._called()
            self._store.set(f"read {self.rank}", "")
        except RuntimeError:
            failed, silent = {}, [0]
        self._waits_for -= {*silent, *failed}
        told = [f"rank {rank} failed ({reason})" for rank, reason in failed.items()]
        if silent and not failed:
            told.append(f"rank {', '.join(map(str, silent))} is gone or hangs")
        reason = "; ".join(told) or str(cause).partition("\n")[0]
        return ClusterLost(
            f"Trainer.fit, rank {self.rank} of {self.size}",
            f"it cannot go on alone: {reason}",
            expected="all ranks at work until the end",
            remedy="a look at that rank's own output; then fit(..., resume='latest') where there are checkpoints",
        )

    def linger(self) -> None:
        """Rank 0 keeps the store until those that are still there have read it or failed too, or some seconds."""
        deadline = time.monotonic() + ANSWER
        while self.rank == 0 and self._waits_for and time.monotonic() < deadline:
            failed = {rank for rank, reason in self._reasons(self._waits_for).items() if reason}
            self._waits_for = {rank for rank in self._waits_for - failed if not self._store.check([f"read {rank}"])}
            time.sleep(0.05)

    def _called(self) -> tuple[dict[int, str], list[int]]:
        """The reasons of those that have failed by themselves, and who has not answered in time."""
        others, deadline = [rank for rank in range(self.size) if rank != self.rank], time.monotonic() + ANSWER
        while True:
            reasons = self._reasons(others)
            failed = {rank: reason for rank, reason in reasons.items() if reason}
            if failed or len(reasons) == len(others) or time.monotonic() > deadline:
                return failed, [rank for rank in others if rank not in reasons]
            time.sleep(0.05)

    def _reasons(self, ranks: Collection[int]) -> dict[int, str]:
        """What those of them that go have said."""
        here = [rank for rank in ranks if self._store.check([f"rank {rank}"])]
        return {rank: self._store.get(f"rank {rank}").decode() for rank in here}


def host_for(hosts: Sequence[str]) -> str:
    """The name by which ranks on these hosts reach the first: one machine needs no network.

    Example:
        >>> host_for(["node1", "node1"])
        '127.0.0.1'
    """
    return "127.0.0.1" if len(set(hosts)) == 1 else os.environ.get("MASTER_ADDR") or socket.gethostbyname(hosts[0])
