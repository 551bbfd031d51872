"""A Redis Cluster and a server behind a sentinel, of real processes on loopback."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from llm_budget_hooks.testing import RedisServer
from llm_budget_hooks.testing.resp import RespConnection, RespError
from llm_budget_hooks.testing.servers import _executable

EDGES = (0, 5_461, 10_922, 16_384)


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Ask until the answer is true."""
    ends = time.monotonic() + seconds
    while True:
        try:
            if answer := what():
                return answer
        except (OSError, RespError):
            pass
        assert time.monotonic() < ends, "it did not come about in time"
        time.sleep(0.02)


def free_port() -> int:
    """A port that leaves room for a cluster's own, which is 10,000 higher."""
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311 - any will do
        try:
            with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.1", port + 10_000)):
                return port
        except OSError:
            continue


class Cluster:
    """Three nodes that share the slots, and replicas on request."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.nodes = [self.node() for _ in range(3)]
        for node, begins, ends in zip(self.nodes, EDGES[:-1], EDGES[1:], strict=True):
            node.command("CLUSTER", "ADDSLOTS", *range(begins, ends))
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
        for node in self.nodes:
            wait_for(lambda node=node: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))

    def node(self) -> RedisServer:
        node = RedisServer(args=("--cluster-enabled", "yes", "--cluster-node-timeout", "400"))
        node.port = free_port()
        return self._stack.enter_context(node)

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def slot(self, namespace: str) -> int:
        slot = self.nodes[0].command("CLUSTER", "KEYSLOT", f"lbh:{{{namespace}}}:")
        assert isinstance(slot, int)
        return slot

    def owner(self, namespace: str) -> int:
        """Which node has a namespace's keys, as it was given out."""
        return bisect(EDGES, self.slot(namespace)) - 1

    def begin_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, count: int) -> None:
        for key in source.command("CLUSTER", "GETKEYSINSLOT", slot, count):  # type: ignore[union-attr]  # a list
            source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)  # type: ignore[arg-type]  # as above

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        for node in (target, source):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))

    def replica_of(self, primary: RedisServer) -> RedisServer:
        replica = self.node()
        replica.command("CLUSTER", "MEET", "127.0.0.1", primary.port)
        name = node_id(primary)
        wait_for(lambda: replica.command("CLUSTER", "REPLICATE", name))
        wait_for(lambda: replica.info("replication")["master_link_status"] == "up")
        for node in self.nodes:
            wait_for(lambda node=node: node_id(replica).encode() in node.command("CLUSTER", "NODES"))
        return replica


def node_id(node: RedisServer) -> str:
    answer = node.command("CLUSTER", "MYID")
    assert isinstance(answer, bytes)
    return answer.decode()


@contextmanager
def sentinel(server: RedisServer, folder: Path) -> Iterator[int]:
    """The port of a sentinel that watches a server under the name ``budgets``."""
    port, folder = free_port(), folder / "sentinel"
    folder.mkdir()
    (folder / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor budgets 127.0.0.1 {server.port} 1\n"
        "sentinel down-after-milliseconds budgets 300\nsentinel failover-timeout budgets 3000\n"
    )
    command = [str(_executable(server._binary, folder)), str(folder / "sentinel.conf"), "--sentinel"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: asked(port, "PING") == b"PONG")
        yield port
    finally:
        process.kill()
        process.wait()


def asked(port: int, *words: str) -> Any:
    """What a server on a port answers."""
    with RespConnection(port) as connection:
        return connection.command(*words)
