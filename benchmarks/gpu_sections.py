"""The sections of what was measured on a GPU: ratios first, then each part's figures, what failed, the bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from environment import failures

__all__ = ["ON_GPU", "gpu_tables"]

ON_GPU = {
    "gpu": "On a GPU",
    "gpu_large": "On a GPU, 100 million rows",
    "smoke_gpu": "Questions to a GPU",
}
Found = Mapping[str, Any]
Lines = tuple[list[str], list[list[str]]]  # a table's head, and its lines
ANSWER = 200  # characters


def gpu_tables(result: Found) -> Iterator[Lines]:
    """Each table of a GPU's result; of a part that found nothing there is none."""
    if "checks" in result:
        yield of_checks(result["checks"])
        return
    parts = {name: part["found"] for name, part in result["parts"].items()}
    for name, told in PARTS.items():
        head, lines = told(parts.get(name, {}))
        if lines:
            yield head, lines
    failed = list(failures(result["parts"]))
    if failed:
        yield ["failed"], [[name.replace(": found", "")] for name in failed]
    dropped = [
        [f"{name}: {what}".replace("|", "/")] for name, part in result["parts"].items() for what in part["dropped"]
    ]
    if dropped:
        yield ["left out"], dropped


def of_whole(found: Found) -> Lines:
    """How many times as long as gpupipe each contender takes."""
    contenders = {name: told for name, told in found.items() if isinstance(told, Mapping)}
    ours = contenders.get("gpupipe", {}).get("warm_s")
    lines = []
    for name, told in contenders.items():
        warm, cold = told.get("warm_s"), told.get("cold_s")
        rows = told.get("scaled_from_rows")
        scaled = "" if rows is None else f"scaled from {rows:,}"
        lines.append([name, number(ratio(warm, ours)), number(warm), number(cold), f"{told['rows']:,}", scaled])
    below = found.get("rows below which the CPU wins")
    if below is not None:
        lines.append(["rows below which the CPU wins", "", "", "", f"{below:,.0f}", ""])
    return ["from Parquet to a trained model", "/ gpupipe, warm", "warm s", "cold s", "rows", ""], lines


def of_steps(found: Found) -> Lines:
    """How many times as fast as eager each way of making a step is."""
    lines = []
    for name, told in sorted(found.items(), key=lambda item: places(item[0])):
        if isinstance(told, Mapping) and "ms" in told:
            eager = found.get(f"eager, {name.rpartition(', ')[2]}", {}).get("ms")
            figures = [told[key] for key in ("ms", "million_rows_per_s", "kernels", "idle")]
            lines.append([name, number(ratio(eager, told["ms"])), *map(number, figures)])
    gather = found.get("gather")
    if gather is not None:
        lines.append([f"gather of {gather['rows']:,} rows, share of a copy: {number(gather['share'])}", *[""] * 5])
    return ["a step", "eager / this", "ms", "million rows/s", "kernels", "idle share"], lines


def places(name: str) -> tuple[int, str]:
    """By batch size, then by way."""
    size = name.rpartition("batch ")[2]
    return int(size) if size.isdecimal() else 0, name


def of_features(found: Found) -> Lines:
    head = ["the feature kernel", "unfused / fused", "fused, share of a copy", "unfused, share of a copy"]
    lines = []
    for name, told in whole(found):
        shares = [told.get(way, {}).get("share_of_copy") for way in ("fused", "unfused")]
        lines.append([name, *map(number, (told.get("times_unfused"), *shares))])
    return head, lines


def of_estimators(found: Found) -> Lines:
    head = ["fit and transform", "cuML / gpupipe", "scikit-learn / gpupipe", "gpupipe, ms"]
    lines = []
    for name, told in whole(found):
        ours = told["gpupipe"].get("median")
        beside = told["library"].get("median"), told["scikit-learn"].get("scaled_s")
        lines.append([name, *(number(ratio(other, ours)) for other in beside), number(ratio(ours, 1e-3))])
    return head, lines


def of_operators(found: Found) -> Lines:
    head = ["operator", "share of a copy", "million rows/s"]
    return head, [
        [name, number(told["share_of_copy"]), number(told["million_rows_per_s"])] for name, told in whole(found)
    ]


def of_decode(found: Found) -> Lines:
    head = ["Parquet", "share of the host link", "GB/s", "GB/s from disk"]
    keys = ("share_of_host_link", "gb_per_s", "from_disk_gb_per_s")
    return head, [[name, *(number(told.get(key)) for key in keys)] for name, told in whole(found) if "codec" in told]


def of_handover(found: Found) -> Lines:
    head = ["hand-over", "bytes copied", "same memory", "µs"]
    return head, [
        [name, f"{told['bytes_copied']:,}", "yes" if told["same_memory"] else "**no**", number(told["microseconds"])]
        for name, told in whole(found)
    ]


def of_ceilings(found: Found) -> Lines:
    units = {"gb_per_s": "GB/s", "tflops": "TFLOP/s"}
    lines = [
        [name, number(told[key]), unit] for name, told in whole(found) for key, unit in units.items() if key in told
    ]
    return ["ceiling", "found", ""], lines


PARTS: dict[str, Callable[[Found], Lines]] = {
    "whole": of_whole,
    "large": of_whole,
    "trainer": of_steps,
    "features": of_features,
    "estimators": of_estimators,
    "operators": of_operators,
    "decode": of_decode,
    "handover": of_handover,
    "ceilings": of_ceilings,
}


def of_checks(checks: Found) -> Lines:
    """What each question saw, the first of it, and what of it failed."""
    lines = []
    for name, told in checks.items():
        failed = ", ".join(failures({name: told}))
        answer = json.dumps(told.get("saw")).replace("|", "/").replace("`", "'")
        short = answer if len(answer) <= ANSWER else f"{answer[:ANSWER]} ..."
        lines.append([name, number(told["seconds"]), f"**failed**: {failed}" if failed else f"`{short}`"])
    return ["question", "seconds", "seen"], lines


def whole(found: Found) -> Iterator[tuple[str, Found]]:
    """What did not fail, and is more than a word."""
    return ((name, told) for name, told in found.items() if isinstance(told, Mapping) and "failed" not in told)


def ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def number(value: float | None) -> str:
    """Three digits that count."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
