"""Artifacts at URLs: whole at any moment, checked when loaded, and never over something else without being asked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.errors import ArtifactError, BackendMissing, BadConfig, BadFile
from tests.io.s3_server import NO_RETRIES, SECRET, Proxy, options_for
from tests.raising import raises

FRAME = pd.DataFrame({"x": np.arange(40.0), "k": ["a", "b"] * 20, "y": [0, 1, 1, 0] * 10})
RIGHT = pd.DataFrame({"k": ["a", "b"], "v": [1.0, 2.0]})


@pytest.fixture(scope="module")
def pipeline() -> gp.Pipeline:
    features = gp.Features((["x", "v"], pre.StandardScaler()), (["k"], pre.Categorify()), target="y")
    return gp.Pipeline([T.Join(RIGHT, on="k", name="right")], features).fit(FRAME)


@pytest.fixture(scope="module")
def model(pipeline: gp.Pipeline) -> gp.models.MLP:
    return gp.models.MLP.from_schema(pipeline.schema, hidden=(4,), seed=1)


@pytest.fixture
def url() -> Iterator[str]:
    """A folder in fsspec's store in memory."""
    where = f"memory://models/{uuid.uuid4().hex}"
    yield where
    store = fsspec.filesystem("memory")
    if store.exists(where):
        store.rm(where, recursive=True)


def list_names(where: str, **options: Any) -> list[str]:
    store, inner = fsspec.core.url_to_fs(where, **options)
    store.invalidate_cache()
    return sorted(name[len(inner) :].strip("/") for name in store.find(inner))


def test_what_is_saved_at_a_url_is_loaded_from_it(url: str, pipeline: gp.Pipeline, model: gp.models.MLP) -> None:
    gp.save(url, pipeline, model)
    names = list_names(url)
    assert names[-1] == "manifest.json" and len({name.partition("/")[0] for name in names[:-1]}) == 1
    found = gp.load(url)
    pd.testing.assert_frame_equal(found.predict_proba(FRAME), gp.Scorer(pipeline, model).predict_proba(FRAME))


def test_a_copy_of_a_folder_to_or_from_a_store_loads(
    url: str, tmp_path: Path, pipeline: gp.Pipeline, model: gp.models.MLP
) -> None:
    store = fsspec.filesystem("memory")
    gp.save(tmp_path / "here", pipeline, model)
    store.put(f"{tmp_path}/here/", url, recursive=True)
    expected = gp.load(tmp_path / "here").predict_proba(FRAME)
    pd.testing.assert_frame_equal(gp.load(url).predict_proba(FRAME), expected)
    store.rm(url, recursive=True)
    gp.save(url, pipeline, model)
    store.get(url, str(tmp_path / "back"), recursive=True)
    pd.testing.assert_frame_equal(gp.load(tmp_path / "back").predict_proba(FRAME), expected)


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_artifact_is_replaced_only_when_asked(
    is_remote: bool, url: str, tmp_path: Path, pipeline: gp.Pipeline, model: gp.models.MLP
) -> None:
    where = url if is_remote else str(tmp_path / "run")
    gp.save(where, pipeline)
    with raises(BadFile, where=where, remedy="overwrite=True, which replaces it"):
        gp.save(where, pipeline, model)
    assert gp.load(where).model is None
    gp.save(where, pipeline, model, overwrite=True)
    assert gp.load(where).model is not None
    if is_remote:
        assert len({name.partition("/")[0] for name in list_names(url)}) == 2  # the first one's files are gone


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_artifact_stays(url: str, pipeline: gp.Pipeline, overwrite: bool) -> None:
    with fsspec.open(f"{url}/thesis.txt", "w") as file:
        file.write("x")
    with raises(ArtifactError, where=url, got="thesis.txt"):
        gp.save(url, pipeline, overwrite=overwrite)
    assert list_names(url) == ["thesis.txt"]


