"""Losses by name, one value a row, their weighted mean, ranking, and a loss for each of several targets.

mean = sum(weight * loss) / sum(weight): every row counts by its weight, whatever its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from inspect import signature
from math import inf
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.schema import Schema
from gpupipe.support.validation import is_number, is_one_of, is_sequence, refuse_choice
from gpupipe.training.loop.batches import full_precision, get_weight, matching_target, num_rows
from gpupipe.training.loop.rank_group import RankGroup

# Of the model's output and the batch; B values, or their mean.
Loss: TypeAlias = Callable[[Any, Any], Tensor]

TINY = torch.finfo(torch.float32).tiny
_TOGETHER = 64  # losses that are summed at once on a CPU


def _apply_elementwise(name: str, function: Callable[..., Tensor]) -> Loss:
    def loss(output: Tensor, batch: Any) -> Tensor:
        output = full_precision(output)
        target = matching_target(output, batch, f"loss {name!r}")
        values = function(output, target.to(output.dtype), reduction="none")
        return values.mean(1) if values.ndim == 2 else values  # several targets count alike

    return loss


def _cross_entropy(output: Tensor, batch: Any, amount: float = 0.0) -> Tensor:
    target = matching_target(output, batch, "loss 'cross-entropy'", classes=True)
    return F.cross_entropy(full_precision(output), target.long(), reduction="none", label_smoothing=amount)


LOSSES: dict[str, Loss] = {
    "bce": _apply_elementwise("bce", F.binary_cross_entropy_with_logits),
    "cross-entropy": _cross_entropy,
    "mse": _apply_elementwise("mse", F.mse_loss),
    "huber": _apply_elementwise("huber", F.huber_loss),
}
SCALE_FREE = ("mse", "huber")
"""Losses that mean the same of a standardised target, up to a factor or a threshold in its units."""
_TORCHS_SCALE_FREE = {
    *("MSELoss", "mse_loss", "L1Loss", "l1_loss"),
    *("SmoothL1Loss", "smooth_l1_loss", "HuberLoss", "huber_loss"),
}
LOSS_OF_TASK = {"binary": "bce", "multilabel": "bce", "multiclass": "cross-entropy", "regression": "mse"}


def choose_loss(loss: Any, schema: Schema | None) -> str | Loss:
    """Choose the loss for "auto" by the task of the schema; return any other `loss` unchanged.

    Raises:
        BadConfig: a name that is no loss, a class, a function of other arguments, or "auto" where no schema gives the
            task.

    Example:
        >>> choose_loss("huber", None)
        'huber'
    """
    if callable(loss):
        return _wrap_loss(loss)
    if isinstance(loss, str) and loss in LOSSES:
        return loss
    if not is_one_of(loss, ["auto"]):
        raise refuse_choice(
            "Trainer", "loss", loss, ["auto", *LOSSES], "a callable of the model's output and the batch"
        )
    if schema is None or schema.task is None:
        raise BadConfig(
            "Trainer(loss='auto')",
            "nothing tells what the target is" if schema is None else "the loader's rows have no target",
            got="a loader without a schema" if schema is None else schema.names,
            expected="a loader of gp.Pipeline whose Features have a target, of data that have its columns",
            remedy="loss='bce'" if schema is None else "pipeline.loader(data) of data that have the target's columns",
        )
    return LOSS_OF_TASK[schema.task]


def check_loss_task(loss: str | Loss, schema: Schema) -> None:
    """Refuse a regression's loss for classes: what scores the model reads its outputs as log-odds.

    Args:
        loss: chosen.
        schema: of the loader.

    Raises:
        BadConfig: it is one.
    """
    if schema.task in (None, "regression") or not _is_scale_free(loss):
        return
    raise BadConfig(
        "Trainer(loss=)",
        f"a regression's loss, and the target is {schema.task}: the outputs would be no log-odds",
        got=loss if isinstance(loss, str) else _get_name(loss.function) if isinstance(loss, TargetLoss) else loss,
        expected=f"{LOSS_OF_TASK[schema.task]!r}, or a target that is a number",
        remedy="loss='auto', or Features(task='regression')",
    )


def check_units(loss: str | Loss, units: object) -> None:
    """Refuse targets that were standardised by default for a loss whose meaning depends on their units.

    Args:
        loss: chosen.
        units: the loader's `target_units`.

    Raises:
        BadConfig: they were, and the settings did not ask for it.
    """
    if getattr(units, "by_default", False) and not _is_scale_free(loss):
        raise BadConfig(
            "Trainer(loss=)",
            "the regression's target is standardised by default, and this loss may mean it in its own units",
            got=loss,
            expected=f"one of {', '.join(map(repr, SCALE_FREE))}, or a target_transform that is said",
            remedy="Features(target_transform=None) for raw targets, or target_transform=pre.StandardScaler()",
        )


def _is_scale_free(loss: str | Loss) -> bool:
    if isinstance(loss, TargetLoss):
        return _get_name(loss.function) in _TORCHS_SCALE_FREE
    return loss in SCALE_FREE


@dataclass(frozen=True)
class TargetLoss:
    """Loss of output and target, as torch's are, called with output and batch.

    Args:
        function: of B outputs or B x K logits, and the target in the type that goes with them.
    """

    function: Callable[[Tensor, Tensor], Any]

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values, or the mean that the function gives.

        Raises:
            BadData: there is no target.
            SchemaMismatch: the shapes of output and target differ.
            BadConfig: the function gives a mean, and the rows have weights, which it cannot count.
        """
        name = _get_name(self.function)
        if isinstance(self.function, nn.Module):
            self.function.to(output.device)  # its own tensors, such as pos_weight
        output = full_precision(output)
        classes = name in _OF_CLASSES or output.ndim == getattr(getattr(batch, "target", None), "ndim", output.ndim) + 1
        target = matching_target(output, batch, f"loss {name}", classes=classes)
        values: Any = self.function(output, target.long() if classes else target.to(output.dtype))
        if isinstance(values, Tensor) and values.ndim == 0 and get_weight(batch) is not None:
            torch_class = isinstance(self.function, nn.Module)
            raise BadConfig(
                "Trainer(loss=)",
                "a mean, in which the rows' weights do not count",
                got=name,
                expected="a value for each row where rows have weights",
                remedy=f"{name}(reduction='none')" if torch_class else f"partial({name}, reduction='none')",
            )
        return values.mean(1) if isinstance(values, Tensor) and values.ndim == 2 else values


_OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss", "MultiMarginLoss", "multi_margin_loss"}
_TARGET_NAMES = {"target", "targets", "labels", "y", "y_true"}


def _wrap_loss(loss: Loss) -> Loss:
    """Wrap a function as a loss of output and batch."""
    expected, remedy = "a function of output and batch, or of output and target", "loss=torch.nn.MSELoss()"
    if isinstance(loss, type):
        remedy = f"loss={loss.__name__}()"
        raise BadConfig("Trainer(loss=)", "a class", got=loss, expected=f"an object: {expected}", remedy=remedy)
    try:
        found = signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except ValueError:
        return loss  # a function of C
    try:
        found.bind(None, None)
    except TypeError as cause:
        problem = f"it takes {found}"
        raise BadConfig("Trainer(loss=)", problem, got=loss, expected=expected, remedy=remedy) from cause
    second = [*found.parameters.values()][1:2]
    return TargetLoss(loss) if second and second[0].name in _TARGET_NAMES else loss


def _get_name(function: object) -> str:
    function = function.func if isinstance(function, partial) else function
    return getattr(function, "__name__", None) or type(function).__name__


def smooth_labels(loss: str | Loss, amount: float) -> Loss:
    """Smooth a named loss's labels (Szegedy et al., arXiv:1512.00567).

    The label's share of 1 gives `amount` away to all K classes alike, itself included (K = 2 for "bce").

    Args:
        loss: "bce" or "cross-entropy".
        amount: in [0, 1).

    Raises:
        BadConfig: a loss without classes.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> batch = Batch(torch.zeros(1, 0), torch.zeros(1, 0), torch.ones(1))
        >>> smooth_labels("bce", 0.5)(torch.zeros(1), batch).item() == LOSSES["bce"](torch.zeros(1), batch).item()
        True
    """
    if loss == "bce":
        plain = LOSSES["bce"]
        return lambda output, batch: plain(output, replace(batch, target=batch.target * (1 - amount) + amount / 2))
    if loss == "cross-entropy":
        return partial(_cross_entropy, amount=amount)
    raise BadConfig(
        "Trainer(label_smoothing=)",
        "the loss has no classes to smooth",
        got=loss if isinstance(loss, str) else "a function",
        expected="loss 'bce' or 'cross-entropy'",
        remedy="label_smoothing=0.0",
    )


