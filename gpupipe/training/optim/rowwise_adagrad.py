"""Row-wise Adagrad for large embedding tables: updates only the rows of a batch, in tensors of fixed shapes.

A dense gradient of a table of V rows is V rows to write and, with AdamW, seven times that to read and write: 20 GB a
step for 10 million rows of 64. A gradient of the rows looked up has as many entries as the batch has ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

# 32 B of traffic a value make 8 us at 4 TB/s: a tenth of a captured step of a small network.
TABLE = 1 << 20


def is_table(parameter: nn.Parameter) -> bool:
    """Return whether a dense update of an embedding costs too much."""
    return parameter.ndim == 2 and parameter.numel() >= TABLE


class RowWise(AdamW):
    """Row-wise optimizer: AdamW, and row-wise Adagrad for tables (FBGEMM's `EXACT_ROWWISE_ADAGRAD`).

    h_i = h_i + mean_d(g_id^2); w_i = w_i - lr g_i / (sqrt(h_i) + eps), for the rows i that were looked up.

    Args:
        params: groups; those with `"table": True` have gradients of single rows (`use_sparse_gradients`).
        lr: 0-d on the parameters' device, written to in place.
        eps: of both.

    Memory:
        4 bytes per row of a table; of the others two moments.
    """

    def __init__(self, params: Any, lr: Tensor, eps: float = 1e-8) -> None:
        super().__init__(params, lr=lr, eps=eps, fused=True, capturable=lr.is_cuda)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure: it would be called outside a graph
        """Update all parameters that have a gradient."""
        tables = [(group, p) for group in self.param_groups if group.get("table") for p in group["params"]]
        gradients = [parameter.grad for _, parameter in tables]
        for _, parameter in tables:
            parameter.grad = None  # AdamW leaves alone what has no gradient
        super().step()
        for (group, parameter), gradient in zip(tables, gradients, strict=True):
            parameter.grad = gradient
            if gradient is not None:
                self._move(parameter, gradient, group)

    def _move(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())  # which AdamW looks for when a state is loaded
            state["squares"] = torch.zeros(len(parameter), dtype=parameter.dtype, device=parameter.device)
        rows, values = get_entries(gradient)
        bad = getattr(self, "found_inf", None)
        if bad is not None:
            values = torch.where(bad > 0, 0.0, values)
        squares = state["squares"].index_add_(0, rows, values.square().mean(1))
        length = squares.index_select(0, rows).sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, values / length[:, None] * -group["lr"])


def get_entries(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row numbers and values of a sparse gradient, of which several may be of one row.

    `indices()` and `values()` need `coalesce()`, for which the host waits; torch documents these for all others.
    """
    return gradient._indices()[0], gradient._values()  # noqa: SLF001


def add_gradients(parameters: Sequence[nn.Parameter], others: Sequence[Tensor | None]) -> None:
    """Add gradients of the same parameters to those they have."""
    mine: list[Tensor] = []
    theirs: list[Tensor] = []
    for parameter, other in zip(parameters, others, strict=True):
        gradient = parameter.grad
        if gradient is None:
            parameter.grad = other
        elif other is not None and other.is_sparse:
            (rows, values), (more_rows, more_values) = get_entries(gradient), get_entries(other)
            rows, values = torch.cat([rows, more_rows]), torch.cat([values, more_values])
            parameter.grad = torch.sparse_coo_tensor(rows[None], values, gradient.shape, check_invariants=False)
        elif other is not None:
            mine.append(gradient)
            theirs.append(other)
    if mine:
        torch._foreach_add_(mine, theirs)


def compact(gradient: Tensor) -> Tensor:
    """Sum a sparse gradient's entries of the same row into one, without changing the number of entries.

    `coalesce()` drops the entries it does not need, and the host waits to know how many; here they stay, as zeros.

    Args:
        gradient: sparse V x D, as an embedding's backward pass makes it, with n entries.

    Memory:
        Three times the n x D values meanwhile.
    """
    rows, values = get_entries(gradient)
    rows, order = rows.sort()
    values = values.index_select(0, order)
    new = torch.cat([rows.new_zeros(min(len(rows), 1)), (rows[1:] != rows[:-1]).long()])
    slot = new.cumsum(0)
    sums = torch.zeros_like(values).index_add_(0, slot, values)
    # Slots no row has need have sums of 0: they add nothing to row 0.
    ids = torch.zeros_like(rows).scatter_(0, slot, rows)
    return torch.sparse_coo_tensor(ids[None], sums, gradient.shape, check_invariants=False)


def find_dense_tables(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Find the large trained tables, by name, of modules with a switch `sparse` that is off."""
    return [
        (f"{name}.{own}".lstrip("."), table)
        for name, module in _with_tables(model)
        for own, table in module.named_parameters(recurse=False)
        if is_table(table) and table.requires_grad
    ]


def _with_tables(model: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, module)
        for name, module in model.named_modules()
        if getattr(module, "sparse", None) is False and any(map(is_table, module.parameters(recurse=False)))
    ]


@contextmanager
def use_sparse_gradients(model: nn.Module) -> Iterator[None]:
    """Switch modules with a large table and a `sparse` flag (as nn.Embedding has) to sparse gradients inside."""
    modules = [module for _, module in _with_tables(model)]
    for module in modules:
        module.sparse = True
    try:
        yield
    finally:
        for module in modules:
            module.sparse = False
