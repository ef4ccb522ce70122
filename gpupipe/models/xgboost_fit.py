"""Fit and prediction of XGBoost: the rows of loaders as its matrices, then rounds. Nothing else imports XGBoost."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
import xgboost as xgb
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from xgboost import collective
from xgboost.core import XGBoostError

from gpupipe.errors import BackendMissing, BadConfig, BadData
from gpupipe.files import ScratchFolder
from gpupipe.models.booster import OBJECTIVES, Arrays, Layout, read_booster
from gpupipe.tensors.batch import Batch
from gpupipe.tensors.loader import get_free_bytes

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # of the rows that XGBoost gets at a time
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


class LoaderRows(xgb.DataIter):
    """Rows of a loader for XGBoost, which asks for them four times or more: in one order, in chunks of one size.

    Memory: two chunks of 64 MB on a CPU, of 1 GB on a GPU.
    """

    def __init__(
        self,
        loader: Any,
        layout: Layout,
        device: torch.device,
        check: Callable[[Batch], None],
        class_weight: Tensor | None = None,
        cache_prefix: str | None = None,
        *,
        is_shard: bool = False,
    ) -> None:
        super().__init__(cache_prefix=cache_prefix)
        self._is_shard = is_shard  # of several ranks, whose shorter ones have padding of weight 0, or no row at all
        self._loader, self._layout, self._device, self._check = loader, layout, device, check
        self._class_weight, self._chunks = class_weight, _regroup((), 1)
        self.error: BaseException | None = None

    def reset(self) -> None:
        """Go back to the first row."""
        self.close()
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(0)
        num_rows = max(1, CHUNK_BYTES[self._device.type] // (4 * self._layout.width))
        self._chunks = _regroup(map(self._convert, self._loader), num_rows, keep_empty=self._is_shard)

    def next(self, input_data: Callable[..., None]) -> bool:
        """Hand over a chunk; an exception is kept as `error`, since it cannot pass through XGBoost."""
        try:
            chunk = next(self._chunks, None) if self.error is None else None
            if chunk is None:
                return False
            if self._device.type == "cuda":  # XGBoost's stream waits for nobody
                torch.cuda.current_stream(self._device).synchronize()
            features, target, *weight = (part if part.is_cuda else part.numpy() for part in chunk)
            weights = {"weight": weight[0]} if weight else {}
            input_data(data=features, label=target, feature_types=self._layout.feature_types, **weights)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too: XGBoost would go on with the rows so far
            self.error = error
            return False
        return True

    def close(self) -> None:
        """End the iteration of the loader."""
        self._chunks.close()

    def _convert(self, batch: Batch) -> list[Tensor]:
        """Return a batch's features, its target and, where rows have them, its weights."""
        self._check(batch)
        if batch.target is None:
            problem, expected = "the rows have no target", "batches with a target"
            raise BadData("XGB", problem, expected=expected, remedy="gp.Features(..., target='column')")
        features = torch.empty(len(batch), self._layout.width, device=self._device)
        self._layout.write_matrix(batch, features)
        weight = batch.weight
        if self._class_weight is not None:
            of_class = self._class_weight.to(batch.target.device)[batch.target.long()]
            weight = of_class if weight is None else weight * of_class
        parts = [batch.target] if weight is None else [batch.target, weight]
        rows = [features, *(part.to(self._device, torch.float32) for part in parts)]
        return [part[weight > 0] for part in rows] if self._is_shard and weight is not None else rows


