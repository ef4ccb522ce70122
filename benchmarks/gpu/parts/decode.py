"""Parquet decoded, beside what the host link carries: codecs, KvikIO's threads, compatibility mode on and off.

KvikIO reads its settings once, so each pair of them has a process of its own. In compatibility mode it reads through
the host's page cache; without it, where the file system and driver have GPUDirect Storage, past it.
"""

from __future__ import annotations

from pathlib import Path

from stage import Stage, lines_of
from table import files_of

ROWS, CODECS = 4_000_000, ["snappy", "zstd"]
THREADS = [8, 1, 16]


def measure(stage: Stage) -> None:
    rows = stage.rows(ROWS)
    folder = stage.scratch / "table"
    for codec in CODECS:
        files = files_of(folder, rows, codec)
        stage.tell(f"{codec} file", {"rows": rows, "bytes": sum(path.stat().st_size for path in files)})
    stage.tell("gpudirect_storage", Path("/proc/driver/nvidia-fs").exists())
    settings = [(threads, mode) for threads in THREADS for mode in ("ON", "OFF")] if stage.gpu else [(1, "ON")]
    for threads, mode in settings:
        name = f"{threads} threads, compatibility mode {mode.lower()}"
        if not stage.room(name, 12):
            continue
        environ = {"KVIKIO_NTHREADS": str(threads), "KVIKIO_COMPAT_MODE": mode}
        arguments = [str(folder), str(rows), *([] if stage.gpu else ["--dry"])]
        until = min(stage.until, stage.until - stage.left() + 30)
        for found in lines_of("decoding.py", arguments, until, environ):
            if "codec" in found:
                link = stage.before.get("ceilings", {}).get("host_link", {}).get("gb_per_s")
                share = {} if link is None else {"share_of_host_link": found["gb_per_s"] / link}
                stage.tell(f"{found['codec']}, {name}", found | share)
            else:
                stage.tell(name, found)
