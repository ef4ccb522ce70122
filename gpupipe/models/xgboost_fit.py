"""Fit and prediction of XGBoost: rounds until the loss is least, by one process or several ranks."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import xgboost as xgb
from torch import Tensor
from xgboost import collective
from xgboost.core import XGBoostError

from gpupipe.errors import BackendMissing, BadConfig, BadData
from gpupipe.files import ScratchFolder
from gpupipe.models.booster import Arrays, Layout, copy_margins, read_booster
from gpupipe.models.xgboost_rows import LoaderRows, get_reason, is_of_others, make_matrix
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.loader import get_free_bytes

BYTES_PER_CELL = 9  # of a quantised matrix and what is kept of each row, at most; measured with XGBoost 3.2
LOSSES = {"binary": "logloss", "multilabel": "logloss", "multiclass": "mlogloss", "regression": "rmse"}

OnRound: TypeAlias = Callable[[int, dict[str, float], Tensor | None, Batch | None], None]
"""Gets a round's number, its losses, and the margins of the validation rows with their targets and weights."""


@dataclass(frozen=True)
class BoostSettings:
    """Settings of a fit: XGBoost's parameters, the most rounds, those without a better loss, those between two logs."""

    params: Mapping[str, Any]
    rounds: int
    patience: int
    log_every: int
    external_memory: bool | str
    device: torch.device


class Ranks(Protocol):
    """Protocol of the ranks of a fit, as one of them sees them."""

    rank: int
    size: int
    host: str
    timeout: float

    def broadcast_object(self, make: Callable[[], Any]) -> Any:
        """Give all ranks what rank 0 makes."""

    def make_lost_error(self, cause: Exception) -> Exception:
        """Make the error of a rank that waits for another in vain."""


def fit_booster(
    train: Any,
    valid: Any,
    layout: Layout,
    settings: BoostSettings,
    *,
    check: Callable[[Batch], None],
    class_weight: Tensor | None,
    ranks: Ranks | None,
    on_round: OnRound,
) -> Arrays:
    """Fit trees on the rows of `train`; with `valid`, the rounds after the one of the least loss there are left out."""
    params, external = _make_params(layout, settings), settings.external_memory
    if external == "auto":
        needed = getattr(train, "num_rows", 0) * layout.width * BYTES_PER_CELL
        free = get_free_bytes(settings.device)
        external = free is not None and needed > free
    is_shard = ranks is not None and ranks.size > 1
    with ExitStack() as stack:
        stack.enter_context(xgb.config_context(verbosity=0))
        if ranks is not None and is_shard:
            stack.enter_context(connect_ranks(ranks))
            external = ranks.broadcast_object(lambda: external)
        folder = stack.enter_context(ScratchFolder()).path if external else None

        def read_rows(loader: Any, name: str, weights: Tensor | None = None) -> LoaderRows:
            prefix = None if folder is None else str(folder / name)
            return LoaderRows(loader, layout, settings.device, check, weights, prefix, is_shard=is_shard)

        rows = {"train": read_rows(train, "train", class_weight)}
        if valid is not None:
            rows["valid"] = read_rows(valid, "valid")
        return read_booster(_fit(rows, params, layout, settings, on_round))


def _fit(
    rows: Mapping[str, LoaderRows],
    params: Mapping[str, Any],
    layout: Layout,
    settings: BoostSettings,
    on_round: OnRound,
) -> bytearray:
    """Fit a booster and return its JSON; its matrices, which may be files, are gone afterwards."""
    matrices: dict[str, xgb.DMatrix] = {}
    for name, each in rows.items():
        matrices[name] = make_matrix(each, name, max_bin=params.get("max_bin"), ref=matrices.get("train"))
    _scale_weights(matrices["train"])
    booster = xgb.Booster(dict(params), list(matrices.values()))
    try:
        booster.save_config()  # it looks at the parameters when they are needed
    except XGBoostError as cause:
        raise BadConfig(
            "XGB(params=)",
            f"XGBoost refuses them ({get_reason(cause)})",
            got=dict(settings.params),
            expected="values that its documentation of parameters allows",
            remedy="params=None",
        ) from cause
    return _boost(booster, matrices, layout, settings, on_round).save_raw("json")


def _scale_weights(matrix: xgb.DMatrix) -> None:
    """Divide weights by their mean over all ranks: XGBoost's regularisation is in units of them.

    Weights that sum to 1 would let no tree grow. The mean has three digits, whatever the order of its sum.
    """
    weight = torch.from_numpy(matrix.get_weight())
    sums = torch.tensor([weight.double().sum(), len(weight)], dtype=torch.float64).numpy()
    total, count = (collective.allreduce(sums, collective.Op.SUM) if collective.is_distributed() else sums).tolist()
    if len(weight) and total > 0:
        matrix.set_weight((weight / float(f"{total / count:.3g}")).numpy())


