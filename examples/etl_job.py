"""A job that makes features of flights and writes them to a folder: a file to copy and change.

    python etl_job.py data/flights.parquet features --pipeline runs/pipeline --metrics metrics.json

The first run learns and saves the pipeline; later ones load it, so that every day's files are treated alike. The same
call again goes on where the last one stopped, and writes nothing where all is done.

Exit codes: 0 done; 1 a fault of the program; 2 input or settings to be mended; 75 the cluster was lost, try again; 130
Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import ClusterLost, GpupipeError

log = logging.getLogger("etl")


def learn(flights: gp.Dataset) -> gp.Pipeline:
    """Make features of a table: the part to change."""
    features = gp.Features(
        (["dep_delay", "distance"], [pre.SimpleImputer(), pre.StandardScaler()]),
        (["carrier", "origin", "dest"], pre.Categorify(min_frequency=20)),
        ["night"],
        target="arr_delay > 15",
        keep=["flight", "time_hour"],
    )
    return gp.Pipeline([T.Derive(night="hour < 6 or hour >= 22")], features).fit(flights)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Run the job; return the figures to report."""
    flights = gp.read_parquet(given.input, partition_bytes=given.partition_bytes)
    with gp.Cluster(n_workers=given.workers) if given.workers else nullcontext():
        if (given.pipeline / "manifest.json").is_file():
            pipeline = gp.load(given.pipeline).pipeline
            log.info("pipeline of %s", given.pipeline)
        else:
            pipeline = learn(flights)
            gp.save(given.pipeline, pipeline)
            log.info("learned: %s", pipeline.fit_report)
        manifest = pipeline.transform(flights).write_parquet(given.output)
    log.info("%s", manifest)
    return {
        "rows_in": manifest.rows_in,
        "rows_out": manifest.rows_out,
        "parts": len(manifest.parts),
        "parts_before": manifest.num_done,
        "skipped": [note.file for note in manifest.notes],
    }


class Stopped(BaseException):
    """SIGTERM: a scheduler wants the machine back."""


def stop(*_: object) -> NoReturn:
    """Leave as after Ctrl-C: threads end with their partition, what is written stays for the next call."""
    raise Stopped


def main(arguments: list[str] | None = None) -> int:
    """Run the job, write its metrics whatever happens, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", help="Parquet file, folder, pattern or URL")
    parser.add_argument("output", help="folder or URL")
    parser.add_argument("--pipeline", type=Path, required=True, help="folder of the pipeline; made if it is not there")
    parser.add_argument("--metrics", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 is the threads of this one")
    parser.add_argument("--partition-bytes", type=int, default=None, help="smaller needs less memory")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    signal.signal(signal.SIGTERM, stop)

    started, metrics = time.time(), {}
    code, status = 1, "failed"
    try:
        metrics = run(given)
        code, status = 0, "done"
    except (Stopped, KeyboardInterrupt) as cause:
        code, status = (143 if isinstance(cause, Stopped) else 130), "stopped"
        log.warning("stopped; the same call goes on")
    except GpupipeError as cause:
        code = 75 if isinstance(cause, ClusterLost) else 2
        metrics = {"error": str(cause)}
        log.error("%s", cause)  # noqa: TRY400 - says what to do; the traceback adds nothing
    except Exception as cause:
        metrics = {"error": repr(cause)}
        log.exception("a fault")
    finally:
        metrics |= {"status": status, "exit_code": code, "started": started, "seconds": time.time() - started}
        draft = given.metrics.with_name(given.metrics.name + ".draft")
        draft.write_text(json.dumps(metrics, indent=1) + "\n")
        draft.replace(given.metrics)  # who reads it sees the old one or the new one
    return code


if __name__ == "__main__":  # needed: workers import this file
    sys.exit(main())
