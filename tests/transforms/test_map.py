"""A user's function as a step: its own copy, plain strings, fixed types, nothing smuggled in."""

from __future__ import annotations

import pandas as pd
import pytest

from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.backend import select
from gpupipe.schema import Field, Role, Schema
from tests.raising import raises


def test_the_function_sees_plain_strings_and_only_what_it_reads() -> None:
    seen: list[tuple[list[str], str]] = []

    def note(frame: pd.DataFrame) -> pd.DataFrame:
        seen.append((list(frame), str(frame["s"].dtype)))
        return frame.assign(length=frame["s"].str.len())

    T.Map(note, reads=["s"], adds=["length"]).transform(pd.DataFrame({"s": pd.Categorical(["a", "bb"]), "x": [1, 2]}))
    assert seen == [(["s"], "str")]


def test_without_adds_the_result_replaces_the_frame() -> None:
    step = T.Map(lambda frame: frame[["x"]].assign(y=frame["x"] + 1))
    assert list(step.transform(pd.DataFrame({"x": [1], "z": [2]}))) == ["x", "y"]


def test_types_are_fixed_by_the_first_rows() -> None:
    step = T.Map(lambda frame: frame.assign(y=frame["x"]), reads=["x"], adds=["y"])
    step.transform(pd.DataFrame({"x": [1, 2]}))
    with raises(errors.SchemaMismatch, where="Map(<lambda>)", match="float64 in this partition"):
        step.transform(pd.DataFrame({"x": [1.5]}))


@pytest.mark.parametrize("rows", [[], [None, None]])
def test_a_partition_without_values_takes_the_fixed_type(rows: list[None]) -> None:
    step = T.Map(lambda frame: frame.assign(y=frame["x"].str.upper()), reads=["x"], adds=["y"])
    step.transform(pd.DataFrame({"x": ["a"]}))
    made = step.transform(pd.DataFrame({"x": pd.array(rows, dtype="str")}))
    assert str(made["y"].dtype) == "str" and made["y"].isna().all()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda frame: None, "the function returned no frame"),
        (lambda frame: frame.iloc[:1], "changed the rows"),
        (lambda frame: frame.iloc[::-1], "changed the rows"),
        (lambda frame: frame.sort_values("x").reset_index(drop=True).set_index(frame.index[::-1]), "changed the rows"),
    ],
)
def test_what_a_function_may_not_do(function: object, message: str) -> None:
    with pytest.raises(errors.SchemaMismatch, match=message):
        T.Map(function, reads=["x"], adds=["x"]).transform(pd.DataFrame({"x": [2, 1]}))  # type: ignore[arg-type]


def test_a_column_it_promised_has_to_be_there() -> None:
    with raises(errors.ColumnNotFound, where="Map(<lambda>) result", column="holiday"):
        T.Map(lambda frame: frame.assign(holidays=1), reads=["x"], adds=["holiday"]).transform(pd.DataFrame({"x": [1]}))


def test_its_copy_is_its_own() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0]})

    def spoil(given: pd.DataFrame) -> pd.DataFrame:
        given.loc[:, "x"] = 0.0
        return given

    T.Map(spoil, reads=["x"], adds=["x"]).transform(frame)
    assert frame["x"].tolist() == [1.0, 2.0]


def test_labels_are_not_given_to_a_function_that_reads_everything() -> None:
    backend = select("cpu")
    schema = Schema([Field("x", "float64"), Field("y", "float64", role=Role.LABEL)])
    seen: list[list[str]] = []

    def note(frame: pd.DataFrame) -> pd.DataFrame:
        seen.append(list(frame))
        return frame.assign(z=frame["x"])

    step = T.Map(note)
    assert step.needs({"z"}, schema) == {"x"}
    made = step.apply(backend.encode(pd.DataFrame({"x": [1.0], "y": [2.0]})), schema, frozenset({"z", "y"}), backend)
    assert seen == [["x"]] and made["y"].tolist() == [2.0]


def test_a_function_is_wanted() -> None:
    with raises(errors.BadConfig, where="Map(fn=)", got=3):
        T.Map(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("facts", [(), ([],), ("y", 1)])
def test_a_key_error_of_the_function_that_names_no_column_is_its_own(facts: tuple[object, ...]) -> None:
    def fail(frame: pd.DataFrame) -> pd.DataFrame:
        raise KeyError(*facts)

    with pytest.raises(KeyError) as caught:
        T.Map(fail).transform(pd.DataFrame({"x": [1]}))
    assert caught.value.args == facts
