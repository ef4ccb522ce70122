"""What is damaged: a file or folder as the library writes it, and how it is read."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.forged.mutate import damage_bytes, damage_json, damage_tensors

_DAMAGES = {".json": damage_json, ".safetensors": damage_tensors}


class Case(ABC):
    """Something whole in a folder, of which `damage` makes a damaged copy that `read` reads."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.copy = folder / "whole", folder / "copy"
        self.whole.mkdir(parents=True, exist_ok=True)
        self.write()
        shutil.copytree(self.whole, self.copy, dirs_exist_ok=True)
        files = sorted(file for file in self.whole.rglob("*") if file.is_file())
        self.contents = {file.relative_to(self.whole): file.read_bytes() for file in files}
        self._changed: set[Path] = set()

    @abstractmethod
    def write(self) -> None: ...

    @abstractmethod
    def read(self) -> None: ...

    def read_whole(self) -> None:
        """Read all that is written, before any of it is damaged."""
        self.read()

    def files(self, seed: int) -> list[Path]:
        """List the files of which this seed damages one."""
        return [*self.contents]

    def damage(self, seed: int) -> Path:
        """Put right what the last seed damaged, and damage one file by this one; return its name."""
        draw = np.random.default_rng(seed)
        for file in self._changed:
            self._write(file, self.contents[file])
        self._changed.clear()
        files = self.files(seed)
        file = files[int(draw.integers(len(files)))]
        damage = _DAMAGES.get(file.suffix, damage_bytes) if draw.random() < 0.9 else damage_bytes
        self.put(file, damage(self.contents[file], draw))
        return file

    def put(self, file: Path, content: bytes) -> None:
        self._changed.add(file)
        self._write(file, content)

    def _write(self, file: Path, content: bytes) -> None:
        path = self.copy / file
        path.unlink(missing_ok=True)  # some file systems wait for the disk where a file is cut to nothing
        path.write_bytes(content)


def frame(rows: int = 64) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    numbers = {name: draw.normal(size=rows) for name in ("a", "b", "c", "d")}
    texts = {"k": draw.choice(["x", "y", "z", "é"], rows), "m": draw.integers(0, 5, rows)}
    times = {"t": pd.date_range("2020-01-01", periods=rows, freq="7h")}
    made = pd.DataFrame(numbers | texts | times | {"y": draw.integers(0, 2, rows)})
    made.loc[3, "a"] = np.nan
    return made


NUMBERS = (
    (["a", "b"], [pre.SimpleImputer(), pre.StandardScaler(), pre.PCA(n_components=1)], "pca"),
    (["c"], [pre.RobustScaler()], "robust"),
    (["c", "d"], [pre.QuantileTransformer(n_quantiles=5)], "rank"),
    (["c", "d"], pre.PowerTransformer(), "power"),
    (["b", "c"], pre.KBinsDiscretizer(3), "bins"),
    (["d"], [pre.MinMaxScaler(), pre.TruncatedSVD(n_components=1)], "svd"),
    (["b", "d"], [pre.MaxAbsScaler(), pre.VarianceThreshold()], "var"),
    (["c", "d"], [pre.StandardScaler(), pre.KMeans(n_clusters=2)], "means"),
    (["b", "d"], [pre.CorrelationThreshold(0.9)], "corr"),
    (["v"], pre.SimpleImputer(), "joined"),
)
TEXTS = (
    (["k", "m"], pre.Categorify(), "ids"),
    (["k", "m"], pre.OneHotEncoder(handle_unknown="ignore"), "hot"),
    (["k", "m"], pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), "ordinal"),
    (["k"], pre.CountEncoder(), "count"),
    (["k", "m"], pre.TargetEncoder(), "target"),
    (["k", "a"], pre.GroupImputer("k"), "filled"),
    (["k", "m", "b"], pre.GroupStats(["k", "m"], ["mean", "count"]), "stats"),
    (["m"], [pre.SimpleImputer(strategy="most_frequent"), pre.Downcast()], "small"),
    (["t"], pre.DatetimeEncoder(), "date"),
    (["k"], pre.HashBucket(7), "hash"),
    (["v"], pre.KBinsDiscretizer(2), "joined"),
)


