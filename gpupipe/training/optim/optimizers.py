"""Optimisers by name, rates per update, a loss scale and an average of weights; the host never waits for the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from gpupipe.errors import BadConfig
from gpupipe.support.calls import answer_calls
from gpupipe.support.validation import check_choice, check_integer, check_number, refuse_argument, refuse_choice
from gpupipe.training.callbacks.history import History

# Of the parameter groups and the learning rate, a tensor of one value that changes in place.
MakeOptimizer: TypeAlias = Callable[[Any, Tensor], Optimizer]
# Patterns of parameters' names, and what is different for them: {"embedding.*": {"lr": 1e-4, "weight_decay": 0.0}}.
Groups: TypeAlias = Mapping[str, Mapping[str, float]]

# A dense gradient of a table of V rows is V rows to write and, with AdamW, seven times that to read and write: 20 GB a
# step for 10 million rows of 64. 32 B of traffic a value make 8 us at 4 TB/s: a tenth of a small network's step.
TABLE = 1 << 20

# As torch.amp.GradScaler: from 2^16, halved at an overflow, doubled after 2000 updates without one.
_START, _BACKOFF, _GROWTH, _INTERVAL = 2.0**16, 0.5, 2.0, 2000


def check_optimizer(choice: object) -> None:
    """Refuse an unknown name, an optimiser that is made already, and what is neither a name nor a function."""
    also = "a class of torch.optim, or a function of the parameters and the learning rate"
    if isinstance(choice, Optimizer):
        problem, expected = "an optimiser that is made already", f"a name, or {also}: each fit makes its own"
        remedy = f"optimizer=torch.optim.{type(choice).__name__}"
        raise refuse_argument("Trainer", "optimizer", type(choice), expected, remedy, problem=problem)
    if callable(choice) and not isinstance(choice, type):
        try:
            signature(choice).bind(None, None)
        except TypeError as cause:
            problem, remedy = f"the function takes {signature(choice)}", "optimizer=lambda parameters, lr: ..."
            raise refuse_argument("Trainer", "optimizer", choice, also, remedy, problem=problem) from cause
    if not callable(choice) and (not isinstance(choice, str) or choice not in OPTIMIZERS):
        raise refuse_choice("Trainer", "optimizer", choice, OPTIMIZERS, also)


def make_optimizer(choice: str | MakeOptimizer, groups: list[dict[str, Any]], lr: Tensor) -> Optimizer:
    """Make an optimiser by name, of a torch class, or by a function; the schedule writes to `lr`, 0-d on the device."""
    check_optimizer(choice)
    optimizer: Any
    if isinstance(choice, str):
        optimizer = OPTIMIZERS[choice](groups, lr)
    elif isinstance(choice, type):
        # Those that can count on the device do so where the host must not wait.
        capturable = {"capturable": True} if lr.is_cuda and "capturable" in signature(choice).parameters else {}
        try:
            optimizer = cast(Any, choice)(groups, lr=lr, **capturable)
        except (ValueError, TypeError) as cause:
            problem, expected = f"torch does not make it ({cause})", "one of groups of parameters of any shape"
            raise refuse_argument(
                "Trainer", "optimizer", choice, expected, "optimizer='adamw'", problem=problem
            ) from cause
    else:
        optimizer = choice([parameter for group in groups for parameter in group["params"]], lr)
    remedy = "optimizer=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)"
    if not isinstance(optimizer, Optimizer):
        got, problem, expected = type(optimizer), "the function gives no optimiser", "a torch.optim.Optimizer"
        raise refuse_argument("Trainer", "optimizer", got, expected, remedy, problem=problem)
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        problem, expected = "its step asks for the loss several times", "one whose step() takes nothing"
        raise refuse_argument("Trainer", "optimizer", type(optimizer), expected, "optimizer='adamw'", problem=problem)
    for group in optimizer.param_groups:
        if group["lr"] is not lr and not any(group["lr"] is options.get("lr") for options in groups):
            problem = "the optimiser has a learning rate of its own"
            expected = "the tensor it is given, which the schedule writes to"
            raise refuse_argument("Trainer", "optimizer", group["lr"], expected, remedy, problem=problem)
    return optimizer


def make_parameter_groups(
    model: nn.Module,
    lr: Tensor,
    *,
    highest: float,
    weight_decay: float,
    groups: Groups | None = None,
    tables: bool = False,
    l2: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Group a model's trained parameters by learning rate and weight decay.

    Weights decay; biases, scales of normalisations (fewer than two dimensions), embeddings (parameters of a module
    whose class, or a base, is named so) and what `model.no_weight_decay()` names do not. `l2` has penalties by name,
    which are part of the gradient. The first pattern of `groups` that fits counts; its rate is a multiple of `highest`;
    `tables` marks embeddings.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained:
        problem, got = "the model has nothing to train", "no parameter with requires_grad"
        expected = "a module with trainable parameters"
        raise BadConfig("Trainer", problem, got=got, expected=expected, remedy="model.requires_grad_(True)")
    patterns = groups or {}
    for pattern, options in patterns.items():
        if not any(fnmatchcase(name, pattern) for name in trained):
            also, form = "a pattern of these, as 'embedding.*'", f"{{%r: {options}}}"
            raise refuse_choice("Trainer", "param_groups", pattern, trained, also, form=form)
        for option, value in options.items():
            if option not in ("lr", "weight_decay"):
                form = f"{{{pattern!r}: {{%r: {value}}}}}"
                raise refuse_choice("Trainer", "param_groups", option, ["lr", "weight_decay"], form=form)
            if not value >= 0:
                remedy = "freeze(model, pattern) for what is to stay" if option == "lr" else "weight_decay=0.0"
                where = f"Trainer(param_groups={{{pattern!r}: ...}})"
                raise BadConfig(where, f"{option} makes no sense", got=value, expected="0 or more", remedy=remedy)
    named = [m for m in model.modules() if any("embedding" in base.__name__.lower() for base in type(m).__mro__)]
    embeddings = {id(parameter) for module in named for parameter in module.parameters(recurse=False)}
    spared = set(getattr(model, "no_weight_decay", tuple)())
    penalties = l2 or {}
    members: dict[tuple[float, float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        options = next((options for pattern, options in patterns.items() if fnmatchcase(name, pattern)), {})
        embedding, is_penalty = id(parameter) in embeddings, name in penalties and "weight_decay" not in options
        decay = 0.0 if parameter.ndim < 2 or embedding or name in spared else weight_decay
        decay = penalties[name] if is_penalty else options.get("weight_decay", decay)
        key = (options.get("lr", highest) / highest, decay, is_penalty, tables and embedding and _is_table(parameter))
        members.setdefault(key, []).append(parameter)
    return [
        {"params": params, "lr": lr if factor == 1 else torch.zeros_like(lr), "lr_factor": factor}
        | {"weight_decay": decay, "table": table}
        | ({"decoupled_weight_decay": False} if is_penalty else {})  # of AdamW: as Adam's, not as its own
        for (factor, decay, is_penalty, table), params in members.items()
    ]


class Lamb(Optimizer):
    """LAMB: Adam whose steps are as long as the layer's weights (You et al. 2020, arXiv:1904.00962, algorithm 2).

    m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; r = m^ / (sqrt(v^) + eps) + weight_decay w, bias-corrected as in
    Adam; w = w - lr ||w|| / ||r|| r for each tensor w (lr r where one of the norms is 0). A step whose `found_inf` is 1
    changes nothing. Memory: two moments as large as the weights, and two more such tensors during a step.
    """

    def __init__(self, params: Any, lr: Tensor) -> None:
        # The count of steps is read on the device; torch puts one that is loaded there where `capturable` says so.
        options = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0, "capturable": True}
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure: it would be called outside a graph
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            if trained := [parameter for parameter in group["params"] if parameter.grad is not None]:
                self._move(group, trained)

    def _move(self, group: dict[str, Any], trained: list[Tensor]) -> None:
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        # Of the group, on its first parameter's device.
        step = self.state[group["params"][0]].setdefault("step", torch.zeros_like(group["lr"]))
        for parameter in trained:
            for name in ("exp_avg", "exp_avg_sq"):
                if name not in self.state[parameter]:
                    self.state[parameter][name] = torch.zeros_like(parameter)
        first, second = ([self.state[p][name] for p in trained] for name in ("exp_avg", "exp_avg_sq"))
        bad: Tensor | None = getattr(self, "found_inf", None)
        if bad is not None:
            # Not finite: they count as 0, for a share of 0 of both moments, and nothing moves.
            gradients = [torch.where(bad > 0, 0.0, gradient) for gradient in gradients]
        share = 1.0 if bad is None else 1.0 - bad
        step.add_(share)
        beta1, beta2 = group["betas"]
        _move_towards(first, gradients, (1 - beta1) * share)
        _move_towards(second, torch._foreach_mul(gradients, gradients), (1 - beta2) * share)  # noqa: SLF001

        deviation = torch._foreach_div(second, 1 - beta2**step)  # noqa: SLF001
        torch._foreach_sqrt_(deviation)
        torch._foreach_add_(deviation, float(group["eps"]))
        change = list(torch._foreach_div(torch._foreach_div(first, 1 - beta1**step), deviation))  # noqa: SLF001
        if group["weight_decay"]:
            torch._foreach_add_(change, trained, alpha=group["weight_decay"])

        lengths = zip(torch._foreach_norm(trained), torch._foreach_norm(change), strict=True)  # noqa: SLF001
        trust = [torch.where((weight > 0) & (length > 0), weight / length, 1.0) for weight, length in lengths]
        torch._foreach_mul_(change, trust)
        torch._foreach_mul_(change, group["lr"])
        if bad is not None:
            change = [torch.where(bad > 0, 0.0, moved) for moved in change]
        torch._foreach_add_(trained, change, alpha=-1.0)


class RowWise(AdamW):
    """AdamW, and row-wise Adagrad for large embedding tables (FBGEMM's `EXACT_ROWWISE_ADAGRAD`).

    h_i = h_i + mean_d(g_id^2); w_i = w_i - lr g_i / (sqrt(h_i) + eps), for the rows i that were looked up. Groups with
    `"table": True` have gradients of single rows. Memory: 4 bytes per row of a table; of the others two moments.
    """

    def __init__(self, params: Any, lr: Tensor) -> None:
        super().__init__(params, lr=lr, fused=True, capturable=lr.is_cuda)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure: it would be called outside a graph
        """Update all parameters that have a gradient."""
        tables = [(group, p, p.grad) for group in self.param_groups if group.get("table") for p in group["params"]]
        for _, parameter, _ in tables:
            parameter.grad = None  # AdamW leaves alone what has no gradient
        super().step()
        for group, parameter, gradient in tables:
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


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "adamw": lambda groups, lr: AdamW(groups, lr=lr, fused=True, capturable=lr.is_cuda),
    "sgd": lambda groups, lr: SGD(groups, lr=lr, momentum=0.9, nesterov=True, fused=True),
    "lamb": Lamb,
    "rowwise": RowWise,
}


def get_entries(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sparse gradient's row numbers (which may repeat) and values; for `indices()` the host would wait."""
    return gradient._indices()[0], gradient._values()  # noqa: SLF001


def add_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients of the same parameters to those they have."""
    dense: list[tuple[Tensor, Tensor]] = []
    for parameter, other in zip(parameters, gradients, strict=True):
        gradient = parameter.grad
        if gradient is None:
            parameter.grad = other
        elif other is not None and other.is_sparse:
            rows, values = map(torch.cat, zip(get_entries(gradient), get_entries(other), strict=True))
            parameter.grad = torch.sparse_coo_tensor(rows[None], values, gradient.shape, check_invariants=False)
        elif other is not None:
            dense.append((gradient, other))
    if dense:
        torch._foreach_add_(*map(list, zip(*dense, strict=True)))


def compact(gradient: Tensor) -> Tensor:
    """Sum a sparse gradient's entries of the same row into one; the rest stay, as zeros, or the host would wait."""
    rows, values = get_entries(gradient)
    rows, order = rows.sort()
    values = values.index_select(0, order)
    new = torch.cat([rows.new_zeros(min(len(rows), 1)), (rows[1:] != rows[:-1]).long()])
    slot = new.cumsum(0)
    sums = torch.zeros_like(values).index_add_(0, slot, values)
    # Slots no row has need have sums of 0: they add nothing to row 0.
    ids = torch.zeros_like(rows).scatter_(0, slot, rows)
    return torch.sparse_coo_tensor(ids[None], sums, gradient.shape, check_invariants=False)


def find_dense_tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """Find the large trained tables, by name, of modules with a switch `sparse` that is off."""
    switches = {id(table) for module in _find_switches(model) for table in module.parameters(recurse=False)}
    tables = {name: table for name, table in model.named_parameters() if id(table) in switches}
    return {name: table for name, table in tables.items() if _is_table(table) and table.requires_grad}


@contextmanager
def use_sparse_gradients(model: nn.Module) -> Iterator[None]:
    """Switch modules with a large table and a `sparse` flag (as nn.Embedding has) to sparse gradients inside."""
    modules = _find_switches(model)
    for module in modules:
        module.sparse = True
    try:
        yield
    finally:
        for module in modules:
            module.sparse = False


def _find_switches(model: nn.Module) -> list[Any]:
    """Find the modules with a large table and a flag `sparse` that is off."""
    modules = [module for module in model.modules() if getattr(module, "sparse", None) is False]
    return [module for module in modules if any(map(_is_table, module.parameters(recurse=False)))]


def _is_table(parameter: nn.Parameter) -> bool:
    """Return whether a dense update of an embedding costs too much."""
    return parameter.ndim == 2 and parameter.numel() >= TABLE


class LossScale:
    """Scale of the loss for float16 that follows overflows on the device (Micikevicius et al., arXiv:1710.03740).

    torch.amp.GradScaler reads on the host whether to step. Here the optimiser leaves it out when its `found_inf` is 1.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, *, interval: int = _INTERVAL) -> None:
        if not isinstance(optimizer, Lamb) and not optimizer.defaults.get("fused"):
            problem = "the optimiser cannot leave out a step without asking the host"
            expected = "'adamw', 'sgd', 'lamb', 'rowwise', or one of torch's with fused=True"
            got, remedy = type(optimizer).__name__, "precision='bf16-mixed', or optimizer='adamw'"
            raise BadConfig("Trainer(precision='fp16-mixed')", problem, got=got, expected=expected, remedy=remedy)
        self.value = torch.full((), _START, device=device)
        self.interval = interval
        self._good = torch.zeros((), dtype=torch.int32, device=device)
        self._overflow = torch.zeros((), device=device)
        optimizer.found_inf = self._overflow  # type: ignore[attr-defined]  # where GradScaler puts it

    def update(self, norm: Tensor) -> None:
        """Adapt the scale to the gradients' norm: if it is not finite skip the step and halve, else double in time."""
        bad = ~torch.isfinite(norm)
        self._overflow.copy_(bad)
        good = torch.where(bad, 0, self._good + 1)
        grown = good >= self.interval
        self.value.mul_(torch.where(bad, _BACKOFF, torch.where(grown, _GROWTH, 1.0)))
        self._good.copy_(torch.where(grown, 0, good))

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value, "good": self._good}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; start afresh if it is empty, as of a run without a scale."""
        self.value.copy_(state.get("value", torch.tensor(_START)))
        self._good.copy_(state.get("good", torch.tensor(0)))


class EMA:
    """Moving average of weights: d * average + (1 - d) * weights, d = min(decay, (1 + t) / (10 + t)) at update t.

    The smaller d of the first updates keeps the initial weights out of the average (as TensorFlow's
    ExponentialMovingAverage with `num_updates`). Other buffers than floating-point ones are the model's own. torch's
    AveragedModel reads its counter on the host. Memory: a copy of the weights; two for a moment when they change
    places.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        # What two modules share is one weight of two names, and changes places once.
        weights = {id(value): (name, value.detach()) for name, value in model.state_dict(keep_vars=True).items()}
        self._weights = {name: value for name, value in weights.values() if value.is_floating_point()}
        self._mean = {name: value.clone() for name, value in self._weights.items()}
        self.decay = decay

    def update(self, count: Tensor) -> None:
        """Move the average towards the weights; `count` is t, from 0, on the device."""
        share = 1 - ((1 + count) / (10 + count)).clamp_max(self.decay)
        _move_towards(list(self._mean.values()), list(self._weights.values()), share[0].float())

    def swap(self) -> None:
        """Swap the values of the weights and their average; CUDA graphs find them where they were."""
        for name, weight in self._weights.items():
            before = weight.clone()
            weight.copy_(self._mean[name])
            self._mean[name].copy_(before)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._mean)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave; start from the weights if it is empty, as of a run without an average."""
        for name, mean in self._mean.items():
            mean.copy_(state[name] if state else self._weights[name])


def _move_towards(tensors: Sequence[Tensor], targets: Sequence[Tensor], share: Tensor | float) -> None:
    """Add share * (targets - tensors) to tensors."""
    difference: Any = torch._foreach_sub(list(targets), list(tensors))  # noqa: SLF001
    torch._foreach_mul_(difference, share)
    torch._foreach_add_(list(tensors), difference)


# The share of updates a schedule warms up for unless told otherwise.
SCHEDULES = {"one-cycle": 0.3, "cosine": 0.0, "linear": 0.0, "constant": 0.0, "plateau": 0.0}

# One-cycle starts at lr / 25 and ends at lr / 25 / 10^4, as torch.optim.lr_scheduler.OneCycleLR does.
ONE_CYCLE_START, ONE_CYCLE_END = 25.0, 1e4


@answer_calls
@dataclass(frozen=True, slots=True)
class Plateau:
    """Reduce-on-plateau schedule: the rate falls when the monitored metric has not improved for some epochs.

    Args:
        patience: epochs in a row without improvement after which the rate is multiplied by `factor`.
        lowest: the smallest rate, as a share of the first.

    Example:
        >>> Plateau(patience=1, factor=0.5)
        Plateau(patience=1, factor=0.5, lowest=0.0001)
    """

    patience: int = 3
    factor: float = 0.1
    lowest: float = 1e-4

    def __post_init__(self) -> None:
        check_integer(self, "[1, inf)", patience=self.patience)
        check_number(self, "(0, 1)", factor=self.factor)
        check_number(self, "[0, 1]", lowest=self.lowest)


# A name, a Plateau, or a function of the share of updates done, in [0, 1), that gives the share of `lr`.
Schedule: TypeAlias = str | Plateau | Callable[[float], float]


def compute_learning_rates(schedule: Schedule, *, lr: float, steps: int, warmup: float | None = None) -> Tensor:
    """Compute the learning rate of each update of a run: `steps` float32 values on the CPU, at most `lr`.

    - "constant": lr; "plateau" and `Plateau` too, until the figure that is monitored says otherwise.
    - "linear": straight from lr to 0 after the warm-up.
    - "cosine": lr (1 + cos(pi t)) / 2, t running from 0 to 1 after the warm-up (Loshchilov & Hutter, arXiv:1608.03983).
    - "one-cycle": half a cosine up from lr / 25, half a cosine down to lr / 250000 (Smith & Topin, arXiv:1708.07120).
    - a function f: lr f(t), t running from 0 to 1 over all updates.

    `warmup` is the share of updates that rises to lr, in a straight line but for the last two; None for the schedule's
    own (0.3 for one-cycle, else 0). A function's is its own business.
    """
    name: Any = "plateau" if isinstance(schedule, Plateau) else schedule
    if not callable(name) and (not isinstance(name, str) or name not in SCHEDULES):
        also = "a Plateau, or a function of the share that is done"
        raise refuse_choice("Trainer", "schedule", schedule, SCHEDULES, also)
    share = (0.0 if callable(name) else SCHEDULES[name]) if warmup is None else warmup
    check_number("Trainer", "[0, 1)", warmup=share)
    check_number("Trainer", "(0, inf)", lr=lr)
    lr = float(lr)
    if callable(name):
        try:
            return torch.tensor([lr * float(name(number / steps)) for number in range(steps)])
        except (TypeError, ValueError) as cause:
            problem, remedy = f"the function gives no share of the rate ({cause})", "schedule=lambda done: 1.0 - done"
            expected = "a function of the share of updates done, in [0, 1), that gives a number"
            raise refuse_argument("Trainer", "schedule", name, expected, remedy, problem=problem) from cause
    step = torch.arange(steps, dtype=torch.float64)
    if name == "one-cycle":
        top = max(share * steps - 1, 0.0)
        rise = _half_cosine(lr / ONE_CYCLE_START, lr, step / max(top, 1.0))
        fall = _half_cosine(lr, lr / ONE_CYCLE_START / ONE_CYCLE_END, (step - top) / max(steps - 1 - top, 1.0))
        return torch.where(step < top, rise, fall).float()
    top = float(round(share * steps))
    after = (step - top) / (steps - top)
    falls = {"cosine": _half_cosine(lr, 0.0, after), "linear": lr * (1 - after)}
    fall = falls.get(name, torch.full_like(step, lr))
    return torch.where(step < top, lr * (step + 1) / max(top, 1.0), fall).float()


def _half_cosine(start: float, end: float, t: Tensor) -> Tensor:
    return end + (start - end) / 2 * (1 + torch.cos(math.pi * t))


@answer_calls
def scaled_rate(lr: float, *, batch_size: int, reference: int = 256, rule: str = "sqrt") -> float:
    """Scale a learning rate found with `reference` rows a step to `batch_size`, over accumulation and all ranks.

    - "linear": lr B / B0, for SGD (Goyal et al., arXiv:1706.02677); warm up for some epochs' share of the updates.
    - "sqrt": lr sqrt(B / B0), for Adam and LAMB (You et al., arXiv:1904.00962; Malladi et al., arXiv:2205.10287).

    Raises `BadConfig`: an unknown rule, or a number that makes no sense.

    Example:
        >>> scaled_rate(1e-3, batch_size=4096)
        0.004
    """
    powers = {"linear": 1.0, "sqrt": 0.5}
    check_number(scaled_rate, "(0, inf)", lr=lr)
    check_integer(scaled_rate, "[1, inf)", batch_size=batch_size, reference=reference)
    check_choice(scaled_rate, powers, rule=rule)
    return float(lr * (batch_size / reference) ** powers[rule])


def get_plateau_factor(schedule: Schedule, history: History) -> float | None:
    """Return a plateau's factor of the first rate after the epochs so far; None for other schedules."""
    plateau = Plateau() if schedule == "plateau" else schedule
    if not isinstance(plateau, Plateau):
        return None
    best, waited, share = -math.inf, 0, 1.0
    history.monitored  # noqa: B018 - says what is wrong where there is no figure
    for row in history:
        value = float(row[history.monitor]) * (1 if history.higher_is_better else -1)
        waited = 0 if value > best else waited + 1
        best = max(best, value)
        if waited == plateau.patience:
            waited, share = 0, max(share * plateau.factor, plateau.lowest)
    return share
