"""Artifact: a fitted pipeline and its model as one folder of JSON, Arrow, Parquet and safetensors.

manifest.json         format, sizes and SHA-256 of the other files
pipeline.json         steps, features, schemas
arrays.safetensors    learned numbers
values.arrow          learned strings, one row of lists
tables/NAME.parquet   tables to join with, up to 64 MB each
model.json, model.safetensors

It contains no code; files and JSON are checked before any of it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

from gpupipe import models
from gpupipe.backend import resolve, select
from gpupipe.backend.arrow import iter_valid
from gpupipe.config import BACKENDS
from gpupipe.errors import ArtifactError, BackendMissing, BadConfig, ColumnNotFound, SchemaMismatch, nearest
from gpupipe.io import as_dataset
from gpupipe.io.stores import StorageOptions
from gpupipe.models.tabular import Tabular
from gpupipe.monitoring.reports import Profile
from gpupipe.pipeline.pipeline import MAX_TABLE_BYTES, Decoder, Encoder, Pipeline
from gpupipe.saving.calibrator import SHAPE as CALIBRATOR
from gpupipe.saving.calibrator import Calibrator
from gpupipe.saving.folders import MANIFEST, ArtifactFolder, write_folder
from gpupipe.saving.scorer import Scorer
from gpupipe.schema import Schema
from gpupipe.support.calls import answer_calls
from gpupipe.support.strict_json import MOST_BYTES, parse_json
from gpupipe.support.validation import check_bool, check_choice
from gpupipe.training.loop.scored_rows import Threshold, check_threshold
from gpupipe.version import __version__

_FORMAT = 2
_NETWORKS = [
    name for name, item in vars(models).items() if isinstance(item, type) and issubclass(item, torch.nn.Module)
]
_OTHER_TREES = ("catboost", "lightgbm", "sklearn", "xgboost")
_ALWAYS = {"pipeline.json", "arrays.safetensors", "values.arrow"}
_WITH_MODEL = {"model.json", "model.safetensors"}
_TABLE = re.compile(r"tables/[\w-][\w .-]*\.parquet")

# Shapes of `strict_json`.
_OBJECT, _NUMBER = {str: object}, (int, float)
_FIELD = {
    **dict.fromkeys(("name", "dtype", "kind", "step", "units", "written_as"), str),
    "nullable": bool,
    "cardinality": (int, None),
    "lineage": [str],
    "role": (str, None),
    "classes": ([(str, bool, int, float)], None),
    "range": ([_NUMBER], None),
    "edges": ([_NUMBER], None),
    "gap": (int, float, None),
}
_STEP = {"class": str, "params": _OBJECT, "state?": _OBJECT}
_FEATURES = {
    "groups": [{"columns": [str], "name": (str, None), "steps": [_STEP]}],
    "target": ([str], None),
    "task": str,
    "standardised": bool,
    "target_transform": [_STEP],
    "classes": ([{"classes_": ([(str, bool, int, float)], None)}], None),
    **dict.fromkeys(("lineage", "weight"), (str, None)),
    "keep": [str],
    "allow_leak": [str],
}
_PROFILE: dict[str, Any] = {"edges": [_NUMBER], "shares": [_NUMBER], "unknown": (int, float, None)}
_PROFILE |= dict.fromkeys(("missing", "mean", "std"), _NUMBER)
_PIPELINE: dict[str, Any] = {"source": [_FIELD], "schema": [_FIELD], "steps": [_STEP], "features": (_FEATURES, None)}
_PIPELINE["rows"] = (int, None)
_PIPELINE["profiles"] = {str: _PROFILE}
_MODEL: dict[str, Any] = {"class": (str, None), "config?": _OBJECT, "name?": str, "threshold?": (float, {str: float})}
_MODEL["calibrator?"] = CALIBRATOR
_MANIFEST = {"format": int, "files": {str: {"bytes": int, "sha256": str}}, "digest": str}


@answer_calls
def save(
    path: str | Path,
    pipeline: Pipeline | Scorer,
    model: torch.nn.Module | None = None,
    *,
    threshold: Threshold | None = None,
    overwrite: bool = False,
    storage_options: StorageOptions | None = None,
) -> None:
    """Save a fitted pipeline, and a model trained on its output, as one folder, here or at a URL that fsspec knows.

    A scorer in the pipeline's place is saved whole, with its threshold and its calibration.

    The folder appears whole or not at all; with `overwrite` it takes the place of an earlier artifact. In a store the
    manifest is written last. `threshold` is the scorer's, as `report.threshold(maximize="f1")` gives it;
    `storage_options` are for the file system of a URL, see docs/guide-stores.md.

    Raises:
        NotFitted: the pipeline has not been fitted.
        BadConfig: the arguments are not a path, a pipeline and a model (a trainer's is `trainer.model`).
        SchemaMismatch: the model was made for other features than the pipeline gives.
        ArtifactError: a function or class cannot be found again by its import path, a step's state has no form without
            pickle (names the step), or something else is there.
        BadFile: an artifact is there and `overwrite` is False, or the system or store does not let this process write.

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
    calibrator = None
    if isinstance(pipeline, Scorer):
        if model is not None:
            expected, remedy = "a scorer alone, which has a model", "gp.save(path, scorer)"
            raise BadConfig("save(model=)", "a model beside a scorer", expected=expected, remedy=remedy)
        scorer, threshold = pipeline, pipeline.threshold if threshold is None else threshold
        pipeline, model, calibrator = scorer.pipeline, scorer.model, scorer.calibrator
    arguments: tuple[Any, Any] = (path, pipeline)
    is_swapped = isinstance(arguments[0], Pipeline)
    if is_swapped or not isinstance(arguments[1], Pipeline):
        problem = "a pipeline in the place of the path" if is_swapped else "not a pipeline"
        got = type(arguments[0] if is_swapped else arguments[1])
        expected = "the path, the fitted pipeline, then the model, in this order"
        raise BadConfig("save(pipeline=)", problem, got=got, expected=expected, remedy="gp.save(path, pipeline, model)")
    _check_model("save", model)
    check_bool(save, overwrite=overwrite)
    schema = pipeline.schema
    if threshold is not None:
        task = None if model is None else schema.task
        threshold = check_threshold(save, threshold, task, [item.name for item in schema.targets])
    if isinstance(model, Tabular):
        model.check_schema(schema)
        model.check_fitted()
    encoder = Encoder(select(pipeline.backend), MAX_TABLE_BYTES)
    description = {
        "format": _FORMAT,
        "gpupipe": __version__,
        "source": pipeline._fitted_source().to_json(),
        "schema": schema.to_json(),
        "rows": schema.num_rows,
        "steps": [encoder.step(step) for step in pipeline.steps],
        "features": encoder.features(pipeline.features),
        "profiles": {name: vars(profile) for name, profile in pipeline.profiles.items()},
    }
    with write_folder(path, storage_options, overwrite=overwrite, is_ours=_is_ours) as folder:
        write_json(folder / "pipeline.json", description)
        _write_state(folder, encoder)
        if model is not None:
            kind = type(model)
            described: dict[str, Any] = {"class": None, "name": f"{kind.__module__}.{kind.__qualname__}"}
            if isinstance(model, Tabular) and getattr(models, kind.__name__, None) is kind:
                described = {"class": kind.__name__, "config": model.get_config()}
            described |= {} if threshold is None else {"threshold": threshold}
            described |= {} if calibrator is None else {"calibrator": calibrator.to_json()}
            write_json(folder / "model.json", described)
            # A copy of each: tied weights share memory, which safetensors does not write.
            weights = {
                name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                for name, tensor in model.state_dict().items()
            }
            with _raise_as_os_error():
                save_tensors(weights, folder / "model.safetensors")
        write_manifest(folder)


@answer_calls
def load(
    path: str | Path,
    *,
    model: torch.nn.Module | None = None,
    tables: Mapping[str, Any] | None = None,
    allow: str | Collection[str] = (),
    backend: str = "auto",
    device: str = "auto",
    storage_options: StorageOptions | None = None,
) -> Scorer:
    """Load what `save` wrote, ready to predict.

    Args:
        path: the folder, or its URL.
        model: the network, where one of the user's own was saved; its weights are filled in.
        tables: tables to join with by the join's name, in the place of the saved ones.
        allow: import paths of functions and steps of the user's own, such as `"my_steps.clean"`; no other is imported.
        backend: `"auto"`, `"cpu"` or `"gpu"`.
        device: where the model runs; the backend's by default.
        storage_options: for the file system of a URL.

    Raises:
        ArtifactError: a file is missing, altered, truncated or of another format, its content makes no pipeline, or
            something is not allowed.
        BadConfig: an argument that makes no sense, or a model where the folder holds no weights.
        BadFile: the store of a URL does not answer, or does not let this process read.

    Memory: the learned state and the tables, on the host until first used; the model on `device`. Of a URL the files
        lie in a temporary folder meanwhile.

    Example:
        >>> load("no/such/folder")
        Traceback (most recent call last):
        gpupipe.errors.ArtifactError: no/such/folder: it holds no saved pipeline (manifest.json is missing).
        Expected a folder written by gpupipe.save.
        Try: the folder's path
    """
    artifact = ArtifactFolder(path, storage_options)
    names = _verify_files(artifact)
    folder = artifact.path
    joined: Any = tables
    if not isinstance(joined, Mapping | None):
        expected, remedy = "a mapping from joins' names to tables", "gp.load(path, tables={'weather': table})"
        raise BadConfig("load(tables=)", "not tables by name", got=type(joined), expected=expected, remedy=remedy)
    _check_model("load", model)
    check_choice(load, BACKENDS, backend=backend)
    resolve(backend)  # what is wrong with it is not the file's fault
    paths: Any = allow
    allowed = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
    if not all(isinstance(name, str) for name in allowed):
        expected = "text such as 'my_steps.clean', since nothing is imported that is not named"
        named = [item for item in allowed if isinstance(item, str)]
        named += [f"{x.__module__}.{getattr(x, '__qualname__', '')}" for x in allowed if hasattr(x, "__module__")]
        raise BadConfig("load(allow=)", "not import paths", got=allow, expected=expected, remedy=f"allow={named}")
    datasets = {name: as_dataset(table) for name, table in (tables or {}).items()}
    description = _read_json(folder / "pipeline.json", _PIPELINE)
    with _blame_file(folder / "arrays.safetensors"):
        arrays = load_file(folder / "arrays.safetensors")
    with _blame_file(folder / "values.arrow"):
        with pa.OSFile(str(folder / "values.arrow"), "rb") as source, pa.ipc.open_file(source) as reader:
            rows = list(iter_valid(map(reader.get_batch, range(reader.num_record_batches))))  # one; none without text
        values = {name: row.column(name).flatten() for row in rows for name in row.schema.names}
    embedded = {Path(name).stem: folder / name for name in names if name.startswith("tables/")}
    decoder = Decoder(arrays=arrays, values=values, embedded=embedded, tables=datasets, allow=frozenset(allowed))
    # What does not fit a table that the caller gave is for the caller to hear.
    table_errors = (ColumnNotFound, SchemaMismatch) if datasets else ()
    with _blame_file(folder / "pipeline.json", BackendMissing, *table_errors):
        steps = [decoder.step(item) for item in description["steps"]]
        pipeline = Pipeline(steps, decoder.features(description["features"]), backend)
        decoder.check_all_used()
        pipeline.profiles = {name: Profile.from_json(content) for name, content in description["profiles"].items()}
        statistics = Schema.from_json(description["schema"], description["rows"])
        pipeline._bind(Schema.from_json(description["source"]), statistics)
    described = _read_json(folder / "model.json", _MODEL) if "model.json" in names else {}
    network = _load_network(folder, described, model) if described else None
    with _blame_file(folder / "model.json"):
        targets = [item.name for item in pipeline.schema.targets]
        threshold = check_threshold(load, described.get("threshold"), pipeline.schema.task, targets)
        calibrator = Calibrator.from_json(described["calibrator"]) if "calibrator" in described else None
        if calibrator is not None:
            calibrator.check(pipeline.schema, pipeline._after)
    if model is None and isinstance(network, Tabular):
        with _blame_file(folder / "model.json"):
            network.check_schema(pipeline.schema)
    if network is None and model is not None:
        problem, expected = "the artifact holds no weights", "a pipeline saved with a model"
        raise BadConfig("load(model=...)", problem, expected=expected, remedy="gp.load(path)")
    return Scorer(pipeline, network, threshold=threshold, device=device, calibrator=calibrator)


def _write_state(folder: Path, encoder: Encoder) -> None:
    """Write the arrays, strings and tables of the steps."""
    with _raise_as_os_error():
        save_file(encoder.arrays, folder / "arrays.safetensors")
    lists = {key: pa.array([values], pa.large_list(values.type)) for key, values in encoder.values.items()}
    values, path = pa.table(lists), str(folder / "values.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, values.schema) as file:
        file.write_table(values)
    for name, table in encoder.tables.items():
        (folder / "tables").mkdir(exist_ok=True)
        pq.write_table(table, folder / "tables" / f"{name}.parquet", compression="zstd")


class Facts(NamedTuple):
    """Facts of an artifact as its files say them, checked; nothing of it is built."""

    where: str
    sizes: dict[str, int]  # bytes by the name of a file
    pipeline: dict[str, Any]
    model: dict[str, Any]  # empty without a model
    num_parameters: int  # of the model
    num_nodes: int | None  # of trees


def read_facts(path: str | Path, storage_options: StorageOptions | None = None) -> Facts:
    """Check an artifact's files, and read what they say about it. Raises errors as `load`; imports nothing."""
    artifact = ArtifactFolder(path, storage_options)
    names = _verify_files(artifact)
    sizes = {name: (artifact.path / name).stat().st_size for name in names}
    pipeline = _read_json(artifact.path / "pipeline.json", _PIPELINE)
    if "model.json" not in names:
        return Facts(artifact.where, sizes, pipeline, {}, 0, None)
    weights = artifact.path / "model.safetensors"
    with _blame_file(weights), safe_open(weights, "numpy") as file:
        names = [name for name in file.keys() if not name.endswith("id_keys")]  # noqa: SIM118 - no mapping
        counts = {name: math.prod(file.get_slice(name).get_shape()) for name in names}
    model = _read_json(artifact.path / "model.json", _MODEL)
    nodes = counts.get("left_children") if model["class"] == "XGB" else None
    return Facts(artifact.where, sizes, pipeline, model, sum(counts.values()), nodes)


def _check_model(function: str, model: object) -> None:
    """Raise `BadConfig` for an object that is no network, with the attribute that holds one."""
    if isinstance(model, torch.nn.Module | None):
        return
    where, problem, expected = f"{function}(model=)", "not a model", "a torch.nn.Module, or None"
    remedy = "the network itself, which its weights alone cannot make again"
    library = type(model).__module__.partition(".")[0]
    if isinstance(model, type):
        remedy = f"{model.__name__}(...), an object of the class"
    elif isinstance(model, Scorer) and function == "save":
        remedy = "gp.save(path, scorer), which keeps its threshold and calibration"
    elif isinstance(getattr(model, "model", None), torch.nn.Module):
        attribute = f"{type(model).__name__.lower()}.model"
        remedy = f"gp.save(path, pipeline, {attribute})" if function == "save" else f"model={attribute}"
    elif library in _OTHER_TREES or all(callable(getattr(model, name, None)) for name in ("fit", "predict")):
        problem = f"a model of {library}, whose files are not safe to load"
        expected = "a torch.nn.Module, as gp.models.XGB is for trees and gp.models.Linear for a linear model"
        remedy = "gp.Trainer(gp.models.XGB.from_schema(pipeline.schema)).fit(train, valid)"
    raise BadConfig(where, problem, got=type(model), expected=expected, remedy=remedy)


def _load_network(folder: Path, described: Mapping[str, Any], model: torch.nn.Module | None) -> torch.nn.Module:
    file, where, name = folder / "model.json", str(folder), described["class"]
    if model is not None:
        network = model
    elif name is None:
        kind = described.get("name", "unnamed")
        problem = f"it holds the weights of a network of the user's own, {kind}"
        expected = "that network as an argument"
        remedy = f"gp.load(path, model={kind.rpartition('.')[2]}())"
        raise ArtifactError(where, problem, expected=expected, remedy=remedy)
    elif name not in _NETWORKS:
        expected = f"one of {_NETWORKS}"
        raise ArtifactError(where, "unknown network", got=name, expected=expected, remedy="a newer gpupipe")
    else:
        with _blame_file(file):
            network = getattr(models, name)(**described["config"])
    with _blame_file(folder / "model.safetensors"):
        weights = load_tensors(folder / "model.safetensors")
    try:
        network.load_state_dict(weights)
    except RuntimeError as cause:
        problem = f"the saved weights do not fit the network ({cause})"
        raise ArtifactError(where, problem, expected="the network that was saved", remedy="model=...") from cause
    return network.eval()


def write_manifest(folder: Path) -> None:
    """List all files of `folder`, with sizes and SHA-256, in its `manifest.json`."""
    files = sorted(item for item in folder.rglob("*") if item.is_file())
    listed = {item.relative_to(folder).as_posix(): _fingerprint(item) for item in files}
    write_json(folder / MANIFEST, {"format": _FORMAT, "files": listed, "digest": _digest(listed)})
    for file in files:  # safetensors' can be read by their owner alone
        file.chmod((folder / MANIFEST).stat().st_mode)


def _is_ours(name: str) -> bool:
    """Return whether `save` writes files of this name."""
    return name in {MANIFEST, *_ALWAYS, *_WITH_MODEL} or bool(_TABLE.fullmatch(name))


def _verify_files(artifact: ArtifactFolder) -> list[str]:
    """Check that the folder has exactly the files of the manifest, each unaltered; return their names."""
    manifest = artifact.path / MANIFEST
    with _blame_file(manifest):
        is_there = manifest.is_file()
    if not is_there:
        problem, expected = "it holds no saved pipeline (manifest.json is missing)", "a folder written by gpupipe.save"
        is_new = not artifact.path.exists() and artifact.path.parent.is_dir()
        near = nearest(artifact.path.name, [path.name for path in artifact.path.parent.iterdir()]) if is_new else None
        remedy = "the folder's path" if near is None else f"{near!r} (the closest name there)"
        if artifact.path.is_file():
            problem = "a file, and no saved pipeline: models of other libraries are not safe to load"
            remedy = "gp.models.XGB for trees, gp.models.Linear for a linear model, and gp.save(path, pipeline, model)"
        raise ArtifactError(artifact.where, problem, expected=expected, remedy=remedy)
    version = _read_json(manifest, {"format": int})["format"]
    if version != _FORMAT:
        expected, remedy = f"format {_FORMAT}", "the gpupipe version that wrote it"
        raise ArtifactError(str(manifest), "another format", got=version, expected=expected, remedy=remedy)
    content = _read_json(manifest, _MANIFEST)
    listed = content["files"]
    if content["digest"] != _digest(listed):
        _refuse(manifest, "its list of files was altered")
    needed = _ALWAYS | (_WITH_MODEL if _WITH_MODEL & listed.keys() else set())
    for name in sorted(needed - listed.keys()):
        _refuse(manifest, f"it does not list {name}")
    for name in listed:
        if name not in needed and not _TABLE.fullmatch(name):
            _refuse(manifest, f"it lists a file that no artifact has, {name!r}")
    artifact.fetch(content["digest"], listed)
    for name, expected in listed.items():
        file = artifact.path / name
        with _blame_file(file):
            is_inside = file.resolve().is_relative_to(artifact.path.resolve())
        if not is_inside:
            _refuse(file, "it is a link to a file outside the folder")
        if not file.is_file():
            _refuse(file, "the file is missing")
        with _blame_file(file):
            if _fingerprint(file) != expected:
                _refuse(file, "the file was altered or cut short")
    return list(listed)


@contextmanager
def _blame_file(file: Path, *passing: type[Exception]) -> Iterator[None]:
    """Report exceptions raised inside as a fault of the file, except artifact errors and those of `passing`."""
    try:
        yield
    except Exception as cause:
        if isinstance(cause, (ArtifactError, *passing)):
            if str(file) not in str(cause):
                cause.add_note(f"in {file}")
            raise
        line = str(cause).partition("\n")[0]
        if isinstance(cause, PermissionError):
            problem, expected = f"it cannot be read ({line})", "a file that this process may read"
            raise ArtifactError(str(file), problem, expected=expected, remedy="its permissions") from cause
        _refuse(file, f"its content cannot be used ({type(cause).__name__}: {line})", cause)


@contextmanager
def _raise_as_os_error() -> Iterator[None]:
    """Raise what safetensors says of a full disk as the error of the system that it is."""
    try:
        yield
    except SafetensorError as cause:
        raise OSError(str(cause)) from cause


def write_json(file: Path, content: Any) -> None:
    """Write JSON, of finite numbers only."""
    file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def _read_json(file: Path, shape: Any) -> Any:
    """Read a JSON file that has this shape and finite numbers only; else an `ArtifactError` names the place in it."""
    with _blame_file(file):
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has {file.stat().st_size:,} bytes")
        content = file.read_bytes()
    try:
        return parse_json(content, shape)
    except ValueError as cause:
        _refuse(file, str(cause), cause)


def _refuse(file: Path, problem: str, cause: Exception | None = None) -> NoReturn:
    expected, remedy = "the file as it was saved", "saving again, or a copy that is whole"
    raise ArtifactError(str(file), problem, expected=expected, remedy=remedy) from cause


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _digest(listed: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
