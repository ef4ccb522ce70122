"""Prediction by nvForest, RAPIDS' library for trees on a GPU, where it is installed. Not yet run on a GPU."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gpupipe.files import ScratchFolder
from gpupipe.models.booster import Layout, copy_margins, write_margins


def make_forest(arrays: Mapping[str, Tensor], layout: Layout, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Make a function from B x `width` float32 on a GPU to B x `outputs` margins, of checked arrays."""
    nvforest, forests = importlib.import_module("nvforest"), []
    with ScratchFolder() as scratch, warnings.catch_warnings():
        # nvForest holds an older Treelite than the one it is installed with.
        warnings.filterwarnings("ignore", message=r"(?s).*originated from a newer Treelite version")
        file = scratch.path / "model.json"
        for text in write_margins(arrays, layout):
            file.write_bytes(text)
            forests.append(nvforest.load_model(file, model_type="xgboost_json", device="gpu", device_id=device.index))

    def predict(matrix: Tensor) -> Tensor:
        torch.cuda.current_stream(device).synchronize()  # nvForest's stream waits for nobody
        return copy_margins([forest.predict(matrix) for forest in forests], device)

    return predict
