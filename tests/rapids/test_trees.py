"""nvForest on a CPU, where it runs too, reads the trees that are written for a GPU; the names it has there."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

nvforest = pytest.importorskip("nvforest", reason="nvForest is not installed here")

from gpupipe.models.booster import read_booster, write_booster  # noqa: E402
from gpupipe.models.forest import make_forest  # noqa: E402
from gpupipe.models.xgboost_fit import make_predictor  # noqa: E402
from tests.models.test_booster import OUTPUTS, grow  # noqa: E402


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What streams of a GPU are asked, which the CPU is here."""
    calls: list[str] = []
    own = SimpleNamespace(synchronize=lambda: calls.append("torch's is synchronized"))
    default = SimpleNamespace(wait_stream=lambda other: calls.append("CuPy's waits") if other is own else None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: own)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: default)
    return calls


@pytest.mark.parametrize("task", OUTPUTS)
def test_nvforest_gives_the_margins_of_xgboost(task: str, waits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    booster, layout, values = grow(task, max_depth=4)
    load = nvforest.load_model

    def load_on_cpu(file: Any, *, device: str, **options: Any) -> Any:
        assert device == "gpu" and options["device_id"] == 0
        model = load(file, device="cpu", **options)
        on_gpu = inspect.signature(getattr(nvforest, type(model).__name__.replace("CPU", "GPU")).predict)
        return SimpleNamespace(predict=lambda rows: on_gpu.bind(None, rows) and model.predict(rows))

    monkeypatch.setattr(nvforest, "load_model", load_on_cpu)
    predict = make_forest(read_booster(booster.save_raw("json")), layout, torch.device("cuda", 0))
    margins = predict(torch.from_numpy(values))
    wanted = booster.inplace_predict(values, predict_type="margin").reshape(len(values), layout.outputs)
    np.testing.assert_allclose(margins.numpy(), wanted, rtol=0, atol=4e-6)
    assert waits == ["torch's is synchronized", "CuPy's waits"]


def test_margins_of_xgboost_are_copied_before_cupy_frees_them(
    waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    booster, layout, values = grow("multiclass")
    margins = booster.inplace_predict(values, predict_type="margin")
    there = SimpleNamespace(load_model=lambda _: None, inplace_predict=lambda *_, predict_type: margins)
    monkeypatch.setattr("gpupipe.models.xgboost_fit.xgb.Booster", lambda _: there)
    predict = make_predictor(write_booster(read_booster(booster.save_raw("json")), layout), torch.device("cuda", 0))
    copied = predict(torch.from_numpy(values))
    assert copied.tolist() == margins.tolist() and copied.data_ptr() != margins.__array_interface__["data"][0]
    assert waits == ["torch's is synchronized", "CuPy's waits"]
