"""A fit that was ended anywhere goes on as if it had not been; and nothing else than a whole checkpoint is taken."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gpupipe.errors import ArtifactError, BadConfig, BadFile, SchemaMismatch
from gpupipe.models import MLP
from gpupipe.training import Callback, Checkpoints, EarlyStopping, Trainer, TrainState, freeze
from gpupipe.training.checkpointing.checkpoints import EXIT_CODE, TENSORS, _digest_items, list_checkpoints
from tests.raising import raises
from tests.training import resumed

ROOT = Path(__file__).parents[3]
STEPS = 80  # of `resumed`
REPEATED = [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(100, 120))]


class Stop(Exception):
    pass


class StopAt(Callback):
    """Ends a fit from inside, with the first update after a step; that step has been saved if it was to be."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: TrainState) -> None:
        if run.step > self.step:
            raise Stop


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def figures(history: Any) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if not k.startswith(("seconds", "rows"))} for row in history]


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Tensor, list[dict[str, float]]]:
    torch.set_num_threads(1)
    model = resumed.model()
    history = resumed.trainer(None, model).fit(*resumed.loaders())
    assert len(history) == 4
    return weights(model), figures(history)


class InterruptAt(StopAt):
    """Ends it as Ctrl-C does."""

    def on_step_end(self, run: TrainState) -> None:
        if run.step > self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("step", "last"), [(45, 40), (5, None)])
def test_whoever_interrupts_a_fit_is_told_how_it_goes_on(tmp_path: Path, step: int, last: int | None) -> None:
    given = {"checkpoints": tmp_path / "saved", "callbacks": [InterruptAt(step)]}
    broken = resumed.trainer(None, resumed.model(), **given)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        broken.fit(*resumed.loaders())
    path = tmp_path / "saved" / f"step-{last or 0:010d}"
    told = [f"last checkpoint: {path}, go on with fit(..., resume='latest')"] if last else []
    assert getattr(interrupted.value, "__notes__", []) == told
    assert len(interrupted.traceback) == 3, "of this test, of answer_calls, of fit"
    with pytest.raises(KeyboardInterrupt) as interrupted:
        resumed.trainer(None, resumed.model(), callbacks=[InterruptAt(1)]).fit(*resumed.loaders())
    assert "Trainer(..., checkpoints='runs/flights')" in interrupted.value.__notes__[0]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"ema_decay": 0.9}, {"accumulate": 3}, {"schedule": "plateau"}], ids=str)
@pytest.mark.parametrize("step", [3, 20, 43])
def test_a_fit_that_goes_on_ends_with_the_same_bits(tmp_path: Path, step: int, arguments: dict[str, Any]) -> None:
    """The step is an update's last where three batches make one of the twenty of an epoch."""
    whole, again = resumed.model(), resumed.model()
    expected = resumed.trainer(None, whole, **arguments).fit(*resumed.loaders())
    arguments = arguments | {"checkpoints": Checkpoints(tmp_path / "saved", every_steps=step)}
    broken = resumed.trainer(None, resumed.model(), callbacks=[StopAt(step)], **arguments)
    with pytest.raises(Stop):
        broken.fit(*resumed.loaders())
    assert list_checkpoints(tmp_path / "saved")[-1].step == step
    history = resumed.trainer(None, again, **arguments).fit(*resumed.loaders(), resume="latest")
    assert torch.equal(weights(again), weights(whole))
    assert figures(history) == figures(expected)


def _run(folder: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "tests.training.resumed", str(folder), str(out), *more]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("repetition", REPEATED)
def test_a_process_that_is_ended_and_started_again(
    tmp_path: Path,
    undisturbed: tuple[Tensor, list[dict[str, float]]],
    repetition: int,
    how: signal.Signals,
) -> None:
    folder, out = tmp_path / "saved", tmp_path / "out.json"
    last = random.Random(repetition).randint(1, STEPS - 5)
    command = _run(folder, out, "0.005", str(last + 4))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=ROOT, text=True, **pipes) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            for line in process.stdout:
                if int(line) == last:
                    break
            process.send_signal(how)
            process.stdin.close()
            process.stdout.read()
            code = process.wait(timeout=60)
        finally:
            process.kill()
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else EXIT_CODE)
    assert not out.exists()
    if how is signal.SIGTERM:
        assert list_checkpoints(folder)[-1].step >= last  # nothing is lost
    subprocess.run(_run(folder, out), env=ENVIRONMENT, cwd=ROOT, timeout=300, check=True)
    values, rows = json.loads(out.read_text())
    expected = undisturbed
    assert torch.equal(torch.tensor(values, dtype=torch.float64), expected[0])
    assert rows == expected[1]
    assert not list(folder.glob(".*"))


