"""Encoders on lists do to elements what they do to values; pandas' explode is the oracle."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from gpupipe import errors
from gpupipe import preprocessing as pre
from tests.laws import learned

ROWS = [["b", "a", "b"], None, [], ["c", None], ["b"]]
FRAME = pd.DataFrame({"x": pd.Series(ROWS, dtype=object)})
FLAT = pd.DataFrame({"x": pd.array([value for row in ROWS for value in row or ()], dtype="str")})


@pytest.mark.parametrize(
    "make",
    [
        pre.Categorify,
        lambda: pre.Categorify(min_frequency=2),
        lambda: pre.Categorify(max_categories=1, num_buckets=5),
        lambda: pre.Categorify(vocabulary=["c", "a"]),
        lambda: pre.HashBucket(50, seed=2),
    ],
)
def test_elements_get_the_ids_of_values(make: Any) -> None:
    lists, flat = make().fit(FRAME), make().fit(FLAT)
    ids = iter(flat.transform(FLAT)["x"].tolist())
    wanted = [None if row is None else [next(ids) for _ in row] for row in ROWS]
    found = lists.transform(FRAME)["x"].tolist()
    assert [None if row is pd.NA else row for row in found] == wanted
    assert 0 in wanted[3]  # the missing element


@pytest.mark.parametrize("rows", [[[]], [[None], []], [[], None]])
def test_lists_without_a_value_are_of_the_type_they_had_in_fit(rows: Any) -> None:
    """Such a frame tells no type, as a single row to be scored often does."""
    found = pre.Categorify().fit(FRAME).transform(pd.DataFrame({"x": rows}))["x"].tolist()
    assert [None if row is pd.NA else row for row in found] == [row if not row else [0] for row in rows]


def test_a_vocabulary_is_shared_with_a_plain_column() -> None:
    frame = pd.DataFrame({"seen": [["a", "b"], ["c", "c"]], "next": ["c", "z"]})
    made = pre.Categorify(joint=True).fit_transform(frame)
    assert made["next"].tolist() == [2, 5] and made["seen"].tolist() == [[3, 4], [2, 2]]


def test_the_way_back() -> None:
    step = pre.Categorify(max_categories=2).fit(FRAME)
    again = step.inverse_transform(step.transform(FRAME))["x"].tolist()
    assert [None if row is pd.NA else row for row in again] == [["b", "a", "b"], None, [], [None, None], ["b"]]


def test_what_was_learned_goes_with_scalars_too() -> None:
    assert pre.Categorify().fit(FRAME).transform(FLAT)["x"].tolist() == [2, 3, 2, 4, 0, 2]


@pytest.mark.slow
@pytest.mark.parametrize("cls", learned.steps(), ids=lambda cls: cls.__name__)
def test_a_step_that_takes_no_lists_names_the_column(cls: type) -> None:
    for example in learned.EXAMPLES[cls]:
        step = example.make()
        for values in (ROWS, [[1.0, 2.0], [], [3.0], None, [1.0]]):
            frame = pd.DataFrame({"c0": pd.Series(values, dtype=object)})
            if isinstance(step, pre.Categorify | pre.HashBucket | pre.ListSlice):
                continue
            with pytest.raises(errors.GpupipeError) as raised:
                step.fit(frame)
            # Others want more columns than this one before they look at it.
            assert not isinstance(raised.value, errors.SchemaMismatch) or "'c0'" in str(raised.value)
