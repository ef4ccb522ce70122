"""Every plan over whole tables is given to cudf-polars' translator, and run as a GPU's by Polars; no GPU is needed."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

pytest.importorskip("cudf_polars", reason="the RAPIDS wheels are not installed here")

import cudf_polars
import rmm
from cudf_polars.utils.config import ConfigOptions, StreamingFallbackMode

import gpupipe as gp
from gpupipe.backend.columns import Backend
from gpupipe.cluster.cluster import Cluster
from gpupipe.cluster.executor import use_executor
from gpupipe.errors import PlanFailed
from gpupipe.io.relational import engine, gpu_engine, group_by
from gpupipe.io.relational.scan import scan

from . import standin_plans
from .rehearsal import FREE, TOTAL
from .test_verbs import VERBS, same_frames, sample  # noqa: F401 - a fixture

PACKAGE = Path(gp.__file__).parent
SIZE = 3000
FRAME = pd.DataFrame(
    {
        "k": [None, "a", "b", "a", "c"] * (SIZE // 5),
        "n": pd.array([1, 2, None, 3] * (SIZE // 4), dtype="Int64"),
        "u": pd.array(range(SIZE), dtype="uint8" if SIZE < 256 else "uint16"),
        "x": [0.5, -0.0, None, 0.0, 2.0, -1.5] * (SIZE // 6),
        "ok": [True, False, False] * (SIZE // 3),
        "at": pd.date_range("2013-01-01", periods=SIZE // 10, freq="h").repeat(10),
    }
)
NUMBERS = ("n", "u", "x", "ok")


def grouped(function: str, column: str) -> Callable[[gp.Dataset], gp.Dataset]:
    asked: Any = (column, function, 0.9) if function == "quantile" else (column, function)
    return lambda d: d.group_by(["k", "u"] if column != "u" else "k", dropna=False).agg(found=asked)


def joined(how: str, many: bool) -> Callable[[gp.Dataset], gp.Dataset]:
    def join(data: gp.Dataset) -> gp.Dataset:
        right = data.filter("u % 7 == 0")
        right = right if many else right.deduplicate("n")
        return data.filter("u < 200").join(right, on="n", how=how, many=many)  # type: ignore[arg-type]

    return join


HOW = ("left", "inner", "right", "outer")
SOME = "n > 1 and x <= 2 and (k == 'a' or not (k < 'b')) and at >= '2013-01-02' and u in [7, 703] or isnull(x) and ok"

PLANS: dict[str, Callable[[gp.Dataset], gp.Dataset]] = {
    **{f"sort by {name}": lambda d, name=name: d.sort(name, ascending=False) for name in FRAME},
    "sort of equal rows": lambda d: d.sort(["k", "ok"], ascending=[False, True]),
    "shuffle": lambda d: d.shuffle(1),
    **{f"deduplicate by {name}": lambda d, name=name: d.deduplicate([name]) for name in FRAME},
    "the last of each": lambda d: d.deduplicate(["k", "x"], keep="last"),
    "sample": lambda d: d.sample(n=40, seed=3),
    **{
        f"{function} of {column}": grouped(function, column)
        for function in group_by._FUNCTIONS
        for column in FRAME
        if column != "k" and (column in NUMBERS or function not in group_by._OF_NUMBERS)
    },
    **{f"{how} join, many={many}": joined(how, many) for how in HOW for many in (False, True)},
    "sort of some": lambda d: d.filter(SOME).sort("k"),
    "sort of a share": lambda d: d.split(fraction=0.3, seed=2)[1].split(by="at", at="2013-01-07")[0].sort("x"),
    "concat": lambda d: gp.concat([d.filter("u < 9"), d]).sort(["u", "x"]),
    "join by value": lambda d: d.join(d.select(["x"]).deduplicate("x"), left_on="n", right_on="x"),
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for number, part in enumerate((FRAME[:1000], FRAME[1000:])):
        part.to_parquet(tmp_path / f"{number}.parquet", index=False, row_group_size=300)
    return [str(tmp_path / f"{number}.parquet") for number in range(2)]


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_translated_and_gives_what_the_cpu_gives(
    rehearsed_backend: Backend, files: list[str], name: str
) -> None:
    there, here = (PLANS[name](gp.read_parquet(files, backend=backend)).to_pandas() for backend in ("gpu", "cpu"))
    same_frames(without_lists(there), without_lists(here))


def without_lists(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.explode("found") if "found" in frame and frame["found"].map(np.ndim).any() else frame


@pytest.mark.parametrize("name", ["sort of equal rows", "the last of each", "list of x", "outer join, many=True"])
@pytest.mark.parametrize("suffices", [True, False])
def test_rows_beyond_a_gpus_memory_stream_and_are_cut_into_buckets_last(
    engines: list[Any],
    files: list[str],
    name: str,
    suffices: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = PLANS[name](gp.read_parquet(files, backend="cpu")).to_pandas()
    monkeypatch.setattr(gpu_engine, "_free_memory", lambda: 200_000)
    if not suffices:
        monkeypatch.setattr(gpu_engine, "SPMDEngine", Full)
    with caplog.at_level("INFO", "gpupipe"):
        found = PLANS[name](gp.read_parquet(files, backend="gpu")).to_pandas()
    assert ("are cut into" in caplog.text) != suffices and bool(engines) == suffices
    same_frames(without_lists(found), without_lists(wanted))


@pytest.mark.parametrize("name", ["sort by x", "first of at", "outer join, many=True", "list of k"])
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_large_result_is_written_by_the_gpu(
    engines: list[Any], files: list[str], name: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one file, or by an engine that streams as a folder of them."""
    plans: dict[str, Any] = {**PLANS, "list of k": lambda d: d.group_by("n").agg(found=("k", "list"))}
    wanted = plans[name](gp.read_parquet(files, backend="cpu")).to_pandas()

    def collect(plan: pl.LazyFrame, num_bytes: int, _: Path | None) -> pl.DataFrame:
        assert ran(plan, num_bytes).is_empty(), "nothing comes to the host"
        (path,) = scratch.rglob("*.parquet")
        if in_parts:
            frame = pl.read_parquet(path)
            path.unlink()
            path.mkdir()
            for number in range(3):
                part = frame.slice(number * 1000, 1000 if number < 2 else None)
                part.write_parquet(path / f"part.{number:06}.parquet", row_group_size=400)
        return pl.DataFrame()

    ran, scratch = gpu_engine.collect, Path(files[0]).parent / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(gpu_engine, "get_table_limit", lambda: 0)
    monkeypatch.setattr(gpu_engine, "_free_memory", lambda: 0)
    monkeypatch.setattr(gpu_engine, "collect", collect)
    data = plans[name](gp.read_parquet(files, backend="gpu"))
    same_frames(without_lists(data.to_pandas()), without_lists(wanted))
    ids = np.concatenate([partition.row_ids(np) for partition in data.partitions])
    assert ids.tolist() == list(range(len(wanted)))
    del data
    gc.collect()
    assert list(scratch.iterdir()) == []


