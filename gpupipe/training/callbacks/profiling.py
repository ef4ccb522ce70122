"""Profiling: a trace of some updates, by part, on the host and on the device."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerAction, ProfilerActivity, profile

from gpupipe.support.files import writing
from gpupipe.training.callbacks.callback import Callback
from gpupipe.training.cuda.profiler_ranges import no_range, record_nvtx_range, record_range
from gpupipe.training.loop.train_state import TrainState

TRACE = "trace.json"
SKIPPED, WARMING, TRACED = 10, 2, 20


class Profiling(Callback):
    """Profiler trace of twenty updates (after ten if there are enough) in a file that Perfetto opens.

    The parts are named data, forward, backward and optimizer, there and, on a GPU, as NVTX ranges for Nsight Systems.

    Args:
        folder: gets trace.json.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def on_fit_start(self, run: TrainState) -> None:
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
        run.range = run.update.range = record_nvtx_range if on_gpu else record_range
        self._profile.start()

    def on_step_end(self, run: TrainState) -> None:
        """Count an update."""
        self._profile.step()

    def on_fit_end(self, run: TrainState) -> None:
        """Write the trace."""
        self._profile.stop()
        run.range = run.update.range = no_range

    def on_exception(self, run: TrainState, error: BaseException) -> None:
        """Write the trace."""
        self.on_fit_end(run)

    def _export(self, traced: profile) -> None:
        traced.export_chrome_trace(str(self.folder / TRACE))
