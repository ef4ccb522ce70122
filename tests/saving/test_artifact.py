"""Save, load, predict: in another process, without labels, and never from a damaged folder."""

from __future__ import annotations

import json
import os
import pickletools
import resource
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.preprocessing import PowerTransformer, QuantileTransformer

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.cli.demo import add_holiday, flights_pipeline
from gpupipe.saving.artifact import _digest
from tests.raising import raises

DATA = Path(__file__).parents[2] / "data"
ALLOW = ["gpupipe.cli.demo.add_holiday"]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    frame = gp.read_parquet(DATA / "flights.parquet").compute()
    return frame.iloc[:: len(frame) // 5_000].reset_index(drop=True)


@pytest.fixture(scope="module")
def pipeline(flights: pd.DataFrame) -> gp.Pipeline:
    return flights_pipeline(gp.read_parquet(DATA / "weather.parquet")).fit(flights)


@pytest.fixture(scope="module")
def model(pipeline: gp.Pipeline) -> torch.nn.Module:
    return gp.models.MLP.from_schema(pipeline.schema, hidden=(16,), seed=1)


@pytest.fixture
def saved(tmp_path: Path, pipeline: gp.Pipeline, model: torch.nn.Module) -> Path:
    gp.save(tmp_path / "run", pipeline, model)
    return tmp_path / "run"


def test_an_artifact_of_the_first_format_is_refused(tmp_path: Path) -> None:
    gp.save(tmp_path / "run", gp.Pipeline([], gp.Features(["x"])).fit(pd.DataFrame({"x": [1.0]})))
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 1'))
    with raises(errors.ArtifactError, where="manifest.json", got=1) as caught:
        gp.load(tmp_path / "run")
    assert caught.value.expected == "format 2"


def test_a_round_trip_gives_the_same_features(saved: Path, pipeline: gp.Pipeline, flights: pd.DataFrame) -> None:
    loaded = gp.load(saved, allow=ALLOW)
    assert loaded.schema == pipeline.schema
    pd.testing.assert_frame_equal(loaded.pipeline.transform(flights), pipeline.transform(flights))
    assert repr(loaded.pipeline).replace("Dataset", "") != ""


@pytest.mark.slow
def test_another_process_predicts_the_same_bits(saved: Path, flights: pd.DataFrame, tmp_path: Path) -> None:
    unlabelled = flights.drop(columns="arr_delay")
    unlabelled.to_parquet(tmp_path / "in.parquet")
    code = f"""
import pandas as pd, gpupipe as gp
frame = pd.read_parquet({str(tmp_path / "in.parquet")!r})
gp.load({str(saved)!r}, allow={ALLOW!r}).predict_proba(frame).to_parquet({str(tmp_path / "out.parquet")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    here = gp.load(saved, allow=ALLOW).predict_proba(unlabelled)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out.parquet"), here, check_exact=True)


def test_one_row_out_per_row_in_with_the_index(saved: Path, flights: pd.DataFrame) -> None:
    rows = flights.drop(columns="arr_delay").iloc[[5, 3, 9]].set_index(pd.Index(["a", "b", "b"]))
    scores = gp.load(saved, allow=ALLOW).predict_proba(rows)
    assert scores.index.tolist() == ["a", "b", "b"]
    assert list(scores) == ["probability", "flight", "time_hour"]
    assert scores["flight"].tolist() == rows["flight"].tolist()
    decided = gp.load(saved, allow=ALLOW).predict(rows)
    assert decided["prediction"].tolist() == (scores["probability"] >= 0.5).tolist()


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(saved: Path, flights: pd.DataFrame, rows: int) -> None:
    assert len(gp.load(saved, allow=ALLOW).predict_proba(flights.iloc[:rows])) == rows


def test_a_dataset_gives_a_lazy_dataset(saved: Path, flights: pd.DataFrame, tmp_path: Path) -> None:
    scorer = gp.load(saved, allow=ALLOW)
    lazy = scorer.predict_proba(gp.from_frame(flights, num_partitions=3))
    assert isinstance(lazy, gp.Dataset)
    lazy.write_parquet(tmp_path / "scores")
    written = gp.read_parquet(tmp_path / "scores").compute()
    np.testing.assert_allclose(written["probability"], scorer.predict_proba(flights)["probability"], atol=1e-6)


def test_unseen_categories_and_missing_values_are_predicted(saved: Path, flights: pd.DataFrame) -> None:
    odd = flights.iloc[:4].assign(carrier=["??", None, "AA", "??"], dep_delay=np.nan)
    assert gp.load(saved, allow=ALLOW).predict_proba(odd)["probability"].notna().all()


def test_a_filter_for_training_is_skipped_and_an_always_one_is_not(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]})
    for when, expected in (("train", [0, 1, 2, 3]), ("always", [2, 3])):
        pipeline = gp.Pipeline([T.Filter("x > 1", when=when)], gp.Features(["x"], target="y")).fit(frame)  # type: ignore[arg-type]
        gp.save(tmp_path / when, pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)))
        assert gp.load(tmp_path / when).predict_proba(frame).index.tolist() == expected


def test_a_training_filter_may_read_the_label(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [0.0, 1.0, -5.0]})
    pipeline = gp.Pipeline([T.Filter("y >= 0")], gp.Features(["x"], target="y > 0")).fit(frame)
    gp.save(tmp_path / "run", pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)))
    assert len(gp.load(tmp_path / "run").predict(frame[["x"]])) == 3


@pytest.mark.parametrize(("target", "columns"), [("s", ["probability_a", "probability_b"]), ("x", ["prediction"])])
def test_classes_and_regressions(tmp_path: Path, target: str, columns: list[str]) -> None:
    frame = pd.DataFrame({"f": [0.0, 1.0, 2.0], "s": ["b", "a", "b"], "x": [0.5, 1.5, 9.0]})
    pipeline = gp.Pipeline([], gp.Features(["f"], target=target)).fit(frame)
    gp.save(tmp_path / "run", pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(4,)))
    scorer = gp.load(tmp_path / "run")
    if target == "s":
        proba = scorer.predict_proba(frame[["f"]])
        assert list(proba) == columns
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-6)
        assert scorer.predict(frame[["f"]])["prediction"].isin(["a", "b"]).all()
    else:
        assert list(scorer.predict(frame[["f"]])) == columns
        with pytest.raises(errors.BadConfig, match="a regression has no probabilities"):
            scorer.predict_proba(frame[["f"]])


# tables ---------------------------------------------------------------------------------------------------------------


def with_table(tmp_path: Path) -> tuple[Path, pd.DataFrame]:
    frame = pd.DataFrame({"k": ["a", "b"], "y": [0, 1]})
    table = pd.DataFrame({"k": ["a", "b"], "v": [1.0, 2.0], "unused": [0, 0]})
    pipeline = gp.Pipeline([T.Join(table, on="k", columns=["v"], name="prices")], gp.Features(["v"], target="y")).fit(
        frame
    )
    gp.save(tmp_path / "run", pipeline)
    return tmp_path / "run", frame


def test_small_tables_travel_and_can_be_replaced(tmp_path: Path) -> None:
    path, frame = with_table(tmp_path)
    assert gp.load(path).pipeline.transform(frame)["v"].tolist() == [1.0, 2.0]
    newer = pd.DataFrame({"k": ["a", "b"], "v": [10.0, 20.0]})
    assert gp.load(path, tables={"prices": newer}).pipeline.transform(frame)["v"].tolist() == [10.0, 20.0]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("join", [T.Join, T.JoinAsOf])
@pytest.mark.parametrize("of_files", [False, True])
def test_times_of_a_table_keep_their_zone(zone: str | None, join: Any, of_files: bool, tmp_path: Path) -> None:
    at = pd.date_range("2024-03-30 22:30", periods=30, freq="h", tz=zone)
    frame = pd.DataFrame({"at": at, "y": np.arange(30.0)})
    table = frame.assign(temp=np.arange(30.0), seen=at + pd.Timedelta("5min"), day=[date(2024, 1, 1)] * 30)
    if of_files:
        table.to_parquet(tmp_path / "table.parquet")
    right = gp.read_parquet(tmp_path / "table.parquet") if of_files else table.drop(columns="day")
    steps = [join(right, on="at", columns=["temp", "seen"], name="weather"), T.Derive(again="seen")]
    steps += [T.Cast({"again": "string"})]
    keep = ["seen", "again"]
    pipeline = gp.Pipeline(steps, gp.Features(["temp"], target="y", keep=keep)).fit(frame)
    gp.save(tmp_path / "run", pipeline)
    loaded = gp.load(tmp_path / "run").pipeline.transform(frame)
    pd.testing.assert_frame_equal(loaded, pipeline.transform(frame))
    assert str(loaded["seen"].dt.tz) == str(zone) and gp.load(tmp_path / "run", tables={"weather": right})


def test_a_table_of_another_kind_or_name_is_refused(tmp_path: Path) -> None:
    path, _ = with_table(tmp_path)
    with raises(errors.SchemaMismatch, where="table 'prices', column 'v'", got="string"):
        gp.load(path, tables={"prices": pd.DataFrame({"k": ["a"], "v": ["x"]})})
    with raises(errors.ColumnNotFound, where="schema", column="v"):
        gp.load(path, tables={"prices": pd.DataFrame({"k": ["a"]})})
    with raises(errors.ArtifactError, where="load(tables=...)", got="price"):
        gp.load(path, tables={"price": pd.DataFrame({"k": ["a"], "v": [1.0]})})


def test_large_tables_are_named_and_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.saving.artifact.MAX_TABLE_BYTES", 1)
    path, frame = with_table(tmp_path)
    assert not (path / "tables").exists()
    with raises(errors.ArtifactError, where="table 'prices'", match="too large to be saved"):
        gp.load(path)
    table = pd.DataFrame({"k": ["a", "b"], "v": [3.0, 4.0]})
    assert gp.load(path, tables={"prices": table}).pipeline.transform(frame)["v"].tolist() == [3.0, 4.0]


# safety ---------------------------------------------------------------------------------------------------------------


def reads_as_pickle(content: bytes) -> bool:
    try:
        return len(list(pickletools.genops(content))) > 1
    except ValueError:
        return False


def test_no_file_holds_a_pickle(saved: Path) -> None:
    for file in saved.rglob("*"):
        if file.is_file():
            assert not reads_as_pickle(file.read_bytes())


def test_every_damaged_byte_is_noticed(saved: Path) -> None:
    for file in sorted(item for item in saved.rglob("*") if item.is_file()):
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), b"", None):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            if file.name == "manifest.json" and damaged == whole[:-1] + bytes([whole[-1] ^ 1]):
                pass  # the last byte is the line's end; JSON does not mind another one, or refuses it
            else:
                with pytest.raises(errors.ArtifactError, match=file.name):
                    gp.load(saved, allow=ALLOW)
            file.write_bytes(whole)
    gp.load(saved, allow=ALLOW)


def test_an_altered_list_of_files_is_noticed(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"]["pipeline.json"]["bytes"] += 1
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(errors.ArtifactError, match="list of files was altered"):
        gp.load(saved, allow=ALLOW)


def test_a_file_outside_the_folder_is_not_read(saved: Path) -> None:
    (saved.parent / "other.json").write_text("{}")
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"]["../other.json"] = {"bytes": 2, "sha256": "0"}
    manifest["digest"] = _digest(manifest["files"])
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(errors.ArtifactError, match=r"lists a file that no artifact has, '\.\./other\.json'"):
        gp.load(saved, allow=ALLOW)


def test_a_table_whose_name_is_no_file_name(tmp_path: Path) -> None:
    frame, table = pd.DataFrame({"k": ["a"]}), pd.DataFrame({"k": ["a"], "v": [1.0]})
    pipeline = gp.Pipeline([T.Join(table, on="k", name="../t")], gp.Features(["v"])).fit(frame)
    with raises(errors.ArtifactError, where="Join('../t')"):
        gp.save(tmp_path / "run", pipeline)


def test_nothing_is_imported_that_was_not_allowed(saved: Path) -> None:
    with raises(errors.ArtifactError, where="pipeline.json", got="gpupipe.cli.demo.add_holiday") as caught:
        gp.load(saved)
    assert "allow=['gpupipe.cli.demo.add_holiday']" in caught.value.remedy


def test_a_lambda_runs_but_is_not_saved(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})
    step = T.Map(lambda f: f.assign(z=f["x"]), reads=["x"], adds=["z"])
    pipeline = gp.Pipeline([step], gp.Features(["z"], target="y")).fit(frame)
    with pytest.raises(errors.ArtifactError, match=r"Map\.fn: it cannot be found again in a new process") as caught:
        gp.save(tmp_path / "run", pipeline)
    assert "a file of its own" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


class Own(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, batch: gp.Batch) -> torch.Tensor:
        return self.layer(batch.numeric).squeeze(1)


def test_a_network_of_the_users_own(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y")).fit(frame)
    network, other, unlike = Own(), Own(), torch.nn.Linear(3, 1)
    gp.save(tmp_path / "run", pipeline, network)
    with pytest.raises(errors.ArtifactError, match="a network of the user's own"):
        gp.load(tmp_path / "run")
    scores = gp.load(tmp_path / "run", model=other).predict_proba(frame)["probability"]
    batch = next(iter(pipeline.loader(frame)))
    np.testing.assert_array_equal(scores, torch.sigmoid(network(batch)).detach().numpy())
    with raises(errors.ArtifactError, where="run", remedy="model=..."):
        gp.load(tmp_path / "run", model=unlike)


class Tied(torch.nn.Module):
    """Two layers with the same weights, and a transposed view of them beside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(2, 2) for _ in range(3))
        self.second.weight = self.first.weight
        self.last.weight = torch.nn.Parameter(self.first.weight.detach().T)

    def forward(self, batch: gp.Batch) -> torch.Tensor:
        return self.last(self.second(self.first(batch.numeric).relu()).relu()).sum(1)


