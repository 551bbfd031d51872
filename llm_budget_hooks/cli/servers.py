"""What the Redis server that has the balances says about itself, be it alone, in a cluster or behind sentinels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from llm_budget_hooks.models import Policy
from llm_budget_hooks.stores.redis import RedisStore


class Server:
    """A Redis server, as a context manager that closes the connection. Methods raise `StoreUnavailable`.

    Args:
        url: of the store.
        policy: for the namespace, whose node it is in a cluster, and the time that an answer may take.
    """

    def __init__(self, url: str, policy: Policy) -> None:
        self._store = RedisStore.from_url(url, policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._store.close()

    @property
    def name(self) -> str:
        """What it is, and its version."""
        kind = self._facts.get("server_name", "redis")
        return f"{kind.capitalize()} {self._facts.get(f'{kind}_version', self.version)}"

    @property
    def version(self) -> str:
        """The version of Redis that it speaks as, as INFO has it."""
        return self._facts.get("redis_version", "unknown")

    @property
    def eviction(self) -> str | None:
        """Its maxmemory-policy; None where it does not say."""
        return self._facts.get("maxmemory_policy")

    def skew_s(self) -> float:
        """How far its clock is ahead of this machine's, in seconds, half a round trip taken off."""
        self._store.ask("PING")  # what comes first may have to find the server
        before = time.time()
        told: Any = self._store.ask("TIME")
        after = time.time()
        seconds, micros = map(int, told)
        return float(seconds + micros / 1_000_000 - (before + after) / 2)

    @cached_property
    def _facts(self) -> Mapping[str, str]:
        told: Any = self._store.ask("INFO")
        lines = (told or b"").decode("utf-8", "replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
