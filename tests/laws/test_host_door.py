"""Laws 5 and 7: one door to the host, and rows do not go through it between reading and training."""

from __future__ import annotations

import ast
from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.backend import Backend
from gpupipe.cli.demo import flights_pipeline

ROOT = Path(__file__).parents[2]


def test_rows_do_not_go_to_the_host(backend: Backend) -> None:
    flights = gp.read_parquet(ROOT / "data" / "flights.parquet")
    pipeline = flights_pipeline(gp.read_parquet(ROOT / "data" / "weather.parquet"))
    pipeline.backend = backend.name
    pipeline.fit(flights)
    before = backend.transfers.num_bytes
    loader = pipeline.loader(flights)
    moved = backend.transfers.num_bytes - before
    table = loader.num_rows * loader.table.row_bytes
    assert moved < 0.01 * table, f"{moved:,} bytes went to the host for a table of {table:,}"


def test_what_a_fit_moves_does_not_grow_with_the_rows(backend: Backend) -> None:
    """Summaries and dictionaries go to the host, and are small beside a table of some size; here it is a small one."""
    flights = gp.read_parquet(ROOT / "data" / "flights.parquet", backend="cpu").compute()[:150_000]
    moved = []
    for times in (1, 2):
        pipeline = flights_pipeline(gp.read_parquet(ROOT / "data" / "weather.parquet"))
        pipeline.backend = backend.name
        table = pd.concat([flights] * times, ignore_index=True)
        before = backend.transfers.num_bytes
        pipeline.fit(gp.from_frame(table, backend=backend.name))
        moved.append(backend.transfers.num_bytes - before)
    assert moved[1] < 1.1 * moved[0], f"{moved} bytes went to the host for a table, and one of twice the rows"


def test_what_goes_to_the_host_is_counted(backend: Backend) -> None:
    before = backend.transfers.count
    backend.to_host(backend.to_device(pd.Series([1.0]).to_numpy()))
    assert backend.transfers.count == before + 1


FORBIDDEN = {"asnumpy", "to_pandas", "values_host"}


@pytest.mark.parametrize("room", ["transforms", "preprocessing", "tensors"])
def test_no_room_has_a_door_of_its_own(room: str) -> None:
    for path in sorted((ROOT / "gpupipe" / room).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
                pytest.fail(f"{path.name}:{node.lineno} calls .{node.attr}")


def test_no_flag_says_whether_there_is_a_gpu() -> None:
    for path in (ROOT / "gpupipe").rglob("*.py"):
        assert "HAS_GPU" not in path.read_text()
