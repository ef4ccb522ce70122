"""Choice of a network by a schema: its features, and the rows of the fit."""

from __future__ import annotations

from typing import Any

from gpupipe.models.mlp import MLP
from gpupipe.models.tabm import TabM
from gpupipe.models.tabular import Tabular
from gpupipe.schema import Schema
from gpupipe.support.calls import answer_calls

MAX_ENSEMBLE_ROWS = 65_536
DROPOUT = 0.1  # of an MLP


@answer_calls
def auto(schema: Schema, *, seed: int = 0, **options: Any) -> Tabular:
    """Choose a network for `pipeline.schema` and build it: `TabM` for a table of up to 65,536 rows, else `MLP`.

    TabM has the smaller error and its step takes some seven times as long on a CPU: minutes at most up to that many
    rows. The MLP has a dropout of 0.1, as TabM has. The choice goes by the schema alone, so it is the same on every
    device. `docs/benchmarks.md` has the figures, beside trees and linear models.

    Args:
        schema: of a fitted pipeline; one that knows no number of rows gets an `MLP`.
        seed: of the weights.
        options: of either network, such as `hidden` and `dropout`.

    Raises `BadConfig` as `Tabular.from_schema` does.
    Memory: as the network's.

    Example:
        >>> from gpupipe.schema import Field, Role
        >>> fields = [Field("x", "float32", role=Role.FEATURE), Field("y", "float32", role=Role.TARGET)]
        >>> [type(auto(Schema(fields, num_rows=rows))).__name__ for rows in (5_000, 5_000_000)]
        ['TabM', 'MLP']
    """
    num_rows = getattr(schema, "num_rows", None)
    if num_rows is None or num_rows > MAX_ENSEMBLE_ROWS:
        return MLP.from_schema(schema, seed=seed, **{"dropout": DROPOUT, **options})
    return TabM.from_schema(schema, seed=seed, **options)