def _regroup(parts: Iterable[Sequence[Tensor]], num_rows: int, *, keep_empty: bool = False) -> Generator[list[Tensor]]:
    """Yield the rows of all parts, each some tensors, so many at a time, whatever the parts' sizes."""
    waiting, count = list[list[Tensor]](), 0
    part: Sequence[Tensor] = ()
    is_empty = True
    for part in parts:
        start, stop = 0, len(part[0])
        while start < stop:
            end = min(stop, start + num_rows - count)
            waiting.append([tensor[start:end] for tensor in part])
            count, start = count + end - start, end
            if count == num_rows:
                yield [torch.cat(tensors) for tensors in zip(*waiting, strict=True)]
                waiting, count, is_empty = [], 0, False
    if is_empty and not count and keep_empty and part:
        yield list(part)
    if count:
        yield [torch.cat(tensors) for tensors in zip(*waiting, strict=True)]


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
    device, params = settings.device, _make_params(layout, settings)
    with ExitStack() as stack:
        stack.enter_context(xgb.config_context(verbosity=0))
        is_shard = ranks is not None and ranks.size > 1
        if ranks is not None and is_shard:
            stack.enter_context(connect_ranks(ranks))

        def make_matrix(loader: Any, name: str, **options: Any) -> xgb.DMatrix:
            external = settings.external_memory
            if external == "auto":
                needed = getattr(loader, "num_rows", 0) * layout.width * BYTES_PER_CELL
                free = get_free_bytes(device)
                external = free is not None and needed > free
            prefix = str(stack.enter_context(ScratchFolder()).path / name) if external else None
            weights = options.pop("class_weight", None)
            rows = LoaderRows(loader, layout, device, check, weights, prefix, is_shard=is_shard)
            kind = xgb.ExtMemQuantileDMatrix if external else xgb.QuantileDMatrix
            return _read_rows(kind, rows, name, max_bin=params.get("max_bin"), **options)

        learned = make_matrix(train, "train", class_weight=class_weight)
        evaluated = [(learned, "train")]
        if valid is not None:
            evaluated.append((make_matrix(valid, "valid", ref=learned), "valid"))
        booster = xgb.Booster(params, [matrix for matrix, _ in evaluated])
        try:
            booster.save_config()  # it looks at the parameters only when they are needed
        except XGBoostError as cause:
            raise BadConfig(
                "XGB(params=)",
                f"XGBoost refuses them ({_get_reason(cause)})",
                got=dict(settings.params),
                expected="values that its documentation of parameters allows",
                remedy="params=None",
            ) from cause
        return read_booster(_boost(booster, evaluated, layout, settings, on_round).save_raw("json"))


def _make_params(layout: Layout, settings: BoostSettings) -> dict[str, Any]:
    device = settings.device
    if device.type == "cuda" and not xgb.build_info().get("USE_CUDA"):  # it would use the CPU
        problem, got = "this XGBoost was built for CPUs", f"xgboost {xgb.__version__}, rows on {device}"
        remedy = "pip uninstall xgboost-cpu; pip install xgboost; or device='cpu'"
        raise BackendMissing("XGB", problem, got=got, expected="the package xgboost", remedy=remedy)
    return {
        **settings.params,
        "objective": OBJECTIVES[layout.task],
        "eval_metric": LOSSES[layout.task],
        "device": str(device),
        "tree_method": "hist",
        "nthread": torch.get_num_threads(),
        **({"num_class": layout.outputs} if layout.task == "multiclass" else {}),
    }


def _read_rows(kind: type[xgb.DMatrix], rows: LoaderRows, name: str, **options: Any) -> xgb.DMatrix:
    """Make a matrix of a loader's rows; raise what the loader raised, and `BadData` where XGBoost refuses the rows."""
    matrix, reason = None, "the loader has no rows"
    try:
        matrix = kind(rows, enable_categorical=True, nthread=torch.get_num_threads(), **options)
    except XGBoostError as cause:
        if _is_of_others(cause) and rows.error is None:
            raise
        reason = _get_reason(cause) if "at least 1 batch" not in str(cause) else reason
    finally:
        rows.close()
    if rows.error is not None:
        raise rows.error
    if matrix is not None:
        weight = matrix.get_weight()
        if not len(weight) or weight.sum() > 0 or collective.is_distributed():
            return matrix
        reason = "the weights of its rows sum to 0"
    raise BadData(
        f"XGB, {name} rows",
        f"no matrix can be made of them: {reason}",
        expected="at least one row that counts, finite features and targets",
        remedy="check the filters, the split and the weights: len(dataset)",
    )


