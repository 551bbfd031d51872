"""The kill switch, overrides, cutoffs and utterances that are counted when they begin, on every store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from one_user import NOON, Clock

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError
from llm_budget_hooks.models import instant
from llm_budget_hooks.transitions import Settings

BEYOND = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(-timedelta(hours=23, minutes=59)))
USER_DAY = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}
Opened = Callable[..., BudgetEngine]


def call(amount: str = "0.10", tenant: str = "acme", model: str = "any", **more: Any) -> Call:
    return Call(model=model, tenant=tenant, user="u1", amount=amount, **more)


def test_a_killed_tenant_is_refused_and_others_are_not(opened: Opened) -> None:
    engine = opened(USER_DAY)
    assert engine.kill("acme", reason="a loop", by="ops")
    assert not engine.kill("acme")
    with pytest.raises(BudgetExceeded, match="a loop") as caught:
        engine.reserve(call())
    assert (caught.value.code, caught.value.scope, caught.value.http_status) == ("killed", "tenant", 429)
    assert "loop" not in caught.value.public_message
    assert engine.check(call()).refusal is not None
    engine.release(engine.reserve(call(tenant="other")))
    assert [switch.by for switch in engine.kills()] == ["ops"]
    assert engine.revive("acme", by="ops")
    assert not engine.revive("acme")
    engine.reserve(call())


def test_an_administrator_takes_back_what_their_own_role_has_engaged(opened: Opened) -> None:
    engine = opened(USER_DAY)
    engine.kill("acme", by="ann", role="admin")
    assert engine.revive("acme", by="ann", role="admin")
    engine.kill("acme", by="ann", role="admin")
    assert engine.kill("acme", reason="abuse", by="ops")
    assert not engine.kill("acme", by="ann", role="admin")
    with pytest.raises(ConfigurationError, match="operator"):
        engine.revive("acme", by="ann", role="admin")
    with pytest.raises(BudgetExceeded, match="abuse"):
        engine.reserve(call())
    assert engine.revive("acme", by="ops")


def test_a_kill_for_everybody_is_named_before_any_budget(opened: Opened) -> None:
    engine = opened({"scope": "user", "meter": "calls", "limit": 1, "window": "day"})
    engine.settle(engine.reserve(call()))
    engine.kill(reason="night")
    for tenant in ("acme", "other"):
        with pytest.raises(BudgetExceeded) as caught:
            engine.reserve(call(tenant=tenant))
        assert caught.value.code == "killed"
    assert engine.status(tenant="acme", user="u1")[0].spent == 1


def test_a_hold_taken_before_a_kill_is_settled(opened: Opened) -> None:
    engine = opened(USER_DAY)
    held = engine.reserve(call())
    engine.kill("acme")
    assert engine.settle(held, cost="0.05").status == "settled"


def test_a_kill_and_an_override_hold_in_the_next_reserve_of_every_process(shared_url: str) -> None:
    rules = {"budgets": [USER_DAY], "store_timeout": "10s"}
    with BudgetEngine.open(shared_url, rules) as mine, BudgetEngine.open(shared_url, rules) as theirs:
        theirs.settle(theirs.reserve(call("0.95")), cost="0.95")
        mine.kill("acme")
        with pytest.raises(BudgetExceeded, match="kill switch"):
            theirs.reserve(call("0.01"))
        theirs.revive("acme")
        with pytest.raises(BudgetExceeded, match="Daily limit"):
            mine.reserve(call())
        mine.override("user-day", "$2", tenant="acme", by="ada", reason="a demo")
        theirs.release(theirs.reserve(call()))
        mine.override("user-day", "$0.50", tenant="acme")
        with pytest.raises(BudgetExceeded) as caught:
            theirs.reserve(call("0.01"))
        assert (caught.value.limit, caught.value.spent) == (Decimal("0.50"), Decimal("0.95"))


def test_a_kill_and_an_override_hold_at_once_while_the_ledger_is_down(shared_url: str, tmp_path: Path) -> None:
    rules = {"budgets": [USER_DAY], "store_timeout": "10s"}
    ledger = f"sqlite:///{tmp_path / 'no such folder' / 'ledger.db'}"
    mine = BudgetEngine.open(shared_url, rules, ledger=ledger)
    theirs = BudgetEngine.open(shared_url, rules, ledger=ledger)
    began = time.monotonic()
    theirs.settle(theirs.reserve(call("0.95")), cost="0.95")
    mine.kill("acme", reason="a loop", by="ops")
    with pytest.raises(BudgetExceeded, match="kill switch"):
        theirs.reserve(call("0.01"))
    theirs.revive("acme")
    mine.override("user-day", "$2", tenant="acme")
    theirs.release(theirs.reserve(call()))
    assert time.monotonic() - began < 5
    (tmp_path / "no such folder").mkdir()
    mine.flush()
    names = sorted(event.name for event in mine.ledger.events().items)
    assert (names, len(mine.ledger.overrides().items)) == (["alert", "killed", "revived"], 1)
    for engine in (mine, theirs):
        engine.close()


def test_status_shows_a_limit_that_another_process_has_set(shared_url: str) -> None:
    rules = {"budgets": [USER_DAY], "store_timeout": "10s"}
    with BudgetEngine.open(shared_url, rules) as engine, BudgetEngine.open(shared_url, rules) as other:
        engine.charge(call(), cost="0.25")
        other.override("user-day", "$5", tenant="acme", by="ops")
        shown = engine.status("acme", "u1")[0]
        assert (shown.limit, shown.spent, shown.available) == (5, Decimal("0.25"), Decimal("4.75"))
        other.override("user-day", None, tenant="acme", by="ops")
        assert asyncio.run(shown_and_closed(engine))[0].limit == 1
        trips: list[object] = []
        ask = engine._ask
        engine._ask = lambda command: trips.append(command) or ask(command)
        assert engine.status("acme", "u1")[0].limit == 1
        assert len(trips) == 1


async def shown_and_closed(engine: BudgetEngine) -> list[Any]:
    shown = await engine.astatus("acme", "u1")
    await engine._store.aclose()
    return shown


def test_a_refusal_says_how_its_own_kill_is_taken_back(opened: Opened) -> None:
    engine = opened(USER_DAY)
    engine.kill("acme")
    with pytest.raises(BudgetExceeded, match=r"engine\.revive\(tenant='acme'\) ends it"):
        engine.reserve(call())
    engine.revive("acme")
    engine.kill()
    with pytest.raises(BudgetExceeded, match=r"engine\.revive\(\) ends it"):
        engine.reserve(call())


def test_three_injections_within_five_minutes_engage_the_switch_once(opened: Opened, clock: Clock) -> None:
    engine = opened(USER_DAY)
    assert not engine.report_injection("acme")
    clock.now += timedelta(minutes=6)
    assert [engine.report_injection("acme") for _ in range(4)] == [False, False, True, False]
    with pytest.raises(BudgetExceeded, match="injections"):
        engine.reserve(call())
    engine.revive("acme")
    assert not engine.report_injection("acme")
    engine.reserve(call())


def test_many_reporters_engage_it_once(shared_url: str) -> None:
    async def reported() -> list[bool]:
        async with BudgetEngine.open(shared_url, {"budgets": [USER_DAY], "store_timeout": "20s"}) as engine:
            found = await asyncio.gather(*(engine.areport_injection("acme") for _ in range(3)))
            return [*found, await engine.areport_injection("acme")]

    assert asyncio.run(reported()).count(True) == 1


def test_many_processes_change_settings_at_once_and_none_is_turned_away(shared_url: str) -> None:
    rules = {"budgets": [USER_DAY], "store_timeout": "20s"}
    engines = [BudgetEngine.open(shared_url, rules) for _ in range(16)]

    def changed(number: int) -> list[bool]:
        engine = engines[number]
        mine = [engine.kill(f"t-{number}-{k}", by="ops") for k in range(5)]
        return [*mine, engine.override("user-day", number + 1, tenant="one", by="ops")]

    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(changed, range(16)))
    assert all(all(one) for one in done)
    assert len(engines[0].kills()) == 80
    (last,) = engines[1].overrides()
    assert last.limit in {(number + 1) * 10**9 for number in range(16)}
    for engine in engines:
        engine.close()


def test_what_has_ended_is_swept_and_keeps_nobody_from_changing_a_limit(opened: Opened, clock: Clock) -> None:
    engine = opened(USER_DAY)
    until_ms = round((NOON + timedelta(hours=1)).timestamp() * 1000)
    texts = [(f"injections\x1ftenant-{n}", json.dumps({"at": [until_ms - 3_600_000]})) for n in range(5_000)]
    texts += [
        (f"limit\x1ftenant-{n}\x1fuser-day", json.dumps({"limit": 1, "of": "user usd day", "until": until_ms}))
        for n in range(5_000)
    ]
    engine._store.execute(Settings(tuple(texts), (None,) * len(texts), until_ms))
    with pytest.raises(ConfigurationError, match="10000"):
        engine.override("user-day", "$5", tenant="acme", by="ops")
    clock.now += timedelta(hours=2)
    engine.override("user-day", "$5", tenant="acme", by="ops")
    engine.report_injection("acme")
    now = engine._store.execute(Settings(now_ms=until_ms))
    assert sorted(name.split("\x1f")[0] for name in now.texts) == ["injections", "limit"]


def test_an_override_ends_by_itself(opened: Opened, clock: Clock) -> None:
    engine = opened(USER_DAY)
    engine.override("user-day", "$3", tenant="acme", expires_at=NOON + timedelta(hours=1))
    engine.settle(engine.reserve(call("2")), cost="2")
    assert engine.status(tenant="acme", user="u1")[0].limit == 3
    assert [one.budget for one in engine.overrides()] == ["user-day"]
    clock.now += timedelta(hours=1)
    assert engine.overrides() == []
    with pytest.raises(BudgetExceeded) as caught:
        engine.reserve(call())
    assert (caught.value.limit, caught.value.spent) == (1, 2)
    assert engine.status(tenant="acme", user="u1")[0].limit == 1


def test_an_override_is_for_one_tenant_and_can_be_taken_back(opened: Opened) -> None:
    engine = opened(USER_DAY, {"name": "off", "scope": "tenant", "meter": "calls", "limit": 0, "window": "day"})
    engine.override("off", 1, tenant="acme")
    engine.settle(engine.reserve(call()))
    with pytest.raises(BudgetExceeded) as caught:
        engine.reserve(call())
    assert caught.value.budget == "off"
    engine.reserve(call(tenant="other"))
    assert [(o.tenant, o.budget, o.limit) for o in engine.overrides()] == [("acme", "off", 1)]
    assert engine.override("off", None, tenant="acme")
    assert not engine.override("off", None, tenant="acme")
    engine.reserve(call())


@pytest.mark.parametrize(
    "now",
    [{"meter": "tokens", "limit": 10_000}, {"scope": "tenant"}, {"window": "month"}],
    ids=["another meter", "another scope", "another window"],
)
def test_an_override_is_ignored_once_its_budget_is_another_one(shared_url: str, now: dict[str, Any]) -> None:
    everybody = {"name": "all", "scope": "global", "limit": "$50", "window": "day"}
    with BudgetEngine.open(shared_url, {"budgets": [USER_DAY, everybody]}) as engine:
        engine.override("user-day", "$500", tenant="acme", by="ops")
        engine.override("all", "$1000", by="ops")
    changed = [{**USER_DAY, **now}, {**everybody, "scope": "tenant", "limit": "$3"}]
    with BudgetEngine.open(shared_url, {"budgets": changed}) as engine:
        limits = {line.budget: line.limit for line in engine.status(tenant="acme", user="u1")}
        assert limits == {"user-day": changed[0]["limit"] if "meter" in now else 1, "all": 3}
        with pytest.raises(BudgetExceeded):
            engine.reserve(call("2", input_tokens=20_000))
        assert {(one.budget, one.limit) for one in engine.overrides()} == {("user-day", None), ("all", None)}
    with BudgetEngine.open(shared_url, {"budgets": [{**everybody, "name": "other"}]}) as engine:
        assert {one.limit for one in engine.overrides()} == {None}
        assert engine.override("user-day", None, tenant="acme", by="ops")
        assert engine.override("all", None, by="ops")
        assert engine.overrides() == []


@pytest.mark.parametrize(
    ("budget", "limit", "more", "message"),
    [
        ("no-such", "$1", {"tenant": "acme"}, "user-day"),
        ("user-day", "$1", {}, "name the tenant"),
        ("all", "$1", {"tenant": "acme"}, "global"),
        ("user-day", "-1", {"tenant": "acme"}, "-1"),
        ("user-day", 0.5, {"tenant": "acme"}, "0.5"),
        ("mine", 5, {"tenant": "acme", "role": "admin"}, "only an operator"),
        ("user-day", "$1", {"tenant": "acme", "expires_at": NOON}, "past"),
        ("user-day", "$1", {"tenant": "acme", "expires_at": datetime(2027, 1, 1)}, "time zone"),
        ("user-day", "$1", {"tenant": "acme", "expires_at": BEYOND}, "year 9999"),
    ],
)
def test_a_bad_override_changes_nothing(opened: Opened, budget: str, limit: Any, more: Any, message: str) -> None:
    managed = {"name": "mine", "scope": "tenant", "meter": "calls", "limit": 9, "window": "day", "managed": True}
    engine = opened(USER_DAY, managed, {"name": "all", "scope": "global", "limit": "$9", "window": "day"})
    with pytest.raises(ConfigurationError, match=message):
        engine.override(budget, limit, **more)
    assert engine.overrides() == []


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        (lambda e: e.kill(5), "kill.tenant is text, not 5"),
        (lambda e: e.kill("acme", reason=b"x"), "kill.reason is text"),
        (lambda e: e.kill(role="admin"), "an operator's"),
        (lambda e: e.revive(role="admin"), "an operator's"),
        (lambda e: e.status(5), "status.tenant is text, not 5"),
        (lambda e: e.adjust(tenant=5, cost="1", reason="r"), "adjust.tenant is text"),
        (lambda e: e.report_injection(5), "report_injection.tenant is text"),
        (lambda e: e.forget(None), "forget.step is text"),
        (lambda e: e.override("user-day", "1", tenant=5), "override.tenant is text"),
        (lambda e: e.override("user-day", "1", tenant="t", expires_at="tomorrow"), "aware datetime, not 'tomorrow'"),
        (lambda e: e.override("user-day", "1", tenant="t", by=object()), "override.by is text"),
        (lambda e: e.utterance(tenant="t", plan="router"), "tuple of the names of steps, not 'router'"),
        (lambda e: e.utterance(tenant="t", plan=("router", 3)), "tuple of the names of steps"),
    ],
)
def test_a_slip_of_an_administrator_is_an_error_that_names_its_place(slip: Any, message: str) -> None:
    with BudgetEngine.open("memory://", {"budgets": [USER_DAY]}) as engine:
        with pytest.raises(ConfigurationError, match=message):
            slip(engine)
        assert (engine.kills(), engine.overrides()) == ([], [])


def test_injections_of_calls_that_name_no_tenant_stop_the_default_tenant_only(opened: Opened) -> None:
    engine = opened(USER_DAY)
    assert [engine.report_injection(None) for _ in range(3)] == [False, False, True]
    assert [switch.tenant for switch in engine.kills()] == ["default"]
    engine.reserve(call())


def test_a_soft_cutoff_lets_cheap_models_pass_up_to_its_ceiling(opened: Opened) -> None:
    engine = opened(USER_DAY, cutoff="soft", soft_ceiling=1.5)
    engine.settle(engine.reserve(call("1")), cost="1")
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("0.10", model="gpt-4o"))
    engine.settle(engine.reserve(call("0.50", model="gpt-4o-mini")), cost="0.50")
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("0.01", model="gpt-4o-mini"))


def test_a_warn_cutoff_lets_pass_and_rates_still_refuse(opened: Opened) -> None:
    rate = {"scope": "user", "meter": "calls", "limit": 3, "window": "day"}
    engine = opened(USER_DAY, rate, cutoff="warn")
    for _ in range(3):
        engine.settle(engine.reserve(call("5")), cost="5")
    with pytest.raises(BudgetExceeded) as caught:
        engine.reserve(call())
    assert caught.value.code == "calls"


def test_a_tenants_own_cutoff_binds_its_own_budgets_only(opened: Opened) -> None:
    everybody = {"name": "all", "scope": "global", "limit": "$2", "window": "day"}
    engine = opened(everybody, USER_DAY, tenants={"acme": {"cutoff": "warn"}})
    engine.settle(engine.reserve(call("1.5")), cost="1.5")
    with pytest.raises(BudgetExceeded) as caught:
        engine.reserve(call("0.6"))
    assert caught.value.budget == "all"


ASKED = {"name": "asked", "scope": "tenant", "meter": "utterances", "features": ["ask"], "count": "entry", "limit": 2}


def test_an_utterance_is_counted_when_it_begins_though_no_model_runs(opened: Opened) -> None:
    by_call = {"scope": "user", "meter": "utterances", "limit": 9, "window": "day"}
    engine = opened({**ASKED, "window": "rolling:24h"}, by_call)
    with engine.utterance(tenant="acme", user="u1", feature="ask"):
        pass
    with engine.utterance(tenant="acme", user="u1", feature="ask"):
        for _ in range(3):
            engine.settle(engine.reserve(call()), cost="0.01")
    asked, counted = engine.status(tenant="acme", user="u1")
    assert (asked.spent, counted.spent) == (2, 1)
    with pytest.raises(BudgetExceeded) as caught, engine.utterance(tenant="acme", user="u2", feature="ask"):
        pytest.fail("the utterance began")
    assert (caught.value.code, caught.value.stage, caught.value.budget) == ("utterances", "start", "asked")
    with engine.utterance(tenant="acme", user="u1", feature="chat"):
        engine.reserve(call())
    assert engine.status(tenant="acme", user="u1")[0].spent == 2


def test_a_model_that_is_free_holds_nothing_b095_b096(opened: Opened) -> None:
    engine = opened(USER_DAY, prices={"free": {"input": "0", "output": "0"}})
    engine.settle(engine.reserve(call("1")), cost="1")
    held = engine.reserve(Call(model="free", tenant="acme", user="u1", input_tokens=5000))
    assert held.estimate == 0
    engine.kill("acme")
    with pytest.raises(BudgetExceeded):
        engine.reserve(Call(model="free", tenant="acme", user="u1"))


@pytest.mark.parametrize("tenant", ["\ud800t", "nul\0nul", "unit\x1fseparator", "50%", "%41", "é"])
def test_whoever_can_call_can_be_stopped_and_given_another_limit(opened: Opened, tenant: str) -> None:
    engine = opened(USER_DAY)
    engine.override("user-day", "$0.05", tenant=tenant, by="\ud800", reason="\udfff")
    with pytest.raises(BudgetExceeded, match=r"0\.05"):
        engine.reserve(call(tenant=tenant))
    assert engine.override("user-day", None, tenant=tenant)
    engine.release(engine.reserve(call(tenant=tenant)))
    engine.kill(tenant, reason="\ud800", by="\udfff")
    assert [switch.tenant for switch in engine.kills()] == [tenant]
    with pytest.raises(BudgetExceeded, match="kill switch"):
        engine.reserve(call(tenant=tenant))
    engine.release(engine.reserve(call(tenant="nul?nul")))
    assert engine.revive(tenant)
    engine.release(engine.reserve(call(tenant=tenant)))


def test_a_stored_change_that_lies_beyond_all_dates_can_be_shown(engine_url: str) -> None:
    with BudgetEngine.open(engine_url, {"budgets": [USER_DAY]}) as engine:
        text = '{"limit": 5, "until": 9007199254740991, "at": 9007199254740991}'
        odd = (("limit", "{}"), ("nonsense", "[]"), ("injections\x1facme", '{"at": 5}'))
        engine._store.execute(Settings((("limit\x1facme\x1fuser-day", text), *odd), (None,) * 4))
        (one,) = [one for one in engine.overrides() if one.budget]
        assert (instant(one.until_ms).year, instant(one.at_ms).year) == (9999, 9999)
