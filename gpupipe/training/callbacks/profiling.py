"""A trace of some updates: which part of one takes how long, on the host and on the device."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerAction, ProfilerActivity, profile

from gpupipe.support.files import writing
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.cuda.profiler_ranges import named, named_for_nsight, unnamed
from gpupipe.training.loop.train_state import Run

__all__ = ["Profiling"]

TRACE = "trace.json"
SKIPPED, WARMING, TRACED = 10, 2, 20


class Profiling(Callback):
    """Traces twenty updates (after ten, where there are enough) into a file that Perfetto opens.

    The parts are named data, forward, backward and optimizer, there and, on a GPU, as NVTX ranges for Nsight Systems.

    Args:
        folder: gets trace.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_fit_start(self, run: Run) -> None:
        """Start counting updates."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        left = (run.last_step - run.step) // run.update.accumulate  # of updates, at the least
        first = SKIPPED if left > SKIPPED + WARMING + TRACED else 0

        def action(step: int) -> ProfilerAction:
            if first <= step < first + WARMING:
                return ProfilerAction.WARMUP
            if first + WARMING <= step < first + WARMING + TRACED - 1:
                return ProfilerAction.RECORD
            return ProfilerAction.RECORD_AND_SAVE if step == first + WARMING + TRACED - 1 else ProfilerAction.NONE

        on_gpu = run.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._profile = profile(activities=activities, schedule=action, on_trace_ready=self._export)
        run.range = run.update.range = named_for_nsight if on_gpu else named
        self._profile.start()

    def on_step_end(self, run: Run) -> None:
        """Count."""
        self._profile.step()

    def on_fit_end(self, run: Run) -> None:
        """Write what there is."""
        self._profile.stop()
        run.range = run.update.range = unnamed

    def on_exception(self, run: Run, error: BaseException) -> None:
        """The same."""
        self.on_fit_end(run)

    def _export(self, traced: profile) -> None:
        traced.export_chrome_trace(str(self.folder / TRACE))