def _boost(
    booster: xgb.Booster,
    evaluated: Sequence[tuple[xgb.DMatrix, str]],
    layout: Layout,
    settings: BoostSettings,
    on_round: OnRound,
) -> xgb.Booster:
    """Add trees round by round, report some rounds and the best one, and return the booster up to that one."""
    learned, *judged = (matrix for matrix, _ in evaluated)
    truth = _get_targets(judged[0], layout) if judged else None
    best, least, of_best, reported = 0, math.inf, dict[str, Any](), set[int]()
    for number in range(1, settings.rounds + 1):
        booster.update(learned, number - 1)
        losses = _read_losses(booster.eval_set(evaluated), layout)
        improves = losses.get("valid_loss", math.inf) < least
        is_last = number == settings.rounds or (judged and number - best >= settings.patience and not improves)
        is_reported, margins = is_last or number % settings.log_every == 0, None
        if judged and (improves or is_reported):  # it keeps the sums of the earlier rounds
            margins = torch.from_numpy(booster.predict(judged[0], output_margin=True))
        if improves:
            best, least, of_best = number, losses["valid_loss"], {"losses": losses, "output": margins}
        if is_reported:
            on_round(number, losses, margins, truth)
            reported.add(number)
        if is_last:
            break
    if not judged:
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
    if layout.outputs > 1 and layout.task != "multiclass":
        target = target.reshape(-1, layout.outputs)
    nothing = torch.empty(len(target), 0)
    return Batch(nothing, nothing.int(), target, weight if len(weight) else None)


def _read_losses(text: str, layout: Layout) -> dict[str, float]:
    r"""Read `[0]\ttrain-rmse:0.5\tvalid-rmse:0.6` as the means of losses, squared errors of a regression."""
    parts = (part.split(":") for part in text.split("\t")[1:])
    found = {f"{name.partition('-')[0]}_loss": float(value) for name, value in parts}
    return {name: value**2 for name, value in found.items()} if layout.task == "regression" else found


@contextmanager
def connect_ranks(ranks: Ranks) -> Iterator[None]:
    """Connect the ranks by XGBoost's own collective, which rank 0 opens; `ClusterLost` where another one fails."""
    tracker = None
    if ranks.rank == 0:
        address = socket.gethostbyname(ranks.host)
        tracker = xgb.RabitTracker(ranks.size, host_ip=address, sortby="task", timeout=int(ranks.timeout))
        tracker.start()
    arguments = ranks.broadcast_object(lambda: tracker and tracker.worker_args())
    try:
        with collective.CommunicatorContext(
            **arguments, dmlc_task_id=f"{ranks.rank:08d}", dmlc_timeout=int(ranks.timeout)
        ):
            yield
    except XGBoostError as cause:
        if _is_of_others(cause):
            raise ranks.make_lost_error(cause) from None
        raise
    if tracker is not None:
        tracker.wait_for(int(ranks.timeout))


def _is_of_others(error: XGBoostError) -> bool:
    """Return whether an error is about the connection to other ranks."""
    return "/collective/" in str(error)


def _get_reason(error: XGBoostError) -> str:
    """Return what XGBoost says, without time, file and stack."""
    return str(error).partition("\n")[0].rpartition("] ")[2].rpartition("Check failed: ")[2]


def make_predictor(text: bytes) -> Callable[[Tensor], Tensor]:
    """Make a function from B x `width` float32 to margins, of a model that is checked."""
    booster = xgb.Booster({"nthread": torch.get_num_threads()})
    booster.load_model(bytearray(text))

    def predict(matrix: Tensor) -> Tensor:
        if matrix.is_cuda:
            booster.set_param({"device": str(matrix.device)})
            torch.cuda.current_stream(matrix.device).synchronize()
            return from_dlpack(booster.inplace_predict(matrix, predict_type="margin"))
        return torch.from_numpy(booster.inplace_predict(matrix.numpy(), predict_type="margin"))

    return predict
