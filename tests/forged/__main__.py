"""Damaged files read one after the other, in a process of its own, since it may die of one.

python -m tests.forged FOLDER FIRST LAST KIND...: prints for each kind how many were read, how many were refused, and
every other outcome. What is tried is in FOLDER/at before it is tried, so that the caller knows what a process died of.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import traceback
from collections import Counter
from pathlib import Path

import torch

from gpupipe.errors import GpupipeError
from tests.forged.kinds import KINDS

MOST_GROWTH = 300 << 20
MOST_SECONDS = 60


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(kind: str, folder: Path, first: int, last: int) -> tuple[Counter[str], list[str]]:
    """Read what these seeds damage; count the outcomes, and list those that are faults."""
    case = KINDS[kind](folder / kind)
    case.read()  # what is whole is read
    counts, faults = Counter[str](), list[str]()
    for seed in range(first, last):
        (folder / "at").write_text(f"{kind} {seed}")
        faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
        case.damage(seed)
        before = peak()
        try:
            case.read()
            counts["read"] += 1
        except GpupipeError:
            counts["refused"] += 1
        except Exception:  # noqa: BLE001 - any other error is what is looked for
            faults.append(f"{kind} {seed}: {traceback.format_exc()}")
        if (growth := peak() - before) > MOST_GROWTH:
            faults.append(f"{kind} {seed}: {growth >> 20} MiB more")
        faulthandler.cancel_dump_traceback_later()
    return counts, faults


if __name__ == "__main__":
    faulthandler.enable()
    torch.set_num_threads(1)
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({kind: run(kind, folder, first, last) for kind in sys.argv[4:]}))
