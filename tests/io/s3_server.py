"""A real S3 server on this machine, and a proxy before it that counts bytes and breaks what it is told to break."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

KEY, SECRET = "a-key-for-tests", "a-secret-that-must-not-be-seen"

KEYS_AT_ONCE = 50
"""Names in one page of a listing; S3 gives a thousand."""
_SERVE = """
import logging, os, sys
from moto.server import ThreadedMotoServer
os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "{keys_at_once}"
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
logging.getLogger("werkzeug").disabled = True
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def serving() -> Iterator[str]:
    """The server's endpoint. It is a process that ends with the block, or with this process, however that ends."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE.format(keys_at_once=KEYS_AT_ONCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        host, port = server.stdout.readline().split()
        yield f"http://{host}:{port}"
        server.stdin.close()
        assert server.wait(30) == 0


def options_for(endpoint: str, **more: Any) -> dict[str, Any]:
    """What a caller passes as `storage_options`."""
    return {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": endpoint}, **more}


@dataclass(frozen=True)
class Request:
    """What the proxy saw: a request for a path, the range that was asked for, and the bytes sent back and forth."""

    method: str
    path: str
    range: tuple[int, int] | None
    num_bytes: int
    num_sent: int = 0


Fault = Callable[[Request], str | None]
"""For a request that has been answered: None, a status as in `"503"`, or `"cut"` in the middle of the body."""
NO_RETRIES: dict[str, Any] = {"config_kwargs": {"retries": {"max_attempts": 0}}}
"""Botocore's own; for tests that would wait for them."""


@dataclass
class Proxy:
    """What is between a client and the server.

    Args:
        endpoint: the server's.
        fault: what is to go wrong; may be changed at any time.
    """

    endpoint: str
    fault: Fault = lambda request: None
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    def of(self, method: str, ending: str = "") -> list[Request]:
        """The requests so far of a method, for paths with this ending."""
        return [request for request in self.requests if request.method == method and request.path.endswith(ending)]

    def first(self, number: int, kind: str, method: str, ending: str) -> None:
        """Break the next so many requests of a method for paths with this ending."""
        left = iter(range(number))

        def fault(request: Request) -> str | None:
            asked = request.method == method and request.path.endswith(ending)
            return kind if asked and next(left, None) is not None else None

        self.fault = fault


@contextmanager
def proxied(endpoint: str) -> Iterator[Proxy]:
    """A proxy that works until the block ends."""
    proxy = Proxy(endpoint)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    upstream = urlsplit(proxy.endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # a client that has gone away
                self.close_connection = True

        def pass_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server = http.client.HTTPConnection(upstream, timeout=30)
            try:
                server.request(self.command, self.path, content, dict(self.headers))
                answer = server.getresponse()
                body = answer.read()
            finally:
                server.close()
            path = unquote(urlsplit(self.path).path)
            request = Request(
                self.command,
                path,
                _range(self.headers.get("Range")),
                num_bytes=len(body),
                num_sent=len(content),
            )
            kind = proxy.fault(request)
            sent = len(body) if kind is None else len(body) // 2 if kind == "cut" else 0
            proxy.requests.append(replace(request, num_bytes=sent))
            if kind not in (None, "cut"):
                self.send_response(int(kind))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "date", "server", "transfer-encoding", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else len(body)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(body[:sent])
            self.close_connection = kind == "cut"

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _range(header: str | None) -> tuple[int, int] | None:
    if header is None:
        return None
    first, last = header.removeprefix("bytes=").split("-")
    return int(first), int(last) + 1
