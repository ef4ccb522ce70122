"""Remote fit: the trainer is sent to the processes that hold the loader's rows."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from gpupipe.errors import BadConfig
from gpupipe.training.callbacks.history import History
from gpupipe.training.loop.settings import TrainerSettings


@runtime_checkable
class RemoteRows(Protocol):
    """Loader whose rows are in other processes."""

    executor: Any
    """Which these are."""

    def fit_on_workers(self, trainer: TrainerSettings, valid: Any, resume: Any) -> History:
        """Fit in the processes that hold the rows; the trainer's model has the weights afterwards."""


def fit_on_workers(trainer: TrainerSettings, train: Any, valid: Any, resume: Any, executor: Any) -> History:
    """Fit in the processes that hold all rows, and return the history.

    Raises:
        BadConfig: some rows are in this process, or in other processes than the executor's.
    """
    for loader in (train, valid):
        if loader is None:
            continue
        place = loader.executor if isinstance(loader, RemoteRows) else None
        if place is None or place is not (executor or getattr(train, "executor", None)):
            raise BadConfig(
                "Trainer.fit",
                "the rows of a loader lie in this process" if place is None else "a loader's rows lie on other workers",
                got=type(loader).__name__,
                expected="all loaders' rows on the executor's workers",
                remedy="gp.ClusterLoader(cluster, pipeline, data)",
            )
    history: History = train.fit_on_workers(trainer, valid, resume)
    return history
