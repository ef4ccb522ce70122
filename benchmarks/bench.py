"""What `make bench` runs: each benchmark in a process of its own, one after the other.

    python benchmarks/bench.py [NAME ...] [--rounds N] [--nvtabular PYTHON] [--docs]

Without names all of them but `models`, `tables` and `whole_tables_large`, which take an hour or more, and
`peer_nvtabular` only where its interpreter is given. Each writes `benchmarks/results/NAME_cpu.json`, and its table is
printed; `--docs` puts the tables and plots of all result files that are there into the pages of `docs/`, and runs only
what is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from environment import HERE, RESULTS
from gpu_sections import ON_GPU
from sections import BENCHMARKS, GROWTH, markdown, pictures

DOCS = HERE.parent / "docs"
PAGES = {DOCS / "benchmarks.md": [*ON_GPU, *BENCHMARKS], DOCS / "how-cost-grows.md": [GROWTH]}
WITHOUT_ROUNDS = ("accuracy", "models", "tables")
MARK = "<!-- below: made of benchmarks/results/ by `python benchmarks/bench.py --docs` -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*BENCHMARKS, GROWTH]
    parser.add_argument("names", nargs="*", metavar="name", help=" | ".join(names))
    parser.add_argument("--rounds", type=int, help="of all but accuracy, models and tables; by default their own")
    parser.add_argument("--nvtabular", help="an interpreter that can import nvtabular")
    parser.add_argument("--docs", action="store_true", help="renew the pages in docs/")
    parsed = parser.parse_args()
    unknown = sorted(set(parsed.names) - set(names))
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}: {', '.join(names)}")
    possible = [name for name in names if name not in ("models", "tables", "peer_nvtabular", "whole_tables_large")]
    possible += ["peer_nvtabular"] if parsed.nvtabular else []
    for name in parsed.names or ([] if parsed.docs else possible):
        options = ["--rounds", str(parsed.rounds)] if parsed.rounds and name not in WITHOUT_ROUNDS else []
        options += ["--nvtabular", parsed.nvtabular] if name == "peer_nvtabular" else []
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options], check=True)
        print(f"\n{markdown(name, read(name))}\n", flush=True)
    if parsed.docs:
        for page, told in PAGES.items():
            write_page(page, [name for name in told if result_file(name).exists()])


def write_page(page: Path, names: list[str]) -> None:
    """What stands above the mark, and below it the sections of these benchmarks; their plots beside the page."""
    text, mark, _ = page.read_text().partition(MARK)
    page.write_text("\n\n".join([text + mark, *(markdown(name, read(name)) for name in names)]) + "\n")
    for name in names:
        for file, picture in pictures(name, read(name)).items():
            (page.parent / "plots").mkdir(exist_ok=True)
            (page.parent / "plots" / f"{file}.svg").write_text(picture)


def result_file(name: str) -> Path:
    return RESULTS / (f"{name}.json" if name in ON_GPU else f"{name}_cpu.json")


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(result_file(name).read_text())
    return result


if __name__ == "__main__":
    main()
