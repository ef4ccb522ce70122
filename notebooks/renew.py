"""Run the notebooks and keep what they put out in them: `make renew-notebooks`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def renew(path: Path) -> None:
    """Run a notebook and write its outputs into it, without the times of its cells and the version of Python."""
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    metadata = dict(notebook.metadata)
    folder = {"metadata": {"path": HERE}}
    NotebookClient(notebook, timeout=600, record_timing=False, coalesce_streams=True, resources=folder).execute()
    notebook.metadata = nbformat.from_dict(metadata)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, with its path, where ipywidgets are not
    os.environ["TQDM_DISABLE"] = "1"  # bars have the times of one run
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(HERE.glob("*.ipynb")):
        print(path.name)
        renew(path)
