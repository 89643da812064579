"""Proxy: stands before an S3 server, counts what passes, and lets requests go wrong as a test wants it."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message></Error>"
UNKNOWN = b"<Error><Code>NotImplemented</Code><Message>A header you provided is not implemented.</Message></Error>"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: http.client.HTTPMessage = field(compare=False)
    sent: int
    returned: int = 0


# What befalls a request: None, or one of these.
#   busy, denied, unknown   an answer of the server's; the request does not reach it
#   drop                    the connection ends before the request has reached the server
#   lose                    it ends after that: the deed is done, and the answer is lost
#   cut                     it ends in the middle of the answer
#   hang                    no answer, ever
Fate = Callable[[Request], "str | None"]


def _nothing(request: Request) -> None:
    return None


class Proxy:
    def __init__(self, backend: int, port: int = 0):
        self.requests: list[Request] = []
        self.fate: Fate = _nothing
        self.over = threading.Event()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.proxy, self._server.backend = self, backend
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, method: str) -> list[Request]:
        return [request for request in self.requests if request.method == method]

    def befall(self, fate: str, times: int, which: Callable[[Request], bool] = lambda request: True) -> None:
        """That fate for so many of the requests that are `which`; later ones pass."""
        left = [times]

        def decide(request: Request) -> str | None:
            if left[0] and which(request):
                left[0] -= 1
                return fate
            return None

        self.fate = decide

    def reset(self) -> None:
        """Everything passes from here on, and what hangs is let go."""
        self.over.set()
        self.over, self.fate = threading.Event(), _nothing
        self.requests.clear()

    def stop(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    proxy: Proxy
    backend: int
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that has given up


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, self.path, self.headers, len(body))
        fate = self.server.proxy.fate(request)
        if fate == "hang":
            self.server.proxy.over.wait()
            self.close_connection = True
            return None
        if fate == "drop":
            return self._hang_up(request)
        canned = {"busy": (503, BUSY), "denied": (403, DENIED), "unknown": (501, UNKNOWN)}
        if fate in canned:
            status, data = canned[fate]
            return self._answer(request, status, {}, data)
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.backend, timeout=60)) as onward:
            onward.request(self.command, self.path, body, dict(self.headers))
            answer = onward.getresponse()
            data = answer.read()
        if fate == "lose":
            return self._hang_up(request)
        return self._answer(request, answer.status, dict(answer.headers), data, cut=fate == "cut")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _answer(
        self, request: Request, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False
    ) -> None:
        self.server.proxy.requests.append(Request(*_fields(request), returned=len(data)))
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(data)))
        for key, value in headers.items():
            if key.lower() not in ("connection", "date", "server", "transfer-encoding"):
                self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self._hang_up(request)

    def _hang_up(self, request: Request) -> None:
        self.server.proxy.requests.append(request)
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        pass


def _fields(request: Request) -> tuple[str, str, http.client.HTTPMessage, int]:
    return request.method, request.path, request.headers, request.sent
