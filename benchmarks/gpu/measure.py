"""What `make bench-gpu` runs: all there is to measure on a GPU, in less than ten minutes, into one JSON file.

    python benchmarks/gpu/measure.py [OUT.json] [--only PART ...] [--minutes 9.5] [--dry]

Each part is a process of its own with a share of the time; what a part leaves over, those after it may use. One that
fails or is stopped in the end loses what it had not found yet, and the rest go on; so does a part where one of its
findings fails. Exits with 0 if nothing failed. `--dry` runs all of it on a CPU, with a few rows; none of its figures
means anything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from bars import bars_of
from clocks import card, watched
from environment import HERE, RESULTS, failures, write_result
from stage import Stage

from gpupipe.backend.device.probe import choose_backend, probe

# Shares of the time. The ceilings come first: others are put beside them.
PARTS = {
    "ceilings": 25,
    "handover": 35,
    "features": 40,
    "estimators": 40,
    "operators": 100,
    "decode": 55,
    "trainer": 85,
    "whole": 190,
}
ALONE = {"large": 540}  # only when asked for: it leaves no time for others
MINUTES = 9.5
KILLED_AFTER = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS / "gpu.json")
    shares = PARTS | ALONE
    parser.add_argument("--only", nargs="+", choices=shares, default=list(PARTS), help="besides the ceilings")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all parts together")
    parser.add_argument("--dry", action="store_true", help="on a CPU, a few rows")
    parser.add_argument("--part", choices=shares, help=argparse.SUPPRESS)  # be that part's process
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        return be_part(given)
    if not given.dry:
        choose_backend("gpu", probe())  # says what is missing before minutes are spent
    names = [name for name in shares if name in given.only or name == "ceilings"]
    started, total = time.time(), sum(shares[name] for name in names)
    minutes = 60.0 if given.dry else given.minutes  # where no figure means anything, all of them are wanted
    parts: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        until = started
        for name in names:
            until += 60 * minutes * shares[name] / total
            parts[name] = run_part(name, until, Path(scratch), dry=given.dry)
            print(told(name, parts[name]), flush=True)
            found = {name: part["found"] for name, part in parts.items()}
            bars = [] if given.dry else bars_of(found, names)
            written = {"dry": given.dry, "gpu": card(), "seconds": time.time() - started, "bars": bars, "parts": parts}
            write_result(given.out.stem, written, given.out.parent)
    for bar in bars:
        print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['part']}: {bar['what']}: {bar['found']}, bar {bar['bar']}")
    return int(any(failures(parts)))


def run_part(name: str, until: float, scratch: Path, *, dry: bool) -> dict[str, Any]:
    """One part in a process of its own, and the clocks meanwhile."""
    out, started = scratch / f"{name}.jsonl", time.time()
    call = [sys.executable, __file__, str(out), "--part", name, "--until", str(until), "--scratch", str(scratch)]
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    out.touch()
    stopped = {}
    with watched() as clocks:
        try:
            done = subprocess.run(
                [*call, *(["--dry"] if dry else [])],
                env=os.environ | {"PYTHONPATH": path},
                timeout=max(until - started, 1) + KILLED_AFTER,
                check=False,
            )
            if done.returncode:
                stopped = {"failed": f"exit status {done.returncode}"}
        except subprocess.TimeoutExpired:
            stopped = {"failed": f"stopped after {time.time() - started:.0f} s"}
    return stopped | collected(out.read_text().splitlines()) | {"seconds": time.time() - started, "clocks": clocks}


def collected(lines: Iterable[str]) -> dict[str, Any]:
    """The findings of a part by name, what it dropped, and why it failed if it did."""
    found: dict[str, Any] = {}
    dropped: list[str] = []
    failed: dict[str, str] = {}
    for line in map(json.loads, lines):
        if "dropped" in line:
            dropped.append(line["dropped"])
        elif "failed" in line:
            failed = line
        else:
            found[line["name"]] = line["found"]
    return {"found": found, "dropped": dropped} | failed


def be_part(given: argparse.Namespace) -> int:
    """Measure; an error is a finding too."""
    before = {path.stem: collected(path.read_text().splitlines())["found"] for path in given.scratch.glob("*.jsonl")}
    stage = Stage(gpu=not given.dry, until=given.until, scratch=given.scratch, out=given.out, before=before)
    try:
        import_module(f"parts.{given.part}").measure(stage)
    except Exception:  # noqa: BLE001 - the other parts are still worth measuring
        stage.fail(traceback.format_exc())
        return 1
    return 0


def told(name: str, part: Mapping[str, Any]) -> str:
    """A line for the terminal, and one for each finding that failed."""
    ending, inside = part.get("failed", ""), list(failures(part["found"]))
    counts = f"{len(part['found'])} findings, {len(part['dropped'])} dropped"
    line = f"{'FAILED' if ending or inside else 'done  '} {name}: {part['seconds']:.0f} s, {counts} {ending}".rstrip()
    return "\n".join([line, *(f"       {one}" for one in inside)])


if __name__ == "__main__":
    sys.exit(main())
