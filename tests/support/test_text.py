"""Texts of messages and reprs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.schema import shorten_list
from gpupipe.support.text import derive, flush_right, format_count, html_table, parse_number, text_table


def test_lists_and_counts() -> None:
    assert (format_count(1, "row"), format_count(24_951, "row")) == ("1 row", "24,951 rows")
    assert (shorten_list(["temp", "dewp"]), shorten_list("abcdef", 2)) == ("temp, dewp", "a, b and 4 more")


def test_a_step_that_derives() -> None:
    assert derive("x", "round({})") == "Derive(x='round(x)')"
    assert derive("a b", "len({})", "n") == """Derive(n="len(col('a b'))")"""


def test_tables() -> None:
    assert text_table([["column", "dtype"], ["x", "float64"]]) == "column  dtype\nx       float64"
    assert flush_right([["model", "rmse"], ["Ridge", "2"]]) == [["model", "rmse"], ["Ridge", "   2"]]
    shown = '<tbody><tr><td style="text-align:left">a&lt;b</td></tr></tbody></table>'
    assert html_table([["column"], ["a<b"]]).endswith(shown)
    assert "... 51 more ..." in text_table([["n"], *([str(number)] for number in range(101))])


def test_names_and_values_write_no_lines_of_their_own() -> None:
    name, value = "a\x1b[31m\nERROR", "v\x1b[2J\nERROR"
    frame = pd.DataFrame({name: range(40), f"{name}2": [value, "b"] * 20, f"{name}3": "x", "t": ["n", value] * 20})
    data, features = gp.from_frame(frame), gp.Features.auto(frame, target="t")
    pipeline = gp.Pipeline([T.Derive(**{f"d{name}": "1.0"})], features, backend="cpu").fit(data)
    trainer = gp.Trainer(gp.models.MLP.from_schema(pipeline.schema), max_epochs=1, device="cpu")
    report = trainer.evaluate(pipeline.loader(data))
    with pytest.raises(gp.errors.SchemaMismatch) as caught:
        data.group_by("t").agg(**{name: ("t", "mean")})
    shown: list[Any] = [data.schema, data.describe("t"), features, pipeline, pipeline.fit_report, report]
    texts = [*map(repr, [data, *shown]), pipeline.explain(data), str(caught.value)]
    texts += [one._repr_html_() for one in shown if hasattr(one, "_repr_html_")]
    for text in texts:
        assert "ERROR" in text and not any(line.startswith("ERROR") for line in text.splitlines())
        assert all(letter.isprintable() or letter == "\n" for letter in text)


@pytest.mark.parametrize(
    ("word", "number"), [("1850", 1850), (" -1.5", -1.5), ("1e400", None), ("nan", None), ("x", None)]
)
def test_only_a_finite_number_is_one(word: str, number: float | None) -> None:
    assert parse_number(word) == number