def test_a_large_result_is_joined_by_its_time(
    engines: list[Any], files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDF writes its times as UTC, and Polars joins no such time with another."""
    monkeypatch.setattr(gpu_engine, "_free_memory", lambda: 0)
    monkeypatch.setattr(gpu_engine, "get_table_limit", lambda: 0)
    days = pd.DataFrame({"at": FRAME["at"].unique(), "day": range(FRAME["at"].nunique())})
    found, wanted = (
        gp.read_parquet(files, backend=name).sort("x").join(gp.from_frame(days, backend=name), on="at").to_pandas()
        for name in ("gpu", "cpu")
    )
    same_frames(found, wanted)


def test_every_place_that_makes_a_plan_is_tried(
    engines: list[Any],
    files: list[str],
    sample: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: set[str] = set()

    def made(self: engine.PlannedRun, plan: engine.Plan, scans: Any, fields: Any, backend: str, *rest: Any) -> None:
        caller: FrameType = sys._getframe(1)
        if caller.f_code is engine.run.__code__ and caller.f_back is not None:
            caller = caller.f_back
        if backend == "gpu":
            tried.add(f"{Path(caller.f_code.co_filename).name}: {caller.f_code.co_name}")
        init(self, plan, scans, fields, backend, *rest)

    def refuse(plan: pl.LazyFrame, title: str) -> None:
        if sys._getframe(1).f_code is engine.sink.__code__:
            caller = sys._getframe(2)
            tried.add(f"{Path(caller.f_code.co_filename).name}: {caller.f_code.co_name}")
        known(plan, title)

    known, init = gpu_engine.refuse, engine.PlannedRun.__init__
    monkeypatch.setattr(gpu_engine, "refuse", refuse)
    monkeypatch.setattr(engine.PlannedRun, "__init__", made)
    monkeypatch.setattr(gpu_engine, "_free_memory", lambda: 500_000)
    monkeypatch.setattr(gpu_engine, "SPMDEngine", Full)
    for verb in VERBS.values():
        verb(gp.read_parquet(sample, backend="gpu")).compute()
    gp.read_parquet(files, backend="gpu").write_parquet(tmp_path / "shuffled", shuffle="full")
    FRAME[:300].to_csv(tmp_path / "rows.csv", index=False)
    FRAME[:300].to_json(tmp_path / "rows.json", orient="records", lines=True, date_format="iso")
    for read, name in ((gp.read_csv, "rows.csv"), (gp.read_json, "rows.json")):
        there, here = (read(tmp_path / name, backend=backend).to_pandas() for backend in ("gpu", "cpu"))
        same_frames(there, here)
    assert tried == set(places_that_make_plans())


def places_that_make_plans() -> Iterator[str]:
    """The functions that plan a run, run a plan or sink one, for whatever backend."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imports = [
            node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == engine.__name__
        ]
        names = {name.name for node in imports for name in node.names} & {"run", "sink", "PlannedRun"}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for call in own_calls(function):
                    host_only = any(isinstance(arg, ast.Constant) and arg.value == "cpu" for arg in call.args)
                    if isinstance(call.func, ast.Name) and call.func.id in names and not host_only:
                        yield f"{path.name}: {function.name}"