def compute_mean_loss(values: Any, batch: Any) -> tuple[Tensor, Tensor | int]:
    """Compute the mean loss of a batch, and its weight in a mean over batches (the rows without weights).

    Args:
        values: B losses, weighted here; or their mean, taken as it is.
        batch: whose weights count.

    Raises:
        SchemaMismatch: no tensor, or neither a scalar nor one value a row.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> batch = Batch(torch.zeros(2, 0), torch.zeros(2, 0), weight=torch.tensor([3.0, 1.0]))
        >>> compute_mean_loss(torch.tensor([1.0, 5.0]), batch)
        (tensor(2.), tensor(4.))
    """
    if not isinstance(values, Tensor):
        raise SchemaMismatch(
            "loss",
            "not a tensor",
            got=type(values),
            expected=f"a tensor of shape () or ({num_rows(batch)},)",
            remedy="return the loss, not its `.item()`",
        )
    weight = get_weight(batch)
    if values.ndim == 0:
        return values, num_rows(batch) if weight is None else weight.sum()
    if values.ndim != 1 or (weight is not None and values.shape != weight.shape):
        raise SchemaMismatch(
            "loss",
            "neither a scalar nor one value a row",
            got=tuple(values.shape),
            expected=f"shape () or ({num_rows(batch)},)",
            remedy="loss=lambda output, batch: per_row(output, batch).mean(1)",
        )
    if weight is None:
        return values.mean(), values.shape[0]
    total = weight.sum()
    # A batch of padding only has no weight at all: its loss is 0, and it moves nothing.
    return (values * weight).sum() / total.clamp_min(TINY), total


class LossMean:
    """Mean loss over batches, summed in float64 on the device and read on request.

    On a CPU the batches' losses are kept for a while and summed many at a time, one after the other all the same: four
    operations on single numbers would cost a small network's step 3 %.

    Example:
        >>> losses = LossMean(torch.device("cpu"))
        >>> losses.add(torch.tensor(1.0), 3)
        >>> losses.add(torch.tensor(5.0), 1)
        >>> losses.read()
        2.0
    """

    def __init__(self, device: torch.device, ranks: RankGroup | None = None) -> None:
        self._ranks = ranks or RankGroup()
        self._sums = torch.zeros(3, dtype=torch.float64, device=device)
        self._total, self._weight, self._good = self._sums.unbind()
        self._many = _TOGETHER if device.type == "cpu" else 1
        self._losses: list[Tensor] = []
        self._weights: list[Tensor | int] = []

    @property
    def sums(self) -> Tensor:
        """The sums of losses and weights, and the number of batches before the first non-finite loss."""
        if self._losses:
            self._flush()
        return self._sums

    def add(self, loss: Tensor, weight: Tensor | int) -> None:
        """Count a batch's mean loss; the host does not wait."""
        if self._many == 1:
            self._total.add_(loss.double() * weight)
            self._weight.add_(weight)
            self._good.add_(self._total.abs() < math.inf)  # a sum that has once not been finite stays so
            return
        self._losses.append(loss)
        self._weights.append(weight)
        if len(self._losses) == self._many:
            self._flush()

    def _flush(self) -> None:
        weights = torch.stack([torch.as_tensor(weight) for weight in self._weights]).double()
        totals = torch.cat([self._total[None], torch.stack(self._losses) * weights]).cumsum(0)  # in order: exact resume
        self._total.copy_(totals[-1])
        self._weight.copy_(torch.cat([self._weight[None], weights]).cumsum(0)[-1])
        self._good.add_((totals[1:].abs() < math.inf).sum())
        self._losses.clear()
        self._weights.clear()

    def reset(self) -> None:
        """Reset the sums."""
        self._losses.clear()
        self._weights.clear()
        self._sums.zero_()

    def sum_over_ranks(self) -> Tensor:
        """Sum `sums` over all ranks; the first batch that is not finite on any of them counts."""
        each = self._ranks.all_gather_scalar(self.sums)
        return torch.cat([each[:, :2].sum(0), each[:, 2:].amin(0)])

    def read(self, where: str = "loss") -> float | None:
        """Return the mean, or None if no weight was counted. The host waits for the device.

        Raises:
            BadData: the mean is not finite; `where` is named.

        Memory:
            Copies 24 bytes to the host.
        """
        total, weight, _ = self.sum_over_ranks().tolist()
        mean = None if weight == 0 else total / weight
        if mean is not None and not math.isfinite(mean):
            raise BadData(
                where,
                "the loss is not finite",
                got=mean,
                expected="finite features, targets and weights, and updates small enough to keep the weights so",
                remedy="lr=3e-4, max_grad_norm=1.0, or look for infinite values with `gpupipe inspect`",
            )
        return mean


