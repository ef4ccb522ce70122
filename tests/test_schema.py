"""Fields and schemas: the words that travel beside the data."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.errors import BadConfig, ColumnNotFound
from gpupipe.schema import DTYPES, FLOATS, INTEGERS, Field, Kind, Role, Schema
from gpupipe.support.text import html_table, text_table
from tests.raising import raises

FLIGHTS = Schema([Field("dep_delay", "float64"), Field("carrier", "string"), Field("time_hour", "timestamp")])
FEATURES = Schema(
    [
        Field("dep_delay", "float32", nullable=False, lineage=frozenset({"dep_delay"}), role=Role.FEATURE),
        Field("carrier", "int32", Kind.CATEGORICAL, nullable=False, cardinality=18, role=Role.FEATURE),
        Field("storm", "bool", lineage=frozenset({"visib", "wind_speed"}), step="Derive", role=Role.FEATURE),
        Field("target", "float32", role=Role.TARGET, classes=(False, True)),
        Field("w", "float32", role=Role.WEIGHT),
        Field("flight", "int32", role=Role.KEEP),
    ]
)


# fields ---------------------------------------------------------------------------------------------------------------


def test_a_boolean_that_is_cast_is_none_any_more() -> None:
    assert Field("x", "bool").replace(dtype="float32").kind == Kind.CONTINUOUS


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kind_follows_from_the_type(dtype: str) -> None:
    others = {"bool": Kind.BOOLEAN, "string": Kind.TEXT, "timestamp": Kind.TIME}
    assert Field("x", dtype).kind == others.get(dtype, Kind.CONTINUOUS)
    assert Field("x", dtype, Kind.CATEGORICAL).kind == Kind.CATEGORICAL


def test_the_types_are_listed_once() -> None:
    assert len(set(DTYPES)) == len(DTYPES) == len(INTEGERS) + len(FLOATS) + 3


def test_an_unknown_type_is_named_with_its_column() -> None:
    with raises(BadConfig, where="column 'x'", got="decimal") as caught:
        Field("x", "decimal")
    assert "int64" in caught.value.expected and "timestamp" in caught.value.expected


def test_a_field_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        FLIGHTS["carrier"].dtype = "int64"  # type: ignore[misc]


def test_a_derived_field_has_the_lineage_of_what_it_is_computed_from() -> None:
    distance, air_time = (Field(name, "float64").as_source() for name in ("distance", "air_time"))
    speed = Field.derived("speed", "float64", iter([distance, air_time]), "Derive")
    assert speed.lineage == {"distance", "air_time"} and speed.step == "Derive" and speed.role is None
    assert Field.derived("fast", "bool", [speed], "Derive").lineage == {"distance", "air_time"}
    assert Field.derived("one", "int64", [], "Derive").lineage == frozenset()


@pytest.mark.parametrize("role", list(Role))
def test_what_is_computed_from_a_label_is_a_label_and_no_other_role_is_inherited(role: Role) -> None:
    made = Field.derived("y", "bool", [Field("x", "int64"), Field("late", "int64", role=role)], "Derive")
    assert made.role == (Role.LABEL if role == Role.LABEL else None)


# schemas --------------------------------------------------------------------------------------------------------------


def test_a_schema_is_an_ordered_collection_of_fields() -> None:
    assert FLIGHTS.names == [item.name for item in FLIGHTS] == ["dep_delay", "carrier", "time_hour"]
    assert len(FLIGHTS) == 3 and "carrier" in FLIGHTS and "Carrier" not in FLIGHTS
    assert FLIGHTS["carrier"].dtype == "string"
    assert Schema(iter(FLIGHTS)) == FLIGHTS and hash(Schema(FLIGHTS)) == hash(FLIGHTS)
    assert Schema(reversed(FLIGHTS.fields)) != FLIGHTS


def test_names_are_unique() -> None:
    with raises(BadConfig, where="schema", got="x"):
        Schema([Field("x", "int64"), Field("x", "string")])


def test_a_missing_column_is_an_error_that_offers_the_closest() -> None:
    with raises(ColumnNotFound, where="schema", column="carier") as caught:
        FLIGHTS["carier"]
    assert caught.value.remedy == "'carrier' (the closest name)" and caught.value.__cause__ is None
    with raises(ColumnNotFound, where="Join", column="dest"):
        FLIGHTS.require(["carrier", "dest"], "Join")
    FLIGHTS.require([], "Join")


def test_select_drop_and_assign_make_new_schemas() -> None:
    assert FLIGHTS.select(["time_hour", "carrier"]).names == ["time_hour", "carrier"]
    assert FLIGHTS.drop(["carrier", "not there"]).names == ["dep_delay", "time_hour"]
    grown = FLIGHTS.assign([Field("z", "bool"), Field("carrier", "int32")])
    assert grown.names == ["dep_delay", "carrier", "time_hour", "z"] and grown["carrier"].dtype == "int32"
    assert FLIGHTS.names == ["dep_delay", "carrier", "time_hour"]
    with pytest.raises(ColumnNotFound):
        FLIGHTS.select(["dest"])


def test_roles_tell_what_a_column_is_for() -> None:
    assert [item.name for item in FEATURES.numeric] == ["dep_delay", "storm"]
    assert [item.name for item in FEATURES.categorical] == ["carrier"]
    assert [item.name for item in FEATURES.with_role(Role.KEEP)] == ["flight"]
    assert FEATURES.target == FEATURES["target"] and FEATURES.weight == FEATURES["w"]
    assert FLIGHTS.target is None and FLIGHTS.weight is None and FLIGHTS.numeric == []


@pytest.mark.parametrize(
    ("classes", "task"),
    [
        ((False, True), "binary"),
        (("a", "b"), "binary"),
        ((1, 2), "binary"),
        (("a", "b", "c"), "multiclass"),
        (None, "regression"),
    ],
)
def test_the_target_says_what_the_task_is(classes: tuple[object, ...] | None, task: str) -> None:
    assert Schema([Field("y", "float32", role=Role.TARGET, classes=classes)]).task == task
    assert FLIGHTS.task is None


FIELDS = st.builds(
    Field,
    name=st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from([None, *Kind]),
    nullable=st.booleans(),
    cardinality=st.none() | st.integers(0, 10**9),
    lineage=st.frozensets(st.text(max_size=5), max_size=3),
    step=st.text(max_size=5),
    role=st.sampled_from([None, *Role]),
    classes=st.none() | st.just((False, True)) | st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(FIELDS, unique_by=lambda item: item.name, max_size=4))
def test_json_brings_it_back(fields: list[Field]) -> None:
    schema = Schema(fields)
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert all(isinstance(item.kind, Kind) and isinstance(item.role, Role | None) for item in again)


# looks ----------------------------------------------------------------------------------------------------------------


def test_the_text_is_an_aligned_table() -> None:
    assert repr(FEATURES) == (
        "column     dtype    kind         role     ids  nulls  from               step\n"
        "dep_delay  float32  continuous   feature       no\n"
        "carrier    int32    categorical  feature  18   no\n"
        "storm      bool     boolean      feature       yes    visib, wind_speed  Derive\n"
        "target     float32  continuous   target        yes\n"
        "w          float32  continuous   weight        yes\n"
        "flight     int32    continuous   keep          yes\n"
        "ids: 0 missing, 1 unknown or rare, 2.. vocabulary"
    )


def test_what_no_column_has_is_not_shown() -> None:
    assert repr(FLIGHTS) == (
        "column     dtype      kind        nulls\n"
        "dep_delay  float64    continuous  yes\n"
        "carrier    string     text        yes\n"
        "time_hour  timestamp  time        yes"
    )
    assert repr(Schema()) == "column  dtype  written as  kind  role  ids  nulls  units  range  from  step"


def test_the_notebook_shows_the_same_and_names_cannot_be_markup() -> None:
    shown = Schema([Field("<b>&", "int32", Kind.CATEGORICAL, role=Role.FEATURE)])._repr_html_()
    assert re.findall(r"<td[^>]*>([^<]*)</td>", shown)[:3] == ["&lt;b&gt;&amp;", "int32", "categorical"]
    assert shown.endswith("</table><p>ids: 0 missing, 1 unknown or rare, 2.. vocabulary</p>")
    assert FLIGHTS._repr_html_().endswith("</table>")


def test_tables_of_nothing_but_a_head() -> None:
    assert text_table([["a", "bc"]]) == "a  bc"
    empty = '<table><thead><tr><th style="text-align:left">a</th></tr></thead><tbody></tbody></table>'
    assert html_table([["a"]]) == empty


def test_columns_of_numbers_are_flush_right() -> None:
    rows = [["name", "n", "share", "seen"], ["x", "-1,234", "0.5%", "1e-05"], ["y", "", "12.00%", "n/a"]]
    assert re.findall(r"text-align:(\w+)", html_table(rows)) == ["left", "right", "right", "left"] * 3


def test_a_field_is_changed_as_dataclasses_replace_it() -> None:
    item = Field("x", "float64", units="km", lineage=frozenset({"a"}))
    changed = {"name": "y", "dtype": "string", "kind": None, "role": Role.FEATURE}
    assert item.replace(**changed) == replace(item, **changed)
    assert item.replace(units="") == replace(item, units="")
    assert item.units == "km"
    with pytest.raises(BadConfig, match="unknown type"):
        item.replace(dtype="float8")