class Signalled:
    """A validation loader during which SIGTERM comes."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.schema = loader, loader.schema

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield batch
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_sigterm_during_validation_does_not_wait_for_its_end(
    tmp_path: Path, undisturbed: tuple[Tensor, list[dict[str, float]]]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    train, valid = resumed.loaders()
    with pytest.raises(SystemExit) as caught:
        resumed.trainer(tmp_path, resumed.model()).fit(train, Signalled(valid))
    assert caught.value.code == EXIT_CODE and signal.getsignal(signal.SIGTERM) is before
    assert list_checkpoints(tmp_path)[-1].step == 20
    model = resumed.model()
    history = resumed.trainer(tmp_path, model).fit(train, valid, resume="latest")
    assert torch.equal(weights(model), undisturbed[0]) and figures(history) == undisturbed[1]


def test_the_programs_own_way_to_end_is_asked_after_saving(tmp_path: Path) -> None:
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(len(list_checkpoints(tmp_path))))
    try:

        class Signal(Callback):
            def on_step_end(self, run: TrainState) -> None:
                if run.step == 3:
                    signal.raise_signal(signal.SIGTERM)

        with pytest.raises(SystemExit):
            resumed.trainer(tmp_path, resumed.model(), callbacks=[Signal()]).fit(*resumed.loaders())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [1]


def test_a_fit_outside_the_main_thread_leaves_signals_alone(tmp_path: Path) -> None:
    done: list[int] = []

    def fit() -> None:
        done.append(len(resumed.trainer(tmp_path, resumed.model(), max_epochs=1).fit(*resumed.loaders())))

    thread = threading.Thread(target=fit)
    thread.start()
    thread.join()
    assert done == [1] and list_checkpoints(tmp_path)


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    valid = resumed.loaders()[1]
    worse = iter([0.0, 1.0, 2.0, 3.0, 4.0])

    class Spoil(Callback):
        def on_epoch_end(self, run: TrainState) -> None:
            run.history.rows[-1]["valid_loss"] = next(worse)

    saves = Checkpoints(tmp_path, keep=2)
    trainer = Trainer(resumed.model(), max_epochs=5, callbacks=[Spoil()], checkpoints=saves, progress=False)
    trainer.fit(valid, valid)
    assert [(c.step, c.figure) for c in list_checkpoints(tmp_path)] == [(4, 0.0), (16, 3.0), (20, 4.0)]


def test_a_loader_without_a_state_is_gone_through_again(tmp_path: Path) -> None:
    """It draws its order from torch's generator, as a DataLoader does."""
    x = torch.randn(64, 2)
    loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=4, shuffle=True)

    def trainer(network: nn.Module, *more: Callback) -> Trainer:
        loss = lambda output, batch: (output.squeeze(1) - batch[1]).square()  # noqa: E731
        saves = Checkpoints(tmp_path, every_steps=1) if more else None
        return Trainer(network, max_epochs=3, loss=loss, metrics=[], checkpoints=saves, callbacks=more, device="cpu")

    class Net(nn.Linear):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch[0])

    def net() -> Net:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return Net(2, 1)

    whole, broken, again = net(), net(), net()
    trainer(whole).fit(loader)
    with pytest.raises(Stop):
        trainer(broken, StopAt(21)).fit(loader)
    trainer(again, Callback()).fit(loader, resume=tmp_path)
    assert torch.equal(weights(again), weights(whole))


@pytest.mark.slow
def test_a_dataloader_over_ours_goes_on_in_its_epoch(tmp_path: Path) -> None:
    def fit(network: nn.Module, **arguments: Any) -> None:
        train = DataLoader(resumed.loaders()[0].as_torch(), batch_size=None)
        resumed.trainer(None, network, loss="bce", early_stopping=None, **arguments).fit(
            train, resume="latest" if arguments else None
        )

    whole, again, saves = resumed.model(), resumed.model(), Checkpoints(tmp_path, every_steps=43)
    fit(whole)
    with pytest.raises(Stop):
        fit(resumed.model(), checkpoints=saves, callbacks=[StopAt(43)])
    fit(again, checkpoints=saves)
    assert torch.equal(weights(again), weights(whole))


# what is not taken ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("saved")
    resumed.trainer(folder, resumed.model()).fit(*resumed.loaders())
    return folder


