"""Losses by name, one value a row, and their weighted mean.

mean = sum(weight * loss) / sum(weight): every row counts by its weight, whatever its batch. Outputs are
logits: B values for binary targets, B x K for K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, ClassVar, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpupipe.errors import BadConfig, BadData, ColumnNotFound, SchemaMismatch
from gpupipe.schema import Schema, shorten_list
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import is_number, is_one_of, is_sequence, refuse_argument, refuse_choice
from gpupipe.tensors.batch import Batch
from gpupipe.training.loop.batches import full_precision, get_weight, matching_target, num_rows
from gpupipe.training.loop.quantiles import PinballLoss, lack_quantiles
from gpupipe.training.loop.rank_group import RankGroup

# Of the model's output and the batch; B values, or their mean.
Loss: TypeAlias = Callable[[Any, Any], Tensor]
ClassWeight: TypeAlias = str | Mapping[Any, float]

TINY = torch.finfo(torch.float32).tiny
_TOGETHER = 64  # losses that are summed at once on a CPU
# Losses that mean the same of a standardised target, up to a factor or a threshold in its units.
_SCALE_FREE = ("mse", "huber", "pinball")
_TORCHS_SCALE_FREE = {"MSELoss", "mse_loss", "L1Loss", "l1_loss", "SmoothL1Loss", "smooth_l1_loss"}
_TORCHS_SCALE_FREE |= {"HuberLoss", "huber_loss"}
_OF_CLASSES = {"CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss", "MultiMarginLoss", "multi_margin_loss"}
_TARGET_NAMES = {"target", "targets", "labels", "y", "y_true"}


@dataclass(frozen=True)
class TargetLoss:
    """Loss of B outputs or B x K logits (`classes`; None for both) and the target in the type that goes with them.

    `rowwise` says that a row's value depends on that row alone; `num_classes` is that of the target, where it is known.
    """

    function: Callable[..., Any]
    name: str
    classes: bool | None = None
    rowwise: bool = False
    num_classes: int | None = None

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values, or the mean that the function gives, which must not ignore weights."""
        is_module, classes = isinstance(self.function, nn.Module), self.classes
        if isinstance(self.function, nn.Module):
            self.function.to(output.device)  # its own tensors, such as pos_weight
        output = full_precision(output)
        if classes is None:
            classes = output.ndim == getattr(getattr(batch, "target", None), "ndim", output.ndim) + 1
        target = matching_target(output, batch, f"loss {self.name}", classes=classes)
        if classes and self.num_classes not in (None, output.shape[1]):
            where, problem = "model", "it has another number of outputs than the target has classes"
            expected, remedy = f"{self.num_classes}, one a class", "MLP.from_schema(pipeline.schema)"
            raise SchemaMismatch(where, problem, got=output.shape[1], expected=expected, remedy=remedy)
        values: Any = self.function(output, target.long() if classes else target.to(output.dtype))
        if isinstance(values, Tensor) and values.ndim == 0 and get_weight(batch) is not None:
            problem = "a mean, in which the rows' weights do not count"
            expected = "a value for each row where rows have weights"
            remedy = f"{self.name}(reduction='none')" if is_module else f"partial({self.name}, reduction='none')"
            raise refuse_argument("Trainer", "loss", self.name, expected, remedy, problem=problem)
        # Several targets count alike.
        return values.mean(1) if isinstance(values, Tensor) and values.ndim == 2 else values


_cross_entropy = partial(F.cross_entropy, reduction="none")
_bce = partial(F.binary_cross_entropy_with_logits, reduction="none")
LOSSES: dict[str, Loss] = {
    "bce": TargetLoss(_bce, "'bce'", classes=False, rowwise=True),
    "cross-entropy": TargetLoss(_cross_entropy, "'cross-entropy'", classes=True, rowwise=True),
    "mse": TargetLoss(partial(F.mse_loss, reduction="none"), "'mse'", classes=False, rowwise=True),
    "huber": TargetLoss(partial(F.huber_loss, reduction="none"), "'huber'", classes=False, rowwise=True),
}
LOSS_OF_TASK = {"binary": "bce", "multilabel": "bce", "multiclass": "cross-entropy", "regression": "mse"}


