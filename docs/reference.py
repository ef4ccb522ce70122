"""The pages of the site that nobody writes: a reference page for each public module, and the list of decisions.

mkdocs runs it (`hooks` in mkdocs.yml). A name without a docstring, or a docstring of another form, ends the build.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import gpupipe

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Memory", "Example", "Source", "Sources")
LISTED = ("Args", "Attributes", "Raises")
HEAD = re.compile(rf"^({'|'.join(SECTIONS)}):(?: (.*))?$", re.MULTILINE)
# `name, name: text`, and what follows indented; Attributes are written without that indent.
ENTRY = re.compile(r"^(\*{0,2}[\w.`]+(?:, \*{0,2}[\w.`]+)*): ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; called by mkdocs when it has found the written ones."""
    for module in public_modules():
        name = module.__name__.removeprefix("gpupipe.")
        files.append(File.generated(config, f"reference/{name}.md", content=page(module)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Files) -> str:
    """Add a list of all decisions to the page that stands for their folder; called by mkdocs for each page."""
    if page.file.src_uri != "decisions/README.md":
        return markdown
    found = sorted(Path(config.docs_dir, "decisions").glob("[0-9]*.md"))
    titles = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in found]
    return "\n".join([markdown, *(f"- [{title}]({name})" for name, title in titles)])


def public_modules() -> list[ModuleType]:
    """List the package, its folders, and the single files that users import from."""
    names = [f"gpupipe.{item.name}" for item in pkgutil.iter_modules(gpupipe.__path__) if item.ispkg]
    names += [f"gpupipe.{name}" for name in ("config", "errors", "schema", "selectors", "step")]
    modules = (importlib.import_module(name) for name in sorted(names))
    return [gpupipe, *(module for module in modules if getattr(module, "__all__", None))]


def page(module: ModuleType) -> str:
    """Write a module's page: what is at home here in full, what is only passed on as a link."""
    parts = [f"# `{module.__name__}`", described(module, module.__name__)]
    for name in sorted(module.__all__, key=str.casefold):
        item = getattr(module, name)
        if inspect.ismodule(item):
            parts.append(f"## `{name}` {{ #{name} }}\n\n[A module]({name}.md).")
        elif module is not gpupipe and getattr(gpupipe, name, None) is item:
            parts.append(f"## `{name}` {{ #{name} }}\n\nSee [`gpupipe.{name}`](gpupipe.md#{name}).")
        elif inspect.isclass(item) or inspect.isroutine(item):
            parts.append(f"## `{name}` {{ #{name} }}")
            parts.append("\n\n".join(entry(item, name, module)))
        else:
            parts += [f"## `{name}` {{ #{name} }}", f"A value: `{item!r}`." if len(repr(item)) < 200 else "A value."]
    return "\n\n".join(parts) + "\n"


def entry(item: Any, name: str, module: ModuleType) -> Iterator[str]:
    """Write the entry of a function, or of a class with its methods; those of a base on the page are only named."""
    yield f"```python\n{signature(item, name)}\n```"
    if not (item.__module__ or "").startswith("gpupipe"):
        return
    yield described(item, name)
    if not inspect.isclass(item):
        return
    listed_here = [getattr(module, other) for other in module.__all__]
    bases = [base for base in item.__mro__[1:] if any(base is other for other in listed_here)]
    for base in bases:
        yield f"With the methods of [`{base.__name__}`](#{base.__name__})."
    for method, function in methods(item):
        if any(inspect.getattr_static(base, method, None) is function for base in bases):
            continue
        yield f"### `{name}.{method}` {{ #{name}.{method} }}"
        inner = getattr(function, "fget", None) or getattr(function, "func", None)  # a property: read, not called
        if inner is None:
            yield f"```python\n{signature(getattr(function, '__func__', function), method)}\n```"
        # None where the class says what all its methods do.
        yield markdown(inspect.getdoc(inner or getattr(item, method)) or "", f"{name}.{method}")


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class has from gpupipe, its own before those of its bases."""
    seen = set()
    for base in cls.__mro__:
        for method, function in vars(base).items() if base.__module__.startswith("gpupipe") else ():
            inner = getattr(function, "fget", None) or getattr(function, "func", None)
            target = inner or getattr(function, "__func__", function)
            if not method.startswith("_") and inspect.isfunction(target) and method not in seen:
                seen.add(method)
                yield method, function


class _Text:
    """An annotation that is shown as it is written."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text if isinstance(self.text, str) else inspect.formatannotation(self.text)


def signature(item: Any, name: str) -> str:
    """Format the call as it is written, a parameter a line where it is long."""
    try:
        found = inspect.signature(item)
    except ValueError:  # exceptions and enumerations of the standard library have none
        return name
    empty = inspect.Signature.empty
    given = [p for p in found.parameters.values() if p.name not in ("self", "cls") and p.name[0] != "_"]
    given = [p if p.annotation is empty else p.replace(annotation=_Text(p.annotation)) for p in given]
    returns = found.return_annotation
    returns = empty if inspect.isclass(item) or returns is empty else _Text(returns)
    whole = found.replace(parameters=given, return_annotation=returns)
    line = f"{name}{whole}"
    if len(line) <= 88 or not given:
        return line
    after = "" if returns is empty else f" -> {returns!r}"
    rows = []
    for before, parameter in zip([None, *given], given, strict=False):
        first_keyword = parameter.kind is parameter.KEYWORD_ONLY and (
            before is None or before.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        )
        rows += ["    *,"] * first_keyword + [f"    {parameter},"]
    return "\n".join([f"{name}(", *rows, f"){after}"])


def described(item: Any, name: str) -> str:
    """Format the docstring as Markdown."""
    text = inspect.getdoc(item)
    if not text:
        raise ValueError(f"{name} has no docstring")
    return markdown(text, name)


def markdown(text: str, name: str) -> str:
    """Convert a docstring in Google's form to Markdown."""
    heads = list(HEAD.finditer(text))
    parts = [prose(text[: heads[0].start()] if heads else text)]
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):
        body, *after = re.split(r"\n\n(?=\S)", text[head.end() : end].strip("\n"), maxsplit=1)
        body = f"{head[2] or ''}\n{textwrap.dedent(body)}".strip("\n")
        parts.append(f"**{head[1]}**")
        if head[1] == "Example":
            parts.append(f"```pycon\n{body}\n```" if ">>>" in body else prose(body))
        elif head[1] in LISTED and not head[2]:  # else a sentence
            parts.append(listed(body, f"{name}: {head[1]}"))
        else:
            parts.append(prose(body))
        parts += [prose(paragraph) for paragraph in after]  # what is said to the class again, below a section
    return "\n\n".join(part for part in parts if part)


def listed(body: str, where: str) -> str:
    """`name: text` entries as a list."""
    entries: list[str] = []
    for line in body.split("\n"):
        match = ENTRY.match(line)
        if match:
            entries.append(f"- `{match[1].replace('`', '')}`: {line[match.end() :]}")
        elif not entries:
            raise ValueError(f"{where}: {line!r} is no 'name: text'")
        else:
            entries[-1] += f" {line.strip()}"
    return "\n".join(prose(item) for item in entries)


def prose(text: str) -> str:
    """Text whose marks are no Markdown, but for code in backticks and lists."""
    pieces = re.split(r"(`[^`]*`)", text.strip())
    plain = [re.sub(r"([*_\[\]])", r"\\\1", piece).replace("<", "&lt;") for piece in pieces[::2]]
    pieces[::2] = plain
    return "".join(pieces)
