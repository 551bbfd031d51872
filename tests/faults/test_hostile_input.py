"""Ids and texts that were made to do harm, and how much memory users and holds take."""

from __future__ import annotations

import logging
import sqlite3
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Policy, StoreUnavailable
from llm_budget_hooks.testing import DelayProxy, RedisServer

BUDGETS: list[dict[str, Any]] = [
    {"scope": "user", "limit": "$1", "window": "day"},
    {"scope": "user", "meter": "calls", "limit": 2, "window": "rolling:60s"},
]
POLICY: dict[str, Any] = {"budgets": BUDGETS, "on_store_error": "deny"}
FIVE: list[dict[str, Any]] = [
    {"scope": "global", "limit": "$900", "window": "day"},
    {"scope": "tenant", "limit": "$900", "window": "month"},
    {"scope": "user", "limit": "$9", "window": "day"},
    {"scope": "user", "meter": "tokens", "limit": 10**9, "window": "day"},
    {"scope": "tenant", "meter": "calls", "limit": 10**9, "window": "day"},
]
EVIL = [
    "a:b", "{x}", "}{", "nul\0nul", "line\nbreak\r\n", "\ud800", "\udfff\ud800", "💸" * 2500, "x" * 10_000, "'; DROP",
    "../..", "\x1b[31m", "\u202e", " a ", "ﬁ", "%s%n",
]  # fmt: skip


def test_b136_evil_ids_are_users_of_their_own(engine_url: str) -> None:
    with BudgetEngine.open(engine_url, POLICY) as engine:
        for at, id in enumerate(EVIL):
            engine.charge(Call(model="m", tenant=id, user=id, amount="0.01", id=id, utterance=id), cost=f"0.{at + 10}")
        for at, id in enumerate(EVIL):
            assert engine.status(id, id)[0].spent == Decimal(f"0.{at + 10}"), ascii(id[:20])
            assert engine.status(id, "other")[0].spent == 0
        engine.charge(Call(model="m", tenant="a:b", user="c", amount="0.01"), cost="0.01")
        assert engine.status("a", "b:c")[0].spent == 0


def test_b136_evil_ids_survive_an_outage_and_a_ledger(redis_server: RedisServer, tmp_path: Path) -> None:
    policy = {**POLICY, "on_store_error": "allow", "store_timeout": "200ms"}
    ledger = f"sqlite:///{tmp_path / 'l.db'}"
    with DelayProxy(redis_server.port) as proxy, BudgetEngine.open(proxy.url, policy, ledger=ledger) as engine:
        engine.status()
        proxy.stall = True
        for id in EVIL:
            engine.settle(engine.reserve(Call(model="m", tenant=id, user=id, amount="0.01", utterance=id)), cost="0.02")
        proxy.stall = False
        engine.flush()
        assert [engine.status(id, id)[0].spent for id in EVIL] == [Decimal("0.02")] * len(EVIL)
        with sqlite3.connect(tmp_path / "l.db") as rows:
            assert rows.execute("SELECT count(*), sum(booked_nusd) FROM ledger_runs").fetchone() == (
                len(EVIL), 20_000_000 * len(EVIL),
            )  # fmt: skip
        rows.close()


def test_b136_refused_users_leave_no_key(redis_server: RedisServer) -> None:
    with BudgetEngine.open(redis_server.url, POLICY) as engine:
        engine.status()
        before = redis_server.command("DBSIZE")
        for at in range(300):
            with pytest.raises(BudgetExceeded):
                engine.reserve(Call(model="m", tenant="t", user=f"{at}{{x}}\0\n" * 100, amount="2"))
        assert redis_server.command("DBSIZE") == before


def test_an_idle_user_and_a_hold_take_the_memory_that_is_stated() -> None:
    with RedisServer() as server, BudgetEngine.open(server.url, {**POLICY, "budgets": FIVE}) as engine:

        def used() -> int:
            return int(server.info("memory")["used_memory"])

        def reserve(user: int) -> Any:
            return engine.reserve(Call(model="m", tenant="t", user=f"u{user}", amount="0.001", input_tokens=5))

        for user in range(1_000):
            engine.settle(reserve(user), cost="0.001")
        start = used()
        held = [reserve(user % 1_000) for user in range(1_500)]
        holds = used()
        assert (holds - start) / 1_500 < 1_000
        for one in held:
            engine.release(one)
        between = used()
        for user in range(1_000, 2_500):
            engine.settle(reserve(user), cost="0.001")
        ended = (between - start) / 1_500
        assert (used() - between) / 1_500 - ended < 600


