"""What a fit tells before and after: plans, diagrams, reports, and the schema with units and ranges."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.preprocessing import PolynomialFeatures

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.schema import Schema


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "distance": [100.0, None, 900.0, 500.0] * 5,
            "seats": [2, 4, 6, 8] * 5,
            "carrier": ["UA", "AA", None, "UA"] * 5,
            "<b>&": [1.0, 2.0, 3.0, 4.0] * 5,
            "late": [1.0, 0.0, 3.0, None] * 5,
        }
    )


def pipeline() -> gp.Pipeline:
    return gp.Pipeline(
        [T.Expect("seats", min=0), T.Derive(far="distance > 600")],
        gp.Features(
            (["distance"], [pre.SimpleImputer(), pre.MinMaxScaler()]),
            (["seats"], [pre.SimpleImputer(), pre.StandardScaler(), pre.PCA(n_components=1)], "pca"),
            (["carrier"], pre.Categorify()),
            (["<b>&"], pre.SimpleImputer(strategy="median")),
            target="late",
            task="classification",
            keep=["seats"],
        ),
    )


# before ---------------------------------------------------------------------------------------------------------------


def test_the_plan_as_text() -> None:
    assert pipeline().explain() == (
        "pass 1: SimpleImputer + MinMaxScaler of distance\n"
        "pass 1: SimpleImputer + StandardScaler of seats\n"
        "pass 1: Categorify of carrier\n"
        "pass 1: SimpleImputer of <b>&\n"
        "pass 2: PCA of seats"
    )
    plan = pipeline().explain(gp.from_frame(table(), num_partitions=2))
    read = "\nthe fit reads: distance, seats, carrier, <b>&, late\nthe fit does not read: nothing\n"
    assert repr(plan) == str(plan) and read in plan
    assert gp.Pipeline([]).explain() == "nothing is learned"


def test_columns_that_are_only_looked_at_are_told() -> None:
    features = gp.Features((["distance"], pre.SimpleImputer()))
    plan = gp.Pipeline([T.Expect("seats", min=0)], features).explain(table())
    assert "the fit reads: distance, seats\nthe fit does not read: carrier, <b>&, late\n" in plan


def double(frame: pd.DataFrame) -> pd.DataFrame:
    return frame * 2


def test_what_cannot_be_saved_is_told_before(tmp_path: Path) -> None:
    steps = [T.Map(lambda frame: frame.assign(y=1.0), reads=["seats"], adds=["y"])]
    made = gp.Pipeline(steps, gp.Features((["seats"], pre.SimpleImputer())))
    here = test_what_cannot_be_saved_is_told_before.__name__
    assert made.explain().splitlines()[1:] == [
        f"cannot be saved: Map.fn, it cannot be found again in a new process: {__name__}.{here}.<locals>.<lambda>"
    ]
    good = gp.Pipeline([T.Map(double, reads=["seats"], adds=["seats"])], gp.Features((["seats"], pre.SimpleImputer())))
    assert "cannot be saved" not in good.explain()


def test_steps_that_gather_rows_are_told() -> None:
    features = gp.Features((["seats"], pre.EstimatorStep(PolynomialFeatures(), max_rows=10)))
    made = gp.Pipeline([], features)
    assert made.explain().splitlines() == [
        "pass 1: PolynomialFeatures of seats",  # the estimator's own name
        "sampled: PolynomialFeatures of seats learns from at most 10 rows, gathered in memory",
    ]
    settings = "estimator=PolynomialFeatures(), max_rows=10"
    assert f">PolynomialFeatures<br><small>{settings}</small></span>" in made._repr_html_()
    assert made.explain(table()).splitlines()[1].startswith("sampled")
    few = made.explain(table().iloc[:9]).splitlines()[1]
    assert few == "gathered: PolynomialFeatures of seats learns from all rows, in memory"
    made.fit(table())
    assert made.fit_report is not None
    assert [step.step for step in made.fit_report.steps] == ["PolynomialFeatures"]
    assert {item.step for item in made.schema} == {"PolynomialFeatures"}


class Tags(HTMLParser):
    """Fails on tags that are not closed in order, and remembers which there were."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def test_the_diagram_is_sound_html_without_scripts_or_names_as_markup() -> None:
    parser = Tags()
    parser.feed(pipeline()._repr_html_())
    assert parser.open == [] and parser.seen == {"div", "span", "br", "small"}
    assert " ".join(parser.text.replace("→", "").split()) == (
        "data Expect columns=['seats'], min=0 Derive far='distance > 600' distance SimpleImputer MinMaxScaler features "
        "seats SimpleImputer StandardScaler PCA n_components=1 features pca_* carrier Categorify features "
        "<b>& SimpleImputer strategy='median' features late target seats kept"
    )
    plan = pipeline().explain()._repr_html_()
    assert plan.startswith("<div") and plan.endswith("</pre>") and "<b>" not in plan


