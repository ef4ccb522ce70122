"""Rows to calibrate a scorer on: its outputs for them, their targets, weights and groups."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gpupipe.backend import Column, resolve, select
from gpupipe.backend.kernels import hash_column
from gpupipe.errors import BadConfig, BadData
from gpupipe.io import Dataset, run_partitions
from gpupipe.pipeline.bound_pipeline import BoundPipeline, select_rows
from gpupipe.pipeline.row_sets import compute_lineage
from gpupipe.saving.calibrator import check_groups
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import Role, Schema
from gpupipe.tensors import FeatureTable

_log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class CalibrationRows:
    """Rows to calibrate on: outputs (logits, or a regression's values), targets, weights, and groups.

    `hashes` are the groups' as int64, and `names` what they are called.
    """

    output: Tensor
    target: Tensor
    weight: Tensor | None
    hashes: Tensor | None
    names: dict[int, str]


def collect_rows(
    scorer: Scorer, dataset: Dataset, by: str | None, rows: str | None, history: Dataset | None, batch_size: int
) -> CalibrationRows:
    """Compute the outputs for `rows` with a target, partition by partition; warn where these are the fit's.

    `ColumnNotFound` or `BadConfig` where `by` has no groups, `BadData` for rows without a target.
    """
    pipeline, features = scorer.pipeline, scorer.pipeline.features
    backend = resolve(pipeline.backend)
    if by is not None:
        if by in dataset.schema and by not in pipeline._after:  # no scorer would find the groups of rows to predict
            problem, expected = f"the pipeline was fitted on rows without column {by!r}", "a column of those rows"
            remedy = f"gp.fit(...) on rows that have {by!r}, or another column"
            raise BadConfig("calibrate(by=)", problem, got=by, expected=expected, remedy=remedy)
        check_groups("calibrate", by, pipeline._after)
    run, dataset_read = pipeline._bind_to_train(dataset, None, backend, by, rows, history, "calibrate")
    if not run.schema.targets or features is None:
        expected, remedy = "rows with the truth to compare with", "data with the columns that the target is made of"
        raise BadData("calibrate", "the rows have no target", got=dataset.columns, expected=expected, remedy=remedy)
    part = select_rows(dataset, rows)
    lineage = features.lineage_ and compute_lineage(part, features._label_sources(pipeline._after))
    if pipeline._shares_rows(part) or (lineage is not None and lineage == features.lineage_):
        _log.warning(
            "calibrate: rows that the pipeline was fitted on are among these, and of those its model is too sure; "
            "calibrate on rows that were left out: train, calibration = train.split(0.8)"
        )
    work = partial(_compute_rows, scorer, run, by, batch_size, backend)
    parts = list(run_partitions(work, dataset_read, backend, "calibrate"))
    output, target = (torch.cat([getattr(part, name) for part in parts]) for name in ("output", "target"))
    weights, hashes = ([getattr(part, name) for part in parts] for name in ("weight", "hashes"))
    return CalibrationRows(
        output,
        target,
        None if weights[0] is None else torch.cat(weights),
        None if hashes[0] is None else torch.cat(hashes),
        {value: name for part in parts for value, name in part.names.items()},
    )


def _compute_rows(
    scorer: Scorer, run: BoundPipeline, by: str | None, batch_size: int, backend_name: str, part: Dataset
) -> CalibrationRows:
    """Compute the outputs for the rows of one partition."""
    backend, (partition,) = select(backend_name), part.partitions
    row_ids = partition.row_ids(backend.xp) if run.draws_rows else None
    is_regression = scorer.schema.task == "regression"  # whose target is compared in its own units, to the last digit
    columns, frame = run.columns(part.read(partition, run.reads, backend), backend, row_ids, stored=not is_regression)
    inputs = Schema([*run.schema.with_role(Role.FEATURE), *run.schema.with_role(Role.WEIGHT)])
    table = FeatureTable.allocate(inputs, len(frame), scorer.device)
    table.write(0, columns, backend)
    weight = table.batch_of(table.words).weight
    output = scorer._output(table, batch_size)
    targets = [torch.as_tensor(columns[item.name].data, device=output.device) for item in run.schema.targets]
    target = torch.stack([each.double() for each in targets], 1)
    output, target = (
        (scorer._in_units(output), target) if is_regression else (output, target if len(targets) > 1 else target[:, 0])
    )
    hashes, names = None, dict[int, str]()
    if by is not None:
        column = backend.column(frame, by)
        bits = hash_column(column, 0, backend).view("int64")
        values, first = backend.xp.unique(bits, return_index=True)
        examples = column.take(first).move(backend.to_host)
        names = dict(zip(backend.to_host(values).tolist(), _name_values(examples), strict=True))
        hashes = torch.as_tensor(bits, device=output.device)
    return CalibrationRows(output, target, weight, hashes, names)


def _name_values(column: Column) -> list[str]:
    """Return the values of a column on the host as text."""
    words, missing = column.dictionary, column.missing(select("cpu").xp)
    gaps = [False] * len(column) if missing is None else missing.tolist()
    pairs = zip(column.data.tolist(), gaps, strict=True)
    return ["missing" if gap else str(value if words is None else words[value]) for value, gap in pairs]


def compute_scores(scorer: Scorer, rows: CalibrationRows) -> Tensor:
    """Compute how far each row's truth is from what is predicted, n x T; of classes minus the true one's probability.

    Of quantiles it is the distance beyond the outer two, negative inside (Romano et al. 2019, equation 6).
    """
    if scorer.schema.task != "regression":
        classes = rows.target.long()[:, None]
        return -scorer._chances(rows.output).double().gather(1, classes)
    if getattr(scorer.model, "quantiles", None):
        low, high = rows.output[:, :1].double(), rows.output[:, -1:].double()
        return torch.maximum(low - rows.target, rows.target - high)
    return (rows.output.double() - rows.target).abs()
