"""A cluster gives what one process gives, bit for bit; and how it is opened, refused and closed."""

from __future__ import annotations

import io
import ipaddress
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cloudpickle
import psutil
import pytest
import torch
from distributed import Client, LocalCluster

import gpupipe as gp
from gpupipe import errors
from gpupipe import transforms as T
from gpupipe.cluster.executor import Executor, get_executor, use_executor
from tests.cluster.inputs import DAYS, content, environment, is_alive, pipeline, script, state_of, until
from tests.cluster.steps import slowly
from tests.raising import raises


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_a_fit_gives_the_same_state_on_any_number_of_workers(flights: gp.Dataset, n_workers: int) -> None:
    alone = pipeline().fit(flights)
    with gp.Cluster(n_workers=n_workers, gpu=False) as cluster:
        assert get_executor() is cluster and cluster.num_workers == n_workers
        together = pipeline().fit(flights)
    assert get_executor().in_process
    assert state_of(together) == state_of(alone)
    assert alone.fit_report is not None and 0 < alone.fit_report.unmatched["planes"] < 1


def test_without_gpus_workers_are_on_the_cpu(cluster: gp.Cluster) -> None:
    told = cluster._client.run(lambda: os.environ["GPUPIPE_BACKEND"])
    assert [*told.values()] == ["cpu", "cpu"] and cluster.resolve() == "cpu"


