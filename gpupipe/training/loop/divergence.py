"""Error of a loss that is not finite: epoch, batch and rows.

The epoch's sum of losses shows it at the next log, and a counter on the device says at which batch it began, so a
healthy run costs no extra read of the device.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from gpupipe.errors import BadData
from gpupipe.training.cuda.cuda_graph import CursorBatches
from gpupipe.training.loop.train_state import TrainState


def check_loss(run: TrainState, since: int) -> float | None:
    """Read the epoch's mean loss so far; None where no weight was counted. The host waits for the device.

    Args:
        run: under way.
        since: the epoch's batches that were checked before.

    Raises:
        BadData: it is not finite. The batch is named, with its rows where they are the reason.
    """
    where = f"Trainer.fit, epoch {run.epoch}, batches {since + 1} to {run.step_in_epoch}"
    try:
        return run.update.losses.read(where)
    except BadData as seen:
        if isinstance(run.train, CursorBatches):
            run.train = run.train.loader  # batches to look into
        number = min(int(run.update.losses.sum_over_ranks()[2]) + 1, run.step_in_epoch)  # of the batch, from 1
        batch = run.batch_at(number)
        found = None if batch is None else _find_nonfinite(batch, getattr(run.train, "schema", None))
        in_rows = "" if found is None else _describe_rows(run, number, *found)
        reason = next(filter(None, run.ranks.gather(in_rows)), "") or _describe_weights(
            run
        )  # of the first rank with one
        raise BadData(
            f"Trainer.fit, {run.locate(number)}",
            f"the loss is not finite: {reason}",
            got=seen.got,
            expected=seen.expected,
            remedy=seen.remedy,
        ) from None


def _describe_rows(run: TrainState, number: int, name: str, rows: Tensor) -> str:
    known = getattr(run.train, "row_numbers", None)
    if known is not None:
        rows = known(run.epoch - 1, number - 1).cpu()[rows]
    examples = ", ".join(map(str, rows[:5].tolist())) + (" ..." if len(rows) > 5 else "")
    whose = "rows" if known is not None else "of the batch the rows"
    return f"its batch has values in {name} that are not finite ({whose} {examples})"


def _describe_weights(run: TrainState) -> str:
    bad = [name for name, weight in run.model.named_parameters() if not weight.isfinite().all()]
    if not bad:
        return "its features, its target and the weights are finite"
    more = f" and of {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"its features and target are finite, the weights of {bad[0]!r}{more} are not"


def _find_nonfinite(batch: Any, schema: Any) -> tuple[str, Tensor] | None:
    """Find the first tensor of the batch that holds non-finite values, by name, and their rows."""
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
