"""A table that is streamed gives the batches of one that lies in memory, and its faults have a name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.tensors import Batch, Loader
from tests.raising import raises

ROWS = 600


def frame() -> pd.DataFrame:
    number = np.arange(ROWS)
    return pd.DataFrame(
        {
            "x": number * 1.0,
            "s": [f"word {n % 7}" for n in number],
            "y": np.where(number % 10 == 3, np.nan, number % 2),
            "w": 1.0 + number % 3,
            "k": [f"row {n}" for n in number],
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of several row groups, one of them empty."""
    folder = tmp_path_factory.mktemp("streamed")
    for number, (start, stop) in enumerate([(0, 130), (130, 130), (130, 400), (400, ROWS)]):
        frame().iloc[start:stop].to_parquet(folder / f"{number}.parquet", row_group_size=60)
    return folder


def pipeline(steps: list[Any], data: Any) -> gp.Pipeline:
    features = gp.Features((["x"], pre.StandardScaler()), (["s"], pre.Categorify()), target="y", weight="w", keep=["k"])
    return gp.Pipeline(steps, features, backend="cpu").fit(data)


def told(loader: Loader) -> list[tuple[Any, ...]]:
    """What the rows of each batch are, their words decoded."""
    found = []
    for batch in loader:
        words = loader.dictionaries["k"].to_pylist()
        keys = [words[code] for code in batch.keep["k"].tolist()]
        assert batch.target is not None and batch.weight is not None
        parts = batch.numeric[:, 0], batch.codes[:, 0], batch.target, batch.weight
        found.append((keys, *(part.tolist() for part in parts)))
    return found


