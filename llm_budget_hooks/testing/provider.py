"""A model provider that runs on loopback, speaks the OpenAI API over real HTTP, and counts what reaches it.

Beside OpenAI's routes it has Anthropic's /v1/messages and Cohere's /v1/rerank and /v2/rerank.

What it bills: an answer without stream is billed whole as soon as it is accepted, also when the
connection is cut or the client leaves; a stream is billed up to the last event that was sent; errors
and hangs are not billed. Whatever reaches it is counted, whatever it answers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from llm_budget_hooks.testing import media, messages, shapes
from llm_budget_hooks.testing.loops import LOOPBACK, ServerThread, raise_collected
from llm_budget_hooks.testing.replies import Answer, Reply, Settings, decide
from llm_budget_hooks.testing.wire import JSON, Connection, HttpRequest, render


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request that reached the provider, as it stood when it was asked for.

    Attributes:
        path: as sent, without the query.
        model: the model asked for, or "".
        stream: whether a stream was asked for.
        json: the request's body; empty when there was none.
        started_s: `time.monotonic` when the request was complete.
        ended_s: `time.monotonic` when the last byte went out or the client had left; None while it is in flight.
        status: the HTTP status sent; None if none was.
        disconnected: the client left before the answer was complete.
        input_tokens: billed for the prompt.
        output_tokens: billed for the output.
    """

    path: str
    model: str
    stream: bool
    json: dict[str, Any]
    started_s: float
    ended_s: float | None
    status: int | None
    disconnected: bool
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Entry:
    path: str
    json: dict[str, Any] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    status: int | None = None
    disconnected: bool = False
    input_tokens: int = 0
    output_tokens: int = 0

    def record(self) -> RequestRecord:
        model, stream = str(self.json.get("model", "")), bool(self.json.get("stream"))
        return RequestRecord(
            self.path, model, stream, self.json, self.started_s, self.ended_s, self.status, self.disconnected,
            self.input_tokens, self.output_tokens,
        )  # fmt: skip


class _Route(NamedTuple):
    body: Callable[[Answer], dict[str, Any]] | None
    events: Callable[[Answer], Iterator[shapes.Event]] | None = None
    generates: bool = True


_ROUTES = {
    "/v1/chat/completions": _Route(shapes.chat_body, shapes.chat_events),
    "/v1/completions": _Route(shapes.text_body, shapes.text_events),
    "/v1/embeddings": _Route(shapes.embeddings_body, generates=False),
    "/v1/responses": _Route(shapes.responses_body, shapes.responses_events),
    "/v1/messages": _Route(messages.messages_body, messages.messages_events),
    "/v1/images/generations": _Route(media.images_body),
    "/v1/images/edits": _Route(media.images_body),
    "/v1/audio/speech": _Route(None, generates=False),
    "/v1/audio/transcriptions": _Route(media.transcription_body),
    "/v1/rerank": _Route(media.rerank_body, generates=False),
    "/v2/rerank": _Route(media.rerank_body, generates=False),
}


