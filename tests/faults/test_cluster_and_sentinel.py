"""Balances in a Redis Cluster and behind sentinels: slots that move, nodes that are lost, replicas that lag."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from several_servers import Cluster, asked, free_port, sentinel, wait_for

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError, StoreUnavailable
from llm_budget_hooks.testing import RedisServer

BUDGETS: list[dict[str, Any]] = [
    {"scope": "global", "limit": "$5", "window": "day"},
    {"scope": "tenant", "limit": "$5", "window": "rolling:1h"},
    {"scope": "user", "meter": "calls", "limit": 100, "window": "day"},
]
CALL = Call(model="m", tenant="acme", user="u1", amount="0.10")
NUMBERS = itertools.count()
ON_THE_WAY = "cannot be reached|cluster that is down|did not answer|cannot be found"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack)


def policy(namespace: str = "one") -> dict[str, Any]:
    return {
        "namespace": namespace, "budgets": BUDGETS, "store_timeout": "400ms", "degraded_allowance": "$0.10",
    }  # fmt: skip


def namespace_on(cluster: Cluster, node: int) -> str:
    """A name that no other test uses, of which the keys are on one node."""
    names = (f"n{number}" for number in NUMBERS)
    return next(name for name in names if cluster.owner(name) == node)


def spent(engine: BudgetEngine) -> list[Any]:
    return [(s.spent, s.reserved) for s in engine.status("acme", "u1")]


@pytest.mark.parametrize("node", [0, 2])
def test_b049_a_namespace_is_one_slot_of_a_cluster(cluster: Cluster, node: int) -> None:
    name = namespace_on(cluster, node)

    async def awaited(engine: BudgetEngine) -> None:
        await engine.asettle(await engine.areserve(CALL), cost="0.03")
        await engine.aclose()

    with BudgetEngine.open(cluster.url, policy(name)) as engine:
        engine.settle(engine.reserve(CALL), cost="0.04")
        asyncio.run(awaited(engine))
        assert spent(engine) == [(Decimal("0.07"), 0), (Decimal("0.07"), 0), (2, 0)]
    keys = cluster.nodes[node].command("KEYS", f"*{{{name}}}*")
    slots = {cluster.nodes[node].command("CLUSTER", "KEYSLOT", key) for key in keys}  # type: ignore[union-attr, arg-type]
    assert slots == {cluster.slot(name)}


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_b049_balances_are_whole_while_their_slot_moves(cluster: Cluster, face: str) -> None:
    name = namespace_on(cluster, 0)
    slot, source, target = cluster.slot(name), cluster.nodes[0], cluster.nodes[1]
    loop = asyncio.new_event_loop()

    def reserve(engine: BudgetEngine) -> Any:
        return engine.reserve(CALL) if face == "blocking" else loop.run_until_complete(engine.areserve(CALL))

    with BudgetEngine.open(cluster.url, policy(name)) as engine:
        held = reserve(engine)
        cluster.begin_move(slot, source, target)
        cluster.move_keys(slot, source, target, 2)
        alone = reserve(engine)
        with pytest.raises(StoreUnavailable, match="moving to another node"):
            reserve(engine)
        assert engine.settle(alone, cost="0.09").pending
        assert target.command("CLUSTER", "COUNTKEYSINSLOT", slot) == 2
        cluster.move_keys(slot, source, target, 1_000)
        cluster.end_move(slot, source, target)
        reserve(engine)
        engine.release(held)
        assert spent(engine) == [(Decimal("0.09"), Decimal("0.10"))] * 2 + [(3, 0)]
        assert not engine.degraded
        loop.run_until_complete(engine.aclose())
    loop.close()


def test_a_node_that_is_lost_is_replaced_by_its_replica(cluster: Cluster) -> None:
    name, primary = namespace_on(cluster, 2), cluster.nodes[2]
    cluster.replica_of(primary)
    with BudgetEngine.open(cluster.url, policy(name)) as engine:
        engine.settle(engine.reserve(CALL), cost="1")
        caught_up(primary)
        primary.kill()
        alone = engine.reserve(CALL)
        with pytest.raises(StoreUnavailable):
            engine.reserve(CALL)
        engine.settle(alone, cost="0.06")
        again(engine.flush)
        assert spent(engine)[0] == (Decimal("1.06"), 0)


def caught_up(primary: RedisServer) -> None:
    """Wait until its replica has all that was written so far."""
    written = int(primary.info("replication")["master_repl_offset"])
    wait_for(lambda: int(re.findall(r"offset=(\d+)", primary.info("replication")["slave0"])[0]) >= written)


def again(ask: Callable[..., Any], *args: Any) -> Any:
    """Ask until the store has been found again."""
    ends = time.monotonic() + 20
    while True:
        try:
            return ask(*args)
        except StoreUnavailable as error:
            if time.monotonic() > ends or not re.search(ON_THE_WAY, str(error)):
                raise
            time.sleep(0.02)


def test_hosts_that_are_down_are_passed_over(cluster: Cluster) -> None:
    url = cluster.url.replace("://", f"://127.0.0.1:{free_port()},127.0.0.1:{free_port()},")
    with BudgetEngine.open(url, {**policy(namespace_on(cluster, 1)), "on_store_error": "deny"}) as engine:
        engine.settle(engine.reserve(CALL), cost="0.04")
        assert spent(engine)[0] == (Decimal("0.04"), 0)


@pytest.fixture
def primary() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def replica(primary: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(args=("--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")) as server:
        wait_for(lambda: server.info("replication")["master_link_status"] == "up")
        yield server


def watched(port: int, replica: RedisServer) -> str:
    """The URL, once the sentinel knows the replica."""
    wait_for(lambda: b"%d" % replica.port in [*itertools.chain(*asked(port, "SENTINEL", "REPLICAS", "budgets"))])
    return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{port}/budgets/0"


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_a_primary_that_is_lost_is_replaced_by_what_the_sentinel_names(
    primary: RedisServer, replica: RedisServer, tmp_path: Path, face: str
) -> None:
    loop = asyncio.new_event_loop()

    def ask(name: str, *args: Any, **more: Any) -> Any:
        if face == "blocking":
            return getattr(engine, name)(*args, **more)
        return loop.run_until_complete(getattr(engine, f"a{name}")(*args, **more))

    with sentinel(primary, tmp_path) as port, BudgetEngine.open(watched(port, replica), policy()) as engine:
        ask("settle", ask("reserve", CALL), cost="1")
        caught_up(primary)
        primary.kill()
        alone = ask("reserve", CALL)
        with pytest.raises(StoreUnavailable):
            ask("reserve", CALL)
        ask("settle", alone, cost="0.06")
        again(ask, "flush")
        assert spent(engine)[0] == (Decimal("1.06"), 0)
        assert b"master" in replica.command("ROLE")  # type: ignore[operator]  # a list
        loop.run_until_complete(engine.aclose())
    loop.close()


@pytest.mark.parametrize("ledger", [True, False])
def test_b025_a_replica_that_lagged_gives_no_fresh_limit(
    primary: RedisServer, replica: RedisServer, tmp_path: Path, ledger: bool
) -> None:
    books = f"sqlite:///{tmp_path / 'ledger.db'}" if ledger else None
    rules = {**policy(), "on_store_error": "deny"}
    with (
        sentinel(primary, tmp_path) as port,
        BudgetEngine.open(watched(port, replica), rules, ledger=books) as engine,
    ):
        engine.settle(engine.reserve(CALL), cost="1")
        caught_up(primary)
        time.sleep(0.2)
        replica.command("REPLICAOF", "NO", "ONE")
        engine.settle(engine.reserve(CALL), cost="3.95")
        engine.flush()
        primary.kill()
        wait_for(lambda: asked(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "budgets")[1] == b"%d" % replica.port)
        assert replica.command("DBSIZE") != 0
        if ledger:
            with pytest.raises(BudgetExceeded) as refused:
                again(engine.reserve, CALL)
            assert refused.value.spent == Decimal("4.95")
        else:
            with pytest.raises(StoreUnavailable, match="lost or set back"):
                again(engine.reserve, CALL)


def test_a_service_that_no_sentinel_knows_is_named(primary: RedisServer, tmp_path: Path) -> None:
    with sentinel(primary, tmp_path) as port:
        for hosts in (f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"):
            engine = BudgetEngine.open(f"redis+sentinel://{hosts}/other", {**policy(), "on_store_error": "deny"})
            with pytest.raises(StoreUnavailable, match="no sentinel that answers knows the service"):
                engine.reserve(CALL)
            engine.close()


def test_a_node_of_a_cluster_by_its_own_url_says_what_to_write(cluster: Cluster) -> None:
    rules = {**policy(namespace_on(cluster, 0)), "on_store_error": "deny"}
    engine = BudgetEngine.open(cluster.nodes[1].url, rules)
    with pytest.raises(StoreUnavailable, match=r"redis\+cluster://"):
        engine.reserve(CALL)
    engine.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://a:1,b:2/0", "redis://:0", "redis://h/x", "redis+cluster://h/1", "redis+cluster://", "redis+sentinel://h",
        "redis+sentinel://h/s/x", "redis+sentinel://h/s/1/2", "redis+other://h", "redis+cluster://h:x", "redis+cluster://h,",
    ],
)  # fmt: skip
def test_a_url_that_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="URL is"):
        BudgetEngine.open(url, policy())
