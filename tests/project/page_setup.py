"""What stands before the code of a page: the names it takes for given, on little data."""

from __future__ import annotations

COMMON = """
import numpy as np, pandas as pd, pyarrow as pa, torch
import gpupipe as gp
from gpupipe import preprocessing as pre, transforms as T
flights = gp.read_parquet("data/flights.parquet", filters="month == 1 and day <= 5")
"""

FITTED = """
features = gp.Features(
    (["dep_delay", "distance"], [pre.SimpleImputer(), pre.StandardScaler()]),
    (["carrier"], pre.Categorify()),
    target="arr_delay > 15",
)
pipeline = gp.Pipeline([], features).fit(flights)
"""

TRAINED = (
    FITTED
    + """
model = gp.models.MLP.from_schema(pipeline.schema, hidden=(8,), seed=1)
train, valid = pipeline.loader(flights, batch_size=1024), pipeline.loader(flights)
"""
)

BEFORE = {
    "from-nvtabular.md": """
import os
os.mkdir("train")
small = flights.compute()
small.assign(late=small["arr_delay"] > 15).to_parquet("train/a.parquet")
""",
    "guide-clusters.md": FITTED,
    "guide-encoders.md": FITTED,
    "guide-stores.md": TRAINED,
    "guide-data-parallel.md": TRAINED + "flights_valid = flights\n",
    "guide-evaluation.md": """
flights = gp.read_parquet("data/flights.parquet", filters="month <= 3")
train, later = flights.split(by="time_hour", at="2013-03-01")
valid, test = later.split(by="time_hour", at="2013-03-16")
numbers = [pre.SimpleImputer("median"), pre.StandardScaler()]
groups = [(["dep_delay", "distance", "hour"], numbers), (["carrier"], pre.Categorify())]
pipeline = gp.Pipeline([], gp.Features(*groups, target="arr_delay > 15")).fit(train)
trainer = gp.Trainer(gp.models.MLP.from_schema(pipeline.schema, hidden=(32,), seed=7), max_epochs=3, seed=7)
trainer.fit(pipeline.loader(train, batch_size=512, shuffle="rows", seed=1))
""",
    "guide-files.md": """
import os
os.mkdir("flights")
flights.compute().to_parquet("flights/a.parquet")
""",
    "guide-jobs.md": TRAINED
    + """
gp.save("run", pipeline, model)
scorer = gp.load("run")
""",
    "guide-loader.md": FITTED.replace('15",', '15", weight="hour",')
    + "train, w = flights, np.ones(len(pipeline.loader(flights).table))\n",
    "guide-models.md": TRAINED.replace("train, valid =", "train_loader, valid_loader ="),
    "guide-target.md": "flights = flights.filter('isnull(arr_delay) == False')\n",
    "guide-training-runs.md": TRAINED,
    "guide-whole-tables.md": """
import os
os.mkdir("flights")
flights.compute().to_parquet("flights/a.parquet")
bookings = gp.from_frame(flights.select(["flight", "time_hour"]).compute().assign(seats=3))
weather = gp.from_frame(flights.select(["origin", "time_hour"]).compute().assign(temp=39.0))
""",
}
"""By page, what its first block takes for given besides `COMMON`."""

ELSEWHERE = {
    "README.md": "tests/project/test_program.py",
    "index.md": "tests/project/test_program.py",
    "guide-checks.md": "tests/transforms/test_expect.py",
    "guide-training.md": "tests/training/test_guide.py",
}
"""Pages whose code another test runs, and looks at what comes of it."""
