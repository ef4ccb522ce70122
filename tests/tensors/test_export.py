"""The table and its batches in other libraries' hands."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gpupipe.backend import Backend
from gpupipe.tensors import Loader

from .tables import WEIGHTED, block_of, rows_of


def test_arrays_are_views(backend: Backend) -> None:
    block = block_of(9, backend, WEIGHTED)
    arrays = Loader(block).arrays()
    assert sorted(arrays) == ["codes", "k", "numeric", "target", "weight"]
    for times, name in ((2, "numeric"), (1, "codes"), (3, "target"), (4, "weight"), (5, "k")):
        assert backend.to_host(arrays[name]).reshape(-1).tolist() == [i * times for i in range(9)]
        assert isinstance(arrays[name], backend.xp.ndarray)
    block.numeric[3, 0] = 77
    assert float(arrays["numeric"][3, 0]) == 77
    if backend.name == "cpu":
        with pytest.raises(ValueError, match="read-only"):
            arrays["numeric"][0, 0] = 1


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = property(lambda _: True)
    device = property(lambda _: torch.device("cuda"))


def test_a_table_on_a_gpu_without_rapids_comes_to_the_host() -> None:
    block = block_of(9)
    block.words = block.words.as_subclass(OnGpu)
    arrays = Loader(block).arrays()
    assert all(isinstance(values, np.ndarray) for values in arrays.values())
    assert arrays["numeric"][:, 0].tolist() == [2.0 * i for i in range(9)]


def test_halves_come_as_float32() -> None:
    arrays = Loader(block_of(9, dtype="bfloat16")).arrays()
    assert arrays["numeric"].dtype == np.float32 and arrays["numeric"][:, 0].tolist() == [2.0 * i for i in range(9)]


def test_a_stock_data_loader_gives_the_batches() -> None:
    loader = Loader(block_of(10), batch_size=4, shuffle=True)
    stock = DataLoader(loader.as_torch(), batch_size=None, num_workers=0)
    first = rows_of(stock)
    assert len(stock) == 3 and sorted(first) == list(range(10))
    assert rows_of(stock) != first, "epochs go on by themselves"
    stock.dataset.set_epoch(0)  # type: ignore[attr-defined]
    assert rows_of(stock) == first


def test_batches_in_another_form_and_taken_up_again() -> None:
    dataset = Loader(block_of(10), batch_size=4).as_torch(lambda batch: (batch.numeric, batch.target))
    batches = iter(DataLoader(dataset, batch_size=None))
    numbers, target = next(batches)
    assert isinstance(numbers, torch.Tensor) and torch.equal(numbers[:, 0] * 1.5, target)
    again = Loader(block_of(10), batch_size=4).as_torch()
    again.load_state_dict(dataset.state_dict())
    assert rows_of(again) == list(range(4, 10))


def test_worker_processes_are_refused() -> None:
    stock = DataLoader(Loader(block_of(10)).as_torch(), batch_size=None, num_workers=1, timeout=60)
    with pytest.raises(RuntimeError, match="num_workers=0"):
        list(stock)