def test_a_network_whose_layers_share_their_weights(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "z": [0.5, -1.0], "y": [0, 1]})
    pipeline = gp.Pipeline([], gp.Features(["x", "z"], target="y")).fit(frame)
    network = Tied()
    gp.save(tmp_path / "run", pipeline, network)
    loaded = gp.load(tmp_path / "run", model=Tied())
    batch = next(iter(pipeline.loader(frame)))
    scores = loaded.predict_proba(frame)["probability"]
    np.testing.assert_array_equal(scores, torch.sigmoid(network(batch)).detach().numpy())
    assert isinstance(loaded.model, Tied) and loaded.model.first.weight is loaded.model.second.weight


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path, pipeline: gp.Pipeline) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    for _ in range(2):
        with pytest.raises(errors.ArtifactError) as refused:
            gp.save(tmp_path, pipeline)
        assert (refused.value.problem, refused.value.got) == ("something else is there", "thesis.txt")
        (tmp_path / "manifest.json").write_text('{"name": "a page"}')
    assert (tmp_path / "thesis.txt").read_text() == "x"


def test_a_place_that_the_system_closes_is_named(
    tmp_path: Path, saved: Path, pipeline: gp.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.BadFile) as below:
        gp.save(tmp_path / "file" / "run", pipeline)
    assert below.value.where == str(tmp_path / "file" / "run")

    def refuse(path: Path, *args: object) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(errors.ArtifactError) as unread:
        gp.load(saved)
    assert (unread.value.where, unread.value.remedy) == (str(saved / "manifest.json"), "its permissions")
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(errors.BadFile) as unwritten:
        gp.save(saved, pipeline)
    assert unwritten.value.where == str(saved)


