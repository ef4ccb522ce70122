"""Times inside `Features`: what `DateParts` gives, as float32."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import gpupipe as gp
from gpupipe import errors
from gpupipe import preprocessing as pre
from gpupipe import transforms as T
from tests.raising import raises

TIMES = pd.DataFrame({"at": pd.to_datetime(["1969-12-31 23:59", None, "2016-02-29 06:00", "2013-05-04 00:00"])})
PARTS, CYCLES = ["year", "week", "is_weekend", "is_month_end"], ["hour", "day", "dayofyear"]


def test_it_is_date_parts() -> None:
    made = pre.DatetimeEncoder(PARTS, cyclic=CYCLES).fit_transform(TIMES)
    wanted = T.DateParts("at", PARTS, cyclic=CYCLES).transform(TIMES).drop(columns="at")
    assert list(made) == list(wanted) and set(map(str, made.dtypes)) == {"float32"}
    for name in wanted:
        np.testing.assert_array_equal(made[name], wanted[name].to_numpy("float32", na_value=np.nan))


def test_parts_go_on_through_other_steps() -> None:
    chain = [pre.DatetimeEncoder(), pre.SimpleImputer("median"), pre.StandardScaler()]
    pipeline = gp.Pipeline([], gp.Features(("at", chain))).fit(gp.from_frame(TIMES, num_partitions=2))
    made = pipeline.transform(TIMES)
    assert np.isfinite(made.to_numpy()).all() and np.allclose(made.mean(), 0, atol=1e-6)
    assert pipeline.schema["at_year"].lineage == {"at"}


def test_what_makes_no_sense_is_refused() -> None:
    for parts, cyclic in (("years", ()), ((), "week"), ([], [])):
        with pytest.raises(errors.BadConfig, match="DatetimeEncoder"):
            pre.DatetimeEncoder(parts, cyclic=cyclic)
    with raises(errors.SchemaMismatch, where="DatetimeEncoder, column 'x'", got="float64"):
        pre.DatetimeEncoder().fit(pd.DataFrame({"x": [1.0]}))
