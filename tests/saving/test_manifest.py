"""A folder made to deceive, its checksums in order: it loads, or an ArtifactError says which file is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from traceback import format_exception
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MaxAbsScaler

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import ArtifactError
from gpupipe.saving.artifact import _digest, write_manifest

NESTED = "[" * 50_000 + "]" * 50_000
DEEP = "[" * 300 + "]" * 300  # read by the parser, too deep for much else
REPLACEMENTS = ["null", "[]", "{}", '"x"', "-1", "true", "1e400", "NaN", DEEP, NESTED, "9" * 5_000, r'"\ud800"', ""]
"""What is put in a value's place, as text; nothing where the value is left out."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "k": ["x", "y", "z"] * 20})
    frame["y"] = ["p", "q", "r", "q"] * 15
    steps = [
        T.Filter("b > -9"),
        T.Derive(c="a + 1"),
        T.Join(pd.DataFrame({"k": ["x", "y"], "v": [1.0, 2.0]}), on="k", name="prices"),
    ]
    features = gp.Features(
        (["a", "c"], [pre.SimpleImputer(), pre.StandardScaler(), pre.PCA(n_components=1)], "group"),
        (["b"], MaxAbsScaler()),
        (["k"], pre.Categorify()),
        (["v"], [pre.SimpleImputer(strategy="median"), pre.KMeans(n_clusters=2)]),
        target="y",
        keep=["k"],
    )
    pipeline = gp.Pipeline(steps, features).fit(frame)
    path = tmp_path_factory.mktemp("whole") / "run"
    gp.save(path, pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)))
    return path


@pytest.fixture
def saved(whole: Path) -> Iterator[Path]:
    """The folder, put right afterwards."""
    before = {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    yield whole
    for file, content in before.items():
        file.write_bytes(content)


def forge(folder: Path, name: str, content: str | bytes) -> None:
    """Put a file in another's place, and all checksums in order."""
    if name == "manifest.json":
        (folder / name).write_text(signed(str(content)))
        return
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "manifest.json").unlink()
    write_manifest(folder)


def signed(manifest: str) -> str:
    """With the digest its list of files should have, where it has such a list."""
    try:
        content = json.loads(manifest)
        return json.dumps(content | {"digest": _digest(content["files"])})
    except (KeyError, RecursionError, TypeError, ValueError):
        return manifest


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of some JSON are, the whole first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(text: str, path: tuple[Any, ...], replacement: str) -> str:
    """The JSON with another value in one place."""
    outer = [json.loads(text)]
    parent, place = outer, 0
    for key in path:
        parent, place = parent[place], key
    if replacement:
        parent[place] = "<here>"
    elif path:
        del parent[place]
    else:
        return ""
    return json.dumps(outer[0]).replace('"<here>"', replacement)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipeline.json", "model.json", "manifest.json"])
def test_any_value_may_be_another(saved: Path, name: str) -> None:
    text = (saved / name).read_text()
    draw = random.Random(name)
    loaded, refusals = 0, []
    for path in places(json.loads(text)):
        for replacement in draw.sample(REPLACEMENTS, 2):
            forge(saved, name, replaced(text, path, replacement))
            try:
                gp.load(saved)
                loaded += 1
            except ArtifactError as error:
                refusals.append("".join(format_exception(error)))
    assert len(refusals) > loaded > 0
    assert all(str(saved) in refusal for refusal in refusals)


