"""Every network is exported with a number of rows that is not fixed, and gives what it gives by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from gpupipe.models import MLP, FTTransformer
from gpupipe.tensors.batch import Batch, Ragged

from .test_networks import CARDINALITIES, NUMERIC, SMALL


class OfTensors(torch.nn.Module):
    """A network called with plain tensors, as an exported program is."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, numeric: Tensor, codes: Tensor, values: Tensor | None = None, offsets: Tensor | None = None
    ) -> Any:
        lists = {} if values is None or offsets is None else {"words": Ragged(values, offsets)}
        return self.model(Batch(numeric, codes, lists=lists))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("outputs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_network_is_exported_with_any_number_of_rows(name: str, outputs: int, rows: Any) -> None:
    cls, options = SMALL[name]
    model = OfTensors(cls(NUMERIC, CARDINALITIES, outputs, **options)).eval()
    some, count = rows(5), Dim("rows")
    program = torch.export.export(model, (some.numeric, some.codes), dynamic_shapes=({0: count}, {0: count}))
    for number in (1, 2, 5, 64):
        batch = rows(number)
        with torch.no_grad():
            wanted = model(batch.numeric, batch.codes)
        torch.testing.assert_close(program.module()(batch.numeric, batch.codes), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [MLP, FTTransformer])
def test_lists_of_any_length_are_exported(cls: Any, rows: Any) -> None:
    options = {"hidden": (8,)} if cls is MLP else {"dim": 8, "heads": 2}
    model = OfTensors(cls(NUMERIC, CARDINALITIES, 1, lists={"words": 9}, **options)).eval()

    def inputs(count: int) -> tuple[Tensor, ...]:
        batch = rows(count)
        offsets = torch.arange(count + 1) * 3 // 2
        return batch.numeric, batch.codes, torch.arange(int(offsets[-1]), dtype=torch.int32) % 9, offsets

    count, length = Dim("rows"), Dim("values")
    program = torch.export.export(
        model, inputs(6), dynamic_shapes=({0: count}, {0: count}, {0: length}, {0: count + 1})
    )
    for number in (2, 6, 33):
        with torch.no_grad():
            wanted = model(*inputs(number))
        torch.testing.assert_close(program.module()(*inputs(number)), wanted)
