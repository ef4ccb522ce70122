"""The section of real tables: what each model comes to, and its error on each table."""

from __future__ import annotations

from typing import Any

import plots

GROUPS = {
    "tune": "Tables that defaults were chosen by",
    "judge": "Tables that nothing was chosen by",
    "flights": "Flights, by rows to learn from and months tested",
}
OURS = ("default", "MLP", "TabM", "ResNet", "DCNv2", "FTTransformer", "XGB,")
SUMMARY = {
    "median": ("median ratio", ".3f"),
    "worst": ("worst", ".2f"),
    "mean_rank": ("mean rank", ".1f"),
    "behind_linear": ("behind linear by more than 3 %", "d"),
    "failed": ("failed", "d"),
    "cpu_s": ("CPU s", ".0f"),
    "seeds": ("seeds", "d"),
}
Lines = tuple[list[str], list[list[str]]]


def list_tables(result: dict[str, Any]) -> list[tuple[str, Lines]]:
    """A caption and lines for each table of the section."""
    sections = []
    for group, ranks in result["ranks"].items():
        names = result["groups"][group]
        summary = [
            [model, *(format(each[key], how) for key, (_, how) in SUMMARY.items())] for model, each in ranks.items()
        ]
        head = ["", *(title for title, _ in SUMMARY.values())]
        others = result["not_measured"][group]
        left = f"; not measured: {', '.join(others)}" if others else ""
        sections.append((f"{GROUPS[group]} ({len(names)}{left}):", (head, summary)))
        lines = []
        for name in names:
            about, found = result["tables"][name], result["figures"][name]
            ratios = [_format_ratio(found.get(model, {})) for model in ranks]
            lines.append([name, f"{about['rows']:,}", about["task"], f"{about['better']:.4g}", *ratios])
        head = ["table", "rows", "task", "error of the better of two", *ranks]
        sections.append(("Ratios of the errors, medians over the seeds:", (head, lines)))
    return sections


def _format_ratio(entry: dict[str, Any]) -> str:
    if "failed" in entry:
        return "failed"
    return f"{entry['ratio']['median']:.3f}" if entry else "-"


def draw_ranks(result: dict[str, Any]) -> str:
    """The mean rank of each model on the tables that nothing was chosen by."""
    ranks = {model: each["mean_rank"] for model, each in result["ranks"]["judge"].items()}
    spreads = {model: dict.fromkeys(("median", "min", "max"), ranks[model]) for model in sorted(ranks, key=ranks.get)}
    return plots.bars("Mean rank", "of real tables that nothing was chosen by", spreads, ours=OURS)