def test_the_text_names_every_part() -> None:
    assert repr(pipeline()).splitlines() == [
        "Pipeline",
        "  Expect(columns=['seats'], min=0)",
        "  Derive(far='distance > 600')",
        "  features: distance -> SimpleImputer() -> MinMaxScaler()",
        "  features: seats -> SimpleImputer() -> StandardScaler() -> PCA(n_components=1)",
        "  features: carrier -> Categorify()",
        "  features: <b>& -> SimpleImputer(strategy='median')",
        "  target: late",
        "  keep: seats",
    ]


# after ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_partitions", [1, 2, 7])
def test_the_report_of_a_fit_tells_of_each_step(num_partitions: int) -> None:
    report = pipeline().fit(gp.from_frame(table(), num_partitions=num_partitions)).fit_report
    assert report is not None
    assert [(item.number, item.step, item.columns, item.missing, item.rare) for item in report.steps] == [
        (1, "SimpleImputer + MinMaxScaler", "distance", 5, None),
        (1, "SimpleImputer + StandardScaler", "seats", 0, None),
        (1, "Categorify", "carrier", 5, 0.0),
        (1, "SimpleImputer", "<b>&", 0, None),
        (2, "PCA", "seats", 0, None),
    ]
    assert all(item.seconds > 0 for item in report.steps)
    assert report.steps[0].num_bytes == 15 * 8  # rows with a target
    lines = repr(report).splitlines()
    notes = ["Derive makes far, which nothing uses", "target 'late': multiclass (task='classification')"]
    assert lines[:4] == [str(report), "", *notes] and lines[5].split() == [
        "pass",
        "step",
        "columns",
        "missing",
        "rare",
        "seconds",
        "MB",
    ]
    assert "&lt;b&gt;&amp;" in report._repr_html_() and "<b>" not in report._repr_html_()


# schema ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_partitions", [1, 2, 7, 16])
def test_ranges_are_those_of_the_rows_it_learned_from(num_partitions: int, tmp_path: Path) -> None:
    made = pipeline().fit(gp.from_frame(table(), num_partitions=num_partitions))
    assert made._source.ranges == {"distance": (100.0, 900.0), "seats": (2.0, 6.0), "<b>&": (1.0, 3.0)}
    out = made.transform(table().dropna(subset="late"))
    assert made.schema.ranges["distance"] == (out["distance"].min(), out["distance"].max()) == (0.0, 1.0)
    assert made.schema.ranges["<b>&"] == (1.0, 3.0)
    assert made.schema.ranges["carrier"] == (0, 3)
    assert "pca_pca0" not in made.schema.ranges, "what mixes columns is not known"
    gp.save(tmp_path / "run", made)
    again = gp.load(tmp_path / "run").pipeline
    assert again.schema == made.schema and again.schema.ranges == made.schema.ranges
    assert again._source.ranges == made._source.ranges
    assert Schema.from_json(made.schema.to_json()).ranges == made.schema.ranges
    assert "range" in repr(made.schema).splitlines()[0] and "0 to 1" in repr(made.schema)


@pytest.mark.parametrize(
    "step",
    [
        pre.StandardScaler(),
        pre.MinMaxScaler(),
        pre.MaxAbsScaler(),
        pre.RobustScaler(),
        pre.QuantileTransformer(),
        pre.PowerTransformer(),
        pre.Log1p(),
        pre.SimpleImputer("constant", fill_value=5000.0),
        pre.Downcast(),
        pre.VarianceThreshold(),
    ],
    ids=repr,
)
def test_ranges_go_through_steps_that_keep_the_order(step: pre.LearnedStep) -> None:
    frame = pd.DataFrame({"x": np.random.default_rng(3).gamma(2.0, 500.0, 100), "n": np.arange(100)[::-1]})
    frame.loc[3, "x"] = np.nan
    assert step.monotone
    made = gp.Pipeline([], gp.Features((["x", "n"], step))).fit(gp.from_frame(frame, num_partitions=5))
    out = made.transform(frame)
    for name in out:
        low, high = made.schema.ranges[name]
        np.testing.assert_allclose([low, high], [out[name].min(), out[name].max()], rtol=1e-6)