@pytest.mark.parametrize("steps", [[], [T.Filter("x < 250 or x > 320")]], ids=["all rows", "filtered"])
@pytest.mark.parametrize("partition_bytes", [1, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "order",
    [{}, {"shuffle": "blocks", "block_rows": 64, "window": 3}, {"shuffle": "blocks"}],
    ids=str,
)
def test_the_same_batches_wherever_the_table_lies(
    files: Path, steps: list[Any], partition_bytes: int | None, order: dict[str, Any]
) -> None:
    data = gp.read_parquet(files, partition_bytes=partition_bytes)
    made = pipeline(steps, data)
    loaders = [
        made.loader(data, batch_size=33, seed=4, residency=residency, reuse_buffers=reuse, **order)
        for residency, reuse in (("device", False), ("host", True), ("stream", False), ("stream", True))
    ]
    for _ in range(2):  # epochs
        first, *others = [told(loader) for loader in loaders]
        assert len(first) == len(loaders[0]) == -(-len({key for keys, *_ in first for key in keys}) // 33)
        for other in others:
            assert other == first
    assert threads() == []


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gpupipe")]


@pytest.mark.slow
def test_it_goes_on_from_each_position(files: Path) -> None:
    data = gp.read_parquet(files)
    options: dict[str, Any] = {"batch_size": 90, "shuffle": "blocks", "block_rows": 64, "window": 2, "seed": 1}
    made = pipeline([], data)
    whole = told(made.loader(data, **options))
    loader = made.loader(data, residency="stream", **options)
    state = loader.state_dict()
    for position in range(len(whole) + 1):
        loader.load_state_dict(state | {"batch": position})
        assert told(loader) == whole[position:]


@pytest.mark.slow
def test_ranks_share_a_streamed_table(files: Path) -> None:
    data = gp.read_parquet(files)
    made = pipeline([], data)
    options: dict[str, Any] = {"batch_size": 90, "shuffle": "blocks", "block_rows": 64, "window": 2}
    alone = [keys for keys, *_ in told(made.loader(data, **options))]
    ranks = [told(made.loader(data, residency="stream", rank=rank, world_size=4, **options)) for rank in range(4)]
    for step, keys in enumerate(alone):
        real = [key for rank in ranks for key, weight in zip(rank[step][0], rank[step][4], strict=True) if weight > 0]
        assert real == keys


@pytest.mark.slow
def test_stopping_early_ends_the_threads(files: Path) -> None:
    data = gp.read_parquet(files)
    loader = pipeline([], data).loader(data, residency="stream", batch_size=10, block_rows=64)
    for _ in range(3):
        for _ in loader:
            break
        batches = iter(loader)
        next(batches)
        del batches
        assert threads() == []
    assert loader.state_dict()["batch"] == 1


def test_what_fails_in_the_thread_is_named(tmp_path: Path) -> None:
    for number in range(3):
        frame().iloc[number * 200 : number * 200 + 200].to_parquet(tmp_path / f"{number}.parquet")
    data = gp.read_parquet(tmp_path)
    features = gp.Features(["x"], target="w")
    loader = (
        gp.Pipeline([], features, backend="cpu")
        .fit(data)
        .loader(data, residency="stream", batch_size=50, block_rows=200)
    )
    given: list[Batch] = []
    (tmp_path / "1.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(errors.GpupipeError, match=r"1\.parquet"):
        given.extend(loader)
    assert len(given) <= 4 and threads() == []


def test_a_row_that_is_bad_is_named_with_its_partition(tmp_path: Path) -> None:
    for number in range(2):
        frame().iloc[number * 200 : number * 200 + 200].to_parquet(tmp_path / f"{number}.parquet")
    data = gp.read_parquet(tmp_path)
    made = gp.Pipeline([], gp.Features(["x"], target="w"), backend="cpu").fit(data)
    bad = frame().iloc[:200]
    bad.loc[7, "x"] = np.inf
    (tmp_path / "2").mkdir()
    bad.to_parquet(tmp_path / "2" / "bad.parquet")
    loader = made.loader(gp.read_parquet(tmp_path / "2"), residency="stream")
    with raises(errors.BadData, where="column 'x'", match="1 infinite value") as caught:
        list(loader)
    assert any("bad.parquet" in note for note in caught.value.__notes__)
    assert threads() == []


def test_what_a_streamed_table_cannot_do(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = gp.read_parquet(files)
    made = pipeline([], data)
    for shuffle in (True, "rows"):
        with raises(errors.BadConfig, where="loader", got="shuffle='rows'"):
            made.loader(data, residency="stream", shuffle=shuffle)
    with raises(errors.BadConfig, where="loader", got="a sampler"):
        made.loader(data, residency="stream", sampler="balanced")
    loader = made.loader(data, residency="stream", shuffle="blocks", block_rows=8, window=1)
    assert "larger block_rows read less" in caplog.text
    with raises(errors.BadConfig, where="loader", remedy="residency='host' or 'device'"):
        loader.arrays()


def test_the_rows_of_the_fit_are_known_here_too(files: Path) -> None:
    data = gp.read_parquet(files)
    features = gp.Features((["s"], pre.TargetEncoder()), target="y")
    made = gp.Pipeline([], features, backend="cpu").fit(data)
    with pytest.raises(errors.LeakageError):
        made.loader(data, residency="stream")
    lying, streamed = (
        torch.cat([batch.numeric for batch in made.loader(data, residency=residency, out_of_fold=True)])
        for residency in ("device", "stream")
    )
    assert torch.equal(lying, streamed)


def test_no_rows_at_all(files: Path) -> None:
    data = gp.read_parquet(files)
    made = pipeline([], data)
    nothing = data.filter("x < -1")
    for shuffle in (False, "blocks"):
        assert list(made.loader(nothing, residency="stream", shuffle=shuffle)) == []


@pytest.mark.slow
@pytest.mark.parametrize("residency", ["device", "host", "stream"])
def test_numbers_in_half_the_memory(files: Path, residency: str) -> None:
    data = gp.read_parquet(files)
    made = pipeline([], data)
    exact, halves = (
        torch.cat([batch.numeric for batch in made.loader(data, residency=residency, dtype=dtype)])
        for dtype in ("float32", "bfloat16")
    )
    assert halves.dtype == torch.float32 and torch.equal(halves, exact.bfloat16().float())
    with raises(errors.BadConfig, where="FeatureTable(dtype=)", got="float16"):
        made.loader(data, dtype="float16")


@pytest.mark.parametrize("how", ["left", "inner"])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.slow
def test_rows_that_a_join_doubles_are_all_in_the_table(how: Any, chained: bool) -> None:
    left = gp.from_frame(pd.DataFrame({"k": np.arange(5000), "x": np.arange(5000.0)}), num_partitions=3, backend="cpu")
    right = pd.DataFrame({"k": np.repeat(np.arange(100, 5100), 2), "z": np.arange(10_000.0)})
    right["y"] = right["z"] % 3
    join = T.Join(gp.from_frame(right), on="k", how=how, many=True)
    features = gp.Features((["x", "z"], pre.SimpleImputer()), target="y", task="regression")
    if chained:
        data, steps = gp.Pipeline([join], backend="cpu").fit(left).transform(left), []
        assert repr(data).startswith("Dataset of some rows of 5,000 rows")
    else:
        data, steps = left, [join]
    pipeline = gp.Pipeline(steps, features, backend="cpu").fit(data)
    expected = left.to_pandas().merge(right, on="k")
    for residency in ("auto", "host", "stream"):
        batches = list(pipeline.loader(data, residency=residency, batch_size=512))
        values = np.concatenate([batch.numeric.numpy() for batch in batches])
        np.testing.assert_array_equal(values, expected[["x", "z"]].to_numpy())