def test_an_executor_is_used_where_it_is_given(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    before = flights.reads.row_groups.total()
    together = pipeline().fit(flights, executor=cluster)
    assert flights.reads.row_groups.total() == before  # this process has read nothing
    assert get_executor().in_process
    assert state_of(together) == state_of(pipeline().fit(flights))
    assert flights.reads.row_groups.total() > before


def test_joins_count_on_the_workers_what_has_no_match(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    alone, together = pipeline().fit(flights), pipeline().fit(flights, executor=cluster)
    for name in ("rows_seen_", "rows_unmatched_"):
        mine, theirs = (next(getattr(s, name) for s in p.steps if isinstance(s, T.Join)) for p in (alone, together))
        assert mine == theirs > 0


def test_a_loader_holds_the_same_block(flights: gp.Dataset, cluster: gp.Cluster) -> None:
    fitted = pipeline().fit(flights)
    (alone,) = fitted.loader(flights, batch_size=100_000)
    (together,) = _in_force(cluster, lambda: fitted.loader(flights, batch_size=100_000))
    for name in ("numeric", "codes", "target"):
        assert torch.equal(getattr(alone, name), getattr(together, name))
    assert alone.keep.keys() == together.keep.keys()
    assert all(torch.equal(alone.keep[name], together.keep[name]) for name in alone.keep)


@pytest.mark.parametrize("options", [{}, {"files": 5}, {"partition_by": "origin"}], ids=str)
def test_the_same_files_are_written(
    flights: gp.Dataset, cluster: gp.Cluster, tmp_path: Path, options: dict[str, object]
) -> None:
    data = flights if "partition_by" in options else pipeline().fit(flights).transform(flights)
    data.write_parquet(tmp_path / "alone", **options)
    manifest = _in_force(cluster, lambda: data.write_parquet(tmp_path / "together", **options))
    assert content(tmp_path / "together") == content(tmp_path / "alone")
    assert len(manifest.parts) == options.get("files", DAYS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone", "together"]


def test_one_file_is_written_by_all_workers(flights: gp.Dataset, cluster: gp.Cluster, tmp_path: Path) -> None:
    flights.write_parquet(tmp_path / "alone.parquet")
    _in_force(cluster, lambda: flights.write_parquet(tmp_path / "together.parquet"))
    assert (tmp_path / "together.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()


def test_the_tables_of_a_pipeline_travel_once_and_not_with_every_partition(
    flights: gp.Dataset, cluster: gp.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    submit = cluster._client.submit
    monkeypatch.setattr(cluster._client, "submit", lambda *a, **k: sent.append(len(_pickled(a))) or submit(*a, **k))
    data = pipeline().fit(flights).transform(flights)
    _in_force(cluster, lambda: data.write_parquet(tmp_path / "out"))
    assert len(sent) == 1 + DAYS
    assert max(sent[1:]) < 20_000 < 60_000 < sent[0]


def test_progress_follows_the_partitions(
    flights: gp.Dataset, cluster: gp.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    data = pipeline(slowly).fit(flights).transform(flights)
    for where in (get_executor(), cluster):
        shown.truncate(0)
        _in_force(where, lambda: data.write_parquet(tmp_path / "out", overwrite=True))
        assert f"write:   0%|          | 0/{DAYS} [" in shown.getvalue()
        assert any(f"| {number}/{DAYS} [" in shown.getvalue() for number in range(1, DAYS))


# opening and closing --------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_released_cluster(caplog: pytest.LogCaptureFixture) -> None:
    before = dict(os.environ), {child.pid for child in psutil.Process().children(recursive=True)}
    with caplog.at_level(logging.INFO, "gpupipe"):
        cluster = gp.Cluster(n_workers=1, gpu=False)
    assert dict(os.environ) == before[0]
    assert "Cluster(1 workers" in caplog.text
    assert list(cluster.map(abs, [-1, -2])) == [1, 2]
    workers = [p for p in psutil.Process().children(recursive=True) if p.pid not in before[1]]
    assert workers
    cluster.release()
    until(lambda: not any(is_alive(p) for p in workers if "resource_tracker" not in " ".join(_command(p))))
    assert dict(os.environ) == before[0]
    cluster.release()
    assert repr(cluster) == "Cluster(released)"
    with pytest.raises(errors.ClusterLost, match="the connection to the scheduler broke"):
        list(cluster.map(abs, [-1]))


def test_a_dask_cluster_or_client_of_the_users_is_used_and_stays_open(flights: gp.Dataset) -> None:
    expected = len(flights.filter("dep_delay > 15"))
    one = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    # Dask's nanny leaves variables behind.
    with patch.dict(os.environ), LocalCluster(**one) as theirs, Client(theirs) as client:
        for address in (theirs, theirs.scheduler_address, client):
            with gp.Cluster(address=address):
                assert len(flights.filter("dep_delay > 15")) == expected
            assert theirs.status.name == "running"
        assert client.status == "running"
        assert client.submit(abs, -1).result(timeout=10) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_workers": 0}, r"\(n_workers=\): makes no sense, got 0"),
        ({"timeout": 0}, r"\(timeout=\): makes no sense, got 0"),
        ({"address": 8786}, "no address, got 8786"),
        ({"address": "tcp://h:1", "n_workers": 2, "gpu": True}, "n_workers and gpu cannot be had of workers that run"),
        ({"address": "tcp://h:1", "memory_limit": "8GB"}, "memory_limit cannot be had of workers that run"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(errors.BadConfig, match=message):
        gp.Cluster(**given)


def test_a_function_that_cannot_travel_is_refused(cluster: gp.Cluster, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file, pytest.raises(errors.BadConfig, match="cannot be sent to the workers"):
        list(cluster.map(lambda item: file.name, [1]))


def test_a_worker_that_lacks_a_module_is_told_of(cluster: gp.Cluster, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def double(x): return 2 * x")
    sys.path.insert(0, str(tmp_path))
    try:
        import only_here

        with pytest.raises(errors.BadConfig, match=r"a worker cannot load what it is sent .*only_here"):
            list(cluster.map(only_here.double, [1]))
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["only_here"]


def test_without_dask_cuda_or_a_gpu_that_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with raises(errors.BackendMissing, where="Cluster(gpu=True)"):
        gp.Cluster(gpu=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device_memory": "4 GB", "gpu": False}, "device_memory without GPUs"),
        ({"device_memory": 0.5, "gpu": True}, r"\(device_memory=\): makes no sense, got 0.5"),
        ({"memory_limit": "12 parsecs"}, r"\(memory_limit=\): makes no sense"),
    ],
    ids=str,
)
def test_memory_that_makes_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.BadConfig, match=message):
        gp.Cluster(**given)


def test_it_shows_where_its_dashboard_is(cluster: gp.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster._repr_html_() == f"<p>{cluster!r}</p>"
    monkeypatch.setattr(cluster, "dashboard_link", "http://localhost:8787/status?a&b")
    assert repr(cluster) == "Cluster(2 workers, dashboard at http://localhost:8787/status?a&b)"
    assert "<a href='http://localhost:8787/status?a&amp;b'>" in cluster._repr_html_()


def test_it_listens_to_this_machine_alone(cluster: gp.Cluster) -> None:
    """The scheduler in this process, its web server, and the workers with theirs."""
    workers = psutil.Process().children(recursive=True)
    ports = [one for process in (psutil.Process(), *workers) for one in process.net_connections("inet")]
    listening = {one.laddr.ip for one in ports if one.status == psutil.CONN_LISTEN}
    assert listening and all(ipaddress.ip_address(address).is_loopback for address in listening)


# scripts --------------------------------------------------------------------------------------------------------------

UNGUARDED = {
    "none": "import gpupipe as gp\nwith gp.Cluster(n_workers=2, gpu=False) as c:\n    print(list(c.map(abs, [-1])))\n",
    "elsewhere": """
import gpupipe as gp
def main():
    with gp.Cluster(n_workers=2, gpu=False) as c:
        print(list(c.map(abs, [-1])))
main()
if __name__ == "__main__":
    print("too late")
""",
}
GUARDED = """
import gpupipe as gp
def main():
    with gp.Cluster(n_workers=2, gpu=False, timeout=15) as c:
        print(list(c.map(abs, [-1])))
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
@pytest.mark.parametrize("name", UNGUARDED)
def test_a_script_without_the_guard_is_told_so(tmp_path: Path, name: str, module: bool) -> None:
    command = script(tmp_path / "program.py", UNGUARDED[name])
    done = _run([*command[:-1], "-m", "program"] if module else command, tmp_path)
    assert done.returncode == 1
    assert f"BadConfig: Cluster: it is started outside a guard in {tmp_path / 'program.py'}" in done.stderr
    assert 'Try: if __name__ == "__main__": main()' in done.stderr
    assert done.stderr.count("Traceback") == 1 and not done.stdout  # and no worker had begun


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_script_with_the_guard_runs_and_so_does_a_command(tmp_path: Path, module: bool) -> None:
    command = script(tmp_path / "program.py", GUARDED)
    done = _run([*command[:-1], "-m", "program"] if module else command, tmp_path)
    assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr


def test_a_command_needs_no_guard(tmp_path: Path) -> None:
    done = _run([sys.executable, "-c", UNGUARDED["none"]], tmp_path)
    assert (done.returncode, done.stdout) == (0, "[1]\n"), done.stderr


def test_a_program_that_workers_cannot_import_is_given_up(tmp_path: Path) -> None:
    text = GUARDED.replace("timeout=15", "timeout=4").replace(
        "def main", "if __name__ != '__main__':\n    raise SystemExit('not here')\ndef main"
    )
    done = _run(script(tmp_path / "program.py", text), tmp_path)
    assert done.returncode == 1
    assert "ClusterLost: Cluster: the workers did not come up" in done.stderr


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=180
    )


def _in_force(executor: Executor, job: Callable[[], Any]) -> Any:
    """What the job gives there; a cluster stays open."""
    with use_executor(executor):
        return job()


def _pickled(arguments: tuple[object, ...]) -> bytes:
    return bytes(cloudpickle.dumps([a for a in arguments if type(a).__module__.partition(".")[0] != "distributed"]))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
