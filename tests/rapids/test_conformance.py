"""What the GPU code asks of RAPIDS exists there and takes what it is given (RAPIDS 26.10's wheels, no GPU)."""

from __future__ import annotations

import ast
import copy
from contextvars import ContextVar
from logging import Logger
from pathlib import Path

import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import polars as pl
import pyarrow as pa
import pylibcudf as plc
import rmm
from cudf import CategoricalDtype, ListDtype
from cudf.core.accessors.lists import ListMethods
from cudf_polars import containers
from cudf_polars.dsl.ir import IRExecutionContext

import gpupipe
from gpupipe.backend import Backend, Column, RawColumn
from gpupipe.backend.columns import ParquetLayout, Transfers
from gpupipe.backend.fused.switch import FusedRows
from gpupipe.schema import Field
from tests.project.benchmark_scripts import benchmark_script

from .conformance import RECEIVERS, attributes_of_values, report_on, users_of_rapids

PACKAGE = Path(gpupipe.__file__).parent
FILES = [*users_of_rapids(PACKAGE), *users_of_rapids(PACKAGE.parent / "benchmarks" / "gpu")]
GPU = ast.parse(next(path for path in FILES if path.name == "gpu.py").read_text())
ENGINE = ast.parse(next(path for path in FILES if path.name == "gpu_engine.py").read_text())
KEYWORDS = [(tree, which) for tree in (GPU, ENGINE) for which in range(len(report_on(tree).keywords))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_name_and_call_fits(path: Path) -> None:
    report = report_on(ast.parse(path.read_text()), methods=path.name in ("gpu.py", "by_hand.py"))
    assert not report.problems, "\n".join(report.problems)
    assert report.names
    assert report.unbound <= {"cuda.bindings.runtime.cudaMemPool_t"}, "no call of it is held against anything"


def test_the_backend_is_looked_at() -> None:
    assert {"cudf.read_parquet", "cuml.cluster.KMeans", "rmm.mr.LimitingResourceAdaptor"} <= report_on(GPU).names
    assert {path.name for path in FILES} >= {"gpu.py", "frames.py", "by_hand.py", "estimators.py", "gpu_engine.py"}
    assert {"cudf_polars.engine.dask.DaskEngine", "rmm.mr.get_current_device_resource"} <= report_on(ENGINE).names
    assert len(KEYWORDS) > 25


COUNTS = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource()).allocation_counts
OF_RAPIDS = (CategoricalDtype, ListDtype, ListMethods, plc.Column, plc.io.types.TableInputMetadata, type(COUNTS))
OF_RMM = [f"{name}Resource" for name in ("CudaAsyncViewMemory", "PoolMemory")]
OF_RMM += [f"{name}ResourceAdaptor" for name in ("Limiting", "Statistics")]
OF_PLANS = (containers.DataFrame, IRExecutionContext, type(pl.LazyFrame()._ldf), pl.LazyFrame, pl.DataFrame)
OF_ARROW = (pa.Table, pa.Schema, pa.Field, pa.Array, pa.LargeListType, pa.TimestampType, pa.Buffer)
OURS = (Backend, Column, RawColumn, Field, ParquetLayout, Transfers, FusedRows, Logger, ContextVar, bytes, dict)
OWNERS = (*RECEIVERS, *OF_RAPIDS, *(getattr(rmm.mr, name) for name in OF_RMM), *OF_PLANS, *OF_ARROW, *OURS)
"""Whose attributes the backend reads of values, RAPIDS' and others."""


def unknown(tree: ast.Module) -> set[str]:
    return {
        name
        for name in attributes_of_values(tree)
        if not any(hasattr(owner, name) or name in getattr(owner, "__annotations__", ()) for owner in OWNERS)
    }


def test_every_attribute_of_a_value_is_one_that_it_may_have() -> None:
    assert unknown(GPU) == set()
    source = ast.unparse(GPU)
    for name in ("get_allocated_bytes", "null_mask", "column_names", "get_cuda_stream", "current_bytes", "leaves"):
        assert unknown(ast.parse(source.replace(f".{name}", f".{name}x"))) == {f"{name}x"}


@pytest.mark.parametrize("name", ["CUDF", "POLARS", "CUML", "DASK"])
def test_the_programs_of_the_first_hour_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = getattr(benchmark_script("gpu/offline/first_hour.py", monkeypatch), name)
    assert report_on(ast.parse(program), methods=name == "CUML").problems == []


@pytest.mark.parametrize(("tree", "which"), KEYWORDS)
def test_a_misspelt_keyword_is_seen(tree: ast.Module, which: int) -> None:
    tree = copy.deepcopy(tree)
    keyword = report_on(tree).keywords[which]
    name = str(keyword.arg)
    keyword.arg = f"{name}x"
    assert any(name in problem for problem in report_on(tree).problems)  # it is unknown, or the right one is missing


@pytest.mark.parametrize(
    ("there", "misspelt"),
    [
        ("cudf.concat", "cudf.concatenate"),
        ("import PCA", "import Pca"),
        ("rmm.mr.LimitingResourceAdaptor(self._upstream, limit)", "rmm.mr.LimitingResourceAdaptor(self._upstream)"),
        ("memPoolTrimTo(self._pool, 0)", "memPoolTrimTo(self._pool)"),
        ('"open"', '"open"'),
    ],
)
def test_a_misspelt_name_or_a_missing_argument_is_seen(there: str, misspelt: str) -> None:
    source = ast.unparse(GPU)
    problems = report_on(ast.parse(source.replace(there, misspelt))).problems
    assert bool(problems) == (there != misspelt)
