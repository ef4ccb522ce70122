"""Each operator by itself on flights that lie on the device: rows a second, and its share of the copy bandwidth.

The jobs are those of `benchmarks/operators.py`, and those of gpupipe that other engines are not asked for. The share
counts each byte of the columns that are read and of the result once, however often a job looks at them: what one pass
of a perfect kernel would move.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from big_flights import make, make_lookups
from operator_jobs import settings as s
from operator_jobs.with_gpupipe import JOBS, MORE, Data, load
from stage import Stage

from gpupipe.io.planning.partitions import row_bytes

ROWS = 10_000_000
ALL = JOBS | MORE
COPIES = 30  # of the year of flights, which make so many rows
DATA = Path(__file__).parents[3] / "data"
READS: dict[str, Sequence[str]] = {
    **dict.fromkeys(["Log1p", "KBinsDiscretizer", "KMeans", "Normalizer", "Downcast"], s.WHOLE),
    **dict.fromkeys(["Categorify", "CountEncoder", "HashBucket"], s.TEXTS),
    **dict.fromkeys(["OneHotEncoder", "HashedCross"], s.FEW),
    "OrdinalEncoder": s.COMPLETE_TEXTS,
    "TargetEncoder": [*s.TEXTS, s.TARGET],
    "Join, two tables": ["tailnum", "origin", "time_hour"],
    "JoinAsOf": ["origin", s.TIME],
    **dict.fromkeys(["GroupStats", "GroupImputer"], ("dest", *s.GROUPED)),
    "group_by(dest).agg": ["dest", *s.GROUPED],
    "group_by(origin, carrier).agg": ["origin", "carrier", *s.GROUPED],
    **dict.fromkeys(["DateParts", "DatetimeEncoder"], (s.TIME,)),
    "lower, len, contains, extract": ["flightno", "customer"],
    **dict.fromkeys(["Lag", "Difference", "Rolling", "Expanding"], ("dep_delay", "tailnum", s.TIME)),
    "CumulativeCount": ["tailnum", s.TIME],
    **dict.fromkeys(["PCA", "IncrementalPCA", "TruncatedSVD", "CorrelationThreshold"], s.PCA_COLUMNS),
    "Derive": ["dep_delay", "distance", "air_time"],
    "Replace": ["origin"],
    "HashedNgrams": ["customer"],
}
"""The columns of a job, where they are not `s.NUMBERS`."""


def measure(stage: Stage) -> None:
    data = flights(stage)
    rows = len(data.flights)
    for name in ALL:
        if stage.room(name, 3):
            stage.tell(name, stage.tried(lambda name=name: of_job(stage, data, name, rows)) | {"rows": rows})


def of_job(stage: Stage, data: Data, name: str, rows: int) -> dict[str, Any]:
    """One operator."""
    made: list[Any] = []

    def run() -> None:
        made[:] = ALL[name](data)

    seconds = stage.seconds(name, run, 3)
    read = rows * row_bytes(data.flights.select(list(READS.get(name, s.NUMBERS))).schema)
    written = sum(int(frame.memory_usage(index=False).sum()) for frame in made)
    return {
        "million_rows_per_s": rows / seconds["median"] / 1e6,
        "bytes": read + written,
        "share_of_copy": stage.share_of_copy(read + written, seconds["median"]),
        "seconds": seconds,
    }


def flights(stage: Stage) -> Data:
    """Ten million, made of the year of flights where they are not there; a dry run has the first of the year."""
    folder = DATA / "big" if stage.gpu else stage.scratch / "flights"
    if not (folder / "flights.parquet").exists():
        make(folder / "flights.parquet", COPIES if stage.gpu else 1)
    make_lookups(folder)
    return load(folder, stage.rows(ROWS), stage.backend.name)