def test_an_interrupted_save_leaves_the_old_artifact_and_the_next_one_cleans_up(
    url: str, pipeline: gp.Pipeline, model: gp.models.MLP, monkeypatch: pytest.MonkeyPatch
) -> None:
    gp.save(url, pipeline)
    memory = type(fsspec.filesystem("memory"))
    put = memory.put_file

    def stop(self: Any, local: str, path: str, **more: Any) -> Any:
        if path.endswith("manifest.json"):
            raise KeyboardInterrupt
        return put(self, local, path, **more)

    with monkeypatch.context() as broken:
        broken.setattr(memory, "put_file", stop)
        with pytest.raises(KeyboardInterrupt):
            gp.save(url, pipeline, model, overwrite=True)
    assert gp.load(url).model is None
    gp.save(url, pipeline, model, overwrite=True)
    assert gp.load(url).model is not None and len({name.partition("/")[0] for name in list_names(url)}) == 2


def test_a_first_save_that_was_interrupted_is_no_artifact_and_no_obstacle(url: str, pipeline: gp.Pipeline) -> None:
    gp.save(url, pipeline)
    fsspec.filesystem("memory").rm(f"{url}/manifest.json")
    with raises(ArtifactError, where=url):
        gp.load(url)
    gp.save(url, pipeline)
    assert gp.load(url).schema.names == pipeline.schema.names


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_what_was_altered_in_the_store_is_refused(url: str, pipeline: gp.Pipeline, damage: str) -> None:
    gp.save(url, pipeline)
    store = fsspec.filesystem("memory")
    (file,) = (name for name in store.find(url) if name.endswith("arrays.safetensors"))
    if damage == "cut":
        store.pipe_file(file, store.cat_file(file)[:-1])
    elif damage == "gone":
        store.rm(file)
    else:
        text = store.cat_file(f"{url}/manifest.json")
        store.pipe_file(f"{url}/manifest.json", text.replace(b"pipeline.json", b"../../x.json"))
    with pytest.raises(ArtifactError):
        gp.load(url)


def test_urls_that_lead_nowhere(pipeline: gp.Pipeline) -> None:
    with pytest.raises(BadConfig):
        gp.save("nowhere://bucket/run", pipeline)
    with pytest.raises((BadConfig, BackendMissing)):
        gp.load("nowhere://bucket/run")
    with raises(ArtifactError, where="memory://models/none"):
        gp.load("memory://models/none")


@pytest.mark.slow
def test_a_real_store_with_credentials(s3: str, pipeline: gp.Pipeline, model: gp.models.MLP) -> None:
    options = options_for(s3)
    fsspec.filesystem("s3", **options).makedirs("models", exist_ok=True)
    where = f"s3://models/{uuid.uuid4().hex}"
    gp.save(where, pipeline, model, storage_options=options)
    expected = gp.Scorer(pipeline, model).predict_proba(FRAME)
    found = gp.load(where, storage_options=options)
    pd.testing.assert_frame_equal(found.predict_proba(FRAME), expected)
    with raises(BadFile, where=where):
        gp.save(where, pipeline, storage_options=options)
    gp.save(where, pipeline, storage_options=options, overwrite=True)
    assert gp.load(where, storage_options=options).model is None
    assert len({name.partition("/")[0] for name in list_names(where, **options)}) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_store_that_fails_now_and_then(proxy: Proxy, pipeline: gp.Pipeline) -> None:
    options = options_for(proxy.url, **NO_RETRIES)
    fsspec.filesystem("s3", **options).makedirs("models", exist_ok=True)
    where = f"s3://models/{uuid.uuid4().hex}"
    proxy.first(2, "503", "PUT", "pipeline.json")
    gp.save(where, pipeline, storage_options=options)
    proxy.first(2, "503", "GET", "arrays.safetensors")
    gp.load(where, storage_options=options)
    proxy.first(100, "503", "GET", "manifest.json")
    with pytest.raises(BadFile) as refused:
        gp.load(where, storage_options=options)
    assert where in str(refused.value) and SECRET not in str(refused.value)
    proxy.first(100, "503", "PUT", "manifest.json")
    with pytest.raises(BadFile):
        gp.save(where, pipeline, storage_options=options, overwrite=True)
    proxy.fault = lambda request: None
    assert gp.load(where, storage_options=options).schema.names == pipeline.schema.names