@dataclass(kw_only=True, eq=False)
class FakeProvider(Settings):
    """A fake OpenAI-compatible provider, to be used as a context manager.

    Takes the attributes of `Settings` as keyword arguments; they can be changed while it runs. Safe to
    use from any thread. On leaving the context, exceptions from inside it, such as those of a `reply`
    function, are raised in a group.

    Attributes:
        errors: exceptions from inside the provider, so far.

    Example:
        >>> with FakeProvider(latency_s=0.05, output_tokens=40) as provider:
        ...     client = openai.OpenAI(base_url=provider.base_url, api_key="any")
    """

    errors: list[BaseException] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[_Entry] = []
        self._open = 0
        self._next: deque[Reply] = deque()
        self._live: set[Connection] = set()
        self._hung: set[asyncio.Future[None]] = set()
        self._ids = itertools.count(1)
        self._closing = False
        self._server: ServerThread | None = None

    def __enter__(self) -> Self:
        self._closing = False
        self._server = ServerThread("fake-provider", self._listen, self._close_connections, self.errors)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        raise_collected(self.errors, error, "FakeProvider")

    def close(self) -> None:
        """Stops the server, ends all connections and waits for its thread; harmless when it has stopped."""
        server, self._server = self._server, None
        if server is not None:
            self._closing = True
            server.stop()

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1.

        Raises:
            RuntimeError: the provider is not running.
        """
        if self._server is None:
            raise RuntimeError("the provider runs only inside its `with` block")
        return self._server.port

    @property
    def base_url(self) -> str:
        """The URL that OpenAI clients take, ``http://127.0.0.1:PORT/v1``."""
        return f"http://{LOOPBACK}:{self.port}/v1"

    @property
    def requests(self) -> list[RequestRecord]:
        """All requests so far, in order of arrival, those in flight included."""
        with self._changed:
            return [entry.record() for entry in self._entries]

    @property
    def count(self) -> int:
        """How many requests have arrived, of any kind and with any outcome."""
        with self._changed:
            return len(self._entries)

    @property
    def in_flight(self) -> int:
        """How many requests have arrived and not ended."""
        with self._changed:
            return self._open

    @property
    def billed_input_tokens(self) -> int:
        """Prompt tokens billed so far."""
        with self._changed:
            return sum(entry.input_tokens for entry in self._entries)

    @property
    def billed_output_tokens(self) -> int:
        """Output tokens billed so far."""
        with self._changed:
            return sum(entry.output_tokens for entry in self._entries)

    def count_for(self, path: str) -> int:
        """How many requests have arrived for exactly this path, such as ``/v1/embeddings``."""
        with self._changed:
            return Counter(entry.path for entry in self._entries)[path]

    def reset(self) -> None:
        """Forgets all requests and all replies that `next_replies` and its kin still hold; settings stay."""
        with self._changed:
            self._entries = []
            self._next.clear()

    def next_replies(self, *replies: Reply) -> None:
        """Answers the next model requests with these, one each, before `reply` is asked again."""
        with self._changed:
            self._next.extend(replies)

    def fail_next(
        self, n: int = 1, *, status: int = 500, body: dict[str, Any] | None = None, retry_after_s: float | None = None
    ) -> None:
        """Answers the next `n` model requests with an HTTP error."""
        self.next_replies(*[Reply(status=status, error=body, retry_after_s=retry_after_s)] * n)

    def hang_next(self, n: int = 1) -> None:
        """Leaves the next `n` model requests without an answer, until `answer_hung` or the end."""
        self.next_replies(*[Reply(hang=True)] * n)

    def cut_next(self, n: int = 1, *, after: int = 0) -> None:
        """Cuts the connection of the next `n` model requests; `after` is as `Reply.cut_after`."""
        self.next_replies(*[Reply(cut_after=after)] * n)

    def answer_hung(self) -> None:
        """Lets all requests that hang now go on to their answer."""
        if self._server is not None:
            self._server.call(self._wake_hung)

    def wait_for(self, n: int, *, timeout_s: float = 10.0) -> None:
        """Blocks until `n` requests have arrived since the start or the last `reset`.

        Raises:
            TimeoutError: they have not within `timeout_s`.
        """
        self._wait(lambda: len(self._entries) >= n, timeout_s)

    def wait_idle(self, *, timeout_s: float = 10.0) -> None:
        """Blocks until no request is in flight; after it, disconnects and bills are final.

        Raises:
            TimeoutError: some still are after `timeout_s`.
        """
        self._wait(lambda: not self._open, timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"{len(self._entries)} requests, {self._open} in flight, after {timeout_s} s")

    async def _listen(self, bound: socket.socket) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(
            lambda: Connection(self._serve, self._live), sock=bound, backlog=1024
        )

    async def _close_connections(self) -> None:
        await asyncio.gather(*(connection.abort() for connection in list(self._live)))
        await asyncio.sleep(0)

    def _wake_hung(self) -> None:
        for waiting in self._hung:
            if not waiting.done():
                waiting.set_result(None)

    async def _serve(self, request: HttpRequest, connection: Connection) -> None:
        entry = _Entry(request.path)
        try:
            await self._answer(request, entry, connection)
        except asyncio.CancelledError:
            entry.disconnected = not self._closing
            raise
        except Exception as error:  # noqa: BLE001 - collected, and raised when the context is left
            self.errors.append(error)
            self._respond(entry, connection, 500, shapes.error_body(f"fake provider failed: {error!r}", "server_error"))
            connection.cut()
        finally:
            self._ended(entry)

    def _ended(self, entry: _Entry) -> None:
        """Closes the entry, before the last byte goes out: who has read an answer finds its record complete."""
        with self._changed:
            if entry.ended_s is None:
                entry.ended_s = time.monotonic()
                self._open -= 1
                self._changed.notify_all()

    async def _answer(self, request: HttpRequest, entry: _Entry, connection: Connection) -> None:
        problem = _read(request, entry)
        with self._changed:
            self._entries.append(entry)
            self._open += 1
            self._changed.notify_all()
            scripted = self._next.popleft() if self._next and not problem and request.method == "POST" else None
        respond = partial(self._respond, entry, connection)
        if problem:
            respond(*problem)
        elif request.method == "GET":
            respond(200, shapes.models_body(["fake-model"]))
        else:
            await self._reply(scripted or self.reply_to(entry.json), entry, connection)

    async def _reply(self, reply: Reply, entry: _Entry, connection: Connection) -> None:
        if reply.hang:
            await self._hang()
        route = _ROUTES[entry.path]
        answer = decide(self, entry.json, reply, f"{next(self._ids):x}", generates=route.generates)
        streams = route.events is not None and bool(entry.json.get("stream"))
        if reply.status < 400:
            entry.input_tokens = answer.input_tokens
            entry.output_tokens = 0 if streams else answer.output_tokens
        if latency_s := self.latency_s if reply.latency_s is None else reply.latency_s:
            await asyncio.sleep(latency_s)
        if reply.cut_after == 0:
            self._ended(entry)
            connection.cut()
        elif reply.status >= 400:
            self._respond(entry, connection, reply.status, dict(reply.error_body), reply.headers)
        elif streams and route.events is not None:
            await self._stream(route.events(answer), reply, entry, connection)
        elif route.body is None:
            self._send_whole(media.SOUND, reply, entry, connection, content_type="audio/mpeg")
        else:
            self._send_whole(json.dumps(route.body(answer)).encode(), reply, entry, connection)

    async def _hang(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._hung.add(waiting)
        try:
            await waiting
        finally:
            self._hung.discard(waiting)

    async def _stream(
        self, events: Iterator[shapes.Event], reply: Reply, entry: _Entry, connection: Connection
    ) -> None:
        pause_s = self.chunk_latency_s if reply.chunk_latency_s is None else reply.chunk_latency_s
        entry.status = 200
        connection.start_events()
        for position, event in enumerate(itertools.islice(events, reply.cut_after)):
            if position and pause_s:
                await asyncio.sleep(pause_s)
            entry.output_tokens = event.output_tokens
            connection.send_event(event.payload)
        self._ended(entry)
        if reply.cut_after is None:
            connection.end_events()
        else:
            connection.cut()

    def _send_whole(
        self, body: bytes, reply: Reply, entry: _Entry, connection: Connection, *, content_type: str = JSON
    ) -> None:
        entry.status = 200
        self._ended(entry)
        payload = render(200, body, reply.headers, content_type=content_type)
        connection.write(payload if reply.cut_after is None else payload[:-20])
        if reply.cut_after is not None:
            connection.cut()

    def _respond(
        self,
        entry: _Entry,
        connection: Connection,
        status: int,
        body: dict[str, Any],
        headers: dict[str, str] | None = None,
    ) -> None:
        entry.status = status
        self._ended(entry)
        connection.respond(status, body, headers)


def _read(request: HttpRequest, entry: _Entry) -> tuple[int, dict[str, Any]] | None:
    """Puts the request's JSON into `entry`; the error to answer with, if it cannot be served."""
    if request.method == "GET" and request.path == "/v1/models":
        return None
    if request.path not in _ROUTES:
        return 404, shapes.error_body(f"no such path: {request.path}", "not_found_error")
    if request.method != "POST":
        return 405, shapes.error_body(f"{request.method} is not allowed here")
    if request.body.startswith(b"--"):
        entry.json = media.form_fields(request.body)
        return None
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        return 400, shapes.error_body(f"the body is not JSON: {error}")
    if not isinstance(body, dict):
        return 400, shapes.error_body("the body is not a JSON object")
    if not isinstance(body.get("stream_options") or {}, dict):
        return 400, shapes.error_body("stream_options is not an object")
    entry.json = body
    return None
