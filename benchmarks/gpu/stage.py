"""What each part of the GPU benchmark is given: a backend, seconds to spend, and where to put what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from environment import spread

from gpupipe.backend import Backend, select

__all__ = ["DRY_ROWS", "Stage", "lines_of"]

DRY_ROWS = 2000


@dataclass
class Stage:
    """Where one part works.

    Args:
        gpu: whether on a GPU; else dry: on the CPU, a few rows, and no figure means anything.
        until: the moment (`time.time()`) at which the part has to be done.
        scratch: a folder for files, which the parts share.
        out: the file that findings are added to, a line each, so that none is lost where the part is stopped.
        before: what the parts before found, by part.
    """

    gpu: bool
    until: float
    scratch: Path
    out: Path
    before: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def backend(self) -> Backend:
        return select("gpu" if self.gpu else "cpu")

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.gpu else "cpu")

    def rows(self, wanted: int) -> int:
        """As many, or the few of a dry run."""
        return wanted if self.gpu else min(wanted, DRY_ROWS)

    def left(self) -> float:
        """Seconds to spend."""
        return self.until - time.time()

    def tell(self, name: str, found: Any) -> None:
        """Put a finding into the report."""
        self._add({"name": name, "found": found})

    def tried(self, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What it finds or, where it fails, why: the figures of the others are still worth having."""
        try:
            return find()
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            return {"failed": traceback.format_exc()[-2000:]}

    def drop(self, what: str) -> None:
        """Say in the report what there was no time for, or what cannot be had here."""
        self._add({"dropped": what})

    def fail(self, why: str) -> None:
        """Say in the report that the part ended before it was done."""
        self._add({"failed": why})

    def room(self, what: str, seconds: float) -> bool:
        """Whether something that takes so long can be done in time; where not, the report says that it was not."""
        if self.left() < seconds:
            self.drop(f"{what}: {seconds:.0f} s were not left")
            return False
        return True

    def wait(self) -> None:
        """For the device."""
        if self.gpu:
            torch.cuda.synchronize()

    def once(self, run: Callable[[], Any]) -> float:
        """Seconds of one call, the device's work included."""
        self.wait()
        started = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - started

    def seconds(self, what: str, run: Callable[[], Any], rounds: int = 5) -> dict[str, float]:
        """Median, best and worst of some calls after a first, `cold_s`; fewer of them where time runs out, or dry."""
        cold, found, rounds = self.once(run), [], rounds if self.gpu else 1
        while len(found) < rounds and (not found or self.left() > 2 * found[-1]):
            found.append(self.once(run))
        if len(found) < rounds:
            self.drop(f"{what}: {len(found)} rounds of {rounds}")
        return spread(found) | {"cold_s": cold, "rounds": len(found)}

    def share_of_copy(self, num_bytes: float, seconds: float) -> float | None:
        """Of the device's copy bandwidth; None where that was not measured."""
        copy = self.before.get("ceilings", {}).get("copy")
        return None if copy is None else num_bytes / seconds / 1e9 / copy["gb_per_s"]

    def _add(self, line: Mapping[str, Any]) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def lines_of(script: str, arguments: Sequence[str], until: float, environ: Mapping[str, str] = {}) -> Iterator[Any]:
    """What a script of this folder prints, a JSON object a line, from a process of its own that is ended in time."""
    limited = ["timeout", "--kill-after=2", f"{max(until - time.time(), 1):.0f}"]
    process = subprocess.Popen(
        [*limited, sys.executable, Path(__file__).parent / script, *arguments],
        env=os.environ | dict(environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        yield from (json.loads(line) for line in process.stdout if line.startswith("{"))  # libraries talk, too
    if process.returncode == 124:
        yield {"stopped": "it was not done in time"}
    elif process.returncode:
        yield {"failed": f"exit status {process.returncode}"}
