"""A fit's figures as files that other programs read: CSV, lines of JSON, TensorBoard's events.

Each logger gets a row once per `log_every` batches (loss, lr, rows_per_second, data_wait) and one per epoch (the
history's). A fit that goes on from a checkpoint appends, and takes back what was logged after that.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from gpupipe.errors import BackendMissing
from gpupipe.support.files import writing
from gpupipe.support.validation import check_path
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.loop.train_state import Run

__all__ = ["CSVLogger", "JSONLinesLogger", "TensorBoardLogger"]


class JSONLinesLogger(Callback):
    """One JSON object per line: `{"step": 100, "epoch": 1, "loss": 0.41, ...}`, and `"event": "epoch"` at its end.

    A figure that is not finite is null. Each line is in the file as soon as it is known.

    Args:
        path: of the file; its folder is made.

    Example:
        >>> JSONLinesLogger("runs/flights/log.jsonl").path.name
        'log.jsonl'
    """

    def __init__(self, path: str | Path) -> None:
        check_path(self, path=path)
        self.path = Path(path)

    def on_fit_start(self, run: Run) -> None:
        """Make the folder, and a new file; where the fit goes on from a checkpoint, one of what came before that."""
        if not run.step or not self.path.is_file():
            with _opened(self.path, "w"):
                return
        draft = self.path.with_name(f".{self.path.name}.tmp")
        with writing(self.path):
            with _opened(draft, "w") as file:
                file.writelines(f"{line}\n" for line in _lines_until(run, self.path))
            draft.replace(self.path)

    def on_log(self, run: Run) -> None:
        """Write the figures."""
        self._write({"event": "log", "step": run.step, "epoch": run.epoch, **run.figures})

    def on_epoch_end(self, run: Run) -> None:
        """Write the epoch's row."""
        self._write({"event": "epoch", "step": run.step, **run.history.rows[-1]})

    def _write(self, row: dict[str, Any]) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with _opened(self.path, "a") as file:
            file.write(json.dumps(plain) + "\n")


class CSVLogger(Callback):
    """The history as a CSV file: a line per epoch, columns as in the history.

    Args:
        path: of the file; its folder is made.

    Example:
        >>> CSVLogger("runs/flights/history.csv").path.name
        'history.csv'
    """

    def __init__(self, path: str | Path) -> None:
        check_path(self, path=path)
        self.path = Path(path)

    def on_epoch_end(self, run: Run) -> None:
        """Write all epochs: a figure may be missing in some, and columns have to be the same for all."""
        names = list(dict.fromkeys(name for row in run.history for name in row))
        with _opened(self.path, "w") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(run.history)


class TensorBoardLogger(Callback):
    """Scalars for TensorBoard: `log/...` over updates, `epoch/...` over epochs.

    Args:
        folder: for `tensorboard --logdir`.

    Raises:
        BackendMissing: TensorBoard is not installed.

    Example:
        >>> TensorBoardLogger("runs/flights").folder.name  # doctest: +SKIP
        'flights'
    """

    def __init__(self, folder: str | Path) -> None:
        check_path(self, folder=folder)
        self.folder = Path(folder)
        try:
            # torch.utils.tensorboard imports TensorBoard, which is optional.
            self._module = importlib.import_module("torch.utils.tensorboard")
        except ImportError as cause:
            raise BackendMissing(
                "TensorBoardLogger",
                "TensorBoard is not installed",
                expected="the package tensorboard",
                remedy="pip install tensorboard",
            ) from cause

    def on_fit_start(self, run: Run) -> None:
        """Open a file; what an earlier run logged after the checkpoint this one goes on from is hidden."""
        with writing(self.folder):
            self._writer = self._module.SummaryWriter(self.folder, purge_step=run.step or None)

    def on_log(self, run: Run) -> None:
        """Write the figures."""
        for name, value in run.figures.items():
            self._writer.add_scalar(f"log/{name}", value, run.step)

    def on_epoch_end(self, run: Run) -> None:
        """Write the epoch's row."""
        for name, value in run.history.rows[-1].items():
            if name != "epoch":
                self._writer.add_scalar(f"epoch/{name}", value, run.epoch)
        self._writer.flush()

    def on_fit_end(self, run: Run) -> None:
        """Close the file."""
        self._writer.close()

    def on_exception(self, run: Run, error: BaseException) -> None:
        """Close the file."""
        self._writer.close()


def _lines_until(run: Run, path: Path) -> list[str]:
    """What an earlier run had logged when it saved what this one goes on from."""
    kept = []
    for line in path.read_text("utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # cut short by the end of that run
            continue
        match row:
            case {"event": "epoch", "epoch": int(epoch)}:
                later = epoch > len(run.history)
            case {"event": "log", "step": int(step)}:
                later = step > run.step
            case _:  # somebody else's
                later = False
        if not later:
            kept.append(line)
    return kept


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[str]]:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="") as file:
            yield file
