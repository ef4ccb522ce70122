"""The plans that parse text, given to cudf-polars' translator, which needs no GPU."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cudf_polars", reason="the RAPIDS wheels are not installed here")

import polars as pl
import pynvml
import rmm.mr
from cudf_polars.dsl.translate import Translator

import gpupipe as gp

MEMORY = 80 << 30


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[pl.LazyFrame]:
    """What readers sink by the engine of a GPU; the rows are those of Polars' own engine."""
    found: list[pl.LazyFrame] = []

    def sink(plan: pl.LazyFrame, _: str, text: Path, path: Path, backend: str, group_rows: int) -> None:
        assert backend == "gpu"
        found.append(plan.sink_parquet(path, lazy=True, compression="lz4", row_group_size=group_rows))
        plan.sink_parquet(path, engine="streaming")

    stand_ins: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda _: 0,
        "nvmlDeviceGetHandleByUUID": lambda _: 0,
        "nvmlDeviceGetMemoryInfo": lambda *_, **__: types.SimpleNamespace(total=MEMORY, free=MEMORY, used=0),
        "nvmlDeviceGetUUID": lambda _: "GPU-0",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(pynvml, name, stand_in)
    monkeypatch.setattr(rmm.mr, "available_device_memory", lambda: (MEMORY, MEMORY))
    monkeypatch.setattr("gpupipe.cluster.executor.Executor.resolve", lambda *_: "gpu")
    monkeypatch.setattr("gpupipe.io.relational.text_file.sink", sink)
    return found


CSV = {
    "types": ("n,x,ok,s,at,zoned,none\n1,2.5,true,a,2020-01-01,2020-01-01T00:00:00.5+02:00,\n", {}),
    "options": (
        "1.000,5;NA;01/02/2020\n",
        {
            "names": ["x", "n", "at"],
            "sep": ";",
            "decimal": ",",
            "thousands": ".",
            "timestamp_formats": "%d/%m/%Y",
            "dtypes": {"x": "float32", "n": "uint8", "at": "timestamp"},
        },
    ),
    "formats": (
        "d,t\n13/02/2020,31/12/69 10:00:00.500000\n",
        {"timestamp_formats": {"d": ["%d/%m/%Y", "%m/%d/%Y"], "t": "%d/%m/%y %H:%M:%S.%f"}},
    ),
    "asked": ("a,b,c\n1,0,2020-01-01 10:00\n", {"dtypes": {"a": "int16", "b": "bool", "c": "timestamp"}}),
}


@pytest.mark.parametrize("form", CSV)
def test_plans_of_csv_are_translated(tmp_path: Path, plans: list[pl.LazyFrame], form: str) -> None:
    text, options = CSV[form]
    (tmp_path / "a.csv").write_text(text)
    gp.read_csv(tmp_path / "a.csv", partition_bytes=1 << 20, **options)
    assert [errors_of(plan) for plan in plans] == [[]]


def test_plans_of_json_are_translated(tmp_path: Path, plans: list[pl.LazyFrame]) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "x": 2.5, "ok": true, "s": "a", "at": "2020-01-01", "none": null}\n')
    gp.read_json(tmp_path / "a.jsonl", dtypes={"x": "float32"}, partition_bytes=1 << 20)
    assert [errors_of(plan) for plan in plans] == [[]]


def errors_of(plan: pl.LazyFrame) -> list[str]:
    translator = Translator(plan._ldf.visit(), pl.GPUEngine(raise_on_fail=True))
    translator.translate_ir()
    return [str(error) for error in translator.errors]
