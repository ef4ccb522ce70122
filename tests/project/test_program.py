"""The programs of README and home page run as written; demo and notebook hold the longer one, so that none can rot."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.cli.demo import flights_pipeline

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"
NOTEBOOK = json.loads((ROOT / "notebooks/01_quickstart.ipynb").read_text())

# A fifteenth of the updates: README's program, and the notebook's, which is this one, are trained to the end.
BEFORE = """
import gpupipe
from gpupipe.models.mlp import MLP
MLP.updates = 120
flights_today = gpupipe.read_parquet("data/flights.parquet", filters="month == 12 and day == 20")
flights_today = flights_today.select([name for name in flights_today.columns if name != "arr_delay"]).compute()
"""

AFTER = """
import json
from gpupipe.cli.demo import flights_pipeline
scores = scorer.predict_proba(flights_today)
print(json.dumps({
    "auc": history.rows[-1]["valid_auc"],
    "epochs": len(history),
    "in": len(flights_today),
    "flights": scores["flight"].tolist() == flights_today["flight"].tolist(),
    "sure": bool(scores["probability"].between(0, 1).all()),
    "as_demo": repr(pipeline) == repr(flights_pipeline(weather)),
}))
"""


def program_of(page: Path) -> str:
    (block,) = re.findall(r"## The program\n+```python\n(.*?)```", page.read_text(), re.DOTALL)
    return str(block)


def long_program() -> str:
    return program_of(ROOT / "docs" / "index.md")


def run(code: str, folder: Path) -> str:
    """Run a program in a folder with the repository's data; returns what it prints."""
    # What the program saves to runs/ is no concern of the repository's.
    (folder / "data").symlink_to(DATA)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "notebooks")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    given = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def notebook_program() -> str:
    return "\n".join("".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code")


def assigned(program: str, name: str) -> str:
    """What a program assigns to `name`, without comments and layout."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node.value)
    raise AssertionError(f"the program assigns nothing to {name}")


def test_the_program_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    (shown,) = re.findall(r"```text\n(.*?)```", readme.read_text(), re.DOTALL)
    found, told = (text.split() for text in (run(program_of(readme), tmp_path), shown))
    assert len(found) == len(told)
    # A sum's last bit differs from one processor, or number of threads, to another, and training makes more of it.
    title, auc, column, *rows = zip(found, told, strict=True)
    assert (title, column) == (("AUC", "AUC"), ("probability", "probability"))
    assert float(auc[0]) == pytest.approx(float(auc[1]), abs=0.003)
    for (row, row_told), (probability, probability_told) in zip(rows[::2], rows[1::2], strict=True):
        assert row == row_told
        assert float(probability) == pytest.approx(float(probability_told), abs=0.05)
    assert (tmp_path / "runs/flights/manifest.json").is_file()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 600


def test_the_program_of_the_home_page_runs_as_written(tmp_path: Path) -> None:
    figures = json.loads(run(f"{BEFORE}\n{long_program()}\n{AFTER}", tmp_path).splitlines()[-1])
    assert figures.pop("auc") > 0.87
    assert figures == {"epochs": 2, "in": 980, "flights": True, "sure": True, "as_demo": True}
    assert (tmp_path / "runs/flights/manifest.json").is_file()


@pytest.mark.parametrize("name", ["pipeline", "(train, valid)", "model", "trainer", "history"])
def test_the_notebook_has_the_program_of_the_home_page(name: str) -> None:
    assert assigned(notebook_program(), name) == assigned(long_program(), name)


def test_a_loaded_scorer_takes_todays_table_and_streams_to_a_folder(tmp_path: Path) -> None:
    flights = gp.read_parquet(DATA / "flights.parquet", filters="month == 2")
    weather = gp.read_parquet(DATA / "weather.parquet")
    pipeline = flights_pipeline(weather).fit(flights)
    gp.save(tmp_path / "run", pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(8,), seed=7))

    def scorer(weather_today: pd.DataFrame | gp.Dataset) -> gp.Scorer:
        return gp.load(tmp_path / "run", tables={"weather": weather_today}, allow=["gpupipe.cli.demo.add_holiday"])

    scored = scorer(weather).predict_proba(flights).compute()
    frozen = scorer(weather.compute().assign(temp=-40.0)).predict_proba(flights).compute()
    assert (frozen["probability"] != scored["probability"]).mean() > 0.9

    scorer(weather.compute()).predict_proba(flights).write_parquet(tmp_path / "scores")
    written = gp.read_parquet(tmp_path / "scores")
    assert written.columns == ["probability", "flight", "time_hour"] and len(written) == len(flights)
    np.testing.assert_array_equal(written.compute()["probability"], scored["probability"])
