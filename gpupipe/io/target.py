"""Where a dataset is written to: a file or a folder, on this machine or in a store."""

from __future__ import annotations

import os
from pathlib import Path

from gpupipe.cluster import active
from gpupipe.errors import BadConfig
from gpupipe.io.job import write_folder, write_single
from gpupipe.io.manifest import Manifest
from gpupipe.io.planning.table import Table
from gpupipe.io.remote_job import write_object, write_store_folder
from gpupipe.io.stores.remote_file import StorageOptions, is_remote, locate
from gpupipe.io.writer import ParquetOptions

__all__ = ["write_to"]


def write_to(
    path: str | os.PathLike[str],
    dataset: Table,
    options: ParquetOptions,
    *,
    files: int | None,
    overwrite: bool,
    storage_options: StorageOptions | None,
) -> Manifest:
    """Write a dataset to what the path means; see `Dataset.write_parquet`.

    Raises:
        BadConfig: a single file cannot have these options.
        BadFile: it cannot be written there.
    """
    where, backend = os.fspath(path), active().resolve(dataset.backend)
    is_file = where.endswith(".parquet")
    if is_file and (files is not None or options.partition_by):
        raise BadConfig(
            "write_parquet",
            f"{where.rpartition('/')[2]} is one file",
            expected="a folder for files= and partition_by=",
            remedy=f"write_parquet({where.removesuffix('.parquet')!r}, ...)",
        )
    if is_remote(where):
        if is_file:
            return write_object(dataset, where, options, backend, overwrite=overwrite, storage_options=storage_options)
        return write_store_folder(
            dataset, where, options, backend, files=files, overwrite=overwrite, storage_options=storage_options
        )
    local = Path(locate(where)[1]) if "://" in where else Path(where)
    if is_file:
        return write_single(dataset, local, options, backend, overwrite=overwrite)
    return write_folder(dataset, local, options, backend, files=files, overwrite=overwrite)
