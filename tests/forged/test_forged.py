"""Files made to deceive: whatever is changed in them, they are read or an error of ours says what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpupipe.errors import BadFile
from tests.forged import __main__ as forged
from tests.forged.kinds import KINDS, Case

ROOT = Path(__file__).parents[2]
ARTIFACTS = ["Numbers", "Texts", "Intervals", "Decisions", "Checkpoint"]
FILES = [kind for kind in KINDS if kind not in ARTIFACTS]


def check(folder: Path, first: int, last: int, *kinds: str) -> None:
    """Read the files of these seeds in another process, which must neither die nor hang nor raise another error."""
    command = [sys.executable, "-m", "tests.forged", str(folder), str(first), str(last), *kinds]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert not [fault for _, faults in outcomes.values() for fault in faults]
    for kind, (counts, _) in outcomes.items():
        crashes = counts.pop("known", 0)
        assert crashes < 0.005 * (last - first) if kind == "Parquet" else not crashes
        assert counts["refused"] > counts["read"] > 0 and counts["refused"] + counts["read"] + crashes == last - first


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [ARTIFACTS, FILES], ids=["artifacts", "files"])
def test_damaged_files_are_read_or_refused(tmp_path: Path, kinds: list[str]) -> None:
    check(tmp_path, 0, 2000, *kinds)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(2000, 50_000, 4000))
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_files_are_read_or_refused(tmp_path: Path, kind: str, first: int) -> None:
    check(tmp_path, first, first + 4000, kind)


class Faulty(Case):
    """A reader with every fault there is."""

    def write(self) -> None:
        (self.whole / "a.txt").write_text("a")

    def read_whole(self) -> None: ...

    def damage(self, seed: int) -> Path:
        self.seed = seed
        return super().damage(seed)

    def read(self) -> None:
        match self.seed:
            case 0:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 1:
                {}["x"]
            case 2:
                raise BadFile("a.txt", "damaged", expected="a file", remedy="another")
            case 3:
                b"x" * (128 << 20)
            case 4:
                time.sleep(60)


@pytest.mark.filterwarnings("ignore:This process")  # of Python 3.12, on forks and threads
@pytest.mark.slow
def test_every_fault_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forged, "MOST_SECONDS", 10.0)
    monkeypatch.setattr(forged, "MOST_GROWTH", 50 << 20)
    counts, faults = forged.run(Faulty, tmp_path, 0, 6)
    assert counts == {"refused": 1, "read": 1}
    died, raised, grown, hung = faults
    assert died.startswith("Faulty 0: died, -11") and "Segmentation fault" in died
    assert raised.startswith("Faulty 1: Traceback") and "KeyError: 'x'" in raised
    assert re.fullmatch(r"Faulty 3: \d{3} MiB more", grown)
    assert hung.startswith("Faulty 4: died, -6") and "in read" in hung