def test_saving_before_fit(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFitted):
        gp.save(tmp_path / "run", gp.Pipeline([], gp.Features(["x"])))


def test_predicting_without_a_model(tmp_path: Path) -> None:
    path, frame = with_table(tmp_path)
    with pytest.raises(errors.BadConfig, match="there is no model"):
        gp.load(path).predict(frame)


class Repeat(torch.nn.Module):
    """As many equal outputs a row as it is told."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, batch: gp.Batch) -> torch.Tensor:
        return batch.numeric.repeat(1, self.outputs)


@pytest.mark.parametrize("target", ["y", "y > 1", "y * 0.5"])
@pytest.mark.parametrize("model", [gp.models.MLP(1, outputs=4), Repeat(4)], ids=["MLP", "own"])
def test_a_model_of_other_outputs_than_the_target_has(target: str, model: torch.nn.Module) -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0, 1, 2]})
    task = "regression" if "*" in target else "classification"
    scorer = gp.Scorer(gp.Pipeline([], gp.Features(["x"], target=target, task=task)).fit(rows), model)
    for score in (scorer.predict, scorer.predict_proba)[: 1 if "*" in target else 2]:
        with pytest.raises(errors.SchemaMismatch, match=r"does not fit the target, got 'output \(3, 4\)'"):
            score(rows)


def test_a_column_of_outputs_is_one_a_row() -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]})
    scorer = gp.Scorer(gp.Pipeline([], gp.Features(["x"], target="y", task="classification")).fit(rows), Repeat(1))
    assert scorer.predict_proba(rows)["probability"].tolist() == pytest.approx([0.7310586, 0.8807971])


def test_predicting_without_a_target() -> None:
    rows = pd.DataFrame({"x": [1.0, 2.0]})
    with pytest.raises(errors.BadConfig, match="the pipeline has no target"):
        gp.Scorer(gp.Pipeline([], gp.Features(["x"])).fit(rows), gp.models.MLP(1)).predict(rows)


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(3))
def test_a_killed_save_leaves_the_old_artifact(saved: Path, moment: int, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in saved.rglob("*") if file.is_file()}
    code = f"""
