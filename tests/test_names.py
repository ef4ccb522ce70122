"""Wherever names are taken one after the other, a single one may stand for itself: never for its letters."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.schema import Field, Schema
from tests.raising import raises

FRAME = pd.DataFrame({"delay": [1.0, 2.0], "d": [3.0, 4.0], "origin": ["JFK", "LGA"]})
SCHEMA = Schema([Field("delay", "float64"), Field("d", "float64")])


@pytest.mark.parametrize(
    ("one", "several"),
    [
        (T.Select("delay"), T.Select(["delay"])),
        (T.Drop("delay"), T.Drop(["delay"])),
        (
            T.Map(pd.DataFrame.cumsum, reads="delay", adds="delay"),
            T.Map(pd.DataFrame.cumsum, reads=["delay"], adds=["delay"]),
        ),
        (T.Join(FRAME, on="delay", columns="origin"), T.Join(FRAME, on=["delay"], columns=["origin"])),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_transform_takes_one_name(one: T.Transform, several: T.Transform) -> None:
    pd.testing.assert_frame_equal(one.transform(FRAME), several.transform(FRAME))


def test_features_take_one_name() -> None:
    features = gp.Features("delay", ("d", pre.StandardScaler()), keep="origin", allow_leak="delay")
    assert [group.columns for group in features.groups] == [["delay"], ["d"]]
    assert (features.keep, features.allow_leak) == (["origin"], ["delay"])


def test_a_schema_takes_one_name() -> None:
    assert SCHEMA.select("delay").names == ["delay"] and SCHEMA.drop("delay").names == ["d"]
    with raises(gp.errors.ColumnNotFound, where="test", column="delays"):
        SCHEMA.require("delays", "test")
    assert pre.StandardScaler().fit(FRAME[["delay"]]).get_feature_names_out("delay") == ["delay"]


def test_readers_and_datasets_take_one_name(tmp_path: Path) -> None:
    data = gp.from_frame(FRAME)
    assert data.select("delay").columns == ["delay"]
    assert list(data.read(data.partitions[0], "delay")) == ["delay"]
    data.write_parquet(tmp_path / "t.parquet")
    assert gp.read_parquet(tmp_path / "t.parquet", columns="delay", filters="d > 3").columns == ["delay"]
    (tmp_path / "t.csv").write_text("2013/01/01 05,gone\n2013/01/02 06,JFK\n")
    (tmp_path / "u.csv").write_text("delay,d\n1,2\n")
    assert gp.read_csv(tmp_path / "u.csv", columns="delay").columns == ["delay"]
    form = {"names": ("at", "origin"), "null_values": "gone", "timestamp_formats": "%Y/%m/%d %H"}
    read = gp.read_csv(tmp_path / "t.csv", dtypes={"at": "timestamp"}, **form).compute()
    assert read["at"].dt.hour.tolist() == [5, 6] and read["origin"].isna().tolist() == [True, False]
    assert gp.read_csv(tmp_path / "u.csv", names="only", sep=";").columns == ["only"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("read_excel", "gp.from_frame(pandas.read_excel(...))"),
        ("StandardScaler", "gp.preprocessing.StandardScaler"),
        ("Lag", "gp.transforms.Lag"),
        ("read_sql", "gp.from_frame(pandas.read_sql(...))"),
        ("read_cvs", "gp.read_csv"),
        ("crossvalidate", "gp.cross_validate"),
        ("zzz", "help(gp)"),
    ],
)
def test_a_name_that_is_elsewhere_is_offered(name: str, remedy: str) -> None:
    with raises(gp.errors.AttributeNotFound, where=f"gpupipe.{name}", remedy=remedy):
        getattr(gp, name)


def test_completion_shows_what_users_call_and_no_more() -> None:
    pipeline = gp.Pipeline([], gp.Features(["delay"], target="d"))
    of_pipeline = {"backend", "check", "drift", "explain", "features", "fit", "fit_report", "fit_transform", "loader"}
    of_features = {
        "allow_leak",
        "auto",
        "constants",
        "groups",
        "inputs",
        "keep",
        "left_out",
        "lineage_",
        "omitted",
        "remarks",
        "target",
    }
    assert {name for name in dir(pipeline) if name[0] != "_"} == of_pipeline | {
        "profiles",
        "schema",
        "steps",
        "transform",
    }
    assert {name for name in dir(pipeline.features) if name[0] != "_"} == of_features | {"weight"}
