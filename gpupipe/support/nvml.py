"""NVML clock throttling: the reasons that slow down a GPU, as text."""

from __future__ import annotations

_REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def throttles(bits: int) -> list[str]:
    """List the reasons in NVML's clock event bits that slow a busy GPU down.

    Source: nvml.h, "Clocks Event Reasons", as nvmlDeviceGetCurrentClocksEventReasons gives them.

    Example:
        >>> throttles(0x1 | 0x4)
        ['software power cap']
    """
    return [reason for bit, reason in _REASONS.items() if bits & bit]
