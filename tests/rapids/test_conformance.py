"""What the GPU code asks of RAPIDS exists there and takes what it is given (RAPIDS 26.10's wheels, no GPU)."""

from __future__ import annotations

import ast
import copy
from pathlib import Path

import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

import gpupipe

from .conformance import report_on, users_of_rapids

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
