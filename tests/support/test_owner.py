"""Who made a temporary file, and whether that process has ended."""

from __future__ import annotations

import os
import subprocess
import sys

from gpupipe.support.owner import is_owner_gone, name_owner


def test_a_process_that_runs_is_there_and_one_that_ended_is_gone() -> None:
    code = "from gpupipe.support.owner import name_owner; print(name_owner())"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert is_owner_gone(f".run.{ended}-0123abcd.tmp")
    assert not is_owner_gone(f".run.{name_owner()}-0123abcd.tmp")


def test_a_number_that_another_process_has_now_is_no_proof() -> None:
    machine, process, start = name_owner().split("-")
    assert is_owner_gone(f"{machine}-{process}-{int(start) - 1}")
    assert not is_owner_gone(f"{int(machine, 16) ^ 1:08x}-{process}-{int(start) - 1}")
    assert not is_owner_gone(f"{machine}-{process}-{start}") and process == str(os.getpid())


def test_other_names_tell_nothing() -> None:
    assert not any(map(is_owner_gone, ["", "gpupipe-a8f3", ".run.0123abcd.tmp", f"00000000-{10**30}-1"]))
