"""What `make bench` runs: each benchmark in a process of its own, one after the other.

    python benchmarks/bench.py [NAME ...] [--rounds N] [--nvtabular PYTHON] [--docs]

Without names all of them but `models`, which takes most of an hour, and `peer_nvtabular` only where its interpreter is
given. Each writes
`benchmarks/results/NAME_cpu.json`, and its table is printed; `--docs` puts the tables of all result files that are
there into `docs/benchmarks.md`, and runs only what is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from environment import HERE, RESULTS, shown

BENCHMARKS = {
    "etl": "From Parquet to features",
    "joins": "Joins and a group's mean",
    "large": "Ten times as many rows",
    "vocabulary": "Ever more distinct values",
    "cluster": "Two workers beside one",
    "peer_nvtabular": "NVTabular's own kind of job",
    "operators": "Each operator by itself",
    "loader": "Shuffled batches",
    "trainer": "The training loop beside one by hand",
    "accuracy": "The demonstration's model",
    "models": "Every network beside the baselines",
}
TASKS = {
    "late": "Whether a flight arrives more than 15 minutes late",
    "minutes": "How many minutes late a flight arrives",
}
PAGE = HERE.parent / "docs" / "benchmarks.md"
MARK = "<!-- below: made of benchmarks/results/ by `python benchmarks/bench.py --docs` -->"
UNITS = {
    "cpu_s": "CPU s",
    "wall_s": "wall s",
    "peak_gb": "peak GB",
    "auc": "AUC",
    "rmse": "RMSE",
    "fit_s": "seconds to fit",
    "million_rows_per_s": "million rows/s",
}


def markdown(name: str, result: dict[str, Any]) -> str:
    """A result's figures, its bars, and where they come from."""
    tables = {"loader": loader_tables, "operators": operators_table, "trainer": trainer_table, "models": models_tables}
    made = tables[name](result) if name in tables else figures_table(result["figures"])
    bars = loader_bars(result) if name == "loader" else result["bars"]
    lines = [[b["what"], f"{b['found']:.4g}", b["bar"], "held" if b["met"] else "**missed**"] for b in bars]
    asked = [table(["asked for", "found", "bar", ""], lines)] if lines else []
    return "\n\n".join([f"## {BENCHMARKS[name]}", *made, *asked, provenance(result)])


def models_tables(result: dict[str, Any]) -> list[str]:
    made = []
    for task, found in result["figures"].items():
        name, _, rows = task.partition(", ")
        made += [f"{TASKS[name]}, {rows}:", *figures_table(found)]
    return made


def figures_table(figures: dict[str, Any]) -> list[str]:
    keys = list(next(iter(figures.values())))
    digits = {"auc": 4, "rmse": 2, "peak_gb": 2, "million_rows_per_s": 2}
    rows = [[name, *(shown(found[k], digits=digits.get(k, 1)) for k in keys)] for name, found in figures.items()]
    return [table(["", *(UNITS[key] for key in keys)], rows)]


def loader_tables(result: dict[str, Any]) -> list[str]:
    """One table per number of threads."""
    rows, made = result["setting"]["rows"], []
    for threads, figures in result["figures"].items():
        lines = [
            [
                name,
                *(shown(found[key], 1e3, 0) for key in ("wall_s", "cpu_s")),
                f"{rows / found['wall_s']['median'] / 1e6:.2f}",
            ]
            for name, found in figures.items()
        ]
        made.append(table([threads.replace("1 threads", "1 thread"), "wall ms", "CPU ms", "million rows/s"], lines))
    return made


def trainer_table(result: dict[str, Any]) -> list[str]:
    """What each costs over the loop by hand that ran in turns with it."""
    head = ["", "ms a step", "by hand", "more", "95 % of the ratio", "CPU ms", "by hand"]
    lines = []
    for batch, figures in result["figures"].items():
        for name, found in figures.items():
            wall, cpu = found["wall"], found["cpu"]
            low, high = wall["ratio"]["interval"]
            told = [shown(wall[key], digits=3) for key in ("ms", "by_hand_ms", "difference_ms")]
            spent = [shown(cpu[key], digits=3) for key in ("ms", "by_hand_ms")]
            lines.append([f"{name}, {batch}", *told, f"{low:.3f} to {high:.3f}", *spent])
    setting = result["setting"]
    told = (
        [f"Versions: {', '.join(f'{n} {v}' for n, v in setting['versions'].items())}."] if setting["versions"] else []
    )
    told += [f"Not installed, and left out: {', '.join(setting['not_installed'])}."] if setting["not_installed"] else []
    return [table(head, lines), *told]


