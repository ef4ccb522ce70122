"""Each operator by itself on 10 million rows in memory: gpupipe, hand-written Polars, scikit-learn, side by side.

    python benchmarks/operators.py [--data data/big] [--rounds 3] [--only WORD ...]

Fit and transform of the same columns, which are in memory as each engine holds them after reading: strings as codes in
a gpupipe dataset, as strings in a Polars frame and a pandas frame. The result is frames in memory, float32 or int32
where the step gives these. Each engine is a process of its own that has loaded the table; they take turns, operator by
operator. What they make is compared, column by column: missing values, means and means weighted by the row's place.
scikit-learn works on the first million rows where all of them would take it more than 20 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import big_flights
from environment import spread, timed, write_result

OURS, POLARS, SKLEARN = "gpupipe", "Polars", "scikit-learn"
MODULES = {OURS: "with_gpupipe", POLARS: "with_polars", SKLEARN: "with_sklearn"}
FEW_ROWS = 1_000_000
# Where a round of all engines takes less, memory cleared or a neighbour's load shows: there are more rounds.
QUICK_S, QUICK_ROUNDS = 4.0, 9
AT_MOST_POLARS, TIMES_SKLEARN = 1.0, 3.0


@dataclass(frozen=True)
class Operator:
    """One line of the table.

    Args:
        kind: what it is for; there is a bar beside Polars for some.
        slow: whether scikit-learn gets the first million rows only.
        near: how far the columns' means may be apart, relative to 1 + their size.
        unchecked: the engines whose results are no numbers to compare: another hash, other centres.
    """

    kind: str
    slow: bool = False
    near: float = 1e-5
    unchecked: tuple[str, ...] = ()


BARRED = ("numeric", "encoding", "lookup", "group")
# Ours are quantiles of a histogram, with an error of 2^-10 or so where there are more than 65,536 distinct values.
BY_HISTOGRAM = 2e-3
OPERATORS = {
    "StandardScaler": Operator("numeric"),
    "MinMaxScaler": Operator("numeric"),
    "RobustScaler": Operator("numeric", near=BY_HISTOGRAM),
    "SimpleImputer, mean": Operator("numeric"),
    "SimpleImputer, median": Operator("numeric", slow=True, near=BY_HISTOGRAM),
    "Clip": Operator("numeric"),
    "Log1p": Operator("numeric"),
    "KBinsDiscretizer": Operator("numeric", near=BY_HISTOGRAM),
    "QuantileTransformer": Operator("numeric", slow=True, near=BY_HISTOGRAM),
    "PowerTransformer": Operator("numeric", slow=True, near=BY_HISTOGRAM),
    "Categorify": Operator("encoding"),
    "OneHotEncoder": Operator("encoding", slow=True),
    "OrdinalEncoder": Operator("encoding", slow=True),
    "CountEncoder": Operator("encoding"),
    "TargetEncoder": Operator("encoding", slow=True),
    "HashBucket": Operator("encoding", unchecked=(POLARS,)),
    "Join, two tables": Operator("lookup"),
    "JoinAsOf": Operator("lookup"),
    "GroupStats": Operator("group"),
    "group_by(dest).agg": Operator("group"),
    "group_by(origin, carrier).agg": Operator("group"),
    "DateParts": Operator("time"),
    "lower, len, contains, extract": Operator("text"),
    "Lag": Operator("window"),
    "Rolling": Operator("window"),
    "PCA": Operator("decomposition", unchecked=(SKLEARN,)),
    "KMeans": Operator("decomposition", slow=True, unchecked=(SKLEARN,)),
}


def serve(engine: str, folder: Path, rows: int | None) -> None:
    """Run the operators that are named on standard input, one a line; figures and a digest of each as one JSON line."""
    module = import_module(f"operator_jobs.{MODULES[engine]}")
    data = module.load(folder, rows)
    print(json.dumps(sorted(module.JOBS)), flush=True)
    for line in sys.stdin:
        name, _, wanted = line.strip().rpartition(" ")
        made: list[Any] = []
        figures = timed(lambda name=name, made=made: made.append(module.JOBS[name](data)))  # type: ignore[misc]
        columns = [digest(column) for column in module.columns(made[0])] if wanted == "digest" else []
        print(json.dumps({"figures": figures, "columns": columns}), flush=True)


def digest(column: Any) -> list[float]:
    """Missing values, the mean, and the mean weighted by the row's place, of numbers, booleans or texts."""
    import numpy as np
    import pyarrow as pa

    array = pa.array(column, from_pandas=True)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_floating(array.type):
        array = pa.array(array.to_numpy(zero_copy_only=False), from_pandas=True)  # NaN is missing, wherever it is from
    elif not pa.types.is_primitive(array.type):
        coded = array.dictionary_encode()
        hashes = np.array([zlib.crc32(value.encode()) / 2**32 for value in coded.dictionary.to_pylist()])
        array = pa.array(hashes).take(coded.indices)
    values = array.cast(pa.float64()).fill_null(0.0).to_numpy()
    places = np.arange(len(values)) % 1009 / 1009
    count = max(len(values) - array.null_count, 1)
    return [array.null_count, float(values.sum() / count), float((values @ places) / count)]


