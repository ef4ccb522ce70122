"""The jobs as a user of gpupipe writes them: a dataset over a frame in memory, the result as frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from gpupipe.backend import select
from operator_jobs import settings as s

__all__ = ["JOBS", "MORE", "columns", "load"]


@dataclass(frozen=True)
class Data:
    """The table in memory, and two lookup tables."""

    flights: gp.Dataset
    planes: pd.DataFrame
    weather: pd.DataFrame
    backend: str = "cpu"


def load(folder: Path, rows: int | None, backend: str = "cpu") -> Data:
    """The first rows, or all, with strings as codes: what a dataset in memory, the device's on a GPU, holds."""
    select(backend)
    file = folder / "flights.parquet"
    if backend == "cpu":
        flights = pd.read_parquet(file, columns=s.COLUMNS)[:rows].copy()
    else:
        lazy = gp.read_parquet(file, columns=s.COLUMNS, backend=backend)
        flights = lazy.compute() if rows is None else lazy.head(rows)
    planes, weather = (pd.read_parquet(folder / f"{name}.parquet") for name in ("planes", "weather"))
    return Data(gp.from_frame(flights, backend=backend), planes[s.PLANES], weather[s.WEATHER], backend)


def columns(frames: Sequence[pd.DataFrame]) -> Iterator[Any]:
    """The columns of a result, one after the other."""
    for name in frames[0].columns:
        yield pd.concat([frame[name] for frame in frames], ignore_index=True)


def _transformed(data: Data, steps: Sequence[T.Transform], features: gp.Features | None) -> list[pd.DataFrame]:
    pipeline = gp.Pipeline(steps, features, backend=data.backend).fit(data.flights)
    return list(pipeline.transform(data.flights))


def _learned(names: Sequence[str], make: Callable[[], Any], target: str | None = None) -> Callable[[Data], Any]:
    def job(data: Data) -> list[pd.DataFrame]:
        made = _transformed(data, [], gp.Features((names, make()), target=target))
        return made if target is None else [frame[list(names)] for frame in made]

    return job


def _stateless(make: Callable[[], T.Transform], wanted: Sequence[str]) -> Callable[[Data], Any]:
    def job(data: Data) -> list[pd.DataFrame]:
        return _transformed(data, [make(), T.Select(wanted)], None)

    return job


def _joined(data: Data) -> list[pd.DataFrame]:
    joins = [T.Join(data.planes, on="tailnum"), T.Join(data.weather, on=["origin", "time_hour"])]
    return _transformed(data, [*joins, T.Select(s.JOINED)], None)


def _joined_as_of(data: Data) -> list[pd.DataFrame]:
    weather = data.weather.rename(columns={"time_hour": s.TIME})
    return _transformed(data, [T.JoinAsOf(weather, on=s.TIME, by="origin"), T.Select(s.JOINED_AS_OF)], None)


def _aggregated(*keys: str) -> Callable[[Data], Any]:
    def job(data: Data) -> list[pd.DataFrame]:
        asked = {f"{stat}_{name}": (name, stat) for name in ("arr_delay", "fare") for stat in s.STATS}
        return [data.flights.group_by(keys).agg(**asked).compute()]

    return job