def choose_loss(loss: Any, schema: Schema | None, quantiles: Sequence[float] | None = None) -> str | Loss:
    """Choose the loss for "auto" by the model's quantiles, else the task of the schema.

    Return the name of another, or a function of it.
    """
    if callable(loss):
        wrapped: Loss = _wrap_loss(loss)
        return wrapped
    if is_one_of(loss, ["quantile"]) and quantiles is None:
        raise lack_quantiles("loss", loss)
    if not is_one_of(loss, ["auto", "pinball", *LOSSES]):
        also = "a callable of the model's output and the batch"
        raise refuse_choice("Trainer", "loss", loss, ["auto", *LOSSES, "pinball"], also)
    if quantiles is not None and loss in ("auto", "pinball"):
        return "pinball"
    if loss == "pinball":
        raise lack_quantiles("loss", loss)
    if quantiles is not None:
        problem, expected = "the model predicts quantiles", "'auto', which is the pinball loss, or a callable"
        raise refuse_argument("Trainer", "loss", loss, expected, "loss='auto'", problem=problem)
    if loss in LOSSES:
        return str(loss)
    if schema is not None and schema.task is not None:
        return LOSS_OF_TASK[schema.task]
    got: Any = "a loader without a schema"
    problem = "nothing tells what the target is"
    expected = "a loader of gp.Pipeline whose Features have a target, of data that have its columns"
    remedy = "loss='bce'"
    if schema is not None:
        problem, got = "the loader's rows have no target", schema.names
        remedy = "pipeline.loader(data) of data that have the target's columns"
    raise BadConfig("Trainer(loss='auto')", problem, got=got, expected=expected, remedy=remedy)


def choose_task(loss: str | Loss, schema: Schema | None) -> str | None:
    """Choose what outputs are read as: by the loss's name, else by the target; None where nothing tells."""
    task = None if schema is None else schema.task
    named = [name for name, each in LOSS_OF_TASK.items() if each == loss or (name, loss) == ("regression", "huber")]
    return task if not named or task in named else named[0]


def get_loss(loss: str | Loss, quantiles: tuple[float, ...] | None, schema: Schema | None) -> Loss:
    """Return the function of a loss that `choose_loss` has chosen, which knows the target's number of classes."""
    if loss == "pinball" and quantiles is not None:
        return PinballLoss(quantiles)
    function = LOSSES[loss] if isinstance(loss, str) else loss
    classes = schema and schema.target and schema.target.classes
    return replace(function, num_classes=len(classes)) if classes and isinstance(function, TargetLoss) else function


def check_loss_task(loss: str | Loss, schema: Schema) -> None:
    """Refuse a regression's loss for classes: what scores the model reads its outputs as log-odds."""
    if schema.task not in (None, "regression") and _is_scale_free(loss):
        problem = f"a regression's loss, and the target is {schema.task}: the outputs would be no log-odds"
        got = loss.name if isinstance(loss, TargetLoss) else loss
        expected = f"{LOSS_OF_TASK[schema.task]!r}, or a target that is a number"
        remedy = "loss='auto', or Features(task='regression')"
        raise refuse_argument("Trainer", "loss", got, expected, remedy, problem=problem)


def check_units(loss: str | Loss, units: object) -> None:
    """Refuse targets that were standardised by default for a loss whose meaning depends on their units."""
    if getattr(units, "by_default", False) and not _is_scale_free(loss):
        problem = "the regression's target is standardised by default, and this loss may mean it in its own units"
        expected = "one of 'mse', 'huber', 'pinball', or a target_transform that is said"
        remedy = "Features(target_transform=None) for raw targets, or target_transform=pre.StandardScaler()"
        raise refuse_argument("Trainer", "loss", loss, expected, remedy, problem=problem)


def _is_scale_free(loss: str | Loss) -> bool:
    return loss.name in _TORCHS_SCALE_FREE if isinstance(loss, TargetLoss) else loss in _SCALE_FREE


def _wrap_loss(loss: Any) -> Any:
    """Wrap a function as a loss of output and batch."""
    expected = "a function of output and batch, or of output and target"
    if isinstance(loss, type):
        expected, remedy = f"an object: {expected}", f"loss={loss.__name__}()"
        raise refuse_argument("Trainer", "loss", loss, expected, remedy, problem="a class")
    try:
        call_signature = signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except ValueError:
        return loss  # a function of C
    try:
        call_signature.bind(None, None)
    except TypeError as cause:
        problem = f"it takes {call_signature}"
        raise refuse_argument("Trainer", "loss", loss, expected, "loss=torch.nn.MSELoss()", problem=problem) from cause
    second = [*call_signature.parameters][1:2]
    if not second or second[0] not in _TARGET_NAMES:
        return loss
    plain = loss.func if isinstance(loss, partial) else loss
    name = getattr(plain, "__name__", None) or type(plain).__name__
    return TargetLoss(loss, name, classes=True if name in _OF_CLASSES else None)


