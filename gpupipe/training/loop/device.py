"""Session on a device: its stream, precision and random numbers; all restored afterwards.

ETL works on the legacy stream, training on a non-blocking one of its own, or the two would wait for each other. Events
hand the data over: each side's stream waits for what the other has written or used before.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch

from gpupipe.errors import BackendMissing, BadConfig
from gpupipe.support.validation import refuse_choice

PRECISIONS = ("auto", "32-true", "tf32", "bf16-mixed", "fp16-mixed")
BF16_CAPABILITY = (8, 0)

logger = logging.getLogger(__name__)


def check_device(requested: str | torch.device) -> None:
    """Refuse what is no name of a CPU or CUDA device; whether it exists shows when a run begins."""
    if re.fullmatch(r"auto|cpu(:0)?|cuda(:\d+)?", str(requested)) is None:
        raise refuse_choice("Trainer", "device", requested, ["auto", "cpu", "cuda", "cuda:0"])


def choose_device(requested: str | torch.device, loader: object) -> torch.device:
    """Return the requested device and log it; "auto" is the loader's if known, else the current GPU, else the CPU."""
    device, reason = find_device(requested, loader)
    logger.info("the trainer runs on %s: %s", device, reason)
    return device


def find_device(requested: str | torch.device, loader: object) -> tuple[torch.device, str]:
    """Return the device as `choose_device` does, and why it is that."""
    check_device(requested)
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name, home, reason = str(requested), getattr(loader, "device", None), "asked for"
    if name == "auto" and home is not None:
        name, reason = str(home), "the data is there"
    elif name == "auto":
        name, reason = ("cuda", "torch sees a GPU") if visible else ("cpu", "torch sees no GPU")
    device = torch.device("cpu")
    if name.startswith("cuda"):
        if not visible or (name != "cuda" and torch.device(name).index >= visible):
            problem = f"torch {torch.__version__} sees {visible} GPUs"
            expected = "a GPU that is visible, to a torch built for CUDA"
            remedy = "device='cpu', or a CUDA build of torch: pytorch.org/get-started/locally has the line"
            raise BackendMissing("Trainer(device=)", problem, got=name, expected=expected, remedy=remedy)
        device = torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)
    return device, reason


def make_forward(precision: str, model: Callable[[Any], Any], device: torch.device) -> Callable[[Any], Any]:
    """Wrap the model's call in a precision; "auto" is bf16-mixed from compute capability 8.0, else 32-true."""
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    if precision in ("32-true", "tf32") or (precision == "auto" and not capable):
        return model
    # The cache of cast weights lives as long as the region: one forward, so an update never sees stale ones.
    autocast = torch.autocast(device.type, torch.float16 if precision == "fp16-mixed" else torch.bfloat16)

    def forward(batch: Any) -> Any:
        with autocast:
            return model(batch)

    return forward


@contextmanager
def session(device: torch.device, *, seed: int, deterministic: bool = False, precision: str = "auto") -> Iterator[None]:
    """Work on `device`, on its training stream, with random numbers from `seed`, and restore all state afterwards."""
    with ExitStack() as stack:
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(_own_stream(device))
        if deterministic:
            stack.enter_context(_deterministic(device))
        if precision in ("32-true", "tf32"):
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        stack.enter_context(fork_rng(device))
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed)
        yield


def fork_rng(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's generators, on the CPU and on `device`, at the end."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


_make_stream = cache(torch.cuda.Stream)  # non-blocking, as all that torch makes


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    stream = _make_stream(device)
    outer = (torch.cuda.default_stream(device), torch.cuda.current_stream(device))
    for before in outer:
        stream.wait_event(before.record_event())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        for after in outer:
            after.wait_event(stream.record_event())


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if device.type == "cuda" and workspace not in (":4096:8", ":16:8"):
        where, got = "Trainer(deterministic=True)", f"CUBLAS_WORKSPACE_CONFIG={workspace}"
        problem = "cuBLAS is free to choose its workspace, and with it the order of sums"
        expected, remedy = "the variable set before the process starts", "CUBLAS_WORKSPACE_CONFIG=:4096:8 python ..."
        raise BadConfig(where, problem, got=got, expected=expected, remedy=remedy)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
