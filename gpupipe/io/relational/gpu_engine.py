"""Engines of cudf-polars: in the memory of a GPU, streaming through it, or on the GPUs of a cluster's workers.

They take device memory from RMM's current resource, whoever set it: the limit during training stays in force, and a
user's own resource is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import rmm
from cudf_polars.dsl.translate import Translator
from cudf_polars.engine.dask import DaskEngine
from cudf_polars.engine.hardware_binding import HardwareBindingPolicy
from cudf_polars.engine.options import StreamingOptions
from cudf_polars.engine.spmd import SPMDEngine
from cudf_polars.utils.config import MemoryResourceConfig
from distributed import Client

from gpupipe.backend import is_out_of_device_memory, select
from gpupipe.backend.arrow import arrow_from_polars
from gpupipe.cluster.cluster import Cluster
from gpupipe.cluster.executor import get_executor
from gpupipe.config import settings
from gpupipe.errors import GpupipeError, PlanFailed
from gpupipe.io.relational.gathering import Gathered, get_table_limit
from gpupipe.schema import is_passenger

_CURRENT = MemoryResourceConfig(qualname="rmm.mr.get_current_device_resource")
_SPILLED_FROM = 0.8
_ALL = 1 << 62  # more bytes than any device has
Result = TypeVar("Result")
_log = logging.getLogger("gpupipe")
_before_the_engine: list[Any] = []  # the resource of a cluster's worker while the engine's own is current there


def refuse(plan: pl.LazyFrame, title: str) -> None:
    """Check that cudf-polars supports every operation of a plan, before anything runs."""
    translator = Translator(plan._ldf.visit(), pl.GPUEngine(executor="in-memory"))  # noqa: SLF001 - as cudf-polars does
    translator.translate_ir()
    if translator.errors:
        problem, expected = "cudf-polars does not run all its operations on a GPU", "operations that it translates"
        got = "; ".join(sorted({str(error) for error in translator.errors}))
        raise PlanFailed(title, problem, got=got, expected=expected, remedy="backend='cpu' where the table is read")


def memory() -> int:
    """Count the bytes that a plan may use: device memory, unlimited with a cluster's engine, which spills by itself.

    `memory_limit` is the most.
    """
    free = _free_memory() if get_executor().in_process else 1 << 62
    return min(settings().memory_limit or free, free)


def run(result: Gathered, plan: pl.LazyFrame, num_bytes: int, result_bytes: int) -> None:
    """Run a plan that uses about this many bytes: in the device's memory, where its result stays, or streaming.

    What runs out of memory runs again by the engine that streams: joins and lists may make more than the estimate.
    """
    if get_executor().in_process and not any(is_passenger(item.dtype) for item in result.fields):
        frame = _try_in_memory(lambda: select("gpu").run_plan(plan, result.fields), num_bytes)
        if frame is not None:
            result.take_frame(frame)
            return
        num_bytes = _ALL
    gather(result, [plan], num_bytes, result_bytes)


def gather(result: Gathered, plans: Iterable[pl.LazyFrame], num_bytes: int, result_bytes: int) -> None:
    """Run plans one after the other, and gather their results in the host's memory or in files."""
    if result_bytes <= get_table_limit() or any(is_passenger(item.dtype) for item in result.fields):
        result.gather(arrow_from_polars(collect(plan, num_bytes), result.types) for plan in plans)
        return
    for plan in plans:
        result.take_files(partial(write, plan, result.group_rows, num_bytes))


def write(plan: pl.LazyFrame, group_rows: int, num_bytes: int, path: Path) -> None:
    """Write the result of a plan that uses about this many bytes; engines that stream write a folder of files."""
    sink = plan.sink_parquet(path, compression="lz4", row_group_size=group_rows, lazy=True)
    collect(sink, num_bytes, path)


def collect(plan: pl.LazyFrame, num_bytes: int, path: Path | None = None) -> pl.DataFrame:
    """Run a plan that uses about this many bytes; a sink, which writes to `path`, returns an empty frame."""
    executor = get_executor()
    with _convert_errors():
        if isinstance(executor, Cluster):
            return executor.call_all(partial(_collect_on_workers, plan))
        frame = _try_in_memory(lambda: _collect_in_memory(plan), num_bytes)
        if frame is None:
            if path is not None:
                path.unlink(missing_ok=True)
            with SPMDEngine.from_options(_build_options(memory())) as engine:
                frame = plan.collect(engine=engine)
        return _count_transfer(frame)


def _collect_in_memory(plan: pl.LazyFrame) -> pl.DataFrame:
    resource = rmm.mr.get_current_device_resource()
    return plan.collect(engine=pl.GPUEngine(executor="in-memory", memory_resource=resource, raise_on_fail=True))


def _try_in_memory(run: Callable[[], Result], num_bytes: int) -> Result | None:
    """Run what uses about this many bytes; None if the device has not as many, or they do not suffice."""
    with _convert_errors():
        if num_bytes > memory():
            return None
        try:
            return run()
        except (MemoryError, RuntimeError) as cause:
            if not is_out_of_device_memory(cause):
                raise
            _log.info("a plan is out of memory in the device and runs again, streaming: %s", cause)
    return None  # the error is gone, and with it the device memory that its traceback held


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert the errors of RMM and cuDF, which Polars passes on, to Polars' own."""
    try:
        yield
    except GpupipeError:
        raise
    except (MemoryError, RuntimeError) as cause:
        raise pl.exceptions.ComputeError(f"{type(cause).__name__}: {cause}") from cause


def _count_transfer(frame: pl.DataFrame) -> pl.DataFrame:
    """Count a result, which Polars hands over on the host."""
    if frame.width:
        select("gpu").transfers.add(int(frame.estimated_size()))
    return frame


def _collect_on_workers(plan: pl.LazyFrame, client: Client) -> pl.DataFrame:
    free = client.run(_lend)  # each worker's memory resource, which the engine replaces
    try:
        with DaskEngine.from_options(_build_options(min(free.values())), dask_client=client) as engine:
            return plan.collect(engine=engine)
    finally:
        client.run(_take_back)


def _lend() -> int:
    free = _free_memory()
    _before_the_engine.append(rmm.mr.get_current_device_resource())
    return free


def _take_back() -> None:
    if _before_the_engine:  # a worker that was started again has lent nothing
        rmm.mr.set_current_device_resource(_before_the_engine.pop())
        select("gpu").trim()


def _free_memory() -> int:
    """Release the backend's cached memory, and return the bytes that RMM's current resource may still allocate."""
    backend = select("gpu")
    backend.make_room(0)
    return backend.free_bytes()


def _build_options(limit: int) -> StreamingOptions:
    return StreamingOptions(
        spill_device_limit=str(int(limit * _SPILLED_FROM)),
        memory_resource_config=_CURRENT,
        hardware_binding=HardwareBindingPolicy(enabled=False),  # of the whole process, for good
        fallback_mode="silent",
        raise_on_fail=True,
    )