def own_calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a function, but for those in functions within it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child
        if not isinstance(child, ast.FunctionDef):
            yield from own_calls(child)


def test_a_plan_that_is_not_translated_is_refused_before_it_runs(
    rehearsed_backend: Backend, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = scan(gp.read_parquet(files, backend="cpu"), ["x"], "test")
    monkeypatch.setattr(gpu_engine, "collect", None)
    with pytest.raises(PlanFailed) as caught:
        engine.run(lambda f: f.with_columns(pl.col("x").ewm_mean(com=1)), [rows], rows.fields, "gpu", "means", None)
    assert caught.value.where == "means" and "ewm" in str(caught.value.got).lower()


@pytest.mark.parametrize(
    "cause",
    [
        MemoryError("std::bad_alloc: out_of_memory: RMM failure at: x.hpp: Exceeded memory limit"),
        RuntimeError("CUDF failure at: gather.cu:40"),
        OSError("No space left on device"),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_what_fails_on_the_device_names_the_verb_and_leaves_nothing(
    engines: list[Any], files: list[str], cause: Exception, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        for folder in scratch.iterdir():
            (folder / "half.parquet").touch()
        raise cause

    scratch = Path(files[0]).parent / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(cudf_polars, "execute_with_cudf", lambda plan, _, config: plan.set_udf(fail))
    monkeypatch.setattr(standin_plans.Node, "evaluate", lambda *_, **__: fail())
    if large:
        monkeypatch.setattr(gpu_engine, "get_table_limit", lambda: 0)
        monkeypatch.setattr(gpu_engine, "_free_memory", lambda: 200_000)
    with pytest.raises(PlanFailed) as caught:
        gp.read_parquet(files, backend="gpu").sort("x").compute()
    assert caught.value.where == "sort" and str(cause)[:12] in caught.value.problem
    assert list(scratch.iterdir()) == []


def test_a_memory_limit_is_the_most_that_plans_use(engines: list[Any]) -> None:
    assert gpu_engine.memory() == FREE - TOTAL // 10
    gp.configure(memory_limit=1 << 30)
    assert gpu_engine.memory() == 1 << 30


def test_a_file_that_is_written_says_what_is_missing(rehearsed_backend: Backend, tmp_path: Path) -> None:
    """Who reads it may count on it, whatever cuDF writes by itself."""
    gpu_engine.write(pl.LazyFrame({"x": [1, None, 3]}), 10, 1, tmp_path / "a.parquet")
    assert pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(0).statistics.null_count == 1


def test_a_users_plan_is_run_by_the_gpu(engines: list[Any], files: list[str]) -> None:
    plan = pl.scan_parquet(files).filter(pl.col("u") < 50).group_by("k").agg(pl.col("x").sum()).sort("k")
    found = gp.from_polars(plan, backend="gpu").to_pandas()
    same_frames(found, gp.from_polars(plan, backend="cpu").to_pandas())
    assert len(engines) == 1
    with pytest.raises(PlanFailed):
        gp.from_polars(plan.with_columns(pl.col("x").ewm_mean(com=1)), backend="gpu")
    lazy = gp.read_parquet(files, backend="gpu").to_polars()
    gpu_engine.refuse(lazy, "to_polars")
    assert lazy.collect().height == SIZE


# whose memory ---------------------------------------------------------------------------------------------------------
class StandIn(pl.GPUEngine):
    """An engine that streams: sets RMM's resource to its own, which takes memory from the one it is told."""

    puts_back = True
    made: ClassVar[list[Any]] = []

    @classmethod
    def from_options(cls, options: Any, dask_client: Any = None) -> Any:
        executor = {**options.to_executor_options(), "min_device_size": TOTAL}
        made = cls(executor="streaming", executor_options=executor, **options.to_engine_options())
        made.options = options  # type: ignore[attr-defined]
        return made

    def __enter__(self) -> Any:
        self.before = gpu_engine.rmm.mr.get_current_device_resource()
        config = ConfigOptions.from_polars_engine(self)
        assert config.memory_resource_config is not None
        self.upstream = config.memory_resource_config.create_memory_resource()
        assert self.upstream is self.before
        assert config.raise_on_fail and config.executor.fallback_mode == StreamingFallbackMode.SILENT
        gpu_engine.rmm.mr.set_current_device_resource(self)
        self.made.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self.puts_back:
            gpu_engine.rmm.mr.set_current_device_resource(self.before)


class Full(StandIn):
    """An engine whose spilling does not suffice."""

    def __enter__(self) -> Any:
        raise MemoryError("std::bad_alloc: out_of_memory: RMM failure at: x.hpp: Exceeded memory limit")


class OnWorkers(StandIn):
    puts_back = False


class Client:
    """A client of one worker, which is this process."""

    def run(self, function: Callable[[], Any]) -> dict[str, Any]:
        return {"worker": function()}


@pytest.fixture
def engines(rehearsed_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(gpu_engine, "SPMDEngine", StandIn)
    monkeypatch.setattr(gpu_engine, "DaskEngine", OnWorkers)
    monkeypatch.setattr(rmm.mr, "get_current_device_resource", gpu_engine.rmm.mr.get_current_device_resource)
    monkeypatch.setattr(StandIn, "made", [])
    return StandIn.made


def current() -> Any:
    return gpu_engine.rmm.mr.get_current_device_resource()


def test_a_small_table_is_worked_on_in_memory_from_the_current_resource(
    engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[pl.GPUEngine] = []
    monkeypatch.setattr(pl.LazyFrame, "collect", lambda _, engine: seen.append(engine) or pl.DataFrame())
    gpu_engine.collect(pl.LazyFrame({"x": [1]}), 1 << 30)
    (engine_used,) = seen
    config = ConfigOptions.from_polars_engine(engine_used)
    assert config.executor.name == "in-memory" and config.raise_on_fail
    assert engine_used.memory_resource is current() and current().limit == FREE - TOTAL // 10
    assert not engines


def test_a_large_table_streams_and_spills_within_the_limit(engines: list[Any]) -> None:
    before = current()
    found = gpu_engine.collect(pl.LazyFrame({"x": [1]}), 1 << 50)
    assert found.rows() == [(1,)]
    (engine_used,) = engines
    assert engine_used.upstream.limit == before.limit == FREE - TOTAL // 10
    assert int(engine_used.options.spill_device_limit) == int(before.limit * 0.8)
    assert not engine_used.options.hardware_binding.enabled
    assert current() is engine_used.before, "the limited pool again"


@pytest.mark.parametrize("name", ["sort by x", "outer join, many=True"])
def test_a_plan_that_is_out_of_memory_is_run_again_by_the_engine_that_streams(
    engines: list[Any],
    files: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("std::bad_alloc: out_of_memory: RMM failure at: x.hpp: Exceeded memory limit")

    wanted = PLANS[name](gp.read_parquet(files, backend="cpu")).to_pandas()
    monkeypatch.setattr(standin_plans.Node, "evaluate", fail)
    with caplog.at_level("INFO", "gpupipe"):
        found = PLANS[name](gp.read_parquet(files, backend="gpu")).to_pandas()
    assert engines and "out of memory" in caplog.text
    same_frames(found, wanted)


def test_half_a_file_is_removed_before_the_engine_that_streams_writes_it(
    engines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pl.LazyFrame.collect

    def in_memory_fails(plan: pl.LazyFrame, engine: Any = "auto", **options: Any) -> pl.DataFrame:
        frame = run(plan, engine=engine, **options)
        if isinstance(engine, StandIn):
            return frame
        assert list(tmp_path.iterdir())
        raise MemoryError("std::bad_alloc: out_of_memory: RMM failure at: x.hpp: Exceeded memory limit")

    class Streams(StandIn):
        def __enter__(self) -> Any:
            assert not list(tmp_path.iterdir()), "half a file would be in the way"
            return super().__enter__()

    monkeypatch.setattr(gpu_engine, "SPMDEngine", Streams)
    monkeypatch.setattr(pl.LazyFrame, "collect", in_memory_fails)
    gpu_engine.write(pl.LazyFrame({"x": [1, 2]}), 10, 1, tmp_path / "a.parquet")
    assert engines and pq.read_table(tmp_path / "a.parquet").num_rows == 2


@pytest.mark.parametrize("own", [True, False], ids=["our resource", "a user's"])
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("on_workers", [True, False])
def test_the_resource_is_there_again_afterwards(
    engines: list[Any], own: bool, fails: bool, on_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = gp.backend.select("gpu")
    if not own:
        monkeypatch.setattr(backend, "_is_limited", False)
        monkeypatch.setattr(gpu_engine.rmm.mr, "current", object())
    plan = pl.LazyFrame({"x": ["a" if fails else "1"]}).with_columns(pl.col("x").cast(pl.Int64))
    cluster = Cluster.__new__(Cluster)
    monkeypatch.setattr(cluster, "call_all", lambda function: function(Client()), raising=False)
    with use_executor(cluster if on_workers else None):
        before = None if own else current()
        if fails:
            with pytest.raises(pl.exceptions.PolarsError):
                gpu_engine.collect(plan, 1 << 50)
        else:
            assert gpu_engine.collect(plan, 1 << 50).rows() == [(1,)]
    (engine_used,) = engines
    assert type(engine_used) is (OnWorkers if on_workers else StandIn)
    assert current() is engine_used.before and (own or current() is before)
    assert not own or current().limit == FREE - TOTAL // 10


def test_a_cluster_of_gpus_takes_a_table_of_any_size(engines: list[Any]) -> None:
    with use_executor(Cluster.__new__(Cluster)):
        assert gpu_engine.memory() > 1 << 60
        gp.configure(memory_limit=1 << 30)
        assert gpu_engine.memory() == 1 << 30
