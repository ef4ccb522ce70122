from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import fsspec
import pytest

from gpupipe.errors import BackendMissing, BadConfig, BadFile
from gpupipe.io import stores
from tests.io.s3_server import NO_RETRIES, SECRET, Proxy, options_for

DATA = bytes(range(256)) * 400
FILE = "s3://bytes/data.bin"


@pytest.fixture(scope="module", autouse=True)
def data(s3: str) -> None:
    store = fsspec.filesystem("s3", **options_for(s3))
    store.makedirs("bytes", exist_ok=True)
    store.pipe_file(FILE, DATA)


def test_ranges_are_fetched_and_nothing_else(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 1000)
    ranges = [(0, 10), (500, 3001), (102_399, 102_400), (7, 7)]
    found = stores.fetch(FILE, ranges, options_for(proxy.url))
    assert found == [DATA[start:stop] for start, stop in ranges]
    asked = sorted(request.range or () for request in proxy.of("GET", "data.bin"))
    assert asked == [(0, 10), (500, 1500), (1500, 2500), (2500, 3001), (102_399, 102_400)]


@pytest.mark.parametrize("kind", ["503", "cut"])
def test_what_the_stores_library_tries_again(proxy: Proxy, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    proxy.first(1, kind, "GET", "data.bin")
    assert stores.fetch(FILE, [(5, 5000)], options_for(proxy.url)) == [DATA[5:5000]]
    assert [request.num_bytes for request in proxy.of("GET", "data.bin")] == [{"503": 0, "cut": 2497}[kind], 4995]
    assert not caplog.records


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["503", "500", "cut"])
def test_what_is_tried_again_beyond_that(proxy: Proxy, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    proxy.first(2, kind, "GET", "data.bin")
    assert stores.fetch(FILE, [(0, 2000)], options_for(proxy.url, **NO_RETRIES)) == [DATA[:2000]]
    assert len(proxy.of("GET", "data.bin")) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert caplog.messages[0].startswith("s3://bytes/data.bin: attempt 1 of 4 failed (")
    assert caplog.messages[0].endswith("), again in 0.0 s")


@pytest.mark.usefixtures("impatient")
def test_only_the_pieces_that_failed_are_asked_for_again(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "PIECE_BYTES", 1000)
    failed = []

    def fault(request: Any) -> str | None:
        if request.range == (1000, 2000) and not failed:
            failed.append(request)
            return "503"
        return None

    proxy.fault = fault
    assert stores.fetch(FILE, [(0, 3000)], options_for(proxy.url, **NO_RETRIES)) == [DATA[:3000]]
    assert sorted(request.range or () for request in proxy.of("GET", "data.bin")) == [
        (0, 1000),
        *[(1000, 2000)] * 2,
        (2000, 3000),
    ]


@pytest.mark.usefixtures("impatient")
def test_a_store_that_does_not_come_back(proxy: Proxy) -> None:
    proxy.fault = lambda request: "503"
    with pytest.raises(BadFile) as raised:
        stores.fetch(FILE, [(0, 10)], options_for(proxy.url, **NO_RETRIES))
    assert str(raised.value) == (
        "s3://bytes/data.bin: it cannot be read: 4 attempts failed, the last with OSError: [Errno 16] Service "
        "Unavailable.\nExpected a store that answers.\nTry: the same call again when it does; or another "
        "endpoint, in storage_options="
    )
    assert len(proxy.of("GET", "data.bin")) == 4
    assert isinstance(raised.value.__cause__, OSError)


def test_waits_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(stores.time, "sleep", waits.append)

    def fail() -> None:
        raise OSError("no")

    for _ in range(20):
        with pytest.raises(BadFile, match="4 attempts failed, the last with OSError: no"):
            stores.call_with_retries(fail, "x", "read")
    for number, wait in enumerate(waits):
        assert 0.25 * 2 ** (number % 3) <= wait <= 0.75 * 2 ** (number % 3)
    assert len(set(waits)) == len(waits) == 60


def test_bytes_that_do_not_come_whole_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FIRST_WAIT", 0.0)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/short.bin", b"12345")
    with pytest.raises(BadFile, match="4 attempts failed, the last with OSError: 3 bytes from 2 to 9"):
        stores.fetch("memory://short.bin", [(2, 9)])
    memory.rm("/short.bin")


