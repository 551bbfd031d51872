"""The admin API, mounted in an app as a user would, on every shared store."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import APIKeyHeader

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError, Usage
from llm_budget_hooks.fastapi import Administrator, admin_router

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette asks for another client of the same make
    from fastapi.testclient import TestClient

POLICY: dict[str, Any] = {
    "store_timeout": "10s",
    "prices": {"made-up": {"input": "1", "output": "10"}},
    "budgets": [
        {"name": "all", "scope": "global", "limit": "$4", "window": "day"},
        {"name": "month", "scope": "tenant", "limit": "$20", "window": "month"},
        {"name": "user-day", "scope": "user", "limit": "$2", "window": "day"},
        {"name": "rate", "scope": "tenant", "meter": "calls", "limit": 100, "window": "day"},
        {"name": "asks", "scope": "tenant", "meter": "utterances", "limit": 500, "window": "rolling:24h",
         "features": ["ask"], "managed": True},
    ],
}  # fmt: skip
WHO = {
    "ops-key": Administrator("olga", None, "operator"),
    "acme-key": Administrator("ann", "acme", "admin"),
    "other-key": ("otto", "other", "admin"),
    "no-tenant-key": ("nobody", None, "admin"),
    "no-role-key": ("nobody", "acme", "owner"),
    "empty-key": None,
}


async def authorize(key: str = Depends(APIKeyHeader(name="x-key", auto_error=False))) -> Any:
    if key not in WHO:
        raise HTTPException(401, "Who are you?", headers={"WWW-Authenticate": "Key"})
    return WHO[key]


@pytest.fixture
def engine(shared_url: str, tmp_path: Path) -> Iterator[BudgetEngine]:
    with BudgetEngine.open(shared_url, POLICY, ledger=f"sqlite:///{tmp_path / 'ledger.db'}") as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[BudgetEngine]:
    """An engine for what does not depend on the store."""
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'b.db'}", POLICY, ledger=f"sqlite:///{tmp_path / 'l.db'}") as made:
        yield made


Asking = Callable[..., Any]


def asking(engine: BudgetEngine) -> Asking:
    app = FastAPI()
    app.include_router(admin_router(engine, authorize=authorize))
    client = TestClient(app, raise_server_exceptions=False)

    def ask(method: str, path: str = "", key: str | None = "acme-key", **more: Any) -> Any:
        headers = {} if key is None else {"x-key": key}
        return client.request(method, f"/ai-budget{path}", headers=headers, **more)

    return ask


@pytest.fixture
def ask(engine: BudgetEngine) -> Asking:
    return asking(engine)


def call(amount: str = "0.10", **more: Any) -> Call:
    return Call(**{"model": "made-up", "tenant": "acme", "user": "u1", "amount": amount, "feature": "chat", **more})


def spend(engine: BudgetEngine, **more: Any) -> None:
    engine.settle(engine.reserve(call(**more)), usage=Usage(input_tokens=1000, output_tokens=100))
    engine.flush()


def test_it_refuses_to_start_without_authorize() -> None:
    with BudgetEngine.open("memory://", {}) as engine, pytest.raises(ConfigurationError, match="authorize"):
        admin_router(engine)


@pytest.mark.parametrize(
    ("key", "status"), [(None, 401), ("wrong", 401), ("no-tenant-key", 403), ("no-role-key", 403), ("empty-key", 403)]
)
def test_nobody_gets_in_whom_authorize_does_not_name(local: BudgetEngine, key: str, status: int) -> None:
    ask = asking(local)
    for method, path in (("GET", ""), ("PUT", ""), ("POST", "/kill"), ("POST", "/revive"), ("GET", "/runs")):
        answer = ask(method, path, key, **({"json": {"budget": "rate", "limit": 5}} if method == "PUT" else {}))
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert status != 401 or answer.headers["www-authenticate"] == "Key"


def test_an_administrator_sees_their_tenant_and_nothing_wider(engine: BudgetEngine, ask: Asking) -> None:
    spend(engine)
    spend(engine, tenant="other", feature="voice")
    seen = ask("GET", params={"user": "u1"}).json()
    assert [line["budget"] for line in seen["budgets"]] == ["month", "user-day", "rate", "asks"]
    assert [line["spent"] for line in seen["budgets"]] == ["0.002", "0.002", 1, 0]
    assert (seen["tenant"], seen["month_spent"], seen["shared"]) == ("acme", "0.002", True)
    assert [(one["key"], one["cost"], one["calls"]) for one in seen["cost_by_feature"]] == [("chat", "0.002", 1)]
    assert (seen["asks"]["last_24h"], seen["asks"]["limits"][0]["limit"]) == (1, 500)
    assert "all" not in [rule["name"] for rule in seen["rules"]]
    assert {rule["name"]: rule["managed"] for rule in seen["rules"]}["asks"]
    assert ask("GET", params={"tenant": "acme"}).status_code == 200
    for method, path in (("GET", ""), ("GET", "/runs"), ("POST", "/kill"), ("POST", "/revive")):
        assert ask(method, path, params={"tenant": "other"}).status_code == 403
    assert engine.kills() == []


def test_an_operator_sees_everybody_and_may_name_a_tenant(engine: BudgetEngine, ask: Asking) -> None:
    spend(engine)
    spend(engine, tenant="other", feature="voice")
    everybody = ask("GET", key="ops-key").json()
    assert ([line["budget"] for line in everybody["budgets"]], everybody["month_spent"]) == (["all"], "0.004")
    other = ask("GET", key="ops-key", params={"tenant": "other"}).json()
    assert [line["budget"] for line in other["budgets"]] == ["all", "month", "rate", "asks"]
    assert [one["key"] for one in other["cost_by_feature"]] == ["voice"]
    assert ask("GET", key="ops-key", params={"user": "u1"}).status_code == 404
    for mistyped in ({"tennant": "other"}, [("tenant", "acme"), ("tenant", "other")]):
        answer = ask("POST", "/kill", "ops-key", params=mistyped)
        assert (answer.status_code, "tenant" in answer.json()["detail"]) == (422, True)
    assert engine.kills() == []


def test_a_projection_is_null_in_the_first_hour_of_a_month_and_above_what_is_spent_later(
    engine: BudgetEngine, ask: Asking
) -> None:
    spend(engine)
    seen = ask("GET").json()
    now = datetime.fromisoformat(seen["now"])
    early = now < now.replace(day=1, hour=1, minute=0, second=0, microsecond=0)
    assert seen["month_projection"] is None if early else float(seen["month_projection"]) >= 0.002


def test_the_user_without_a_name_can_be_asked_about(local: BudgetEngine) -> None:
    for user in ("u1", None):
        spend(local, user=user)
    ask = asking(local)
    (line,) = [one for one in ask("GET", params={"user": ""}).json()["budgets"] if one["budget"] == "user-day"]
    assert line["spent"] == "0.002"
    assert [run["user"] for run in ask("GET", "/runs", params={"user": ""}).json()["items"]] == [""]


def test_put_changes_a_limit_from_the_next_call_on(engine: BudgetEngine, ask: Asking) -> None:
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("3"))
    ends = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    done = ask("PUT", json={"budget": "user-day", "limit": "$3.5", "expires_at": ends, "reason": "a launch"})
    assert (done.status_code, done.json()) == (200, {"changed": True, "tenant": "acme"})
    engine.release(engine.reserve(call("3")))
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("3", tenant="other"))
    seen = ask("GET").json()
    (rule,) = [rule for rule in seen["rules"] if rule["name"] == "user-day"]
    assert (rule["limit"], rule["policy_limit"]) == ("3.5", "2")
    (one,) = seen["overrides"]
    assert (one["by"], one["reason"], one["limit"], one["expires_at"][:10]) == ("ann", "a launch", "3.5", ends[:10])
    assert ask("GET", key="other-key").json()["overrides"] == []
    assert ask("PUT", json={"budget": "user-day", "limit": None}).json()["changed"]
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("3"))
    assert ask("PUT", json={"budget": "rate", "limit": "off"}).status_code == 200
    assert "rate" not in [line["budget"] for line in ask("GET").json()["budgets"]]


def test_managed_and_global_budgets_are_an_operators(engine: BudgetEngine, ask: Asking) -> None:
    managed = {"budget": "asks", "limit": 9}
    assert ask("PUT", json=managed).status_code == 403
    assert ask("PUT", json={"budget": "all", "limit": "9"}).status_code == 404
    assert engine.overrides() == []
    assert ask("PUT", key="ops-key", params={"tenant": "acme"}, json=managed).status_code == 200
    assert ask("PUT", key="ops-key", json={"budget": "all", "limit": "9"}).json()["tenant"] is None
    assert {(one.tenant, one.budget, one.limit) for one in engine.overrides()} == {
        ("acme", "asks", 9),
        ("", "all", 9 * 10**9),
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"budget": "user-day", "limit": 0}, 422),
        ({"budget": "user-day", "limit": "0.00"}, 409),
        ({"budget": "user-day", "limit": "9000001"}, 409),
        ({"budget": "user-day", "limit": True}, 422),
        ({"budget": "user-day", "limit": "much"}, 422),
        ({"budget": "rate", "limit": "1.5"}, 409),
        ({"budget": "user-day", "limit": "5", "tenant": "other"}, 422),
        ({"budget": "user-day", "limit": "5", "expires_at": "2020-01-01T00:00:00Z"}, 409),
        ({"budget": "user-day", "limit": "5", "expires_at": "2999-01-01T00:00:00"}, 422),
        ({"budget": "user-day", "limit": "5", "expires_at": "9999-12-31T23:59:59-23:59"}, 409),
        ({"budget": "user-day"}, 422),
        ({"budget": "nothing", "limit": "5"}, 404),
    ],
)
def test_a_wrong_change_is_told_and_changes_nothing(local: BudgetEngine, body: dict[str, Any], status: int) -> None:
    answer = asking(local)("PUT", json=body)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert local.overrides() == []


def test_half_a_letter_in_a_body_is_a_wrong_request(local: BudgetEngine) -> None:
    answer = asking(local)("PUT", content=rb'{"budget": "\ud800", "limit": "5"}', params={"tenant": "acme"})
    assert answer.status_code == 422


def test_what_was_changed_is_shown_whatever_is_in_it(local: BudgetEngine) -> None:
    for _ in range(3):
        local.report_injection("\ud800t")
    local.override("user-day", "5", tenant="acme", by="\ud800")
    seen = asking(local)("GET", key="ops-key").json()
    assert [(one["tenant"], one["automatic"]) for one in seen["killed"]] == [("?t", True)]
    assert [one["by"] for one in seen["overrides"]] == ["?"]


def test_the_kill_switch_stops_the_tenant_and_revive_lets_it_in(engine: BudgetEngine, ask: Asking) -> None:
    assert ask("POST", "/kill", json={"reason": "a loop"}).json() == {"changed": True, "tenant": "acme"}
    with pytest.raises(BudgetExceeded, match="a loop"):
        engine.reserve(call())
    engine.release(engine.reserve(call(tenant="other")))
    (switch,) = ask("GET").json()["killed"]
    assert (switch["tenant"], switch["reason"], switch["by"], switch["automatic"]) == ("acme", "a loop", "ann", False)
    assert ask("GET", key="other-key").json()["killed"] == []
    assert not ask("POST", "/kill").json()["changed"]
    assert ask("POST", "/revive").json()["changed"]
    engine.release(engine.reserve(call()))
    assert ask("POST", "/kill", "ops-key").json() == {"changed": True, "tenant": None}
    with pytest.raises(BudgetExceeded):
        engine.reserve(call(tenant="other"))
    assert not ask("POST", "/revive").json()["changed"]
    assert ask("POST", "/revive", "ops-key").json()["changed"]
    engine.flush()
    names = [one["name"] for one in ask("GET", "/events", "ops-key").json()["items"]]
    assert names == ["revived", "killed", "revived", "killed"]


def test_what_an_operator_stopped_is_not_the_administrators_to_revive(engine: BudgetEngine, ask: Asking) -> None:
    assert ask("POST", "/kill").json()["changed"]
    assert ask("POST", "/kill", "ops-key", params={"tenant": "acme"}, json={"reason": "abuse"}).json()["changed"]
    refused = ask("POST", "/revive")
    assert (refused.status_code, "operator" in refused.json()["detail"]) == (403, True)
    with pytest.raises(BudgetExceeded, match="abuse"):
        engine.reserve(call())
    assert not ask("POST", "/kill").json()["changed"]
    assert ask("POST", "/revive").status_code == 403
    assert ask("POST", "/revive", "ops-key", params={"tenant": "acme"}).json()["changed"]
    for _ in range(3):
        engine.report_injection("acme")
    assert ask("POST", "/revive").json()["changed"]
    engine.release(engine.reserve(call()))


def test_pages_are_stable_while_new_rows_come(engine: BudgetEngine, ask: Asking) -> None:
    for step in ("one", "two", "three"):
        spend(engine, step=step)
    first = ask("GET", "/runs", params={"limit": 2}).json()
    spend(engine, step="four")
    second = ask("GET", "/runs", params={"limit": 2, "after": first["after"]}).json()
    assert [one["step"] for one in first["items"] + second["items"]] == ["three", "two", "one"]
    assert second["after"] is None


def test_answers_have_their_fan_out(engine: BudgetEngine, ask: Asking) -> None:
    for step in ("router", "answer"):
        spend(engine, step=step, utterance="ut-7")
    (answer,) = ask("GET", "/answers", params={"feature": "chat"}).json()["items"]
    assert (answer["cost"], answer["calls"], answer["utterance"]) == ("0.004", 2, "ut-7")
    assert [run["step"] for run in answer["runs"]] == ["router", "answer"]


def test_a_refusal_by_everybodys_budget_shows_its_figures_to_an_operator_alone(
    engine: BudgetEngine, ask: Asking
) -> None:
    for tenant, user in (("other", "a"), ("other", "b"), ("acme", "a")):
        engine.charge(call("1.5", tenant=tenant, user=user), cost="1.5", force=True)
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("0.10"))
    engine.flush()
    (mine,) = ask("GET", "/refusals").json()["items"]
    assert (mine["budget"], mine["requested"], mine["spent"], mine["limit"]) == ("all", "0.1", None, None)
    (whole,) = ask("GET", "/refusals", "ops-key").json()["items"]
    assert (whole["spent"], whole["limit"]) == ("4.5", "4")
    assert ask("GET", "/refusals", "other-key").json()["items"] == []


def test_what_cannot_be_read_is_null_and_a_switch_that_cannot_be_turned_is_503(tmp_path: Path) -> None:
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY, ledger=f"sqlite:///{tmp_path}") as away:
        ask = asking(away)
        seen = ask("GET").json()
        assert [line["spent"] for line in seen["budgets"]] == [None] * 3
        assert [seen[name] for name in ("killed", "overrides", "month_spent", "cost_by_feature")] == [None] * 4
        assert seen["asks"]["last_24h"] is None
        for answer in (ask("POST", "/kill"), ask("GET", "/runs")):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_an_engine_without_a_ledger_has_no_pages() -> None:
    with BudgetEngine.open("memory://", POLICY) as engine:
        ask = asking(engine)
        assert ask("GET", "/runs").status_code == 404
        seen = ask("GET").json()
        assert (seen["month_spent"], seen["shared"]) == (None, False)
