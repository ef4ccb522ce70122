"""k-means: centres, labels and distances against scikit-learn; order, seeds and what is far away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from sklearn.metrics import adjusted_rand_score

import gpupipe as gp
from gpupipe import errors, schema
from gpupipe.backend import select
from gpupipe.preprocessing import KMeans, SimpleImputer, StandardScaler
from gpupipe.preprocessing.steps.gathered import initial_centres
from tests.raising import raises


def blobs(offset: float = 0.0, scale: float = 1.0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), [400, 300, 200, 100])
    middles = np.array([[0, 0], [10, 0], [0, 10], [10, 10.0]])
    points = (middles[truth] + rng.normal(scale=0.7, size=(1000, 2))) * scale + offset
    order = rng.permutation(1000)
    return pd.DataFrame(points[order], columns=["x", "y"]), truth[order]


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e9, 1.0), (0.0, 1e-6)])
def test_clusters_are_found_and_ordered_by_size(offset: float, scale: float) -> None:
    table, truth = blobs(offset, scale)
    step = KMeans(4).fit(table)
    labels = step.transform(table)["kmeans"]
    assert str(labels.dtype) == "int32"
    # The largest has label 0, id 2, and so on down.
    assert adjusted_rand_score(truth, labels) == 1.0
    assert (labels - 2).tolist() == truth.tolist()


def test_as_scikit_learn_from_the_same_start() -> None:
    table, _ = blobs()
    points = table.to_numpy()
    start = initial_centres(points, 4, 0)
    peer = sklearn.cluster.KMeans(4, init=start, n_init=1).fit(points)
    step = KMeans(4).fit(table)
    nearest = np.linalg.norm(step.cluster_centers_[:, None] - peer.cluster_centers_, axis=2).argmin(axis=1)
    np.testing.assert_allclose(step.cluster_centers_, peer.cluster_centers_[nearest], atol=1e-9)
    assert (nearest[step.transform(table)["kmeans"] - 2] == peer.predict(points)).all()
    far = KMeans(4, output="distances").fit(table).transform(table)
    assert list(far.columns) == [f"kmeans_dist{k}" for k in range(4)]
    np.testing.assert_allclose(far.to_numpy(), peer.transform(points)[:, nearest], rtol=1e-5, atol=1e-5)


def test_given_centres_every_label_is_the_nearest_however_far_the_others_are() -> None:
    step = KMeans(3)
    step.cluster_centers_ = np.array([[0.0], [1.0], [1e12]])
    step.names_in_ = ["x"]
    table = pd.DataFrame({"x": [0.1, 0.9, 0.51, 0.49, 2e12]})
    assert step.transform(table)["kmeans"].tolist() == [2, 3, 3, 2, 4]
    step.output = "distances"
    np.testing.assert_allclose(step.transform(table)["kmeans_dist1"][:2], [0.9, 0.1], rtol=1e-6)


def test_equal_sizes_are_ordered_by_their_centres() -> None:
    table = pd.DataFrame({"x": [5.0, 5.0, -1.0, -1.0, 2.0, 2.0]})
    assert KMeans(3).fit(table).cluster_centers_.ravel().tolist() == [-1.0, 2.0, 5.0]


def test_the_seed_decides_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("abc"))
    found = [KMeans(5, random_state=seed, max_iter=1).fit(table).cluster_centers_ for seed in (0, 0, 1)]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


def test_initial_centres_are_rows_far_apart() -> None:
    table, truth = blobs()
    points = table.to_numpy()
    for seed in range(20):
        start = initial_centres(points, 4, seed)
        rows = [int(np.flatnonzero((points == centre).all(axis=1))[0]) for centre in start]
        assert len({truth[row] for row in rows}) == 4


def test_labels_are_a_categorical() -> None:
    fields = [schema.Field("x", "float64").as_source(), schema.Field("y", "int8").as_source()]
    (labels,) = KMeans(16).output_fields(fields)
    assert (labels.name, labels.kind, labels.cardinality, labels.nullable) == (
        "kmeans",
        schema.Kind.CATEGORICAL,
        18,
        False,
    )
    assert labels.lineage == {"x", "y"}
    far = KMeans(2, output="distances").output_fields(fields)
    assert [(item.name, item.kind, item.cardinality) for item in far] == [
        ("kmeans_dist0", schema.Kind.CONTINUOUS, None),
        ("kmeans_dist1", schema.Kind.CONTINUOUS, None),
    ]


def inertia(points: np.ndarray, centres: np.ndarray) -> float:
    return float(sum(np.square(points[:, None] - centres).sum(axis=2).min(axis=1)))


def start_of(step: KMeans, table: pd.DataFrame) -> np.ndarray:
    """What the fit of all rows begins with."""
    cpu = select("cpu")
    coded = cpu.encode(table)
    rows = step.summarize({name: cpu.column(coded, name) for name in table}, cpu)
    return initial_centres(rows.subsample(16_384), step.n_clusters, step.random_state)


def flights() -> pd.DataFrame:
    names = ["dep_delay", "distance", "air_time", "hour"]
    path = Path(__file__).parents[3] / "data" / "flights.parquet"
    table = gp.read_parquet(path).compute()[names].astype("float64").dropna()[::5]
    return (table - table.mean()) / table.std()


def overlapping() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame(rng.normal(size=(40_000, 3)) + rng.integers(0, 4, (40_000, 1)), columns=list("abc")) + 1e6


@pytest.mark.slow
@pytest.mark.parametrize("made", [flights, overlapping])
def test_more_rows_than_the_library_is_given(made: object) -> None:
    table = made()  # type: ignore[operator]
    points = table.to_numpy()
    peer = sklearn.cluster.KMeans(8, init=start_of(KMeans(8), table), n_init=1, random_state=0).fit(points - 0.0)
    sample, refined = (KMeans(8, max_rows=3000, max_passes=passes).fit(table) for passes in (0, 10))
    assert sample.num_fitted_ <= 3000 and sample.num_passes_ == 0
    assert refined.num_fitted_ == refined.num_rows_ == len(table) and 1 <= refined.num_passes_ <= 10
    found = inertia(points, refined.cluster_centers_)
    assert found <= inertia(points, sample.cluster_centers_)
    assert found <= 1.01 * inertia(points, peer.cluster_centers_)
    # Centres are means of the rows they have, and stand in the order of their numbers.
    labels = refined.transform(table)["kmeans"] - 2
    means = table.groupby(labels.to_numpy()).mean().to_numpy()
    np.testing.assert_allclose(refined.cluster_centers_, means, atol=0.05)
    sizes = labels.value_counts().sort_index().to_numpy()
    assert (np.diff(sizes) <= 0.02 * len(table)).all()


def test_passes_go_on_until_the_centres_stand_still() -> None:
    table = overlapping()
    step = KMeans(3, max_rows=2000, max_passes=100, tol=0.0).fit(table)
    points = table.to_numpy()
    labels = np.square(points[:, None] - step.cluster_centers_).sum(axis=2).argmin(axis=1)
    means = np.stack([points[labels == label].mean(axis=0) for label in range(3)])
    if step.num_passes_ < 100:
        np.testing.assert_allclose(step.cluster_centers_, means, atol=1e-9)
    assert KMeans(3, max_rows=2000, max_passes=1).fit(table).num_passes_ == 1
    assert KMeans(3, max_passes=5).fit(table).num_passes_ == 0


@pytest.mark.slow
@pytest.mark.parametrize("num_partitions", [1, 2, 7])
def test_in_a_pipeline_passes_are_repeated_and_columns_kept(num_partitions: int) -> None:
    table = overlapping()
    table.loc[::17, "a"] = np.nan

    def pipeline() -> gp.Pipeline:
        return gp.Pipeline(
            [],
            features=gp.Features(
                (
                    ["a", "b", "c"],
                    [
                        SimpleImputer(),
                        KMeans(4, max_rows=2000),
                    ],
                ),
                (["b"], StandardScaler()),
            ),
        )

    alone, found = pipeline(), pipeline()
    alone.fit(gp.from_frame(table, num_partitions=1))
    found.fit(gp.from_frame(table, num_partitions=num_partitions))
    steps = [item.features.groups[0].steps[1] for item in (alone, found)]  # type: ignore[union-attr]
    assert steps[0].num_passes_ == steps[1].num_passes_ > 0 and not steps[1].unfinished
    np.testing.assert_allclose(steps[1].cluster_centers_, steps[0].cluster_centers_, rtol=1e-12)
    assert found.fit_report is not None and found.fit_report.num_reads == 1  # the columns stayed in memory


@pytest.mark.parametrize("in_a_pipeline", [False, True])
def test_a_fit_after_one_that_was_interrupted_starts_anew(monkeypatch: pytest.MonkeyPatch, in_a_pipeline: bool) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    table = pd.DataFrame(np.random.default_rng(5).normal(size=(300, 2)), columns=["x", "y"])
    step: KMeans = KMeans(3, max_rows=100, max_passes=2)
    fitted: Any = gp.Pipeline([], gp.Features((["x", "y"], step))) if in_a_pipeline else step
    with monkeypatch.context() as patched:
        patched.setattr(KMeans, "_move", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fitted.fit(table * 9)
    fitted.fit(table)
    step = fitted.features.groups[0].steps[0] if in_a_pipeline else step
    wanted = KMeans(3, max_rows=100, max_passes=2).fit(table)
    np.testing.assert_allclose(step.cluster_centers_, wanted.cluster_centers_, rtol=1e-9)


def test_what_is_refused() -> None:
    table = pd.DataFrame({"x": [1.0, 1.0, 2.0], "y": [0.0, 0.0, 0.0]})
    with raises(errors.BadData, where="KMeans", remedy="n_clusters=2"):
        KMeans(3).fit(table)
    with pytest.raises(errors.BadData, match="there are no rows"):
        KMeans(1).fit(table.iloc[:0])
    holed = table.assign(y=[None, 1.0, 2.0])
    for broken in (lambda: KMeans(2).fit(holed), lambda: KMeans(2).fit(table).transform(holed)):
        with raises(errors.BadData, where="KMeans, column 'y'", expected="no missing values"):
            broken()
    with raises(errors.BadData, where="KMeans, column 'x'", got=np.inf):
        KMeans(2).fit(table.assign(x=[np.inf, 1.0, 2.0]))
    with raises(errors.BadData, where="KMeans, column 'x'", got=1e50):
        KMeans(2, output="distances").fit(table).transform(table.assign(x=1e50))
    with raises(errors.BadConfig, where="KMeans(output=)", got="ids"):
        KMeans(2, output="ids").fit(table)
    for bad in ({"n_clusters": 0}, {"n_clusters": 2.5}, {"max_rows": 0}, {"max_passes": -1}, {"random_state": "no"}):
        with pytest.raises(errors.BadConfig) as caught:
            KMeans(**bad)
        assert [caught.value.got] == list(bad.values())
