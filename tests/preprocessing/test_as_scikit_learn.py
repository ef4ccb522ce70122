"""One table of twins: on frames of all sorts and on the flights each gives what scikit-learn's does, to 1e-6.

Both sides are compared as 1 + |value| has it, after ours was cast to float32, which costs a sixteenth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pandas as pd
import pytest
import sklearn.decomposition
import sklearn.impute
import sklearn.preprocessing as theirs
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import preprocessing as pre
from tests.examples import examples

DATA = Path(__file__).parents[2] / "data"
FLIGHTS = ["dep_delay", "distance", "air_time", "sched_dep_time"]
WEATHER = ["temp", "humid", "wind_speed", "wind_gust", "pressure"]
WORDS = ["carrier", "origin", "month"]

Twins = tuple[Callable[[], pre.LearnedStep], Callable[[], Any]]
NUMBERS: dict[str, Twins] = {
    "standard": (pre.StandardScaler, theirs.StandardScaler),
    "min and max": (lambda: pre.MinMaxScaler((-1, 1)), lambda: theirs.MinMaxScaler(feature_range=(-1, 1))),
    "largest": (pre.MaxAbsScaler, theirs.MaxAbsScaler),
    "robust": (lambda: pre.RobustScaler(exact=True), theirs.RobustScaler),
    "quantile": (
        lambda: pre.QuantileTransformer(n_quantiles=20, exact=True),
        lambda: theirs.QuantileTransformer(n_quantiles=20, subsample=None),
    ),
    "quantile, normal": (
        lambda: pre.QuantileTransformer(n_quantiles=20, output_distribution="normal", exact=True),
        lambda: theirs.QuantileTransformer(n_quantiles=20, output_distribution="normal", subsample=None),
    ),
    **{
        f"{name} of what is missing": (
            partial(pre.SimpleImputer, strategy=name, fill_value=7),
            partial(sklearn.impute.SimpleImputer, strategy=name, fill_value=7),
        )
        for name in ("mean", "median", "most_frequent", "constant")
    },
}
CODES: dict[str, Twins] = {
    "one-hot": (
        lambda: pre.OneHotEncoder(max_categories=4, handle_unknown="infrequent_if_exist"),
        lambda: theirs.OneHotEncoder(max_categories=4, handle_unknown="infrequent_if_exist", sparse_output=False),
    ),
    "ordinal": (
        lambda: pre.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        lambda: theirs.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    ),
    "target": (pre.TargetEncoder, lambda: theirs.TargetEncoder(target_type="continuous")),
}
SHAPES: list[Callable[[np.random.Generator, int], Any]] = [
    lambda rng, rows: rng.normal(3, 2, rows),
    lambda rng, rows: rng.exponential(50, rows),
    lambda rng, rows: rng.normal(1000, 10, rows),
    lambda rng, rows: rng.integers(-4, 5, rows).astype("float64"),
    lambda rng, rows: np.where(rng.random(rows) < 0.7, 0.0, rng.gamma(2, 5, rows)),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to learn from and others, of the same columns: some with ties, some with gaps."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shapes = draw(st.lists(st.sampled_from(range(len(SHAPES))), min_size=2, max_size=4))
    gaps = draw(st.sampled_from([0.0, 0.2]))
    made = []
    for rows in (draw(st.integers(40, 200)), 30):
        frame = pd.DataFrame({f"c{n}": SHAPES[shape](rng, rows) for n, shape in enumerate(shapes)})
        made.append(frame.mask(rng.random(frame.shape) < gaps))
    return made[0], made[1]


@st.composite
def words(draw: st.DrawFn) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The same of strings and integers, of which the other rows have new ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_values = draw(st.integers(1, 12))
    made = []
    for rows, more in ((draw(st.integers(20, 100)), 0), (20, 3)):
        text = np.array([f"w{n}" for n in range(num_values + more)])[rng.integers(0, num_values + more, rows)]
        made.append(pd.DataFrame({"text": pd.array(text, "str"), "whole": rng.integers(0, num_values + more, rows)}))
    return made[0], made[1]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    names = [*FLIGHTS, *WORDS, "arr_delay"]
    return pd.read_parquet(DATA / "flights.parquet", columns=names).iloc[::11].reset_index(drop=True)


@pytest.fixture(scope="module")
def weather() -> pd.DataFrame:
    return pd.read_parquet(DATA / "weather.parquet", columns=WEATHER)


def dense(frame: pd.DataFrame) -> Any:
    return frame.to_numpy("float64", na_value=np.nan)


def compare(found: Any, wanted: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def in_pieces(step: Any, frame: pd.DataFrame, names: Sequence[str], target: str | None = None) -> tuple[Any, Any]:
    """The step as seven partitions fitted it, and what it makes of all rows."""
    pipeline = gp.Pipeline([], gp.Features((list(names), step), target=target))
    pipeline.fit(gp.from_frame(frame, num_partitions=7))
    made = pipeline.transform(frame)
    assert pipeline.features is not None
    return pipeline.features.groups[0].steps[0], dense(made[[name for name in made if name != target]])


@pytest.mark.slow
@pytest.mark.parametrize("twins", NUMBERS.values(), ids=NUMBERS)
@examples(15, suppress_health_check=[HealthCheck.data_too_large])
@given(given=tables())
def test_numbers(twins: Twins, given: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    step, peer = (make() for make in twins)
    train, later = given
    found = step.fit(train).transform(later)
    compare(dense(found), peer.fit(dense(train)).transform(dense(later)))


@pytest.mark.slow
@pytest.mark.parametrize("twins", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_the_flights(twins: Twins, flights: pd.DataFrame, weather: pd.DataFrame) -> None:
    for table, names in ((flights, FLIGHTS), (weather, WEATHER)):
        step, peer = (make() for make in twins)
        compare(in_pieces(step, table, names)[1], peer.fit_transform(dense(table[names])))


@pytest.mark.parametrize("twins", CODES.values(), ids=CODES)
@examples(15)
@given(given=words())
def test_codes(twins: Twins, given: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    step, peer = (make() for make in twins)
    train, later = given
    target = np.arange(len(train)) % 7 / 3
    found = step.fit(train, target).transform(later)
    compare(dense(found), peer.fit(train.astype(object), target).transform(later.astype(object)))


@pytest.mark.slow
@pytest.mark.parametrize("twins", CODES.values(), ids=CODES)
def test_codes_of_the_flights(twins: Twins, flights: pd.DataFrame) -> None:
    step, peer = (make() for make in twins)
    table = flights.dropna(subset=["arr_delay"]).reset_index(drop=True)
    wanted = peer.fit(table[WORDS].astype(object), table["arr_delay"]).transform(table[WORDS].astype(object))
    compare(in_pieces(step, table, WORDS, "arr_delay")[1], wanted)


@pytest.mark.slow
@examples(15, suppress_health_check=[HealthCheck.data_too_large])
@given(given=tables())
def test_powers(given: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    train, later = given
    step = pre.PowerTransformer().fit(train)
    same_powers(step, dense(step.transform(later)), train, later)


@pytest.mark.slow
def test_powers_of_the_flights(flights: pd.DataFrame, weather: pd.DataFrame) -> None:
    for table, names in ((flights, FLIGHTS), (weather, WEATHER)):
        same_powers(*in_pieces(pre.PowerTransformer(), table, names), table[names], table[names])


@mpmath.workdps(400)
def same_powers(step: pre.PowerTransformer, found: Any, train: pd.DataFrame, later: pd.DataFrame) -> None:
    """Powers no less likely than theirs; of these, what the formula makes in digits enough for columns of small spread.

    Of such a column (pressure: 980 to 1040) theirs loses all digits: it ends a little off, and standardises nothing.
    """
    peer = theirs.PowerTransformer(standardize=False).fit(dense(train))
    columns = zip(dense(train).T, dense(later).T, found.T, step.lambdas_, peer.lambdas_, strict=True)
    for column, new, ours, power, other in columns:
        known, counts = np.unique(column[~np.isnan(column)], return_counts=True)
        likelihood, mean, deviation = of_power(known, counts, power)
        assert likelihood >= of_power(known, counts, other)[0] - 1e-10 * counts.sum()
        values, places = np.unique(new[~np.isnan(new)], return_inverse=True)
        wanted = [float((yeo_johnson(value, power) - mean) / (deviation or 1)) for value in values]
        compare(ours[~np.isnan(new)], np.array(wanted)[places])


def of_power(values: Any, counts: Any, power: float) -> Any:
    """The logarithm of a power's likelihood, but for a constant, and the bent values' mean and standard deviation."""
    bent = np.array([yeo_johnson(value, power) for value in values])
    mean = (bent * counts).sum() / counts.sum()
    variance = (np.square(bent - mean) * counts).sum() / counts.sum()
    jacobian = (np.sign(values) * np.log1p(abs(values)) * counts).sum()
    likelihood = (power - 1) * jacobian - counts.sum() / 2 * mpmath.log(variance or 1)
    return likelihood, mean, mpmath.sqrt(variance)


def yeo_johnson(value: float, power: float) -> Any:
    """By its definition."""
    power, size = mpmath.mpf(power if value >= 0 else 2 - power), 1 + abs(mpmath.mpf(value))
    return (mpmath.log(size) if power == 0 else (size**power - 1) / power) * (1 if value >= 0 else -1)


@pytest.mark.parametrize("solver", ["covariance", "library"])
@examples(15)
@given(given=tables())
def test_components(solver: str, given: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    train, later = (frame.fillna(0) for frame in given)
    step = pre.PCA(2, solver=solver).fit(train)
    same_components(step, dense(step.transform(later)), train, later)


@pytest.mark.parametrize("solver", ["covariance", "library"])
def test_components_of_the_flights(solver: str, flights: pd.DataFrame, weather: pd.DataFrame) -> None:
    for table, names in ((flights, FLIGHTS), (weather, WEATHER)):
        known = ((table[names] - table[names].mean()) / table[names].std()).fillna(0)
        same_components(*in_pieces(pre.PCA(2, solver=solver), known, names), known, known)


def same_components(step: pre.PCA, found: Any, train: pd.DataFrame, later: pd.DataFrame) -> None:
    """One by one up to their signs, unless two are so alike that their directions are anybody's."""
    peer = sklearn.decomposition.PCA().fit(dense(train))
    variance = peer.explained_variance_
    compare(step.explained_variance_, variance[:2], 1e-5)
    if (-np.diff(variance[:3]) > 1e-2 * variance[0]).all():
        components = peer.components_[:2]
        signs = np.sign(np.sum(step.components_ * components, axis=1))
        compare(found * signs, peer.transform(dense(later))[:, :2], 1e-5)
