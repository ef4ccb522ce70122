"""A list of words in a file, as far as a prediction: the whole way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.evaluation import host_rows
from gpupipe.models import MLP
from gpupipe.training import Trainer
from tests.raising import raises

N = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("lists")
    words = [None if rng.random() < 0.1 else rng.choice(list("abcde"), rng.integers(0, 5)).tolist() for _ in range(N)]
    late = ["a" in (own or ()) for own in words]
    seen = [rng.integers(0, 9, rng.integers(0, 6)).tolist() for _ in range(N)]
    table = pa.table({"words": words, "seen": seen, "x": rng.normal(size=N), "late": late})
    pq.write_table(table, path / "t.parquet", row_group_size=90)
    return path


def pipeline() -> gp.Pipeline:
    return gp.Pipeline(
        [],
        gp.Features(
            (["words"], pre.Categorify()),
            (["seen"], [pre.Categorify(), pre.ListSlice(-3, pad=True)]),
            "x",
            target="late",
        ),
    )


@pytest.mark.slow
def test_from_a_file_to_predictions(folder: Path, tmp_path: Path) -> None:
    flights = gp.read_parquet(folder, partition_bytes=1)
    learned = pipeline().fit(flights)
    assert [(item.name, item.dtype, item.cardinality) for item in learned.schema.lists] == [
        ("words", "list<int32>", 7),
        ("seen", "list<int32>", 11),
    ]
    model = MLP.from_schema(learned.schema, hidden=(16,), seed=1)
    loader = learned.loader(flights, batch_size=64, shuffle=True)
    Trainer(model, max_epochs=25, lr=1e-2).fit(loader)
    gp.save(tmp_path / "artifact", learned, model)
    scorer = gp.load(tmp_path / "artifact")
    assert scorer.schema == learned.schema
    frame = flights.compute()
    scored = scorer.predict(frame)
    assert (scored["prediction"] == frame["late"]).mean() > 0.97
    streamed = scorer.predict_proba(flights).compute()["probability"]
    np.testing.assert_allclose(streamed, scorer.predict_proba(frame)["probability"], atol=1e-6)
    alone = scorer.predict_proba(frame.iloc[:1])["probability"]
    np.testing.assert_allclose(alone, streamed[:1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 7, 16])
def test_features_do_not_depend_on_partitions(folder: Path, parts: int) -> None:
    frame = gp.read_parquet(folder).compute()
    wanted, learned = pipeline().fit(frame), pipeline().fit(gp.from_frame(frame, num_partitions=parts))
    assert learned.schema == wanted.schema
    pd.testing.assert_frame_equal(
        learned.transform(gp.from_frame(frame, num_partitions=parts)).compute(), wanted.transform(frame)
    )
    loader = learned.loader(gp.from_frame(frame, num_partitions=parts), batch_size=N)
    batch = next(iter(loader))
    assert _plain(batch.lists["seen"]) == batch.lists["seen"].pad(3).tolist()
    words = [[] if row is pd.NA else list(row) for row in wanted.transform(frame)["words"].tolist()]
    assert _plain(batch.lists["words"]) == words


def _plain(lists: Any) -> list[list[int]]:
    elements = lists.values  # noqa: PD011 - a tensor
    return [part.tolist() for part in elements.split(lists.lengths.tolist())]


@pytest.mark.parametrize("words", [[None, None], [[], []], [["a"], ["never seen", None]]])
def test_new_data_with_other_lists(folder: Path, words: list[Any]) -> None:
    learned = pipeline().fit(gp.read_parquet(folder))
    frame = pd.DataFrame(
        {"words": pd.Series(words, dtype=object), "seen": [[1], np.array([2], np.int8)], "x": [0.0, 1.0]}
    )
    made = learned.transform(frame)["words"]
    ids = {"a": learned.transform(frame.assign(words=[["a"], ["a"]]))["words"].tolist()[0][0], "never seen": 1, None: 0}
    wanted = [None if row is None else [ids[word] for word in row] for row in words]
    assert [None if row is pd.NA else list(row) for row in made.tolist()] == wanted


def test_a_column_that_is_no_list_any_more(folder: Path) -> None:
    learned = pipeline().fit(gp.read_parquet(folder))
    frame = pd.DataFrame({"words": ["a", "b"], "seen": [[1], [2]], "x": [0.0, 1.0]})
    with raises(errors.SchemaMismatch, where="column 'words'", got="string"):
        learned.transform(frame)


def test_lists_of_texts_are_no_feature(folder: Path) -> None:
    with raises(errors.SchemaMismatch, where="feature 'words'", match="pre.Categorify"):
        gp.Pipeline([], gp.Features("words", target="late")).fit(gp.read_parquet(folder))


def test_a_model_of_ones_own_gets_lists(folder: Path) -> None:
    class Longest(torch.nn.Module):
        def forward(self, batch: gp.Batch) -> torch.Tensor:
            return batch.lists["seen"].lengths.float()

    flights = gp.read_parquet(folder)
    learned = gp.Pipeline([], gp.Features((["seen"], pre.HashBucket(50)), target="x")).fit(flights)
    batch = next(iter(learned.loader(flights, batch_size=N)))
    assert Longest()(batch).tolist() == [len(row) for row in flights.compute()["seen"].tolist()]


def test_lists_are_proposed_and_selected(folder: Path) -> None:
    flights = gp.read_parquet(folder)
    proposed = gp.Features.auto(flights, target="late")
    assert (["words", "seen"], "[Categorify()]") in [(g.columns, repr(g.steps)) for g in proposed.groups]
    chosen = gp.Features((gp.selectors.by_kind("list"), pre.Categorify()), target="late")
    learned = gp.Pipeline([], chosen).fit(flights)
    assert [item.name for item in learned.schema.lists] == ["words", "seen"]


def test_lists_are_cast_by_element() -> None:
    frame = pd.DataFrame({"n": [[1, 2], None, []]})
    assert T.Cast({"n": "list<string>"}).transform(frame)["n"].tolist()[::2] == [["1", "2"], []]
    with raises(errors.BadData, where="Cast of column 'n'", got=200):
        T.Cast({"n": "list<int8>"}).transform(pd.DataFrame({"n": [[200]]}))
    with raises(errors.SchemaMismatch, where="column 'x'"):
        T.Cast({"x": "list<int64>"}).transform(pd.DataFrame({"x": [1]}))


def test_a_loader_says_that_it_keeps_no_lists() -> None:
    frame = pd.DataFrame({"n": [[1, 2], None, []], "x": [1.0, 2.0, 3.0]})
    pipeline = gp.Pipeline([], gp.Features("x", keep="n")).fit(frame)
    assert "n" in pipeline.transform(frame)
    with raises(errors.SchemaMismatch, where="column 'n'", got="list<int64>"):
        pipeline.loader(frame)


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize(
    "step",
    [
        T.Lag("x", by="l", order_by="r"),
        T.Lag("x", by="g", order_by="l"),
        T.Difference("x", by="l", order_by="r"),
        T.Difference("x", by="g", order_by=["r", "l"]),
        T.CumulativeCount(by=["g", "l"], order_by="r"),
        T.CumulativeCount(by="g", order_by="l"),
        T.Rolling("x", 2, by="l", order_by="r"),
        T.Rolling("x", 2, by="g", order_by="l"),
        T.Expanding("x", by="l", order_by="r"),
        T.Expanding("x", by="g", order_by="l"),
    ],
)
def test_windows_by_lists_are_refused_before_anything_is_read(step: Any, missing: bool) -> None:
    lists = [["a"], ["b", "c"], None if missing else [], ["a"]]
    frame = pd.DataFrame({"l": lists, "x": [1.0, 2, 3, 4], "g": ["p", "q"] * 2, "r": range(4)})
    table = gp.from_frame(frame, num_partitions=2)
    for call in (lambda: step.transform(frame), lambda: gp.Pipeline([step]).fit(table)):
        table.source.reads.reset()
        with pytest.raises(errors.SchemaMismatch) as caught:
            call()
        assert "column 'l'" in caught.value.where and caught.value.got == "list<string>"
        assert "len(l)" in caught.value.remedy
        assert table.source.reads.num_bytes == 0


def test_statistics_of_groups_of_lists() -> None:
    frame = pd.DataFrame({"l": [["a"], None, []], "g": ["p", "p", "q"]})
    assert pre.GroupStats("g", ["count", "size"]).fit_transform(frame)["l_count_by_g"].tolist() == [1, 1, 1]
    for stat in ("nunique", "mean"):
        with pytest.raises(errors.SchemaMismatch) as caught:
            pre.GroupStats("g", stat).fit(frame)
        assert "column 'l'" in caught.value.where and "len(l)" in caught.value.remedy


def test_a_list_is_no_weight() -> None:
    frame = pd.DataFrame({"l": [[1.0], [2.0]], "x": [1.0, 2.0], "y": [0, 1]})
    with pytest.raises(errors.BadConfig) as caught:
        gp.Pipeline([], gp.Features("x", target="y", weight="l")).fit(gp.from_frame(frame))
    assert caught.value.got == "list<float64>"


@pytest.mark.slow
def test_importance_permutes_lists_too(folder: Path) -> None:
    flights = gp.read_parquet(folder)
    learned = pipeline().fit(flights)
    model = MLP.from_schema(learned.schema, hidden=(16,), seed=1)
    trainer = Trainer(model, max_epochs=25, lr=1e-2, progress=False)
    trainer.fit(learned.loader(flights, batch_size=64, shuffle=True))
    loader = learned.loader(flights, batch_size=130)
    found = gp.importance(trainer, loader, repeats=2, seed=3)
    assert set(found.losses) == {"x", "words", "seen"}
    assert found["words"]["mean"] > 0.2 and abs(found["seen"]["mean"]) < 0.05
    block, order = loader.table, gp.tensors.Permutation(N, seed=3, epoch=1).order(torch.device("cpu"))
    lists = block.lists | {"words": block.lists["words"].take(order)}
    output = trainer.model(gp.Batch(block.numeric, block.codes, lists=lists)).detach()
    whole, lost = roc_auc_score(block.target, trainer.predict(loader)), roc_auc_score(block.target, output)
    assert found.losses["words"][1] == pytest.approx(whole - lost, abs=1e-6)


def test_estimators_count_the_elements_of_lists(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    flights = gp.read_parquet(folder)
    alone = gp.Pipeline([], gp.Features((["words"], pre.Categorify()), target="late")).fit(flights)
    with caplog.at_level("INFO", logger="gpupipe"):
        comparison = gp.compare(alone.loader(flights), alone.loader(flights), ["linear", "hist-gradient-boosting"])
    assert all(row["auc"] > 0.99 for row in comparison.rows)
    (note,) = comparison.notes
    assert "words" in note and note in repr(comparison) and note in comparison._repr_html_()
    assert f"compare: {note}" in caplog.messages


def test_the_encoding_of_lists_for_estimators_is_a_count_by_hand() -> None:
    rng = np.random.default_rng(1)
    own = [rng.integers(0, 300, rng.integers(0, 9)).tolist() for _ in range(500)]
    numbers = [rng.normal(size=rng.integers(0, 4)).tolist() for _ in range(500)]
    frame = pd.DataFrame({"ids": own, "sizes": numbers, "y": np.linspace(0, 1, 500)})
    features = gp.Features((["ids"], pre.Categorify()), ["sizes"], target="y")
    learned = gp.Pipeline([], features).fit(frame)
    block = learned.loader(frame).table
    names, matrix = host_rows.make_layout(block.schema).numbers, host_rows.copy_to_host(block).numbers
    assert (names[0], names[-1]) == ("ids_0", "sizes_1") and matrix.shape == (500, len(names)) == (500, 102)
    vocabulary = pd.Series([each for row in own for each in row]).value_counts()
    for row, ids in enumerate(_plain(block.lists["ids"])):
        counts = np.bincount([each if each < 100 else 1 for each in ids], minlength=100)
        np.testing.assert_array_equal(matrix[row, :100], counts)
    # The columns are those of the most frequent elements.
    assert matrix[:, 2:100].sum() == vocabulary.iloc[:98].sum()
    np.testing.assert_array_equal(matrix[:, 100], [len(row) for row in numbers])
    np.testing.assert_allclose(matrix[:, 101], [np.mean(row) if row else 0 for row in numbers], atol=1e-6)
    notes = gp.compare(learned.loader(frame), learned.loader(frame), ["linear"]).notes
    assert [note.split(":")[0] for note in notes] == ["ids", "sizes"]
