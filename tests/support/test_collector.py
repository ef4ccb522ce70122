"""The collector runs again after a pause, whatever has happened in it, unless it was off before."""

from __future__ import annotations

import gc

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre
from gpupipe.pipeline import fit
from gpupipe.support.collector import pause_collector


@pause_collector()
def look_within() -> float:
    with pause_collector():
        assert not gc.isenabled()
    assert not gc.isenabled()
    return 1 / 0


@pytest.mark.parametrize("is_on", [True, False])
def test_a_pause_ends(is_on: bool) -> None:
    try:
        gc.enable() if is_on else gc.disable()
        with pytest.raises(ZeroDivisionError):
            look_within()
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


def test_a_fit_pauses_it_where_columns_get_objects_and_not_where_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    is_on: dict[str, bool] = {}
    for name in ("merge_summaries", "compute_ranges"):
        function = getattr(fit, name)

        def note(*args: object, name: str = name, function: object = function) -> object:
            is_on[name] = gc.isenabled()
            return function(*args)  # type: ignore[operator]

        monkeypatch.setattr(fit, name, note)
    gp.Pipeline([], gp.Features((["x"], pre.StandardScaler()))).fit(pd.DataFrame({"x": [1.0, 2.0]}))
    assert is_on == {"merge_summaries": True, "compute_ranges": False} and gc.isenabled()
