"""Principal components: both solvers, against scikit-learn, and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.decomposition
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe as gp
from gpupipe import errors
from gpupipe.backend import PCAResult, select
from gpupipe.backend.cpu import CpuBackend
from gpupipe.preprocessing import PCA, IncrementalPCA, StandardScaler
from gpupipe.preprocessing.steps import reduction as pca
from tests.raising import raises


def frame(rows: int = 400, offset: float = 0.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(rows, 4)) @ np.diag([5.0, 2.0, 1.0, 0.1]) @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    return pd.DataFrame(mixed + offset, columns=list("abcd"))


@pytest.mark.parametrize("solver", ["library", "covariance", "auto"])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_as_scikit_learn(solver: str, whiten: bool, offset: float) -> None:
    table = frame(offset=offset)
    peer = sklearn.decomposition.PCA(3, whiten=whiten, svd_solver="full").fit(table.to_numpy())
    step = PCA(3, whiten=whiten, solver=solver).fit(table)
    signs = np.sign(np.sum(step.components_ * peer.components_, axis=1))
    np.testing.assert_allclose(step.components_ * signs[:, None], peer.components_, atol=1e-5)
    np.testing.assert_allclose(step.explained_variance_, peer.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(step.explained_variance_ratio_, peer.explained_variance_ratio_, rtol=1e-5)
    found = step.transform(table)
    assert list(found.columns) == step.get_feature_names_out() == ["pca0", "pca1", "pca2"]
    assert set(found.dtypes.astype(str)) == {"float32"}
    np.testing.assert_allclose(found.to_numpy() * signs, peer.transform(table.to_numpy()), atol=2e-4)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), rows=st.integers(5, 60))
def test_the_largest_loading_is_positive(seed: int, rows: int) -> None:
    step = PCA(solver="covariance").fit(frame(rows, seed=seed))
    largest = np.abs(step.components_).argmax(axis=1)
    assert (step.components_[np.arange(4), largest] > 0).all()
    np.testing.assert_allclose(step.components_ @ step.components_.T, np.eye(4), atol=1e-10)


def test_equal_loadings_have_one_sign_by_either_solver() -> None:
    # Two standardised columns always load by 1/√2 each: only a rule that ignores the last digit is stable.
    rng = np.random.default_rng(3)
    for _ in range(20):
        x = rng.normal(size=50)
        y = -x + 0.3 * rng.normal(size=50)
        table = pd.DataFrame({"x": (x - x.mean()) / x.std(), "y": (y - y.mean()) / y.std()})
        found = [PCA(solver=solver).fit(table).components_ for solver in ("covariance", "library")]
        np.testing.assert_allclose(found[0], found[1], atol=1e-7)
        assert (found[0][:, 0] > 0).all()


@pytest.mark.parametrize("whiten", [False, True])
def test_the_inverse_gives_the_inputs_back(whiten: bool) -> None:
    table = frame(offset=3.0)
    step = PCA(whiten=whiten).fit(table)
    back = step.inverse_transform(step.transform(table))
    assert list(back.columns) == list("abcd")
    np.testing.assert_allclose(back.to_numpy(), table.to_numpy(), atol=1e-4)
    less = PCA(2).fit(table)
    peer = sklearn.decomposition.PCA(2).fit(table.to_numpy())
    wanted = peer.inverse_transform(peer.transform(table.to_numpy()))
    np.testing.assert_allclose(less.inverse_transform(less.transform(table)).to_numpy(), wanted, atol=1e-4)


class Counted(CpuBackend):
    """A backend that remembers how often its library was asked."""

    calls = 0

    def pca(self, block: np.ndarray, n_components: int) -> PCAResult:
        self.calls += 1
        return super().pca(block, n_components)


@pytest.mark.parametrize(("solver", "calls"), [("library", 1), ("auto", 1), ("covariance", 0)])
def test_the_solver_asked_for_is_used(solver: str, calls: int) -> None:
    backend = Counted()
    coded = backend.encode(frame())
    step = PCA(solver=solver)
    step.finalize(step.summarize({name: backend.column(coded, name) for name in coded}, backend))
    assert backend.calls == calls


def test_auto_takes_the_library_while_the_columns_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = select("cpu")
    table = frame()
    frame_ = cpu.encode(table)
    columns = {name: cpu.column(frame_, name) for name in table}
    monkeypatch.setitem(pca._MAX_BYTES, "auto", 400 * 4 * 8)
    one = PCA().summarize(columns, cpu)
    assert one.parts is not None and (one + one).parts is None
    assert PCA(solver="covariance").summarize(columns, cpu).parts is None
    assert (one + one).count == 800


def test_constant_columns_give_no_nan() -> None:
    table = pd.DataFrame({"a": [1e9] * 5, "b": [0.1] * 5})
    step = PCA(whiten=True).fit(table)
    assert step.explained_variance_ratio_.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(step.transform(table).to_numpy(), np.zeros((5, 2)))
    half = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.1] * 3})
    found = PCA(whiten=True).fit_transform(half)
    np.testing.assert_allclose(found.to_numpy(), [[-1, 0], [0, 0], [1, 0]], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["library", "covariance"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.95, 0.999, 1 - 1e-9, np.float32(0.5)])
def test_a_share_of_the_variance_keeps_as_many_as_scikit_learn(solver: str, share: float) -> None:
    for seed in range(4):
        table = frame(seed=seed)
        peer = sklearn.decomposition.PCA(float(share), svd_solver="full").fit(table.to_numpy())
        step = PCA(share, solver=solver)
        output = step.fit_transform(table)
        assert len(step.components_) == peer.n_components_ == output.shape[1]
        assert [*output.columns] == step.get_feature_names_out() == [f"pca{place}" for place in range(output.shape[1])]
        np.testing.assert_allclose(step.explained_variance_ratio_, peer.explained_variance_ratio_, rtol=1e-6)
        np.testing.assert_allclose(np.abs(output), np.abs(peer.transform(table.to_numpy())), atol=1e-4)


def test_a_share_is_decided_by_each_fit_and_kept_by_the_state(tmp_path: Path) -> None:
    narrow = frame() @ np.diag([1.0, 1e-3, 1e-3, 1e-3])
    narrow.columns = pd.Index(list("abcd"))
    wide = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 4)), columns=list("abcd"))
    step = PCA(0.9)
    assert (step.fit_transform(narrow).shape[1], step.fit_transform(wide).shape[1]) == (1, 4)
    assert step.fit_transform(narrow).shape[1] == 1
    back = step.inverse_transform(step.transform(narrow))
    np.testing.assert_allclose(back["a"], narrow["a"], atol=1e-2)
    pipeline = gp.Pipeline([], gp.Features((list("abcd"), [PCA(0.9), StandardScaler()]))).fit(narrow)
    assert pipeline.schema.names == ["pca0"]
    gp.save(tmp_path / "run", pipeline)
    loaded = gp.load(tmp_path / "run").pipeline
    pd.testing.assert_frame_equal(loaded.transform(narrow), pipeline.transform(narrow))
    same = pd.DataFrame({"a": [1.0] * 5, "b": [2.0] * 5})
    assert PCA(0.5).fit_transform(same).shape == (5, 2)  # without variance all of them, as for a number


def test_more_components_than_rows() -> None:
    table = frame(2)
    step = PCA().fit(table)
    np.testing.assert_allclose(step.explained_variance_[1:], 0, atol=1e-12)
    assert np.isfinite(step.transform(table).to_numpy()).all()


def test_what_is_refused() -> None:
    table = frame(10)
    with raises(errors.BadConfig, where="PCA(n_components=)", got=5):
        PCA(5).fit(table)
    for share in (1.0, 0.0, 1.5, -0.5, np.nan, True, "mle"):
        with raises(errors.BadConfig, where="PCA(n_components=)"):
            PCA(share)  # type: ignore[arg-type]
    with raises(errors.BadConfig, where="PCA(solver=)", got="svd"):
        PCA(solver="svd").fit(table)
    holed = table.assign(b=[np.nan, *[1.0] * 9])
    with raises(errors.BadData, where="PCA, column 'b'", expected="no missing values"):
        PCA().fit(holed)
    with raises(errors.BadData, where="PCA, column 'b'", expected="no missing values"):
        PCA().fit(table).transform(holed)
    with raises(errors.BadData, where="PCA, column 'c'", got=np.inf):
        PCA().fit(table).transform(table.assign(c=np.inf))
    with raises(errors.BadData, where="PCA", got=1):
        PCA().fit(table.iloc[:1])


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_fold_and_the_library_agree(offset: float) -> None:
    for seed in range(5):
        table = frame(2000, offset=offset, seed=seed)
        covariance, library = (PCA(solver=solver, whiten=True).fit(table) for solver in ("covariance", "library"))
        np.testing.assert_allclose(covariance.components_, library.components_, atol=1e-5)
        np.testing.assert_allclose(covariance.explained_variance_, library.explained_variance_, rtol=1e-5)
        np.testing.assert_allclose(covariance.transform(table), library.transform(table), rtol=1e-5, atol=1e-5)


def test_batch_after_batch_is_all_at_once() -> None:
    table = frame(900)
    whole, step = PCA(2, solver="covariance").fit(table), IncrementalPCA(2)
    for start in range(0, 900, 130):
        step.partial_fit(table[start : start + 130])
    assert step.n_samples_ == 900 and step.get_feature_names_out() == ["incrementalpca0", "incrementalpca1"]
    np.testing.assert_allclose(step.components_, whole.components_, atol=1e-12)
    np.testing.assert_allclose(step.transform(table).to_numpy(), whole.transform(table).to_numpy(), atol=1e-6)
    peer = sklearn.decomposition.IncrementalPCA().fit(table.to_numpy())  # keeps all components, so it forgets nothing
    full = IncrementalPCA().fit(table)
    signs = np.sign(np.sum(full.components_ * peer.components_, axis=1))
    np.testing.assert_allclose(full.components_ * signs[:, None], peer.components_, atol=1e-5)
    np.testing.assert_allclose(full.explained_variance_, peer.explained_variance_, rtol=1e-5)


def test_what_was_loaded_cannot_go_on() -> None:
    table = frame(20)
    step = IncrementalPCA().set_state(IncrementalPCA().fit(table).get_state())
    with pytest.raises(errors.BadConfig, match="it cannot go on"):
        step.partial_fit(table)
    with raises(errors.SchemaMismatch, where="IncrementalPCA", got=["b", "a", "c", "d"]):
        IncrementalPCA().fit(table).partial_fit(table[["b", "a", "c", "d"]])