class PairwiseRanking:
    """Mean of log(1 + exp(-(s_i - s_j))) over the pairs of a batch's rows where row i should rank before row j.

    RankNet (Burges et al. 2005, equation 3): i before j where its target is larger. A pair counts the product of its
    rows' weights, so rows of weight 0 count nothing; a batch without such pairs has the loss 0.

    Args:
        group: a kept column (`gp.Features(keep=...)`), within whose values rows are ordered, such as a query; None for
            all rows of a batch. Pairs are those of a batch: rows of a group in different batches are paired only
            when the shuffle brings them together.

    Memory:
        Some 16 bytes per pair of rows of a batch on the device: 0.3 GB at 4096 rows, four times that at 8192.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> batch = Batch(torch.zeros(3, 0), torch.zeros(3, 0), target=torch.tensor([2.0, 1.0, 1.0]))
        >>> PairwiseRanking()(torch.tensor([9.0, 0.0, 0.0]), batch) < 1e-3
        tensor(True)
    """

    def __init__(self, group: str | None = None) -> None:
        self.group = group

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute the mean over the pairs, a scalar.

        Raises:
            ColumnNotFound: the batch has no such kept column.
            SchemaMismatch: more than one output a row.
        """
        output = full_precision(output)
        target = matching_target(output, batch, "loss PairwiseRanking")
        if output.ndim != 1:
            raise SchemaMismatch(
                "loss PairwiseRanking",
                "more than one output a row",
                got=tuple(output.shape),
                expected="B values",
                remedy="one target",
            )
        pairs = (target[:, None] > target).to(output.dtype)
        if self.group is not None:
            kept = getattr(batch, "keep", {})
            if self.group not in kept:
                raise ColumnNotFound.among("PairwiseRanking(group=)", self.group, kept)
            pairs = pairs * (kept[self.group][:, None] == kept[self.group])
        weight = get_weight(batch)
        if weight is not None:
            pairs = pairs * weight[:, None] * weight
        losses = F.softplus(output - output[:, None])  # -(s_i - s_j), i along the rows
        return (pairs * losses).sum() / pairs.sum().clamp_min(TINY)


NAMES = [name for name in LOSSES if name != "cross-entropy"]  # that one takes K logits a target


class PerTarget:
    """Weighted mean, for each row, of a loss per output.

    Args:
        losses: a name per target, in the order of `schema.targets`: "mse" or "huber" for a number, "bce" for a target
            of 0 and 1.
        weights: how much each counts, for targets of different units; None lets them count alike.

    Raises:
        BadConfig: an unknown name, or not one weight a loss.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> loss, target = PerTarget(["mse", "bce"], [3.0, 1.0]), torch.tensor([[2.0, 1.0]])
        >>> loss(torch.tensor([[1.0, 50.0]]), Batch(torch.zeros(1, 0), torch.zeros(1, 0), target))
        tensor([0.7500])
    """

    def __init__(self, losses: Sequence[str], weights: Sequence[float] | None = None) -> None:
        for name in losses if isinstance(losses, list | tuple) else [losses]:
            if not isinstance(losses, list | tuple) or name not in NAMES:
                raise refuse_choice("PerTarget", "losses", name, NAMES, "a list of these, one a target")
        given: Any = [1.0] * len(losses) if weights is None else weights
        weights = list(given) if is_sequence(given) else []
        good = len(weights) == len(losses) and all(is_number(weight) and 0 <= weight < inf for weight in weights)
        if not good or not sum(weights):
            raise BadConfig(
                "PerTarget(weights=)",
                "not a weight for each loss",
                got=given,
                expected=f"{len(losses)} numbers of at least 0, not all 0",
                remedy="weights=None",
            )
        self.losses = list(losses)
        self.shares = [weight / sum(weights) for weight in weights]

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values of B x T outputs.

        Raises:
            SchemaMismatch: another number of targets.
        """
        target = matching_target(output, batch, "loss PerTarget")
        if output.ndim != 2 or output.shape[1] != len(self.losses):
            raise SchemaMismatch(
                "loss PerTarget",
                "another number of targets",
                got=tuple(output.shape),
                expected=f"B x {len(self.losses)}",
                remedy="a loss for each of schema.targets",
            )
        each = [
            share * LOSSES[name](output[:, place], replace(batch, target=target[:, place]))
            for place, (name, share) in enumerate(zip(self.losses, self.shares, strict=True))
        ]
        return torch.stack(each).sum(0)