def _make_params(layout: Layout, settings: BoostSettings) -> dict[str, Any]:
    device = settings.device
    if device.type == "cuda" and not xgb.build_info().get("USE_CUDA"):  # it would use the CPU
        raise BackendMissing(
            "gp.models.XGB",
            "this XGBoost was built for CPUs",
            got=f"xgboost {xgb.__version__}, rows on {device}",
            expected="the package xgboost-cu13, with CUDA 12 xgboost-cu12, in the place of xgboost-cpu",
            remedy="pip uninstall xgboost-cpu; pip install xgboost-cu13; or gp.Trainer(model, device='cpu')",
        )
    return {
        **settings.params,
        "objective": layout.objective,
        "eval_metric": "quantile" if layout.quantiles else LOSSES[layout.task],
        "device": str(device),
        "tree_method": "hist",
        "nthread": torch.get_num_threads(),
        **({"num_class": layout.outputs} if layout.task == "multiclass" else {}),
        **({"quantile_alpha": layout.quantiles} if layout.quantiles else {}),
    }


def _boost(
    booster: xgb.Booster,
    matrices: Mapping[str, xgb.DMatrix],
    layout: Layout,
    settings: BoostSettings,
    on_round: OnRound,
) -> xgb.Booster:
    """Add trees round by round, report some rounds and the best one, and return the booster up to that one."""
    learned, judged = matrices["train"], matrices.get("valid")
    truth = None if judged is None else _get_targets(judged, layout)
    best, least, of_best, reported = 0, math.inf, dict[str, Any](), set[int]()
    for number in range(1, settings.rounds + 1):
        booster.update(learned, number - 1)
        losses = {} if judged is None else _compute_loss(booster, judged, "valid", layout)
        improves = losses.get("valid_loss", math.inf) < least
        is_last = number == settings.rounds or (
            judged is not None and number - best >= settings.patience and not improves
        )
        is_reported, margins = is_last or number % settings.log_every == 0, None
        if judged is not None and (improves or is_reported):  # it keeps the sums of the earlier rounds
            margins = layout.order(torch.from_numpy(booster.predict(judged, output_margin=True)))
        if improves:
            best, least, of_best = number, losses["valid_loss"], {"losses": losses, "output": margins}
        if is_reported:  # the loss of the train rows takes half as long as a round
            on_round(number, _compute_loss(booster, learned, "train", layout) | losses, margins, truth)
            reported.add(number)
        if is_last:
            break
    if judged is None:
        return booster
    if not best:
        raise BadData(
            "XGB, valid rows",
            "their loss is not finite in any round",
            got=losses["valid_loss"],
            expected="finite targets and weights",
            remedy="check the filters and the split",
        )
    if best not in reported:
        on_round(best, of_best["losses"], of_best["output"], truth)
    return booster[:best]


def _get_targets(matrix: xgb.DMatrix, layout: Layout) -> Batch:
    """Return the targets and weights of a matrix as a batch without features."""
    target, weight = torch.from_numpy(matrix.get_label()), torch.from_numpy(matrix.get_weight())
    if layout.outputs > 1 and layout.task != "multiclass" and not layout.quantiles:
        target = target.reshape(-1, layout.outputs)
    nothing = torch.empty(len(target), 0)
    return Batch(nothing, nothing.int(), target, weight if len(weight) == len(target) else None)


def _compute_loss(booster: xgb.Booster, matrix: xgb.DMatrix, name: str, layout: Layout) -> dict[str, float]:
    """Compute the mean loss over a matrix, of a regression the squared error or the pinball loss, from its text."""
    loss = float(booster.eval_set([(matrix, name)]).rpartition(":")[2])
    return {f"{name}_loss": loss**2 if layout.objective == "reg:squarederror" else loss}


@contextmanager
def connect_ranks(ranks: Ranks) -> Iterator[None]:
    """Connect the ranks by XGBoost's own collective, which rank 0 opens; `ClusterLost` where another one fails."""
    tracker = None
    if ranks.rank == 0:
        tracker = xgb.RabitTracker(ranks.size, socket.gethostbyname(ranks.host), timeout=int(ranks.timeout))
        tracker.start()
    try:
        arguments = ranks.broadcast_object(lambda: tracker and tracker.worker_args())
        with collective.CommunicatorContext(**arguments, dmlc_timeout=int(ranks.timeout)):
            yield
        if tracker is not None:
            tracker.wait_for(int(ranks.timeout))
    except XGBoostError as cause:
        if is_of_others(cause):
            raise ranks.make_lost_error(cause) from None
        raise
    finally:
        if tracker is not None:
            with suppress(XGBoostError):  # it says that nobody came, where a fit failed
                tracker.free()


def make_predictor(text: bytes, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Make a function from B x `width` float32 on a device to margins, of a model that is checked."""
    booster = xgb.Booster({"nthread": torch.get_num_threads(), "device": str(device)})
    booster.load_model(bytearray(text))

    def predict(matrix: Tensor) -> Tensor:
        if device.type == "cpu":
            return torch.from_numpy(booster.inplace_predict(matrix.numpy(), predict_type="margin"))
        torch.cuda.current_stream(device).synchronize()  # XGBoost's stream waits for nobody
        return copy_margins([booster.inplace_predict(matrix, predict_type="margin")], device)

    return predict
