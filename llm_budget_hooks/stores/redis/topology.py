"""Which server has the balances of a namespace: at any moment one, as all keys of a namespace are in one slot.

Behind ``redis://`` it is always the same. In a cluster a server that is not it says which one is; a slot that is just
being moved is nowhere as a whole, and is store trouble until it has arrived. Behind sentinels one of them is asked,
and asked again when the server has gone or has become a replica. Pure: what is sent is in `connections.py`.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from redis import exceptions

from llm_budget_hooks.errors import ConfigurationError

Address = tuple[str, int]
SCHEMES: Final = frozenset(("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"))
_FORMS: Final = (
    "a Redis URL is redis://[user:password@]host:port/database, redis+cluster://host:port,host:port or "
    "redis+sentinel://host:port,host:port/service/database; rediss in the place of redis is for TLS"
)
_PORTS: Final = {"sentinel": 26379}


class Topology:
    """What is known about where the server is; shared by all connections of a store.

    Args:
        url: the store's.

    Attributes:
        name: the hosts of the URL, for messages.
        options: a plain URL with the login, the database and the options that servers are connected with.
        service: what sentinels call the server; None where none are asked.
        sentinels: a plain URL that they are connected with.
        moves: whether the server can be another one later.
        address: where the server is, as far as is known.
        tries: how many hosts a connection is tried at.

    Raises:
        ConfigurationError: the URL has none of the forms that there are.
    """

    def __init__(self, url: str) -> None:
        try:
            self._read(urlsplit(url))
        except ValueError:
            raise ConfigurationError(_FORMS) from None
        self._turn = 0
        self.tries = 2 if self.service else len(self._hosts)
        self.address: Address | None = None if self.moves else self._hosts[0]

    def _read(self, parts: SplitResult) -> None:
        plain, _, kind = parts.scheme.partition("+")
        login, at, hosts = parts.netloc.rpartition("@")
        self._hosts = [_address(host, _PORTS.get(kind, 6379)) for host in hosts.split(",")]
        self.moves = bool(kind)
        path = parts.path.strip("/").split("/")
        self.service = path.pop(0) if kind == "sentinel" else None
        database = path[0] if path else ""
        few = kind == "cluster" and database not in ("", "0")
        if parts.scheme not in SCHEMES or self.service == "" or len(path) > 1 or few:
            raise ValueError
        if (database and not database.isdigit()) or (len(self._hosts) > 1 and not kind):
            raise ValueError
        self.name = ",".join(f"{host}:{port}" for host, port in self._hosts)
        query = f"?{parts.query}" if parts.query else ""
        self.options = f"{plain}://{login}{at}{hosts.split(',')[0]}/{database}{query}"
        self.sentinels = f"{plain}://{hosts.split(',')[0]}{query}"

    def hosts(self) -> list[Address]:
        """The hosts of the URL, in the order in which they are to be asked now."""
        at = self._turn % len(self._hosts)
        return self._hosts[at:] + self._hosts[:at]

    def told(self, answer: Any) -> Address | None:
        """Take note of what a sentinel has answered; None if it does not know the service."""
        if answer:
            self.address = answer[0].decode(), int(answer[1])
        return self.address if answer else None

    def moved(self, error: exceptions.ResponseError, asked: Address) -> bool:
        """Take note of an error that a server answered with; True: the command is to be sent to another one.

        Args:
            error: the answer; the command was not run.
            asked: the server.
        """
        if self.moves and isinstance(error, exceptions.MovedError):
            self.address = (error.host or asked[0], int(error.port))
            return True
        if isinstance(error, (exceptions.ReadOnlyError, exceptions.ClusterDownError)):
            self.gone(asked)
        return False

    def gone(self, asked: Address) -> None:
        """Take note that a server does not answer, or is not the one any more."""
        if self.moves and self.address in (asked, None):
            self.address = None
            self._turn += 1


def _address(host: str, port: int) -> Address:
    parts = urlsplit(f"//{host}")
    if not parts.hostname or parts.port == 0:
        raise ValueError
    return parts.hostname, parts.port or port
