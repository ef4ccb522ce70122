"""Column types: data of other types than in the fit, their casts, and the error where a cast would lose values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpupipe.backend import Backend, Column, select
from gpupipe.backend.arrow import arrow_type, holds_fields
from gpupipe.backend.cast import cast_column
from gpupipe.backend.columns import missing_column, sample_texts
from gpupipe.errors import SchemaMismatch
from gpupipe.io import Dataset
from gpupipe.schema import FLOATS, INTEGERS, Field, Schema, get_element_dtype, is_passenger
from gpupipe.support.text import arguments, refer_to
from gpupipe.support.text_kinds import drop_marks, recognise_texts, suggest_parsing

_BOOLEANS = frozenset(("True", "False", "true", "false", "TRUE", "FALSE", "0", "1"))  # texts that a cast reads
_IN_PLACE = "  # and frame in place of data"


def find_casts(
    source: Schema,
    dtypes: Mapping[str, str],
    zones: Mapping[str, str],
    find_column: Callable[[str], Column | None],
    *,
    is_dataset: bool = False,
) -> dict[str, str]:
    """Find the columns of another dtype than in the fit, `source`; raise where it or a time zone does not fit.

    `find_column` returns some values of a column, None where all are missing.
    """
    fitted_zones = list_zones(source)
    pairs = ((item.name, item.dtype) for item in source if item.name in dtypes)
    casts = {name: dtype for name, dtype in pairs if dtypes[name] != dtype}
    for name, dtype in casts.items():
        if _are_incompatible(dtypes[name], dtype) and (values := find_column(name)) is not None:
            zone = fitted_zones.get(name, "")
            raise _another_type(name, dtypes[name], dtype, sample_texts(values), zone=zone, is_dataset=is_dataset)
    for name in fitted_zones.keys() & zones.keys():
        got, expected = zones[name] or "no zone", fitted_zones[name] or "no zone"
        if "no zone" in {got, expected} and got != expected and find_column(name) is not None:
            problem = f"its times have {'no' if got == 'no zone' else 'a'} time zone, other than in fit"
            table = "frame" if is_dataset else "data"
            remedy = f"{table}[{name!r}].dt.tz_localize({fitted_zones[name] or None!r})"
            if is_dataset:
                remedy = f"frame = data.compute(); frame[{name!r}] = {remedy}"
                remedy += f"{_IN_PLACE}, which is gp.read_parquet(path) or gp.read_csv(path)"
            raise SchemaMismatch(f"column {name!r}", problem, got=got, expected=expected, remedy=remedy)
    return casts


def _are_incompatible(got: str, expected: str) -> bool:
    """Return whether values of one type cannot stand for the other's; lists are compared by their elements."""
    if is_passenger(got) and is_passenger(expected) and not holds_fields(arrow_type(expected), arrow_type(got)):
        return True
    elements = (get_element_dtype(got), get_element_dtype(expected))
    of_lists = None not in elements
    first, second = elements if of_lists else (got, expected)
    if first == "float64":  # in which a column of missing values may come; it is checked again with its values
        return False
    mixed = any(elements) != of_lists or is_passenger(got) != is_passenger(expected)
    return mixed or bool({"string", "timestamp"} & {first, second})


def cast_as_fitted(column: Column, dtype: str, name: str, backend: Backend) -> Column:
    """Convert a column to its type in the fit, exactly; `SchemaMismatch` for a value that has none there."""
    element = get_element_dtype(dtype)
    if lacks_values(column, backend):
        return missing_column(dtype, len(column), backend.xp)
    if element is not None and column.elements is not None:
        return Column(dtype, column.data, column.valid, None, cast_as_fitted(column.elements, element, name, backend))
    if element is not None or dtype in ("string", "timestamp") or is_passenger(dtype) != is_passenger(column.dtype):
        raise _another_type(name, column.dtype, dtype, sample_texts(column))
    return cast_column(column, dtype, name, backend)


def lacks_values(column: Column, backend: Backend) -> bool:
    """Return whether no row of a column has a value."""
    missing = column.missing(backend.xp)
    return not len(column) or (missing is not None and bool(missing.all()))


def find_values(dataset: Dataset, name: str) -> Column | None:
    """Read a column of the first partition in which it has values; None where no row has one."""
    backend = select(dataset.backend)
    frames = (dataset.read(partition, [name], backend) for partition in dataset.partitions)
    columns = (backend.column(frame, name) for frame in frames)
    return next((column for column in columns if not lacks_values(column, backend)), None)


