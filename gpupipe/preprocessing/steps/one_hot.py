"""One-hot encoding of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from gpupipe.backend import Array, Backend, Column
from gpupipe.backend.dictionaries import Dictionary, find_positions
from gpupipe.errors import BadConfig
from gpupipe.preprocessing import categories as cats
from gpupipe.preprocessing.learned_step import Columns, Invertible
from gpupipe.preprocessing.numeric import num_rows, row_blocks
from gpupipe.preprocessing.summaries.counts import CategoryCounts
from gpupipe.schema import Field
from gpupipe.support.validation import check_choice, is_sequence, refuse_argument

_WHERE = "OneHotEncoder"
_NOWHERE, _REFUSED = -1, -2


class OneHotEncoder(cats.CategoryStep, Invertible):
    """One-hot encoding of strings, integers and booleans; scikit-learn's, always dense.

    The columns are named as scikit-learn names them: `<name>_<category>`, categories in ascending order, then
    `<name>_nan` where a missing value was there in `fit`, then `<name>_infrequent_sklearn` for all that are too rare. A
    missing value is never unknown: where `fit` saw none it is 0 in all columns (scikit-learn treats it as unknown).

    Args:
        categories: `"auto"`, or those there are, as a list per column or by column name; None among them is missing.
        drop: leave a column out: None, `"first"`, `"if_binary"` (of two), or a category per column (or by name).
        dtype: `"uint8"` or `"float32"`.
        handle_unknown: a value that is no category is an `"error"`, is 0 in all columns (`"ignore"`), or is one of
            the rare ones (`"infrequent_if_exist"`; 0 in all columns where there are none).
        min_frequency: categories of fewer rows, or of a smaller fraction of them, are rare.
        max_categories: at most this many columns for each column, that of the rare ones included.

    Attributes:
        categories_: for each column, by name, its categories without missing, as an Arrow array on the host.
        infrequent_: for each column, by name, which of them are rare, and last whether missing is (if it is there).
        drop_idx_: for each column, by name, the place among its outputs that is left out, or -1.

    Raises:
        ColumnNotFound: categories for a column that is not there.
        BadConfig: categories that do not go with the columns, or one to drop that has no column.
        BadData: an unknown value, where that is an error; two outputs of one name.
        SchemaMismatch: a column holds text where numbers were learned, or the other way round.

    Memory: distinct values and counts go to the host; transform allocates n bytes (n float32) per output on the device.

    Example:
        >>> import pandas as pd
        >>> step = OneHotEncoder(handle_unknown="ignore").fit(pd.DataFrame({"origin": ["JFK", "LGA", "JFK"]}))
        >>> step.transform(pd.DataFrame({"origin": ["LGA", "EWR"]})).to_dict("list")
        {'origin_JFK': [0, 0], 'origin_LGA': [1, 0]}
    """

    infrequent_: dict[str, Any]
    drop_idx_: dict[str, int]

    learned_by_name = (*cats.CategoryStep.learned_by_name, "infrequent_", "drop_idx_")

    def __init__(
        self,
        *,
        categories: str | Mapping[str, Sequence[Any]] | Sequence[Sequence[Any]] = "auto",
        drop: str | Mapping[str, Any] | Sequence[Any] | None = None,
        dtype: str = "uint8",
        handle_unknown: str = "error",
        min_frequency: float | None = None,
        max_categories: int | None = None,
    ) -> None:
        cats.check_listed(self, "auto", categories=categories)
        if isinstance(drop, str):
            check_choice(self, ("first", "if_binary"), None, drop=drop)
        elif not (drop is None or isinstance(drop, Mapping) or is_sequence(drop)):
            raise refuse_argument(self, "drop", drop, "'first', 'if_binary', None, or a category per column")
        check_choice(self, ("uint8", "float32"), dtype=dtype)
        check_choice(self, ("error", "ignore", "infrequent_if_exist"), handle_unknown=handle_unknown)
        cats.check_limits(self, min_frequency, max_categories)
        self.categories, self.drop, self.dtype = categories, drop, dtype
        self.handle_unknown = handle_unknown
        self.min_frequency, self.max_categories = min_frequency, max_categories

    def output_fields(self, fields: Sequence[Field]) -> list[Field]:
        """Return the output fields; before `fit` one field per column stands for all its outputs."""
        cats.check_categories(fields, _WHERE)
        dtypes = {item.name: item.dtype for item in fields}
        if not self.is_fitted:
            cats.resolve_categories(self, dtypes)
            self._dropped(dtypes)
        return [cats.make_number_field(item, name, self.dtype) for item in fields for name in self._outputs(item.name)]

    def output_names(self, names: Sequence[str]) -> list[str]:
        return [output for name in names for output in self._outputs(name)]

    def _outputs(self, name: str) -> list[str]:
        if not self.is_fitted or name not in self.infrequent_:
            return [name]
        is_rare, values = self.infrequent_[name], self.categories_[name].to_pylist()
        labels = [bool(value) if self.dtypes_in_[name] == "bool" else value for value in values]
        labels += ["nan"] * (len(is_rare) - len(labels))
        kept = [str(label) for label, gone in zip(labels, is_rare, strict=True) if not gone]
        kept += ["infrequent_sklearn"] * bool(is_rare.any())
        if self.drop_idx_[name] >= 0:
            del kept[self.drop_idx_[name]]
        return [f"{name}_{label}" for label in kept]

    def _dropped(self, dtypes: Mapping[str, str]) -> dict[str, tuple[Dictionary, bool]]:
        """Return the category to leave out, by column name: a value, or missing."""
        if self.drop is None or isinstance(self.drop, str):
            return {}
        where = f"{_WHERE}(drop=)"
        single = cats.match_lists(self.drop, list(dtypes), where)
        return cats.resolve_lists({name: [value] for name, value in single.items()}, dtypes, where)

    def finalize(self, summary: CategoryCounts) -> Self:
        super().finalize(summary)
        names = self.get_feature_names_out()
        del self.names_in_  # not fitted where that is refused
        cats.check_distinct(names, _WHERE)
        self.names_in_ = list(summary.names)
        return self

    def _learn(self, name: str, found: cats.Learned) -> None:
        counts = found.counts if found.has_missing else found.counts[:-1]
        is_rare = cats.rare(counts, found.num_rows, self.min_frequency, self.max_categories)
        groups, num_groups = cats.group_rare(is_rare)
        place = -1
        if self.drop == "first" or (self.drop == "if_binary" and num_groups == 2):
            place = 0 if num_groups else -1
        elif name in (unwanted := self._dropped(self.dtypes_in_)):
            values, is_missing = unwanted[name]
            entry = len(found.values) if is_missing else int(find_positions(values, found.values)[0])
            if not 0 <= entry < len(groups) or is_rare[entry]:
                where, got = f"{_WHERE}(drop=), column {name!r}", None if is_missing else values[0].as_py()
                problem = "it is too rare to have a column" if 0 <= entry < len(groups) else "it is no category"
                expected = "a category that has a column of its own"
                raise BadConfig(where, problem, got=got, expected=expected, remedy="drop='first'")
            place = int(groups[entry])
        self.infrequent_[name], self.drop_idx_[name] = is_rare, place

    def transform_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        xp = backend.xp
        made: dict[str, Column] = {}
        refused: dict[str, Array] = {}
        for name, column in columns.items():
            outputs = [xp.empty(len(column), dtype=self.dtype) for _ in self._outputs(name)]
            places = self._lookup(name, column).gathered(column, self._table(name), backend)
            for rows in row_blocks(len(column), backend):
                for place, out in enumerate(outputs):
                    out[rows] = places[rows] == place
            made |= {n: Column(self.dtype, out) for n, out in zip(self._outputs(name), outputs, strict=True)}
            if self.handle_unknown == "error":
                refused[name] = (places == _REFUSED).any()
        self._refuse_flagged(refused, columns, backend)
        return made

    def _table(self, name: str) -> Any:
        """Return the output that is 1 for missing, unknown and each category; none for some."""
        is_rare, dropped = self.infrequent_[name], self.drop_idx_[name]
        groups, num_groups = cats.group_rare(is_rare)
        unknown = _REFUSED if self.handle_unknown == "error" else _NOWHERE
        size = len(self.categories_[name])
        missing = groups[size] if len(groups) > size else _NOWHERE
        if self.handle_unknown == "infrequent_if_exist" and is_rare.any():
            unknown = num_groups - 1
        table = np.array([missing, unknown, *groups[:size]])
        if dropped >= 0:
            table = np.where(table == dropped, _NOWHERE, table - (table > dropped))
        return table.astype(np.promote_types(np.min_scalar_type(-num_groups - 2), np.int8))

    def inverse_columns(self, columns: Columns, backend: Backend) -> dict[str, Column]:
        """Return the category with the largest column; missing for a rare one, and for all 0 without `drop`."""
        xp, made = backend.xp, {}
        size = num_rows(columns) if columns else 0
        for name in self.names_in_:
            outputs, dropped = self._outputs(name), self.drop_idx_[name]
            entries = np.flatnonzero(~self.infrequent_[name])
            back = np.append(entries, [-1] * bool(self.infrequent_[name].any())).astype(np.int32)
            none = back[dropped] if dropped >= 0 else -1
            table = backend.to_device(np.append(np.delete(back, dropped) if dropped >= 0 else back, none))
            places = xp.full(size, len(outputs), dtype="int32")
            for rows in row_blocks(size, backend, len(outputs) or 1):
                if outputs:
                    flags = xp.stack([columns[output].data[rows] for output in outputs])
                    places[rows] = xp.where(flags.max(axis=0) > 0, flags.argmax(axis=0), len(outputs))
            made[name] = cats.take_values(table[places], self.categories_[name], self.dtypes_in_[name], backend)
        return made
