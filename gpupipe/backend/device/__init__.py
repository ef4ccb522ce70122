"""Devices and memory of this machine: visible GPUs, memory limits, out-of-memory errors."""
