"""A suite whose GPU cases were skipped does not pass for one that ran them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_too_few_cases_on_a_gpu_fail_the_run() -> None:
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*call, "tests/backend/test_dates.py", "--gpu-cases", "100000"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cases passed on a GPU, at least 100000 are asked for" in done.stdout
    assert " passed" in done.stdout and " failed" not in done.stdout
