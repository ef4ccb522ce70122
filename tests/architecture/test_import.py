"""What importing the package does: almost nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpupipe

ROOT = Path(__file__).parents[2]
CODE = """
import json, os, sys
before, env = set(sys.modules), dict(os.environ)
import gpupipe
names = "cudf cupy cuml rmm torch dask pandas polars numpy pyarrow sklearn tqdm"
heavy = [m for m in names.split() if m in sys.modules]
print(json.dumps([heavy, env != dict(os.environ), dir(gpupipe), gpupipe.__all__]))
"""


def test_importing_loads_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    heavy, changed_environment, listed, public = json.loads(done.stdout)
    assert heavy == []
    assert not changed_environment
    assert set(public) <= set(listed)


def test_every_public_name_is_there() -> None:
    for name in gpupipe.__all__:
        assert getattr(gpupipe, name) is not None
    assert sorted(gpupipe.__all__) == gpupipe.__all__


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="there is no such name"):
        _ = gpupipe.Pipelin


REMEDIES = {
    "StandardScaler": "gp.preprocessing.StandardScaler",
    "MLP": "gp.models.MLP",
    "from_pandas": "gp.from_frame",
    "from_arrow": "gp.from_frame",
    "scan_csv": "gp.read_csv",
}
UNKNOWN = """
import json, sys
import gpupipe
remedies = {}
for name in json.loads(sys.argv[1]):
    try:
        getattr(gpupipe, name)
    except gpupipe.errors.AttributeNotFound as error:
        remedies[name] = str(error).splitlines()[-1]
print(json.dumps(remedies))
"""


def test_names_of_other_libraries_and_modules_are_answered() -> None:
    command = [sys.executable, "-c", UNKNOWN, json.dumps(list(REMEDIES))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {name: f"Try: {remedy}" for name, remedy in REMEDIES.items()}


@pytest.mark.slow
@pytest.mark.parametrize("module", ["errors", "io", "models", "preprocessing", "selectors", "tensors", "training"])
def test_a_part_is_there_after_the_import_alone(module: str) -> None:
    code = f"import gpupipe as gp; assert {module!r} in dir(gp); print(gp.{module}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"gpupipe.{module}"


def test_what_the_documentation_writes_is_there() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("gpupipe/**/*.py"), *ROOT.glob("examples/*.py")]
    written = {name for page in pages for name in re.findall(r"\bgp\.(\w+(?:\.\w+)?)", page.read_text())}
    assert len(written) > 40
    for name in sorted(written):
        found: object = gpupipe
        for part in name.split("."):
            assert part in dir(found), f"gp.{name}"
            found = getattr(found, part)


FIT = """
import json, sys
import gpupipe as gp, pandas as pd
from gpupipe import preprocessing as pre
frame = pd.DataFrame({"x": [1.0, 2.0, 4.0], "kind": ["a", "b", "a"], "y": [0, 1, 1]})
features = gp.Features((["x"], [pre.SimpleImputer(), pre.StandardScaler()]), (["kind"], pre.Categorify()), target="y")
gp.Pipeline([], features).fit(frame).transform(frame)
print(json.dumps([name for name in ("torch", "sklearn", "dask", "cudf") if name in sys.modules]))
"""


def test_a_fit_loads_no_library_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
