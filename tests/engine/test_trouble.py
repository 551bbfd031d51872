"""What goes wrong is said, within the timeout, and changes nothing."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call, ConfigurationError, Policy, StoreUnavailable, Usage
from llm_budget_hooks.models.calls import SERVICE_TIERS
from llm_budget_hooks.pricing.rates import SERVICE_TIERS as PRICED_TIERS
from llm_budget_hooks.stores.rows import SCHEMA_VERSION
from llm_budget_hooks.testing import DelayProxy, FakeProvider, RedisServer

POLICY = {
    "budgets": [{"scope": "global", "limit": "$1", "window": "day"}],
    "store_timeout": "500ms",
    "on_store_error": "deny",
}
CALL = Call(model="m", amount="0.10")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"scope": "planet", "limit": "$1", "window": "day"}, "scope"),
        ({"scope": "user", "limit": 1.5, "window": "day"}, "1.5"),
        ({"scope": "user", "limit": "$-1", "window": "day"}, "negative"),
        ({"scope": "user", "limit": "$9000001", "window": "day"}, "9,000,000"),
        ({"scope": "user", "limit": "$1", "window": "fortnight"}, "fortnight"),
        ({"scope": "user", "limit": "$1"}, "window"),
        ({"scope": "answer", "limit": "$1", "window": "day"}, "answer"),
        ({"scope": "user", "meter": "in_flight", "limit": 1, "window": "day"}, "in_flight"),
        ({"scope": "user", "meter": "calls", "limit": "5", "window": "day"}, "whole number"),
        ({"scope": "user", "limit": "$1", "window": "day", "colour": "red"}, "colour: unknown key"),
        ({"scope": "user", "limit": "$1", "window": "day", "count": "entry"}, "entry"),
    ],
)
def test_a_bad_budget_is_refused_by_name(budget: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Policy(budgets=[budget])
    assert "budgets[0]" in str(refused.value)
    assert words in str(refused.value)


def test_b061_an_unknown_zone_and_an_unknown_key_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Pragu"):
        Policy(timezone="Europe/Pragu")
    with pytest.raises(ConfigurationError, match="nonsense: unknown key"):
        Policy(nonsense=1)


def test_a_bad_file_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text('[[budgets]]\nscope = "user"\nlimit = 2.5\nwindow = "day"\n')
    with pytest.raises(ConfigurationError, match=r"budgets\.toml: budgets\[0\]\.limit"):
        Policy.load(path)
    path.write_text("budgets = [")
    with pytest.raises(ConfigurationError, match="no TOML"):
        Policy.load(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Policy.load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "url", ["", "nonsense", "memory:", "sqlite://", "sqlite:///:memory:", "redis://", "redis://h:0x", "http://h", 7]
)
def test_a_bad_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError):
        BudgetEngine.open(url, POLICY)


@pytest.mark.parametrize("share", ["nan", "inf", "-1", "0", "100.5"])
def test_a_share_that_no_account_can_reach_is_refused(share: str) -> None:
    with pytest.raises(ConfigurationError, match="alert_at"):
        Policy(alert_at=[float(share)])
    assert Policy(alert_at=[0.5, 1.2]).alert_at == (0.5, 1.2)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Call(model="m", id=""), "Call.id"),
        (lambda: Call(model="m", service_tier="bogus"), "service_tier"),
        (lambda: Call(model="m", audio="no"), "True or False"),
        (lambda: Usage(exact="no"), "Usage.exact"),
    ],
)
def test_a_call_or_a_usage_that_cannot_be_meant_is_refused(made: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        made()


def test_a_usage_of_a_tier_that_nobody_knows_is_not_exact() -> None:
    assert not Usage(input_tokens=1, service_tier="bogus").exact
    assert set(PRICED_TIERS) <= SERVICE_TIERS
    assert all(Usage(input_tokens=1, service_tier=tier.upper()).exact for tier in SERVICE_TIERS)


@pytest.mark.parametrize("nothing", [None, "", 7])
def test_an_end_says_what_to_pass(nothing: Any) -> None:
    with BudgetEngine.open("memory://", POLICY) as engine:
        for end in (lambda: engine.settle(nothing, cost="0.1"), lambda: engine.release(nothing),
                    lambda: engine.extend(nothing), lambda: asyncio.run(engine.asettle(nothing))):  # fmt: skip
            with pytest.raises(ConfigurationError, match="the Reservation that reserve returned"):
                end()


def test_b004_a_private_store_says_so() -> None:
    assert BudgetEngine.open("memory://", POLICY).shared is False
    with pytest.raises(ConfigurationError, match="require_shared"):
        BudgetEngine.open("memory://", POLICY, require_shared=True)


def test_a_file_that_is_no_database_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("these are my notes, and they are long enough")
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        BudgetEngine.open(f"sqlite:///{path}", POLICY)
    with pytest.raises(ConfigurationError, match="does not exist"):
        BudgetEngine.open(f"sqlite:///{tmp_path}/none/a.db", POLICY)
    assert path.read_text().startswith("these are my notes")


@pytest.mark.parametrize("made", ["CREATE TABLE cells (x)", f"PRAGMA user_version = {SCHEMA_VERSION}"])
def test_the_database_of_another_program_is_refused_at_once_and_left_as_it_is(tmp_path: Path, made: str) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE names (name)")
        theirs.execute(made)
        theirs.commit()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="another program"):
        BudgetEngine.open(f"sqlite:///{path}", POLICY)
    assert path.read_bytes() == before


def test_a_database_with_tables_of_other_names_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "ours.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE names (name)")
    for _ in range(2):
        with BudgetEngine.open(f"sqlite:///{path}", POLICY) as engine:
            engine.charge(CALL, cost="0.10")
    assert str(engine.status()[0].spent) == "0.2"
    engine.close()


def test_a_database_that_cannot_be_written_refuses_and_books_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    engine = BudgetEngine.open(f"sqlite:///{path}", POLICY)
    held = engine.reserve(CALL)
    engine._store._connection.execute("PRAGMA query_only = ON")  # type: ignore[attr-defined]  # as on a read-only disk
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        engine.reserve(CALL)
    assert engine.settle(held, cost="0.05").pending
    engine._store._connection.execute("PRAGMA query_only = OFF")  # type: ignore[attr-defined]  # the disk is back
    engine.flush()
    assert [(s.spent, s.reserved) for s in engine.status()] == [(engine.policy.budgets[0].limit / 20, 0)]
    engine.close()


def fill(engine: BudgetEngine) -> None:
    for _ in range(2000):
        engine.charge(Call(model="m" * 500, amount="0.01"), cost=0)


def test_a_full_disk_refuses_and_books_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    engine = BudgetEngine.open(f"sqlite:///{path}", POLICY)
    engine.charge(CALL, cost="0.10")
    connection = engine._store._connection  # type: ignore[attr-defined]  # SQLite's own way to a full disk
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="full"):
        fill(engine)
    connection.execute("PRAGMA max_page_count = 100000")
    assert engine.status()[0].reserved == 0
    engine.close()


def test_a_file_held_by_others_is_waited_for_and_then_refused_as_busy(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    engine = BudgetEngine.open(f"sqlite:///{path}", POLICY)
    engine.reserve(CALL)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as refused:
        engine.reserve(CALL)
    assert refused.value.busy
    with pytest.raises(StoreUnavailable):
        asyncio.run(engine.areserve(CALL))
    assert 0.5 <= time.monotonic() - began < 30
    other.execute("ROLLBACK")
    other.close()
    assert str(engine.status()[0].reserved) == "0.1"
    engine.close()


@pytest.fixture
def stalled(redis_server: RedisServer) -> Iterator[DelayProxy]:
    with DelayProxy(redis_server.port) as proxy:
        yield proxy


def test_a_redis_that_does_not_answer_refuses_within_the_timeout(stalled: DelayProxy) -> None:
    engine = BudgetEngine.open(stalled.url, POLICY)
    held = engine.reserve(CALL)
    stalled.stall = True
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        engine.reserve(CALL)
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        asyncio.run(engine.areserve(CALL))
    assert engine.settle(held, cost="0.05").pending
    assert engine.status()[0].spent is None
    engine.close()


def test_b028_a_lost_reply_of_a_settle_books_once(redis_server: RedisServer, stalled: DelayProxy) -> None:
    engine = BudgetEngine.open(stalled.url, POLICY)
    held = engine.reserve(CALL)
    stalled.match = b"EVALSHA"
    stalled.cut_after_request = 1
    assert engine.settle(held, cost="0.05").pending
    engine.flush()
    assert [(str(s.spent), s.reserved) for s in engine.status()] == [("0.05", 0)]
    engine.close()


def test_a_lost_reply_of_a_reserve_is_given_back(stalled: DelayProxy) -> None:
    engine = BudgetEngine.open(stalled.url, POLICY)
    engine.charge(CALL, cost="0.10")
    stalled.match = b"EVALSHA"
    stalled.cut_after_request = 1
    with pytest.raises(StoreUnavailable):
        engine.reserve(CALL)
    assert [(str(s.spent), s.reserved) for s in engine.status()] == [("0.1", 0)]
    engine.close()


def test_b047_a_cancelled_reserve_leaves_no_reply_for_another(stalled: DelayProxy) -> None:
    engine = BudgetEngine.open(stalled.url, {**POLICY, "store_timeout": "10s"})

    async def work() -> list[Any]:
        stalled.delay_s = 0.1
        task = asyncio.create_task(engine.areserve(CALL))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stalled.delay_s = 0.0
        held = await asyncio.gather(*(engine.areserve(Call(model="m", amount="0.001", id=f"c{n}")) for n in range(100)))
        shown = await engine.astatus()
        await engine.aclose()
        return [[h.id for h in held], shown[0].reserved]

    ids, reserved = asyncio.run(work())
    assert ids == [f"c{n}" for n in range(100)]
    assert str(reserved) == "0.1"


def test_b050_a_server_that_forgot_its_scripts_holds_once(redis_server: RedisServer) -> None:
    engine = BudgetEngine.open(redis_server.url, POLICY)
    engine.reserve(CALL)
    redis_server.command("SCRIPT", "FLUSH")
    engine.reserve(CALL)
    assert str(engine.status()[0].reserved) == "0.2"
    engine.close()


def test_b051_one_engine_serves_two_loops_one_after_the_other(redis_server: RedisServer) -> None:
    engine = BudgetEngine.open(redis_server.url, POLICY)

    async def once() -> None:
        await engine.asettle(await engine.areserve(CALL), cost="0.10")
        await engine.aclose()

    asyncio.run(once())
    asyncio.run(once())
    assert str(engine.status()[0].spent) == "0.2"
    engine.close()


def test_a_redis_with_a_password_says_so_and_shows_none() -> None:
    with RedisServer(requirepass="s3cret") as server:
        for url in (f"redis://127.0.0.1:{server.port}", f"redis://:wr0ng@127.0.0.1:{server.port}"):
            engine = BudgetEngine.open(url, POLICY)
            with pytest.raises(StoreUnavailable, match="password") as refused:
                engine.reserve(CALL)
            assert "wr0ng" not in str(refused.value)
            engine.close()
        engine = BudgetEngine.open(f"redis://:s3cret@127.0.0.1:{server.port}", POLICY)
        engine.reserve(CALL)
        engine.close()


def test_a_redis_out_of_memory_says_so() -> None:
    with RedisServer(maxmemory="1b", args=("--maxmemory-policy", "noeviction")) as server:
        engine = BudgetEngine.open(server.url, POLICY)
        with pytest.raises(StoreUnavailable, match="out of memory"):
            engine.reserve(CALL)
        engine.close()


def test_what_was_not_sent_is_said_at_closing_only_where_there_is_some(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}"
    engine = BudgetEngine.open(url, POLICY)
    engine.close()
    asyncio.run(engine.aclose())
    assert "not sent" not in caplog.text
    assert engine.settle("some", cost="0.1").pending
    engine.close()
    assert "1 settles were not sent before closing" in caplog.text


def test_a_server_that_is_no_redis_and_one_that_is_not_there_say_so() -> None:
    with FakeProvider() as provider:
        engine = BudgetEngine.open(f"redis://127.0.0.1:{provider.port}", POLICY)
        with pytest.raises(StoreUnavailable):
            engine.reserve(CALL)
        engine.close()
        port = provider.port
    engine = BudgetEngine.open(f"redis://127.0.0.1:{port}", POLICY)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        engine.reserve(CALL)
    engine.close()


def test_b037_b045_every_key_has_a_time_to_live_and_no_id_in_its_name(redis_server: RedisServer) -> None:
    budgets: list[dict[str, Any]] = [
        {"scope": "user", "limit": "$1", "window": "minute"},
        {"scope": "tenant", "limit": "$1", "window": "rolling:60s"},
        {"scope": "user", "meter": "utterances", "limit": 9, "window": "rolling:60s"},
        {"scope": "user", "limit": "$1", "window": "fixed:24h", "name": "fixed"},
        {"scope": "user", "meter": "in_flight", "limit": 9},
        {"scope": "answer", "limit": "$1"},
    ]
    engine = BudgetEngine.open(redis_server.url, {"budgets": budgets, "namespace": "prod"})
    for number in range(3):
        held = engine.reserve(Call(model="m", tenant="acme", user="marked-user", utterance="ut", amount="0.01"))
        if number:
            engine.settle(held, cost="0.01")
    keys = redis_server.command("KEYS", "*")
    assert len(keys) > 8
    for key in keys:
        assert len(key) <= 64, key
        assert key.startswith(b"lbh:{prod}:")
        assert b"acme" not in key
        assert b"marked" not in key
        assert redis_server.command("PTTL", key) > 0, key
    engine.close()


def test_a_file_that_another_process_makes_at_the_same_moment_is_no_trouble(tmp_path: Path) -> None:
    """The moment between the look for tables and the lock, in which another process makes them."""
    url = f"sqlite:///{tmp_path / 'new.db'}"
    rules = {"budgets": [{"scope": "global", "limit": "$1", "window": "day"}], "on_store_error": "deny"}

    class Overtaken:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

        def execute(self, statement: str) -> Any:
            if statement == "BEGIN IMMEDIATE":
                with BudgetEngine.open(url, rules) as first:
                    first.charge(Call(model="m"), cost="0.10")
            return self.connection.execute(statement)

    with BudgetEngine.open(url, rules) as engine:
        connection = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
        engine._store._prepare(Overtaken(connection))  # type: ignore[attr-defined]  # the store is one on SQLite
        connection.close()
        assert [status.spent for status in engine.status()] == [Decimal("0.1")]
