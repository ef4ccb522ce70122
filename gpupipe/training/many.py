"""Many tensors in one call: torch's `_foreach_` operations, which are documented, under names of their own.

They and the entries of sparse gradients as they are (torch's public accessors wait for the host) are named only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = [
    "add_",
    "add_gradients",
    "copy_",
    "divided",
    "entries",
    "move_towards_",
    "multiply_",
    "norms",
    "products",
    "root_",
]


def _list(tensors: Iterable[Tensor]) -> Any:
    return list(tensors)


def add_(tensors: Sequence[Tensor], others: Sequence[Tensor] | float, factor: float = 1.0) -> None:
    """tensors += factor * others, or += a number."""
    if isinstance(others, float):
        torch._foreach_add_(_list(tensors), others)
    elif others:
        torch._foreach_add_(_list(tensors), _list(others), alpha=factor)


def multiply_(tensors: Sequence[Tensor], factor: Tensor | float | Sequence[Tensor]) -> None:
    """tensors *= one factor for all, or one for each."""
    torch._foreach_mul_(_list(tensors), cast(Any, factor))


def copy_(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """tensors = others, in place."""
    torch._foreach_copy_(_list(tensors), _list(others))


def products(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """tensors * others."""
    return list(torch._foreach_mul(_list(tensors), _list(others)))  # noqa: SLF001


def divided(tensors: Sequence[Tensor], divisor: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """tensors / one divisor for all, or one for each."""
    return list(torch._foreach_div(_list(tensors), cast(Any, divisor)))  # noqa: SLF001


def root_(tensors: Sequence[Tensor]) -> None:
    """The square roots, in place."""
    torch._foreach_sqrt_(_list(tensors))


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The length of each."""
    return list(torch._foreach_norm(_list(tensors)))  # noqa: SLF001


def move_towards_(tensors: Sequence[Tensor], targets: Sequence[Tensor], share: Tensor | float) -> None:
    """tensors += share * (targets - tensors)."""
    difference: Any = torch._foreach_sub(_list(targets), _list(tensors))  # noqa: SLF001
    multiply_(difference, share)
    add_(tensors, difference)


def entries(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The row numbers and values of a sparse gradient, several for one row where it is so."""
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
            (rows, values), (more_rows, more_values) = entries(gradient), entries(other)
            rows, values = torch.cat([rows, more_rows]), torch.cat([values, more_values])
            parameter.grad = torch.sparse_coo_tensor(rows[None], values, gradient.shape, check_invariants=False)
        elif other is not None:
            mine.append(gradient)
            theirs.append(other)
    add_(mine, theirs)