class Artifact(Case):
    """A folder of artifacts, as small as they can be: one for each group of features, which seeds damage in turn."""

    groups: ClassVar[tuple[Any, ...]] = ()

    def write(self) -> None:
        rows = frame()
        self.rows = rows.drop(columns="y").iloc[:9]
        joined = T.Join(pd.DataFrame({"k": ["x", "y", "z"], "v": [1.0, 2.0, 3.0]}), on="k", name="prices")
        for number, group in enumerate(self.groups):
            steps = [T.Derive(e="a + 1"), *([joined] if group[0] == ["v"] else [])]
            pipeline = gp.Pipeline(steps, gp.Features(group, target="y", keep=["k"]), backend="cpu").fit(rows)
            gp.save(self.whole / str(number), pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)))

    def read(self) -> None:
        self.load().predict(self.rows)

    def read_whole(self) -> None:
        for folder in self._list_folders():
            self._folder = folder
            self.read()

    def _list_folders(self) -> list[str]:
        return sorted({file.parts[0] for file in self.contents})

    def load(self) -> gp.Scorer:
        return gp.load(self.copy / self._folder, backend="cpu")

    def files(self, seed: int) -> list[Path]:
        folders = self._list_folders()
        self._folder = folders[seed % len(folders)]
        return [file for file in self.contents if file.parts[0] == self._folder]

    def damage(self, seed: int) -> Path:
        """Damage a file, and put its size and checksum into the manifest."""
        file = super().damage(seed)
        if file.name != "manifest.json":
            folder = Path(self._folder)
            manifest, content = json.loads(self.contents[folder / "manifest.json"]), (self.copy / file).read_bytes()
            about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            manifest["files"][file.relative_to(folder).as_posix()] = about
            manifest["digest"] = hashlib.sha256(json.dumps(manifest["files"], sort_keys=True).encode()).hexdigest()
            self.put(folder / "manifest.json", json.dumps(manifest).encode())
        return file


class Numbers(Artifact):
    groups = NUMBERS


class Texts(Artifact):
    groups = TEXTS


class Intervals(Artifact):
    """Windows, quantiles and conformal limits by group."""

    def write(self) -> None:
        rows = frame()
        self.rows = rows.drop(columns="c").iloc[:9]
        steps = [T.Lag("b", by="k", order_by="t", periods=1), T.Filter("a > -9"), T.Clip(["d"], -2.0, 2.0)]
        features = gp.Features((["a", "d"], [pre.SimpleImputer(), pre.StandardScaler()]), target="c", keep=["k"])
        pipeline = gp.Pipeline(steps, features, backend="cpu").fit(rows)
        model = gp.models.MLP.from_schema(pipeline.schema, hidden=(2,), quantiles=(0.2, 0.8))
        scorer = gp.calibrate(gp.Scorer(pipeline, model), rows, coverage=0.5, by="k")
        gp.save(self.whole / "0", scorer)

    def read(self) -> None:
        self.load().predict_interval(self.rows)


class Decisions(Artifact):
    """A threshold, and calibrated probabilities."""

    def write(self) -> None:
        rows = frame()
        self.rows = rows.drop(columns="y").iloc[:9]
        features = gp.Features((["b", "c"], pre.StandardScaler()), target="y")
        pipeline = gp.Pipeline([], features, backend="cpu").fit(rows)
        scorer = gp.Scorer(pipeline, gp.models.MLP.from_schema(pipeline.schema, hidden=(2,)))
        gp.save(self.whole / "0", gp.calibrate(scorer, rows, method="isotonic"), threshold=0.3)


def _seal(about: dict[str, Any]) -> str:
    """Return the text of a checkpoint's state.json with its checksum."""
    about.pop("digest", None)
    about["digest"] = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return json.dumps(about)


