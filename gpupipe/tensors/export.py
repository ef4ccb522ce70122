"""A loader's table and batches for other libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gpupipe.backend import select
from gpupipe.errors import BadConfig
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.feature_table import Block

if TYPE_CHECKING:
    from gpupipe.tensors.loader import Loader

__all__ = ["TorchBatches", "arrays_of"]


def arrays_of(block: Block, units: Callable[[Tensor], Tensor] | None = None) -> dict[str, Any]:
    """The table as NumPy (on a GPU: CuPy) arrays by name: numeric, codes, target, weight and the kept columns.

    With `units`, what they make of the target.

    Memory: shares, but for numbers stored as bfloat16 and a target in other units; NumPy's are read only.
    """
    whole = block.batch_of(block.words)
    target = whole.target if whole.target is None or units is None else units(whole.target)
    parts = {"numeric": whole.numeric, "codes": whole.codes, "target": target, "weight": whole.weight}
    return {name: _array(values) for name, values in (parts | block.keep).items() if values is not None}


class TorchBatches(IterableDataset[Any]):
    """A loader as PyTorch's own kind of dataset; made by `Loader.as_torch`.

    Args:
        loader: gives the batches.
        convert: makes of a batch what is given.
    """

    def __init__(self, loader: Loader, convert: Callable[[Batch], Any] | None = None) -> None:
        self.loader, self.convert = loader, convert

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise BadConfig(
                "Loader.as_torch",
                "batches are asked for in a worker process",
                expected="num_workers=0: batches are made in this process, which is faster than to send them",
                remedy="DataLoader(loader.as_torch(), batch_size=None, num_workers=0)",
            )
        return iter(self.loader) if self.convert is None else map(self.convert, self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See `Loader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See `Loader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Loader.load_state_dict`."""
        self.loader.load_state_dict(state)


def _array(values: Tensor) -> Any:
    if values.device.type == "cuda":
        return select("gpu").xp.from_dlpack(values.detach())
    array = values.detach().numpy()
    array.flags.writeable = False
    return array
