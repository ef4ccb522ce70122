"""A booster's arrays: what XGBoost has, what is no tree, and what a forged model does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.models import XGB
from gpupipe.models.booster import MAX_DEPTH, Arrays, Layout, find_fault, read_booster, write_booster

xgb = pytest.importorskip("xgboost")

ROOT = Path(__file__).parents[2]
OUTPUTS = {"binary": 1, "multiclass": 3, "multilabel": 2, "regression": 2, "quantiles": 3}
LEVELS = (0.05, 0.5, 0.95)
Edit = Callable[[Arrays], object]


def grow(task: str, rounds: int = 4, **params: Any) -> tuple[xgb.Booster, Layout, np.ndarray]:
    """Trees of three numbers and a column of thirty ids, made by hand."""
    draw, outputs = np.random.default_rng(0), OUTPUTS[task]
    values = draw.normal(size=(2000, 4)).astype("float32")
    values[:, 3] = draw.integers(1, 30, 2000)
    values[::40, 3] = np.nan
    y = 2 * values[:, 0] + values[:, 0] * values[:, 1] + (np.nan_to_num(values[:, 3]) % 3 == 1)
    target = {"regression": np.c_[y, -3 * y], "multilabel": np.c_[y > 0, y > 1], "quantiles": y}.get(
        task, np.digitize(y, [0, 1])
    )
    target = target > 0 if task == "binary" else target
    rows = xgb.QuantileDMatrix(values, target, feature_types=["q", "q", "q", "c"], enable_categorical=True)
    quantiles = LEVELS if task == "quantiles" else ()
    layout = Layout(3, (30,), outputs, "regression" if quantiles else task, quantiles=quantiles)
    params |= {"objective": layout.objective, "nthread": 1} | ({"num_class": 3} if task == "multiclass" else {})
    params |= {"quantile_alpha": quantiles} if quantiles else {}
    return xgb.train(params, rows, rounds), layout, values


@pytest.mark.parametrize("task", OUTPUTS)
def test_what_is_written_is_what_xgboost_writes(task: str) -> None:
    booster, layout, values = grow(task, max_depth=5, min_split_loss=0.5)
    ours = write_booster(read_booster(booster.save_raw("json")), layout)
    again = xgb.Booster(model_file=bytearray(ours))
    assert again.save_raw("ubj") == booster.save_raw("ubj")
    for kind in ("margin", "value"):
        np.testing.assert_array_equal(
            again.inplace_predict(values, predict_type=kind), booster.inplace_predict(values, predict_type=kind)
        )


def test_every_float_is_read_as_it_was() -> None:
    booster, layout, _ = grow("binary")
    arrays = read_booster(booster.save_raw("json"))
    bits = torch.randint(-(2**31), 2**31, arrays["base_weights"].shape, dtype=torch.int32)
    arrays["base_weights"] = bits.view(torch.float32).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    again = read_booster(xgb.Booster(model_file=bytearray(write_booster(arrays, layout))).save_raw("json"))
    assert torch.equal(again["base_weights"].view(torch.int32), arrays["base_weights"].view(torch.int32))


def put(name: str, place: int, value: float) -> Edit:
    return lambda arrays: arrays[name].__setitem__(place, value)


def replace(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    return lambda arrays: arrays.update({name: change(arrays[name])})


FAULTS: dict[str, tuple[Edit, str]] = {
    "a child before its parent": (put("left_children", 2, 1), "before its parent"),
    "a child of another tree": (put("right_children", 0, 10**6), "another tree"),
    "a node of itself": (put("left_children", 0, 0), "before its parent"),
    "a node reached twice": (put("left_children", 0, 2), "reached twice"),
    "one child": (put("left_children", 0, -1), "one child"),
    "no such feature": (put("split_indices", 0, 4), "does not exist"),
    "a feature below the first": (put("split_indices", 0, -1), "does not exist"),
    "numbers as categories": (put("split_type", 0, 1), "or the reverse"),
    "a flag of 2": (put("default_left", 0, 2), "flag"),
    "nan": (put("split_conditions", 0, float("nan")), "not finite"),
    "infinity": (put("base_score", 0, float("inf")), "base score"),
    "no chance": (put("base_score", 0, 1.0), "probability"),
    "no such category": (put("categories", 0, 30), "category"),
    "a category below the first": (put("categories", 0, -1), "category"),
    "a node without nodes": (put("num_nodes", 0, 0), "numbers of nodes"),
    "more nodes than there are": (put("num_nodes", 0, 2**31 - 1), "numbers of nodes"),
    "categories below none": (put("categories_sizes", 0, -5), "less than none"),
    "fewer categories": (replace("categories", lambda values: values[:-1]), "numbers of categories"),
    "another type": (replace("split_conditions", lambda values: values.double()), "float64"),
    "a matrix": (replace("left_children", lambda values: values[None]), "2-dimensional"),
    "no trees": (replace("num_nodes", lambda values: values[:0]), "0 trees"),
    "two base scores": (replace("base_score", lambda values: values.repeat(2)), "2 base scores"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_tree_is_named(name: str) -> None:
    booster, layout, _ = grow("binary", max_depth=3)
    arrays = read_booster(booster.save_raw("json"))
    assert arrays["split_type"][0] == 0, "the first node splits numbers"
    assert find_fault(arrays, layout) is None
    edit, fault = FAULTS[name]
    edit(arrays)
    assert fault in (find_fault(arrays, layout) or "")


def chain(depth: int) -> Arrays:
    """One tree whose right children have children: its left ones are leaves."""
    nodes = torch.arange(2 * depth + 1)
    inner = (nodes % 2 == 0) & (nodes < 2 * depth)
    zeros, floats = torch.zeros(len(nodes), dtype=torch.int32), torch.zeros(len(nodes))
    return {
        "num_nodes": torch.tensor([len(nodes)], dtype=torch.int32),
        "left_children": torch.where(inner, nodes + 1, -1).int(),
        "right_children": torch.where(inner, nodes + 2, -1).int(),
        **dict.fromkeys(("split_indices", "categories_sizes"), zeros),
        **dict.fromkeys(("split_type", "default_left"), zeros.to(torch.uint8)),
        **dict.fromkeys(("split_conditions", "base_weights", "loss_changes", "sum_hessian"), floats),
        "categories": zeros[:0],
        "base_score": torch.tensor([0.5]),
    }


def test_a_tree_that_would_overflow_the_stack_is_refused() -> None:
    layout = Layout(3, (30,), 1, "binary")
    assert find_fault(chain(MAX_DEPTH), layout) is None
    for depth in (MAX_DEPTH + 1, 1_000_000):  # XGBoost dies of the second one
        assert find_fault(chain(depth), layout) == f"a tree is more than {MAX_DEPTH} deep"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"a": draw.normal(size=1500), "b": draw.normal(size=1500), "c": draw.choice(list("pqrst"), 1500)}
    )
    frame["y"] = frame["a"] * frame["b"] + frame["c"].isin(["q", "s"])
    features = gp.Features(["a", "b"], (["c"], pre.Categorify()), target="y")
    pipeline = gp.Pipeline([], features, backend="cpu").fit(frame)
    model = XGB.from_schema(pipeline.schema, n_estimators=6, max_depth=4)
    model.fit_loaders(pipeline.loader(frame))
    folder = tmp_path_factory.mktemp("forged")
    gp.save(folder / "run", pipeline, model)
    frame[:50].drop(columns="y").to_parquet(folder / "rows.parquet")
    return folder


def load_forged(folder: Path, first: int, last: int) -> dict[str, int]:
    """Load the models of these seeds in another process, which must neither die nor hang nor raise another error."""
    command = [sys.executable, "-m", "tests.models.forged", str(folder), str(first), str(last)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{done.returncode}\n{done.stderr}"
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


@pytest.mark.slow
def test_forged_models_are_refused_or_trees(saved: Path) -> None:
    counts = load_forged(saved, 0, 300)
    assert counts["refused"] > 150 and counts["trees"] > 10


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 20_000, 1000))
def test_many_forged_models_are_refused_or_trees(saved: Path, first: int) -> None:
    assert load_forged(saved, first, first + 1000)["refused"] > 500