def loader_bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    """How many times as fast ours is, by the clock, for each number of threads."""
    bars = []
    for threads, figures in result["figures"].items():
        for name, least in result["bars"].items():
            found = figures[name]["wall_s"]["median"] / figures["gpupipe"]["wall_s"]["median"]
            what = f"gpupipe as fast as {name}, {threads.replace('1 threads', '1 thread')}"
            bars.append({"what": what, "bar": f"at least {least:g} x", "found": found, "met": found >= least})
    return bars


def operators_table(result: dict[str, Any]) -> list[str]:
    """A line for each operator, how many times ours each engine takes, and whether a bar was missed."""
    missed = {bar["what"].partition(":")[0] for bar in result["bars"] if not bar["met"]}
    engines = ("gpupipe", "Polars", "scikit-learn")
    rows = []
    for name, found in result["figures"].items():
        ours = found["gpupipe"]["median"]
        cells = [f"**{name}**" if name in missed else name, result["operators"][name]["kind"]]
        for engine in engines:
            cell = shown(found[engine], digits=0) if engine in found else "-"
            few = engine == "scikit-learn" and engine in found and result["operators"][name]["slow"]
            cells.append(f"{cell} †" if few else cell)
        cells += [f"{found[e]['median'] / ours:.2f}" if e in found else "-" for e in engines[1:]]
        rows.append(cells)
    times = [f"{engine} / gpupipe" for engine in engines[1:]]
    note = "CPU milliseconds per million rows. † of the first million rows. Bold: a bar is missed."
    return [table(["operator", "kind", *engines, *times], rows), note]


def table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def provenance(result: dict[str, Any]) -> str:
    machine = result["machine"]
    names = ("numpy", "pandas", "pyarrow", "polars", "scikit_learn", "torch")
    found = machine["libraries"]
    libraries = ", ".join(f"{name.replace('_', '-')} {found[name]}" for name in names if name in found)
    kind = result.get("setting", {}).get("file_system")
    place = f" The files lay in {kind}." if kind else ""
    changed = " with uncommitted changes" if machine["uncommitted_changes"] else ""
    return (
        f"{machine['date']}, commit `{machine['commit'][:12]}`{changed}. {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {'no GPU' if not machine['gpus'] else ', '.join(machine['gpus'])}; Python "
        f"{machine['python']}, {libraries}. Load average {machine['load_before']} before the first round, "
        f"{machine['load_after']} after the last.{place}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=" | ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, help="of all but accuracy and models; by default their own")
    parser.add_argument("--nvtabular", help="an interpreter that can import nvtabular")
    parser.add_argument("--docs", action="store_true", help="renew docs/benchmarks.md")
    parsed = parser.parse_args()
    unknown = sorted(set(parsed.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark is called {unknown[0]!r}: {', '.join(BENCHMARKS)}")
    possible = [name for name in BENCHMARKS if name not in ("models", "peer_nvtabular")]
    possible += ["peer_nvtabular"] if parsed.nvtabular else []
    for name in parsed.names or ([] if parsed.docs else possible):
        options = ["--rounds", str(parsed.rounds)] if parsed.rounds and name not in ("accuracy", "models") else []
        options += ["--nvtabular", parsed.nvtabular] if name == "peer_nvtabular" else []
        subprocess.run([sys.executable, str(HERE / f"{name}.py"), *options], check=True)
        print(f"\n{markdown(name, read(name))}\n", flush=True)
    if parsed.docs:
        text, mark, _ = PAGE.read_text().partition(MARK)
        found = [name for name in BENCHMARKS if result_file(name).exists()]
        PAGE.write_text("\n\n".join([text + mark, *(markdown(name, read(name)) for name in found)]) + "\n")


def result_file(name: str) -> Path:
    return RESULTS / f"{name}_cpu.json"


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(result_file(name).read_text())
    return result


if __name__ == "__main__":
    main()
