"""What a competent programmer writes without gpupipe: Parquet to arrays with cuDF, or with pandas and scikit-learn.

cuDF gets a pool that stays with the process, as its guide advises; CuPy takes its memory from there too.

Numbers have their mean where they are missing and are scaled to variance 1, ids become places in the sorted list of
those there are, from 1 on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from table import IDS, NUMBERS, TARGET

__all__ = ["with_cudf", "with_sklearn"]


def with_cudf(files: list[Path]) -> tuple[Any, Any, Any]:
    """n x 32 float32 and n x 7 int32, row after row, and n float32, all CuPy's."""
    import cudf
    import cupy
    import rmm

    if (
        type(rmm.mr.get_current_device_resource()) is rmm.mr.CudaMemoryResource
    ):  # the default: every call asks the driver
        rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
    frame = cudf.read_parquet([str(path) for path in files])
    numbers, ids = {}, {}
    for name in NUMBERS:
        series = frame[name]
        mean, deviation = series.mean(), series.std(ddof=0)
        numbers[name] = ((series.fillna(mean) - mean) / deviation).astype("float32")
    for name in IDS:
        ids[name] = frame[name].astype("category").cat.codes.astype("int32") + 1
    blocks = [cupy.ascontiguousarray(cudf.DataFrame(made).to_cupy()) for made in (numbers, ids)]
    return blocks[0], blocks[1], frame[TARGET].to_cupy()


def with_sklearn(files: list[Path]) -> tuple[Any, Any, Any]:
    """The same, NumPy's."""
    import numpy as np
    import pandas as pd
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    frame = pd.read_parquet([str(path) for path in files] if len(files) > 1 else files[0])
    scaled = make_pipeline(SimpleImputer(), StandardScaler()).fit_transform(frame[NUMBERS].to_numpy("float32"))
    ids = OrdinalEncoder(dtype=np.int32).fit_transform(frame[IDS]) + 1
    return np.ascontiguousarray(scaled, "float32"), np.ascontiguousarray(ids), frame[TARGET].to_numpy("float32")
