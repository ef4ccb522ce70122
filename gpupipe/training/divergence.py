"""What to say, and where to look, when a loss is no longer finite.

Nothing is asked of the device for it while all goes well: the epoch's sum of losses shows it at the next look, and a
counter beside the sum says at which batch it began. Then there is time to find out why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadData
from gpupipe.training.capture import CursorBatches
from gpupipe.training.checkpoints import Checkpoints, find
from gpupipe.training.rows import move, num_rows
from gpupipe.training.run import Run

__all__ = ["ON_DIVERGENCE", "ROLLBACKS", "SLOWER", "Diverged", "explained", "look"]

ON_DIVERGENCE = ("raise", "rollback")
ROLLBACKS = 3
SLOWER = 0.1
"""What the learning rate is multiplied by at each rollback."""

logger = logging.getLogger(__name__)


class Diverged(BadData):
    """A fit whose loss is not finite.

    Attributes:
        slowed: what rollbacks had multiplied its schedule by.
        unclear: whether the batch does not show why.
    """

    slowed: float = 1.0
    unclear: bool = True


def look(run: Run, since: int) -> float | None:
    """The epoch's mean loss so far; None where no weight was counted. The host waits for the device.

    Args:
        run: under way.
        since: the epoch's batches that had been looked at before.

    Raises:
        BadData: it is not finite. The batch is named, with its rows where they are the reason.
    """
    where = f"Trainer.fit, epoch {run.epoch}, batches {since + 1} to {run.step_in_epoch}"
    try:
        return run.update.losses.read(where)
    except BadData as seen:
        if isinstance(run.train, CursorBatches):
            run.train = run.train.loader  # batches to look into
        number = min(int(run.update.losses.of_all()[2]) + 1, run.step_in_epoch)  # of the batch, from 1
        batch = run.batch_at(number)
        found = None if batch is None else _not_finite(batch, getattr(run.train, "schema", None))
        in_rows = _first_of_all(run, "" if found is None else _of_rows(run, number, *found))
        reason = in_rows or _of_weights(run)
        where = f"Trainer.fit, {run.place(number)}"
        problem = f"the loss is not finite: {reason}"
        error = Diverged(where, problem, got=seen.got, expected=seen.expected, remedy=seen.remedy)
        error.slowed, error.unclear = run.slowed, not in_rows
        raise error from None


def _first_of_all(run: Run, found: str) -> str:
    """What the first rank has found that has found something."""
    return next(filter(None, run.together.gather(found)), "")


def _of_rows(run: Run, number: int, name: str, rows: Tensor) -> str:
    known = getattr(run.train, "row_numbers", None)
    if known is not None:
        rows = known(run.epoch - 1, number - 1).cpu()[rows]
    told = ", ".join(map(str, rows[:5].tolist())) + (" ..." if len(rows) > 5 else "")
    whose = "rows" if known is not None else "of the batch the rows"
    return f"its batch has values in {name} that are not finite ({whose} {told})"


def _of_weights(run: Run) -> str:
    bad = [name for name, weight in run.model.named_parameters() if not weight.isfinite().all()]
    if not bad:
        return "its features, its target and the weights are finite"
    more = f" and of {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"its features and target are finite, the weights of {bad[0]!r}{more} are not"


def _not_finite(batch: Any, schema: Any) -> tuple[str, Tensor] | None:
    """The first tensor of the batch that holds such values, by name, and their rows."""
    if not is_dataclass(batch):
        return None
    for field in fields(batch):
        values = getattr(batch, field.name)
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.isfinite().all():
            continue
        places = (~values.isfinite()).nonzero().cpu()
        name = field.name
        if name == "numeric" and schema is not None:
            name = f"column {schema.numeric[int(places[0, 1])].name!r}"
        return name, torch.unique(places[:, 0])
    return None


@contextmanager
def explained(run: Run, checkpoints: Checkpoints | None) -> Iterator[None]:
    """Where the fit inside diverges for no reason its batch shows, go back to the last checkpoint and look for it.

    The model is left as it was just before.

    Args:
        run: the fit.
        checkpoints: where it saves.
    """
    try:
        yield
    except Diverged as error:
        if checkpoints is None or not error.unclear:
            raise
        folder = Path(checkpoints.folder)
        found = run.together.from_first(lambda: find(folder))
        if found is None:
            raise
        path, state, _ = found
        slowed = run.slowed
        run.load_state_dict(state)
        run.scale_rates(slowed=slowed)
        logger.warning("the loss is not finite: repeating what followed %s to find out why", path)
        cause = replay(run)
        if cause:
            where = f"Trainer.fit, {run.place(run.step_in_epoch)}"
            better = Diverged(where, cause, got=error.got, expected=error.expected, remedy=error.remedy)
            better.slowed = slowed
            raise better from None
        raise


def replay(run: Run) -> str:
    """Where a run that stands before the trouble gets into it: each gradient is looked at; the host waits every time.

    Args:
        run: at its last checkpoint.
    """
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    run.model.train()
    for _ in run.epochs():
        if not run.step_in_epoch:
            run.update.losses.reset()
        for batch in run.batches():
            run.step_in_epoch += 1
            if num_rows(batch):
                run.update.learn(move(batch, run.device))
            bad = [names[id(p)] for p in run.update.parameters if p.grad is not None and not p.grad.isfinite().all()]
            more = f" and of {len(bad) - 1} more" if len(bad) > 1 else ""
            found = f"the gradient of {bad[0]!r}{more} is not finite" if bad else ""
            if found := _first_of_all(run, found):
                return found
            if run.completes_update:
                run.update.step()
    return ""
