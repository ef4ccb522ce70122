"""Prediction by nvForest, RAPIDS' library for trees on a GPU, where it is installed. Not yet run on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from gpupipe.files import ScratchFolder
from gpupipe.models.booster import Layout, write_margins


def make_forest(arrays: Mapping[str, Tensor], layout: Layout, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Make a function from B x `width` float32 on a GPU to margins, of checked arrays."""
    nvforest = importlib.import_module("nvforest")
    with ScratchFolder() as scratch:
        file = scratch.path / "model.json"
        file.write_bytes(write_margins(arrays, layout))
        forest = nvforest.load_model(file, model_type="xgboost_json", device="gpu", device_id=device.index)

    def predict(matrix: Tensor) -> Tensor:
        torch.cuda.current_stream(device).synchronize()  # nvForest's stream waits for nobody
        return from_dlpack(forest.predict(matrix))

    return predict