JOBS: dict[str, Callable[[Data], Any]] = {
    "StandardScaler": _learned(s.NUMBERS, pre.StandardScaler),
    "MinMaxScaler": _learned(s.NUMBERS, pre.MinMaxScaler),
    "RobustScaler": _learned(s.NUMBERS, pre.RobustScaler),
    "SimpleImputer, mean": _learned(s.NUMBERS, pre.SimpleImputer),
    "SimpleImputer, median": _learned(s.NUMBERS, lambda: pre.SimpleImputer(strategy="median")),
    "Clip": _stateless(lambda: T.Clip(s.NUMBERS, *s.CLIP), s.NUMBERS),
    "Log1p": _stateless(lambda: T.Log1p(s.WHOLE), s.WHOLE),
    "KBinsDiscretizer": _learned(s.WHOLE, lambda: pre.KBinsDiscretizer(s.NUM_BINS)),
    "QuantileTransformer": _learned(s.NUMBERS, lambda: pre.QuantileTransformer(n_quantiles=s.NUM_QUANTILES)),
    "PowerTransformer": _learned(s.NUMBERS, pre.PowerTransformer),
    "Categorify": _learned(s.TEXTS, lambda: pre.Categorify(min_frequency=s.MIN_FREQUENCY)),
    "OneHotEncoder": _learned(s.FEW, pre.OneHotEncoder),
    "OrdinalEncoder": _learned(s.COMPLETE_TEXTS, pre.OrdinalEncoder),
    "CountEncoder": _learned(s.TEXTS, pre.CountEncoder),
    "TargetEncoder": _learned(s.TEXTS, lambda: pre.TargetEncoder(smooth=s.SMOOTH), s.TARGET),
    "HashBucket": _learned(s.TEXTS, lambda: pre.HashBucket(s.NUM_BUCKETS)),
    "Join, two tables": _joined,
    "JoinAsOf": _joined_as_of,
    "GroupStats": _learned(["dest", *s.GROUPED], lambda: pre.GroupStats("dest", s.STATS, handle_unknown="missing")),
    "group_by(dest).agg": _aggregated("dest"),
    "group_by(origin, carrier).agg": _aggregated("origin", "carrier"),
    "DateParts": _stateless(lambda: T.DateParts(s.TIME, s.PARTS), [f"{s.TIME}_{part}" for part in s.PARTS]),
    "lower, len, contains, extract": _stateless(
        lambda: T.Derive(
            lower="lower(flightno)",
            length="len(customer)",
            has="contains(flightno, '44')",
            airline=f"extract(flightno, '{s.FLIGHT}')",
        ),
        ["lower", "length", "has", "airline"],
    ),
    "Lag": _stateless(lambda: T.Lag("dep_delay", by="tailnum", order_by=s.TIME), ["dep_delay_lag_1_by_tailnum"]),
    "Rolling": _stateless(
        lambda: T.Rolling("dep_delay", s.WINDOW, "mean", by="tailnum", order_by=s.TIME),
        [f"dep_delay_rolling_mean_{s.WINDOW}_by_tailnum"],
    ),
    "PCA": _learned(s.PCA_COLUMNS, lambda: pre.PCA(s.NUM_COMPONENTS, solver="covariance")),
    "KMeans": _learned(s.WHOLE, lambda: pre.KMeans(s.NUM_CLUSTERS)),
}
# Those that the other engines are not asked for: timed on a GPU, beside its copy bandwidth.
MORE: dict[str, Callable[[Data], Any]] = {
    "Filter": _stateless(lambda: T.Filter("distance >= 500"), s.NUMBERS),
    "DropMissing": _stateless(lambda: T.DropMissing("dep_delay"), s.NUMBERS),
    "Sample": _stateless(lambda: T.Sample(0.5, seed=1), s.NUMBERS),
    "Cast": _stateless(lambda: T.Cast(dict.fromkeys(s.NUMBERS, "float32")), s.NUMBERS),
    "Derive": _stateless(lambda: T.Derive(late="dep_delay > 15", speed="distance / air_time"), ["late", "speed"]),
    "Replace": _stateless(lambda: T.Replace({"origin": {"JFK": "NYC"}}), ["origin"]),
    "Difference": _stateless(
        lambda: T.Difference("dep_delay", by="tailnum", order_by=s.TIME), ["dep_delay_diff_1_by_tailnum"]
    ),
    "Expanding": _stateless(
        lambda: T.Expanding("dep_delay", "sum", by="tailnum", order_by=s.TIME), ["dep_delay_expanding_sum_by_tailnum"]
    ),
    "CumulativeCount": _stateless(lambda: T.CumulativeCount("tailnum", order_by=s.TIME), ["cumcount_by_tailnum"]),
    "MaxAbsScaler": _learned(s.NUMBERS, pre.MaxAbsScaler),
    "Normalizer": _learned(s.WHOLE, pre.Normalizer),
    "Bucketize": _learned(s.NUMBERS, lambda: pre.Bucketize(edges=[0.0, 15.0, 60.0])),
    "Downcast": _learned(s.WHOLE, pre.Downcast),
    "GroupImputer": _learned(["dest", *s.GROUPED], lambda: pre.GroupImputer(by="dest")),
    "HashedCross": _learned(s.FEW, lambda: pre.HashedCross(s.NUM_BUCKETS)),
    "HashedNgrams": _learned(["customer"], pre.HashedNgrams),
    "DatetimeEncoder": _learned([s.TIME], pre.DatetimeEncoder),
    "VarianceThreshold": _learned(s.NUMBERS, pre.VarianceThreshold),
    "CorrelationThreshold": _learned(s.PCA_COLUMNS, pre.CorrelationThreshold),
    "TruncatedSVD": _learned(s.PCA_COLUMNS, lambda: pre.TruncatedSVD(n_components=s.NUM_COMPONENTS)),
    "IncrementalPCA": _learned(s.PCA_COLUMNS, lambda: pre.IncrementalPCA(n_components=s.NUM_COMPONENTS)),
}
