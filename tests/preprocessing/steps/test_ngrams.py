"""Counts of hashed n-grams against scikit-learn's vectorizers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer

import gpupipe as gp
from gpupipe import errors
from gpupipe.preprocessing import Categorify, HashedNgrams
from tests.preprocessing.steps.test_hashing import bits
from tests.raising import raises

TEXTS = st.lists(st.text("ab cÄß日1_.\n\u0301\u2003", max_size=14), min_size=1, max_size=12)
OPTIONS = st.sampled_from(
    [
        {"analyzer": analyzer, "ngram_range": sizes, "lowercase": lowercase}
        for analyzer in ("word", "char", "char_wb")
        for sizes in ((1, 1), (1, 3), (2, 2), (3, 5))
        for lowercase in (True, False)
    ]
)


def by_hand(grams: list[str], size: int, signed: bool, norm: str | None) -> Any:
    """A row of counts from n-grams, by the hash's definition."""
    row = np.zeros(size)
    for gram, count in Counter(grams).items():
        found = bits(gram, 0)
        row[found % size] += count * (-1 if signed and found >> 63 else 1)
    length = {None: 1.0, "l1": np.abs(row).sum(), "l2": np.sqrt((row**2).sum())}[norm]
    return row / (length or 1.0)


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    texts=TEXTS,
    options=OPTIONS,
    size=st.sampled_from([1, 2, 7, 64]),
    signed=st.booleans(),
    norm=st.sampled_from([None, "l1", "l2"]),
)
def test_the_ngrams_are_scikit_learns(
    texts: list[str], options: dict[str, Any], size: int, signed: bool, norm: str | None
) -> None:
    analyze = HashingVectorizer(**options).build_analyzer()
    step = HashedNgrams(size, alternate_sign=signed, norm=norm, **options)
    found = step.fit_transform(pd.DataFrame({"x": pd.array(texts, dtype="str")}))
    wanted = np.stack([by_hand(analyze(text), size, signed, norm) for text in texts])
    np.testing.assert_allclose(found.to_numpy(), wanted, rtol=1e-6, atol=1e-6)
    assert (found.dtypes == "float32").all()


@settings(deadline=None, max_examples=40)
@given(texts=TEXTS, options=OPTIONS)
def test_the_counts_are_scikit_learns_up_to_the_order_of_columns(texts: list[str], options: dict[str, Any]) -> None:
    """With as many columns no two of so few n-grams share one, in either."""
    plain = {"alternate_sign": False, "norm": None, **options}
    wanted = HashingVectorizer(n_features=2**20, **plain).transform(texts)
    step = HashedNgrams(2**20, **plain)
    dictionary = step._counted(pd.Series(texts, dtype="str").drop_duplicates().pipe(strings_of))
    by_text: dict[int, list[float]] = {}
    for text, value in zip(dictionary[0], dictionary[2], strict=True):
        by_text.setdefault(int(text), []).append(float(value))
    for place, text in enumerate(dict.fromkeys(texts)):
        assert sorted(by_text.get(place, [])) == sorted(wanted[texts.index(text)].data)


def strings_of(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(values.tolist(), pa.large_string())


def test_a_missing_text_has_no_ngrams() -> None:
    frame = pd.DataFrame({"x": pd.array(["north south", None, "", "north"], dtype="str")})
    found = HashedNgrams(8, alternate_sign=False, norm=None).fit_transform(frame)
    assert found.sum(axis=1).tolist() == [2, 0, 0, 1]


def test_every_column_of_text_has_its_own_block() -> None:
    frame = pd.DataFrame({"a": ["north"], "b": ["south"]})
    step = HashedNgrams(3).fit(frame)
    assert step.get_feature_names_out() == [f"{name}_ngram{place}" for name in "ab" for place in range(3)]
    both = step.transform(frame)
    for name in "ab":
        alone = HashedNgrams(3).fit_transform(frame[[name]])
        pd.testing.assert_frame_equal(both[alone.columns.tolist()], alone)


def test_more_texts_than_are_taken_apart_at_a_time() -> None:
    texts = [f"flight N{n % 30_000} of {n % 7}" for n in range(40_000)]
    found = HashedNgrams(5, alternate_sign=False, norm=None).fit_transform(pd.DataFrame({"x": texts}))
    assert (found.sum(axis=1) == 3).all()
    few = HashedNgrams(5, alternate_sign=False, norm=None).fit_transform(pd.DataFrame({"x": texts[::-500]}))
    np.testing.assert_array_equal(found.to_numpy()[::-500], few.to_numpy())


@pytest.mark.parametrize("analyzer", ["word", "char", "char_wb"])
def test_ngrams_longer_than_any_text_cost_nothing(analyzer: str) -> None:
    frame = pd.DataFrame({"x": ["ab cd ef", "", None]})
    long, enough = (
        HashedNgrams(8, ngram_range=(1, most), analyzer=analyzer).fit_transform(frame) for most in (10**12, 20)
    )
    pd.testing.assert_frame_equal(long, enough)


def test_what_is_refused() -> None:
    frame = pd.DataFrame({"x": ["a"], "n": [1]})
    with raises(errors.SchemaMismatch, where="HashedNgrams, column 'n'", got="int64"):
        HashedNgrams().fit(frame)
    with raises(errors.BadConfig, where="HashedNgrams(ngram_range=)", got=(2, 1)):
        HashedNgrams(ngram_range=(2, 1)).fit(frame[["x"]])
    with raises(errors.BadConfig, where="HashedNgrams(ngram_range=)", got=3):
        HashedNgrams(ngram_range=3).fit(frame[["x"]])
    with raises(errors.BadConfig, where="HashedNgrams(analyzer=)", got="words"):
        HashedNgrams(analyzer="words").fit(frame[["x"]])


def test_lists_have_a_remedy_that_works() -> None:
    frame = pd.DataFrame({"x": [["a", "b"], ["c"]], "y": [0, 1]})
    with raises(errors.SchemaMismatch, where="HashedNgrams, column 'x'", got="list<string>") as caught:
        gp.Pipeline([], gp.Features((["x"], HashedNgrams()), target="y")).fit(frame)
    step = eval(caught.value.remedy.partition(", which takes lists")[0], {"Categorify": Categorify})
    assert gp.Pipeline([], gp.Features((["x"], step), target="y")).fit(frame).schema.names == ["x", "y"]


def test_a_vectorizer_is_answered_with_it() -> None:
    features = gp.Features((["s"], HashingVectorizer()))
    with pytest.raises(errors.SchemaMismatch, match=r"Try: HashedNgrams\(\) for strings"):
        gp.Pipeline([], features).fit(pd.DataFrame({"s": ["a b", "c"]}))
