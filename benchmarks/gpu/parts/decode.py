"""Parquet decoded, beside what the host link carries: codecs, KvikIO's threads and task sizes, compatibility mode.

KvikIO reads its settings once, so each pair of them has a process of its own. In compatibility mode it reads through
the host's page cache; without it, where the file system and driver have GPUDirect Storage, past it.
"""

from __future__ import annotations

from pathlib import Path

from stage import Stage, lines_of
from table import files_of

ROWS, CODECS = 4_000_000, ["snappy", "zstd"]
# Threads, MiB of a task, compatibility mode; KvikIO's defaults of threads and size come first.
SETTINGS = [
    *((4, 4, "ON"), (4, 4, "OFF"), (8, 4, "ON"), (8, 4, "OFF"), (8, 16, "OFF")),
    *((1, 4, "OFF"), (16, 4, "OFF"), (1, 4, "ON"), (16, 4, "ON")),
]


def measure(stage: Stage) -> None:
    rows = stage.rows(ROWS)
    folder = stage.scratch / "table"
    for codec in CODECS:
        files = files_of(folder, rows, codec)
        stage.tell(f"{codec} file", {"rows": rows, "bytes": sum(path.stat().st_size for path in files)})
    stage.tell("gpudirect_storage", Path("/proc/driver/nvidia-fs").exists())
    for threads, mib, mode in SETTINGS if stage.gpu else SETTINGS[:1]:
        name = f"{threads} threads, tasks of {mib} MiB, compatibility mode {mode.lower()}"
        if not stage.room(name, 12):
            continue
        environ = {"KVIKIO_NTHREADS": str(threads), "KVIKIO_TASK_SIZE": str(mib << 20), "KVIKIO_COMPAT_MODE": mode}
        arguments = [str(folder), str(rows), *([] if stage.gpu else ["--dry"])]
        until = min(stage.until, stage.until - stage.left() + 30)
        for found in lines_of("decoding.py", arguments, until, environ):
            if "codec" in found:
                link = stage.before.get("ceilings", {}).get("host_link", {}).get("gb_per_s")
                share = {} if link is None else {"share_of_host_link": found["gb_per_s"] / link}
                stage.tell(f"{found['codec']}, {name}", found | share)
            else:
                stage.tell(name, found)
