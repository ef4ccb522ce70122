"""A fitted pipeline and its model as one folder: JSON, Arrow, Parquet and safetensors; nothing in it can run code.

manifest.json         format, sizes and SHA-256 of the other files
pipeline.json         steps, features, schemas
arrays.safetensors    learned numbers
values.arrow          learned strings, one row of lists
tables/NAME.parquet   tables to join with, up to 64 MB each
model.json, model.safetensors
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors

from gpupipe import __version__, models
from gpupipe.encoding import MAX_TABLE_BYTES, Decoder, Encoder
from gpupipe.errors import ArtifactError, BadConfig
from gpupipe.io.atomic import replacing
from gpupipe.pipeline import Pipeline
from gpupipe.scorer import Scorer

__all__ = ["load", "save"]

FORMAT = 1


def save(path: str | Path, pipeline: Pipeline, model: torch.nn.Module | None = None) -> None:
    """Save a fitted pipeline, and a model trained on its output, as one folder.

    The folder appears whole or not at all; one that was there before is replaced.

    Raises:
        NotFitted: the pipeline has not been fitted.
        ArtifactError: a function or class cannot be found again by its import path, or a step's state has no form
            without pickle; names the step.

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
    encoder = Encoder(pipeline.select_backend(), MAX_TABLE_BYTES)
    description = {
        "format": FORMAT,
        "gpupipe": __version__,
        "source": pipeline.source.to_json(),
        "schema": pipeline.schema.to_json(),
        "steps": [encoder.step(step) for step in pipeline.steps],
        "features": encoder.features(pipeline.features),
    }
    target = Path(path)
    _check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, overwrite=True) as folder:
        folder.mkdir()
        _write_json(folder / "pipeline.json", description)
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
            _write_json(folder / "model.json", _describe(model))
            weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
            save_tensors(weights, folder / "model.safetensors")
        files = sorted(item for item in folder.rglob("*") if item.is_file())
        listed = {str(item.relative_to(folder)): _fingerprint(item) for item in files}
        _write_json(folder / "manifest.json", {"format": FORMAT, "files": listed, "digest": _digest(listed)})


def load(
    path: str | Path,
    *,
    model: torch.nn.Module | None = None,
    tables: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
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
        ArtifactError: a file is missing, altered, truncated or of another format, or something is not allowed.

    Memory: the learned state and the tables, on the host until first used; the model on `device`.

    Example:
        >>> load("no/such/folder")
        Traceback (most recent call last):
        gpupipe.errors.ArtifactError: no/such/folder: it holds no saved pipeline (manifest.json is missing).
        Expected a folder written by gpupipe.save.
        Try: the folder's path
    """
    folder = Path(path)
    listed = _verified(folder)
    description = _read_json(folder / "pipeline.json")
    decoder = Decoder(
        arrays=load_file(folder / "arrays.safetensors"),
        values=_read_values(folder / "values.arrow"),
        embedded={Path(name).stem: folder / name for name in listed if name.startswith("tables/")},
        tables=dict(tables or {}),
        allow=frozenset(allow),
    )
    pipeline = Pipeline(
        [decoder.step(item) for item in description["steps"]], decoder.features(description["features"]), backend
    )
    decoder.check_all_used()
    pipeline.bind(decoder.schema(description["source"]))
    network = _network(folder, model) if "model.json" in listed else None
    if network is None and model is not None:
        raise BadConfig(
            "load(model=...)",
            "the artifact holds no weights",
            expected="a pipeline saved with a model",
            remedy="gp.load(path)",
        )
    return Scorer(pipeline, network, device=device)


def _check_replaceable(target: Path) -> None:
    """Only an earlier artifact or an empty folder may be replaced."""
    if (
        target.exists()
        and not (target / "manifest.json").is_file()
        and not (target.is_dir() and not any(target.iterdir()))
    ):
        raise ArtifactError(
            str(target), "something else is there", expected="a new path or an earlier artifact", remedy="another path"
        )


def _describe(model: torch.nn.Module) -> dict[str, Any]:
    name = type(model).__name__
    own: Any = model
    if getattr(models, name, None) is type(model):
        return {"class": name, "config": own.get_config()}
    return {"class": None, "name": f"{type(model).__module__}.{type(model).__qualname__}"}


def _network(folder: Path, given: torch.nn.Module | None) -> torch.nn.Module:
    described = _read_json(folder / "model.json")
    if described["class"] is None and given is None:
        raise ArtifactError(
            str(folder),
            f"it holds the weights of a network of the user's own, {described['name']}",
            expected="that network as an argument",
            remedy=f"gp.load(path, model={described['name'].rpartition('.')[2]}())",
        )
    if given is None and described["class"] not in models.__all__:
        raise ArtifactError(
            str(folder),
            "unknown network",
            got=described["class"],
            expected=f"one of {models.__all__}",
            remedy="a newer gpupipe",
        )
    network = given if given is not None else getattr(models, described["class"])(**described["config"])
    try:
        network.load_state_dict(load_tensors(folder / "model.safetensors"))
    except (RuntimeError, SafetensorError) as cause:
        raise ArtifactError(
            str(folder),
            f"the saved weights do not fit the network ({cause})",
            expected="the network that was saved",
            remedy="model=...",
        ) from cause
    return network.eval()


def _verified(folder: Path) -> dict[str, dict[str, Any]]:
    """The listed files, each found unaltered."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        raise ArtifactError(
            str(folder),
            "it holds no saved pipeline (manifest.json is missing)",
            expected="a folder written by gpupipe.save",
            remedy="the folder's path",
        )
    content = _read_json(manifest)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else content
        raise ArtifactError(
            str(manifest),
            "another format",
            got=found,
            expected=f"format {FORMAT}",
            remedy="the gpupipe version that wrote it",
        )
    listed = content.get("files", {})
    if content.get("digest") != _digest(listed):
        raise _damaged(manifest, "its list of files was altered")
    for name, expected in listed.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise _damaged(manifest, f"it names a file outside the folder, {name!r}")
        if not file.is_file():
            raise _damaged(file, "the file is missing")
        if _fingerprint(file) != expected:
            raise _damaged(file, "the file was altered or cut short")
    return dict(listed)


def _damaged(file: Path, problem: str) -> ArtifactError:
    return ArtifactError(
        str(file), problem, expected="the file as it was saved", remedy="saving again, or a copy that is whole"
    )


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _digest(listed: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (ValueError, UnicodeDecodeError) as cause:
        raise _damaged(file, f"it is no JSON ({cause})") from cause


def _read_values(file: Path) -> dict[str, pa.Array]:
    with pa.OSFile(str(file), "rb") as source, pa.ipc.open_file(source) as reader:
        table = reader.read_all()
    return {name: table.column(name).combine_chunks().flatten() for name in table.column_names}
