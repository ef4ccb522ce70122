"""Dates that are text, such as 31.12.2023 before 01.02.2024, put no rows in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import BadData, ExpressionError, GpupipeError

DAYS = pd.date_range("2023-01-01", "2024-06-30")
FRAME = pd.DataFrame({"date": DAYS, "sales": range(len(DAYS))})
MISORDERED = {
    "%d.%m.%Y": "29.02.2024",
    "%m/%d/%Y": "02/29/2024",
    "%d-%b-%y": "29-Feb-24",
    "%d.%m.%Y %H:%M": "29.02.2024 00:00",
    "%A %d %B %Y": "Thursday 29 February 2024",
    "%b-%y": "Feb-24",
    "%m/%Y": "02/2024",
    "%m-%Y": "02-2024",
    "%m.%Y": "02.2024",
}
IN_ORDER = {
    "%Y/%m/%d": "2024/02/29",
    "%Y.%m.%d %H:%M": "2024.02.29 00:00",
    "day %j": "day 060",
    "%Y week %W": "2024 week 09",
}


def read(form: str, folder: Path) -> gp.Dataset:
    FRAME.assign(date=FRAME.date.dt.strftime(form)).to_csv(folder / "sales.csv", index=False)
    return gp.read_csv(folder / "sales.csv", dtypes={"date": "string"})  # 02.2024 would be a number


def lag(data: gp.Dataset, *before: T.Transform) -> Any:
    return gp.Pipeline([*before, T.Lag("sales", 7, order_by="date")]).fit(data).transform(data).compute()


ORDERED: dict[str, Callable[[gp.Dataset, str], Any]] = {
    "lag": lambda data, day: lag(data),
    "lag after a step": lambda data, day: lag(data, T.Derive(date="coalesce(date, date)")),
    "window of a frame": lambda data, day: T.Rolling("sales", 7, "mean", order_by="date").transform(data.compute()),
    "cut": lambda data, day: data.split(by="date", at=day),
    "folds": lambda data, day: data.kfold(2, by="date", forward=True),
    "filter": lambda data, day: data.filter(f"date < {day!r}"),
    "filter, the other way": lambda data, day: data.filter(f"{day!r} >= date"),
    "rows": lambda data, day: gp.Pipeline([], gp.Features(["sales"])).fit(data, rows=f"date < {day!r}"),
}


@pytest.mark.parametrize("verb", ORDERED)
@pytest.mark.parametrize("form", MISORDERED)
def test_they_put_no_rows_in_order(form: str, verb: str, tmp_path: Path) -> None:
    data, day = read(form, tmp_path), MISORDERED[form]
    with pytest.raises(GpupipeError, match="letters") as caught:
        ORDERED[verb](data, day)
    assert isinstance(caught.value, BadData | ExpressionError) and repr(form) in str(caught.value)
    parsed = gp.read_csv(tmp_path / "sales.csv", timestamp_formats={"date": form})
    ORDERED[verb](parsed, "2024-02-29")


@pytest.mark.parametrize("verb", ORDERED)
@pytest.mark.parametrize("form", IN_ORDER)
def test_other_texts_do(form: str, verb: str, tmp_path: Path) -> None:
    ORDERED[verb](read(form, tmp_path), IN_ORDER[form])


def test_days_without_zeros_are_no_texts_in_order(tmp_path: Path) -> None:
    texts = [f"{day.year}-{day.month}-{day.day}" for day in DAYS]
    FRAME.assign(date=texts).to_csv(tmp_path / "sales.csv", index=False)
    with pytest.raises(BadData, match="'%Y-%m-%d'"):
        lag(gp.read_csv(tmp_path / "sales.csv"))
    parsed = gp.read_csv(tmp_path / "sales.csv", timestamp_formats={"date": "%Y-%m-%d"})
    assert lag(parsed).sales_lag_7.tolist()[7:] == FRAME.sales.tolist()[:-7]


def test_they_may_be_equal(tmp_path: Path) -> None:
    data = read("%d.%m.%Y", tmp_path)
    assert data.filter("date == '29.02.2024' or date in ['01.03.2024']").compute().sales.tolist() == [424, 425]
