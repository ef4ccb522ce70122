"""The page "you used X, write Y" keeps its word: every class has a row, every name and every test in it exists."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import sklearn.decomposition
import sklearn.feature_selection
import sklearn.impute
import sklearn.preprocessing
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes impute.IterativeImputer)

import gpupipe as gp
from gpupipe import io, preprocessing, selectors, transforms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api-table.md").read_text()

# Every public operator of nvtabular.ops 23.8 but its base classes.
NVTABULAR = set(
    re.findall(
        r"\w+",
        """
    AddMetadata AddProperties AddTags Bucketize Categorify Clip ColumnSimilarity DataStats DifferenceLag
    DropLowCardinality Dropna FillMedian FillMissing Filter Groupby HashBucket HashedCross JoinExternal JoinGroupby
    LambdaOp ListSlice LogOp Normalize NormalizeMinMax ReduceDtypeSize Rename TagAsItemFeatures TagAsItemID
    TagAsUserFeatures TagAsUserID TargetEncoding ValueCount
    """,
    )
)
MODULES = [sklearn.preprocessing, sklearn.impute, sklearn.decomposition, sklearn.feature_selection]
NO_STEP = {"SelectorMixin"}  # an abstract class

FRAME = pd.DataFrame({"x": [1.0, 2.0]})
PIPELINE = gp.Pipeline([], gp.Features((["x"], preprocessing.StandardScaler()))).fit(FRAME)
# What the snippets of the page begin with.
NAMES = {
    "gp": gp,
    "io": io,
    "pre": preprocessing,
    "sel": selectors,
    "T": transforms,
    "dataset": gp.from_frame(FRAME),
    "pipeline": PIPELINE,
    "scorer": gp.Scorer(PIPELINE, None),
    "step": preprocessing.StandardScaler(),
}
GIVEN = {"other", "fn"}


class Row(NamedTuple):
    section: str
    cells: list[str]

    def code(self, place: int) -> list[str]:
        return re.findall(r"`([^`]+)`", self.cells[place])


def rows() -> list[Row]:
    found, section = [], ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("|") and not re.match(r"\| (You used|What was met) \||\|-", line):
            found.append(Row(section, [cell.strip() for cell in line.strip("|").split("|")]))
    return found


ROWS = rows()
TWINS = [row for row in ROWS if len(row.cells) == 4]


def used(*sections: str) -> set[str]:
    return {name for row in ROWS if row.section.startswith(sections) for name in row.code(0)}


def test_every_operator_of_nvtabular_has_a_row() -> None:
    assert len(NVTABULAR) == 32 and used("NVTabular's operators") == NVTABULAR


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_class_of_scikit_learn_has_a_row(module: Any) -> None:
    classes = {name for name in module.__all__ if inspect.isclass(getattr(module, name))} - NO_STEP
    assert len(classes) >= 3 and not classes - used("scikit-learn")


def test_every_row_is_full() -> None:
    for row in ROWS:
        assert len(row.cells) == (2 if row.section.startswith("What users") else 4), row
        assert row.cells[0], row
        if len(row.cells) == 4 and not row.code(1):
            assert row.cells[1] in ("no twin", "none is needed") and len(row.cells[2]) > 60, f"argue: {row}"
        else:
            assert row.code(-1), f"no test: {row}"


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_exists() -> None:
    named = re.findall(r"`(tests/[^`]*)`", PAGE)
    assert len(named) > 100
    for item in named:
        path, _, name = item.partition("::")
        assert name.startswith("test_") and name in names_in(path), item


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("guide-*.md")), ids=lambda page: page.stem)
def test_tests_that_guides_name_exist(page: Path) -> None:
    """`tests/io/planning/test_splits.py::test_a`, `::test_b`, or a file of tests/preprocessing without its folder."""
    file = ""
    for path, name in re.findall(r"([\w/]+\.py)?(?:::(test_\w+))?", page.read_text()):
        if path:
            file = path if "/" in path else next(map(str, (ROOT / "tests/preprocessing").rglob(path)), path)
        if name:
            assert name in names_in(file), f"{file}::{name}"


@pytest.mark.parametrize("row", TWINS, ids=lambda row: row.cells[0])
def test_what_is_to_be_written_exists(row: Row) -> None:
    """Snippets parse, begin with a name that is explained, and call what is there with parameters it has."""
    for snippet in row.code(1):
        for node in ast.walk(ast.parse(snippet, mode="eval")):
            if isinstance(node, ast.Name):
                assert node.id in NAMES.keys() | GIVEN, snippet
            if isinstance(node, ast.Attribute):
                resolved(node)
            if isinstance(node, ast.Call):
                arguments = [None] * len(node.args)
                keywords = {item.arg: None for item in node.keywords if item.arg}
                inspect.signature(resolved(node.func)).bind(*arguments, **keywords)


def resolved(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return NAMES[node.id]
    assert isinstance(node, ast.Attribute), ast.dump(node)
    return getattr(resolved(node.value), node.attr)


def test_every_step_is_in_it() -> None:
    """A new step has to say what it is the twin of."""
    written = {name for row in TWINS for code in row.code(1) for name in re.findall(r"\b(?:pre|T)\.(\w+)", code)}
    steps = {
        name
        for room, root in ((preprocessing, preprocessing.LearnedStep), (transforms, transforms.Transform))
        for name in room.__all__
        if isinstance(cls := getattr(room, name), type) and issubclass(cls, root) and not inspect.isabstract(cls)
    }
    assert len(steps) > 40 and steps - written == set()
