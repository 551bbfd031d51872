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
from functools import lru_cache
from itertools import chain
from typing import Any

from redis import exceptions
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from llm_budget_hooks.errors import ConfigurationError, StoreUnavailable
from llm_budget_hooks.stores.redis.codec import Script
from llm_budget_hooks.stores.redis.deadlines import Deadlined
from llm_budget_hooks.stores.redis.topology import Address, Topology

Arguments = tuple[bytes, ...]
_MAX_CONNECTIONS = 32
_IDLE_S = 0.5
_MAX_HOPS = 3
_WHERE = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")
_NO_REDIS = "no Redis answers like that"
_NONSENSE = (AttributeError, LookupError, TypeError, ValueError, OverflowError)


def check_options(topology: Topology) -> None:
    """See that redis-py takes what is written after the ? of a URL.

    Raises:
        ConfigurationError: it does not.
    """
    try:
        for pool in (ConnectionPool, AsyncConnectionPool):
            pool.from_url(topology.options).make_connection()
    except (exceptions.RedisError, *_NONSENSE) as error:
        raise ConfigurationError(f"An option after the ? of the store's URL does not fit: {error}") from None


def _pool(url: str, **options: Any) -> Any:
    pool: Any = ConnectionPool.from_url(url, **options, max_connections=2**31)
    pool.connection_class = type("Connection", (Deadlined, pool.connection_class), {})
    return pool


def busy(sent: bool) -> StoreUnavailable:
    """All connections were in use for most of the deadline: too many calls at once, not an outage."""
    error = StoreUnavailable(
        f"All {_MAX_CONNECTIONS} connections of this process were in use until store_timeout. Nothing is held.",
        busy=True,
        retry_after=1.0,
    )
    error.sent = sent
    return error


def packed(sha: str, root: str, arguments: Arguments) -> list[bytes]:
    """EVALSHA of a script as it is sent, in a third of the time that redis-py takes."""
    return [_form(sha, root, len(arguments)) % tuple(chain.from_iterable([(len(a), a) for a in arguments]))]


@lru_cache(maxsize=256)
def _form(sha: str, root: str, count: int) -> bytes:
    key = root.encode("utf-8")
    head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % (4 + count, sha.encode())
    return (head + b"$%d\r\n%b\r\n" % (len(key), key)).replace(b"%", b"%%") + count * b"$%d\r\n%b\r\n"


def _unsent(error: Any) -> None:
    """Note at an error that no command was sent before it."""
    error.unsent = True


class SyncConnections:
    """The connections of one process for blocking callers."""

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._topology = topology
        made = {"decode_responses": False, "retry": Retry(NoBackoff(), 0), "health_check_interval": 0}
        self._factory = _pool(topology.options, **made)
        self._sentinels = _pool(topology.sentinels, **made)
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
        except _NONSENSE as error:
            raise exceptions.InvalidResponse(_NO_REDIS) from error
        finally:
            self._room.release()

    def ask(self, *command: str) -> object:
        """Send a command that is no script to the server that the last script ran on; None if it may not be sent.

        Raises:
            RedisError: whatever else redis-py raises.
        """
        deadline = time.monotonic() + self._timeout_s
        connection = self._connection(deadline)
        try:
            return self._ask(connection, deadline, *command)
        except exceptions.NoPermissionError:
            return None
        finally:
            connection.disconnect()

    def _with_connection(
        self, deadline: float, script: Script, root: str, arguments: Arguments, hops: int = _MAX_HOPS
    ) -> object:
        connection = self._connection(deadline)
        try:
            reply = self._attempt(connection, deadline, script, root, arguments)
        except exceptions.ResponseError as error:
            self._free.append((connection, deadline))
            if not self._topology.moved(error, (connection.host, connection.port)):
                raise
            if not hops:
                raise exceptions.ConnectionError("each node names another") from error
            return self._with_connection(deadline, script, root, arguments, hops - 1)
        except BaseException:
            connection.disconnect()
            self._topology.gone((connection.host, connection.port))
            raise
        self._free.append((connection, deadline))
        return reply

    def _connection(self, deadline: float) -> Any:
        """An idle connection or a new one; one that was idle for long may have been closed by the server."""
        topology = self._topology
        while self._free:
            connection, last = self._free.pop()
            dead = deadline - last > _IDLE_S and connection.is_connected and connection.can_read(timeout=0)
            if not dead and (not topology.moves or (connection.host, connection.port) == topology.address):
                return connection
            connection.disconnect()
        for left in range(topology.tries - 1, -1, -1):
            connection = self._factory.make_connection()
            if topology.moves:
                connection.host, connection.port = topology.address or self._located(deadline)
            try:
                self._connect(connection, deadline)
            except exceptions.ConnectionError:
                topology.gone((connection.host, connection.port))
                if not left:
                    raise
            else:
                break
        return connection

    def _located(self, deadline: float) -> Address:
        """Where the server is, or who knows it: sentinels are asked, each for its part of the time that is left."""
        topology = self._topology
        hosts = topology.hosts()
        if topology.service is None:
            topology.address = hosts[0]
            return hosts[0]
        for at, host in enumerate(hosts):
            now = time.monotonic()
            sentinel = self._sentinels.make_connection()
            sentinel.host, sentinel.port = host
            try:
                ends = now + (deadline - now) / (len(hosts) - at + 1)
                found = topology.told(self._ask(sentinel, ends, *_WHERE, topology.service))
            except (exceptions.RedisError, *_NONSENSE):
                continue
            finally:
                sentinel.disconnect()
            if found is not None:
                return found
        raise MasterNotFoundError(topology.service)

    def _attempt(self, connection: Any, deadline: float, script: Script, root: str, arguments: Arguments) -> object:
        try:
            return self._send(connection, deadline, packed(script.sha, root, arguments))
        except exceptions.NoScriptError:
            return self._ask(connection, deadline, "EVAL", script.source, 1, root, *arguments)

    def _ask(self, connection: Any, deadline: float, *command: Any) -> object:
        return self._send(connection, deadline, connection.pack_command(*command))

    def _send(self, connection: Any, deadline: float, command: list[bytes]) -> object:
        connection.deadline = deadline
        if not connection.is_connected:
            self._connect(connection, deadline)
        connection.send_packed_command(command, check_health=False)
        return connection.read_response(disable_decoding=True)

    def _connect(self, connection: Any, deadline: float) -> None:
        connection.deadline = deadline
        try:
            connection.connect()
        except BaseException as error:
            connection.disconnect()
            _unsent(error)
            raise

    def close(self) -> None:
        """Close the idle connections."""
        while self._free:
            self._free.pop()[0].disconnect()


