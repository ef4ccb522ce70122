"""Execution of Polars plans: by its streaming engine or cudf-polars, in buckets if larger than memory."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from gpupipe.backend import is_device_error, is_out_of_device_memory
from gpupipe.backend.arrow import arrow_from_polars, get_arrow_types
from gpupipe.cluster.executor import get_executor
from gpupipe.errors import BackendMissing, OutOfDeviceMemory, PlanFailed
from gpupipe.files import ScratchFolder, writing_scratch
from gpupipe.io.relational.gathering import Gathered, PreparedPlan, count_batch_rows, get_memory_limit, is_cut
from gpupipe.io.relational.scan import STEP, Scan, explain_failure, number, random_bits
from gpupipe.io.stores import one_line
from gpupipe.progress import Progress
from gpupipe.schema import ROW, Field
from gpupipe.support.forks import require_threads

Plan = Callable[..., pl.LazyFrame]  # what is made of the rows of some scans: of all of them, or of those of a bucket
Cut = Callable[[int], Sequence[pl.Expr]]
"""Given how many buckets there are, for each scan the number of the bucket that a row goes to."""

_SHARE = 2
_TIMES = 3  # memory of a sort or a join as a multiple of its rows; measured: 60 million rows of 65 bytes took 9 GB
_MOST_BUCKETS = 128  # each has a file open while rows are put into them
_UNKNOWN = 1 << 62
_BUCKET = "⟨bucket⟩"
_log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class PlannedRun(PreparedPlan):
    """Plan over all rows of some scans, ready to run."""

    plan: Plan
    scans: Sequence[Scan]
    fields: Sequence[Field]
    backend: str
    title: str
    cut: Cut | None  # of rows that exceed a share of the memory; None for a plan that holds few rows at a time
    check: Callable[[pl.LazyFrame], None] = lambda _: None  # raises an error where rows of the result are wrong
    is_rowwise: bool = False
    """Whether each row is made alone: files are read a row group at a time, where Polars reads five ahead."""

    def gather(self) -> Gathered:
        if self.backend == "cpu":
            return super().gather()
        result, num_buckets = Gathered(self.fields), self._num_buckets()
        num_bytes = _estimate_bytes(self.scans) // num_buckets
        with self._plans(num_buckets) as plans:
            result_bytes = sum(scan.num_bytes for scan in self.scans)
            progress = Progress(plans, self.title, leave=False)
            if num_buckets == 1:
                for plan in progress:
                    _import_gpu_engine().run(result, plan, num_bytes, result_bytes)
            else:
                _import_gpu_engine().gather(result, progress, num_bytes, result_bytes)
            try:
                self.check(result.lazy())
            except BaseException:
                result.discard()
                raise
        return result

    def batches(self) -> Generator[pa.Table]:
        if not get_executor().in_process:
            _log_once(
                f"{self.title}: the program itself runs it, with all its threads; the workers of a cluster take no part"
            )
        types, rows = get_arrow_types(self.fields), count_batch_rows(self.fields)
        with self._plans(self._num_buckets()) as plans:
            yield types.empty_table()  # there may be no batch
            frames = (frame for plan in plans for frame in _batches(plan, rows))
            for frame in Progress(frames, self.title, count_rows=len, unit=" batches", leave=False):
                self.check(frame.lazy())
                yield arrow_from_polars(frame, types)

    def _num_buckets(self) -> int:
        return count_buckets(self.scans, self.backend) if self.cut is not None else 1

    @contextmanager
    def _plans(self, num_buckets: int) -> Iterator[Iterable[pl.LazyFrame]]:
        """Yield the plan over all rows, or one for each bucket; remove the temporary files if one fails."""
        names = [item.name for item in self.fields]

        def build(frames: Iterable[pl.LazyFrame]) -> pl.LazyFrame:
            return self.plan(*frames).select(names)

        require_threads(self.title)
        if self.backend == "gpu":
            _import_gpu_engine().refuse(build(scan.frame for scan in self.scans), self.title)
        with ExitStack() as on_failure, ExitStack() as buckets, explain_failure(self.scans, self.title):
            for scan in self.scans:
                on_failure.callback(scan.discard)
            frames: Iterable[Iterable[pl.LazyFrame]] = [[scan.frame for scan in self.scans]]
            if self.is_rowwise and self.scans[0].pieces:
                frames = zip(self.scans[0].pieces, strict=True)
            elif self.cut is not None and num_buckets > 1:
                _log.info("%s: the rows exceed the memory and are cut into %d buckets", self.title, num_buckets)
                folder = buckets.enter_context(ScratchFolder()).path
                frames = _write_buckets(self.scans, self.cut(num_buckets), num_buckets, folder)
            yield map(build, frames)
            on_failure.pop_all()


@dataclass(frozen=True)
class ZippedRuns(PreparedPlan):
    """Columns of the same rows by two runs on the CPU, zipped batch by batch."""

    left: PlannedRun
    right: Callable[[], Generator[pa.Table]]
    fields: Sequence[Field]

    def batches(self) -> Generator[pa.Table]:
        types = get_arrow_types(self.fields)
        with closing(self.left.batches()) as left, closing(self.right()) as right:
            yield types.empty_table()
            remainder = pa.table({})
            for table in left:
                start = 0
                while start < table.num_rows:
                    while not remainder.num_rows:
                        remainder = next(right)
                    both = table.slice(start, remainder.num_rows)
                    columns = both.columns + remainder.slice(0, both.num_rows).columns
                    yield pa.Table.from_arrays(columns, schema=types)
                    start, remainder = start + both.num_rows, remainder.slice(both.num_rows)


def run(
    plan: Plan, scans: Sequence[Scan], fields: Iterable[Field], backend: str, title: str, cut: Cut | None
) -> Gathered:
    """Run a plan over all rows of some scans now and gather the result; see `PlannedRun`."""
    return PlannedRun(plan, scans, list(fields), backend, title, cut).gather()


def count_buckets(scans: Sequence[Scan], backend: str) -> int:
    """Count the buckets that rows are cut into; 1 if they fit in the memory of the host.

    On a GPU, whose engine spills, rows are cut only where that has failed: see `cut_on_failure`.
    """
    if backend == "gpu" and not is_cut.get():
        return 1
    limit = get_memory_limit() if backend == "cpu" else _import_gpu_engine().memory()
    return max(1 if backend == "cpu" else 2, min(-(-_estimate_bytes(scans) // limit), _MOST_BUCKETS))


def collect(plan: pl.LazyFrame, scans: Sequence[Scan], title: str) -> pl.DataFrame:
    """Run a plan with a small result on the host."""
    require_threads(title)
    with explain_failure(scans, title):
        return plan.collect(engine="streaming")


def collect_batches(plan: pl.LazyFrame, rows: int, backend: str, title: str) -> Iterator[pl.DataFrame]:
    """Run a plan of unknown size and yield its result in batches; on a CPU, of about this many rows."""
    require_threads(title)
    with explain_failure([], title):
        if backend == "cpu":
            yield from Progress(_batches(plan, rows), title, count_rows=len, unit=" batches", leave=False)
        else:
            _import_gpu_engine().refuse(plan, title)
            yield _import_gpu_engine().collect(plan, _UNKNOWN)


def sink(plan: pl.LazyFrame, where: str, text: Path, path: Path, backend: str, group_rows: int) -> None:
    """Run a plan that parses a text file, and write its rows, in order, to a temporary Parquet file."""
    with writing_scratch(path.parent):
        if backend == "cpu":
            plan.sink_parquet(path, engine="streaming", compression="lz4", row_group_size=group_rows)
            return
        _import_gpu_engine().refuse(plan, "read")
        try:
            _import_gpu_engine().write(plan, group_rows, _TIMES * text.stat().st_size, path)
        except pl.exceptions.PolarsError as error:
            raise _find_device_fault(where, error) or error from error.__cause__
        if path.is_dir():
            _join_files(path, group_rows)


def _find_device_fault(where: str, error: Exception) -> Exception | None:
    """Return the error for a failure of the host's memory, the device or its memory; None for a bad value."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else RuntimeError(str(error))
    if is_out_of_device_memory(cause):
        problem = f"the device has not enough memory to parse it ({one_line(cause)})"
        remedy = "backend='cpu' where it is read, or the text in several files"
        return OutOfDeviceMemory(where, problem, expected="memory for the text and its rows", remedy=remedy)
    if isinstance(cause, MemoryError):
        return cause
    if not is_device_error(cause):
        return None
    problem = f"the device failed while the text was parsed ({one_line(cause)})"
    remedy = "the program started again, or backend='cpu' where it is read"
    return PlanFailed(where, problem, expected="a device that works", remedy=remedy)


