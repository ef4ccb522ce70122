"""Run a plan of Polars: by its streaming engine, a bucket of rows at a time where they exceed the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
from tqdm import tqdm

from gpupipe.cluster import active
from gpupipe.errors import BackendMissing, GpupipeError, PlanFailed
from gpupipe.io.damage import one_line
from gpupipe.io.relational.gathering import Gathered, arrow_of, memory
from gpupipe.io.relational.scan import Scan
from gpupipe.schema import Field
from gpupipe.scratch import ScratchFolder, writing_scratch

__all__ = ["Cut", "Plan", "batches_of", "buckets_of", "collect", "engine_of", "run", "sink"]

Plan = Callable[..., pl.LazyFrame]
"""What is made of the rows of some scans: of all of them, or of those of a bucket."""
Cut = Callable[[int], Sequence[pl.Expr]]
"""Given how many buckets there are, for each scan the number of the bucket that a row goes to."""

_SHARE = 2
_TIMES = 3
"""What a sort or a join takes beside its rows, in their own bytes; measured: 60 million rows of 65 bytes took 9 GB."""
_MOST_BUCKETS = 128
"""Each has a file open while rows are put into them."""
_BUCKET = "⟨bucket⟩"
_log = logging.getLogger("gpupipe")


def run(
    plan: Plan, scans: Sequence[Scan], fields: Iterable[Field], backend: str, title: str, cut: Cut | None
) -> Gathered:
    """Run a plan over all rows of some scans.

    Args:
        plan: given a lazy frame for each scan, makes that of the result.
        scans: the rows.
        fields: the columns of the result.
        backend: `"cpu"` or `"gpu"`.
        title: of the progress bar, and for messages.
        cut: where the rows exceed a share of the memory, the buckets they are put into first; the results of the
            buckets, in their order, make up the whole result. None for a plan that holds few rows at a time.

    Raises:
        PlanFailed: the engine cannot run the plan, or failed.
        BadFile: a file is not what it was, or cannot be read.

    Memory: three times the rows, up to half of the host's free memory or of `memory_limit`; on disk, beyond that, the
        rows and the result.
    """
    if not active().in_process:
        _log_once(f"{title}: the program itself runs it, with all its threads; the workers of a cluster take no part")
    found = Gathered(list(fields))
    num_buckets = buckets_of(scans) if cut is not None else 1
    frames: Iterator[pl.DataFrame]
    if cut is None or num_buckets == 1:
        frames = _batches(plan(*(one.frame for one in scans)), found.group_rows, backend)
    else:
        _log.info("%s: the rows exceed the memory and are cut into %d buckets", title, num_buckets)
        frames = _by_bucket(plan, scans, cut, num_buckets, found.group_rows, backend)
    with _explained(scans, title):
        found.gather(arrow_of(frame, found.types) for frame in tqdm(frames, title, disable=None, leave=False))
    return found


def buckets_of(scans: Sequence[Scan]) -> int:
    """Decide into how many buckets rows are cut; 1 where they fit in memory."""
    return max(1, min(-(-_TIMES * sum(one.num_bytes for one in scans) * _SHARE // memory()), _MOST_BUCKETS))


def collect(plan: pl.LazyFrame, scans: Sequence[Scan], title: str) -> pl.DataFrame:
    """Run a plan whose result is small, on the host.

    Raises:
        PlanFailed, BadFile: see `run`.
    """
    with _explained(scans, title):
        return plan.collect(engine="streaming")


def batches_of(plan: pl.LazyFrame, rows: int, title: str) -> Iterator[pl.DataFrame]:
    """Run a plan on the host whose result comes in batches of about so many rows.

    Raises:
        PlanFailed: see `run`.
    """
    with _explained([], title):
        yield from tqdm(_batches(plan, rows, "cpu"), title, disable=None, leave=False)


def sink(plan: pl.LazyFrame, path: Path, backend: str, group_rows: int) -> None:
    """Run a plan and write its rows, in their order, to a temporary Parquet file.

    Raises:
        BackendMissing: see `engine_of`.
        BadFile: the disk is full, or the folder is gone.
        polars.exceptions.PolarsError: the plan failed.
    """
    with writing_scratch(path.parent):
        plan.sink_parquet(path, engine=engine_of(backend), compression="lz4", row_group_size=group_rows)


def engine_of(backend: str) -> Any:
    """Choose the engine; that of a GPU raises an error that names the operation rather than go on with the CPU.

    Raises:
        BackendMissing: the engine of a GPU is not installed.

    Example:
        >>> engine_of("cpu")
        'streaming'
    """
    if backend == "cpu":
        return "streaming"
    if find_spec("cudf_polars") is None:
        raise BackendMissing(
            "verbs over whole tables",
            "backend='gpu' needs cudf-polars, which is not installed",
            expected="cudf-polars of the same release as cuDF",
            remedy="pip install 'gpupipe[cuda13]', or backend='cpu' where the table is read",
        )
    return pl.GPUEngine(raise_on_fail=True)


def _batches(plan: pl.LazyFrame, rows: int, backend: str) -> Iterator[pl.DataFrame]:
    engine = engine_of(backend)
    if engine == "streaming":
        yield from plan.collect_batches(chunk_size=rows, maintain_order=True, engine=engine)
    else:
        yield plan.collect(engine=engine)


def _by_bucket(
    plan: Plan, scans: Sequence[Scan], cut: Cut, num_buckets: int, rows: int, backend: str
) -> Iterator[pl.DataFrame]:
    scratch = ScratchFolder()
    folders = [scratch.path / str(number) for number in range(len(scans))]
    for one, folder, bucket in zip(scans, folders, cut(num_buckets), strict=True):
        target = pl.PartitionBy(folder, key={_BUCKET: bucket}, include_key=False, approximate_bytes_per_file=None)
        with writing_scratch(scratch.path):
            one.frame.sink_parquet(target, mkdir=True, engine="streaming", compression="lz4", statistics=False)
    for number in range(num_buckets):
        parts = [_bucket(one, folder, number) for one, folder in zip(scans, folders, strict=True)]
        yield from _batches(plan(*parts), rows, backend)


def _bucket(one: Scan, folder: Path, number: int) -> pl.LazyFrame:
    files = sorted(path for path in folder.glob(f"*={number}/*.parquet"))
    if not files:
        return one.frame.clear()
    return pl.scan_parquet(files, glob=False, hive_partitioning=False)


@contextmanager
def _explained(scans: Sequence[Scan], title: str) -> Iterator[None]:
    """Say what failed: a file, which is found by a second look, or the plan."""
    try:
        yield
        for one in scans:
            one.check()
    except GpupipeError:
        raise
    except (pl.exceptions.PolarsError, OSError) as cause:
        for one in scans:
            one.check()
            one.look()
        raise PlanFailed(
            title,
            f"the engine could not run it ({type(cause).__name__}: {one_line(cause)})",
            expected="memory and disk for the rows, and operations that the engine knows",
            remedy="gp.configure(memory_limit=...) to cut the rows into more buckets",
        ) from cause


@cache
def _log_once(text: str) -> None:
    _log.info("%s", text)