def smooth_labels(loss: str | Loss, amount: float) -> Loss:
    """Smooth a named loss's labels: each gives `amount` to all K classes alike (Szegedy et al., arXiv:1512.00567)."""
    if loss == "bce":

        def smoothed_bce(output: Tensor, target: Tensor) -> Tensor:
            return _bce(output, target * (1 - amount) + amount / 2)

        return TargetLoss(smoothed_bce, "'bce'", classes=False, rowwise=True)
    if loss == "cross-entropy":
        smoothed = partial(_cross_entropy, label_smoothing=amount)
        return TargetLoss(smoothed, "'cross-entropy'", classes=True, rowwise=True)
    got = loss if isinstance(loss, str) else "a function"
    expected, remedy = "loss 'bce' or 'cross-entropy'", "label_smoothing=0.0"
    problem = "the loss has no classes to smooth"
    raise refuse_argument("Trainer", "label_smoothing", got, expected, remedy, problem=problem)


def average_members(loss: Loss, members: int) -> Loss:
    """Return the mean of a loss over a model's members, each taken alone: of outputs B x members, or B x members x K.

    Raises when called `SchemaMismatch`: the outputs have no such dimension.
    """

    def mean_over_members(output: Any, batch: Any) -> Tensor:
        if not isinstance(output, Tensor) or output.ndim < 2 or output.shape[1] != members:
            got = tuple(output.shape) if isinstance(output, Tensor) else type(output)
            problem, remedy = "its output has not the members that it says it has", "a model without `members`"
            expected = f"B x {members} outputs in training, or B x {members} x K"
            raise SchemaMismatch("model", problem, got=got, expected=expected, remedy=remedy)
        if getattr(loss, "rowwise", False) and isinstance(batch, Batch) and batch.target is not None:
            repeated = replace(batch, target=batch.target.repeat_interleave(members, 0))
            return loss(output.flatten(0, 1), repeated).view(-1, members).mean(1)
        # A loss may compare rows, and those of different members must not meet.
        losses = [loss(each, batch) for each in output.unbind(1)]
        return torch.stack(losses).mean(0) if all(isinstance(each, Tensor) for each in losses) else losses[0]

    return mean_over_members


def compute_class_weights(
    class_weight: ClassWeight, loader: Any, schema: Schema | None, ranks: RankGroup | None = None
) -> Tensor:
    """Compute a weight per class: n / (K count) for `"balanced"`, reading the loader; or the given ones, else 1."""
    target = None if schema is None else schema.target
    if schema is None or target is None or target.classes is None or schema.task == "multilabel":
        got: Any = class_weight
        problem = "nothing tells the classes" if target is None else "the target has no classes"
        if schema is not None and schema.task == "multilabel":
            problem, got = "a row has several targets, and one weight", [item.name for item in schema.targets]
        expected = "a classification of one target, and a loader of gp.Pipeline"
        remedy = "class_weight=None, or Features(weight=...) for a weight per row"
        raise refuse_argument("Trainer", "class_weight", got, expected, remedy, problem=problem)
    classes = list(target.classes)
    if not isinstance(class_weight, str):
        for name in class_weight:
            if name not in classes or not class_weight[name] >= 0:
                problem = "no such class" if name not in classes else "a weight below 0"
                bad = {name: class_weight[name]}
                expected = f"weights of some of {shorten_list(map(repr, classes), 20)}"
                raise refuse_argument(
                    "Trainer", "class_weight", bad, expected, "class_weight='balanced'", problem=problem
                )
        return torch.tensor([float(class_weight.get(name, 1.0)) for name in classes])
    streamed = getattr(loader, "residency", "stream") == "stream"
    counts = torch.zeros(len(classes), dtype=torch.int64)
    for batch in loader if streamed else [loader.table]:
        labels = batch.target
        if ranks is not None and ranks.size > 1 and batch.weight is not None:
            labels = labels[batch.weight > 0]  # padding has no weight
        counts += torch.bincount(labels.long(), minlength=len(classes)).cpu()
    if ranks is not None and (streamed or "shards" in loader.state_dict()):
        counts = ranks.all_gather_scalar(counts).sum(0)
    if not counts.all():
        where, got = "Trainer(class_weight='balanced')", dict(zip(classes, counts.tolist(), strict=True))
        remedy = "a mapping from classes to weights, or more rows"
        raise BadData(where, "a class has no row", got=got, expected="rows of every class", remedy=remedy)
    return (counts.sum() / (len(classes) * counts)).float()


