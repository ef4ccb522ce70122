"""Rows of a loader as XGBoost's matrix: in one order however often it asks for them, in chunks of one size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import torch
import xgboost as xgb
from torch import Tensor
from xgboost import collective
from xgboost.core import XGBoostError

from gpupipe.errors import BadData
from gpupipe.models.booster import Layout
from gpupipe.tensors.batch import Batch

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}  # of the rows that XGBoost gets at a time


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
            if self._device.type == "cuda":
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
        if self._is_shard and weight is None:  # as on ranks that have padding
            weight = torch.ones(len(batch), device=self._device)
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


def make_matrix(rows: LoaderRows, name: str, **options: Any) -> xgb.DMatrix:
    """Make a matrix of a loader's rows; raise what the loader raised, and `BadData` where XGBoost refuses the rows."""
    kind = xgb.QuantileDMatrix if rows.cache_prefix is None else xgb.ExtMemQuantileDMatrix
    matrix, reason = None, "the loader has no rows"
    try:
        matrix = kind(rows, enable_categorical=True, nthread=torch.get_num_threads(), **options)
    except XGBoostError as cause:
        if is_of_others(cause) and rows.error is None:
            raise
        reason = get_reason(cause) if "at least 1 batch" not in str(cause) else reason
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


def is_of_others(error: XGBoostError) -> bool:
    """Return whether an error is about the connection to other ranks."""
    return "/collective/" in str(error)


def get_reason(error: XGBoostError) -> str:
    """Return what XGBoost says, without time, file and stack."""
    return str(error).partition("\n")[0].rpartition("] ")[2].rpartition("Check failed: ")[2]