def test_units_stay_where_numbers_stay_what_they_are() -> None:
    data = gp.from_frame(table()).with_units({"distance": "miles", "seats": "seats"})
    assert data.schema["distance"].units == "miles"
    steps = [
        T.Clip("distance", 0, 800),
        T.Derive(half="distance / 2"),
        T.Cast({"seats": "float32"}),
        T.Rename({"seats": "places"}),
    ]
    features = gp.Features(
        (["distance"], pre.SimpleImputer(add_indicator=True), "filled"),
        (["distance"], [pre.SimpleImputer(), pre.StandardScaler()], "scaled"),
        (["half"], pre.SimpleImputer()),
        keep=["places"],
    )
    schema = gp.Pipeline(steps, features).fit(data).schema
    units = {item.name: item.units for item in schema}
    assert units == {
        "filled_distance": "miles",
        "filled_distance_missing": "",
        "scaled_distance": "",
        "half": "",
        "places": "seats",
    }
    assert "units" in repr(schema).splitlines()[0] and "units" not in repr(gp.from_frame(table()).schema)
    with pytest.raises(gp.errors.ColumnNotFound):
        data.with_units({"distnce": "miles"})
    for units in ({"distance": 1}, {"distance": None}, "miles", [("distance", "miles")]):
        with pytest.raises(gp.errors.BadConfig) as refused:
            data.with_units(units)  # type: ignore[arg-type]
        assert (refused.value.where, refused.value.got) == ("with_units", units)
        assert refused.value.remedy == "with_units({'distance': 'miles'})"
    with pytest.raises(gp.errors.BadConfig, match="'seats': 'miles'"):
        data.select(["seats"]).with_units("miles")  # type: ignore[arg-type]


def test_units_in_files(tmp_path: Path) -> None:
    field = pa.field("distance", pa.float64(), metadata={"units": "miles"})
    for name, schema in (
        ("a", pa.schema([field])),
        ("b", pa.schema([field])),
        ("c", pa.schema([field.remove_metadata()])),
    ):
        pq.write_table(pa.table({"distance": [1.0]}, schema=schema), tmp_path / f"{name}.parquet")
    data = gp.read_parquet([tmp_path / f"{name}.parquet" for name in "abc"])
    assert data.schema["distance"].units == "miles"
    assert gp.read_parquet(tmp_path / "c.parquet").schema["distance"].units == ""
    data.write_parquet(tmp_path / "out.parquet")
    assert gp.read_parquet(tmp_path / "out.parquet").schema["distance"].units == "miles"
    other = pa.schema([field.with_metadata({"units": "km"})])
    pq.write_table(pa.table({"distance": [1.0]}, schema=other), tmp_path / "d.parquet")
    both = gp.read_parquet([tmp_path / "a.parquet", tmp_path / "d.parquet"])
    assert both.schema["distance"].units == "", "files that differ say nothing"


def unused(steps: list[T.Transform], *groups: object, **options: object) -> list[str]:
    """What a fit and `explain` say of columns for nothing, which has to be the same."""
    fitted = gp.Pipeline(steps, gp.Features(*groups, **options)).fit(table())
    assert fitted.fit_report is not None
    notes = [note for note in fitted.fit_report.notes if "which nothing uses" in note]
    lines = gp.Pipeline(steps, gp.Features(*groups, **options)).explain(table()).splitlines()
    assert notes == [line for line in lines if "which nothing uses" in line]
    return notes


def test_a_step_that_nobody_uses_is_told() -> None:
    derive = T.Derive(ratio="distance / seats", half="seats / 2", quarter="half / 2")
    assert unused([derive], ["seats", "quarter"]) == ["Derive makes ratio, which nothing uses"]
    assert unused([derive], ["seats", "ratio", "quarter"]) == []
    assert unused([derive], ["seats"]) == ["Derive makes ratio, half, quarter, which nothing uses"]


def test_what_counts_as_a_use() -> None:
    derive = T.Derive(ratio="distance / seats")
    assert unused([derive, T.Filter("ratio > 0")], ["seats"]) == []
    assert unused([derive, T.Expect("ratio", min=0)], ["seats"]) == []
    assert unused([derive], ["seats"], keep=["ratio"]) == []
    assert unused([derive], ["<b>&"], target="ratio") == []
    assert unused([derive], ["seats"], target="late", weight="ratio") == []
    assert unused([T.Rename({"distance": "miles"}), T.Cast({"miles": "float32"})], ["seats"]) == []
    planes = pd.DataFrame({"carrier": ["UA"], "age": [3], "year": [1999]})
    joined = T.Join(planes, on="carrier")
    assert unused([joined], ["seats", "age"]) == []
    assert unused([joined], ["seats"]) == ["Join makes age, year, which nothing uses"]
    assert unused([T.Lag("seats", 1, order_by="distance")], ["distance"]) == [
        "Lag makes seats_lag_1, which nothing uses"
    ]
