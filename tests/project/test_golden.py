"""What people see of the things that show themselves, in a terminal and in a notebook, as files under tests/golden/.

After a change that is meant: `RENEW_GOLDEN=1 python -m pytest tests/project/test_golden.py`, and a look at the
difference. A page is checked besides: it is well formed, brings no script, and fetches nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import io
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend.device.probe import Gpu, Library, Machine
from gpupipe.cli.doctor import Report, diagnose
from gpupipe.pipeline.fit_report import FitReport, StepReport
from gpupipe.saving.calibrator import Calibrator, Conformal, Group, Probabilities

GOLDEN = Path(__file__).parents[1] / "golden"
FLIGHTS = pd.DataFrame(
    {
        "origin": ["JFK", "LGA", "JFK", None, "<b>"],
        "dep_delay": [2.0, None, 16.0, 4.0, 8.0],
        "hour": pd.array([5, 6, 23, 12, None], dtype="Int16"),
        "arr_delay": [20.0, 3.0, 30.0, 1.0, 17.0],
    }
)
AIRPORTS = pd.DataFrame({"origin": ["JFK", "LGA"], "runways": [4, 2]})


def dataset() -> gp.Dataset:
    return gp.from_frame(FLIGHTS).with_units({"dep_delay": "min"})


def pipeline() -> gp.Pipeline:
    steps = [T.Join(AIRPORTS, on="origin", name="airports"), T.Derive(night="hour < 6 or hour >= 22")]
    features = gp.Features(
        (["dep_delay"], [pre.SimpleImputer("median"), pre.StandardScaler()]),
        (["origin"], pre.Categorify()),
        target="arr_delay > 15",
        keep=["hour"],
    )
    return gp.Pipeline(steps, features)


def fitted() -> gp.Pipeline:
    return pipeline().fit(dataset())


def fit_report() -> FitReport:
    steps = [
        StepReport(1, "SimpleImputer + StandardScaler", "dep_delay", 1, None, 0.25, 40),
        StepReport(2, "Categorify", "origin", 1, 0.2, 0.125, 2_000_000),
    ]
    return replace(fitted().fit_report or FitReport(), seconds=0.5, steps=steps)


def trainer() -> gp.Trainer:
    model = gp.models.MLP.from_schema(fitted().schema, hidden=(4,), seed=1)
    return gp.Trainer(model, max_epochs=3, lr=0.1, early_stopping=gp.EarlyStopping(patience=2))


def loader() -> Any:
    return fitted().loader(dataset(), batch_size=2, shuffle="rows", seed=7)


def scorer() -> gp.Scorer:
    return gp.Scorer(fitted(), trainer().model, threshold=0.25)


def checks() -> Any:
    made = gp.Pipeline([T.Expect("dep_delay", min=0, max=10, nullable=False)]).fit(dataset())
    return made.check(dataset())


def drift() -> Any:
    early = pd.DataFrame({"x": [float(i % 10) for i in range(2000)], "kind": ["a", "b"] * 1000})
    late = pd.DataFrame({"x": [float(i % 10 + 8) for i in range(2000)], "kind": ["a", "<c>"] * 1000})
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), (["kind"], pre.Categorify())))
    return made.fit(early).drift(late)


def history() -> gp.History:
    rows = [
        {"epoch": 1, "train_loss": 0.5, "valid_loss": 0.375, "valid_auc": 0.75, "seconds": 2.0},
        {"epoch": 2, "train_loss": 0.25, "valid_loss": 0.25, "valid_auc": 0.875, "seconds": 1.5},
        {"epoch": 3, "train_loss": 0.125, "valid_loss": 0.3125, "valid_auc": 0.8125, "seconds": 1.5},
    ]
    gpu = {"power_watts": {"min": 80.0, "median": 410.0, "max": 512.5}}
    return gp.History("valid_loss", rows=rows, gpu=gpu, throttled={"software power cap": 0.125})


def report() -> gp.Report:
    output = torch.tensor([-3.0, -2.0, -1.0, -1.0, 0.0, 1.0, 2.0, 2.0])
    target = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    groups = ("origin", ["<b>", "JFK"], torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]))
    return gp.Report({"loss": 0.5}, output, target, task="binary", labels=["on time", "late"], groups=groups)


def report_classes() -> gp.Report:
    output, target = torch.eye(3)[[0, 1, 2, 2, 0, 1]], torch.tensor([0, 1, 2, 1, 0, 0])
    return gp.Report({}, output, target, torch.arange(1.0, 7.0) / 2, task="multiclass", labels=["S", "M", "<L>"])


def report_numbers() -> gp.Report:
    output = torch.arange(10.0, 18.0)
    target = output + torch.tensor([1.0, -1.0] * 4)
    return gp.Report({}, output, target, task="regression", labels=["arr_delay"])


def doctor() -> Report:
    libraries = [
        *(Library(name, "3.1.2", (name,)) for name in ("numpy", "pandas", "pyarrow", "scikit_learn")),
        Library("torch", "2.13.0+cpu", ("torch",)),
        Library("cudf", "26.10.2", ("cudf-cu13",), 13, ("pandas<3.1.0,>=3.0.0",)),
    ]
    gpu = Gpu("NVIDIA H200", "GPU-1", 140 << 30, 60 << 30, (9, 0))
    report = diagnose(Machine((gpu,), "", "550.54.15", (12, 4), {item.name: item for item in libraries}), "gpu")
    return Report(tuple(row for row in report.rows if row.name != "Python"))  # which is this process's


def comparison() -> gp.Comparison:
    def count(**parts: int) -> dict[str, int | None]:
        return {"parameters": None, "nodes": None, **parts}

    seconds = {"fit_seconds": 12.25, "predict_seconds": 0.25}
    rows: list[dict[str, Any]] = [
        {
            "model": "linear",
            "auc": 0.75,
            "accuracy": 0.5,
            **seconds,
            "bytes": 20480,
            **count(parameters=9),
            "ids": "one-hot",
        },
        {
            "model": "hist-gradient-boosting",
            "auc": 0.875,
            "accuracy": 0.75,
            **seconds,
            "bytes": None,
            **count(nodes=6100),
            "ids": "numbers",
        },
        {
            "model": "MLP",
            "auc": 0.8125,
            "accuracy": 0.625,
            **seconds,
            "bytes": 4096,
            **count(parameters=1024),
            "ids": "embedded",
        },
        {
            "model": "late",
            "auc": None,
            "accuracy": 0.5,
            **seconds,
            "bytes": 64,
            **count(parameters=16),
            "ids": "embedded",
        },
    ]
    notes = ["hist-gradient-boosting: takes ids as numbers, by a tenth of train (categories 0.8438, numbers 0.875)"]
    notes += ["late: trained before, on rows that are not known here"]
    rows[-1]["fit_seconds"] = None
    return gp.Comparison(rows, "auc", higher_is_better=True, notes=notes)


def calibrator() -> Calibrator:
    groups = [Group("AA", 5, 987, [28.5]), Group("<b>", 3, 1, None)]
    return Calibrator(Probabilities("temperature", [1.25]), Conformal(0.9, 9_968, [27.375], "carrier", groups))


def cross_validation() -> gp.CrossValidation:
    rows = [
        {"fold": 1, "rows": 67_355, "auc": 0.75, "seconds": 2.5},
        {"fold": 2, "rows": 67_356, "auc": 0.5, "seconds": 1},
    ]
    return gp.CrossValidation(rows, [])


def folds() -> Any:
    days = pd.DataFrame({"day": pd.date_range("2013-01-01", periods=90, freq="12h")})
    return gp.from_frame(days).kfold(2, by="day", forward=True, gap="7 days")


SHOWN: dict[str, Callable[[], Any]] = {
    "calibrator": calibrator,
    "checks": checks,
    "comparison": comparison,
    "cross_validation": cross_validation,
    "dataset": dataset,
    "description": lambda: dataset().describe("arr_delay > 15"),
    "doctor": doctor,
    "drift": drift,
    "explain": lambda: pipeline().explain(dataset()),
    "fit_report": fit_report,
    "folds": folds,
    "history": history,
    "importance": lambda: gp.Importance({"night": [0.0, 0.0], "distance": [0.25, 0.5]}, "auc", 0.75),
    "inspect": lambda: io.inspect(dataset()),
    "pipeline": pipeline,
    "report": report,
    "report_classes": report_classes,
    "report_numbers": report_numbers,
    "schema": lambda: fitted().schema,
}


TEXTS: dict[str, Callable[[], Any]] = {"loader": loader, "scorer": scorer, "trainer": trainer}
"""Those that a notebook shows as a terminal does."""


class Page(HTMLParser):
    """Which elements are open, and which are never closed."""

    EMPTY = frozenset({"br", "circle", "polyline", "img", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open and self.open.pop() == tag, tag


def page(shown: Any) -> str:
    """What a notebook is given, a line per element; of the table that pandas draws of a frame, that it is there."""
    frame = re.compile(r"<div>\s*<style scoped>.*</table>.*?</div>", re.DOTALL)
    text = frame.sub("(the frame)", shown._repr_html_())
    return re.sub(r"(</tr>|</p>|</svg>|</div>|</thead>)", r"\1\n", text).rstrip("\n") + "\n"


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_it_shows_itself_as_it_did(name: str) -> None:
    gp.configure(backend="cpu")
    shown = SHOWN[name]()
    compare(f"{name}.txt", f"{shown!r}\n")
    compare(f"{name}.html", page(shown))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_it_says_what_it_did(name: str) -> None:
    gp.configure(backend="cpu")
    compare(f"{name}.txt", f"{TEXTS[name]()!r}\n")


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RENEW_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{name}: another picture; see the head of this file"


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_its_page_is_well_formed_and_fetches_nothing(name: str) -> None:
    text = (GOLDEN / f"{name}.html").read_text()
    made = Page()
    made.feed(text)
    assert made.open == [] and made.seen
    assert not made.seen & {"script", "img", "link", "iframe", "b"}  # <b> is a value of the data
    assert re.findall(r"\b(?:src|href)=|url\(", text) == []


def test_no_golden_file_is_left_over() -> None:
    pages, texts = {f"{name}.html" for name in SHOWN}, {f"{name}.txt" for name in [*SHOWN, *TEXTS]}
    assert {path.name for path in GOLDEN.iterdir()} == pages | texts
