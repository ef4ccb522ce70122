"""What `Features.auto` says of the columns that it takes; every remedy works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

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


@pytest.mark.parametrize("name", ["note", "tail"])
def test_the_groups_that_are_said_are_features(name: str) -> None:
    group = eval(SAID[name].partition(": ")[2].partition(" learns")[0], {"pre": pre})
    assert gp.Pipeline([], gp.Features(group, target="y")).fit(FRAME).schema.numeric


def test_few_rows_show_no_id() -> None:
    assert gp.Features.auto(FRAME[["application", "code", "note", "y"]][:19], target="y").remarks == []
    many = FRAME.assign(**{f"c{place}": 0.5 for place in range(20)})
    assert sum("the same value" in note for note in gp.Features.auto(many, target="y")._proposal_notes()) == 5


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


def test_a_target_of_counts_is_asked_about() -> None:
    frame = pd.DataFrame({"x": np.arange(60.0), "claims": [0, 1, 2] * 20})
    assert "say task='regression'" in repr(gp.Features.auto(frame, target="claims"))
    assert "task='regression'" not in repr(gp.Features.auto(frame.assign(claims=frame["claims"] > 1), target="claims"))