ClassWeight: TypeAlias = str | Mapping[Any, float]


def compute_class_weights(
    wanted: ClassWeight, loader: Iterable[Any], schema: Schema | None, ranks: RankGroup | None = None
) -> Tensor:
    """Compute a float32 weight per class: n / (K count) for `"balanced"`, or the given ones, 1 for other classes.

    Args:
        wanted: `"balanced"`, or weights by class.
        loader: the rows of training; read once if it does not hold all targets in one `block`.
        schema: whose target has the classes.
        ranks: the ranks that the loader deals its rows to.

    Raises:
        BadConfig: the target has no classes, or not those that were named.
        BadData: a class has no row.
    """
    target = None if schema is None else schema.target
    if target is None or target.classes is None:
        raise BadConfig(
            "Trainer(class_weight=)",
            "the target has no classes" if target is not None else "nothing tells the classes",
            got=wanted,
            expected="a classification, and a loader of gp.Pipeline",
            remedy="class_weight=None, or Features(weight=...) for a weight per row",
        )
    if schema is not None and schema.task == "multilabel":
        raise BadConfig(
            "Trainer(class_weight=)",
            "a row has several targets, and one weight",
            got=[item.name for item in schema.targets],
            expected="a classification of one target",
            remedy="class_weight=None, or Features(weight=...) for a weight per row",
        )
    classes = list(target.classes)
    if not isinstance(wanted, str):
        for name in wanted:
            if name not in classes or not wanted[name] >= 0:
                raise BadConfig(
                    "Trainer(class_weight=)",
                    "no such class" if name not in classes else "a weight below 0",
                    got={name: wanted[name]},
                    expected=f"weights of some of {classes}",
                    remedy="class_weight='balanced'",
                )
        return torch.tensor([float(wanted.get(name, 1.0)) for name in classes])
    check_class_weight(wanted)
    streamed = getattr(loader, "residency", "stream") == "stream"
    counts = torch.zeros(len(classes), dtype=torch.int64)
    for batch in loader if streamed else [loader.table]:  # type: ignore[attr-defined]  # of a Loader
        target = batch.target
        if ranks is not None and ranks.size > 1 and batch.weight is not None:
            target = target[batch.weight > 0]  # padding has no weight
        counts += torch.bincount(target.long(), minlength=len(classes)).cpu()
    if ranks is not None and (streamed or "shards" in loader.state_dict()):  # type: ignore[attr-defined]
        counts = ranks.all_gather_scalar(counts).sum(0)
    if not counts.all():
        raise BadData(
            "Trainer(class_weight='balanced')",
            "a class has no row",
            got=dict(zip(classes, counts.tolist(), strict=True)),
            expected="rows of every class",
            remedy="a mapping from classes to weights, or more rows",
        )
    return (counts.sum() / (len(classes) * counts)).float()


def check_class_weight(wanted: str) -> None:
    """Raise for an unknown name of class weights.

    Raises:
        BadConfig: it is not `"balanced"`.
    """
    if wanted != "balanced":
        raise refuse_choice(
            "Trainer", "class_weight", wanted, ["balanced"], "a mapping from classes to weights, or None"
        )


def weight_by_class(batch: Any, weights: Tensor) -> Any:
    """Multiply each row's weight by that of its class."""
    if not is_dataclass(batch) or isinstance(batch, type):
        raise BadConfig(
            "Trainer(class_weight=)",
            "the batches have no weights to change",
            got=type(batch).__name__,
            expected="batches of gp.Pipeline's loader",
            remedy="pipeline.loader(...)",
        )
    own: Any = batch
    of_class = weights[own.target.long()]
    return replace(own, weight=of_class if own.weight is None else own.weight * of_class)
