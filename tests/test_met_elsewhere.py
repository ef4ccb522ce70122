"""What users of NVTabular met, where no other test shows that it is not here (the table is in docs/api-table.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T


def table(rows: int = 500) -> pd.DataFrame:
    words = [f"w{row % 7}" for row in range(rows)]
    return pd.DataFrame({"x": range(rows), "s": words, "late": [row % 3 == 0 for row in range(rows)]})


def features() -> gp.Features:
    return gp.Features((["x"], pre.StandardScaler()), (["s"], pre.Categorify()), target="late")


def test_a_step_runs_once_per_partition_however_many_use_it() -> None:
    """NVTabular runs a node again for each node after it: 64 times for six levels of branches that meet again."""
    calls = []

    def root(frame: pd.DataFrame) -> pd.DataFrame:
        calls.append(len(frame))
        return frame.assign(a0=frame["x"] * 1.0)

    levels = [T.Derive(**{f"l{i}": f"a{i} + 1", f"r{i}": f"a{i} - 1", f"a{i + 1}": f"l{i} + r{i}"}) for i in range(6)]
    groups = [([f"a{i}"], pre.StandardScaler()) for i in range(7)]
    data = gp.from_frame(table(), num_partitions=4)
    pipeline = gp.Pipeline([T.Map(root, reads=["x"], adds=["a0"]), *levels], gp.Features(*groups)).fit(data)
    calls.clear()
    pipeline.transform(data).compute()
    assert sorted(calls) == [125] * 4
    calls.clear()
    pipeline.fit(data)
    assert sorted(calls)[-4:] == [125] * 4 and sum(calls) <= 500 + 125  # a first part may tell the types


@pytest.mark.parametrize("stats", [["min"], ["max"], ["min", "max"], ["std"], ["size"]], ids="+".join)
def test_statistics_of_groups_can_be_had_alone(stats: list[str]) -> None:
    """NVTabular's `JoinGroupby` wants others beside a least or greatest value, and one kind of name."""
    frame = table(20)[["s", "x"]].rename(columns={"s": "a_word"})
    found = pre.GroupStats("a_word", stats).fit_transform(frame)
    for stat in stats:
        name = "size_by_a_word" if stat == "size" else f"x_{stat}_by_a_word"
        assert found[name].tolist() == pytest.approx(frame.groupby("a_word")["x"].transform(stat).tolist())


def test_learning_leaves_nothing_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gp.Pipeline([], features()).fit(gp.from_frame(table(), num_partitions=3)).transform(table())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_goes_takes_nothing_with_it(tmp_path: Path) -> None:
    """Neither what was saved nor what was loaded looks for its vocabulary in the folder again."""
    pipeline = gp.Pipeline([], features()).fit(table())
    wanted = pipeline.transform(table())
    gp.save(tmp_path / "run", pipeline)
    loaded = gp.load(tmp_path / "run").pipeline
    shutil.rmtree(tmp_path / "run")
    pd.testing.assert_frame_equal(pipeline.transform(table()), wanted)
    pd.testing.assert_frame_equal(loaded.transform(table()), wanted)


def test_a_shuffle_mixes_rows_of_all_partitions_anew_in_every_epoch() -> None:
    """NVTabular's shuffle leaves the partitions in their order: 0, 1, 2, 3, 4 in every epoch."""
    data = gp.from_frame(table(), num_partitions=5)
    pipeline = gp.Pipeline([], gp.Features(["x"], target="late")).fit(data)
    loader = pipeline.loader(data, batch_size=50, shuffle="rows", seed=3)
    epochs = [[batch.numeric[:, 0].int().tolist() for batch in loader] for _ in range(3)]
    for batches in epochs:
        assert all(len({row // 100 for row in batch}) == 5 for batch in batches)
        assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_loader_is_no_sequence() -> None:
    """NVTabular's gives the next batch for `loader[i]`, whatever `i` is."""
    loader = gp.Pipeline([], features()).fit(table()).loader(table())
    with pytest.raises(TypeError, match="not subscriptable"):
        loader[3]  # type: ignore[index]
