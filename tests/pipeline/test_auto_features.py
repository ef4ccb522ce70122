"""What `Features.auto` says of the columns that it takes; every remedy works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T

ROWS = 60
FRAME = pd.DataFrame(
    {
        "application": range(1000, 1000 + ROWS),
        "code": [f"c{row}" for row in range(ROWS)],
        "one": 1,
        "same": "x",
        "half": 0.5,
        "yes": True,
        "day": pd.Timestamp("2024-01-05"),
        "gaps": [None if row % 3 else 3.0 for row in range(ROWS)],
        "iso": [f"2024-01-{1 + row % 28:02}" for row in range(ROWS)],
        "money": [f"${row},234.50" for row in range(1, ROWS + 1)],
        "share": [f"{row}%" for row in range(ROWS)],
        "number": [f"{row}.5" for row in range(ROWS)],
        "note": [f"paid {row} times late" for row in range(ROWS)],
        "tail": [f"N{row // 2}" if row < 40 else f"N{row}" for row in range(ROWS)],
        "branch": [f"b{row % 5}" for row in range(ROWS)],
        "amount": np.linspace(0, 1, ROWS),
        "y": [0, 1] * (ROWS // 2),
    }
)
SAID = {
    "application": "no value occurs twice: an id is no feature, keep=['application'] carries it",
    "code": "no value occurs twice: an id is no feature, keep=['code'] carries it",
    **dict.fromkeys(["one", "same", "half", "yes", "day"], "the same value in each of the first 60 rows"),
    "gaps": "one value or missing in each of the first 60 rows",
    "iso": "its texts are times in ISO format: T.Cast({'iso': 'timestamp'})",
    "money": "its texts are amounts of money: "
    "T.Derive(money=\"sub(money, '[^0-9.+-]', '')\"), then T.Cast({'money': 'float64'})",
    "share": "its texts are percentages: "
    "T.Derive(share=\"sub(share, '\\\\\\\\s*%', '')\"), then T.Cast({'share': 'float64'})",
    "number": "its texts are numbers: T.Cast({'number': 'float64'})",
    "note": "60 different texts in 60 rows: (['note'], pre.HashedNgrams()) learns from their parts",
    "tail": "40 different texts in 60 rows: (['tail'], pre.HashedNgrams(analyzer='char', ngram_range=(2, 3))) "
    "learns from their parts",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAID, "branch", "amount"])
def test_auto_says_what_may_be_wrong_with_a_column(name: str, caplog: pytest.LogCaptureFixture) -> None:
    features = gp.Features.auto(FRAME[[name, "y"]], target="y")
    expected = [f"{name}: {SAID[name]}"] if name in SAID else []
    assert features.remarks == expected
    notes = [f"Features.auto takes {remark}" for remark in expected]
    assert [record.getMessage() for record in caplog.records] == notes
    assert all(f"    # {remark}\n" in repr(features) for remark in expected)
    fitted = gp.Pipeline([], features).fit(FRAME)
    assert [note for note in fitted.fit_report.notes if not note.startswith("target")] == notes


@pytest.mark.parametrize("name", ["iso", "money", "share", "number"])
def test_the_steps_that_are_said_parse_the_texts(name: str) -> None:
    steps = [eval(step, {"T": T}) for step in SAID[name].partition(": ")[2].split(", then ")]
    read = gp.Pipeline(steps).fit(FRAME).transform(FRAME)[name]
    assert read.dtype.kind == ("M" if name == "iso" else "f") and read.notna().all()


@pytest.mark.parametrize("values", [[*map(str, range(1, 11))] * 40, [f"{number / 7:.4f}" for number in range(400)]])
def test_one_mark_among_numbers_is_named(values: list[str], caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.DataFrame({"rooms": [*values[:5], "-", *values[5:]], "y": [0.0, 0.5, 1.0] * 133 + [0.5, 0.0]})
    said = "its texts are numbers, but for '-' (1 row), which becomes missing: T.Cast({'rooms': 'float64'}, "
    said += "errors='coerce')"
    assert gp.Features.auto(frame, target="y").remarks == [f"rooms: {said}"]
    assert gp.Features.auto(frame, target="rooms").remarks == [f"the target rooms: {said}"]
    assert caplog.messages[-1] == f"Features.auto takes the target rooms: {said}"


def test_digits_that_a_file_has_as_text_are_no_numbers(tmp_path: Path) -> None:
    """Zip codes of the first 10,000 rows have no zero before them, those of later rows do."""
    zips = [f"{number:05d}" for number in range(10_001, 20_101)]
    pd.DataFrame({"zip": [*zips, "00501"], "y": [*[0, 1] * 5_050, 0]}).to_csv(tmp_path / "zips.csv", index=False)
    remark = "its texts are numbers"
    assert remark not in repr(gp.Features.auto(gp.read_csv(tmp_path / "zips.csv"), target="y"))
    assert remark in repr(gp.Features.auto(gp.from_frame(pd.DataFrame({"zip": zips, "y": [0, 1] * 5_050})), target="y"))


def test_texts_that_differ_in_spaces_or_case_are_named() -> None:
    frame = pd.DataFrame({"city": ["Basel", "Bern", "BASEL", "Chur"] * 15, "y": ["no", "yes", "no", "yes ", "no"] * 12})
    said = "'yes' and 'yes ' differ in spaces or case alone: T.Derive(y='lower(strip(y))') makes one of them"
    remarks = gp.Features.auto(frame, target="y").remarks
    assert f"the target y: its texts {said}" in remarks
    assert any(remark.startswith("city: its texts 'Basel' and 'BASEL' differ") for remark in remarks)
    assert said in gp.from_frame(frame).describe()["y"].notes
    clean = frame.assign(y=frame["y"].str.strip(), city=frame["city"].str.lower())
    assert not any("differ" in remark for remark in gp.Features.auto(clean, target="y").remarks)


def test_the_target_is_said_first() -> None:
    frame = pd.DataFrame({f"c{place}": 0.5 for place in range(20)} | {"y": ["1", "2"] * 20})
    assert gp.Features.auto(frame, target="y")._proposal_notes()[0].startswith("Features.auto takes the target y: ")


@pytest.mark.parametrize("name", ["note", "tail"])
def test_the_groups_that_are_said_are_features(name: str) -> None:
    group = eval(SAID[name].partition(": ")[2].partition(" learns")[0], {"pre": pre})
    assert gp.Pipeline([], gp.Features(group, target="y")).fit(FRAME).schema.numeric


def test_few_rows_show_no_id() -> None:
    assert gp.Features.auto(FRAME[["application", "code", "note", "y"]][:19], target="y").remarks == []
    many = FRAME.assign(**{f"c{place}": 0.5 for place in range(20)})
    assert sum("the same value" in note for note in gp.Features.auto(many, target="y")._proposal_notes()) == 5


@pytest.mark.parametrize("name", ["population_2011", "customer_id", "customerId"])
def test_whole_numbers_that_differ_are_ids_by_their_name_or_range(name: str) -> None:
    amounts = np.random.default_rng(0).permutation(np.unique(np.random.default_rng(1).integers(200, 900_000, 334)))
    remarks = [] if name == "population_2011" else [f"{name}: {SAID['application'].replace('application', name)}"]
    for values in (amounts, amounts.astype("float32"), np.where(amounts == amounts[0], np.nan, amounts)):
        frame = pd.DataFrame({name: values, "y": amounts % 2})
        assert gp.Features.auto(frame, target="y").remarks == remarks
        notes = gp.from_frame(frame).describe()[name].notes
        assert notes == (() if name == "population_2011" else ("an id: no value occurs twice",))


@pytest.mark.parametrize("last", [0.5, np.inf])
def test_floats_with_a_fraction_or_an_infinity_are_no_ids(last: float) -> None:
    frame = pd.DataFrame({"customer_id": [*np.arange(59.0), last], "y": FRAME["y"]})
    assert gp.Features.auto(frame, target="y").remarks == []
    assert not any("an id" in note for note in gp.from_frame(frame).describe()["customer_id"].notes)


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("dtype", ["boolean", float, "str"])
@pytest.mark.parametrize(
    "values",
    [pd.Series(pd.date_range("2020", periods=400)), pd.Series(np.arange(400) % 7), pd.Series(["closed"] * 400)],
)
def test_a_column_whose_gaps_tell_the_target_is_named(values: pd.Series, dtype: Any, side: bool) -> None:
    draw = np.random.default_rng(0)
    late = pd.Series(draw.random(400) < 0.3)
    frame = pd.DataFrame({"x": draw.normal(size=400), "late": late.astype(dtype), "other": values.where(late == side)})
    frame.loc[380:, "late"] = None
    (said,) = gp.Features.auto(frame, target="late").remarks
    assert said.startswith("other: it is missing, or there, exactly where 'late' has one certain value in the first")
    frame.loc[0, "late"] = frame.loc[late.ne(late[0]).idxmax(), "late"]
    assert not any("exactly" in remark for remark in gp.Features.auto(frame, target="late").remarks)


@pytest.mark.parametrize("num_gaps", [1, 4, 396, 399])
def test_few_gaps_tell_no_target(num_gaps: int) -> None:
    frame = pd.DataFrame({"x": np.arange(400.0), "y": np.arange(400) < num_gaps})
    frame["other"] = frame["x"].mask(frame["y"]) % 7
    assert not any("exactly" in remark for remark in gp.Features.auto(frame, target="y").remarks)


@pytest.mark.parametrize(
    ("copy", "target"),
    [
        (lambda y: y, "late"),
        (lambda y: y.map({0: "no", 1: "yes"}), "late"),
        (lambda y: y.astype(bool), "late"),
        (lambda y: pd.Series(np.where(y, 3, np.arange(len(y)) % 3), index=y.index), "late"),
        (lambda y: y * 2.5 + 1, "delay"),
    ],
)
def test_a_column_that_alone_tells_the_target_is_named(copy: Callable[[pd.Series], Any], target: str) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.normal(size=400)})
    frame["delay"] = frame["x"] + draw.normal(size=400)
    frame["late"] = (frame["delay"] > 0).astype(int)
    frame = frame[["x", target]].assign(other=copy(frame[target]), shop=np.arange(400) % 7)
    said = f"other: it alone tells {target!r} in the first 400 rows: is it known before that is?"
    assert gp.Features.auto(frame, target=target).remarks == [said]
    frame.loc[:40, target] = frame[target].to_numpy()[:41][::-1]
    assert gp.Features.auto(frame, target=target).remarks == []


@pytest.mark.parametrize("name_of", [int, "p{}".format])
@pytest.mark.parametrize("target", ["ill", "ill == 1", "level"])
def test_a_column_whose_rows_alike_have_one_target_is_named(target: str, name_of: Callable[[int], Any]) -> None:
    draw, patients = np.random.default_rng(0), np.arange(300).repeat(6)
    frame = pd.DataFrame({"x": draw.normal(size=1800), "patient": list(map(name_of, patients.tolist()))})
    frame["ill"], frame["level"] = (patients * 7919 % 13 < 6).astype(int), np.sin(patients)
    label = target.partition(" ")[0]
    frame = frame[["x", "patient", label]]
    said = f"patient: rows alike in it have one {target!r} in the first 1,800 rows: split(by='patient', fraction=0.8)"
    assert any(remark.startswith(said) for remark in gp.Features.auto(frame, target=target).remarks)
    measured = frame.assign(patient=patients * 1.5)
    assert not any("rows alike" in remark for remark in gp.Features.auto(measured, target=target).remarks)
    frame.loc[5, label] = frame[label].max() - frame.loc[5, label]
    assert not any("rows alike" in remark for remark in gp.Features.auto(frame, target=target).remarks)
    once = frame.iloc[::6].reset_index(drop=True)
    assert not any("rows alike" in remark for remark in gp.Features.auto(once, target=target).remarks)
    few = frame.assign(patient=frame["patient"].where(frame.index % 60 == 0))
    assert not any("tells" in remark or "alike" in remark for remark in gp.Features.auto(few, target=target).remarks)


@pytest.mark.parametrize("target", ["late == 1", "delay * 2 > 0"])
def test_what_tells_a_computed_target_is_named(target: str) -> None:
    delay = np.random.default_rng(0).normal(size=400)
    frame = pd.DataFrame({"delay": delay, "late": (delay > 0) * 1, "other": np.where(delay > 0, "a", "b")})
    frame = frame[[target.partition(" ")[0], "other"]].assign(x=1.5)
    said = f"other: it alone tells {target!r} in the first 400 rows: is it known before that is?"
    assert said in gp.Features.auto(frame, target=target).remarks


@pytest.mark.parametrize("bands", [3, 10])
def test_a_column_of_ranges_of_the_target_is_named(bands: int) -> None:
    frame = _draw_wages()
    for labels in (False, [f"band {number}" for number in reversed(range(bands))]):
        band = pd.qcut(frame["wage"], bands, labels=labels)
        data = frame.assign(band=band if labels is False else band.astype(str))
        said = "band: each of its values is a range of 'wage' in the first 1,000 rows: is it known before that is?"
        assert said in gp.Features.auto(data, target="wage").remarks
        data.loc[:9, "band"] = data["band"].to_numpy()[9::-1]
        assert not any("band: each" in remark for remark in gp.Features.auto(data, target="wage").remarks)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_column_that_is_there_for_one_class_alone_is_named(share: float) -> None:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"x": draw.normal(size=800), "bad": draw.random(800) < 0.2})
    charged = frame["bad"] & (draw.random(800) < share)
    for fee, where in ((charged, "there"), (~charged, "missing")):
        data = frame.assign(fee=draw.gamma(2, 40, 800)).assign(fee=lambda f, kept=fee: f["fee"].where(kept))
        said = f"fee: where it is {where}, 'bad' has one value in the first 800 rows: is it known before that is?"
        assert said in gp.Features.auto(data, target="bad").remarks
    few = frame.assign(fee=np.where(frame["bad"] & (np.arange(800) < 60), 5.5, np.nan))
    some = frame.assign(fee=np.where(charged | (frame.index == frame["bad"].idxmin()), 5.5, np.nan))
    for data in (few, some):
        assert not any("fee: where" in remark for remark in gp.Features.auto(data, target="bad").remarks)


@pytest.mark.parametrize("gappy", [False, True])
def test_parts_of_times_that_are_columns_are_not_made_again(gappy: bool) -> None:
    days = pd.Series(pd.date_range("2024-01-01", periods=50))
    frame = pd.DataFrame({"day": days.where(days.index % 9 > 0) if gappy else days, "also": days, "y": np.arange(50.0)})
    step = T.DateParts("day", ["year", "is_weekend", "month"], cyclic=["hour", "dayofweek"])
    data = gp.Pipeline([step]).fit_transform(gp.from_frame(frame))
    pipeline = gp.Pipeline([], gp.Features.auto(data, target="y")).fit(data)
    names = [name.removeprefix("number_") for name in pipeline.schema.names if "day_" in name]
    assert {"day_dayofyear_sin", "day_month", "day_hour_cos"} <= {*names}
    assert "also_year" in pipeline.schema.names and "also_is_weekend" in pipeline.schema.names
    every = T.DateParts("day", ["year", "is_weekend"], cyclic=["dayofyear", "dayofweek", "hour"])
    assert gp.fit(frame, target="y", steps=[every, T.Drop("also")], model=gp.models.Linear).schema.targets


def _draw_wages(num_rows: int = 1000) -> pd.DataFrame:
    draw = np.random.default_rng(3)
    wage = (np.exp(draw.normal(2, 0.6, num_rows)) * 10).round(2)
    return pd.DataFrame({"x": wage + draw.normal(0, 9, num_rows), "wage": wage})


def _share_values(num_rows: float, wage: pd.Series) -> pd.Series:
    """Return numbers that follow the wages, of which each so many rows have the same."""
    return 1.5 * ((wage.rank(method="first") - 1) // num_rows)


@pytest.mark.parametrize(
    ("target", "column"),
    [
        (lambda wage: wage > 100, lambda wage: wage),
        (lambda wage: (wage > 100).map({False: "low", True: "high"}), lambda wage: wage),
        (lambda wage: (wage > 100).astype(int), lambda wage: -np.log(wage).where(wage.index % 7 > 0)),
        (lambda wage: (wage > 100).astype(int), lambda wage: wage.map("${:,.2f}".format)),
        (lambda wage: pd.cut(wage, [0, 60, 80, 150, 1e9], labels=list("bdac")).astype(str), lambda wage: wage),
        (lambda wage: pd.cut(wage, [0, 60, 80, 150, 1e9], labels=False), lambda wage: (wage * 100).round().astype(int)),
        (np.log, lambda wage: wage),
        (np.log, lambda wage: -(wage**3)),
        (lambda wage: wage, lambda wage: np.log(wage).round(4)),
        (lambda wage: wage, lambda wage: np.log(wage).astype("float32")),
        (lambda wage: wage, lambda wage: wage.astype(str)),
        (lambda wage: wage, lambda wage: wage.astype(str).where(wage.index % 50 > 0, "n/a")),
        (lambda wage: wage, lambda wage: (wage * 12).map("{:.2f} €".format).str.replace(".", ",")),
        *((lambda wage: wage, partial(_share_values, num_rows)) for num_rows in (1.3, 1.5, 2, 3, 8, 20, 39)),
        (lambda wage: wage, lambda wage: (wage * 12 / 1000).round(1)),
        (lambda wage: wage, lambda wage: (wage.rank(pct=True) * 100).astype(int)),
        (lambda wage: wage, lambda wage: wage.rank(method="first", ascending=False).astype(int)),
    ],
)
def test_a_number_whose_order_alone_tells_the_target_is_named(target: Callable[..., Any], column: Any) -> None:
    wages = _draw_wages()
    frame = wages[["x"]].assign(y=target(wages["wage"]), other=column(wages["wage"]))
    said = "other: it alone tells 'y' in the first 1,000 rows: is it known before that is?"
    assert said in gp.Features.auto(frame, target="y").remarks
    assert not any("x: it alone" in remark for remark in gp.Features.auto(frame, target="y").remarks)
    frame.loc[:40, "y"] = frame["y"].to_numpy()[40::-1]
    assert not any("alone tells" in remark for remark in gp.Features.auto(frame, target="y").remarks)


@pytest.mark.parametrize("num_rows", [20, 30, 50])
def test_ranges_of_a_target_in_few_rows_are_named(num_rows: int) -> None:
    wages = _draw_wages(300)
    frame = wages.assign(other=_share_values(num_rows, wages["wage"]))
    said = "in the first 300 rows: is it known before that is?"
    assert any(remark.endswith(said) for remark in gp.Features.auto(frame, target="wage").remarks)


def test_an_order_that_says_little_of_the_target_is_not_named() -> None:
    rows = np.arange(1000)
    wages = _draw_wages().assign(day=pd.date_range("2020", periods=1000), place=rows, day_of_row=rows // 30)
    trend = (rows**1.5).round()
    for target in (trend, rows > 500, trend > 9000):
        remarks = gp.Features.auto(wages.assign(y=target), target="y").remarks
        assert not any("alone tells 'y' in" in remark for remark in remarks), remarks
    few = _draw_wages(190)
    assert gp.Features.auto(few.assign(y=few["wage"] > 70), target="y").remarks == []
    rare = _draw_wages()
    rare["y"] = rare["wage"].rank() > 985
    assert gp.Features.auto(rare, target="y").remarks == []
    words = _draw_wages().assign(y=rows.astype(str) + "x")
    assert not any("alone tells" in remark for remark in gp.Features.auto(words, target="y").remarks)


@pytest.mark.parametrize("table", ["iris", "wine", "breast_cancer", "diabetes"])
def test_features_of_ordinary_tables_do_not_tell_the_target(table: str) -> None:
    frame = getattr(datasets, f"load_{table}")(as_frame=True).frame
    assert not any("alone tells" in remark for remark in gp.Features.auto(frame, target="target").remarks)
    binary = frame.assign(target=frame["target"] == frame["target"].iloc[0])
    assert not any("alone tells" in remark for remark in gp.Features.auto(binary, target="target").remarks)


def test_a_target_of_counts_is_asked_about() -> None:
    frame = pd.DataFrame({"x": np.arange(60.0), "claims": [0, 1, 2] * 20})
    assert "say task='regression'" in repr(gp.Features.auto(frame, target="claims"))
    assert "task='regression'" not in repr(gp.Features.auto(frame.assign(claims=frame["claims"] > 1), target="claims"))


@pytest.mark.parametrize(
    ("column", "num_exceptions"),
    [
        ("end", 7),  # a date of death, or else the last day
        ("end reversed", 7),
        ("boat", 12),  # known of the survivors, and of some others
        ("word", 3),
        ("noise", 0),
        ("rare", 0),  # as many as the rows of another class
    ],
)
def test_what_tells_the_class_of_all_but_a_few_rows_is_noted(column: str, num_exceptions: int) -> None:
    draw, rows = np.random.default_rng(5), 2000
    dead = np.arange(rows) % 3 == 0
    end = np.where(dead, draw.integers(0, 900, rows), 1000)
    end[np.flatnonzero(dead)[:7]] = 1000
    boat = np.where(dead, None, draw.choice(["3", "C", "14"], rows))
    boat[np.flatnonzero(dead)[:5]] = "3"
    boat[np.flatnonzero(~dead)[:7]] = None
    word = np.where(dead, "lost", "well")
    word[[10, 20, 40]] = "lost"
    columns = {"end": end, "end reversed": 1000 - end, "boat": boat, "word": word, "noise": draw.normal(size=rows)}
    frame = pd.DataFrame({**columns, "rare": np.arange(rows) < 15, "y": np.where(dead, "D", "A")})
    target = "y" if column != "rare" else "few"
    frame["few"] = np.where(np.arange(rows) < 30, "x", "z")
    remarks = gp.Features.auto(frame[[column, target]].sample(frac=1, random_state=0), target=target).remarks
    said = f"{column}: it alone tells {target!r} but for {num_exceptions} rows in the first 2,000 rows"
    assert any(remark.startswith(said) for remark in remarks) == (num_exceptions > 0), remarks
    assert any("alone tells" in remark for remark in remarks) == (num_exceptions > 0), remarks


@pytest.mark.parametrize("kind", ["text", "number"])
def test_an_element_that_only_lists_of_one_class_have_is_noted(kind: str) -> None:
    draw, rows = np.random.default_rng(5), 800
    bought = draw.random(rows) < 0.2
    paid = "paid {}" if kind == "text" else 77
    pages = [
        [f"page {page}" if kind == "text" else int(page) for page in draw.integers(0, 40, draw.integers(0, 6))]
        for _ in range(rows)
    ]
    for number in np.flatnonzero(bought)[5:]:
        pages[number] += [paid, paid]
    frame = pd.DataFrame({"pages": pages, "bought": np.where(bought, "yes", "no")})
    frame.loc[[3, 9], "bought"] = None
    remarks = gp.Features.auto(gp.from_frame(frame, num_partitions=3), target="bought").remarks
    said = f"pages: rows with {paid!r} in it have one 'bought' in the first 800 rows: is it known before that is?"
    assert remarks == [said]
    of_few = [[page for page in each if page != paid or number % 3 == 0] for number, each in enumerate(pages)]
    assert gp.Features.auto(frame.assign(pages=of_few), target="bought").remarks == [], "a third of those that bought"
    frame["pages"] = [[page for page in each if page != paid] for each in pages]
    assert gp.Features.auto(frame, target="bought").remarks == []


def test_elements_that_are_each_of_one_class_are_noted() -> None:
    """Orders whose category is that of their items, 15 of each category."""
    draw = np.random.default_rng(0)
    categories = draw.integers(0, 5, 1500)
    items = [[f"{number} of {each}" for number in draw.integers(0, 15, draw.integers(1, 4))] for each in categories]
    frame = pd.DataFrame({"items": items, "category": [f"c{each}" for each in categories]})
    said = "items: each of its elements is in rows of one 'category' alone in the first 1,500 rows: is it known before"
    assert gp.Features.auto(frame, target="category").remarks[0].startswith(said)
    frame["items"] = [each[:1] for each in draw.permutation(np.array(items, dtype=object))]
    assert gp.Features.auto(frame, target="category").remarks == []
    frame["items"] = [[f"{number}"] for number in range(1500)]
    assert not any("each of its elements" in remark for remark in gp.Features.auto(frame, target="category").remarks)
