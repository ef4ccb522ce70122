"""Loggers: a fit's metrics as CSV, JSON lines or TensorBoard events.

Each logger gets a row once per `log_every` batches (loss, lr, rows_per_second, data_wait) and one per epoch (the
history's). A fit that goes on from a checkpoint appends, and removes the lines logged after it.
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
from gpupipe.training.loop.train_state import TrainState


class _FileLogger(Callback):
    """Logger to a file, whose folder is made."""

    def __init__(self, path: str | Path) -> None:
        check_path(self, path=path)
        self.path = Path(path)

    @contextmanager
    def _open(self, mode: str, path: Path | None = None) -> Iterator[IO[str]]:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with (path or self.path).open(mode, encoding="utf-8", newline="") as file:
                yield file


class JSONLinesLogger(_FileLogger):
    """JSON lines logger: `{"step": 100, "epoch": 1, "loss": 0.41, ...}`, and `"event": "epoch"` at an epoch's end.

    A figure that is not finite is null. Each line is written at once; the file's folder is made.

    Example:
        >>> JSONLinesLogger("runs/flights/log.jsonl").path.name
        'log.jsonl'
    """

    def on_fit_start(self, run: TrainState) -> None:
        """Make the folder and the file; a resumed fit keeps the lines before its checkpoint."""
        if not run.step or not self.path.is_file():
            with self._open("w"):
                return
        draft = self.path.with_name(f".{self.path.name}.tmp")
        with writing(self.path):
            with self._open("w", draft) as file:
                file.writelines(f"{line}\n" for line in self._read_lines_until(run))
            draft.replace(self.path)

    def on_log(self, run: TrainState) -> None:
        """Write the metrics."""
        self._write({"event": "log", "step": run.step, "epoch": run.epoch, **run.metrics})

    def on_epoch_end(self, run: TrainState) -> None:
        """Write the epoch's row."""
        self._write({"event": "epoch", "step": run.step, **run.history.rows[-1]})

    def _write(self, row: dict[str, Any]) -> None:
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        with self._open("a") as file:
            file.write(json.dumps(plain) + "\n")

    def _read_lines_until(self, run: TrainState) -> list[str]:
        """Read the lines that an earlier run had logged before the checkpoint, and somebody else's."""
        kept = []
        for line in self.path.read_text("utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut short by the end of that run
                continue
            match row:
                case {"event": "epoch", "epoch": int(epoch)} if epoch > len(run.history):
                    continue
                case {"event": "log", "step": int(step)} if step > run.step:
                    continue
            kept.append(line)
        return kept


class CSVLogger(_FileLogger):
    """CSV logger: the history as a file, a line per epoch, columns as in the history; the file's folder is made.

    Example:
        >>> CSVLogger("runs/flights/history.csv").path.name
        'history.csv'
    """

    def on_epoch_end(self, run: TrainState) -> None:
        """Write all epochs: a metric may be missing in some, and all lines need the same columns."""
        names = list(dict.fromkeys(name for row in run.history for name in row))
        with self._open("w") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(run.history)


class TensorBoardLogger(Callback):
    """TensorBoard logger: scalars `log/...` over updates, `epoch/...` over epochs, in a folder for `--logdir`.

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
            where, problem = "TensorBoardLogger", "TensorBoard is not installed"
            expected = "the package tensorboard"
            raise BackendMissing(where, problem, expected=expected, remedy="pip install tensorboard") from cause

    def on_fit_start(self, run: TrainState) -> None:
        """Open a file; what an earlier run logged after the checkpoint is hidden."""
        with writing(self.folder):
            self._writer = self._module.SummaryWriter(self.folder, purge_step=run.step or None)

    def on_log(self, run: TrainState) -> None:
        """Write the metrics."""
        for name, value in run.metrics.items():
            self._writer.add_scalar(f"log/{name}", value, run.step)

    def on_epoch_end(self, run: TrainState) -> None:
        """Write the epoch's row."""
        for name, value in run.history.rows[-1].items():
            if name != "epoch":
                self._writer.add_scalar(f"epoch/{name}", value, run.epoch)
        self._writer.flush()

    def on_fit_end(self, run: TrainState) -> None:
        """Close the file."""
        self._writer.close()

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Close the file."""
        self._writer.close()
