"""What went wrong for users of other systems, by the number of the case."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError
from llm_budget_hooks.testing import RedisServer

USER = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}
EVERYBODY = {"name": "all", "scope": "global", "limit": "$5", "window": "day"}
POLICY: dict[str, Any] = {"budgets": [EVERYBODY, USER], "on_store_error": "deny"}
CALL = Call(model="m", tenant="acme", user="u1", amount="0.60")


def spent(engine: BudgetEngine, user: str = "u1") -> list[Any]:
    return [(s.spent, s.reserved) for s in engine.status("acme", user)]


def test_b015_a_settle_that_knows_the_id_alone_finds_its_hold(shared_url: str) -> None:
    with BudgetEngine.open(shared_url, POLICY) as one, BudgetEngine.open(shared_url, POLICY) as other:
        one.reserve(Call(model="m", tenant="acme", user="u1", amount="0.60", id="call-1"))
        assert other.settle("call-1", cost="0.20").status == "settled"
        assert spent(one) == [(Decimal("0.20"), 0)] * 2


def test_b015_a_hold_that_no_settle_finds_is_charged_and_listed(engine_url: str) -> None:
    now = [datetime(2026, 3, 4, 12, tzinfo=UTC)]
    with BudgetEngine.open(engine_url, POLICY, clock=lambda: now[0]) as engine:
        held = engine.reserve(CALL)
        assert engine.settle("another", cost="0.20").status == "unknown"
        now[0] += timedelta(minutes=11)
        assert spent(engine) == [(Decimal("0.60"), 0)] * 2
        assert [orphan.id for orphan in engine.orphans()] == [held.id]


def test_b033_a_correction_in_one_process_lets_calls_of_another_in_at_once(shared_url: str) -> None:
    with BudgetEngine.open(shared_url, POLICY) as one, BudgetEngine.open(shared_url, POLICY) as other:
        other.charge(CALL, cost="0.90")
        with pytest.raises(BudgetExceeded):
            other.reserve(CALL)
        one.adjust(tenant="acme", user="u1", cost="-0.90", reason="a reset")
        other.release(other.reserve(CALL))


@pytest.mark.parametrize("later", [timedelta(seconds=1), timedelta(minutes=5)])
def test_b039_a_settle_after_its_account_has_gone_leaves_no_key_that_stays(
    redis_server: RedisServer, tmp_path: Path, later: timedelta
) -> None:
    now, ledger = [datetime(2026, 3, 4, 12, tzinfo=UTC)], f"sqlite:///{tmp_path / 'l.db'}"
    policy = {**POLICY, "budgets": [{**USER, "window": "minute"}, {**EVERYBODY, "window": "rolling:60s"}]}
    with BudgetEngine.open(redis_server.url, policy, ledger=ledger, clock=lambda: now[0]) as engine:
        held = engine.reserve(CALL)
        redis_server.command("DEL", *redis_server.command("KEYS", "*:a:*"))
        now[0] += later
        assert engine.settle(held, cost="0.50").status == "settled"
        assert len(redis_server.command("KEYS", "*:a:*")) == (2 if later.seconds == 1 else 1)  # one rolls, and is empty
        names = [key for key in redis_server.command("KEYS", "*") if redis_server.command("PTTL", key) == -1]
        assert {name.rpartition(b":")[2] for name in names} <= {b"q", b"ql"}
        engine.flush()
        assert sum(run.booked_nusd for run in engine.ledger.runs().items) == 500_000_000
        assert engine.status("acme", "u1")[0].spent == (Decimal("0.50") if later.seconds == 1 else 0)


@pytest.mark.parametrize("forbidden", ["TIME", "MGET"])
def test_b044_a_server_that_forbids_scripts_a_command_is_named_at_open(forbidden: str) -> None:
    with RedisServer(args=("--rename-command", forbidden, "")) as server:
        if forbidden == "TIME":
            with pytest.raises(ConfigurationError, match="TIME"):
                BudgetEngine.open(server.url, POLICY)
        else:
            with (
                BudgetEngine.open(server.url, POLICY) as engine,
                pytest.raises(BudgetExceeded, match="does not let scripts use"),
            ):
                engine.reserve(CALL)


def test_b053_large_sums_are_exact_and_what_is_beyond_is_refused(engine_url: str) -> None:
    policy = {"budgets": [{"scope": "global", "limit": "$8999999", "window": "month"}]}
    much = Call(model="m", amount="100000")
    with BudgetEngine.open(engine_url, policy) as engine:
        for _ in range(89):
            engine.charge(much, cost="100000", force=True)
        engine.charge(Call(model="m", amount="0.000000001"), cost="0.000000001")
        assert engine.status()[0].spent == Decimal("8900000.000000001")
        engine.charge(much, cost="99999.999999999", force=True)
        for _ in range(3):
            engine.charge(much, cost="100000", force=True)
        assert engine.status()[0].spent >= Decimal("9007199")
        with pytest.raises(BudgetExceeded):
            engine.reserve(Call(model="m", amount="0.000000001"))


def test_b137_who_has_no_limit_of_his_own_still_spends_everybodys(engine_url: str) -> None:
    off = {"tenants": {"acme": {"budgets": [{**USER, "limit": 0}]}}}
    with BudgetEngine.open(engine_url, {**POLICY, **off}) as engine:
        for _ in range(8):
            engine.charge(CALL, cost="0.60")
        assert engine.status()[0].spent == Decimal("4.80")
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(CALL)
        assert refused.value.budget == "all"
        assert not engine.check(Call(model="m", tenant="other", user="u1", amount="1.10"))
