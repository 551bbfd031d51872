"""HTTP/1.1 as far as model clients speak it: requests in, whole answers or server-sent events out.

Keep-alive, `Content-Length` and chunked request bodies are understood. No TLS, no compression, no
trailers. One connection serves one request at a time; a pipelined one waits.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

JSON = "application/json"
_MAX_HEAD_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, complete.

    Attributes:
        method: in capitals.
        path: without the query.
        body: the bytes after the head, decoded if they came in chunks.
        keep_alive: whether the client wants to use the connection again.
    """

    method: str
    path: str
    body: bytes
    keep_alive: bool


def take_request(buffer: bytearray) -> HttpRequest | None:
    """Removes the first complete request from `buffer`; None as long as there is none.

    Raises:
        ValueError: what arrived is not HTTP.
    """
    head_end = buffer.find(b"\r\n\r\n")
    if head_end < 0:
        if len(buffer) > _MAX_HEAD_BYTES:
            raise ValueError("no end of the request's head in 64 KiB")
        return None
    method, target, headers = _parse_head(bytes(buffer[:head_end]))
    body = _take_body(buffer, head_end + 4, headers)
    if body is None:
        return None
    path = target.partition("?")[0]
    return HttpRequest(method, path, body, headers.get("connection", "").lower() != "close")


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"not HTTP/1: {version!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return method.upper(), target, headers


def _take_body(buffer: bytearray, start: int, headers: Mapping[str, str]) -> bytes | None:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _take_chunked(buffer, start)
    end = start + int(headers.get("content-length", "0"))
    if len(buffer) < end:
        return None
    body = bytes(buffer[start:end])
    del buffer[:end]
    return body


def _take_chunked(buffer: bytearray, at: int) -> bytes | None:
    parts: list[bytes] = []
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        size = int(bytes(buffer[at:line_end]).partition(b";")[0], 16)
        at = line_end + 2 + size + 2
        if len(buffer) < at:
            return None
        if size == 0:
            del buffer[:at]
            return b"".join(parts)
        parts.append(bytes(buffer[line_end + 2 : at - 2]))
    return None


def render(status: int, payload: bytes, headers: Mapping[str, str], *, content_type: str = JSON) -> bytes:
    """A whole answer, head and body, as the bytes that go out."""
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(payload)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + payload


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


class Connection(asyncio.Protocol):
    """One client's connection.

    When the client leaves, the task that serves its request is cancelled.

    Args:
        serve: answers one request through the connection that it is given.
        live: the set of open connections that this one enters and leaves.
    """

    def __init__(self, serve: Callable[[HttpRequest, Connection], Awaitable[None]], live: set[Connection]) -> None:
        self._serve = serve
        self._live = live
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enters the set of open connections."""
        self._transport = cast("asyncio.Transport", transport)
        self._live.add(self)

    def data_received(self, data: bytes) -> None:
        """Takes bytes in and serves the next request when it is complete."""
        self._buffer += data
        if self._task is None:
            self._serve_next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """Leaves the set, and cancels the request that nobody waits for any more."""
        self._live.discard(self)
        if self._task is not None:
            self._task.cancel()

    def respond(self, status: int, payload: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """Sends a whole JSON answer."""
        self.write(render(status, json.dumps(payload).encode(), headers or {}))

    def start_events(self) -> None:
        """Sends the head of a stream of server-sent events."""
        self.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")

    def send_event(self, event: bytes) -> None:
        """Sends one server-sent event, as a chunk of its own."""
        self.write(b"%x\r\n%b\r\n" % (len(event), event))

    def end_events(self) -> None:
        """Ends the stream; the connection can be used again."""
        self.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._transport.write(data)

    def cut(self) -> None:
        """Closes the connection after what was sent already, whatever the client still expects."""
        self._transport.close()

    async def abort(self) -> None:
        """Closes the connection at once and waits until its request has ended."""
        task = self._task
        self._transport.abort()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _serve_next(self) -> None:
        try:
            request = take_request(self._buffer)
        except ValueError as error:
            self.respond(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            self.cut()
            return
        if request is not None:
            self._task = asyncio.ensure_future(self._run(request))

    async def _run(self, request: HttpRequest) -> None:
        await self._serve(request, self)
        self._task = None
        if not request.keep_alive:
            self.cut()
        elif not self._transport.is_closing():
            self._serve_next()