def _fit(folder: Path, resume: Any, model: nn.Module | None = None, loaders: Any = None, **arguments: Any) -> Any:
    own = resumed.trainer(folder, model or resumed.model(), **arguments)  # type: ignore[arg-type]
    return own.fit(*(loaders or resumed.loaders()), resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize(
    "harm", ["cut off", "one bit", "missing", "text", "figure", "trained parameters", "nested", "loader", "best"]
)
def test_a_damaged_checkpoint_is_never_loaded(
    saved: Path, tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    subprocess.run(["cp", "-r", saved, tmp_path / "c"], check=True)
    whole, harmed = list_checkpoints(tmp_path / "c")[-2:]
    tensors = harmed.path / TENSORS
    content = bytearray(tensors.read_bytes())
    if harm == "missing":
        tensors.unlink()
    elif harm == "text":
        state = harmed.path / "state.json"
        state.write_text(state.read_text().replace('\\"epoch\\": 5', '\\"epoch\\": 3'))
    elif harm == "nested":
        (harmed.path / "state.json").write_text("[" * 50_000)
    elif harm in ("loader", "best"):  # left out, and the checksum is right
        about = json.loads((harmed.path / "state.json").read_text())
        text = {name: value for name, value in json.loads(about["text"]).items() if name != harm}
        about |= {"text": json.dumps(text)}
        about["digest"] = _digest_items({name: value for name, value in about.items() if name != "digest"})
        (harmed.path / "state.json").write_text(json.dumps(about))
    elif harm in ("figure", "trained parameters"):
        about = json.loads((harmed.path / "state.json").read_text())
        (harmed.path / "state.json").write_text(json.dumps(about | {harm: 0.0}))
        assert list_checkpoints(tmp_path / "c")[-1].figure is None, "it may not decide which is the best"
    else:
        content[len(content) // 2] ^= 1
        tensors.write_bytes(content[: len(content) // 2] if harm == "cut off" else content)
    with pytest.raises(ArtifactError, match=r"step-0000000080: it is no whole checkpoint"):
        _fit(tmp_path / "c", harmed.path)
    _fit(tmp_path / "c", "latest")
    assert "no whole checkpoint" in caplog.text
    for checkpoint in list_checkpoints(tmp_path / "c"):
        (checkpoint.path / TENSORS).unlink()
    with pytest.raises(ArtifactError, match="no whole checkpoint") as caught:
        _fit(tmp_path / "c", "latest")
    assert "another folder" in str(caught.value.remedy)
    _fit(tmp_path / "d", "latest")
    assert whole.step < harmed.step


def test_what_is_no_checkpoint_is_said(tmp_path: Path) -> None:
    with raises(ArtifactError, where=str(tmp_path / "nothing")) as caught:
        _fit(tmp_path / "c", tmp_path / "nothing")
    assert caught.value.problem == "there is no such folder" and "checkpoints=" in caught.value.remedy
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ArtifactError, match="it is no whole checkpoint"):
        _fit(tmp_path / "c", tmp_path / "nothing")
    with raises(BadConfig, where="Trainer.fit(resume='latest')"):
        resumed.trainer(None, resumed.model()).fit(*resumed.loaders(), resume="latest")


def test_a_checkpoint_of_another_model_or_data_is_refused(saved: Path) -> None:
    other = MLP.from_schema(resumed.SCHEMA, hidden=(16, 9), dropout=0.2, seed=1)
    with pytest.raises(
        SchemaMismatch, match=r"of another model: weight 'layers.3.weight', got 'torch.float32 \(8, 16\)'"
    ) as caught:
        _fit(saved, "latest", other)
    assert "step-0000000080" in caught.value.where
    with pytest.raises(SchemaMismatch, match="of another model: optimizer, got 'AdamW'"):
        _fit(saved, "latest", optimizer="sgd")
    train, valid = resumed.loaders()
    train.batch_size = 64
    fewer = type(train)(resumed.block(600), batch_size=32)
    with pytest.raises(SchemaMismatch, match="of another data set: rows, got 640"):
        _fit(saved, "latest", loaders=(fewer, valid))
    with pytest.raises(SchemaMismatch, match="of another data set: rows, got 640"):
        _fit(saved, "latest", loaders=(list(fewer), valid), loss="bce")
    frozen = resumed.model()
    freeze(frozen, "embedding*")
    with pytest.raises(SchemaMismatch, match=r"trained parameters, got 'embedding\.table'") as caught:
        _fit(saved, "latest", frozen)
    assert "freeze()" in caught.value.remedy


def test_updates_of_other_batches_go_on_where_the_schedule_is_by_epochs(tmp_path: Path) -> None:
    """Between epochs the same rows may come in other batches; in the middle of one they may not."""
    arguments = {"early_stopping": None, "schedule": "linear"}
    _fit(tmp_path, None, max_epochs=2, **arguments)
    train, valid = resumed.loaders()
    larger = type(train)(resumed.block(640), batch_size=64, shuffle="rows", seed=3)
    steps: list[int] = []

    class Note(Callback):
        def on_step_end(self, run: TrainState) -> None:
            steps.append(run.step)
            assert run.last_step == 60

    more = {"accumulate": 4, "callbacks": [Note()], **arguments}
    saves = Checkpoints(tmp_path, every_steps=5, keep=9)
    trainer = resumed.trainer(None, resumed.model(), checkpoints=saves, **more)
    history = trainer.fit(larger, valid, resume="latest")
    assert steps == [44, 48, 50, 54, 58, 60], "counted on"
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)][-3:] == [50, 58, 60]
    assert [row["lr"] for row in history][2:] == pytest.approx([0.01 * (1 - 8 / 12), 0.01 * (1 - 11 / 12)])
    with pytest.raises(SchemaMismatch, match="an epoch of other batches: batches per epoch, got 10") as caught:
        _fit(tmp_path, tmp_path / "step-0000000058", **arguments)
    assert "batch size" in caught.value.remedy


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    "later", [{"ema_decay": 0.9}, {"precision": "fp16-mixed"}, {"early_stopping": EarlyStopping(patience=2)}], ids=str
)
def test_settings_that_come_later_begin_there(tmp_path: Path, later: dict[str, Any], epochs: int) -> None:
    first, again = resumed.model(), resumed.model()
    _fit(tmp_path, None, first, max_epochs=1, early_stopping=None)
    history = _fit(tmp_path, "latest", again, max_epochs=epochs, **{"early_stopping": None, **later})
    assert len(history) == epochs
    assert torch.equal(weights(again), weights(first)) == (epochs == 1)


def test_a_folder_of_another_run_is_not_written_to(saved: Path) -> None:
    with raises(BadConfig, where="Trainer(checkpoints=)", match="of another run"):
        _fit(saved, None)


def test_latest_of_none_starts_from_the_beginning(
    tmp_path: Path, undisturbed: tuple[Tensor, list[dict[str, float]]]
) -> None:
    model = resumed.model()
    _fit(tmp_path / "new", "latest", model)
    assert torch.equal(weights(model), undisturbed[0])


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_the_fit(tmp_path: Path) -> None:
    class TakeAway(Callback):
        def on_epoch_start(self, run: TrainState) -> None:
            shutil.rmtree(tmp_path / "c")
            (tmp_path / "c").touch()

    with pytest.raises(BadFile):
        resumed.trainer(tmp_path / "c", resumed.model(), callbacks=[TakeAway()]).fit(*resumed.loaders())


@pytest.mark.parametrize("arguments", [{"keep": 0}, {"every_steps": 0}, {"every_seconds": -1.0}, {"keep": None}])
def test_numbers_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="makes no sense"):
        Checkpoints("x", **arguments)


