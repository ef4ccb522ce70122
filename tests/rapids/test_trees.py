"""nvForest's names, where it is installed: nothing here calls it, which takes a GPU."""

from __future__ import annotations

import inspect

import pytest


def test_nvforest_reads_json_of_xgboost() -> None:
    nvforest = pytest.importorskip("nvforest", reason="nvForest is not installed here")
    inspect.signature(nvforest.load_model).bind("model.json", model_type="xgboost_json", device="gpu", device_id=0)
