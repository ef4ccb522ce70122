"""Words of the package: functions are verbs, and the first line of a docstring says what a function does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "gpupipe"
NOUN_OPENERS = {
    "the",
    "a",
    "an",
    "what",
    "whether",
    "those",
    "these",
    "which",
    "how",
    "where",
    "whose",
    "all",
    "one",
    "its",
    "their",
    "this",
    "that",
    "who",
    "when",
    "each",
    "every",
    "no",
    "none",
    "as",
    "of",
}
PARTICIPLES = {
    "made",
    "found",
    "told",
    "taken",
    "seen",
    "held",
    "known",
    "put",
    "given",
    "kept",
    "drawn",
    "written",
    "shown",
    "sent",
    "said",
    "left",
    "gone",
    "built",
    "chosen",
}
NO_NOUNS = PARTICIPLES - {"left"} | {"asked", "here", "one", "others", "ours", "own", "place", "rest", "some"}
NO_NOUNS |= {"theirs", "there", "these", "those", "wanted"}
SHARE = 0.05


def functions() -> Iterator[tuple[str, ast.FunctionDef, bool]]:
    """Every function and method that is no property, and whether it stands at the top of a module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not any(map(_is_property, node.decorator_list)):
                yield f"{path.relative_to(PACKAGE)}: {node.name}", node, node in tree.body


def _is_property(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) or (
        isinstance(decorator, ast.Name) and decorator.id in {"property", "cached_property"}
    )


def is_no_verb(name: str) -> bool:
    """Whether a name is a participle, as `joined`, or of the form `x_of`, `x_in`, `x_for`."""
    first, *rest = name.strip("_").split("_")
    return (
        first.endswith("ed") or first in PARTICIPLES or first == "of" or bool(rest and rest[-1] in {"of", "in", "for"})
    )


def test_names() -> None:
    assert all(map(is_no_verb, ("joined", "_told_by", "rows_of", "of_files"))) and not is_no_verb("join_rows")
    names = [(where, node.name) for where, node, is_top in functions() if is_top]
    wrong = [where for where, name in names if is_no_verb(name)]
    assert len(wrong) <= SHARE * len(names), "\n".join(wrong)


def test_first_lines() -> None:
    texts = {where: ast.get_docstring(node) for where, node, _ in functions()}
    opens = {where: text.split()[0].strip("`,.:").lower() for where, text in texts.items() if text}
    wrong = [where for where, word in opens.items() if word in NOUN_OPENERS]
    assert len(wrong) <= SHARE * len(opens), "\n".join(wrong)


def test_variables_are_nouns() -> None:
    """A variable, a parameter or a field is named by what it holds: `columns`, not `found`."""
    assigned = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := _assigned_name(node)) is not None and name.lstrip("_") in NO_NOUNS
    }
    assert not assigned, "\n".join(sorted(assigned))


def _assigned_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return node.arg if isinstance(node, ast.arg) else None