def _join_files(folder: Path, group_rows: int) -> None:
    """Merge the files that an engine wrote into a folder into one."""
    files = [pq.ParquetFile(file) for file in sorted(folder.rglob("*.parquet"))]
    draft = folder.with_suffix(".draft")
    with pq.ParquetWriter(draft, files[0].schema_arrow, compression="lz4") as writer:
        for file in files:
            for batch in file.iter_batches(group_rows):
                writer.write_batch(batch, row_group_size=group_rows)
    shutil.rmtree(folder)
    draft.replace(folder)


def _estimate_bytes(scans: Sequence[Scan]) -> int:
    return _TIMES * _SHARE * sum(scan.num_bytes for scan in scans)


def _import_gpu_engine() -> Any:
    """Import the GPU engines; a plan that they cannot run raises an error and never falls back to the CPU."""
    if find_spec("cudf_polars") is None:
        where, problem = "verbs over whole tables", "backend='gpu' needs cudf-polars, which is not installed"
        remedy = "pip install 'gpupipe[cuda13]', or backend='cpu' where the table is read"
        raise BackendMissing(where, problem, expected="cudf-polars of the same release as cuDF", remedy=remedy)
    return import_module("gpupipe.io.relational.gpu_engine")


def _batches(plan: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
    # What two branches of a plan scan would be held whole for the slower one.
    flags = pl.QueryOptFlags(comm_subplan_elim=False)
    return plan.collect_batches(chunk_size=rows, maintain_order=True, engine="streaming", optimizations=flags)


def _write_buckets(
    scans: Sequence[Scan], cut: Sequence[pl.Expr], num_buckets: int, scratch: Path
) -> Iterator[list[pl.LazyFrame]]:
    """Write the rows to buckets on disk, and yield the scans of each bucket in turn."""
    folders = [scratch / str(index) for index in range(len(scans))]
    for scan, folder, bucket in zip(scans, folders, cut, strict=True):
        target = pl.PartitionBy(folder, key={_BUCKET: bucket}, include_key=False, approximate_bytes_per_file=None)
        with writing_scratch(scratch):
            scan.frame.sink_parquet(target, mkdir=True, engine="streaming", compression="lz4", statistics=False)
    for bucket_number in range(num_buckets):
        yield [_scan_bucket(scan, folder, bucket_number) for scan, folder in zip(scans, folders, strict=True)]


def _scan_bucket(scan: Scan, folder: Path, number: int) -> pl.LazyFrame:
    files = sorted(folder.glob(f"*={number}/*.parquet"))
    return pl.scan_parquet(files, glob=False, hive_partitioning=False) if files else scan.frame.clear()


@cache
def _log_once(text: str) -> None:
    _log.info("%s", text)


_SAMPLES_PER_BUCKET = 1000
_SAMPLE = 2


def assign_ranges(scan: Scan, by: Sequence[str], ascending: Sequence[bool], num_buckets: int) -> pl.Expr:
    """Assign rows to ranges of about equal size; rows with equal keys share one."""
    sample = _draw_sample(scan, by, _SAMPLES_PER_BUCKET * num_buckets)
    sample = sample.sort(by, descending=[not up for up in ascending], nulls_last=True)
    places = [sample.height * bucket // num_buckets for bucket in range(1, num_buckets)] if sample.height else []
    cuts = [_not_before(list(zip(by, row, ascending, strict=True))) for row in sample[places].rows()]
    return pl.sum_horizontal(pl.lit(0, pl.Int64), *(cut.cast(pl.Int64) for cut in cuts))


def has_many_groups(scan: Scan, keys: Sequence[str], backend: str) -> bool:
    """Return whether the groups may exceed the memory: fewer than half of a sample's rows repeat others."""
    if count_buckets([scan], backend) == 1:
        return False
    sample = _draw_sample(scan, keys, 10 * _SAMPLES_PER_BUCKET)
    return sample.n_unique() > sample.height // 2


def hash_keys(keys: Sequence[str]) -> pl.Expr:
    """Hash the keys of a row together."""
    hashes = (pl.col(key).hash(number) for number, key in enumerate(keys))
    return reduce(lambda total, value: (total * number(STEP)) ^ value, hashes)


def assign_hashes(keys: Sequence[str], num_buckets: int, *, missing_meet: bool = False) -> pl.Expr:
    """Assign rows to buckets by a hash of their keys; by row id where a key is missing, unless `missing_meet`."""
    alone = pl.lit(value=False) if missing_meet else pl.any_horizontal(pl.col(key).is_null() for key in keys)
    bits = pl.when(alone).then(pl.col(ROW).hash()).otherwise(hash_keys(keys))
    return (bits % number(num_buckets)).cast(pl.Int64)


def _draw_sample(scan: Scan, columns: Sequence[str], num_rows: int) -> pl.DataFrame:
    """Draw a sample of about this many rows by their row ids."""
    share = min(1.0, num_rows / max(1, scan.num_rows))
    is_drawn = random_bits(_SAMPLE, pl.col(ROW)) // number(1 << 11) < number(int(share * 2**53))
    return collect(scan.frame.filter(is_drawn).select(columns), [scan], "sample")


def _not_before(parts: list[tuple[str, Any, bool]]) -> pl.Expr:
    """Compare a row's keys with these values: whether they are equal or later; missing values come last."""
    (name, value, up), *remainder = parts
    key = pl.col(name)
    if value is None:
        same, after = key.is_null(), pl.lit(value=False)
    else:
        same = key.eq_missing(value)
        after = key.is_null() | (key > value if up else key < value)
    return after | (same & (_not_before(remainder) if remainder else pl.lit(value=True)))
