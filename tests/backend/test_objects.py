"""Columns of Python's objects, as `read_csv` and databases give them: the error says what makes a column of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ([True, False, None], "astype({'x': 'boolean'})"),
        ([1, None, 3], "astype({'x': 'Int64'})"),
        ([Decimal("1.5"), None], "astype({'x': 'float64'})"),
        ([dt.date(2024, 1, 1), None], "frame['x'] = pd.to_datetime(frame['x'])"),
        ([object(), None], "astype({'x': 'str'})"),
    ],
    ids=["booleans", "integers", "decimals", "dates", "anything"],
)
def test_the_remedy_fits_the_objects(values: list[Any], remedy: str) -> None:
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    with pytest.raises(errors.SchemaMismatch, match="column 'x'") as caught:
        gp.from_frame(frame, backend="cpu").head()
    assert remedy in str(caught.value)
    if "Int64" in remedy or "boolean" in remedy:
        dtype = remedy.split("'")[3]
        assert gp.from_frame(frame.astype({"x": dtype}), backend="cpu").head()["x"].isna().sum() == 1