class AsyncConnections:
    """The connections of one event loop."""

    def __init__(self, topology: Topology, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._topology = topology
        made: dict[str, Any] = {
            "decode_responses": False, "retry": AsyncRetry(NoBackoff(), 0), "health_check_interval": 0,
            "max_connections": 2**31, "socket_timeout": None, "socket_connect_timeout": timeout_s,
        }  # fmt: skip
        self._factory: Any = AsyncConnectionPool.from_url(topology.options, **made)
        self._sentinels: Any = AsyncConnectionPool.from_url(topology.sentinels, **made)
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
        except _NONSENSE as error:
            raise exceptions.InvalidResponse(_NO_REDIS) from error

    async def _with_connection(self, script: Script, root: str, arguments: Arguments, hops: int = _MAX_HOPS) -> object:
        connection = await self._connection()
        try:
            reply = await self._attempt(connection, script, root, arguments)
        except exceptions.ResponseError as error:
            self._free.append(connection)
            if not self._topology.moved(error, (connection.host, connection.port)):
                raise
            if not hops:
                raise exceptions.ConnectionError("each node names another") from error
            return await self._with_connection(script, root, arguments, hops - 1)
        except BaseException:
            await connection.disconnect(nowait=True)
            self._topology.gone((connection.host, connection.port))
            raise
        self._free.append(connection)
        return reply

    async def _connection(self) -> Any:
        topology = self._topology
        while self._free:
            connection = self._free.pop()
            if not topology.moves or (connection.host, connection.port) == topology.address:
                return connection
            await connection.disconnect(nowait=True)
        for left in range(topology.tries - 1, -1, -1):
            connection = self._factory.make_connection()
            if topology.moves:
                connection.host, connection.port = topology.address or await self._located()
            try:
                await self._connect(connection)
            except exceptions.ConnectionError:
                topology.gone((connection.host, connection.port))
                if not left:
                    raise
            else:
                break
        return connection

    async def _located(self) -> Address:
        """Same as `SyncConnections._located`, awaited."""
        topology = self._topology
        hosts = topology.hosts()
        if topology.service is None:
            topology.address = hosts[0]
            return hosts[0]
        for host in hosts:
            sentinel = self._sentinels.make_connection()
            sentinel.host, sentinel.port = host
            try:
                async with asyncio.timeout(self._timeout_s / (len(hosts) + 1)):
                    found = topology.told(await self._ask(sentinel, *_WHERE, topology.service))
            except (TimeoutError, exceptions.RedisError, *_NONSENSE):
                continue
            finally:
                await sentinel.disconnect(nowait=True)
            if found is not None:
                return found
        raise MasterNotFoundError(topology.service)

    async def _attempt(self, connection: Any, script: Script, root: str, arguments: Arguments) -> object:
        try:
            return await self._send(connection, packed(script.sha, root, arguments))
        except exceptions.NoScriptError:
            return await self._ask(connection, "EVAL", script.source, 1, root, *arguments)

    async def _ask(self, connection: Any, *command: Any) -> object:
        return await self._send(connection, connection.pack_command(*command))

    async def _send(self, connection: Any, command: list[bytes]) -> object:
        if not connection.is_connected:
            await self._connect(connection)
        await connection.send_packed_command(command, check_health=False)
        return await connection.read_response(disable_decoding=True)

    async def _connect(self, connection: Any) -> None:
        try:
            await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            _unsent(error)
            raise

    async def close(self) -> None:
        """Close the idle connections of this loop."""
        while self._free:
            await self._free.pop().disconnect()
