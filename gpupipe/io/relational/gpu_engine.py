"""Engines of cudf-polars: in the memory of a GPU, streaming through it, or on the GPUs of a cluster's workers.

They take device memory from RMM's current resource, whoever set it: the limit during training stays in force, and a
user's own resource is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

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

    `memory_limit` is the most, so that a user can have the rows cut into more buckets.
    """
    free = _free_memory() if get_executor().in_process else 1 << 62
    return min(settings().memory_limit or free, free)


def gather(found: Gathered, plans: Iterable[pl.LazyFrame], num_bytes: int, result_bytes: int) -> None:
    """Run plans one after the other and gather their results."""
    if result_bytes <= get_table_limit() or any(is_passenger(item.dtype) for item in found.fields):
        found.gather(arrow_from_polars(collect(plan, num_bytes), found.types) for plan in plans)
        return
    for plan in plans:
        found.take_files(partial(write, plan, found.group_rows, num_bytes))


def write(plan: pl.LazyFrame, group_rows: int, num_bytes: int, path: Path) -> None:
    """Write the result of a plan that uses about this many bytes; engines that stream write a folder of files."""
    sink = plan.sink_parquet(path, compression="lz4", row_group_size=group_rows, lazy=True)
    collect(sink, num_bytes, path)


def collect(plan: pl.LazyFrame, num_bytes: int, path: Path | None = None) -> pl.DataFrame:
    """Run a plan that uses about this many bytes; a sink, which writes to `path`, returns an empty frame.

    What runs out of memory runs again by the engine that streams: joins and lists may make more than the estimate.
    """
    executor = get_executor()
    try:
        if isinstance(executor, Cluster):
            return executor.call_all(partial(_collect_on_workers, plan))
        if num_bytes <= _free_memory():
            try:
                return _count_transfer(plan.collect(engine=select("gpu").plan_engine()))
            except (MemoryError, RuntimeError) as cause:
                if not is_out_of_device_memory(cause):
                    raise
                _log.info("a plan is out of memory in the device and runs again, streaming: %s", cause)
            if path is not None:
                path.unlink(missing_ok=True)
        # Here the error is gone, and with it the device memory that its traceback held.
        with SPMDEngine.from_options(_build_options(_free_memory())) as engine:
            return _count_transfer(plan.collect(engine=engine))
    except GpupipeError:
        raise
    except (MemoryError, RuntimeError) as cause:  # of RMM and cuDF, which Polars passes on
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
