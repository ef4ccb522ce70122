"""The doctor's small pipeline, by the GPU twin on stand-ins."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

from gpupipe.backend.columns import Backend
from gpupipe.cli.doctor import Verdict
from gpupipe.cli.warm_up import warm_up


@pytest.mark.parametrize("has_cuml", [True, False])
def test_the_small_pipeline_runs(has_cuml: bool, rehearsed_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_cuml:
        monkeypatch.setattr("gpupipe.cli.warm_up.this_machine", lambda: SimpleNamespace(libraries={}))
        monkeypatch.setitem(sys.modules, "cuml.cluster", None)
        monkeypatch.setitem(sys.modules, "cuml.decomposition", None)
    row = warm_up("gpu")
    assert row.verdict is Verdict.OK, row.value
