"""Damaged files read one after the other in a fork of this process, since one may die of them.

python -m tests.forged FOLDER FIRST LAST KIND...: prints for each kind how many were read and how many were refused, and
lists the faults. A fork reads them until it is done or dies, and the next one goes on with the seed after that. The
growth of memory is the system's figure for the fork, and the time is taken by the parent.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import select
import signal
import sys
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch

from gpupipe.errors import GpupipeError
from tests.forged.kinds import KINDS, Case

MOST_GROWTH = 300 << 20
MOST_SECONDS = 60.0

# pyarrow ends the process where a Parquet footer contradicts itself, of about one damaged file in a thousand: its
# `RowGroupMetaData.column` and `ColumnChunkMetaData.statistics` do not catch this. docs/security.md tells.
KNOWN = "terminate called after throwing an instance of 'parquet::ParquetException'"


def run(kind: type[Case], folder: Path, first: int, last: int) -> tuple[Counter[str], list[str]]:
    """Read what these seeds damage; count the outcomes, and list those that are faults."""
    counts, faults = Counter[str](), list[str]()
    seed = first
    while seed < last:
        outcomes, death = read_in_fork(kind, folder, seed, last)
        for outcome in outcomes:
            if outcome in {"read", "refused"}:
                counts[outcome] += 1
            else:
                faults.append(f"{kind.__name__} {seed}: {outcome}")
            seed += 1
        if death and KNOWN in death:
            counts["known"] += 1
        elif death:
            faults.append(f"{kind.__name__} {seed}: {death}")
        seed += bool(death)
    return counts, faults


def read_in_fork(kind: type[Case], folder: Path, first: int, last: int) -> tuple[list[str], str]:
    """Return what became of these seeds up to one that a process died of, and what it said then."""
    read, write = os.pipe()
    errors = folder / "errors"
    child = os.fork()
    if not child:
        os.close(read)
        try:
            with errors.open("wb") as file:
                os.dup2(file.fileno(), sys.stderr.fileno())
            faulthandler.enable()
            logging.disable()
            case = kind(folder / kind.__name__)
            case.read_whole()
            os.write(write, b"\n")
            for seed in range(first, last):
                os.write(write, f"{json.dumps(try_one(case, seed))}\n".encode())
        except BaseException:  # noqa: BLE001 - the parent goes on with the rest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    answers = b""
    while True:
        limit = MOST_SECONDS if answers else 10 * MOST_SECONDS  # until the files are written, and the libraries loaded
        if not select.select([read], [], [], limit)[0]:
            os.kill(child, signal.SIGABRT)  # which prints where it is
        answers += (answer := os.read(read, 1 << 16))
        if not answer:
            break
    os.close(read)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    death = f"died, {status}\n{errors.read_text(errors='replace')[:4000]}" if status else ""
    return [json.loads(line) for line in answers.splitlines() if line], death


def try_one(case: Case, seed: int) -> str:
    """Damage the files by this seed and read them; return `read`, `refused`, or what is wrong."""
    case.damage(seed)
    before = reset_peak()
    try:
        case.read()
        outcome = "read"
    except GpupipeError:
        outcome = "refused"
    except Exception:  # noqa: BLE001 - any other error is what is looked for
        return traceback.format_exc()
    growth = reset_peak() - before
    return outcome if growth < MOST_GROWTH else f"{growth >> 20} MiB more"


def reset_peak() -> int:
    """Return the most memory, in bytes, that this process has had since it was last asked."""
    status = Path("/proc/self/status").read_text()
    with suppress(OSError):  # a system that keeps one peak of the whole life
        Path("/proc/self/clear_refs").write_text("5")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({kind: run(KINDS[kind], folder, first, last) for kind in sys.argv[4:]}))
