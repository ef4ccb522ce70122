"""Loader state: the position of an iteration, as it is saved and restored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpupipe.errors import BadConfig

__all__ = ["Position", "restore", "to_state"]


@dataclass(frozen=True, slots=True)
class Position:
    """Position of the next batch.

    Args:
        epoch: from 0.
        batch: its number in the epoch, from 0.
    """

    epoch: int = 0
    batch: int = 0


def to_state(position: Position, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position, and what the order of the epoch depends on, as plain numbers and strings.

    Example:
        >>> to_state(Position(1, 5), {"seed": 7})
        {'epoch': 1, 'batch': 5, 'seed': 7}
    """
    return {"epoch": position.epoch, "batch": position.batch, **identity}


def restore(state: Mapping[str, Any], identity: Mapping[str, Any]) -> Position:
    """Return the position in a state; in the middle of an epoch all else must be unchanged.

    Raises:
        BadConfig: it is not, or the state is invalid.

    Example:
        >>> restore({"epoch": 1, "batch": 0, "seed": 7}, {"seed": 8})
        Position(epoch=1, batch=0)
    """
    known = isinstance(state, Mapping)
    epoch, batch = (state.get("epoch"), state.get("batch")) if known else (None, None)
    if not (isinstance(epoch, int) and isinstance(batch, int) and min(epoch, batch) >= 0):
        raise BadConfig(
            "Loader.load_state_dict",
            "this is no state of a loader",
            got=dict(state) if known else state,
            expected="what state_dict() gave",
            remedy="loader.load_state_dict(saved['loader'])",
        )
    then = {name: value for name, value in state.items() if name not in ("epoch", "batch")}
    if batch and then != identity:
        names = [name for name in {**identity, **then} if identity.get(name) != then.get(name)]
        raise BadConfig(
            "Loader.load_state_dict",
            f"the state is from the middle of an epoch with another {' and '.join(names)}",
            got={name: then.get(name) for name in names},
            expected=f"{ {name: identity.get(name) for name in names} }, or a state from the beginning of an epoch",
            remedy="a loader like the one that was saved, or loader.set_epoch(n) to begin an epoch anew",
        )
    return Position(epoch, batch)
