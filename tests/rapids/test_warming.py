"""The doctor's small pipeline, by the GPU twin on stand-ins."""

from __future__ import annotations

import pytest

pytest.importorskip("cudf", reason="the RAPIDS wheels are not installed here")

from gpupipe.backend.columns import Backend
from gpupipe.cli.doctor import Verdict
from gpupipe.cli.warm_up import warm_up


def test_the_small_pipeline_runs(rehearsed_backend: Backend) -> None:
    row = warm_up("gpu")
    assert row.verdict is Verdict.OK, row.found
