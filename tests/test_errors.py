"""The family of errors: four facts in one text, facts as attributes, all of which survives between processes."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from gpupipe import errors
from gpupipe.errors import BadConfig, ColumnNotFound, GpupipeError, OutOfDeviceMemory

FAMILY = [getattr(errors, name) for name in errors.__all__]
BUILTIN = {
    "ArtifactError": ValueError,
    "AttributeNotFound": AttributeError,
    "BackendMissing": ImportError,
    "BadCall": TypeError,
    "BadConfig": ValueError,
    "BadData": ValueError,
    "BadFile": OSError,
    "ClusterLost": ConnectionError,
    "ColumnNotFound": KeyError,
    "CopyRequired": ValueError,
    "ExpressionError": ValueError,
    "GpupipeError": Exception,
    "LeakageError": ValueError,
    "NotFitted": RuntimeError,
    "OutOfDeviceMemory": MemoryError,
    "PartitionFailed": RuntimeError,
    "PlanFailed": RuntimeError,
    "SchemaMismatch": ValueError,
}
TEXT = "flights.parquet, column 'x': 1 infinite value, got inf.\nExpected finite numbers.\nTry: clip(x, 0, 1)"


def made(cls: type[GpupipeError]) -> GpupipeError:
    return cls(
        "flights.parquet, column 'x'",
        "1 infinite value",
        got=float("inf"),
        expected="finite numbers",
        remedy="clip(x, 0, 1)",
    )


def test_every_class_of_the_module_is_public_and_in_this_test() -> None:
    defined = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, Exception)}
    assert set(FAMILY) == defined
    assert {cls.__name__ for cls in FAMILY} == BUILTIN.keys()


@pytest.mark.parametrize("cls", FAMILY)
def test_the_text_has_the_four_facts_and_they_are_attributes(cls: type[GpupipeError]) -> None:
    error = made(cls)
    assert str(error) == TEXT
    assert (error.where, error.problem) == ("flights.parquet, column 'x'", "1 infinite value")
    assert (error.got, error.expected, error.remedy) == (float("inf"), "finite numbers", "clip(x, 0, 1)")


@pytest.mark.parametrize("cls", FAMILY)
def test_it_is_caught_as_the_family_and_as_what_python_calls_it(cls: type[GpupipeError]) -> None:
    for kind in (GpupipeError, BUILTIN[cls.__name__]):
        with pytest.raises(kind):
            raise made(cls)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("cls", FAMILY)
def test_it_survives_pickling(cls: type[GpupipeError], protocol: int) -> None:
    error = made(cls)
    error.add_note("in partition 3")
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is cls
    assert str(again) == TEXT and again.args == error.args
    assert vars(again) == vars(error) and again.__notes__ == ["in partition 3"]
    assert str(copy.copy(error)) == TEXT


def fail(column: str) -> None:
    raise ColumnNotFound.among("Filter", column, ["distance", "origin"])


def test_it_comes_back_from_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error = pool.submit(fail, "distnce").exception()
    assert isinstance(error, ColumnNotFound)
    assert error.column == "distnce" and error.remedy == "'distance' (the closest name)"


def test_a_name_in_other_capitals_is_close() -> None:
    assert ColumnNotFound.among("Filter", "DEST", ["distance", "Dest"]).remedy == "'Dest' (the closest name)"


def test_a_known_name_is_not_another_one_misspelt() -> None:
    names = ["wage", "Log_Wage"]
    assert (
        ColumnNotFound.among("Filter", "log wage", names, other_names=["wage"]).remedy
        == "'Log_Wage' (the closest name)"
    )
    assert ColumnNotFound.among("Filter", "log wage", names, "join it", other_names=names).remedy == "join it"


def test_a_column_error_shows_its_text_and_not_its_repr() -> None:
    error = ColumnNotFound.among("Filter", "distnce", ["distance", "origin"])
    assert str(error) == (
        "Filter: column 'distnce' not found, got ['distance', 'origin'].\n"
        "Expected a column that is there.\n"
        "Try: 'distance' (the closest name)"
    )


@pytest.mark.parametrize(
    ("names", "remedy"), [(["distance", "origin"], "one of the names above"), ([], "data that has columns")]
)
def test_no_name_is_offered_where_none_is_close(names: list[str], remedy: str) -> None:
    error = ColumnNotFound.among("Filter", "xyz", iter(names))
    assert error.remedy == remedy
    assert error.got == names


def test_what_a_class_knows_besides_travels_too() -> None:
    error = made(OutOfDeviceMemory)
    assert isinstance(error, OutOfDeviceMemory) and error.requested is None
    error.requested, error.free = 10, 5
    again = pickle.loads(pickle.dumps(error))
    assert (again.requested, again.free) == (10, 5)


def test_no_value_seen_is_not_the_value_none() -> None:
    without = BadConfig("PCA", "there are no columns", expected="one at least", remedy="columns=")
    none = BadConfig("PCA", "no number", got=None, expected="a number", remedy="n_components=3")
    assert str(without).startswith("PCA: there are no columns.\n")
    assert str(none).startswith("PCA: no number, got None.\n")
    assert without.got is None


def test_a_long_value_is_shortened_in_the_text_and_whole_in_the_attribute() -> None:
    error = BadConfig("names", "too many", got=list(range(1000)), expected="fewer", remedy="names[:10]")
    assert len(str(error)) < 300 and "..., " not in str(error) and "...." in str(error)
    assert error.got == list(range(1000))
