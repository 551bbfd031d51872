"""The kill switch and the soft cutoff under LiteLLM: what is stopped reaches no provider, on no way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import litellm
import pytest
from routes import ASYNC, CHAT, MESSAGES, SYNC, async_routes, at, balance, in_tasks, router_of, sync_routes

from llm_budget_hooks.litellm import BudgetRefused, budgeted
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
ACME = {"tenant": "acme", "user": "u1"}
DAY = {"scope": "global", "limit": "$0.02", "window": "day", "name": "dollars"}


@pytest.mark.parametrize("route", ASYNC)
def test_a_killed_tenant_of_tasks_reaches_no_provider(route: str, provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    engine.kill("default", reason="a test", by="tests")
    [refusal] = in_tasks(async_routes(provider)[route], 1)
    assert isinstance(refusal, BudgetRefused)
    assert (refusal.code, provider.count, balance(engine, "calls")) == ("killed", 0, (0, 0))


@pytest.mark.parametrize("route", SYNC)
def test_a_killed_tenant_of_threads_reaches_no_provider(route: str, provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    engine.kill(reason="a test", by="tests")
    with pytest.raises(BudgetRefused) as caught:
        sync_routes(provider)[route]()
    assert (caught.value.code, provider.count, balance(engine, "calls")) == ("killed", 0, (0, 0))


def test_another_tenant_goes_on_and_a_revived_one_again(provider: FakeProvider, capped: MakeEngine) -> None:
    engine, router = capped(), router_of(provider)
    engine.kill("acme", reason="a test", by="tests")
    with pytest.raises(BudgetRefused):
        asyncio.run(router.acompletion(model="first", messages=MESSAGES, metadata=dict(ACME)))
    asyncio.run(router.acompletion(model="first", messages=MESSAGES, metadata={"tenant": "globex"}))
    assert provider.count == 1
    engine.revive("acme", by="tests")
    asyncio.run(router.acompletion(model="first", messages=MESSAGES, metadata=dict(ACME)))
    assert provider.count == 2


def test_a_kill_between_a_failed_attempt_and_its_fallback_stops_the_fallback(
    provider: FakeProvider, capped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, router = capped(), router_of(provider, num_retries=0)
    provider.fail_next(1, status=400)
    release = engine.arelease

    async def killing(*args: Any, **kwargs: Any) -> Any:
        engine.kill("acme", reason="a test", by="tests")
        return await release(*args, **kwargs)

    monkeypatch.setattr(engine, "arelease", killing)
    [outcome] = in_tasks(lambda: router.acompletion(model="first", messages=MESSAGES, metadata=dict(ACME)), 1)
    assert isinstance(outcome, Exception)
    assert (provider.count, balance(engine, "calls")) == (1, (1, 0))


def test_budgeted_is_stopped_too(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    litellm.callbacks = []
    engine.kill("acme", reason="a test", by="tests")
    with pytest.raises(BudgetRefused):
        budgeted(engine).completion(**at(provider, metadata=ACME))
    assert provider.count == 0


@pytest.mark.parametrize(("second", "sent"), [(CHAT, 1), ("openai/gpt-3.5-turbo", 0)])
def test_a_soft_cutoff_lets_a_fallback_of_the_cheap_tier_pass_and_no_other(
    second: str, sent: int, provider: FakeProvider, capped: MakeEngine
) -> None:
    """Either fallback alone would fit the budget."""
    capped(DAY, cutoff="soft")
    where = {"api_base": provider.base_url, "api_key": "test"}
    groups = [
        {"model_name": name, "litellm_params": {"model": model, **where}}
        for name, model in (("dear", "openai/gpt-4o"), ("other", second))
    ]
    router = litellm.Router(model_list=groups, fallbacks=[{"dear": ["other"]}], num_retries=2)
    asked = {"messages": MESSAGES, "max_tokens": 4000}
    if sent:
        asyncio.run(router.acompletion(model="dear", **asked))
    else:
        with pytest.raises(BudgetRefused):
            asyncio.run(router.acompletion(model="dear", **asked))
    assert provider.count == sent


def test_a_killed_tenant_falls_back_to_no_cheap_model_either(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(DAY, cutoff="soft")
    engine.kill("default", reason="a test", by="tests")
    with pytest.raises(BudgetRefused) as caught:
        asyncio.run(litellm.acompletion(**at(provider, model="openai/gpt-4o", fallbacks=[CHAT])))
    assert (caught.value.code, provider.count) == ("killed", 0)
