"""What a pipeline knows of the data it is given: what is expected of it, what the fit's was like, what was found."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gpupipe.check_report import CheckReport
from gpupipe.drift import Drift, DriftReport
from gpupipe.errors import NotFitted
from gpupipe.expectations import Expectations
from gpupipe.io import Dataset
from gpupipe.preprocessing import Categorify
from gpupipe.preprocessing.vocabulary import FIRST
from gpupipe.profiles import Profile
from gpupipe.watching import Ledger, Warnings, Watch, rows_in

__all__ = ["Watched"]


class Watched:
    """The part of a pipeline that looks at data beside the work, and reports.

    Args:
        expectations: of the columns of the data as it is read.
        drift: how far other rows may be from those of the fit; None compares nothing.
    """

    def __init__(self, expectations: Expectations, drift: Drift | None) -> None:
        self.expectations, self.drift = expectations, drift
        self.forget({})

    def forget(self, profiles: Mapping[str, Profile]) -> None:
        """Forget all data; other data is compared with these profiles, by column, from now on."""
        self.profiles = dict(profiles)
        self._warnings = Warnings()
        self._ledger: Ledger | None = None

    def watch(
        self, data: Any, categories: Mapping[str, tuple[str, Categorify]] | None, given: Any = None
    ) -> Watch | None:
        """What looks at a Dataset or a frame, of which the reports tell from now on; None where nothing does.

        Args:
            data: the rows.
            categories: the columns that become ids, as `categories_of` has them; None where there are no features.
            given: what a user gave for them, of which no warning is logged twice.
        """
        partitions = data.partitions if isinstance(data, Dataset) else []
        total = sum(partition.num_rows for partition in partitions) if partitions else len(data)
        compares = self.drift is not None and categories is not None and total >= self.drift.min_rows
        profiles = self.profiles if compares else {}
        looks = bool(profiles or self.expectations.by_name)
        rows = rows_in(data if given is None else given) if looks else None
        self._ledger = Ledger(
            self.expectations,
            profiles,
            self.drift,
            partitions,
            total if looks else 0,
            partial(self._warnings.once, rows),
        )
        if not looks:
            return None
        ids = {
            name: (output, FIRST + len(step.vocabularies_[name]))
            for name, (output, step) in (categories or {}).items()
            if name in profiles
        }
        return Watch(self.expectations, profiles, ids, self._ledger.mailbox, total)

    def check_report(self) -> CheckReport:
        """What was not as `expect=` says in the data last transformed, loaded or scored; of partitions seen so far.

        Raises:
            NotFitted: there was no data yet.
        """
        return self._heard.check_report()

    def drift_report(self) -> DriftReport:
        """How the data last transformed, loaded or scored differs from that of the fit; of partitions seen so far.

        Raises:
            NotFitted: there was no data yet.

        Example:
            >>> import pandas as pd
            >>> from gpupipe import Features, Pipeline, preprocessing as pre
            >>> flights = pd.DataFrame({"distance": [float(number) for number in range(2000)]})
            >>> pipeline = Pipeline([], Features((["distance"], pre.StandardScaler()))).fit(flights)
            >>> _ = pipeline.transform(flights + 500.0)
            >>> pipeline.drift_report()
            2,000 rows compared: 1 of 1 column moved
            column     mean (stds)  PSI     unknown  missing  moved
            threshold  0.25         0.2     0.05     0.05
            distance   +0.866       +1.728           +0.000   mean, psi
        """
        return self._heard.drift_report()

    @property
    def _heard(self) -> Ledger:
        if self._ledger is None:
            raise NotFitted(
                "Pipeline", "no data was looked at", expected="rows given to it", remedy="pipeline.transform(frame)"
            )
        return self._ledger

    def __getstate__(self) -> dict[str, Any]:
        """Without what is known of data it was given: that stays with the pipeline that was."""
        return vars(self) | {"_ledger": None}
