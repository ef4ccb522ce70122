"""Names of pandas' and Polars' frames, and what a Dataset has in their place."""

from __future__ import annotations

from collections.abc import Iterable

from gpupipe.errors import AttributeNotFound, nearest

_STEP = "gp.Pipeline([T.{}]).fit(data).transform(data)"
_VALUES = "data.to_pandas().{}, which holds all rows"
_ELSEWHERE = {
    "data.group_by('x').agg(rows=('x', 'size'))": "value_counts",
    "data.group_by('x')": "groupby resample",
    "data.sort('x')": "sort_values sort_index order_by",
    "data.join(other, on='x')": "merge",
    "gp.concat([data, other])": "append union vstack",
    "data.deduplicate('x')": "drop_duplicates unique distinct",
    "data.filter('x > 0')": "where loc iloc slice",
    "data.filter('notnull(x)')": "dropna drop_nulls",
    "data.describe()": "info corr nunique isna isnull mean std min max quantile skew",
    "data.schema": "dtypes",
    "len(data)": "size height num_rows count",
    "data.select(['x'])": "get items",
    "data.assign(y='x + 1')": "with_columns withColumn with_column eval mutate",
    _STEP.format("Drop('x')"): "drop",
    _STEP.format("Rename({'x': 'y'})"): "rename",
    _STEP.format("Cast({'x': 'float64'})"): "astype cast",
    "data.assign(x='coalesce(x, 0)')": "fillna fill_null",
    _STEP.format("Map(fn, reads=['x'], adds=['y'])"): "apply map applymap map_partitions map_batches pipe",
    "data.write_parquet('folder')": "to_parquet sink_parquet save",
    "data.to_pandas().to_csv('x.csv')": "to_csv write_csv sink_csv",
    "data.compute()": "collect load persist toPandas",
    "data.to_polars().collect().to_arrow()": "to_arrow arrow to_table",
}


def refuse_attribute(name: str, attributes: Iterable[str]) -> AttributeNotFound:
    """Build the error for an attribute that a Dataset lacks: other libraries' name for one, or a spelling near one.

    Example:
        >>> print(refuse_attribute("value_counts", ["sort"]).remedy)
        data.group_by('x').agg(rows=('x', 'size'))
    """
    names = [each for each in attributes if not each.startswith("_")]
    remedy = next((method for method, foreign_names in _ELSEWHERE.items() if name in foreign_names.split()), None)
    near = None if remedy else nearest(name, names)
    remedy = remedy or (_VALUES.format(name) if near is None else f"data.{near}")
    where = f"Dataset.{name}"
    return AttributeNotFound(where, "a Dataset has no such name", expected=f"one of {', '.join(names)}", remedy=remedy)
