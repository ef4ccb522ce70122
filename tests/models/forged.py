"""Forged models, loaded and asked for predictions one after the other; a process of its own, since it may die of one.

python -m tests.models.forged FOLDER FIRST LAST: FOLDER holds an artifact and `rows.parquet`; prints how many were
refused and how many are trees after all.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file

import gpupipe as gp
from gpupipe.errors import ArtifactError
from gpupipe.saving.artifact import write_manifest

Arrays = dict[str, torch.Tensor]
EXTREMES = [-(2**31), -2, -1, 0, 1, 2, 3, 63, 255, 1024, 2**24, 2**31 - 1]
FLOATS = [float("nan"), float("inf"), -float("inf"), 3.4e38, -3.4e38, 1e-45, 0.0, 1.0]


def forge(arrays: Arrays, draw: np.random.Generator) -> Arrays:
    """Change one to three things of a model's arrays: values, lengths, types, order, names."""
    arrays = {name: values.clone() for name, values in arrays.items()}
    for _ in range(draw.integers(1, 4)):
        name = draw.choice([*arrays])
        values, kind = arrays[name], draw.integers(12)
        place = int(draw.integers(max(values.numel(), 1)))
        if kind < 6 and values.numel():
            old = np.nan_to_num(float(values.flatten()[place]), posinf=0, neginf=0)
            near = int(np.clip(old, -(2**30), 2**30)) + int(draw.integers(-3, 4))
            choices = [*FLOATS, float(draw.normal())] if values.is_floating_point() else [*EXTREMES, *[near] * 4]
            value = choices[draw.integers(len(choices))]
            values.view(-1)[place] = int(value) & 255 if values.dtype == torch.uint8 else value
        elif kind == 6:
            arrays[name] = values[:place]
        elif kind == 7:
            arrays[name] = torch.cat([values, values[place : place + 3]])
        elif kind == 8:
            arrays[name] = values.to([torch.int64, torch.float64, torch.uint8, torch.int32][draw.integers(4)])
        elif kind == 9:
            arrays[name] = values[torch.from_numpy(draw.permutation(len(values)))] if values.ndim else values
        elif kind == 10:
            bits = torch.from_numpy(draw.integers(0, 256, values.numel() * values.element_size(), dtype=np.uint8))
            arrays[name] = bits.view(values.dtype).reshape(values.shape)
        elif draw.random() < 0.3:
            del arrays[name]
        else:
            arrays[name] = values.reshape(1, *values.shape)
    return arrays


def main(folder: Path, first: int, last: int) -> None:
    torch.set_num_threads(1)
    honest, rows = folder / "run", pd.read_parquet(folder / "rows.parquet")
    arrays, described = load_file(honest / "model.safetensors"), json.loads((honest / "model.json").read_text())
    refused = trees = 0
    for seed in range(first, last):
        draw = np.random.default_rng(seed)
        path = folder / f"forged-{first}"
        shutil.copytree(honest, path, dirs_exist_ok=True)
        save_file(
            {name: values.contiguous() for name, values in forge(arrays, draw).items()}, path / "model.safetensors"
        )
        if draw.random() < 0.1:
            config = described["config"]
            name = draw.choice([*config])
            other = [0, -1, 3, 10**6, None, "x", [], {}, 0.5, True, [3], {"x": 1}][draw.integers(12)]
            (path / "model.json").write_text(json.dumps(described | {"config": config | {name: other}}))
        (path / "manifest.json").unlink()
        write_manifest(path)
        try:
            scorer = gp.load(path, backend="cpu")
            assert len(scorer.predict(rows)) == len(rows)
            trees += 1
        except ArtifactError:
            refused += 1
    print(json.dumps({"refused": refused, "trees": trees}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
