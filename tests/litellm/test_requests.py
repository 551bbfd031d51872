"""What the attempts of one request share, and what they do not share with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import litellm
import litellm.google_genai
import pytest
from routes import CHAT, MESSAGES, at, balance, router_of

from llm_budget_hooks import Call
from llm_budget_hooks.litellm import BudgetRefused
from llm_budget_hooks.litellm.calls import call_of
from llm_budget_hooks.litellm.later import wait_settled
from llm_budget_hooks.litellm.requests import PROXY_REQUEST, ProxyRequest
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
CALLS, UTTERANCES = (
    {"scope": "global", "meter": meter, "limit": 100, "window": "day", "name": meter}
    for meter in ("calls", "utterances")
)
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}
FALLBACK = {"fallbacks": ["openai/gpt-4o"], "max_retries": 0}


def _ask(awaited: bool, asked: dict[str, Any]) -> Any:
    return asyncio.run(litellm.acompletion(**asked)) if awaited else litellm.completion(**asked)


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(
    ("more", "failures", "attempts"), [(FALLBACK, 1, 2), ({"num_retries": 1}, 3, 2)], ids=["fallbacks", "num_retries"]
)
def test_the_attempts_of_the_sdk_are_holds_of_one_utterance(
    more: Any, failures: int, attempts: int, awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    """LiteLLM tries twice with `num_retries=1`, and OpenAI's client asks twice in the first of them."""
    engine = capped(CALLS, UTTERANCES, DOLLARS)
    provider.fail_next(failures, status=500)
    try:
        _ask(awaited, at(provider, **more))
    except litellm.InternalServerError:
        assert more != FALLBACK
    assert balance(engine, "calls") == (attempts, 0)
    assert balance(engine, "utterances") == (1, 0)


@pytest.mark.parametrize("awaited", [False, True])
def test_requests_of_one_trace_are_utterances_of_their_own(
    awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    """A trace is often a conversation; its requests are counted, and each with its fallback once."""
    engine = capped(CALLS, UTTERANCES, DOLLARS)
    router = router_of(provider, num_retries=0)
    for _ in range(3):
        provider.fail_next(1, status=400)
        asked: Any = {"model": "first", "messages": MESSAGES, "litellm_trace_id": "a conversation"}
        answer = asyncio.run(router.acompletion(**asked)) if awaited else router.completion(**asked)
        assert answer.model == "gpt-4o"
    assert balance(engine, "calls") == (6, 0)
    assert balance(engine, "utterances") == (3, 0)


def test_responses_through_the_router_are_one_utterance_with_metadata_too(
    provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(CALLS, UTTERANCES, DOLLARS)
    provider.fail_next(1, status=400)
    router = router_of(provider, num_retries=0)
    asyncio.run(router.aresponses(model="first", input="hello world", metadata={"tenant": "acme"}))
    assert balance(engine, "calls") == (2, 0)
    assert balance(engine, "utterances") == (1, 0)


def test_a_refusal_of_an_earlier_request_of_a_trace_stops_no_later_one(
    provider: FakeProvider, capped: MakeEngine
) -> None:
    """The later request is let in, its first deployment fails, and its fallback is asked for."""
    engine = capped(DOLLARS, {"scope": "tenant", "limit": "$0.00001", "window": "day", "name": "theirs"})
    router = router_of(provider, num_retries=0)
    asked: Any = {
        "model": "first", "messages": MESSAGES, "litellm_trace_id": "a conversation", "metadata": {"tenant": "acme"},
    }  # fmt: skip
    with pytest.raises(BudgetRefused):
        asyncio.run(router.acompletion(**asked))
    engine.override("theirs", "$5", tenant="acme", by="tests")
    provider.fail_next(1, status=400)
    assert asyncio.run(router.acompletion(**asked)).model == "gpt-4o"
    assert provider.count == 2


def test_b105_the_attempts_of_one_answer_are_limited(provider: FakeProvider, capped: MakeEngine) -> None:
    """Five models would be tried, and four attempts are allowed."""
    engine = capped(CALLS, DOLLARS, {"scope": "answer", "meter": "calls", "limit": 4, "name": "attempts"})
    provider.fail_next(9, status=400)
    with pytest.raises(BudgetRefused) as caught:
        asyncio.run(litellm.acompletion(**at(provider, fallbacks=["openai/gpt-4o", CHAT, "openai/gpt-4o", CHAT])))
    assert (caught.value.budget, provider.count) == ("attempts", 4)
    assert balance(engine, "calls") == (4, 0)
    assert balance(engine) == (Decimal(0), 0)


@pytest.mark.parametrize("stream", [False, True])
def test_what_google_calls_by_its_own_name_is_one_call(
    stream: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    """LiteLLM makes a chat of it for other providers, which comes through the entry points again."""
    engine = capped(CALLS, DOLLARS)
    asked: Any = {
        "model": CHAT, "contents": [{"role": "user", "parts": [{"text": "hello world"}]}],
        "api_base": provider.base_url, "api_key": "test",
    }  # fmt: skip

    async def ask() -> None:
        if stream:
            async for _ in await litellm.google_genai.agenerate_content_stream(**asked):
                pass
        else:
            await litellm.google_genai.agenerate_content(**asked)

    asyncio.run(ask())
    assert provider.count == 1
    assert wait_settled(5)
    assert balance(engine, "calls") == (1, 0)
    assert balance(engine) == (Decimal("0.0000243"), 0)


def test_openais_moderation_is_free(provider: FakeProvider, capped: MakeEngine) -> None:
    """Also where nothing is left; others have a price or are refused."""
    engine = capped({"scope": "global", "limit": "$0.01", "window": "day", "name": "dollars"})
    engine.charge(Call(model="gpt-4o-mini"), cost="0.01")
    for asked in ({"input": "hi"}, {"input": "hi", "model": "omni-moderation-latest"}):
        assert engine.check(call_of(engine, "amoderation", asked)).allowed
    assert not engine.check(call_of(engine, "amoderation", {"input": "hi", "model": "of-ours"})).allowed


def test_a_stream_of_a_proxy_is_booked_when_its_request_ends(provider: FakeProvider, capped: MakeEngine) -> None:
    """Not when the garbage collector comes to it: something refers to it still."""
    engine = capped(DOLLARS)
    kept: list[Any] = []

    async def serve() -> None:
        request = ProxyRequest("one", tenant="acme")
        PROXY_REQUEST.set(request)
        request.end_with(asyncio.current_task())
        kept.append(await litellm.acompletion(**at(provider, stream=True)))
        await anext(kept[0])

    async def run() -> None:
        await asyncio.create_task(serve())
        await asyncio.sleep(0)

    asyncio.run(run())
    assert wait_settled(5)
    spent, reserved = balance(engine)
    assert reserved == 0
    assert 0 < spent < Decimal("0.0000243")
