"""Functions of lists, by Python and Polars."""

from __future__ import annotations
