"""The jobs written by hand in Polars: a frame in memory, one lazy query to learn and one to apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from polars import col

from operator_jobs import settings as s

__all__ = ["JOBS", "columns", "load"]


@dataclass(frozen=True)
class Data:
    """The table in memory, and two lookup tables."""

    flights: pl.DataFrame
    planes: pl.DataFrame
    weather: pl.DataFrame


def load(folder: Path, rows: int | None) -> Data:
    """The first rows, or all, as they are read: strings are strings."""
    flights = pl.read_parquet(folder / "flights.parquet", columns=s.COLUMNS, n_rows=rows)
    planes, weather = (pl.read_parquet(folder / f"{name}.parquet") for name in ("planes", "weather"))
    return Data(flights, planes.select(s.PLANES), weather.select(s.WEATHER))


def columns(frame: pl.DataFrame) -> Iterator[Any]:
    """The columns of a result, one after the other."""
    for series in frame.iter_columns():
        yield series.to_arrow()


Expressions = Iterable[pl.Expr]


def _found(data: Data, expressions: Expressions) -> dict[str, Any]:
    return data.flights.lazy().select(*expressions).collect().row(0, named=True)


def _made(data: Data, expressions: Expressions) -> pl.DataFrame:
    return data.flights.lazy().select(*expressions).collect()


def standard(data: Data) -> pl.DataFrame:
    found = _found(
        data,
        [
            *(col(c).mean().alias(f"{c}_mean") for c in s.NUMBERS),
            *(col(c).std(ddof=0).alias(f"{c}_std") for c in s.NUMBERS),
        ],
    )
    return _made(data, [((col(c) - found[f"{c}_mean"]) / found[f"{c}_std"]).cast(pl.Float32) for c in s.NUMBERS])


def min_max(data: Data) -> pl.DataFrame:
    low, high = (_found(data, made) for made in ([col(c).min() for c in s.NUMBERS], [col(c).max() for c in s.NUMBERS]))
    return _made(data, [((col(c) - low[c]) / (high[c] - low[c])).cast(pl.Float32) for c in s.NUMBERS])


def robust(data: Data) -> pl.DataFrame:
    low, middle, high = (
        _found(data, [col(c).quantile(share, "linear") for c in s.NUMBERS]) for share in (0.25, 0.5, 0.75)
    )
    return _made(data, [((col(c) - middle[c]) / (high[c] - low[c])).cast(pl.Float32) for c in s.NUMBERS])


def imputed_by_mean(data: Data) -> pl.DataFrame:
    return _made(data, [col(c).fill_null(col(c).mean()) for c in s.NUMBERS])


def imputed_by_median(data: Data) -> pl.DataFrame:
    return _made(data, [col(c).fill_null(col(c).median()) for c in s.NUMBERS])


def clipped(data: Data) -> pl.DataFrame:
    return _made(data, [col(c).clip(*s.CLIP) for c in s.NUMBERS])


def logarithms(data: Data) -> pl.DataFrame:
    return _made(data, [col(c).log1p() for c in s.WHOLE])


def binned(data: Data) -> pl.DataFrame:
    shares = [place / s.NUM_BINS for place in range(1, s.NUM_BINS)]
    found = {c: data.flights[c].sort() for c in s.WHOLE}
    edges = {c: [found[c].quantile(share, "linear") for share in shares] for c in s.WHOLE}
    place = {c: pl.lit(pl.Series(edges[c])).search_sorted(col(c), side="right") for c in s.WHOLE}
    return _made(data, [(place[c].cast(pl.Int32) + 2).alias(c) for c in s.WHOLE])


def by_quantiles(data: Data) -> pl.DataFrame:
    shares = [place / (s.NUM_QUANTILES - 1) for place in range(s.NUM_QUANTILES)]
    made = []
    for c in s.NUMBERS:
        ascending = data.flights[c].drop_nulls().sort()
        ranks = [share * (len(ascending) - 1) for share in shares]
        low = ascending.gather([int(rank) for rank in ranks])
        high = ascending.gather([min(int(rank) + 1, len(ascending) - 1) for rank in ranks])
        edges = low + (high - low) * pl.Series([rank % 1 for rank in ranks])
        # Values at an edge that many quantiles share get the middle of these.
        table = (
            pl.DataFrame({"edge": edges, "share": shares})
            .group_by("edge", maintain_order=True)
            .agg(first=col("share").min(), last=col("share").max())
        )
        edge, first, last = table["edge"], table["first"], table["last"]
        rise = ((first.shift(-1) - last) / (edge.shift(-1) - edge)).fill_null(0.0)
        place = (pl.lit(edge).search_sorted(col(c), side="right").cast(pl.Int64) - 1).clip(0)
        start = pl.lit(edge).gather(place)
        value = (
            pl.when(col(c) == start)
            .then(pl.lit((first + last) / 2).gather(place))
            .otherwise(pl.lit(last).gather(place) + (col(c) - start) * pl.lit(rise).gather(place))
        )
        made.append(pl.when(col(c).is_not_null()).then(value).cast(pl.Float32).alias(c))
    return _made(data, made)


def _tables(data: Data, names: Sequence[str], ask: Callable[[pl.LazyFrame, str], pl.LazyFrame]) -> list[pl.DataFrame]:
    return pl.collect_all([ask(data.flights.lazy(), c) for c in names])


def _looked_up(data: Data, tables: Sequence[pl.DataFrame], expressions: Expressions) -> pl.DataFrame:
    """Each table joined on its first column."""
    query = data.flights.lazy()
    for table in tables:
        query = query.join(table.lazy(), on=table.columns[0], how="left", maintain_order="left", nulls_equal=True)
    return query.select(*expressions).collect()


def categorified(data: Data) -> pl.DataFrame:
    tables = _tables(
        data,
        s.TEXTS,
        lambda query, c: (
            query.select(c)
            .drop_nulls()
            .group_by(c)
            .agg(pl.len())
            .filter(col("len") >= s.MIN_FREQUENCY)
            .sort("len", c, descending=[True, False])
            .select(c, pl.int_range(2, pl.len() + 2, dtype=pl.Int32).alias(f"{c}_id"))
        ),
    )
    return _looked_up(
        data,
        tables,
        [
            pl.when(col(c).is_null()).then(0).otherwise(col(f"{c}_id").fill_null(1)).cast(pl.Int32).alias(c)
            for c in s.TEXTS
        ],
    )


def one_hot(data: Data) -> pl.DataFrame:
    made: list[pl.Expr] = []
    for c in s.FEW:
        made += [(col(c) == value).cast(pl.UInt8).alias(f"{c}_{value}") for value in data.flights[c].unique().sort()]
    return _made(data, made)


def ordinal(data: Data) -> pl.DataFrame:
    kinds = {c: pl.Enum(data.flights[c].unique().sort()) for c in s.COMPLETE_TEXTS}
    return _made(data, [col(c).cast(kind).to_physical().cast(pl.Float32) for c, kind in kinds.items()])


def counted(data: Data) -> pl.DataFrame:
    tables = _tables(data, s.TEXTS, lambda query, c: query.group_by(c).agg(pl.len().cast(pl.Float32).alias(f"{c}_n")))
    return _looked_up(data, tables, [col(f"{c}_n") for c in s.TEXTS])


def target_means(data: Data) -> pl.DataFrame:
    mean = data.flights[s.TARGET].mean()
    target = col(s.TARGET)
    smooth = ((target.sum() + s.SMOOTH * mean) / (target.count() + s.SMOOTH)).cast(pl.Float32)
    tables = _tables(data, s.TEXTS, lambda query, c: query.group_by(c).agg(smooth.alias(f"{c}_mean")))
    return _looked_up(data, tables, [col(f"{c}_mean") for c in s.TEXTS])


def hashed(data: Data) -> pl.DataFrame:
    bucket = {c: (col(c).hash() % s.NUM_BUCKETS).cast(pl.Int32) + 2 for c in s.TEXTS}
    return _made(data, [pl.when(col(c).is_null()).then(0).otherwise(bucket[c]).alias(c) for c in s.TEXTS])


def joined(data: Data) -> pl.DataFrame:
    query = data.flights.lazy().join(data.planes.lazy(), on="tailnum", how="left", maintain_order="left")
    query = query.join(data.weather.lazy(), on=["origin", "time_hour"], how="left", maintain_order="left")
    return query.select(s.JOINED).collect()


def joined_as_of(data: Data) -> pl.DataFrame:
    weather = data.weather.lazy().rename({"time_hour": s.TIME}).sort(s.TIME)
    query = data.flights.lazy().select("origin", s.TIME).with_row_index("row").sort(s.TIME)
    query = query.join_asof(weather, on=s.TIME, by="origin", check_sortedness=False).sort("row")
    return query.select(s.JOINED_AS_OF).collect()


def _stats() -> list[pl.Expr]:
    return [getattr(col(c), stat)().alias(f"{stat}_{c}") for c in s.GROUPED for stat in s.STATS]


def group_stats(data: Data) -> pl.DataFrame:
    table = data.flights.lazy().group_by("dest").agg(*_stats())
    query = data.flights.lazy().join(table, on="dest", how="left", maintain_order="left")
    return query.select(f"{stat}_{c}" for c in s.GROUPED for stat in s.STATS).collect()


def aggregated(*keys: str) -> Callable[[Data], pl.DataFrame]:
    def job(data: Data) -> pl.DataFrame:
        return data.flights.lazy().group_by(*keys).agg(*_stats()).sort(keys).collect()

    return job


def dates(data: Data) -> pl.DataFrame:
    time = col(s.TIME).dt
    parts = {
        "year": time.year(),
        "month": time.month(),
        "dayofweek": time.weekday() - 1,
        "hour": time.hour(),
        "is_weekend": time.weekday() > 5,
    }
    return _made(data, [parts[name].alias(name) for name in s.PARTS])


def texts(data: Data) -> pl.DataFrame:
    text = col("flightno").str
    return _made(
        data,
        [
            text.to_lowercase().alias("lower"),
            col("customer").str.len_chars().alias("length"),
            text.contains("44", literal=True).alias("has"),
            text.extract(s.FLIGHT).alias("airline"),
        ],
    )


def _over_planes(value: pl.Expr) -> Callable[[Data], pl.DataFrame]:
    def job(data: Data) -> pl.DataFrame:
        found = value.over("tailnum", order_by=s.TIME)
        return _made(data, [pl.when(col("tailnum").is_not_null()).then(found)])

    return job


JOBS: dict[str, Callable[[Data], pl.DataFrame]] = {
    "StandardScaler": standard,
    "MinMaxScaler": min_max,
    "RobustScaler": robust,
    "SimpleImputer, mean": imputed_by_mean,
    "SimpleImputer, median": imputed_by_median,
    "Clip": clipped,
    "Log1p": logarithms,
    "KBinsDiscretizer": binned,
    "QuantileTransformer": by_quantiles,
    "Categorify": categorified,
    "OneHotEncoder": one_hot,
    "OrdinalEncoder": ordinal,
    "CountEncoder": counted,
    "TargetEncoder": target_means,
    "HashBucket": hashed,
    "Join, two tables": joined,
    "JoinAsOf": joined_as_of,
    "GroupStats": group_stats,
    "group_by(dest).agg": aggregated("dest"),
    "group_by(origin, carrier).agg": aggregated("origin", "carrier"),
    "DateParts": dates,
    "lower, len, contains, extract": texts,
    "Lag": _over_planes(col("dep_delay").shift(1)),
    "Rolling": _over_planes(col("dep_delay").rolling_mean(s.WINDOW)),
}
