"""Feature hashing without fit and vocabulary: categories as buckets of a hash, crosses, and n-grams of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.dictionaries import strings
from gpupipe.backend.estimators import make_analyzer
from gpupipe.backend.kernels import hash_column, hash_strings, splitmix64
from gpupipe.errors import BadConfig, SchemaMismatch
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.categories import FIRST, MISSING, assign_buckets, make_number_field
from gpupipe.preprocessing.learned_step import Columns, StatelessStep, by_element, gather, num_rows, row_blocks
from gpupipe.schema import Field
from gpupipe.support.validation import (
    check_bool,
    check_choice,
    check_integer,
    check_seed,
    is_integer,
    is_sequence,
    refuse_argument,
)


@by_element
class HashBucket(StatelessStep):
    """Feature hashing: strings, integers and booleans as int32 bucket ids, a categorical without a vocabulary.

    Ids are those of `Categorify`: 0 missing, 1 never, 2 and up the buckets. The hash depends on the value alone: it is
    the same on every backend, in every process and version, for any partitions; an integer has the same in any width.

    Args:
        num_buckets: for all columns, or by column name.
        seed: of the hash; another one has other values share buckets.

    Raises:
        ColumnNotFound: a column without a number of buckets.

    Memory: transform allocates n int32 per column on the device; each distinct string is hashed once, on the host.

    Example:
        >>> import pandas as pd
        >>> HashBucket(100).fit_transform(pd.DataFrame({"tailnum": ["N14228", None, "N24211"]}))["tailnum"].tolist()
        [92, 0, 28]
    """

    def __init__(self, num_buckets: int | Mapping[str, int], *, seed: int = 0) -> None:
        for size in num_buckets.values() if isinstance(num_buckets, Mapping) else [num_buckets]:
            check_integer(self, f"[1, {cats.MOST_BUCKETS}]", num_buckets=size)
        check_seed(self, seed=seed)
        self.num_buckets, self.seed = num_buckets, seed

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, "HashBucket")
        return [cats.make_id_field(item, self._size(item.name) + FIRST) for item in fields]

    def _size(self, name: str) -> int:
        size: int = cats.get_given(self.num_buckets, name, "HashBucket(num_buckets=...)")
        return size

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        made = {}
        for name, column in columns.items():
            if column.dictionary is not None:
                bits = splitmix64(self.seed, hash_strings(column.dictionary))
                table = np.append(assign_buckets(bits, self._size(name)) + FIRST, MISSING).astype(np.int32)
                ids = gather(table, column.data, backend)
            else:
                ids = backend.xp.empty(len(column), dtype="int32")
                for rows in row_blocks(len(column), backend):
                    block = column.take(rows)
                    ids[rows] = assign_buckets(hash_column(block, self.seed, backend), self._size(name)) + FIRST
                    if block.valid is not None:
                        ids[rows][~block.valid] = MISSING
            made[name] = Column("int32", ids)
        return made


class HashedCross(StatelessStep):
    """Feature cross by hashing: int32 bucket ids of the joint value of two or more categorical columns.

    The output is called `a_x_b`, after its columns in their order. Order counts: `("JFK", "LGA")` and `("LGA", "JFK")`
    are two routes. Id 0 is a row in which a value is missing, 1 never, 2 and up the buckets; the hash and its `seed`
    are `HashBucket`'s.

    Raises:
        BadConfig: fewer than two columns.

    Memory: transform allocates n int32 on the device, and blocks of hashes; distinct strings are hashed on the host.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"origin": ["JFK", "LGA", None], "dest": ["LGA", "JFK", "JFK"]})
        >>> HashedCross(1000).fit_transform(frame)["origin_x_dest"].tolist()
        [645, 863, 0]
    """

    def __init__(self, num_buckets: int, *, seed: int = 0) -> None:
        check_integer(self, f"[1, {cats.MOST_BUCKETS}]", num_buckets=num_buckets)
        check_seed(self, seed=seed)
        self.num_buckets, self.seed = num_buckets, seed

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        cats.check_categories(fields, "HashedCross")
        if len(fields) < 2:
            names, expected, remedy = [item.name for item in fields], "two columns or more", "HashBucket for one column"
            raise BadConfig("HashedCross", "there is nothing to cross", got=names, expected=expected, remedy=remedy)
        made = Field.derived(self.output_names([item.name for item in fields])[0], "int32", fields, "HashedCross")
        return [cats.make_id_field(made, self.num_buckets + FIRST)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return ["_x_".join(names)]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp, size = backend.xp, num_rows(columns)
        # Each place mixes what the places before it left, so that order counts, equal values do not cancel out, and two
        # values of one column that share a bucket with one value of another do not share it with all of them.
        seeds = splitmix64(self.seed, np.arange(len(columns))).tolist()
        texts = [column.dictionary for column in columns.values()]
        bits_of = [None if text is None else splitmix64(0, hash_strings(text)) for text in texts]
        known = [None if bits is None else backend.to_device(np.append(bits, np.uint64(0))) for bits in bits_of]
        ids = xp.empty(size, dtype="int32")
        for rows in row_blocks(size, backend):
            bits, missing = xp.uint64(0), None
            for column, seed, table in zip(columns.values(), seeds, known, strict=True):
                block = column.take(rows)
                own = hash_column(block, 0, backend) if table is None else table[block.data]
                bits = splitmix64(seed, bits ^ own)
                absent = block.missing(xp)
                missing = absent if missing is None else missing if absent is None else missing | absent
            found = assign_buckets(bits, self.num_buckets) + FIRST
            ids[rows] = found if missing is None else xp.where(missing, MISSING, found)
        return {self.output_names(list(columns))[0]: Column("int32", ids)}


# Each is a column.
_MOST_FEATURES = 1 << 20
# Distinct texts taken apart at a time: their n-grams are Python strings while that lasts.
_CHUNK = 1 << 14


class HashedNgrams(StatelessStep):
    """Hashed n-grams: text as float32 columns that count its n-grams, each in the column of its hash.

    scikit-learn's `HashingVectorizer` with a dimension small enough to be dense: n-grams, counts, signs and norms are
    the same, the hash is `HashBucket`'s. Columns are called `<name>_ngram0`, `<name>_ngram1`, ... A missing text is 0
    in all of them, as an empty one is.

    Source: Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009.

    Args:
        n_features: columns for each column of text.
        ngram_range: the shortest and the longest n-gram, in words or characters.
        analyzer: n-grams of `"word"`s (two or more letters, digits or underscores), of `"char"`acters, or of
            characters within words, which get a blank on both sides (`"char_wb"`).
        lowercase: whether texts are made lower case before.
        alternate_sign: whether the hash also says if an n-gram counts 1 or -1: those that share a column cancel out.
        norm: `"l2"` or `"l1"` for rows of length 1, or None for plain counts.

    Raises:
        SchemaMismatch: a column holds no text.

    Memory: n x n_features float32 on the device; on the host 24 bytes per pair of distinct text and n-gram.

    Example:
        >>> import pandas as pd
        >>> step = HashedNgrams(n_features=4, ngram_range=(3, 3), analyzer="char", alternate_sign=False, norm=None)
        >>> step.fit_transform(pd.DataFrame({"tailnum": ["N14228", None]})).to_numpy().tolist()
        [[1.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        n_features: int = 32,
        *,
        ngram_range: tuple[int, int] = (1, 1),
        analyzer: str = "word",
        lowercase: bool = True,
        alternate_sign: bool = True,
        norm: str | None = "l2",
    ) -> None:
        check_integer(self, f"[1, {_MOST_FEATURES}]", n_features=n_features)
        sizes = ngram_range if is_sequence(ngram_range) and len(ngram_range) == 2 else (0, 0)
        if not all(is_integer(size, 1) for size in sizes) or sizes[0] > sizes[1]:
            raise refuse_argument(self, "ngram_range", ngram_range, "two integers from 1 up, the second no smaller")
        check_choice(self, ("word", "char", "char_wb"), analyzer=analyzer)
        check_bool(self, lowercase=lowercase, alternate_sign=alternate_sign)
        check_choice(self, ("l1", "l2"), None, norm=norm)
        self.n_features, self.ngram_range, self.analyzer = n_features, ngram_range, analyzer
        self.lowercase, self.alternate_sign, self.norm = lowercase, alternate_sign, norm

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        for item in fields:
            if item.dtype != "string":
                where, expected = f"HashedNgrams, column {item.name!r}", "strings"
                remedy = f"Cast({{{item.name!r}: 'string'}}), or HashBucket for numbers"
                raise SchemaMismatch(where, "not a text", got=item.dtype, expected=expected, remedy=remedy)
        return [make_number_field(item, name) for item in fields for name in self.output_names([item.name])]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [f"{name}_ngram{place}" for name in names for place in range(self.n_features)]

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        made = {}
        for name, column in columns.items():
            assert column.dictionary is not None
            texts, places, values = self._counted(column.dictionary)
            ends = np.searchsorted(places, np.arange(self.n_features + 1))
            for place, output in enumerate(self.output_names([name])):
                here = slice(ends[place], ends[place + 1])
                table = np.zeros(len(column.dictionary) + 1, dtype=np.float32)
                table[texts[here]] = values[here]
                made[output] = Column("float32", gather(table, column.data, backend))
        return made

    def _counted(self, dictionary: Any) -> tuple[Any, Any, Any]:
        """Return position of the text, column and value of each pair that is not 0, ordered by column."""
        found = [self._chunk(dictionary, start) for start in range(0, len(dictionary), _CHUNK)]
        if not found:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        texts, places, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(places, kind="stable")
        return texts[order], places[order], values[order]

    def _chunk(self, dictionary: Any, start: int) -> tuple[Any, Any, Any]:
        analyze = make_analyzer(self.analyzer, self.ngram_range, lowercase=self.lowercase)
        grams = [analyze(text) for text in dictionary.slice(start, _CHUNK).to_pylist()]
        texts = np.repeat(np.arange(len(grams)), [len(some) for some in grams])
        encoded = strings([gram for some in grams for gram in some]).dictionary_encode()
        bits = splitmix64(0, hash_strings(encoded.dictionary))[encoded.indices.to_numpy()]
        places = (bits % np.uint64(self.n_features)).astype(np.int64)
        signs = 1.0 - 2.0 * (bits >> np.uint64(63)).astype(np.float64) if self.alternate_sign else np.ones(len(bits))
        cells, cell_of = np.unique(texts * self.n_features + places, return_inverse=True)
        values: Any = np.bincount(cell_of, weights=signs, minlength=len(cells))
        texts, places = np.divmod(cells, self.n_features)
        if self.norm is not None:
            power = 1 if self.norm == "l1" else 2
            lengths = np.bincount(texts, weights=np.abs(values) ** power) ** (1 / power)
            values = values / np.where(lengths == 0, 1.0, lengths)[texts]
        return texts + start, places, values
