"""Functions that workers run; they can be imported, so that a job that uses them can be resumed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any


def lateness(frame: Any) -> Any:
    """What a user might add."""
    frame["late"] = frame["dep_delay"] > 15
    return frame


def slowly(frame: Any) -> Any:
    """The same as a tenth of a second's work."""
    time.sleep(0.1)
    return lateness(frame)


class KilledOnce:
    """The same, but the process that first comes to a day's flights is killed a moment later, wherever it is then."""

    __name__ = "killed_once"

    def __init__(self, seed: int, days: int, marker: Path) -> None:
        chance = Random(seed)
        self.day, self.moment, self.marker = chance.randint(1, days), chance.uniform(0, 0.1), marker
        self.linger = chance.uniform(0, 0.15)

    @property
    def victim(self) -> int:
        """The process."""
        return int(self.marker.read_text())

    def __call__(self, frame: Any) -> Any:
        if self.day in frame["day"].tolist():
            try:
                with self.marker.open("x") as file:
                    file.write(str(os.getpid()))
                Timer(self.moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
                time.sleep(self.linger)
            except FileExistsError:
                pass
        return lateness(frame)


class Deadly:
    """Kills every worker that comes to a day's flights."""

    __name__ = "deadly"

    def __init__(self, day: int) -> None:
        self.day = day

    def __call__(self, frame: Any) -> Any:
        if self.day in frame["day"].tolist():
            os.kill(os.getpid(), signal.SIGKILL)
        return lateness(frame)


class Picky:
    """Raises for a day's flights."""

    __name__ = "picky"

    def __init__(self, day: int) -> None:
        self.day = day

    def __call__(self, frame: Any) -> Any:
        if self.day in frame["day"].tolist():
            raise ValueError(f"no flights on day {self.day}, please")
        return lateness(frame)


class Roomy:
    """Does not fit in memory for frames of more rows."""

    __name__ = "roomy"

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows

    def __call__(self, frame: Any) -> Any:
        if len(frame) > self.max_rows:
            raise MemoryError(f"no room for {len(frame)} rows")
        return lateness(frame)
