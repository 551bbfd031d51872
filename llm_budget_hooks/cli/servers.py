"""What a Redis server says about itself, beside the store's own commands."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

_TIMEOUT_S = 5.0


class Server:
    """A Redis server, as a context manager that closes the connection.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, decode_responses=True
        )
        self._facts: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._client.close()

    @property
    def version(self) -> str:
        """Its version, as INFO has it."""
        return str(self._read().get("redis_version", "unknown"))

    @property
    def eviction(self) -> str | None:
        """Its maxmemory-policy; None where it does not say."""
        return self._read().get("maxmemory_policy")

    def skew_s(self) -> float:
        """How far its clock is ahead of this machine's, in seconds, half a round trip taken off."""
        before = time.time()
        seconds, micros = self._client.time()
        after = time.time()
        return float(seconds + micros / 1_000_000 - (before + after) / 2)

    def _read(self) -> dict[str, Any]:
        if self._facts is None:
            self._facts = dict(self._client.info())
        return self._facts
