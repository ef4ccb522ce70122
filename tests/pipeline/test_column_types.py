"""Data of other types than in the fit: what is cast, and what is refused because a value would be lost."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.raising import raises


def test_data_that_is_not_like_what_was_fitted() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "s": ["a", "b", "a", None]})
    pipeline = gp.Pipeline([], gp.Features(["x"], target="s")).fit(frame)
    with raises(errors.ColumnNotFound, where="the data", column="x"):
        pipeline.transform(frame[["s"]])
    with raises(errors.SchemaMismatch, where="column 'x'", got="string"):
        pipeline.transform(frame.assign(x="1"))
    assert pipeline.transform(frame.assign(x=[1, 2, 3, 4]))["x"].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("words", [("yes", "no"), ("Y", "N"), ("{on}", "off"), ("true", "false")])
def test_words_in_place_of_booleans_are_offered_what_makes_them(words: tuple[str, str]) -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "indoor": [True, False] * 2})
    pipeline = gp.Pipeline([], gp.Features(["x", "indoor"])).fit(frame)
    data = gp.from_frame(frame.assign(indoor=[*words] * 2))
    with raises(errors.SchemaMismatch, where="column 'indoor'", got="string") as caught:
        pipeline.transform(data).compute()
    converted = pipeline.transform(eval(caught.value.remedy, {"gp": gp, "T": T, "data": data})).compute()
    assert sorted(converted["indoor"]) == [0, 0, 1, 1]


def test_a_column_without_a_value_has_no_type_to_differ() -> None:
    day = [dt.date(2020, 1, 1), dt.date(2020, 1, 2)]
    at = pd.to_datetime(day).tz_localize("Europe/Oslo")
    money = [decimal.Decimal("1.5"), decimal.Decimal("2.5")]
    frame = pd.DataFrame({"x": [1.0, 2.5], "day": day, "at": at, "parts": [[1], [2, 3]], "price": money})
    keep = ["day", "at", "parts", "price"]
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), keep=keep)).fit(frame)
    wanted = made.transform(gp.from_frame(frame)).schema
    none = frame.assign(at=pd.Series([pd.NaT] * 2, dtype="datetime64[us]"), **dict.fromkeys(["day", "parts"]))
    for data in (frame.head(0), frame.head(0).assign(at=none["at"].head(0)), none):
        assert made.transform(data).shape == (len(data), 5)
        lazily = made.transform(gp.from_frame(data))
        assert lazily.schema == wanted and lazily.compute().drop(columns="price").isna().sum().sum() == (3 * len(data))
    later = frame.assign(at=at.tz_localize(None))
    later.loc[0, "at"] = pd.NaT
    with raises(errors.SchemaMismatch, where="column 'at'", got="no zone"):
        made.transform(gp.from_frame(later, num_partitions=2))


def test_decimals_to_score_have_more_digits_than_those_of_the_fit() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.5], "price": [decimal.Decimal("9.50"), None]})
    made = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), keep=["price"])).fit(frame)
    large = frame.assign(price=[decimal.Decimal("12345.5"), None])
    for scored in (made.transform(large), made.transform(gp.from_frame(large)).compute()):
        assert scored["price"].dropna().tolist() == [decimal.Decimal("12345.5")]
    fine = frame.assign(price=[decimal.Decimal("1.125"), None])
    with pytest.raises(errors.BadData) as caught:
        made.transform(fine)
    assert caught.value.remedy == "values of 2 digits after the point, or a fit of 'price' as decimal128(38, 3)"
    wide = frame.astype({"price": pd.ArrowDtype(pa.decimal128(38, 3))})
    again = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), keep=["price"])).fit(wide)
    assert again.transform(fine)["price"][0] == decimal.Decimal("1.125")


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M"])
def test_dates_as_text_are_offered_their_format(form: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"day": pd.date_range("2023-01-01", periods=300), "x": range(300)})
    pipeline = gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()), keep=["day"])).fit(frame)
    texts = frame.assign(day=frame["day"].dt.strftime(form))
    texts.to_csv(tmp_path / "days.csv", index=False)
    for data in (gp.read_csv(tmp_path / "days.csv"), texts):
        with pytest.raises(errors.SchemaMismatch) as caught:
            pipeline.transform(data)
        reading, converting = caught.value.remedy.split(", or ")
        argument = eval(reading.partition("timestamp_formats=")[2].removesuffix(")"))
        transformed = pipeline.transform(gp.read_csv(tmp_path / "days.csv", timestamp_formats=argument)).compute()
        assert transformed["day"].tolist() == frame["day"].tolist()
        assert eval(converting, {"pd": pd, "frame": texts}).tolist() == frame["day"].tolist()


def test_a_frame_beside_its_history_is_offered_what_it_is_offered_alone() -> None:
    at = pd.date_range("2024-01-01", periods=9, freq="h", tz="Europe/Oslo")
    frame = pd.DataFrame({"at": at, "rink": [f"{number:03d}" for number in range(9)], "sales": range(9)})
    pipeline = gp.Pipeline([T.Lag("sales", order_by="at")]).fit(frame)
    for data in (frame.assign(at=at.tz_localize(None)), frame.assign(rink=range(9))):
        remedies = []
        for options in ({}, {"history": frame[:7]}):
            with pytest.raises(errors.SchemaMismatch) as caught:
                pipeline.transform(data[7:], **options)
            remedies.append(caught.value.remedy)
        assert remedies[0] == remedies[1]
