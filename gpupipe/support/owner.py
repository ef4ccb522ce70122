"""Names that tell which process made a temporary file, so that what a killed one left can be removed.

5f3a9c01-4242-881234: the machine and its namespace of processes, the process, and when it was started. A number is
given to another process sooner or later, but not to one that was started at the same time.
"""

from __future__ import annotations

import os
import platform
import re
import zlib
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"([0-9a-f]{8})-([0-9]+)-([0-9]+)")


def name_owner() -> str:
    """Return the name of this process."""
    return f"{_name_machine()}-{os.getpid()}-{_find_start(os.getpid())}"


def is_owner_gone(name: str) -> bool:
    """Return whether a file's name tells of a process of this machine that has ended; else somebody may need it."""
    parts = _NAME.search(name)
    if parts is None or parts[1] != _name_machine():
        return False
    process = int(parts[2])
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _find_start(process) != int(parts[3])


def _name_machine() -> str:
    """Return a name of the machine; containers of one host name have different ones."""
    space = ""
    with suppress(OSError):  # Linux alone has them
        space = str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(f'{platform.node()} {space}'.encode()):08x}"


def _find_start(process: int) -> int:
    """Return when a process was started, in ticks since the machine was; 0 where the system does not tell."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    return 0