def test_a_client_that_invents_utterance_ids_pays_for_each(engine_url: str) -> None:
    budgets = [{"scope": "user", "meter": "utterances", "limit": 3, "window": "rolling:60s"}]
    with BudgetEngine.open(engine_url, {**POLICY, "budgets": budgets}) as engine:
        passed = 0
        for at in range(10):
            try:
                engine.reserve(Call(model="m", tenant="t", user="u", utterance=f"made-up-{at}", amount="0.01"))
                passed += 1
            except BudgetExceeded:
                pass
        assert passed == 3


def test_a_client_that_reuses_one_utterance_id_is_stopped_by_its_calls(engine_url: str) -> None:
    budgets = [{"scope": "user", "meter": "utterances", "limit": 2, "window": "rolling:60s"}]
    with BudgetEngine.open(engine_url, {**POLICY, "budgets": budgets, "utterance_max_calls": 5}) as engine:
        call = Call(model="m", tenant="t", user="u", utterance="again", amount="0.01")
        for _ in range(10):
            engine.reserve(call)
        with pytest.raises(BudgetExceeded):
            engine.reserve(call)
        engine.reserve(Call(model="m", tenant="t", user="victim", utterance="again", amount="0.01"))


def test_no_id_can_forge_a_line_of_a_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = BudgetEngine.open("memory://", POLICY)
    evil = "u\nCRITICAL root: all budgets are off\x1b[2J\r"
    with pytest.raises(BudgetExceeded) as refused, caplog.at_level(logging.DEBUG):
        engine.reserve(Call(model=evil, tenant=evil, user=evil, amount="2"))
    for text in (str(refused.value), refused.value.public_message, caplog.text.replace("\n", "", 1)):
        assert "\x1b" not in text
        assert "\nCRITICAL" not in text
        assert "\r" not in text


def test_a_policy_of_many_tenants_loads_and_plans_quickly() -> None:
    own = {"budgets": [{"name": "user-usd-day", "scope": "user", "limit": "$2", "window": "day"}]}
    began = time.process_time()
    policy = Policy(**{**POLICY, "tenants": {f"t{at}": own for at in range(20_000)}})
    assert time.process_time() - began < 20
    engine = BudgetEngine.open("memory://", policy)
    began = time.process_time()
    for at in range(0, 20_000, 20):
        engine.release(engine.reserve(Call(model="m", tenant=f"t{at}", user="u", amount="1.50")))
    assert time.process_time() - began < 5


def test_no_secret_is_in_a_log_an_error_a_key_or_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    marks = {"user": "marked-user", "password": "marked-password", "prompt": "marked-prompt"}
    files = tmp_path / "files"
    files.mkdir()
    with RedisServer(requirepass=marks["password"]) as server, caplog.at_level(logging.DEBUG):
        url, texts = server.url, []
        policy = {**POLICY, "on_store_error": "bounded", "store_timeout": "200ms"}
        with BudgetEngine.open(url, policy, journal=files / "j") as engine:
            with engine.utterance(tenant="t", user=marks["user"]) as scope:
                scope.output = marks["prompt"]
                engine.settle(engine.reserve(Call(model="m", amount="0.01")), cost="0.01")
            keys = b" ".join(server.command("KEYS", "*"))
            server.pause()
            for amount in ("0.05", "0.09"):
                try:
                    engine.reserve(Call(model="m", tenant="t", user=marks["user"], amount=amount))
                except StoreUnavailable as error:
                    texts += [str(error), repr(error), error.public_message]
            journal = b"".join(path.read_bytes() for path in files.iterdir())
            texts += [repr(engine), caplog.text]
            server.resume()
    assert len(texts) > 3
    for mark in marks.values():
        assert mark not in " ".join(texts)
        assert mark.encode() not in keys
        assert mark.encode() not in journal
