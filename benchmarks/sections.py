"""A benchmark's section of the documentation: its tables, a plot, its bars, and where the figures come from."""

from __future__ import annotations

from typing import Any

import plots
from environment import shown
from gpu_sections import ON_GPU, gpu_tables
from table_sections import draw_ranks, list_tables

__all__ = ["BENCHMARKS", "GROWTH", "markdown", "pictures"]

BENCHMARKS = {
    "etl": "From Parquet to features",
    "joins": "Joins and a group's mean",
    "large": "Ten times as many rows",
    "text": "CSV and JSON lines",
    "describe": "A table described",
    "whole_tables": "Whole tables",
    "whole_tables_large": "Whole tables in 4 GB",
    "vocabulary": "Ever more distinct values",
    "cluster": "Two workers beside one",
    "criteo": "Rows of the Criteo logs' shape",
    "peer_nvtabular": "NVTabular's own kind of job",
    "operators": "Each operator by itself",
    "latency": "What a user waits for",
    "loader": "Shuffled batches",
    "trainer": "The training loop beside one by hand",
    "trees": "Trees from loaders",
    "accuracy": "The demonstration's model",
    "models": "Every network beside the baselines",
    "tables": "Real tables",
}
GROWTH = "growth"  # has a page of its own
NETWORKS = ("Linear", "MLP", "ResNet", "DCNv2", "FTTransformer")
WRONG_ORDER = "share of pairs in the wrong order (1 - AUC)"
TASKS = {
    "late": "Whether a flight arrives more than 15 minutes late",
    "minutes": "How many minutes late a flight arrives",
}
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
    """A result's plot, its figures, its bars, and where they come from."""
    tables = {
        "latency": latency_table,
        "loader": loader_tables,
        "operators": operators_table,
        "trainer": trainer_table,
        "trees": trees_tables,
        "whole_tables": whole_tables,
        "models": models_tables,
        "tables": real_tables,
    }
    if name == GROWTH:
        return "\n\n".join([*growth_tables(result), provenance(result)])
    if name in ON_GPU:
        return gpu_section(name, result)
    made = tables[name](result) if name in tables else figures_table(result["figures"])
    bars = loader_bars(result) if name == "loader" else result["bars"]
    asked = bars_table(bars)
    picture = [f"![{BENCHMARKS[name]}](plots/{name}.svg)"] if name != "models" else []
    return "\n\n".join([f"## {BENCHMARKS[name]}", *picture, *made, *asked, provenance(result)])


def pictures(name: str, result: dict[str, Any]) -> dict[str, str]:
    """The result as pictures (SVG) by the names of their files; a GPU's sections have none."""
    if name in ON_GPU:
        return {}
    if name == "models":
        return {_models_file(task): models_plot(task, found) for task, found in result["figures"].items()}
    return {name: plot(name, result)}


def plot(name: str, result: dict[str, Any]) -> str:
    """The one picture of a section."""
    figures = result["figures"]
    if name == "accuracy":
        return plots.bars(BENCHMARKS[name], WRONG_ORDER, wrong_order(figures), digits=4)
    if name == "trainer":
        batch, found = next(iter(figures.items()))
        times = {who: each["wall"]["ms"] for who, each in found.items()}
        times["by hand"] = next(iter(found.values()))["wall"]["by_hand_ms"]
        return plots.bars(f"A step, {batch}", "ms", times, digits=3)
    if name == GROWTH:
        series = {what: {float(size): found for size, found in sizes.items()} for what, sizes in figures.items()}
        return plots.lines("CPU seconds", "rows, columns, distinct values, partitions", "both axes logarithmic", series)
    if name == "operators":
        ratios = {
            operator: ratio(found["Polars"], found["gpupipe"])
            for operator, found in figures.items()
            if "Polars" in found
        }
        return plots.bars("CPU seconds of Polars", "per one of gpupipe: above 1 gpupipe is faster", ratios, ours="")
    if name == "whole_tables":
        times = {
            verb: ratio(found["gpupipe"]["cpu_s"], found["Polars, streaming"]["cpu_s"])
            for verb, found in figures.items()
        }
        return plots.bars("CPU seconds of gpupipe", "per one of Polars: below 1 gpupipe is faster", times, ours="")
    if name == "tables":
        return draw_ranks(result)
    if name == "latency":
        each = {what: {at: seconds * 1e3 for at, seconds in found["cpu_s"].items()} for what, found in figures.items()}
        return plots.bars(BENCHMARKS[name], "CPU ms", each, digits=1)
    if name == "loader":
        figures = next(iter(figures.values()))
    key = "cpu_s" if name != "loader" else "wall_s"
    return plots.bars(BENCHMARKS[name], UNITS[key], {engine: found[key] for engine, found in figures.items()}, digits=2)


