"""Times with an offset from UTC in text: the same in CSV and JSON, and never without a note."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.io import Dataset
from gpupipe.io.relational.engine import sink
from tests.as_cudf_writes import rewrite
from tests.raising import raises

Reader = Callable[..., Dataset]


def csv_of(folder: Path, times: Sequence[str], dtypes: dict[str, str] | None = None) -> Dataset:
    (folder / "a.csv").write_text("at,n\n" + "".join(f"{time},1\n" for time in times))
    return gp.read_csv(folder / "a.csv", dtypes=dtypes)


def json_of(folder: Path, times: Sequence[str], dtypes: dict[str, str] | None = None) -> Dataset:
    (folder / "a.jsonl").write_text("".join(json.dumps({"at": time, "n": 1}) + "\n" for time in times))
    return gp.read_json(folder / "a.jsonl", dtypes=dtypes)


both = pytest.mark.parametrize("reader", [csv_of, json_of])
NAIVE, ZULU, AHEAD = "2020-01-01T00:00:00", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00+02:00"


@both
@pytest.mark.parametrize("dtypes", [None, {"at": "timestamp"}])
@pytest.mark.parametrize(("times", "notes"), [([AHEAD, ZULU], 1), ([ZULU], 0), (["2020-01-01T00:00:00+00:00"], 0)])
def test_offsets_become_utc_with_a_note(
    reader: Reader, tmp_path: Path, times: list[str], notes: int, dtypes: dict[str, str] | None
) -> None:
    dataset = reader(tmp_path, times, dtypes)
    assert dataset.schema["at"].zone == "UTC"
    assert dataset.compute()["at"].tolist() == [pd.Timestamp(time).tz_convert("UTC") for time in times]
    assert [note.column for note in dataset.conversions] == ["at"] * notes


@both
def test_times_without_an_offset_have_no_zone(reader: Reader, tmp_path: Path) -> None:
    for times in ([NAIVE], ["2020-01-01"], [NAIVE, "2020-01-01 10:00:00"]):
        dataset = reader(tmp_path, times)
        assert (dataset.schema["at"].dtype, dataset.schema["at"].zone, dataset.conversions) == ("timestamp", "", ())
        assert dataset.compute()["at"].tolist() == [pd.Timestamp(time) for time in times]


@both
@pytest.mark.parametrize(("time", "zone"), [(NAIVE, ""), (ZULU, "UTC")])
def test_the_zone_is_the_texts_whoever_writes_the_temporary_file(
    reader: Reader, tmp_path: Path, time: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDF writes each time as UTC."""

    def sink_as_cudf(plan: Any, where: str, text: Path, path: Path, *options: Any) -> None:
        sink(plan, where, text, path, *options)
        rewrite(path)

    monkeypatch.setattr("gpupipe.io.relational.text_file.sink", sink_as_cudf)
    dataset = reader(tmp_path, [time])
    assert dataset.schema["at"].zone == zone
    assert dataset.compute()["at"].tolist() == [pd.Timestamp(time)]
    other = gp.from_frame(pd.DataFrame({"at": pd.to_datetime([time]), "m": [5]}))
    assert dataset.join(other, on="at").compute()["m"].tolist() == [5]
    assert dataset.sort("at").compute()["at"].tolist() == [pd.Timestamp(time)]


@pytest.mark.slow
@both
def test_times_with_and_without_an_offset_are_text_with_a_note(reader: Reader, tmp_path: Path) -> None:
    dataset = reader(tmp_path, [AHEAD, NAIVE])
    assert dataset.compute()["at"].tolist() == [AHEAD, NAIVE]
    assert [note.column for note in dataset.conversions] == ["at"]
    with pytest.raises(SchemaMismatch, match="column 'at'"):
        reader(tmp_path, [AHEAD, NAIVE], {"at": "timestamp"})


@pytest.mark.slow
@both
@pytest.mark.parametrize(("first", "later"), [(NAIVE, AHEAD), (AHEAD, NAIVE)])
def test_a_later_time_of_the_other_kind_is_an_error(
    reader: Reader, tmp_path: Path, first: str, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("csv", "ndjson"):
        monkeypatch.setattr(f"gpupipe.io.relational.{module}.BLOCK_BYTES", 200)
    with pytest.raises(SchemaMismatch, match=r"row 4[12], column 'at'"):
        reader(tmp_path, [first] * 40 + [later])


def test_offsets_are_seen_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.io.relational.csv.BLOCK_BYTES", 200)
    late = csv_of(tmp_path, [ZULU] * 40 + [AHEAD])
    assert late.compute()["at"].tolist()[-1] == pd.Timestamp(AHEAD).tz_convert("UTC")
    assert [note.column for note in late.conversions] == ["at"]
    csv_of(tmp_path, [ZULU])
    (tmp_path / "b.csv").write_text(f"at,n\n{AHEAD},1\n")
    (note,) = gp.read_csv(tmp_path).conversions
    assert (Path(note.file).name, note.column) == ("b.csv", "at")


def test_a_column_without_a_name_is_a_column_with_a_note(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [3, 1, 2]})
    frame.to_csv(tmp_path / "a.csv")
    dataset = gp.read_csv(tmp_path / "a.csv")
    assert dataset.columns == ["", "x"]
    assert [note.column for note in dataset.conversions] == [""]
    assert dataset.sort("").compute()["x"].tolist() == [3, 1, 2]
    assert len(dataset.join(dataset.select(""), on="")) == len(dataset.deduplicate("")) == 3
    assert dataset.group_by("").agg(n=("x", "count")).compute()["n"].tolist() == [1, 1, 1]
    assert gp.Features([""], target="x").groups[0].columns == [""]
    (tmp_path / "b.csv").write_text("a,\n1,\n")
    (note,) = gp.read_csv(tmp_path / "b.csv").conversions
    assert "float64" in note.reason
    assert "without a name" in note.reason


