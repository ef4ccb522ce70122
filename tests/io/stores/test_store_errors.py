"""What a person is told when a store does not do what was meant."""

from __future__ import annotations

import socket
import sys
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.registry import _registry

import gpupipe as gp
from gpupipe.errors import BackendMissing, BadConfig, BadFile
from gpupipe.io import stores
from tests.io.s3_server import NO_RETRIES, SECRET, Proxy, options_for

FILE = "s3://errors/data.csv"


@pytest.fixture(scope="module", autouse=True)
def store(s3: str) -> Any:
    store = fsspec.filesystem("s3", **options_for(s3))
    store.makedirs("errors", exist_ok=True)
    store.pipe_file(FILE, b"n\n1\n2\n")
    return store


def told(read: Any) -> str:
    with pytest.raises(BadFile) as raised:
        read()
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ("403", "PermissionError: Forbidden"),
        ("401", "OSError: .*Unauthorized"),
        ("400", "OSError: .*Bad Request"),  # also for a signature for another region
    ],
)
def test_a_refusal_is_not_asked_again(proxy: Proxy, status: str, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    options = options_for(proxy.url, **NO_RETRIES)
    dataset = gp.read_csv(FILE, storage_options=options)
    proxy.fault = lambda request: status
    proxy.requests.clear()
    message = rf"s3://errors/.*: it cannot be %s \({cause}.*\).\n.*\nTry: .*endpoint and region; storage_options="
    for path in (FILE, "s3://errors/*.csv", "s3://errors/"):
        with pytest.raises(BadFile, match=message % "(read|listed)"):
            gp.read_csv(path, storage_options=options)
    assert len(proxy.requests) <= 6  # s3fs may ask in two ways
    with pytest.raises(BadFile, match=message % "(read|listed|written)"):
        dataset.write_parquet("s3://errors/out", storage_options=options)
    assert not caplog.records


def test_what_is_not_there(s3: str, caplog: pytest.LogCaptureFixture) -> None:
    options = options_for(s3)
    assert "Try: 'data.csv' (the closest name there)" in told(
        lambda: gp.read_csv("s3://errors/date.csv", storage_options=options)
    )
    for path in ("s3://no-such-bucket/a.csv", "s3://no-such-bucket/*.csv"):
        message = told(lambda path=path: gp.read_csv(path, storage_options=options))
        assert message.startswith(f"{path}: no such file") and "folder or bucket does not" in message
    assert told(lambda: gp.read_csv("s3://errorz", storage_options=options)).endswith(
        "'errors' (the closest name there)"
    )
    table = gp.from_frame(pa.table({"n": [1]}))
    message = told(lambda: table.write_parquet("s3://no-such-bucket/out", storage_options=options))
    assert message.startswith("s3://no-such-bucket/out") and "bucket does not exist" in message
    assert not caplog.records


@pytest.mark.usefixtures("impatient")
def test_nobody_listens_at_the_endpoint() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        message = told(lambda: gp.read_csv(FILE, storage_options=options_for(endpoint, **NO_RETRIES)))
        assert "4 attempts failed, the last with EndpointConnectionError: Could not connect" in message
        assert endpoint in message and message.endswith("or another endpoint, in storage_options=")
        message = told(lambda: gp.read_csv(f"{endpoint}/data.csv"))
        assert "4 attempts failed, the last with ClientConnectorError" in message


def test_who_may_not_list_is_told_all_the_same(proxy: Proxy) -> None:
    proxy.fault = lambda request: "403" if request.method == "GET" and request.path == "/" else None
    assert "s3://errorz: no such file" in told(
        lambda: gp.read_csv("s3://errorz", storage_options=options_for(proxy.url))
    )


def test_a_name_no_bucket_can_have(s3: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "ParamValidationError" in told(lambda: gp.read_csv("s3://Err!/a.csv", storage_options=options_for(s3)))
    assert not caplog.records


def test_http_says_what_the_server_said(s3: str) -> None:
    """fsspec calls every answer a missing file."""
    where = f"{s3}/errors/data.csv"
    assert "403" in told(lambda: gp.read_csv(where))
    assert f"{s3}/none/data.csv: no such file" in told(lambda: gp.read_csv(f"{s3}/none/data.csv"))


@pytest.mark.parametrize(
    ("url", "module", "remedy"),
    [
        ("s3://bucket/x", "s3fs", "pip install s3fs"),
        ("gs://bucket/x", "gcsfs", "pip install gcsfs"),
        ("abfs://container@account.dfs.core.windows.net/x", "adlfs", "pip install adlfs"),
    ],
)
def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, url: str, module: str, remedy: str) -> None:
    monkeypatch.delitem(_registry, url.partition(":")[0], raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendMissing) as raised:
        gp.read_parquet(url)
    assert str(raised.value).startswith(f"{url}: Install {module}") or "Please install" in str(raised.value)
    assert str(raised.value).endswith(f"Try: {remedy}")


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HDFS' is not where Java is not installed; what it says is longer than a page."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("Unable to load libjvm\ndlopen(...) failed")

    monkeypatch.setattr(stores, "url_to_fs", fail)
    with pytest.raises(BadConfig, match=r"hdfs://host/x: it cannot be reached \(OSError: Unable to load libjvm\)"):
        stores.locate("hdfs://host/x")
