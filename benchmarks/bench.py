"""What `make bench` runs: each benchmark in a process of its own, one after the other.

    python benchmarks/bench.py [etl] [loader] [accuracy] [--rounds N] [--docs]

Without names all of them. Each prints its table and writes `benchmarks/results/NAME_cpu.json`; `--docs` then puts the
tables of all result files into `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from environment import RESULTS, ROOT, markdown

BENCHMARKS = {"etl": "Tables to features", "loader": "Shuffled batches", "accuracy": "The demonstration"}
PAGE = ROOT / "docs" / "benchmarks.md"
MARK = "<!-- below: from benchmarks/results/ by `benchmarks/bench.py --docs` -->"


def write_page() -> None:
    """Put the tables of the result files below the mark of the page."""
    text, mark, _ = PAGE.read_text().partition(MARK)
    parts = [text + mark]
    for name, title in BENCHMARKS.items():
        found = RESULTS / f"{name}_cpu.json"
        if found.exists():
            parts.append(f"## {title}\n\n{markdown(json.loads(found.read_text()))}")
    PAGE.write_text("\n\n".join(parts) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=" | ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, help="of etl and loader; by default their own")
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md")
    parsed = parser.parse_args()
    unknown = set(parsed.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark is called {sorted(unknown)}: {list(BENCHMARKS)}")
    for name in parsed.names or BENCHMARKS:
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py"))]
        rounds = ["--rounds", str(parsed.rounds)] if parsed.rounds and name != "accuracy" else []
        subprocess.run([*command, *rounds], check=True)
    if parsed.docs:
        write_page()


if __name__ == "__main__":
    main()
