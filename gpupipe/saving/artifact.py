"""Artifact: a fitted pipeline and its model as one folder of JSON, Arrow, Parquet and safetensors; contains no code.

manifest.json         format, sizes and SHA-256 of the other files
pipeline.json         steps, features, schemas
arrays.safetensors    learned numbers
values.arrow          learned strings, one row of lists
tables/NAME.parquet   tables to join with, up to 64 MB each
model.json, model.safetensors
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

from gpupipe import models
from gpupipe.backend import resolve, select
from gpupipe.config import BACKENDS
from gpupipe.errors import ArtifactError, BackendMissing, BadConfig, ColumnNotFound, SchemaMismatch
from gpupipe.io import as_dataset
from gpupipe.models.tabular import Tabular
from gpupipe.monitoring.drift import Profile
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.serialization import MAX_TABLE_BYTES, Decoder, Encoder
from gpupipe.saving.manifest import (
    FORMAT,
    MODEL,
    PIPELINE,
    blame_file,
    list_other_files,
    read_json,
    verify_files,
    write_json,
    write_manifest,
)
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import Schema
from gpupipe.support.files import replacing, writing
from gpupipe.support.validation import check_choice, is_path
from gpupipe.version import __version__

NETWORKS = [name for name in models.__all__ if issubclass(getattr(models, name), torch.nn.Module)]


def save(path: str | Path, pipeline: Pipeline, model: torch.nn.Module | None = None) -> None:
    """Save a fitted pipeline, and a model trained on its output, as one folder.

    The folder appears whole or not at all; one that was there before is replaced.

    Raises:
        NotFitted: the pipeline has not been fitted.
        BadConfig: the arguments are not a path, a pipeline and a model (a trainer's is `trainer.model`).
        SchemaMismatch: the model was made for other features than the pipeline gives.
        ArtifactError: a function or class cannot be found again by its import path, a step's state has no form without
            pickle (names the step), `path` is a URL, or something else is there.
        BadFile: the system does not let this process write there.

    Memory: copies the model's weights and the learned state to the host.

    Example:
        >>> import tempfile, pandas as pd
        >>> from gpupipe import Features, Pipeline
        >>> pipeline = Pipeline([], Features(["distance"])).fit(pd.DataFrame({"distance": [100.0, 300.0]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/run", pipeline)
        ...     load(f"{folder}/run").schema.names
        ['distance']
    """
    _check_saved(path, pipeline, model)
    target, schema = _local(path), pipeline.schema
    if isinstance(model, Tabular):
        model.check_schema(schema)
    encoder = Encoder(select(pipeline.backend), MAX_TABLE_BYTES)
    description = {
        "format": FORMAT,
        "gpupipe": __version__,
        "source": pipeline._fitted_source().to_json(),
        "schema": schema.to_json(),
        "steps": [encoder.step(step) for step in pipeline.steps],
        "features": encoder.features(pipeline.features),
        "profiles": {name: vars(profile) for name, profile in pipeline.profiles.items()},
    }
    with writing(target):
        _check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, overwrite=True) as folder:
        folder.mkdir()
        write_json(folder / "pipeline.json", description)
        save_file(encoder.arrays, folder / "arrays.safetensors")
        lists = {key: pa.array([values], pa.large_list(values.type)) for key, values in encoder.values.items()}
        with (
            pa.OSFile(str(folder / "values.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, pa.table(lists).schema) as file,
        ):
            file.write_table(pa.table(lists))
        if encoder.tables:
            (folder / "tables").mkdir()
        for name, table in encoder.tables.items():
            pq.write_table(table, folder / "tables" / f"{name}.parquet", compression="zstd")
        if model is not None:
            write_json(folder / "model.json", _describe(model))
            # A copy of each: tied weights share memory, which safetensors does not write.
            weights = {
                name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                for name, tensor in model.state_dict().items()
            }
            save_tensors(weights, folder / "model.safetensors")
        write_manifest(folder)


def load(
    path: str | Path,
    *,
    model: torch.nn.Module | None = None,
    tables: Mapping[str, Any] | None = None,
    allow: str | Collection[str] = (),
    backend: str = "auto",
    device: str = "auto",
) -> Scorer:
    """Load what `save` wrote, ready to predict.

    Args:
        path: the folder.
        model: the network, where one of the user's own was saved; its weights are filled in.
        tables: tables to join with by the join's name, in the place of the saved ones.
        allow: import paths of functions (and steps of the user's own) that may be used, such as `"my_steps.clean"`; no
            module is imported that is not named here.
        backend: `"auto"`, `"cpu"` or `"gpu"`.
        device: where the model runs; the backend's by default.

    Raises:
        ArtifactError: a file is missing, altered, truncated or of another format, its content makes no pipeline, or
            something is not allowed.
        BadConfig: an argument that makes no sense, or a model where the folder holds no weights.

    Memory: the learned state and the tables, on the host until first used; the model on `device`.

    Example:
        >>> load("no/such/folder")
        Traceback (most recent call last):
        gpupipe.errors.ArtifactError: no/such/folder: it holds no saved pipeline (manifest.json is missing).
        Expected a folder written by gpupipe.save.
        Try: the folder's path
    """
    folder = _local(path)
    names = verify_files(folder)
    if not isinstance(tables, Mapping | None):
        raise BadConfig(
            "load(tables=)",
            "not tables by name",
            got=type(tables),
            expected="a mapping from joins' names to tables",
            remedy="gp.load(path, tables={'weather': table})",
        )
    if not isinstance(model, torch.nn.Module | None):
        raise _no_model("load(model=)", model)
    check_choice(load, BACKENDS, backend=backend)
    resolve(backend)  # what is wrong with it is not the file's fault
    paths: Any = allow
    allowed = [paths] if isinstance(paths, str) or callable(paths) else list(paths)
    if not all(isinstance(name, str) for name in allowed):
        raise BadConfig(
            "load(allow=)",
            "not import paths",
            got=allow,
            expected="text such as 'my_steps.clean', since nothing is imported that is not named",
            remedy=f"allow={[_get_import_path(item) for item in allowed]}",
        )
    given = {name: as_dataset(table) for name, table in (tables or {}).items()}
    description = read_json(folder / "pipeline.json", PIPELINE)
    with blame_file(folder / "arrays.safetensors"):
        arrays = load_file(folder / "arrays.safetensors")
    with blame_file(folder / "values.arrow"):
        values = _read_values(folder / "values.arrow")
    decoder = Decoder(
        arrays=arrays,
        values=values,
        embedded={Path(name).stem: folder / name for name in names if name.startswith("tables/")},
        tables=given,
        allow=frozenset(allowed),
    )
    # What does not fit a table that the caller gave is for the caller to hear.
    theirs = (ColumnNotFound, SchemaMismatch) if given else ()
    with blame_file(folder / "pipeline.json", BackendMissing, *theirs):
        pipeline = Pipeline(
            [decoder.step(item) for item in description["steps"]],
            decoder.features(description["features"]),
            backend,
        )
        decoder.check_all_used()
        pipeline.profiles = {name: Profile.from_json(found) for name, found in description["profiles"].items()}
        pipeline._bind(Schema.from_json(description["source"]), Schema.from_json(description["schema"]).ranges)
    network = _network(folder, model) if "model.json" in names else None
    if model is None and isinstance(network, Tabular):
        with blame_file(folder / "model.json"):
            network.check_schema(pipeline.schema)
    if network is None and model is not None:
        raise BadConfig(
            "load(model=...)",
            "the artifact holds no weights",
            expected="a pipeline saved with a model",
            remedy="gp.load(path)",
        )
    return Scorer(pipeline, network, device=device)


def _check_saved(path: object, pipeline: object, model: object) -> None:
    """Refuse what `save` was given where it has another place, or none.

    Raises:
        BadConfig: no path, no pipeline or no model.
    """
    order = "gp.save(path, pipeline, model)"
    if isinstance(path, Pipeline) or not isinstance(pipeline, Pipeline):
        mistaken = pipeline if not isinstance(path, Pipeline) else path
        raise BadConfig(
            "save(pipeline=)",
            "not a pipeline" if mistaken is pipeline else "a pipeline in the place of the path",
            got=type(mistaken),
            expected="the path, the fitted pipeline, then the model, in this order",
            remedy="gp.save(path, scorer.pipeline, scorer.model)" if isinstance(mistaken, Scorer) else order,
        )
    if not isinstance(model, torch.nn.Module | None):
        raise _no_model("save(model=)", model)


def _no_model(where: str, given: object) -> BadConfig:
    """Build the error for an object that is no network, with the attribute that holds one."""
    called = where.partition("(")[0]
    remedy = "the network itself, which its weights alone cannot make again"
    if isinstance(given, type):
        remedy = f"{given.__name__}(...), an object of the class"
    elif isinstance(getattr(given, "model", None), torch.nn.Module):
        name = type(given).__name__.lower()
        remedy = f"gp.save(path, pipeline, {name}.model)" if called == "save" else f"model={name}.model"
    return BadConfig(where, "not a model", got=type(given), expected="a torch.nn.Module, or None", remedy=remedy)


def _get_import_path(given: object) -> str:
    return given if isinstance(given, str) else f"{given.__module__}.{getattr(given, '__qualname__', '')}"


def _local(path: str | Path) -> Path:
    if not is_path(path):
        raise BadConfig("path", "not a path", got=path, expected="a folder's path", remedy="'runs/flights'")
    if "://" in str(path):
        raise ArtifactError(
            str(path),
            "artifacts are saved to and loaded from folders of this machine",
            expected="a path",
            remedy="a local folder, and fsspec's put or get for the rest of the way",
        )
    return Path(path)


def _check_replaceable(target: Path) -> None:
    """Raise unless the folder is an earlier artifact or empty."""
    others = list_other_files(target) if target.is_dir() else [target.name] * (target.exists() or target.is_symlink())
    if others:
        expected = "a new path, an empty folder or an earlier artifact, and nothing else in it"
        raise ArtifactError(
            str(target), "something else is there", got=others[0], expected=expected, remedy="another path"
        )


def _describe(model: torch.nn.Module) -> dict[str, Any]:
    name = type(model).__name__
    own: Any = model
    if getattr(models, name, None) is type(model):
        return {"class": name, "config": own.get_config()}
    return {"class": None, "name": f"{type(model).__module__}.{type(model).__qualname__}"}


def _network(folder: Path, given: torch.nn.Module | None) -> torch.nn.Module:
    file = folder / "model.json"
    described = read_json(file, MODEL)
    name = described["class"]
    if given is not None:
        network = given
    elif name is None:
        own = described.get("name", "unnamed")
        raise ArtifactError(
            str(folder),
            f"it holds the weights of a network of the user's own, {own}",
            expected="that network as an argument",
            remedy=f"gp.load(path, model={own.rpartition('.')[2]}())",
        )
    elif name not in NETWORKS:
        raise ArtifactError(
            str(folder),
            "unknown network",
            got=name,
            expected=f"one of {NETWORKS}",
            remedy="a newer gpupipe",
        )
    else:
        with blame_file(file):
            network = getattr(models, name)(**described["config"])
    with blame_file(folder / "model.safetensors"):
        weights = load_tensors(folder / "model.safetensors")
    try:
        network.load_state_dict(weights)
    except RuntimeError as cause:
        raise ArtifactError(
            str(folder),
            f"the saved weights do not fit the network ({cause})",
            expected="the network that was saved",
            remedy="model=...",
        ) from cause
    return network.eval()


def _read_values(file: Path) -> dict[str, pa.Array]:
    with pa.OSFile(str(file), "rb") as source, pa.ipc.open_file(source) as reader:
        table = reader.read_all()
    return {name: table.column(name).combine_chunks().flatten() for name in table.column_names}