class Checkpoint(Case):
    """Checkpoints of a fit, within an epoch and at its end, read to go on with it."""

    def write(self) -> None:
        rows = frame()
        features = gp.Features((["b", "c"], pre.StandardScaler()), target="y")
        pipeline = gp.Pipeline([], features, backend="cpu").fit(rows)
        self.schema, self.loader = pipeline.schema, pipeline.loader(rows, batch_size=32)
        shutil.rmtree(self.whole)
        checkpoints = gp.training.Checkpoints(self.whole, every_steps=1, keep=4)
        gp.Trainer(self.model(), max_epochs=2, checkpoints=checkpoints).fit(self.loader)
        for number, folder in enumerate(sorted(self.whole.glob("step-*"))):
            if number > 1:
                shutil.rmtree(folder)
                continue
            about = json.loads((folder / "state.json").read_text())
            about["text"] = re.sub('((?:seconds|rows_per_second)": )[^,}]+', r"\g<1>1.5", about["text"])  # as each time
            (folder / "state.json").write_text(_seal(about))

    def model(self) -> gp.models.MLP:
        return gp.models.MLP.from_schema(self.schema, hidden=(2,), seed=0)

    def damage(self, seed: int) -> Path:
        """Damage a file, and with another number what it says of the other, so that the checksums fit."""
        file = super().damage(seed)
        self._folder = folder = file.parent
        try:
            about = json.loads((self.copy / folder / "state.json").read_text())
            if seed % 3:
                about["text"] = damage_json(about["text"].encode(), np.random.default_rng([seed, 1])).decode()
            tensors = (self.copy / folder / "tensors.safetensors").read_bytes()
            content = _seal(about | {"tensors": hashlib.sha256(tensors).hexdigest()})
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return file
        self.put(folder / "state.json", content.encode())
        return file

    def read(self) -> None:
        gp.Trainer(self.model(), max_epochs=2).fit(self.loader, resume=self.copy / self._folder)

    def read_whole(self) -> None:
        for folder in {file.parent for file in self.contents}:
            self._folder = folder
            self.read()


class Folder(Case):
    """A data folder, of which the manifest alone is damaged."""

    def write(self) -> None:
        gp.from_frame(frame()).write_parquet(self.whole, overwrite=True)

    def files(self, seed: int) -> list[Path]:
        return [Path("_manifest.json")]

    def read(self) -> None:
        gp.read_parquet(self.copy).compute()


def table(rows: int = 40) -> pa.Table:
    made = pa.Table.from_pandas(frame(rows), preserve_index=False)
    lists = pa.array([list(range(i % 4)) for i in range(rows)])
    made = made.append_column("l", lists).append_column("u", pa.array([f"text {i}" * (i % 3) for i in range(rows)]))
    return made.append_column("f", made["k"].dictionary_encode()).append_column(
        "g", pa.array([None, True] * (rows // 2))
    )


class File(Case):
    """A file of a table."""

    name: ClassVar[str]
    reader: ClassVar[Callable[[Path], gp.Dataset]]

    def write(self) -> None:
        self.write_table(self.whole / self.name, table())

    @abstractmethod
    def write_table(self, path: Path, rows: pa.Table) -> None: ...

    def read(self) -> None:
        type(self).reader(self.copy / self.name).compute()


class Ipc(File):
    name, reader = "t.arrow", gp.read_ipc

    def write_table(self, path: Path, rows: pa.Table) -> None:
        with pa.ipc.new_file(str(path), rows.schema) as file:
            file.write_table(rows, max_chunksize=20)


class IpcStream(Ipc):
    name = "t.arrows"

    def write_table(self, path: Path, rows: pa.Table) -> None:
        with pa.ipc.new_stream(str(path), rows.schema) as file:
            file.write_table(rows, max_chunksize=20)


class Orc(File):
    name, reader = "t.orc", gp.read_orc

    def write_table(self, path: Path, rows: pa.Table) -> None:
        pa.orc.write_table(rows.drop(["f"]), path)


class Parquet(File):
    name, reader = "t.parquet", gp.read_parquet

    def write_table(self, path: Path, rows: pa.Table) -> None:
        pq.write_table(rows, path, row_group_size=20)


class Csv(File):
    name, reader = "t.csv", gp.read_csv

    def write_table(self, path: Path, rows: pa.Table) -> None:
        rows.select(["a", "m", "t", "u"]).to_pandas().to_csv(path, index=False)


class JsonLines(File):
    name, reader = "t.jsonl", gp.read_json

    def write_table(self, path: Path, rows: pa.Table) -> None:
        path.write_text(rows.select(["a", "m", "g", "u", "l"]).to_pandas().to_json(orient="records", lines=True))


KINDS: dict[str, type[Case]] = {
    cls.__name__: cls
    for cls in (Numbers, Texts, Intervals, Decisions, Checkpoint, Folder, Ipc, IpcStream, Orc, Parquet, Csv, JsonLines)
}