def weight_by_class(batch: Any, weights: Tensor) -> Any:
    """Multiply each row's weight by that of its class."""
    if not is_dataclass(batch) or isinstance(batch, type):
        got, expected = type(batch).__name__, "batches of gp.Pipeline's loader"
        problem, remedy = "the batches have no weights to change", "pipeline.loader(...)"
        raise refuse_argument("Trainer", "class_weight", got, expected, remedy, problem=problem)
    rows: Any = batch
    of_class = weights[rows.target.long()]
    return replace(rows, weight=of_class if rows.weight is None else rows.weight * of_class)


def compute_mean_loss(values: Any, batch: Any) -> tuple[Tensor, Tensor | int]:
    """Compute a batch's weighted mean loss (a scalar is one already), and its weight: the rows' sum or number."""
    weight, is_tensor = get_weight(batch), isinstance(values, Tensor)
    if is_tensor and values.ndim == 0:
        return values, num_rows(batch) if weight is None else weight.sum()
    if not is_tensor or values.ndim != 1 or (weight is not None and values.shape != weight.shape):
        got: Any = type(values)
        problem, remedy = "not a tensor", "return the loss, not its `.item()`"
        if is_tensor:
            problem, got = "neither a scalar nor one value a row", tuple(values.shape)
            remedy = "loss=lambda output, batch: per_row(output, batch).mean(1)"
        expected = f"a tensor of shape () or ({num_rows(batch)},)"
        raise SchemaMismatch("loss", problem, got=got, expected=expected, remedy=remedy)
    if weight is None:
        return values.mean(), values.shape[0]
    total = weight.sum()
    # A batch of padding only has no weight at all: its loss is 0, and it moves nothing.
    return (values * weight).sum() / total.clamp_min(TINY), total


class LossMean:
    """Mean loss over batches, summed in float64 on the device; on a CPU many at a time, which takes fewer calls."""

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
        self._flush()
        return self._sums

    def add(self, loss: Tensor, weight: Tensor | int) -> None:
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
        if not self._losses:
            return
        weights = torch.stack([torch.as_tensor(weight) for weight in self._weights]).double()
        totals = torch.cat([self._total[None], torch.stack(self._losses) * weights]).cumsum(0)  # in order: exact resume
        self._total.copy_(totals[-1])
        self._weight.copy_(torch.cat([self._weight[None], weights]).cumsum(0)[-1])
        self._good.add_((totals[1:].abs() < math.inf).sum())
        self._losses.clear()
        self._weights.clear()

    def reset(self) -> None:
        self._losses.clear()
        self._weights.clear()
        self._sums.zero_()

    def sum_over_ranks(self) -> Tensor:
        """Sum `sums` over all ranks; the first batch that is not finite on any of them counts."""
        each = self._ranks.all_gather_scalar(self.sums)
        return torch.cat([each[:, :2].sum(0), each[:, 2:].amin(0)])

    def read(self, where: str = "loss") -> float | None:
        """Return the mean, or None if no weight was counted; refuse one that is not finite. The host waits."""
        total, weight, _ = self.sum_over_ranks().tolist()
        mean = None if weight == 0 else total / weight
        if mean is not None and not math.isfinite(mean):
            expected = "finite features, targets and weights, and updates small enough to keep the weights so"
            remedy = "lr=3e-4, max_grad_norm=1.0, or look for infinite values with `gpupipe inspect`"
            raise BadData(where, "the loss is not finite", got=mean, expected=expected, remedy=remedy)
        return mean