@both
@pytest.mark.parametrize(
    "times",
    [["10:00:00+02:00"], ["lunch at 12:00:00Z", AHEAD], ["01/02/2020 10:00:00+02:00"], ["2020-13-01T00:00:00Z"]],
)
def test_text_that_ends_like_a_time_has_no_note(reader: Reader, tmp_path: Path, times: list[str]) -> None:
    dataset = reader(tmp_path, times)
    assert (dataset.compute()["at"].tolist(), dataset.conversions) == (times, ())


@both
@pytest.mark.parametrize("first", ["2020-01-01T00:00:00+00:00", "2020-01-01T00:00:00.5Z", "2020-01-01T00:00Z"])
def test_offsets_behind_times_of_utc_are_noted(
    reader: Reader, tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("csv", "ndjson"):
        monkeypatch.setattr(f"gpupipe.io.relational.{module}.BLOCK_BYTES", 200)
    dataset = reader(tmp_path, [first] * 40 + [AHEAD])
    assert dataset.compute()["at"].tolist()[-1] == pd.Timestamp(AHEAD).tz_convert("UTC")
    assert [note.column for note in dataset.conversions] == ["at"]


@pytest.mark.slow
@pytest.mark.parametrize("offset", ["+0200", "+02:00", "+02", "-0930", "Z"])
@pytest.mark.parametrize(("form", "gap"), [("%d/%m/%Y %H:%M %z", " "), ("%d/%m/%Y %H:%M%z", "")])
def test_a_format_with_an_offset_parses_all_that_pandas_does(tmp_path: Path, form: str, gap: str, offset: str) -> None:
    (tmp_path / "a.csv").write_text(f"at,n\n01/02/2020 10:00{gap}{offset},1\n")
    dataset = gp.read_csv(tmp_path / "a.csv", timestamp_formats=form)
    expected = pd.Timestamp(f"2020-02-01 10:00{offset if len(offset) != 3 else offset + ':00'}").tz_convert("UTC")
    assert dataset.compute()["at"].tolist() == [expected]
    assert [note.column for note in dataset.conversions] == ["at"] * (offset != "Z")


def test_times_with_and_without_an_offset_in_own_formats_are_text_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at,n\n01/02/2020 10:00,1\n01/02/2020 10:00 +0200,1\n")
    dataset = gp.read_csv(tmp_path / "a.csv", timestamp_formats=["%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M %z"])
    assert dataset.schema["at"].dtype == "string"
    assert [note.column for note in dataset.conversions] == ["at"]


@pytest.mark.parametrize("formats", [[], ["%d/%m/%Y"], ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S%z"]])
def test_a_file_with_an_offset_beside_one_without_is_offered_text(formats: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at\n2024-05-01 12:00:00\n")
    (tmp_path / "b.csv").write_text("at\n2024-05-01 12:00:00-04:00\n")
    with raises(SchemaMismatch, where=str(tmp_path / "b.csv")) as caught:
        gp.read_csv(tmp_path, timestamp_formats=formats, dtypes={} if formats else {"at": "timestamp"})
    assert caught.value.remedy.startswith("dtypes={'at': 'string'}")
    assert len(gp.read_csv(tmp_path, timestamp_formats=formats, dtypes={"at": "string"})) == 2


def test_a_format_is_offered_the_space_that_values_begin_with(tmp_path: Path) -> None:
    path = tmp_path / "at.csv"
    path.write_text("day,at\nSat, 22 Apr 2017 15:11:58 -0500\n")
    with pytest.raises(SchemaMismatch) as caught:
        gp.read_csv(path, timestamp_formats={"at": "%d %b %Y %H:%M:%S %z"})
    formats = eval(caught.value.remedy.removeprefix("timestamp_formats=").partition(", which")[0])
    at = gp.read_csv(path, timestamp_formats=formats).compute()["at"]
    assert at.tolist() == [pd.Timestamp("2017-04-22 20:11:58", tz="UTC")]


def test_formats_that_fit_no_column_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text("at,n\n01/02/2020,1\n")
    gp.read_csv(tmp_path / "a.csv", timestamp_formats="%d.%m.%Y")
    assert "%d.%m.%Y" in caplog.text
    caplog.clear()
    gp.read_csv(tmp_path / "a.csv", timestamp_formats=["%d.%m.%Y", "%d/%m/%Y"])
    assert not caplog.text


@pytest.mark.parametrize("form", ["%d/%m/%K", "%d/%m/%", "%d/%m/%Y %Q", "%d/%m/%Y %H:%M %Z"])
def test_an_unknown_directive_is_refused_with_the_known_ones(tmp_path: Path, form: str) -> None:
    (tmp_path / "a.csv").write_text("at,n\n01/02/2020,1\n")
    with pytest.raises(BadConfig) as caught:
        gp.read_csv(tmp_path / "a.csv", timestamp_formats=["%d/%m/%Y", form])
    assert caught.value.got == form
    assert all(f"%{letter}" in str(caught.value.expected) for letter in "YmdHMSz")


@pytest.mark.parametrize("form", ["%-d/%-m/%Y", "%d/%m/%Y%n", "%e/%m/%Y", "%d/%m/%C%y"])
def test_a_known_directive_is_accepted(tmp_path: Path, form: str) -> None:
    (tmp_path / "a.csv").write_text("at,n\n11/12/2020,1\n")
    assert gp.read_csv(tmp_path / "a.csv", timestamp_formats=form).compute()["at"].tolist() == [
        pd.Timestamp("2020-12-11")
    ]
