"""Pipelines whose block the kernel writes, beside the same ones column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.errors import BadData

NUM_ROWS = 300


def table(seed: int = 0) -> pd.DataFrame:
    """Columns of several types, most with missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "f8": rng.normal(1e9, 3, NUM_ROWS),
            "f4": rng.gamma(2, 9, NUM_ROWS).astype("float32"),
            "i8": pd.array(rng.integers(-(10**12), 10**12, NUM_ROWS), dtype="Int64"),
            "i1": pd.array(rng.integers(-128, 128, NUM_ROWS), dtype="Int8"),
            "b": pd.array(rng.random(NUM_ROWS) < 0.3, dtype="boolean"),
            "whole": rng.integers(0, 9, NUM_ROWS).astype("int32"),
            "text": rng.choice(["x", "y", "z"], NUM_ROWS),
            "plain": rng.normal(size=NUM_ROWS),
            "label": rng.normal(size=NUM_ROWS),
        }
    )
    for name in ("f8", "f4", "i8", "i1", "b"):
        frame.loc[rng.random(NUM_ROWS) < 0.2, name] = None
    return frame


def fill(*after: Any, strategy: str = "median", **options: Any) -> list[Any]:
    return [pre.SimpleImputer(strategy=strategy, **options), *after]


CHAINS = {
    "standard": [(["f8", "f4", "i8", "i1", "b"], fill(pre.StandardScaler()))],
    "robust": [(["f8", "f4", "i8"], fill(pre.RobustScaler(), strategy="mean"))],
    "range": [(["f4", "i1"], fill(pre.MinMaxScaler((-1, 3), clip=True))), (["i8"], fill(pre.MaxAbsScaler()))],
    "constant": [
        (["i8", "f4", "b"], fill(strategy="constant", fill_value=1)),
        (["i1"], fill(strategy="most_frequent")),
    ],
    "alone": [(["whole"], pre.StandardScaler()), ["plain"]],
    "flags": [(["f8", "b"], fill(pre.StandardScaler(), add_indicator=True))],
    "two scales": [(["f4", "i8"], fill(pre.StandardScaler(), pre.MinMaxScaler()))],
    "in the middle": [(["f8", "f4"], fill(pre.StandardScaler(), pre.PCA(2), pre.MinMaxScaler()))],
    "late fill": [(["f4"], [pre.StandardScaler(), pre.SimpleImputer()])],
    "with ids": [
        (["f4", "i1"], fill(pre.StandardScaler())),
        (["text"], pre.Categorify()),
        (["whole"], pre.Categorify()),
    ],
}


def fitted(groups: Any, frame: pd.DataFrame) -> gp.Pipeline:
    return gp.Pipeline([], gp.Features(*groups, target="label", keep=["text"]), backend="cpu").fit(frame)


@pytest.mark.parametrize("chain", CHAINS)
def test_the_block_is_the_one_of_single_columns(chain: str, request: pytest.FixtureRequest) -> None:
    frame = table()
    pipeline = fitted(CHAINS[chain], frame)
    alone, frames = pipeline.loader(frame).table, pipeline.transform(frame)
    said = request.getfixturevalue("fusing")
    block = pipeline.loader(frame).table
    assert said == [True]
    torch.testing.assert_close(block.numeric, alone.numeric, rtol=0, atol=0)
    assert torch.equal(block.codes, alone.codes) and torch.equal(block.target, alone.target)
    pd.testing.assert_frame_equal(pipeline.transform(frame), frames)


def test_a_logarithm_is_off_by_its_last_bit_at_most(request: pytest.FixtureRequest) -> None:
    frame = table()
    groups = [(["f4", "whole"], fill(pre.Log1p(), pre.StandardScaler()))]
    pipeline = fitted(groups, frame)
    alone = pipeline.loader(frame).table
    assert request.getfixturevalue("fusing") == []
    torch.testing.assert_close(pipeline.loader(frame).table.numeric, alone.numeric, rtol=3e-7, atol=3e-7)


def test_what_a_step_refuses_is_refused_in_its_words(fusing: list[bool]) -> None:
    frame = table()
    pipeline = fitted([(["f4", "f8"], fill(pre.StandardScaler()))], frame)
    frame.loc[7, "f8"] = np.inf
    with pytest.raises(BadData, match=r"SimpleImputer, column 'f8': 1 infinite value") as caught:
        pipeline.loader(frame)
    assert "SimpleImputer" in caught.value.__notes__[0]
    logged = fitted([(["whole"], [pre.Log1p()])], table())
    frame["whole"] = np.int32(-1)
    with pytest.raises(BadData, match="have no logarithm"):
        logged.loader(frame)
    bare = fitted([(["f4"], pre.StandardScaler())], frame)
    with pytest.raises(BadData, match=r"column 'f4': .* missing values would reach the model"):
        bare.loader(frame)
    assert fusing == [False] * 3


def test_what_a_range_holds_is_not_refused(fusing: list[bool]) -> None:
    frame = table().assign(whole=1.0)
    pipeline = fitted([(["whole"], pre.MinMaxScaler(clip=True))], frame.assign(whole=np.arange(NUM_ROWS) * 1.0))
    frame.loc[0, "whole"] = np.inf
    assert pipeline.loader(frame).table.numeric.max() == 1
    assert fusing == [False]  # the kernel stops at an infinity, and the columns are made one by one


def test_many_columns(fusing: list[bool]) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(130, 300)), columns=[f"x{place}" for place in range(300)])
    frame["label"] = 0.0
    frame = frame.mask(rng.random(frame.shape) < 0.1).assign(label=[0.0, 1.0] * 65, text="a")
    pipeline = fitted([([f"x{place}" for place in range(300)], fill(pre.StandardScaler()))], frame)
    found = pipeline.loader(frame).table.numeric.numpy()
    expected = pipeline.transform(frame).iloc[:, :300].to_numpy()
    np.testing.assert_array_equal(found, expected)
    assert fusing == [True]
