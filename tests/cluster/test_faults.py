"""Whatever is killed, filled, cut off or taken away: the job ends with the same content, or says why not; in time."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client
from distributed.core import Status

import gpupipe as gp
from gpupipe import errors
from gpupipe.cluster.executor import use_executor
from gpupipe.io.stores import Manifest
from tests.cluster.inputs import (
    DAYS,
    ONCE,
    ROOT,
    content,
    environment,
    is_alive,
    pipeline,
    read_days,
    running,
    script,
    state_of,
    until,
)
from tests.cluster.steps import Deadly, KilledOnce, Picky, Roomy

EVERYWHERE = pytest.mark.parametrize("where", ["here", "cluster"])


@pytest.fixture
def inside(where: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs in this process, or on the cluster."""
    with use_executor(request.getfixturevalue("cluster")) if where == "cluster" else nullcontext():
        yield where


@pytest.fixture
def recovering(cluster: gp.Cluster) -> Iterator[gp.Cluster]:
    """A cluster whose workers may be killed; they are there again in the end."""
    before = dict(os.environ)
    yield cluster
    # Both answer: of one that was killed a moment ago the scheduler may not know yet.
    until(lambda: len(cluster._client.run(os.getpid, on_error="ignore")) == 2)
    os.environ.clear()  # Dask sets variables for a worker it starts again, which the cluster takes back in the end
    os.environ.update(before)


# a worker -------------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_while_a_fit_starts(recovering: gp.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed while all workers are asked for their backend, when it has not answered yet."""
    gp.configure(backend="auto")
    recovering._backends.clear()
    victim = min(recovering._client.run(os.getpid).values())
    os.kill(victim, signal.SIGSTOP)
    monkeypatch.setattr(recovering, "_submit", lambda *_: SimpleNamespace(result=int))  # the other one is there
    threading.Timer(2, os.kill, (victim, signal.SIGKILL)).start()
    assert recovering.resolve("auto") == "cpu" and recovering._backends == {"auto": "cpu"}
    monkeypatch.undo()


@pytest.mark.parametrize("repetition", ONCE)
def test_a_worker_that_is_killed_during_fit(
    flights: gp.Dataset, recovering: gp.Cluster, tmp_path: Path, repetition: int
) -> None:
    killed = KilledOnce(repetition, DAYS, tmp_path / "killed")
    together = pipeline(killed).fit(flights, executor=recovering)
    until(lambda: not psutil.pid_exists(killed.victim))
    assert state_of(together) == state_of(pipeline().fit(flights))


@pytest.mark.parametrize("repetition", ONCE)
def test_a_worker_that_is_killed_while_it_writes(
    flights: gp.Dataset, recovering: gp.Cluster, tmp_path: Path, repetition: int
) -> None:
    killed = KilledOnce(repetition, DAYS, tmp_path / "killed")
    undisturbed, disturbed = pipeline(), pipeline(killed)
    undisturbed.fit(flights)
    killed.marker.touch()
    disturbed.fit(flights)
    killed.marker.unlink()
    undisturbed.transform(flights).write_parquet(tmp_path / "alone")
    with use_executor(recovering):
        manifest = disturbed.transform(flights).write_parquet(tmp_path / "together")
    until(lambda: not psutil.pid_exists(killed.victim))
    assert content(tmp_path / "together") == content(tmp_path / "alone")
    assert manifest.rows_out == len(flights) and len(manifest.parts) == DAYS
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "killed", "together"]


@pytest.mark.parametrize("repetition", ONCE)
def test_a_worker_that_is_killed_while_rows_are_gathered_for_a_plan(
    flights: gp.Dataset, recovering: gp.Cluster, tmp_path: Path, repetition: int
) -> None:
    killed = KilledOnce(repetition, DAYS, tmp_path / "killed")
    killed.marker.touch()
    data = pipeline(killed).fit(flights).transform(flights)
    killed.marker.unlink()
    with use_executor(recovering):
        found = data.sort(data.columns[0]).compute()
    until(lambda: not psutil.pid_exists(killed.victim))
    pd.testing.assert_frame_equal(found, data.sort(data.columns[0]).compute())


