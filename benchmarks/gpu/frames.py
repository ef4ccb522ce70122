"""Questions about frames and columns: masks, codes, aliases, merges, files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from lab import TYPES, Lab, check, coded, flights_like
from pyarrow import orc

from gpupipe.backend import Column
from gpupipe.io.jobs.part_writer import ParquetOptions
from gpupipe.schema import Field, Schema
from gpupipe.tensors import share


@check
def round_trip(lab: Lab) -> dict[str, Any]:
    """Do masks, NaN, codes and times survive frame -> columns -> frame, and what goes to the host meanwhile?"""
    table, backend = flights_like(lab.rows), lab.backend
    frame = coded(backend, table)
    before = backend.transfers.num_bytes
    columns = {name: backend.column(frame, name) for name in table.column_names}
    moved = backend.transfers.num_bytes - before
    again = backend.to_arrow(backend.frame(columns, len(frame)))
    taken = backend.take(frame, backend.xp.arange(len(frame))[::-1])
    return {
        "host_bytes_of_columns": moved,
        "equal": {
            name: again.column(name).combine_chunks().equals(table.column(name).combine_chunks())
            for name in table.column_names
        },
        "null_count": {name: again.column(name).null_count for name in table.column_names},
        "reversed_index": backend.to_host(backend.positions(taken))[:3].tolist(),
        "codes_to_category_ms": lab.milliseconds(lambda: backend.frame({"word": columns["word"]}, len(frame))),
        "column_of_words_ms": lab.milliseconds(lambda: backend.column(frame, "word")),
    }


@check
def aliasing(lab: Lab) -> dict[str, Any]:
    """Is a float column one piece of memory from frame to torch, and a block written through DLPack the same one?"""
    backend = lab.backend
    users = backend.decode(coded(backend, flights_like(lab.rows).select(["x"])))
    frame = backend.encode(users)
    data = backend.column(frame, "x").data
    free = lab.free()
    tensor = share(users, "x")
    again = backend.column(backend.assign(frame, {"z": Column("float64", data)}), "z").data
    block = torch.zeros((lab.rows, 8), device=lab.device)
    backend.xp.from_dlpack(block)[:, 3] = data.astype("float32")
    seen = {
        "torch_shares": tensor.data_ptr() == torch.from_dlpack(data).data_ptr(),
        "assigned_column_shares": torch.from_dlpack(again).data_ptr() == torch.from_dlpack(data).data_ptr(),
        "device_bytes_of_sharing": free - lab.free() - block.nbytes if lab.gpu else 0,
        "block_written_through_dlpack": bool((block[:, 3] == tensor.float()).all()),
    }
    if lab.gpu:
        import cudf

        masked = cudf.Series([1.0, None, 3.0])
        seen["torch_reads_a_masked_column_as"] = str(torch.as_tensor(masked, device=lab.device).tolist())
    return seen


@check
def categories(lab: Lab) -> dict[str, Any]:
    """Unequal categories joined, an absent value, an empty and an all-null partition; what raw cuDF does with them."""
    backend = lab.backend
    parts = [
        pa.table({"word": pa.array(words, pa.large_string())}) for words in (["b", "a", None], ["c"], [None, None], [])
    ]
    frames = [coded(backend, part) for part in parts]
    column = backend.column(backend.concat(frames), "word")
    seen = {
        "joined": backend.to_arrow(backend.concat(frames)).column("word").to_pylist(),
        "dictionary": column.dictionary.to_pylist(),
    }
    if lab.gpu:
        series = frames[0]["word"]
        questions = {
            "equals_absent": lambda: series == "zz",
            "upper": lambda: str(series.str.upper()),
            "fill": lambda: series.fillna("zz"),
        }
        for name, question in questions.items():
            try:
                seen[name] = str(question())
            except Exception as error:  # noqa: BLE001 - the exception is the answer
                seen[name] = f"{type(error).__name__}: {error}"[:200]
    return seen


@check
def merging(lab: Lab) -> dict[str, Any]:
    """Does a merge keep the left order, match no null, and leave integers integers?"""
    backend, table = lab.backend, flights_like(lab.rows)
    right = pa.table({"word": pa.array(["LGA", "JFK", "JFK", None], pa.large_string()), "price": [1.0, 2.0, 3.0, 4.0]})
    left = coded(backend, table.select(["word", "count"]))
    merged = backend.merge(left, coded(backend, right), ["word"], "left", "_right")
    host = backend.to_arrow(merged)
    positions = backend.to_host(backend.positions(merged))
    return {
        "left_order_kept": bool((np.diff(positions) >= 0).all()),
        "nulls_matched": host.filter(host.column("word").is_null()).column("price").drop_null().length(),
        "types": {name: str(host.schema.field(name).type) for name in host.column_names},
        "pairs_in_right_order": host.filter(pc.equal(host.column("word"), "JFK")).column("price")[:4].to_pylist(),
        "ms": lab.milliseconds(lambda: backend.merge(left, coded(backend, right), ["word"], "left", "_right")),
    }


@check
def parquet(lab: Lab) -> dict[str, Any]:
    """Row groups, an index that pandas wrote, a path that looks like a partition, an open file."""
    table, backend = flights_like(lab.rows), lab.backend
    fields = [Field(name, kind) for name, kind in TYPES.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "word=hive" / "part.parquet"
        path.parent.mkdir()
        pq.write_table(table, path, row_group_size=max(lab.rows // 4, 1))
        indexed = Path(folder) / "indexed.parquet"
        table.select(["x", "y"]).to_pandas().set_index("x").to_parquet(indexed)
        part = backend.to_arrow(backend.read_parquet([path], [[1, 2]], fields))
        wanted = table.slice(lab.rows // 4, len(part))
        with path.open("rb") as file:
            opened = backend.to_arrow(backend.read_parquet([file], [[1, 2]], fields))
        return {
            "columns_equal": {
                name: part.column(name).combine_chunks().equals(wanted.column(name).combine_chunks())
                for name in part.column_names
            },
            "open_file_equal": opened.equals(part),
            "index_is_a_column": backend.to_arrow(backend.read_parquet([indexed], [[0]], fields[:2])).column_names,
            "ms": lab.milliseconds(lambda: backend.read_parquet([path], [[0, 1, 2, 3]], fields)),
        }


@check
def files(lab: Lab) -> dict[str, Any]:
    """Are ORC and several Parquet files read as pyarrow reads them, and does a file that is written hold its frame?"""
    table, backend = flights_like(lab.rows), lab.backend
    fields = [Field(name, kind) for name, kind in TYPES.items()]
    layout = ParquetOptions(layout="gpu").lay_out(Schema(fields))
    zoned = table.schema.set(table.schema.get_field_index("at"), pa.field("at", pa.timestamp("us", "Europe/Oslo")))
    schemas = {"naive": table.schema, "zoned": zoned}
    with tempfile.TemporaryDirectory() as folder:
        stripes, plain, made = (Path(folder) / name for name in ("a.orc", "a.parquet", "made.parquet"))
        orc.write_table(table, stripes, batch_size=max(lab.rows // 4, 1), stripe_size=1)
        pq.write_table(table, plain)
        part = backend.to_arrow(backend.read_orc(str(stripes), [0], fields))
        twice = backend.to_arrow(backend.read_parquet([str(plain)] * 2, [[0], [0]], fields))
        frame, written = coded(backend, table), {}
        for name, types in schemas.items():
            before = backend.transfers.num_bytes
            is_written = backend.write_parquet([lambda: frame], types, made, layout)
            told = pq.ParquetFile(made) if is_written else None
            written[name] = told and {
                "schema_equal": told.schema_arrow.equals(types),
                "columns_equal": {item: told.read([item]).column(0).equals(table.cast(types)[item]) for item in TYPES},
                "statistics": told.metadata.row_group(0).column(0).is_stats_set,
                "host_bytes": backend.transfers.num_bytes - before,
            }
        return {
            "orc_equal": part.equals(table.slice(0, len(part))),
            "files_equal": twice.equals(pa.concat_tables([table, table]).combine_chunks()),
            "written": written,
            "orc_ms": lab.milliseconds(lambda: backend.read_orc(str(stripes), [0], fields)),
            "write_ms": lab.milliseconds(lambda: backend.write_parquet([lambda: frame], table.schema, made, layout)),
        }
