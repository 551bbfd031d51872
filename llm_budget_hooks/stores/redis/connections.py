"""Two thin shells over one codec: one request and one reply, within one deadline, blocking or awaited.

redis-py's connections are used without its pools and retries: those would wait, and try again, beyond the
deadline that a call has. A connection on which anything went wrong is closed, so that a late reply can never
reach another command.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Any

from redis import exceptions
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.stores.redis.codec import Script

Arguments = tuple[bytes | str, ...]
_MAX_CONNECTIONS = 32
_IDLE_S = 0.5


def busy(sent: bool) -> StoreUnavailable:
    """All connections were in use for most of the deadline: too many calls at once, not an outage."""
    error = StoreUnavailable(
        f"All {_MAX_CONNECTIONS} connections of this process were in use until store_timeout. Nothing is held.",
        busy=True,
        retry_after=1.0,
    )
    error.sent = sent
    return error


class SyncConnections:
    """The connections of one process for blocking callers."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._factory: Any = ConnectionPool.from_url(
            url, decode_responses=False, retry=Retry(NoBackoff(), 0), health_check_interval=0, max_connections=2**31
        )
        self._free: deque[tuple[Any, float]] = deque()
        self._room = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def evaluate(self, script: Script, root: str, arguments: Arguments) -> object:
        """Run a script and give its reply.

        Raises:
            RedisError: whatever redis-py raises.
            StoreUnavailable: no connection came free in time.
        """
        deadline = time.monotonic() + self._timeout_s
        if not self._room.acquire(timeout=self._timeout_s):
            raise busy(sent=False)
        late = time.monotonic() > deadline - self._timeout_s / 2
        try:
            return self._with_connection(deadline, script, root, arguments)
        except exceptions.TimeoutError:
            if late:
                raise busy(sent=True) from None
            raise
        finally:
            self._room.release()

    def _with_connection(self, deadline: float, script: Script, root: str, arguments: Arguments) -> object:
        connection = self._connection(deadline)
        try:
            reply = self._attempt(connection, deadline, script, root, arguments)
        except exceptions.ResponseError:
            self._free.append((connection, deadline))
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._free.append((connection, deadline))
        return reply

    def _connection(self, deadline: float) -> Any:
        """An idle connection or a new one; one that was idle for long may have been closed by the server."""
        try:
            connection, last = self._free.pop()
        except IndexError:
            return self._factory.make_connection()
        if deadline - last > _IDLE_S and connection.is_connected and connection.can_read(timeout=0):
            connection.disconnect()
        return connection

    def _attempt(self, connection: Any, deadline: float, script: Script, root: str, arguments: Arguments) -> object:
        try:
            return self._ask(connection, deadline, "EVALSHA", script.sha, 1, root, *arguments)
        except exceptions.NoScriptError:
            return self._ask(connection, deadline, "EVAL", script.source, 1, root, *arguments)

    def _ask(self, connection: Any, deadline: float, *command: Any) -> object:
        left = deadline - time.monotonic()
        if not connection.is_connected:
            connection.socket_timeout = connection.socket_connect_timeout = max(left, 0.001)
            connection.connect()
        connection.send_packed_command(connection.pack_command(*command), check_health=False)
        if not connection.can_read(timeout=max(deadline - time.monotonic(), 0)):
            raise exceptions.TimeoutError("no reply in time")
        return connection.read_response(disable_decoding=True)

    def close(self) -> None:
        """Close the idle connections."""
        while self._free:
            self._free.pop()[0].disconnect()


class AsyncConnections:
    """The connections of one event loop."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._factory: Any = AsyncConnectionPool.from_url(
            url, decode_responses=False, retry=AsyncRetry(NoBackoff(), 0), health_check_interval=0,
            max_connections=2**31, socket_timeout=None, socket_connect_timeout=timeout_s,
        )  # fmt: skip
        self._free: deque[Any] = deque()
        self._room = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def evaluate(self, script: Script, root: str, arguments: Arguments) -> object:
        """Same as `SyncConnections.evaluate`, awaited."""
        deadline = time.monotonic() + self._timeout_s
        waiting = late = True
        try:
            async with asyncio.timeout(self._timeout_s), self._room:
                waiting, late = False, time.monotonic() > deadline - self._timeout_s / 2
                return await self._with_connection(script, root, arguments)
        except TimeoutError:
            if late:
                raise busy(sent=not waiting) from None
            raise exceptions.TimeoutError("no reply in time") from None

    async def _with_connection(self, script: Script, root: str, arguments: Arguments) -> object:
        connection = self._free.pop() if self._free else self._factory.make_connection()
        try:
            reply = await self._attempt(connection, script, root, arguments)
        except exceptions.ResponseError:
            self._free.append(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._free.append(connection)
        return reply

    async def _attempt(self, connection: Any, script: Script, root: str, arguments: Arguments) -> object:
        try:
            return await self._ask(connection, "EVALSHA", script.sha, 1, root, *arguments)
        except exceptions.NoScriptError:
            return await self._ask(connection, "EVAL", script.source, 1, root, *arguments)

    async def _ask(self, connection: Any, *command: Any) -> object:
        if not connection.is_connected:
            await connection.connect()
        await connection.send_packed_command(connection.pack_command(*command), check_health=False)
        return await connection.read_response(disable_decoding=True)

    async def close(self) -> None:
        """Close the idle connections of this loop."""
        while self._free:
            await self._free.pop().disconnect()
