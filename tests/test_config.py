from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest
import torch

import gpupipe as gp
from gpupipe import config
from gpupipe.errors import BadConfig
from tests.raising import raises


def test_what_is_not_named_stays() -> None:
    gp.configure(partition_bytes=64)
    assert gp.configure(backend="cpu") == config.Settings("cpu", 64)
    assert config.settings() == config.Settings("cpu", 64)


def test_partitions_follow_it() -> None:
    table = pa.table({"n": range(100)})
    assert gp.from_frame(table).num_partitions == 1
    gp.configure(partition_bytes=80)
    assert gp.from_frame(table).num_partitions == 10
    assert gp.from_frame(table, partition_bytes=400).num_partitions == 2


def test_a_limit_of_memory_makes_partitions_smaller() -> None:
    table = pa.table({"n": range(100_000)})
    assert gp.from_frame(table, backend="cpu").num_partitions == 1
    gp.configure(memory_limit=2_000_000)
    assert gp.from_frame(table, backend="cpu").num_partitions > 4


def test_values_that_make_no_sense() -> None:
    with raises(BadConfig, where="configure(backend=)", got="tpu"):
        gp.configure(backend="tpu")
    with raises(BadConfig, where="configure(partition_bytes=)", got=0):
        gp.configure(partition_bytes=0)
    with raises(BadConfig, where="configure(memory_limit=)", got=-1):
        gp.configure(memory_limit=-1)
    assert config.settings().partition_bytes is None


def test_the_environment_gives_the_first_backend() -> None:
    program = "from gpupipe.config import settings; print(settings().backend)"
    for given, expected in (
        ({"GPUPIPE_BACKEND": "cpu"}, "cpu"),
        ({"GPUPIPE_BACKEND": "tpu"}, "no such choice"),
        ({}, "auto"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**given, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=False,
        )
        assert expected in done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_where_there_is_a_gpu_it_is_taken() -> None:
    program = "import gpupipe as gp; print(gp.backend.resolve())"
    environment = {name: value for name, value in os.environ.items() if name != "GPUPIPE_BACKEND"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "gpu", done.stderr
