"""The code of docs/guide-training.md runs as it stands there, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import preprocessing as pre

GUIDE = Path(__file__).parents[2] / "docs" / "guide-training.md"


@pytest.mark.slow
def test_the_guides_code_runs() -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal(400)
    frame = pd.DataFrame({"x": x, "carrier": draw.choice(["UA", "DL", "AA"], 400), "late": x > 0})
    data = gp.from_frame(frame)
    features = gp.Features((["x"], pre.StandardScaler()), (["carrier"], pre.Categorify()), target="late")
    pipeline = gp.Pipeline([], features=features).fit(data)
    names: dict[str, Any] = {"gp": gp, "pipeline": pipeline, "train": data, "valid": data}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    assert len(blocks) == 3
    loaded = {*names["report"].loaded, "id_keys"}  # which values the ids are is the model's own
    assert names["sizes"].best >= 64 and loaded == set(names["model"].state_dict())
