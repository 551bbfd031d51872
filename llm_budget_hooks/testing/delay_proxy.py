"""A TCP proxy on loopback that makes a healthy server slow, silent, or lose requests and replies."""

from __future__ import annotations

import asyncio
import socket
import weakref
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from llm_budget_hooks.testing.loops import LOOPBACK, ServerThread, raise_collected

_READ_BYTES = 65_536
_STALL_POLL_S = 0.002


@dataclass(slots=True)
class _Link:
    client_reader: asyncio.StreamReader
    client: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server: asyncio.StreamWriter
    loses_reply: bool = False


@dataclass(eq=False)
class DelayProxy:
    """A proxy in front of one loopback port, to be used as a context manager.

    A request is what arrives from the client in one read; client libraries send a command or a pipeline
    of usual size in one piece. All settings can be changed while it runs.

    Attributes:
        upstream_port: the port of the server behind it.
        delay_s: how long each reply is held back; the server has done its work by then.
        stall: while True nothing passes in either direction; what was sent meanwhile passes afterwards.
        cut_before_request: how many more matching requests never reach the server: the connection is closed.
        cut_after_request: how many more matching requests reach the server and lose their reply: once it
            answers, the connection is closed instead.
        match: only requests that contain these bytes are cut; empty matches all. ``b"EVALSHA"`` spares the
            handshake of a new connection.
        connections: how many connections were opened.
        cuts: how many were cut.
        errors: exceptions from inside the proxy; raised in a group when the context is left.
    """

    upstream_port: int
    delay_s: float = field(default=0.0, kw_only=True)
    stall: bool = field(default=False, kw_only=True)
    cut_before_request: int = field(default=0, kw_only=True)
    cut_after_request: int = field(default=0, kw_only=True)
    match: bytes = field(default=b"", kw_only=True)
    connections: int = field(default=0, init=False)
    cuts: int = field(default=0, init=False)
    errors: list[BaseException] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._server: ServerThread | None = None

    def __enter__(self) -> Self:
        self._server = ServerThread("delay-proxy", self._listen, self._close, self.errors)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        raise_collected(self.errors, error, "DelayProxy")

    def close(self) -> None:
        """Closes the port and all connections; harmless when that has been done."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1 that clients connect to.

        Raises:
            RuntimeError: the proxy is not running.
        """
        if self._server is None:
            raise RuntimeError("the proxy runs only inside its `with` block")
        return self._server.port

    @property
    def url(self) -> str:
        """The URL for Redis clients, without a password, database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    async def _listen(self, bound: socket.socket) -> asyncio.Server:
        return await asyncio.start_server(self._accept, sock=bound)

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)

    def _accept(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._transports.add(client.transport)
        task = asyncio.ensure_future(self._bridge(client_reader, client))
        self._tasks.add(task)
        task.add_done_callback(self._bridged)

    def _bridged(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    async def _bridge(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        # A server that is down or goes away is no fault here: the client sees its connection close, as without a proxy.
        with closing(client), suppress(OSError):
            server_reader, server = await asyncio.open_connection(LOOPBACK, self.upstream_port)
            self._transports.add(server.transport)
            with closing(server):
                await self._pump(_Link(client_reader, client, server_reader, server))

    async def _pump(self, link: _Link) -> None:
        pumps = [asyncio.ensure_future(pump(link)) for pump in (self._pass_requests, self._pass_replies)]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for pump in done:
            pump.result()

    async def _pass_requests(self, link: _Link) -> None:
        while request := await link.client_reader.read(_READ_BYTES):
            await self._while_stalled()
            matches = self.match in request
            if matches and self.cut_before_request > 0:
                self.cut_before_request -= 1
                self.cuts += 1
                return
            if matches and self.cut_after_request > 0:
                self.cut_after_request -= 1
                link.loses_reply = True
            link.server.write(request)
            await link.server.drain()

    async def _pass_replies(self, link: _Link) -> None:
        while reply := await link.server_reader.read(_READ_BYTES):
            if link.loses_reply:
                self.cuts += 1
                return
            await asyncio.sleep(self.delay_s)
            await self._while_stalled()
            link.client.write(reply)
            await link.client.drain()

    async def _while_stalled(self) -> None:
        while self.stall:
            await asyncio.sleep(_STALL_POLL_S)
