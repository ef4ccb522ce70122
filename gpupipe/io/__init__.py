"""Datasets: lazy tables in partitions, made of files and frames, with their readers and their writer."""

from typing import TYPE_CHECKING

from gpupipe.io.concat import concat
from gpupipe.io.dataset import Dataset, as_dataset, as_rows, from_frame, read_parquet
from gpupipe.io.description.column_description import ColumnDescription
from gpupipe.io.description.report import Description
from gpupipe.io.formats.ipc import read_ipc
from gpupipe.io.formats.orc import read_orc
from gpupipe.io.formats.text import read_csv, read_json
from gpupipe.io.inspect import FileReport, inspect
from gpupipe.io.planning.partitions import Partition, row_bytes
from gpupipe.io.planning.query import FrameFunction
from gpupipe.io.planning.run_partitions import in_halves, run_partitions
from gpupipe.io.relational.incoming import from_polars
from gpupipe.io.stores import FileNote
from gpupipe.support.attributes import answer_names

__all__ = ["ColumnDescription", "Dataset", "Description", "FileNote", "FileReport", "FrameFunction", "Partition"]
__all__ += ["as_dataset", "as_rows", "concat", "from_frame", "from_polars", "in_halves", "inspect", "read_csv"]
__all__ += ["read_ipc", "read_json", "read_orc", "read_parquet", "row_bytes", "run_partitions"]

if not TYPE_CHECKING:  # for which any name would be one
    __getattr__ = answer_names(__name__, __all__)
