"""Lists from a frame to the batches, wherever the table lies and however it is read."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.tensors import Ragged


def plain(lists: Ragged) -> list[list[int]]:
    values, offsets = lists.pad(4), lists.offsets.tolist()
    return [row[: end - start].tolist() for row, (start, end) in zip(values, pairwise(offsets), strict=True)]


@pytest.mark.parametrize("residency", ["device", "host", "stream"])
@pytest.mark.parametrize("shuffle", [False, "blocks"])
def test_lists_come_along_from_wherever_the_table_lies(residency: str, shuffle: bool | str) -> None:
    rows = [[number % 90] * (number % 4) for number in range(50)]
    frame = pd.DataFrame({"x": np.arange(50.0), "seen": pd.Series(rows, dtype=pd.ArrowDtype(pa.list_(pa.int64())))})
    features = gp.Features((["x"], pre.SimpleImputer()), (["seen"], pre.Categorify(min_frequency=1)))
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    data = gp.from_frame(frame, num_partitions=3, backend="cpu")
    ids = pa.array(pipeline.transform(frame)["seen"]).to_pylist()
    given = []
    for rank in range(2):
        loader = pipeline.loader(
            data, batch_size=8, shuffle=shuffle, residency=residency, block_rows=7, window=2, rank=rank, world_size=2
        )
        for batch in loader:
            assert len(batch.lists["seen"]) == len(batch)
            real = range(len(batch)) if batch.weight is None else batch.weight.nonzero()[:, 0].tolist()
            own, lists = batch.numeric[:, 0].long().tolist(), plain(batch.lists["seen"])
            assert [lists[place] for place in real] == [ids[own[place]] for place in real]
            assert not any(lists[place] for place in range(len(batch)) if place not in real)
            given += [own[place] for place in real]
    assert sorted(given) == list(range(50))
