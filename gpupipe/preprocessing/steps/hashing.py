"""Feature hashing: categories as buckets of a hash, without fit and vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpupipe.backend import Backend, Column
from gpupipe.backend.kernels import hash_column, hash_strings, splitmix64
from gpupipe.errors import BadConfig
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.categories import FIRST, MISSING, assign_buckets
from gpupipe.preprocessing.learned_step import Columns, StatelessStep, by_element
from gpupipe.preprocessing.numeric import gather, num_rows, row_blocks
from gpupipe.schema import Field
from gpupipe.support.validation import check_integer, check_seed


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
    are two routes. Id 0 is a row in which a value is missing, 1 never, 2 and up the buckets; the hash is as stable as
    `HashBucket`'s.

    Args:
        num_buckets: of the output.
        seed: of the hash; another one has other rows share buckets.

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
