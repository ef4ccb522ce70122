from __future__ import annotations

import pyarrow as pa

import gpupipe as gp
from gpupipe.io import inspect
from tests.io.tables import DATA


def test_the_flights_without_reading_a_row() -> None:
    data = gp.read_parquet(DATA / "flights.parquet", partition_bytes=4 << 20)
    report = inspect(data)
    assert (report.num_rows, report.num_columns, len(report.partitions)) == (336_776, 19, data.num_partitions)
    assert report.layout is not None and sum(report.layout.groups) == 336_776
    assert data.reads.passes == 0


def test_it_shows_itself() -> None:
    report = inspect(gp.from_frame(pa.table({"<x>": [1.5, None, 2.5, 1.5]}), num_partitions=2))
    text = "4 rows, 1 column, 2 partitions\n\n0: 2 rows, rows 0 to 2 of a frame\n1: 2 rows, rows 2 to 4 of a frame"
    assert repr(report) == text
    page = text.replace("\n\n", "</p><p>").replace("\n", "<br>")
    assert report._repr_html_() == f"<p>{page}</p>"


def test_of_many_partitions_the_first() -> None:
    lines = repr(inspect(gp.from_frame(pa.table({"x": range(30)}), num_partitions=25))).splitlines()
    assert lines[-2].startswith("19: ") and lines[-1] == "... 5 more ..."
