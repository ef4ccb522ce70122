"""A fit that goes where the rows are: the trainer is handed to a loader whose rows lie in other processes."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from gpupipe.errors import BadConfig
from gpupipe.training.callbacks.history import History
from gpupipe.training.loop.settings import TrainerSettings

__all__ = ["Elsewhere", "fit_elsewhere"]


@runtime_checkable
class Elsewhere(Protocol):
    """A loader whose rows lie in other processes."""

    executor: Any
    """Which these are."""

    def fit_there(self, trainer: TrainerSettings, valid: Any, resume: Any) -> History:
        """Fit there; the trainer's model has the weights afterwards."""


def fit_elsewhere(trainer: TrainerSettings, train: Any, valid: Any, resume: Any, executor: Any) -> History:
    """The history of a fit in the processes where all rows lie.

    Raises:
        BadConfig: some lie here, or in other processes than those asked for.
    """
    for loader in (train, valid):
        if loader is None:
            continue
        place = loader.executor if isinstance(loader, Elsewhere) else None
        if place is None or place is not (executor or getattr(train, "executor", None)):
            raise BadConfig(
                "Trainer.fit",
                "the rows of a loader lie in this process" if place is None else "a loader's rows lie on other workers",
                got=type(loader).__name__,
                expected="all loaders' rows on the executor's workers",
                remedy="gp.ClusterLoader(cluster, pipeline, data)",
            )
    history: History = train.fit_there(trainer, valid, resume)
    return history
