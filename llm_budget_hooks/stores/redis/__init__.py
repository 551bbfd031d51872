"""Balances in a Redis that any number of processes and machines share: Redis 6.2 to 8, or Valkey.

A command is one Lua script, which the server runs as one atomic step on its own clock. When a reply is lost
the caller cannot know whether the script ran: a reserve is then released under its id by a later operation,
and a settle is sent again, which books once.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.sentinel import MasterNotFoundError

from llm_budget_hooks.errors import ConfigurationError, StoreUnavailable
from llm_budget_hooks.models import Policy
from llm_budget_hooks.stores.breaker import Breaker
from llm_budget_hooks.stores.redis.codec import FINISH, READ, RECORDS, RESERVE, decode, encode, script_of
from llm_budget_hooks.stores.redis.connections import Arguments, AsyncConnections, SyncConnections, check_options
from llm_budget_hooks.stores.redis.topology import Topology
from llm_budget_hooks.transitions import Answer, Command, Ended, Epoch, Finish, Mode, Reserve, Verdict

_STAMP_MS: Final = 100
_FORBIDDEN: Final = ("Unknown Redis command", "not allowed from script", "NOPERM", "no permissions", "can't run this")
_REFUSALS: Final = (
    exceptions.AuthenticationError,
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.AskError,
)

SCRIPTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: script.source.decode()
        for name, script in (("reserve", RESERVE), ("finish", FINISH), ("read", READ), ("records", RECORDS))
    }
)
"""The Lua sources as the server runs them, for audit."""


class RedisStore:
    """A store in one Redis.

    Attributes:
        unfinished: epochs of lost balances that this process has begun to rebuild and could not, and until when, by
            `time.monotonic`, nobody else does.
    """

    shared = True
    forgets = True
    kept_elsewhere = False

    def __init__(
        self, url: str, *, namespace: str = "default", timeout_s: float = 1.0, allow_eviction: bool = False
    ) -> None:
        self._url = url
        self._topology = Topology(url)
        check_options(self._topology)
        self._timeout_s = timeout_s
        self._root = f"lbh:{{{namespace}}}:"
        self._skew_ms = 0
        self._breaker = Breaker(self._topology.name, timeout_s)
        self._namespace = namespace
        self._allow_eviction = allow_eviction
        self.epoch: str | None = None
        self._least_ms = 0
        self._checks = True
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.unfinished: dict[str, float] = {}
        self._sync: SyncConnections | None = None
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnections] = WeakKeyDictionary()

    @classmethod
    def from_url(cls, url: str, policy: Policy) -> RedisStore:
        """A store from a URL that is one of ``redis://``, ``redis+cluster://`` and ``redis+sentinel://``.

        Raises:
            ConfigurationError: the URL has no such form.
        """
        timeout_s = policy.store_timeout.total_seconds()
        return cls(url, namespace=policy.namespace, timeout_s=timeout_s, allow_eviction=policy.allow_eviction)

    def execute(self, command: Command) -> Answer:
        """See `Store.execute`."""
        began = self._began()
        try:
            connections = self._blocking()
            if self.epoch is None and self._checks:
                self._meet(connections.evaluate(RECORDS, self._root, self._introduction()))
            reply = connections.evaluate(script_of(command), self._root, (*encode(command), self._known()))
        except (exceptions.RedisError, StoreUnavailable) as error:
            raise self._described(error, began) from error
        return self._answer(command, reply)

    async def aexecute(self, command: Command) -> Answer:
        """See `Store.aexecute`."""
        began = self._began()
        try:
            connections = self._awaited()
            if self.epoch is None and self._checks:
                self._meet(await connections.evaluate(RECORDS, self._root, self._introduction()))
            reply = await connections.evaluate(script_of(command), self._root, (*encode(command), self._known()))
        except (exceptions.RedisError, StoreUnavailable) as error:
            raise self._described(error, began) from error
        return self._answer(command, reply)

    def ask(self, *command: str) -> Any:
        """What the server that has these balances says about itself, to a command such as INFO or TIME.

        Returns:
            the reply; None if this login may not ask that.

        Raises:
            StoreUnavailable: it does not answer.
        """
        began = self._began()
        try:
            connections = self._blocking()
            connections.evaluate(RECORDS, self._root, (*encode(Epoch()), b""))  # in a cluster this finds the server
            return connections.ask(*command)
        except (exceptions.RedisError, StoreUnavailable) as error:
            raise self._described(error, began) from error

    def ask_again(self) -> None:
        """See `Store.ask_again`."""
        self._breaker.close()

    def now_ms(self) -> int:
        """See `Store.now_ms`."""
        return time.time_ns() // 1_000_000 + self._skew_ms

    def close(self) -> None:
        """See `Store.close`."""
        if self._pid == os.getpid() and self._sync is not None:
            self._sync.close()

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        self.close()
        connections = self._loops.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.close()

    def _began(self) -> float:
        if self._breaker.open:
            self._breaker.check()
        return time.monotonic()

    def probe(self) -> None:
        """Look at the server once, on a connection that is closed again; one that is away is left for later.

        Raises:
            ConfigurationError: it evicts keys, and the policy does not allow that; or it does not let scripts use what
                they need.
        """
        looking = RedisStore(
            self._url, namespace=self._namespace, timeout_s=self._timeout_s, allow_eviction=self._allow_eviction
        )
        looking.kept_elsewhere = True
        try:
            looking.execute(Epoch())
        except StoreUnavailable as error:
            if _forbidden(error.__cause__):
                raise ConfigurationError(str(error)) from error
        finally:
            looking.close()

    def repairing(self) -> RedisStore:
        """The same store for whoever puts lost balances back: it is asked whatever became of them."""
        made = RedisStore(self._url, namespace=self._namespace, timeout_s=self._timeout_s)
        made._checks = False
        return made

    def adopt(self, stamp: str) -> None:
        """Go by these balances from now on; `stamp` is their epoch, its time, and what else the store keeps of it."""
        epoch, least = stamp.split(" ")[:2]
        self.epoch, self._least_ms = epoch, int(least)

    def _introduction(self) -> Arguments:
        return (*encode(Epoch(made="" if self.kept_elsewhere else os.urandom(8).hex())), b"")

    def _meet(self, reply: object) -> None:
        """Take note of the epoch of the balances that this process finds."""
        met: Any = decode(Epoch(), reply)
        self._breaker.close()
        if met.evicts and not self._allow_eviction:
            raise ConfigurationError(
                f"The Redis at {self._topology.name} drops keys when its memory is full, and with them what was spent. "
                "Set its maxmemory-policy to noeviction, or allow_eviction = true in the policy."
            )
        if not met.stamp:
            raise self._lost()
        self.adopt(met.stamp)

    def _known(self) -> bytes:
        return f"{self.epoch} {self._least_ms}".encode() if self._checks else b""

    def _lost(self) -> StoreUnavailable:
        error = StoreUnavailable(
            f"The balances at {self._topology.name} were lost or set back. Nothing is held until they are rebuilt; "
            "engine.rebuild() does that, from the ledger if there is one."
        )
        error.sent, error.lost = False, True
        return error

    def _answer(self, command: Command, reply: object) -> Answer:
        if self._breaker.open:
            self._breaker.close()
        if isinstance(reply, bytes) and reply.startswith(b"LOST"):
            raise self._lost()
        answer = decode(command, reply)
        if command.now_ms is None:
            if answer.now_ms - _STAMP_MS > self._least_ms and _wrote(command, answer):
                self._least_ms = answer.now_ms - _STAMP_MS
            self._skew_ms = answer.now_ms - time.time_ns() // 1_000_000
        return answer

    def _blocking(self) -> SyncConnections:
        if self._pid != os.getpid():
            self._reset()
        connections = self._sync
        if connections is None:
            with self._lock:
                connections = self._sync = self._sync or SyncConnections(self._topology, self._timeout_s)
        return connections

    def _awaited(self) -> AsyncConnections:
        if self._pid != os.getpid():
            self._reset()
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop)
        if connections is None:
            with self._lock:
                connections = self._loops[loop] = AsyncConnections(self._topology, self._timeout_s)
        return connections

    def _described(self, error: exceptions.RedisError | StoreUnavailable, began_s: float) -> StoreUnavailable:
        if isinstance(error, StoreUnavailable):
            return self._breaker.error(sent=error.sent) if error.busy and self._breaker.open else error
        self._breaker.failed(began_s)
        trouble = _trouble(error, self._timeout_s)
        told = StoreUnavailable(f"The store at {self._topology.name} {trouble} Nothing is held.")
        told.unwritten = _unwritten(error)
        told.sent = not (getattr(error, "unsent", False) or told.unwritten or isinstance(error, _REFUSALS))
        return told


def _wrote(command: Command, answer: Any) -> bool:
    """Whether the store has written down that its balances are of this time."""
    if type(command) is Reserve:
        return answer.verdict == Verdict.ADMITTED and command.mode != Mode.CHECK
    return type(command) is Finish and answer.ended <= Ended.LATE


def _unwritten(error: exceptions.RedisError) -> bool:
    """Whether a server has ended a script at its first write."""
    return isinstance(error, exceptions.ResponseError) and any(word in str(error) for word in ("READONLY", "OOM"))


def _forbidden(error: object) -> bool:
    """Whether a server has a command renamed, disabled, or forbidden to this user."""
    return isinstance(error, exceptions.ResponseError) and any(word in str(error) for word in _FORBIDDEN)


def _trouble(error: exceptions.RedisError, timeout_s: float) -> str:
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError) or "NOAUTH" in text or "WRONGPASS" in text:
        return "wants a password, or another one: put it into the URL, redis://:PASSWORD@host:port."
    if isinstance(error, exceptions.TimeoutError):
        return f"did not answer within {timeout_s:g} s."
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in text:
        return "is out of memory: raise its maxmemory."
    if isinstance(error, exceptions.BusyLoadingError):
        return "is loading its data."
    if isinstance(error, exceptions.ReadOnlyError) or "READONLY" in text:
        return "is a read-only replica: name the primary."
    if isinstance(error, exceptions.MovedError):
        return "does not keep these balances itself: a cluster's URL is redis+cluster://host:port,host:port."
    if isinstance(error, exceptions.AskError):
        return "is just moving to another node of the cluster."
    if isinstance(error, exceptions.ClusterDownError):
        return "is in a cluster that is down."
    if isinstance(error, MasterNotFoundError):
        return "cannot be found: no sentinel that answers knows the service that the URL names."
    if _forbidden(error):
        return (
            "does not let scripts use a command that they need: TIME, GET, SET and others must be allowed in scripts."
        )
    if isinstance(error, exceptions.InvalidResponse):
        return "does not answer as a Redis does."
    if isinstance(error, exceptions.ConnectionError):
        return "cannot be reached."
    return f"refused the script: {text[:200]}"
