"""The card of a saved model: what it says, and that it builds and imports nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.cli.main import main
from gpupipe.errors import ArtifactError
from gpupipe.saving.card import describe_artifact
from tests.raising import raises

FRAME = pd.DataFrame({"x": np.arange(60.0), "k": ["a", "b", None] * 20, "y": np.arange(60) % 2, "w": 1.0})
RIGHT = pd.DataFrame({"k": ["a", "b"], "v": [1.0, 2.0]})


def shout(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(loud=frame["x"])


@pytest.fixture
def pipeline() -> gp.Pipeline:
    steps = [
        T.Join(RIGHT, on="k", name="right"),
        T.Expect("x", min=0, nullable=False),
        T.Map(shout, reads=["x"], adds=["loud"]),
    ]
    features = gp.Features(
        (["x", "v"], [pre.SimpleImputer("median"), pre.StandardScaler()]),
        (["k"], pre.Categorify(min_frequency=2)),
        target="y > 0",
        weight="w",
        keep=["y"],
    )
    return gp.Pipeline(steps, features).fit(FRAME)


def test_a_card_says_what_is_in_the_folder(tmp_path: Path, pipeline: gp.Pipeline) -> None:
    model = gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1)
    gp.save(tmp_path / "run", pipeline, model, threshold=0.25)
    lines = describe_artifact(tmp_path / "run").splitlines()
    size = sum(weight.numel() for weight in model.parameters())
    assert lines[0].startswith(f"{tmp_path / 'run'}: a pipeline and its model, 6 files of ")
    assert lines[0].endswith(f", saved by gpupipe {gp.__version__}")
    assert lines[1] == "fitted on 60 rows"
    assert lines[2].startswith(f"model: MLP(hidden=[4], seed=1), {size:,} parameters, ")
    assert lines[2].endswith(", threshold 0.25")
    assert lines[3] == "target: y > 0, binary, classes False, True"
    assert lines[4:7] == [
        "step: Join(right=<table right>, on='k', name='right')",
        "step: Expect(columns=['x'], min=0, nullable=False)",
        "step: Map(fn=<function tests.saving.test_card.shout>, reads=['x'], adds=['loud'])",
    ]
    assert lines[7:9] == [
        "group: x, v -> SimpleImputer(strategy='median') -> StandardScaler()",
        "group: k -> Categorify(min_frequency=2)",
    ]
    assert lines[9:12] == ["weight: w", "kept: y", ""]
    assert lines[12] == "3 features:" and repr(pipeline.schema).splitlines()[0] == lines[13]


def test_trees_have_nodes(tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="XGBoost is not installed here: run `make setup`")
    trees = gp.fit(FRAME, target="y > 0", model=gp.models.XGB)
    gp.save(tmp_path / "trees", trees)
    line = describe_artifact(tmp_path / "trees").splitlines()[2]
    assert line.startswith(f"model: XGB(), {trees.model.num_nodes:,} node")  # type: ignore[union-attr]


def test_a_pipeline_alone_and_a_network_of_ones_own(tmp_path: Path) -> None:
    plain = gp.Pipeline([], gp.Features(["x"])).fit(FRAME)
    gp.save(tmp_path / "plain", plain)
    assert ": a pipeline, 3 files of " in describe_artifact(tmp_path / "plain")
    gp.save(tmp_path / "own", plain, torch.nn.Linear(2, 1))
    assert "\nmodel: torch.nn.modules.linear.Linear, the user's own, 3 parameters, " in describe_artifact(
        tmp_path / "own"
    )


def test_the_command_prints_it(tmp_path: Path, pipeline: gp.Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    gp.save(tmp_path / "run", pipeline)
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"{describe_artifact(tmp_path / 'run')}\n"
    for option in (["--target", "y"], ["--html", str(tmp_path / "page.html")], ["--overwrite"]):
        assert main(["inspect", str(tmp_path / "run"), *option]) == 2
        assert f"gpupipe inspect {option[0]}: this is a saved model" in capsys.readouterr().err


def test_a_folder_with_a_manifest_of_something_else_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    FRAME.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "manifest.json").write_text("{}")
    assert main(["inspect", str(tmp_path)]) == 0
    assert "read without 1 file .json" in caplog.text
    assert capsys.readouterr().out.startswith("60 rows, 4 columns")


def test_an_altered_file_has_no_card(tmp_path: Path, pipeline: gp.Pipeline) -> None:
    gp.save(tmp_path / "run", pipeline)
    text = (tmp_path / "run" / "pipeline.json").read_text()
    (tmp_path / "run" / "pipeline.json").write_text(text.replace("median", "mean"))
    with raises(ArtifactError, where="pipeline.json"):
        describe_artifact(tmp_path / "run")


def test_a_card_of_a_url(pipeline: gp.Pipeline) -> None:
    gp.save("memory://cards/run", pipeline)
    assert describe_artifact("memory://cards/run").startswith("memory://cards/run: a pipeline, ")
