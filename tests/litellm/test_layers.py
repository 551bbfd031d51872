"""Several layers around one request: LangChain's handler, the provider's own client, two engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import litellm
import pytest
from routes import at, balance

from llm_budget_hooks import BudgetEngine, ConfigurationError
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider, Reply

MakeEngine = Callable[..., Any]
USED = Decimal("0.0000243")
HELD = Decimal("0.005")
CALLS = {"scope": "global", "meter": "calls", "limit": 100, "window": "day", "name": "calls"}
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}

if find_spec("langchain_litellm"):
    # The environment of the proxy's tests does without LangChain's package for LiteLLM.

    @pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
    def test_b119_langchain_and_litellm_hold_and_bill_one_call_once(
        how: str, provider: FakeProvider, capped: MakeEngine
    ) -> None:
        from langchain_litellm import ChatLiteLLM

        from llm_budget_hooks.langchain import BudgetCallbackHandler

        engine = capped(CALLS, DOLLARS)
        model = ChatLiteLLM(
            model="openai/gpt-4o-mini", api_base=provider.base_url, api_key="test", streaming="stream" in how
        )
        config: Any = {"callbacks": [BudgetCallbackHandler(engine)]}

        async def read() -> None:
            async for _ in model.astream("hello world", config):
                pass

        if how == "invoke":
            model.invoke("hello world", config)
        elif how == "ainvoke":
            asyncio.run(model.ainvoke("hello world", config))
        elif how == "stream":
            list(model.stream("hello world", config))
        else:
            asyncio.run(read())
        assert provider.count == 1
        assert balance(engine, "calls") == (1, 0)
        spent, reserved = balance(engine)
        assert reserved == 0
        assert spent == USED


@pytest.mark.parametrize("awaited", [False, True])
def test_b100_what_the_providers_client_repeats_inside_a_call_is_one_hold(
    awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    """Three requests that time out are one call of unknown outcome; two that fail and one that answers are its cost."""
    engine = capped(CALLS, DOLLARS)
    asked = at(provider, max_retries=2, timeout=0.3)

    def ask() -> None:
        if awaited:
            asyncio.run(litellm.acompletion(**asked))
        else:
            litellm.completion(**asked)

    provider.hang_next(3)
    with pytest.raises(litellm.Timeout):
        ask()
    assert provider.count == 3
    spent, reserved = balance(engine)
    assert reserved == 0
    assert HELD <= spent < 2 * HELD
    provider.next_replies(Reply(status=500), Reply(status=500))
    asked["timeout"] = 30
    ask()
    assert provider.count == 6
    assert balance(engine) == (spent + USED, 0)
    assert balance(engine, "calls") == (2, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_two_engines_are_an_error_for_tasks_as_well(stream: bool, provider: FakeProvider) -> None:
    litellm.callbacks = [BudgetCallback(BudgetEngine.open("memory://", {})) for _ in range(2)]
    with pytest.raises(ConfigurationError, match="two engines"):
        asyncio.run(litellm.acompletion(**at(provider, stream=stream, num_retries=2)))
    assert provider.count == 0


def test_a_hold_settles_in_the_engine_that_took_it(provider: FakeProvider, capped: MakeEngine) -> None:
    """The list is replaced while a call waits for its answer."""
    first = capped(CALLS, DOLLARS)
    provider.hang_next(1)

    async def run() -> BudgetEngine:
        waiting = asyncio.create_task(litellm.acompletion(**at(provider)))
        await asyncio.to_thread(provider.wait_for, 1)
        second: BudgetEngine = capped(CALLS, DOLLARS)
        provider.answer_hung()
        await waiting
        assert balance(first) == (USED, 0)
        assert balance(second) == (0, 0)
        await litellm.acompletion(**at(provider))
        return second

    second = asyncio.run(run())
    assert balance(first) == balance(second) == (USED, 0)
    assert balance(first, "calls") == balance(second, "calls") == (1, 0)