import os, signal, sys
import pandas as pd, gpupipe as gp, gpupipe.saving.artifact as artifact
calls = 0
def count(write):
    def wrapped(*args, **kwargs):
        global calls
        result = write(*args, **kwargs)
        calls += 1
        if calls > {moment}:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapped
for name in ("write_json", "save_file", "save_tensors"):
    setattr(artifact, name, count(getattr(artifact, name)))
frame = pd.DataFrame({{"x": [1.0, 2.0], "y": [0, 1]}})
pipeline = gp.Pipeline([], gp.Features(["x"], target="y")).fit(frame)
gp.save({str(saved)!r}, pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)), overwrite=True)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -9
    assert {file.name: file.read_bytes() for file in saved.rglob("*") if file.is_file()} == before
    gp.load(saved, allow=ALLOW)


def test_functions_are_found_again() -> None:
    assert add_holiday.__module__ == "gpupipe.cli.demo"


def test_a_library_estimator_put_in_a_list_as_it_is(tmp_path: Path, flights: pd.DataFrame) -> None:
    steps = [pre.SimpleImputer(), QuantileTransformer(n_quantiles=50)]
    pipeline = gp.Pipeline([], gp.Features((["dep_delay", "distance"], steps))).fit(flights)
    gp.save(tmp_path / "run", pipeline)
    pd.testing.assert_frame_equal(gp.load(tmp_path / "run").pipeline.transform(flights), pipeline.transform(flights))


