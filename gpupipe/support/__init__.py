"""Helpers for every part of the package; they need only the standard library and our errors."""