class Engine:
    """A process that has the table in memory and runs operators."""

    def __init__(self, name: str, folder: Path, rows: int | None) -> None:
        call = [sys.executable, __file__, "--data", str(folder), "--engine", name]
        call += [] if rows is None else ["--rows", str(rows)]
        self.process = subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.can: list[str] = self._answer()

    def run(self, operator: str, *, digested: bool = False) -> dict[str, Any]:
        """Figures, and a digest of each column where it is wanted."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{operator} {'digest' if digested else 'figures'}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = self._answer()
        return found

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.process.args} has ended: {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def engines(folder: Path) -> Iterator[dict[tuple[str, bool], Engine]]:
    """By engine, and whether it holds the first million rows only."""
    held: dict[tuple[str, bool], Engine] = {}
    try:
        for name, few in ((OURS, False), (POLARS, False), (SKLEARN, False), (OURS, True), (SKLEARN, True)):
            held[name, few] = Engine(name, folder, FEW_ROWS if few else None)
        yield held
    finally:
        for engine in held.values():
            engine.close()


def measure(folder: Path, rounds: int, names: Sequence[str], num_rows: int) -> dict[str, Any]:
    """CPU milliseconds per million rows of each operator by each engine, and whether they make the same."""
    figures: dict[str, Any] = {}
    apart: dict[str, dict[str, float]] = {}
    repeated: dict[str, int] = {}
    with engines(folder) as held:
        for name in names:
            operator = OPERATORS[name]
            few = {OURS: False, POLARS: False, SKLEARN: operator.slow}
            taking = [engine for engine in few if name in held[engine, few[engine]].can]
            first = {engine: held[engine, few[engine]].run(name, digested=True)["columns"] for engine in taking}
            apart[name] = {}
            for engine in taking:
                if engine != OURS and engine not in operator.unchecked:
                    ours = held[OURS, True].run(name, digested=True)["columns"] if few[engine] else first[OURS]
                    apart[name][engine] = distance(ours, first[engine])
                    if apart[name][engine] > operator.near:
                        print(f"{name}: {ours}\n{engine}: {first[engine]}", file=sys.stderr)
                        raise AssertionError(f"{name}: {engine} makes something else")
            runs: dict[str, list[float]] = {engine: [] for engine in taking}
            started = time.perf_counter()
            for engine in taking:  # to compare results took memory that a run finds otherwise afterwards
                held[engine, few[engine]].run(name)
            quick = time.perf_counter() - started < QUICK_S
            for _ in range(max(rounds, QUICK_ROUNDS) if quick else rounds):
                for engine in taking:
                    rows = FEW_ROWS if few[engine] else num_rows
                    runs[engine].append(held[engine, few[engine]].run(name)["figures"]["cpu_s"] * 1e9 / rows)
            figures[name] = {engine: spread(done) for engine, done in runs.items()}
            shown = ", ".join(f"{engine} {figures[name][engine]['median']:.0f}" for engine in taking)
            print(f"{name}: {shown} CPU ms per million rows", file=sys.stderr, flush=True)
            repeated[name] = len(runs[OURS])
    operators = {
        name: {"kind": OPERATORS[name].kind, "slow": OPERATORS[name].slow, "rounds": repeated[name]} for name in names
    }
    return {
        "rounds": rounds,
        "rows": num_rows,
        "operators": operators,
        "figures": figures,
        "bars": [bar for name, found in figures.items() for bar in bars(name, found)],
        "largest_difference": apart,
    }


def distance(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """How far apart the columns' means are, relative to 1 + their size; infinite where other values are missing."""
    if [column[0] for column in ours] != [column[0] for column in theirs]:
        return float("inf")
    pairs = [pair for both in zip(ours, theirs, strict=True) for pair in zip(*both, strict=True)]
    return max(abs(a - b) / (1 + abs(b)) for a, b in pairs)


def bars(name: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked for, what was found, whether that is enough."""
    operator, made = OPERATORS[name], []
    if operator.kind in BARRED and POLARS in found:
        share = found[OURS]["median"] / found[POLARS]["median"]
        what, met = f"{name}: gpupipe / Polars", share <= AT_MOST_POLARS
        made.append({"what": what, "bar": f"at most {AT_MOST_POLARS:g}", "found": share, "met": met})
    if operator.kind == "encoding" and SKLEARN in found:
        times = found[SKLEARN]["median"] / found[OURS]["median"]
        what, met = f"{name}: scikit-learn / gpupipe", times >= TIMES_SKLEARN
        made.append({"what": what, "bar": f"at least {TIMES_SKLEARN:g}", "found": times, "met": met})
    return made


def main() -> None:
    import pyarrow.parquet as pq

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=big_flights.DEFAULT.parent, help="the folder of flights.parquet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[""], help="operators whose name has one of these words in it")
    parser.add_argument("--engine", choices=MODULES, help="be this engine's process")
    parser.add_argument("--rows", type=int, help="of that process: the first so many")
    parsed = parser.parse_args()
    source = parsed.data / "flights.parquet"
    if not source.exists():
        print(f"making {source}", file=sys.stderr, flush=True)
        big_flights.make(source)
    if parsed.engine:
        serve(parsed.engine, parsed.data, parsed.rows)
        return
    names = [name for name in OPERATORS if any(word.lower() in name.lower() for word in parsed.only)]
    result = measure(parsed.data, parsed.rounds, names, pq.ParquetFile(source).metadata.num_rows)
    for bar in result["bars"]:
        print(f"{bar['what']}: {bar['found']:.2f}, {bar['bar']}: {'held' if bar['met'] else 'MISSED'}")
    if len(names) == len(OPERATORS):  # a part of the table is for looking at only
        print(write_result("operators_cpu", result))


if __name__ == "__main__":
    main()