def test_an_estimator_of_an_unknown_class_works_but_is_not_saved(tmp_path: Path, flights: pd.DataFrame) -> None:
    pipeline = gp.Pipeline([], gp.Features((["distance"], PowerTransformer()))).fit(flights)
    assert len(pipeline.transform(flights)) == len(flights)
    with raises(
        errors.ArtifactError, where="EstimatorStep.estimator", got="sklearn.preprocessing._data.PowerTransformer"
    ):
        gp.save(tmp_path / "run", pipeline)


def test_learned_steps_travel(tmp_path: Path, flights: pd.DataFrame) -> None:
    features = gp.Features(
        (["dep_delay"], [pre.SimpleImputer(add_indicator=True), pre.RobustScaler()]),
        (["distance"], pre.MinMaxScaler(), "unit"),
        (
            ["distance", "air_time"],
            [pre.SimpleImputer(strategy="median"), pre.KMeans(n_clusters=3, output="distances")],
        ),
        (["month"], pre.Categorify(max_categories=5)),
    )
    pipeline = gp.Pipeline([T.Cast({"month": "int64"}), T.Drop(["year"]), T.Rename({"tailnum": "tail"})], features).fit(
        flights
    )
    gp.save(tmp_path / "run", pipeline)
    pd.testing.assert_frame_equal(gp.load(tmp_path / "run").pipeline.transform(flights), pipeline.transform(flights))


