"""Keep what a run of the suite with the GPU host's versions gave: `keep_host_result.py JUNIT.xml ... OUT.json`."""

from __future__ import annotations

import json
import platform
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("torch", "triton", "cupy-cuda13x", "numpy", "numba", "pandas", "polars", "pyarrow", "scikit-learn")


def main(reports: list[Path], out: Path) -> None:
    """Count the cases of JUnit reports, and name those that failed."""
    suites = [suite for report in reports for suite in ET.parse(report).iter("testsuite")]
    counts = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    cases = [case for suite in suites for case in suite.iter("testcase")]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    result = {
        "date": min(suite.get("timestamp", "") for suite in suites)[:10],
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "folders": sorted({case.get("classname", "").rpartition(".")[0] for case in cases}),
        "counts": counts,
        "seconds": round(sum(float(suite.get("time", 0)) for suite in suites)),
        "failed": sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main([Path(path) for path in sys.argv[1:-1]], Path(sys.argv[-1]))