@answer_calls
class PairwiseRanking:
    """Mean of log(1 + exp(-(s_i - s_j))) over the pairs of a batch's rows where row i should rank before row j.

    RankNet (Burges et al. 2005, equation 3): i before j where its target is larger. A pair counts the product of its
    rows' weights, so rows of weight 0 count nothing; a batch without such pairs has the loss 0.

    `group` is a kept column (`gp.Features(keep=...)`), within whose values rows are ordered, such as a query; None for
    all rows of a batch. Rows of a group are paired only where they are in one batch. A call raises `ColumnNotFound`
    without that column, and `SchemaMismatch` for more than one output a row.

    Memory: some 16 bytes per pair of rows of a batch on the device: 0.3 GB at 4096 rows, four times that at 8192.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> batch = Batch(torch.zeros(3, 0), torch.zeros(3, 0), target=torch.tensor([2.0, 1.0, 1.0]))
        >>> PairwiseRanking()(torch.tensor([9.0, 0.0, 0.0]), batch) < 1e-3
        tensor(True)
    """

    def __init__(self, group: str | None = None) -> None:
        self.group = group

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute the mean over the pairs, a scalar."""
        output, where = full_precision(output), "loss PairwiseRanking"
        target = matching_target(output, batch, where)
        if output.ndim != 1:
            problem, got = "more than one output a row", tuple(output.shape)
            raise SchemaMismatch(where, problem, got=got, expected="B values", remedy="one target")
        pairs = (target[:, None] > target).to(output.dtype)
        if self.group is not None:
            keep = getattr(batch, "keep", {})
            if self.group not in keep:
                raise ColumnNotFound.among("PairwiseRanking(group=)", self.group, keep)
            pairs = pairs * (keep[self.group][:, None] == keep[self.group])
        weight = get_weight(batch)
        if weight is not None:
            pairs = pairs * weight[:, None] * weight
        losses = F.softplus(output - output[:, None])  # -(s_i - s_j), i along the rows
        return (pairs * losses).sum() / pairs.sum().clamp_min(TINY)


@answer_calls
class PerTarget:
    """Weighted mean, for each row, of a loss per output.

    For each of `schema.targets` a loss is "mse" or "huber" for a number, "bce" for a target of 0 and 1. `weights` say
    how much each counts, for targets of different units; None lets them count alike. Raises `BadConfig` for an unknown
    name or not one weight a loss, and when called `SchemaMismatch` for another number of targets.

    Example:
        >>> from gpupipe.tensors.batch import Batch
        >>> loss, target = PerTarget(["mse", "bce"], [3.0, 1.0]), torch.tensor([[2.0, 1.0]])
        >>> loss(torch.tensor([[1.0, 50.0]]), Batch(torch.zeros(1, 0), torch.zeros(1, 0), target))
        tensor([0.7500])
    """

    rowwise: ClassVar[bool] = True

    def __init__(self, losses: Sequence[str], weights: Sequence[float] | None = None) -> None:
        names = [name for name in LOSSES if name != "cross-entropy"]  # that one takes K logits a target
        for name in losses if isinstance(losses, list | tuple) else [losses]:
            if not isinstance(losses, list | tuple) or name not in names:
                raise refuse_choice("PerTarget", "losses", name, names, "a list of these, one a target", form="[%r]")
        argument: Any = [1.0] * len(losses) if weights is None else weights
        weights = list(argument) if is_sequence(argument) else []
        good = len(weights) == len(losses) and all(is_number(weight) and 0 <= weight < math.inf for weight in weights)
        if not good or not sum(weights):
            problem, expected = "not a weight for each loss", f"{len(losses)} numbers of at least 0, not all 0"
            raise refuse_argument("PerTarget", "weights", argument, expected, "weights=None", problem=problem)
        self.losses = list(losses)
        self.shares = [weight / sum(weights) for weight in weights]

    def __call__(self, output: Tensor, batch: Any) -> Tensor:
        """Compute B values of B x T outputs."""
        target = matching_target(output, batch, "loss PerTarget")
        if output.ndim != 2 or output.shape[1] != len(self.losses):
            problem, expected = "another number of targets", f"B x {len(self.losses)}"
            remedy = "a loss for each of schema.targets"
            raise SchemaMismatch("loss PerTarget", problem, got=tuple(output.shape), expected=expected, remedy=remedy)
        each = [
            share * LOSSES[name](output[:, index], replace(batch, target=target[:, index]))
            for index, (name, share) in enumerate(zip(self.losses, self.shares, strict=True))
        ]
        return torch.stack(each).sum(0)
