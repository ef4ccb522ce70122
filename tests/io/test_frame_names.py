"""Names of other libraries' frames, each answered with what does the same."""

from __future__ import annotations

import copy
import pickle

import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import transforms as T
from gpupipe.errors import AttributeNotFound, BadConfig
from gpupipe.io.frame_names import _ELSEWHERE
from tests.raising import raises

FRAME = pd.DataFrame({"x": [1.0, 2.0]})


@pytest.mark.parametrize("remedy", _ELSEWHERE)
def test_what_is_offered_works(remedy: str, tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    data = gp.from_frame(FRAME)
    names = {"gp": gp, "T": T, "data": data, "other": data, "fn": lambda frame: frame.assign(y=1.0)}
    eval(remedy, names)
    for name in _ELSEWHERE[remedy].split():
        with raises(AttributeNotFound, where=f"Dataset.{name}", remedy=remedy):
            getattr(data, name)


def test_a_name_that_is_misspelt_or_only_pandas() -> None:
    data = gp.from_frame(FRAME)
    with raises(AttributeNotFound, where="Dataset.colums", remedy="data.columns"):
        _ = data.colums
    with raises(AttributeNotFound, where="Dataset.ewm", remedy="data.to_pandas().ewm, which holds all rows"):
        _ = data.ewm
    with raises(BadConfig, where="Dataset[...] = ...", remedy="data = data.assign(y='an expression')"):
        data["y"] = 1  # type: ignore[index]
    assert not hasattr(data, "iloc") and not hasattr(data, "__array_interface__")
    assert len(copy.copy(data)) == len(copy.deepcopy(data)) == len(pickle.loads(pickle.dumps(data))) == 2


def test_only_what_users_call_is_completed() -> None:
    names = [name for name in dir(gp.from_frame(FRAME)) if not name.startswith("_")]
    assert {"columns", "schema", "shape", "group_by", "to_pandas"} <= set(names)
    assert not {"locate_origins", "cuts_history", "source", "query"} & set(names)