@pytest.mark.parametrize(
    ("name", "path", "replacement", "message"),
    [
        ("pipeline.json", ("steps", 0, "class"), "null", r"pipeline\.json: steps\[0\]\.class is null, not text\."),
        ("pipeline.json", ("features", "groups", 1, "columns"), "{}", r"groups\[1\]\.columns is an object, not a list"),
        ("pipeline.json", ("features", "target"), "-1", r"features\.target is a whole number, not a list or null"),
        (
            "pipeline.json",
            ("source", 1, "nullable"),
            "1",
            r"source\[1\]\.nullable is a whole number, not true or false",
        ),
        ("pipeline.json", ("steps", 0, "params"), "", r"pipeline\.json: steps\[0\] lacks 'params'\."),
        ("pipeline.json", (), "[]", r"pipeline\.json: the content is a list, not an object\."),
        ("pipeline.json", ("schema",), NESTED, r"pipeline\.json: its values are nested too deep\."),
        ("pipeline.json", ("schema",), "1e400", r"pipeline\.json: 1e400 is no finite number\."),
        ("pipeline.json", ("source", 0, "dtype"), '"int1"', r"\(BadConfig: column 'a': unknown type, got 'int1'\.\)"),
        (
            "pipeline.json",
            ("features", "groups", 2, "steps", 0, "state", "vocabularies_0"),
            "",
            r"KeyError: 'vocabularies_0",
        ),
        *(
            ("pipeline.json", ("features", "classes", 0, "classes_"), classes, r"classes are two or more of one type")
            for classes in ("[-1, 9223372036854775808]", "[18446744073709551616, 18446744073709551617]", "[false, 2]")
        ),
        ("model.json", ("config", "hidden"), "[2.5]", r"model\.json: its content cannot be used"),
        ("model.json", ("config",), "", r"model\.json: its content cannot be used \(KeyError: 'config'\)"),
        ("model.json", ("config", "hidden"), "[3]", r"the saved weights do not fit the network"),
        ("model.json", ("class",), '"Periodic"', r"unknown network, got 'Periodic'"),
    ],
)
def test_the_message_says_what_is_wrong_and_where(
    saved: Path, name: str, path: tuple[Any, ...], replacement: str, message: str
) -> None:
    forge(saved, name, replaced((saved / name).read_text(), path, replacement))
    with pytest.raises(ArtifactError, match=message):
        gp.load(saved)


def test_steps_of_a_target_know_its_columns(tmp_path: Path) -> None:
    features = gp.Features(["x"], target="y", target_transform=pre.StandardScaler())
    pipeline = gp.Pipeline([], features).fit(pd.DataFrame({"x": range(9), "y": [0.5 * number for number in range(9)]}))
    gp.save(tmp_path / "run", pipeline, gp.models.Linear.from_schema(pipeline.schema))
    text = (tmp_path / "run" / "pipeline.json").read_text()
    names = "features", "target_transform", 0, "state", "names_in_"
    forge(tmp_path / "run", "pipeline.json", replaced(text, names, '["z"]'))
    with pytest.raises(ArtifactError, match=r"StandardScaler: .*names_in_, got \["):
        gp.load(tmp_path / "run")


@pytest.mark.parametrize("name", ["arrays.safetensors", "values.arrow", "model.safetensors", "tables/prices.parquet"])
@pytest.mark.parametrize("content", [b"", b"x", b"\x08" + b"\0" * 7 + b"{}      ", b"ARROW1\0\0" * 2, b"PAR1" * 4])
def test_files_that_are_something_else(saved: Path, name: str, content: bytes) -> None:
    forge(saved, name, content)
    with pytest.raises(ArtifactError):
        gp.load(saved)


@pytest.mark.parametrize(
    "name", ["pipeline.json", "arrays.safetensors", "values.arrow", "model.json", "model.safetensors"]
)
def test_a_list_that_leaves_a_file_out(saved: Path, name: str) -> None:
    forge(saved, "manifest.json", replaced((saved / "manifest.json").read_text(), ("files", name), ""))
    with pytest.raises(ArtifactError, match=rf"manifest\.json: it does not list {name}"):
        gp.load(saved)


@pytest.mark.parametrize(
    "name",
    ["../other.json", "/etc/hostname", "tables/../pipeline.json", "tables/a/b.parquet", "a\\b", "a\0b", "", "x.py"],
)
def test_a_list_that_names_a_file_of_another_kind(saved: Path, name: str) -> None:
    content = json.loads((saved / "manifest.json").read_text())
    content["files"][name] = {"bytes": 2, "sha256": "0"}
    forge(saved, "manifest.json", json.dumps(content))
    with pytest.raises(ArtifactError, match=r"manifest\.json: it lists a file that no artifact has"):
        gp.load(saved)


def test_a_model_is_listed_whole_or_not_at_all(saved: Path) -> None:
    text = (saved / "manifest.json").read_text()
    for name in ("model.json", "model.safetensors"):
        text = replaced(text, ("files", name), "")
    forge(saved, "manifest.json", text)
    assert gp.load(saved).model is None


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, saved: Path) -> None:
    file = saved / "arrays.safetensors"
    (tmp_path / "elsewhere").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    try:
        with pytest.raises(ArtifactError, match=r"arrays\.safetensors: it is a link to a file outside the folder"):
            gp.load(saved)
        file.unlink()
        file.symlink_to(file.name)
        with pytest.raises(ArtifactError, match="arrays"):
            gp.load(saved)
    finally:
        file.unlink()  # or the fixture would write where it leads


def test_who_may_read_one_file_may_read_all(saved: Path) -> None:
    assert len({file.stat().st_mode for file in saved.rglob("*") if file.is_file()}) == 1