def test_what_is_not_there_or_not_allowed_is_not_tried_again(s3: str, caplog: pytest.LogCaptureFixture) -> None:
    options = options_for(s3)
    for path in ("s3://bytes/none", "s3://no-such-bucket/none"):
        with pytest.raises(BadFile, match=r"it cannot be read \(FileNotFoundError: .*\n.*\nTry: the right path"):
            stores.get_stat(path, options)
        assert stores.get_stamp(path, options) is None
    assert not caplog.records


def test_credentials_come_from_the_environment(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "from-the-environment"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_ENDPOINT_URL", s3),
    ):
        monkeypatch.setenv(name, value)
    assert stores.get_stat(FILE).size == len(DATA)


def test_nobody_to_ask_for_credentials(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(BadFile, match=r"NoCredentialsError: .*\n.*\nTry: .* storage_options= or the environment"):
        stores.get_stat(FILE, {"client_kwargs": {"endpoint_url": s3}})


def test_urls_nobody_knows() -> None:
    with pytest.raises(BadConfig, match=r"cannot be reached .*foo.*\nExpected a URL that fsspec knows"):
        stores.locate("foo://bucket/x")
    if find_spec("gcsfs") is None:
        with pytest.raises(BackendMissing, match=r"gs://bucket/x: .*gcsfs"):
            stores.locate("gs://bucket/x")


def test_no_secret_shows(s3: str) -> None:
    options = options_for(s3, wrong_option=SECRET)
    for ask in (
        stores.get_stat,
        stores.get_stamp,
        lambda path, given: stores.fetch(path, [(0, 1)], given),
    ):
        with pytest.raises(BadFile, match="wrong_option") as raised:
            ask(FILE, options)
        assert SECRET not in str(raised.value) + repr(pickle.loads(pickle.dumps(raised.value)))


def test_a_stamp_changes_with_the_file(s3: str) -> None:
    options = options_for(s3)
    store = fsspec.filesystem("s3", **options)
    store.pipe_file("s3://bytes/changing.bin", b"one")
    store.ls("s3://bytes")  # and remember what is there
    file = stores.Input("s3://bytes/changing.bin", storage_options=options).stamped()
    assert file.stamp is not None and file.change() is None
    fsspec.filesystem("s3", skip_instance_cache=True, **options).pipe_file("s3://bytes/changing.bin", b"two")
    change = file.change()
    assert change is not None and change.startswith("it was replaced after it was first looked at: 3 ")
    store.rm("s3://bytes/changing.bin")
    assert file.change() == "it is gone"


def test_a_file_is_read_as_a_stream(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "STREAM_BYTES", 10_000)
    proxy.first(1, "cut", "GET", "data.bin")
    with stores.open_stored(FILE, options_for(proxy.url)) as file:
        assert file.read(10) == DATA[:10]
        assert file.seek(-20, 2) == len(DATA) - 20
        assert file.read() == DATA[-20:]
        assert (file.seek(100), file.tell(), file.read(20_000)) == (100, 100, DATA[100:20_100])
        assert (file.seek(len(DATA) + 5), file.read(5)) == (len(DATA) + 5, b"")
    with stores.open_stored(FILE, options_for(proxy.url)) as file:
        assert file.read() == DATA


def test_a_stream_is_of_one_version(s3: str) -> None:
    options = options_for(s3)
    store = fsspec.filesystem("s3", **options)
    store.pipe_file("s3://bytes/changing.bin", b"one")

    def read(meanwhile: Callable[[], object]) -> bytes:
        with stores.open_stored("s3://bytes/changing.bin", options) as file:
            content = file.read()
            meanwhile()
            return content

    assert read(lambda: None) == b"one"
    with pytest.raises(BadFile, match="it was replaced"):
        read(lambda: store.pipe_file("s3://bytes/changing.bin", b"two"))
    store.rm("s3://bytes/changing.bin")