def ratio(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """How many times a spread is another, and between what that lies."""
    against = {"median": "median", "min": "max", "max": "min"}
    return {key: one[key] / other[opposite] for key, opposite in against.items()}


def whole_tables(result: dict[str, Any]) -> list[str]:
    """A line for each verb and engine."""
    lines = {f"{verb}, {engine}": each for verb, found in result["figures"].items() for engine, each in found.items()}
    return figures_table(lines)


def gpu_section(name: str, result: dict[str, Any]) -> str:
    """A GPU's tables and bars; a dry run says that it is one."""
    dry = ["**A rehearsal on a CPU: no figure means anything.**"] if result["dry"] else []
    least = {True: "at least ", False: "at most ", None: ""}
    bars = [
        b
        | {
            "what": f"{b['part']}: {b['what']}",
            "bar": "-" if b["bar"] is None else f"{least[b.get('at_least')]}{b['bar']:g}",
        }
        for b in result.get("bars", [])
    ]
    made = [table(*lines) for lines in gpu_tables(result)]
    return "\n\n".join([f"## {ON_GPU[name]}", *dry, *made, *bars_table(bars), provenance(result)])


def bars_table(bars: list[dict[str, Any]]) -> list[str]:
    """What was asked for beside what was found; a bar that nothing was found for is missed."""
    lines = [
        [b["what"], "-" if b["found"] is None else f"{b['found']:.4g}", b["bar"], "held" if b["met"] else "**missed**"]
        for b in bars
    ]
    return [table(["asked for", "found", "bar", ""], lines)] if lines else []


def growth_tables(result: dict[str, Any]) -> list[str]:
    """The exponents, and the figures of each series."""
    made = ["![How CPU seconds grow](plots/growth.svg)"]
    lines = [
        [what, *(f"{found[key]:.2f}" for key in ("all", "largest"))] for what, found in result["exponents"].items()
    ]
    made.append(table(["CPU seconds grow with", "exponent, all sizes", "exponent, the two largest"], lines))
    for what, sizes in result["figures"].items():
        rows = [[f"{int(size):,}", shown(found, digits=2)] for size, found in sizes.items()]
        made.append(table([what, "CPU s"], rows))
    return made


def models_tables(result: dict[str, Any]) -> list[str]:
    made = []
    for task, found in result["figures"].items():
        name, _, rows = task.partition(", ")
        made += [f"{TASKS[name]}, {rows}:", f"![{task}](plots/{_models_file(task)}.svg)", *figures_table(found)]
    return made


def real_tables(result: dict[str, Any]) -> list[str]:
    return [part for caption, lines in list_tables(result) for part in (caption, table(*lines))]


def models_plot(task: str, figures: dict[str, Any]) -> str:
    name, _, rows = task.partition(", ")
    if name == "late":
        return plots.bars(f"{TASKS[name]}, {rows}", WRONG_ORDER, wrong_order(figures), ours=NETWORKS, digits=4)
    errors = {who: each["rmse"] for who, each in figures.items()}
    return plots.bars(f"{TASKS[name]}, {rows}", "RMSE", errors, ours=NETWORKS, digits=2)


def _models_file(task: str) -> str:
    return f"models-{task.replace(', ', '-').replace(' ', '-')}"


def wrong_order(figures: dict[str, Any]) -> dict[str, Any]:
    """Of pairs of one late and one other flight; what AUC leaves, by which bars can be told apart."""
    edges = {"median": "median", "min": "max", "max": "min"}
    return {who: {key: 1 - each["auc"][other] for key, other in edges.items()} for who, each in figures.items()}


def figures_table(figures: dict[str, Any]) -> list[str]:
    keys = list(next(iter(figures.values())))
    digits = {"auc": 4, "rmse": 2, "peak_gb": 2, "million_rows_per_s": 2}
    rows = [[name, *(shown(found[k], digits=digits.get(k, 1)) for k in keys)] for name, found in figures.items()]
    return [table(["", *(UNITS[key] for key in keys)], rows)]


def latency_table(result: dict[str, Any]) -> list[str]:
    """Milliseconds of each job."""
    rows = [
        [name, *(shown(found[key], 1e3) for key in ("wall_s", "cpu_s"))] for name, found in result["figures"].items()
    ]
    return [table(["", "wall ms", "CPU ms"], rows)]


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


def trees_tables(result: dict[str, Any]) -> list[str]:
    """Seconds beside XGBoost by hand, and peak memory by rows."""
    setting = result["setting"]
    kept = setting["kept_rounds"]["gpupipe"]
    caption = f"{setting['train_rows']:,} flights, {kept} rounds kept, one thread, XGBoost {setting['xgboost']}:"
    lines = [
        [size, *(f"{found[key]:.2f}" for key in ("peak_before_gb", "peak_gb")), f"{found['cpu_s']:.0f}"]
        for size, found in result["memory"].items()
    ]
    memory = table(["streamed, 9 columns, 5 rounds", "peak GB before", "peak GB", "CPU s"], lines)
    return [caption, *figures_table(result["figures"]), memory]


def loader_bars(result: dict[str, Any]) -> list[dict[str, Any]]:
    """How many times as fast ours is, by the clock, for each number of threads."""
    bars = []
    for threads, times in result["times"].items():
        for (mine, other, least), ratio in zip(result["bars"], times, strict=True):
            found = ratio["median"]
            what = f"{mine} as fast as {other}, {threads.replace('1 threads', '1 thread')}"
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
    names = ("numpy", "pandas", "pyarrow", "polars", "scikit_learn", "torch", "triton", "cudf", "cuml", "cupy", "rmm")
    found = machine["libraries"]
    libraries = ", ".join(f"{name.replace('_', '-')} {found[name]}" for name in names if name in found)
    kind = result.get("setting", {}).get("file_system")
    place = f" The files lay in {kind}." if kind else ""
    changed = {True: " with uncommitted changes", None: ", changes unknown"}.get(machine["uncommitted_changes"], "")
    gpus = f"{', '.join(machine['gpus'])}, driver {machine['driver']}" if machine["gpus"] else "no GPU"
    commit = (machine["commit"] or "unknown")[:12]
    return (
        f"{machine['date']}, commit `{commit}`{changed}. {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']} GB, {gpus}; Python "
        f"{machine['python']}, {libraries}. Load average {machine['load_before']} before the first round, "
        f"{machine['load_after']} after the last.{place}"
    )