@pytest.mark.parametrize(
    ("columns", "step"),
    [
        (["x", "z"], pre.KMeans(np.int64(2))),
        (["s"], pre.HashBucket(np.int64(8))),
        (["s"], pre.Categorify(num_buckets=np.int64(2))),
        (["s"], pre.OneHotEncoder(categories=[np.array(["a", "b"])])),
        (["s"], pre.Categorify(vocabulary=np.array(["a", "b"]))),
    ],
    ids=lambda given: type(given).__name__,
)
def test_arguments_of_numpys_types_are_saved(tmp_path: Path, columns: list[str], step: Any) -> None:
    rows = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rows.normal(size=40), "z": rows.random(40), "s": rows.choice(["a", "b"], 40)})
    pipeline = gp.Pipeline([], gp.Features((columns, step))).fit(frame)
    gp.save(tmp_path / "run", pipeline)
    again = gp.load(tmp_path / "run").pipeline.transform(frame)
    pd.testing.assert_frame_equal(again, pipeline.transform(frame))


def test_sizes_and_seeds_of_numpys_types_are_those_of_python(tmp_path: Path) -> None:
    rows = np.random.default_rng(0)
    data = gp.from_frame(pd.DataFrame({"x": rows.normal(size=40), "y": rows.choice([0, 1], 40)}))
    pipeline = gp.Pipeline([], gp.Features(["x"], target="y")).fit(data)

    def run(number: Any, rate: Any, place: str) -> Any:
        model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), numbers=gp.models.Periodic(sigma=rate))
        loader = pipeline.loader(data, shuffle="rows", seed=number, batch_size=number * 8)
        blocks = pipeline.loader(data, shuffle="blocks", block_rows=number, seed=number, batch_size=4)
        folder = tmp_path / place
        trainer = gp.Trainer(model, max_epochs=number, lr=rate, seed=number, checkpoints=folder, progress=False)
        trainer.fit(loader)
        gp.save(tmp_path / f"{place} saved", pipeline, trainer.model)
        found = gp.importance(trainer, pipeline.loader(data), repeats=1, seed=number)
        data.write_parquet(tmp_path / f"{place} parts", files=number)
        return [batch.numeric.tolist() for batch in (*loader, *blocks)], repr(found)

    assert run(np.int64(2), np.float32(0.5), "numpy") == run(2, 0.5, "python")
    assert len(list((tmp_path / "numpy parts").glob("*.parquet"))) == 2


@pytest.mark.parametrize("allow", [None, 1, True, [1], ["a", np.mean]])
def test_what_load_may_import_is_text(tmp_path: Path, allow: Any) -> None:
    gp.save(tmp_path / "run", gp.Pipeline([], gp.Features(["x"])).fit(pd.DataFrame({"x": [1.0, 2.0]})))
    with pytest.raises(errors.BadConfig) as caught:
        gp.load(tmp_path / "run", allow=allow)
    assert caught.value.where == "load(allow=)" and caught.value.remedy.startswith("allow=[")


@pytest.mark.parametrize("most_bytes", [10, 50_000])
def test_a_disk_that_is_full_leaves_the_artifact_of_before(tmp_path: Path, most_bytes: int) -> None:
    """The limit of a file's size says what a full disk says, of the JSON first or of the weights."""
    pipeline = gp.Pipeline([], gp.Features(["x"])).fit(pd.DataFrame({"x": [1.0, 2.0]}))
    gp.save(tmp_path / "run", pipeline)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        with pytest.raises(errors.BadFile, match="run: it cannot be written"):
            gp.save(tmp_path / "run", pipeline, torch.nn.Linear(200, 200), overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