def test_a_partition_that_kills_every_worker_is_given_up_and_named(
    flights: gp.Dataset, recovering: gp.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovering._client.cluster.scheduler, "allowed_failures", 1)  # three take their time
    fitted = pipeline(Deadly(99)).fit(flights)
    fitted.steps[0].fn.day = 3
    with (
        use_executor(recovering),
        pytest.raises(errors.PartitionFailed, match=r"day03.parquet row group 0: .*KilledWorker"),
    ):
        fitted.loader(flights)
    assert list(recovering.map(abs, [-1])) == [1]


# the driver -----------------------------------------------------------------------------------------------------------

DRIVER = """
import sys
import gpupipe as gp
from tests.cluster.inputs import pipeline, read_days
from tests.cluster.steps import slowly
def main(days, out):
    flights = read_days(days)
    fitted = pipeline().fit(flights)
    fitted.steps[0].fn = slowly
    with gp.Cluster(n_workers=2, gpu=False):
        print(fitted.transform(flights).write_parquet(out).num_done)
if __name__ == "__main__":
    main(*sys.argv[1:])
"""


READER = """
import json, os, sys, time
out, end, looks, whole, size = *sys.argv[1:3], 0, 0, int(sys.argv[3])
def look():
    try:
        folder = os.open(out, os.O_DIRECTORY)  # one folder, whatever has its name a moment later
    except FileNotFoundError:
        return False
    names = sorted(os.listdir(folder))
    with open(os.open("_manifest.json", os.O_RDONLY, dir_fd=folder)) as file:
        listed = [name for part in json.load(file)["parts"] for name in part["files"]]
    assert len(listed) == size and names == sorted([*listed, "_manifest.json"]), (listed, names)
    for name in listed:
        with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
            text = file.read()
        assert text[:4] == text[-4:] == b"PAR1", name
    os.close(folder)
    return True
while not os.path.exists(end):
    whole += look()
    looks += 1
    time.sleep(0.002)
print(looks, whole + look())
"""


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, *(pytest.param(how, marks=pytest.mark.soak) for how in (signal.SIGINT, signal.SIGTERM))]
)
@pytest.mark.parametrize("repetition", ONCE)
def test_a_driver_that_is_ended_and_started_again(
    days: Path, flights: gp.Dataset, tmp_path: Path, repetition: int, how: signal.Signals
) -> None:
    command = [*script(tmp_path / "reader.py", READER), str(tmp_path / "target" / "out"), str(tmp_path / "end")]
    with running([*command, str(DAYS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        _ended_and_started_again(days, flights, tmp_path, random.Random(repetition), how)
        (tmp_path / "end").touch()
        seen, trouble = reader.communicate(timeout=120)
    assert reader.returncode == 0, trouble
    looks, whole = map(int, seen.split())
    assert looks > 100 and whole > 0  # many times, and in the end all of it


def _ended_and_started_again(
    days: Path, flights: gp.Dataset, tmp_path: Path, chance: random.Random, how: signal.Signals
) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    out, drafts = folder / "out", folder / ".out.draft"
    command = [*script(tmp_path / "driver.py", DRIVER), str(days), str(out)]
    with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as driver:
        until(lambda: driver.poll() is not None or list(drafts.glob("*/*.record")))
        time.sleep(chance.uniform(0, 0.6))
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(how)
        driver.communicate(timeout=300)
    assert len(family) >= 2
    until(lambda: not any(map(is_alive, family)))
    records = list(drafts.glob("*/*.record"))
    finished = out.exists()
    parts = {path.name: path.stat() for path in (out if finished else drafts).rglob("part-*.parquet")}
    assert finished or 0 < len(records) <= len(parts) <= DAYS

    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) == (DAYS if finished else len(records))
    pipeline().fit(flights).transform(flights).write_parquet(tmp_path / "alone")
    assert content(out) == content(tmp_path / "alone")
    names = parts if finished else {record.name.replace(".record", ".parquet") for record in records}
    for name in names:  # what was done has not been written again
        assert (out / name).stat().st_ino == parts[name].st_ino
        assert (out / name).stat().st_mtime_ns == parts[name].st_mtime_ns
    assert [p.name for p in folder.iterdir()] == ["out"]


# the disk -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "gpupipe", place], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this user may not mount a file system: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def _resize(place: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", place], check=True)


@pytest.fixture(scope="module")
def fitted(days: Path) -> gp.Pipeline:
    return pipeline().fit(read_days(days))


@EVERYWHERE
@pytest.mark.parametrize("name", ["out", "out.parquet"])
@pytest.mark.parametrize("repetition", ONCE)
def test_a_disk_that_is_full(
    flights: gp.Dataset,
    fitted: gp.Pipeline,
    inside: str,
    small_disk: Path,
    tmp_path: Path,
    name: str,
    repetition: int,
) -> None:
    target, data = small_disk / name, fitted.transform(flights)
    fitted.transform(flights.filter("day == 1")).write_parquet(target)
    earlier = _bytes_of(target)
    used = shutil.disk_usage(small_disk).used
    data.write_parquet(tmp_path / name)
    size = sum(len(text) for text in _bytes_of(tmp_path / name).values())
    _resize(small_disk, (used + int(size * random.Random(repetition).uniform(0.3, 0.9))) // 1024)
    with pytest.raises(errors.BadFile) as caught:
        data.write_parquet(target, overwrite=True)
    said = str(caught.value)
    assert said.startswith(f"{target}: it cannot be written (") and "No space left on device" in said
    assert "Try: the same call again when there is" in said
    assert _bytes_of(target) == earlier  # what was there is there, and nothing else can be seen
    kept = len(list(small_disk.glob(".out.draft/*/*.record")))
    _resize(small_disk, 16 * 1024)
    manifest = data.write_parquet(target, overwrite=True)
    assert kept <= manifest.num_done <= kept + 2  # the workers have ended what they had begun
    assert (kept > 0) == (name == "out")
    if name == "out":
        assert content(target) == content(tmp_path / name)
    assert _bytes_of(target).keys() == _bytes_of(tmp_path / name).keys()
    assert [path.name for path in small_disk.iterdir()] == [name]


def _bytes_of(path: Path) -> dict[str, bytes]:
    """All files, by their names."""
    files = [path] if path.is_file() else [inside for inside in path.rglob("*") if inside.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(files)}


LIMITED = """
import resource, sys
import gpupipe as gp
from tests.cluster.inputs import pipeline, read_days
def main(days, out):
    flights = read_days(days)
    data = pipeline().fit(flights).transform(flights)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for path in (out, out + ".parquet"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, hard))
        try:
            data.write_parquet(path)
        except gp.errors.BadFile as error:
            print(str(error).splitlines()[0])
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        data.write_parquet(path)
if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def test_files_that_may_not_grow(days: Path, flights: gp.Dataset, fitted: gp.Pipeline, tmp_path: Path) -> None:
    """Needs leave to mount nothing: the system ends every file after a few bytes."""
    (tmp_path / "target").mkdir()
    out = tmp_path / "target" / "out"
    command = [*script(tmp_path / "program.py", LIMITED), str(days), str(out)]
    unwritten = environment() | {"PYTHONDONTWRITEBYTECODE": "1"}  # a module's code would be cut off too
    done = subprocess.run(command, env=unwritten, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for path, line in zip((out, out.with_suffix(".parquet")), done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{path}: it cannot be written (") and "File too large" in line
    fitted.transform(flights).write_parquet(tmp_path / "out")
    assert content(out) == content(tmp_path / "out")
    assert sorted(path.name for path in out.parent.iterdir()) == ["out", "out.parquet"]


# inputs ---------------------------------------------------------------------------------------------------------------


@EVERYWHERE
@pytest.mark.parametrize("how", ["truncated", "deleted"])
@pytest.mark.parametrize("repetition", ONCE)
def test_a_file_that_is_gone_after_planning(days: Path, inside: str, tmp_path: Path, how: str, repetition: int) -> None:
    shutil.copytree(days, tmp_path / "in")
    flights = read_days(tmp_path / "in")
    lost = tmp_path / "in" / f"day{random.Random(repetition).randint(1, DAYS):02d}.parquet"
    if how == "deleted":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[: random.Random(repetition).randint(0, 20_000)])
    with pytest.raises(errors.BadFile, match=rf"{lost.name}: row group 0 cannot be read"):
        pipeline().fit(flights)
    with pytest.raises(errors.BadFile, match=rf"{lost.name}: row group 0 cannot be read") as caught:
        flights.write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert any(note.startswith("in partition ") and lost.name in note for note in caught.value.__notes__)


# partitions -----------------------------------------------------------------------------------------------------------


@EVERYWHERE
@pytest.mark.parametrize("repetition", ONCE)
def test_a_partition_that_raises(flights: gp.Dataset, inside: str, tmp_path: Path, repetition: int) -> None:
    day = random.Random(repetition).randint(1, DAYS)
    fitted = pipeline(Picky(99)).fit(flights)
    fitted.steps[0].fn.day = day
    text = (
        rf"day{day:02d}.parquet row group 0: partition {day - 1} failed in step Map\(.*Picky.*, reads=.*\) "
        rf"\(ValueError: no flights on day {day}, please\)"
    )
    for job in (
        lambda: pipeline(Picky(day)).fit(flights),
        lambda: fitted.loader(flights),
        lambda: fitted.transform(flights).write_parquet(tmp_path / "out"),
    ):
        with pytest.raises(errors.PartitionFailed, match=text) as caught:
            job()
        assert isinstance(caught.value.__cause__, ValueError)
        notes = getattr(caught.value, "__notes__", [])
        assert any(note.startswith("on worker tcp://") for note in notes) == (inside == "cluster")
    assert not (tmp_path / "out").exists()


@EVERYWHERE
def test_a_partition_too_large_for_memory_is_halved(
    flights: gp.Dataset,
    inside: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    halved = pipeline(Roomy(300)).fit(flights)
    told = "day01.parquet row group 0: 842 rows are too large for memory (no room for 842 rows), worked on in halves"
    assert told in caplog.text
    assert halved.fit_report is not None and halved.fit_report.num_halved == DAYS
    assert f"{DAYS} partitions in halves for want of memory" in str(halved.fit_report)
    caplog.clear()
    data = halved.transform(flights)
    manifest = data.write_parquet(tmp_path / "halved")
    assert told in caplog.text and told in repr(manifest)
    read = Manifest.read(tmp_path / "halved")
    assert read is not None and all(part.halved for part in read.parts)
    block = next(iter(halved.loader(flights, batch_size=100_000)))
    assert all(len(part.files) == 1 for part in manifest.parts) and len(manifest.parts) == DAYS
    halved.steps[0].fn.max_rows = 10**9
    whole = pipeline().fit(flights)
    assert [_rounded(item) for item in state_of(halved)] == [_rounded(item) for item in state_of(whole)]
    data.write_parquet(tmp_path / "whole")
    assert gp.read_parquet(tmp_path / "halved").compute().equals(gp.read_parquet(tmp_path / "whole").compute())
    assert block.numeric.equal(next(iter(halved.loader(flights, batch_size=100_000))).numeric)


@EVERYWHERE
def test_a_row_too_large_for_memory_is_named(flights: gp.Dataset, inside: str, tmp_path: Path) -> None:
    fitted = pipeline(Roomy(10**9)).fit(flights)
    fitted.steps[0].fn.max_rows = 0
    for job in (lambda: fitted.loader(flights), lambda: fitted.transform(flights).write_parquet(tmp_path / "out")):
        with pytest.raises(
            errors.PartitionFailed, match=r"partition 0 failed in step Map\(.*\) \(MemoryError: no room for 1 rows"
        ) as caught:
            job()
        assert isinstance(caught.value.__cause__, MemoryError)
    assert not (tmp_path / "out").exists()


def _rounded(value: Any) -> Any:
    """Sums of halves are sums in another order."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], bytes):
        return np.frombuffer(value[1], value[0]).astype("float64").round(9).tolist()
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


# the scheduler --------------------------------------------------------------------------------------------------------


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[psutil.Process, str]]:
    """A scheduler of its own, and its address."""
    note = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "dask", "scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard"]
    with running([*command, "--scheduler-file", str(note)], stderr=subprocess.DEVNULL) as process:
        yield psutil.Process(process.pid), until(lambda: note.exists() and _address(note))


def _address(note: Path) -> Any:
    try:
        return json.loads(note.read_text())["address"]
    except ValueError:
        return None


def _worker(address: str) -> Any:
    command = [sys.executable, "-m", "dask", "worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard"]
    return running([*command, "--death-timeout", "20", "--memory-limit", "0"], stderr=subprocess.DEVNULL)


def _lost(job: Callable[[], Any], message: str) -> None:
    """It is an error, and soon: within a minute or two also where other processes take the time."""
    started = time.monotonic()
    with pytest.raises(errors.ClusterLost, match=message):
        job()
    assert time.monotonic() - started < 120


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("repetition", ONCE)
def test_a_scheduler_that_goes_away(
    flights: gp.Dataset, scheduler: tuple[psutil.Process, str], tmp_path: Path, how: signal.Signals, repetition: int
) -> None:
    process, address = scheduler
    with _worker(address), gp.Cluster(address=address, timeout=3) as cluster:
        until(lambda: cluster.num_workers)
        results = cluster.map(
            abs, _counted(lambda: process.send_signal(how), at=random.Random(repetition).randint(0, 9))
        )
        # Which of the three it is depends on what Dask's client was about when it noticed.
        gone = (
            "the connection to the scheduler broke|the scheduler did not answer for 3 s|no scheduler was there for 3 s"
        )
        _lost(lambda: list(results), gone)
        _lost(lambda: flights.write_parquet(tmp_path / "out"), gone)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()


def _counted(act: Callable[[], Any], at: int) -> Iterator[int]:
    for number in range(10):
        if number == at:
            act()
        yield number


def test_a_scheduler_without_workers(scheduler: tuple[psutil.Process, str], flights: gp.Dataset) -> None:
    with gp.Cluster(address=scheduler[1], timeout=6) as cluster:
        _lost(lambda: list(cluster.map(abs, [-1])), "no worker was there for 6 s")
        with _worker(scheduler[1]):
            until(lambda: cluster.num_workers)
            assert list(cluster.map(abs, [-1])) == [1]
            assert state_of(pipeline().fit(flights)) == state_of(pipeline().fit(flights, executor=cluster))


@pytest.mark.parametrize("repetition", ONCE)
def test_workers_that_all_die(scheduler: tuple[psutil.Process, str], repetition: int) -> None:
    with _worker(scheduler[1]) as worker, gp.Cluster(address=scheduler[1], timeout=6) as cluster:
        until(lambda: cluster.num_workers)
        items = _counted(worker.kill, at=random.Random(repetition).randint(0, 9))
        _lost(lambda: list(cluster.map(abs, items)), "no worker was there for 6 s")
        with _worker(scheduler[1]):
            until(lambda: cluster.num_workers)
            assert list(cluster.map(abs, [-1])) == [1]


def test_a_worker_that_dies_while_all_work_together(recovering: gp.Cluster) -> None:
    """The others would wait for it for ever."""
    assert sorted(recovering.call_all(lambda client: client.run(abs, -1)).values()) == [1, 1]
    with pytest.raises(ValueError, match="no number"):
        recovering.call_all(lambda client: client.run(_refuse))
    pids = recovering.call_all(lambda client: client.run(os.getpid))
    threading.Timer(1.0, os.kill, (min(pids.values()), signal.SIGKILL)).start()
    _lost(lambda: recovering.call_all(lambda client: client.run(time.sleep, 20)), "is gone")


def _refuse() -> None:
    raise ValueError("no number")


def test_workers_that_are_paused(scheduler: tuple[psutil.Process, str]) -> None:
    with _worker(scheduler[1]), Client(scheduler[1], set_as_default=False) as client:
        client.wait_for_workers(1, timeout=30)
        with gp.Cluster(address=client, timeout=6) as cluster:
            client.run(_set_status, Status.paused)
            _lost(lambda: list(cluster.map(abs, [-1])), "every worker was paused, nearly out of memory, for 6 s")
            client.run(_set_status, Status.running)
            assert list(cluster.map(abs, [-1])) == [1]


def _set_status(status: Status, dask_worker: Any) -> None:
    dask_worker.status = status


def test_nobody_at_the_address() -> None:
    _lost(lambda: gp.Cluster(address="tcp://127.0.0.1:9", timeout=2), "no scheduler answers")
