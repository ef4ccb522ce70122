"""The files that one numeric column passes between `read_parquet` and the first batch.

python docs/column_way.py          print them
python docs/column_way.py --write  and write them into docs/architecture.md
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- the way of a column: made by docs/column_way.py -->", "<!-- its end -->"


def run() -> list[str]:
    """Run README's program with one column, and list the files whose functions are called."""
    import gpupipe as gp
    from gpupipe import preprocessing as pre

    package, called = str(ROOT / "gpupipe"), set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            called.add(code.co_filename.removeprefix(package + "/"))

    def program() -> None:
        train = gp.read_parquet(ROOT / "data/flights.parquet", backend="cpu")
        features = gp.Features((["dep_delay"], [pre.SimpleImputer(), pre.StandardScaler()]), target="arr_delay > 15")
        pipeline = gp.Pipeline([], features).fit(train)
        next(iter(pipeline.loader(train, shuffle="rows")))

    program()  # imports, compiled loops and caches are no part of the way
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        program()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return sorted(called)


def listing(files: list[str]) -> str:
    """Show the files by folder, as they stand on the page."""
    folders: dict[str, list[str]] = {}
    for file in files:
        folder, _, name = file.rpartition("/")
        folders.setdefault(folder, []).append(name.removesuffix(".py"))
    lines = [f"| `{folder or 'gpupipe'}/` | {', '.join(names)} |" for folder, names in folders.items()]
    return "\n".join([f"{len(files)} files:", "", "| folder | files |", "|---|---|", *lines])


def main() -> None:
    """Show the files, and write them into the page if that is asked for."""
    text = listing(run())
    sys.stdout.write(text + "\n")
    if "--write" in sys.argv:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