def list_zones(fields: Iterable[Field]) -> dict[str, str]:
    """List the time zones of the columns of times, empty where there is none, by name."""
    return {item.name: item.zone for item in fields if item.dtype == "timestamp"}


def _another_type(
    name: str, got: str, expected: str, texts: Sequence[str], *, zone: str = "", is_dataset: bool = False
) -> SchemaMismatch:
    remedy, is_number = f"the column as {expected} before it is given", expected in (*INTEGERS, *FLOATS)
    if got == "string" and is_number and (steps := _suggest_numbers(name, texts)):
        remedy = steps
    elif got == "string" and expected == "timestamp" and recognise_texts(drop_marks(texts)) == "dates":
        remedy = _localize(name, suggest_parsing(name, "dates", texts), zone, is_dataset=is_dataset)
    elif expected == "timestamp" and got in INTEGERS:
        remedy = _localize(name, _suggest_digits(name, is_dataset=is_dataset), zone, is_dataset=is_dataset)
    elif got == "string" and expected == "bool" and len(texts) == 2 and not {*texts} & _BOOLEANS:
        condition = arguments({name: f"{refer_to(name)} == {max(texts)!r}"})  # Y of N and Y, yes of no and yes
        remedy = f"gp.Pipeline([T.Derive({condition})]).fit(data).transform(data)"
    # A cast of pandas makes True of any text.
    elif got == "string" and (expected == "bool" or (is_dataset and (is_number or expected == "timestamp"))):
        types = f"{{{name!r}: 'float64'}}, errors='coerce'" if is_number else f"{{{name!r}: {expected!r}}}"
        remedy = f"gp.Pipeline([T.Cast({types})]).fit(data).transform(data)"
    elif got == "string" and expected == "timestamp":
        remedy = f"pd.to_datetime(data[{name!r}]), of Polars data[{name!r}].str.to_datetime()"
    elif got == "string" and is_number:
        remedy = f"pd.to_numeric(data[{name!r}], errors='coerce'), of Polars "
        remedy += f"data[{name!r}].cast(pl.Float64, strict=False)"
    elif expected == "string" and got in (*INTEGERS, *FLOATS, "bool", "timestamp"):
        reader = f"gp.read_csv(..., dtypes={{{name!r}: 'string'}})"
        if is_dataset:
            remedy = f"gp.Pipeline([T.Cast({{{name!r}: 'string'}})]).fit(data).transform(data)"
        else:
            reader += f" or pd.read_csv(..., dtype={{{name!r}: 'str'}})"
        remedy = f"{reader} of a CSV file, else {remedy}"
    return SchemaMismatch(f"column {name!r}", "another type than in fit", got=got, expected=expected, remedy=remedy)


def _suggest_numbers(name: str, texts: Sequence[str]) -> str:
    """Suggest what makes numbers of texts that a cast makes missing, such as "$5"; nothing where it makes some."""
    valued = [text for text in texts if recognise_texts([text])]
    kind = recognise_texts(valued) or ""
    if kind == "numbers" or any(recognise_texts([text]) == "numbers" for text in valued if not kind):
        return ""
    if not kind.startswith(("amounts", "numbers", "percentages")):
        return f"numbers in place of text such as {texts[0]!r}"
    steps, _, reading = suggest_parsing(name, kind, texts).partition(";")
    of_files = "; or decimal=',' where it is read from CSV" if "decimal=','" in reading else ""
    return f"gp.Pipeline([{steps.replace(', then ', ', ')}]).fit(data).transform(data){of_files}"


def _localize(name: str, remedy: str, zone: str, *, is_dataset: bool) -> str:
    """Extend a remedy that gives times without a time zone by the step that gives them the fit's, if it had one."""
    if not zone or "%z" in remedy:
        return remedy
    call, step = re.match(r"gp\.read_csv\(.*?\)(?=, or | of )", remedy), f"frame[{name!r}].dt.tz_localize({zone!r})"
    if call is None or not is_dataset:
        return f"{remedy}, then {step if is_dataset else step.replace('frame', 'data', 1)}"
    return f"frame = {call[0]}.compute(); frame[{name!r}] = {step}{_IN_PLACE}"


def _suggest_digits(name: str, *, is_dataset: bool) -> str:
    """Suggest the call that reads times of digits, 20240131."""
    if is_dataset:
        return f"gp.read_csv(..., timestamp_formats={{{name!r}: '%Y%m%d'}}) of digits like 20240131 in a CSV file"
    return f"pd.to_datetime(data[{name!r}], format='%Y%m%d') of digits like 20240131"