def test_every_so_many_seconds(tmp_path: Path) -> None:
    saves = Checkpoints(tmp_path, every_seconds=1e-9, every_epochs=None, keep=100)
    Trainer(resumed.model(), max_epochs=1, checkpoints=saves, progress=False).fit(resumed.loaders()[1])
    assert [c.step for c in list_checkpoints(tmp_path)] == [1, 2, 3, 4]


def test_other_state(problem: Callable[..., Any]) -> None:
    """What a state may hold comes back as it was."""
    from gpupipe.training.checkpointing.checkpoints import snapshot
    from gpupipe.training.loop.batches import join_tensors, split_tensors

    tree = {"a": (1, None, True, [2.5, {3: torch.ones(2), (1, "x"): "y"}]), "$b": float("inf"), "c": torch.tensor(7)}
    text, tensors = split_tensors(tree)
    copies, event = snapshot(tensors)
    tensors["0"].zero_()
    back = join_tensors(json.loads(json.dumps(text)), copies)
    assert event is None and torch.equal(back["a"][3][1][3], torch.ones(2)) and back["c"] == 7
    assert back["a"][:3] == (1, None, True) and back["$b"] == float("inf") and back["a"][3][1][1, "x"] == "y"
    with raises(BadConfig, where="checkpoint", got="object"):
        split_tensors({"a": object()})


def test_a_second_fit_in_the_same_folder_names_the_first(tmp_path: Path) -> None:
    class Second(Callback):
        def on_epoch_end(self, run: TrainState) -> None:
            with pytest.raises(BadFile, match=rf"c: process {os.getpid()} on .* writes to it"):
                _fit(tmp_path / "c", "latest")

    _fit(tmp_path / "c", None, callbacks=[Second()])
    _fit(tmp_path / "c", "latest")  # the first has ended
