"""Laws 1 and 3: what travels is a frame; a transform is a pure map that needs no more than it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.backend import Backend, select
from gpupipe.schema import Schema

from .transformed import PARTS, SAMPLES

EVERY = [step for steps in SAMPLES.values() for step in steps]
WHOLE = [step for step in EVERY if isinstance(step, T.WholeTableTransform)]
BY_ROW = [step for step in EVERY if step not in WHOLE]
CPU = select("cpu")


def test_every_transform_is_here() -> None:
    public = {name for name in T.__all__ if name not in ("Transform", "WholeTableTransform")}
    assert public == set(SAMPLES)
    assert all(type(step).__name__ == name for name, steps in SAMPLES.items() for step in steps)


def whole() -> pd.DataFrame:
    return pd.concat(PARTS, ignore_index=True)


def schema_of(step: T.Transform) -> tuple[Schema, Schema]:
    """Of input and output; types of a function's results are fixed on the way."""
    if isinstance(step, T.Map):
        step.transform(whole())
    schema = CPU.schema_of(CPU.encode(whole()))
    return schema, step.output_schema(schema)


def one_part(step: T.Transform, part: pd.DataFrame, first_row: int) -> pd.DataFrame:
    """What becomes of a part of the whole; a sample is told which rows these are."""
    if not isinstance(step, T.Sample):
        return step.transform(part)
    coded, ids = CPU.encode(part), np.arange(first_row, first_row + len(part))
    return CPU.decode(step.apply(coded, CPU.schema_of(coded), set(part), CPU, ids))


@pytest.mark.parametrize("parts", [1, 7, *(pytest.param(parts, marks=pytest.mark.slow) for parts in (2, 16))])
@pytest.mark.parametrize("step", WHOLE, ids=repr)
def test_other_rows_are_seen_across_partitions(step: T.Transform, parts: int) -> None:
    """And what comes of them is found by the rows' identities: steps before and after it may drop rows."""
    for steps in ([step], [T.Filter("n != 2"), step, T.Derive(m="n + 1"), T.Sample(0.7)]):
        pipeline = gp.Pipeline(steps, backend="cpu").fit(whole())
        wanted = pipeline.transform(whole()).reset_index(drop=True)
        found = pipeline.transform(gp.from_frame(whole(), num_partitions=parts)).compute()
        pd.testing.assert_frame_equal(found, wanted, check_exact=True)


@pytest.mark.parametrize("step", BY_ROW, ids=repr)
def test_parts_one_by_one_are_the_whole(step: T.Transform) -> None:
    expected = step.transform(whole()).reset_index(drop=True)
    starts = np.cumsum([0, *map(len, PARTS)])
    made = [one_part(step, part, first) for part, first in zip(PARTS, starts, strict=False) if len(part)]
    made = pd.concat(made, ignore_index=True)
    assert list(made) == list(expected)
    for name in expected:
        left, right = made[name], expected[name]
        assert left.isna().tolist() == right.isna().tolist(), name
        assert left.dropna().tolist() == right.dropna().tolist(), name


@pytest.mark.parametrize("step", EVERY, ids=repr)
@pytest.mark.parametrize("part", PARTS, ids=["mixed", "lacks a value", "all missing", "empty", "one row"])
def test_awkward_partitions_work_and_are_not_modified(step: T.Transform, part: pd.DataFrame) -> None:
    _, after = schema_of(step)
    before = part.copy(deep=True)
    made = step.transform(part)
    pd.testing.assert_frame_equal(part, before)
    assert isinstance(made, pd.DataFrame)
    assert list(made) == after.names
    assert not any(isinstance(made[name].dtype, pd.CategoricalDtype) for name in made)


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_the_schema_tells_the_types(step: T.Transform) -> None:
    _, after = schema_of(step)
    made = CPU.schema_of(CPU.encode(step.transform(whole())))
    assert [(item.name, item.dtype) for item in made] == [(item.name, item.dtype) for item in after]
    for item in made:
        assert not item.nullable or after[item.name].nullable, f"{item.name} has gaps the schema does not tell of"


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_only_declared_columns_are_needed(step: T.Transform, backend: Backend) -> None:
    before, after = schema_of(step)
    coded = backend.encode(backend.decode(backend.from_arrow(CPU.to_arrow(CPU.encode(whole())), list(before))))
    everything = step.apply(coded, before, frozenset(after.names), backend)
    for wanted in [[name] for name in after.names] + [after.names[:2]]:
        given = backend.select(coded, [name for name in before.names if name in step.needs(frozenset(wanted), before)])
        pruned = step.apply(given, before, frozenset(wanted), backend)
        for name in wanted:
            mine, theirs = backend.column(pruned, name), backend.column(everything, name)
            assert len(mine) == len(theirs)
            left = backend.to_arrow(backend.frame({name: mine}, len(mine)))
            assert left.equals(backend.to_arrow(backend.frame({name: theirs}, len(theirs))))


@pytest.mark.parametrize("step", [step for step in EVERY if not isinstance(step, T.Map)], ids=repr)
def test_a_saved_step_does_the_same(step: T.Transform, tmp_path: Path) -> None:
    pipeline = gp.Pipeline([step]).fit(whole())
    gp.save(tmp_path / "p", pipeline)
    loaded = gp.load(tmp_path / "p").pipeline
    assert loaded.schema == pipeline.schema
    pd.testing.assert_frame_equal(loaded.transform(whole()), pipeline.transform(whole()))


@pytest.mark.parametrize("step", EVERY, ids=repr)
def test_lineage_reaches_back_to_the_source(step: T.Transform) -> None:
    before, after = schema_of(step)
    sources = (
        set(before.names) | {f"{step.name}.{n}" for n in step.right_schema.names}
        if isinstance(step, T.Join | T.JoinAsOf)
        else set(before.names)
    )
    for item in after:
        assert item.lineage, f"{item.name} comes from nowhere"
        assert item.lineage <= sources
