"""What each end of a call books."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import litellm
import pytest
from routes import MESSAGES, async_routes, at, balance, router_of, sync_routes

from llm_budget_hooks.litellm.usage import read_usage
from llm_budget_hooks.testing import FakeProvider, Reply

MakeEngine = Callable[..., Any]
USED = Decimal("0.0000243")  # 2 tokens in at $0.15 and 40 out at $0.60 a million
HELD = Decimal("0.005")  # the budget of a step without history, on top of the input
COUNTS = tuple(
    {"scope": "global", "meter": meter, "limit": 100, "window": "day", "name": meter}
    for meter in ("calls", "utterances")
)
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}


def test_it_is_booked_before_the_caller_sees_the_answer(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    litellm.completion(**at(provider))
    assert balance(engine) == (USED, 0)

    async def run() -> None:
        await litellm.acompletion(**at(provider))
        assert balance(engine) == (2 * USED, 0)

    asyncio.run(run())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503])
def test_b101_an_error_of_the_provider_bills_nothing(status: int, provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.fail_next(2, status=status)
    with pytest.raises(Exception, match=str(status)):
        litellm.completion(**at(provider, max_retries=0))
    with pytest.raises(Exception, match=str(status)):
        asyncio.run(litellm.acompletion(**at(provider, max_retries=0)))
    assert balance(engine) == (0, 0)
    assert balance(engine, "calls") == (2, 0)


@pytest.mark.parametrize("reply", [Reply(status=408), Reply(cut_after=0), Reply(cut_after=1)], ids=str)
def test_b100_a_cut_or_timed_out_call_is_charged_what_it_held(
    reply: Reply, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped()
    provider.next_replies(reply)
    with pytest.raises(litellm.exceptions.openai.APIError):
        litellm.completion(**at(provider, max_retries=0))
    spent, reserved = balance(engine)
    assert reserved == 0
    assert spent >= HELD


def test_b100_four_timeouts_are_charged_four_times(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.hang_next(4)
    for _ in range(4):
        with pytest.raises(litellm.Timeout):
            litellm.completion(**at(provider, max_retries=0, timeout=0.2))
    spent, reserved = balance(engine)
    assert reserved == 0
    assert 4 * HELD <= spent < 5 * HELD


def test_a_provider_that_cannot_be_reached_bills_nothing(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    with pytest.raises(litellm.exceptions.openai.APIError):
        litellm.completion(**at(provider, api_base="http://127.0.0.1:9/v1", max_retries=0))
    assert balance(engine) == (0, 0)


def test_b112_a_cancelled_call_is_charged_at_once(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.hang_next(2)

    async def run() -> None:
        task = asyncio.create_task(litellm.acompletion(**at(provider)))
        await asyncio.to_thread(provider.wait_for, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert balance(engine)[1] == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await litellm.acompletion(**at(provider))

    asyncio.run(run())
    spent, reserved = balance(engine)
    assert reserved == 0
    assert 2 * HELD <= spent < 3 * HELD


def test_b103_an_answer_without_text_is_billed(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.next_replies(Reply(text="", input_tokens=12, output_tokens=14))
    litellm.completion(**at(provider, model="openai/gpt-4o"))
    assert balance(engine) == (Decimal("0.00017"), 0)


def test_b020_an_answer_without_usage_is_charged_what_it_held(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.usage = False
    litellm.completion(**at(provider))
    spent, reserved = balance(engine)
    assert reserved == 0
    assert spent >= HELD


def test_the_attempts_of_a_router_are_holds_of_one_utterance(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(*COUNTS, DOLLARS)
    provider.fail_next(2, status=400)
    router = router_of(provider, num_retries=0)
    provider.fail_next(1, status=400)
    provider.reset()
    provider.fail_next(1, status=400)
    answer = asyncio.run(router.acompletion(model="first", messages=MESSAGES))
    assert answer.model == "gpt-4o"
    assert provider.count == 2
    assert balance(engine, "calls") == (2, 0)
    assert balance(engine, "utterances") == (1, 0)
    assert balance(engine) == (Decimal("0.000405"), 0)


def test_sdk_fallbacks_are_holds_of_their_own(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(*COUNTS, DOLLARS)
    for call in (
        lambda asked: asyncio.run(litellm.acompletion(**asked)),
        lambda asked: litellm.completion(**asked),
    ):
        provider.fail_next(1, status=400)
        assert call(at(provider, fallbacks=["openai/gpt-4o"])).model == "gpt-4o"
    assert balance(engine, "calls") == (4, 0)
    assert balance(engine) == (2 * Decimal("0.000405"), 0)


def test_b086_embeddings_are_booked(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.input_tokens = 8000
    asyncio.run(async_routes(provider)["aembedding"]())
    assert balance(engine) == (Decimal("0.00016"), 0)


@pytest.mark.parametrize("route", ["acompletion", "aresponses", "anthropic.messages", "responses", "completion"])
def test_cached_and_reasoning_tokens_are_priced_as_such(
    route: str, provider: FakeProvider, capped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 in of which 800 cached, 100 out of which 60 reasoning: 200 x 0.15 + 800 x 0.075 + 100 x 0.60 a million."""
    engine = capped()
    numbers = {"input_tokens": 1000, "cached_tokens": 800, "output_tokens": 50, "reasoning_tokens": 30}
    provider.next_replies(Reply(**numbers))
    call = async_routes(provider).get(route)
    if call is not None:
        asyncio.run(call())
    else:
        sync_routes(provider)[route]()
    assert balance(engine) == (Decimal("0.00012"), 0)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 0, 0, 4)),
        ({"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 80}, "completion_tokens": 1}, (100, 80, 0, 1)),  # noqa: E501 - a row of the table is a line
        ({"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5, "output_tokens": 1}, (95, 80, 5, 1)),  # noqa: E501 - a row of the table is a line
        ({"input_tokens": 100, "input_tokens_details": {"cached_tokens": 80}, "output_tokens": 1}, (100, 80, 0, 1)),
        ({"prompt_tokens": 1000, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 900, "completion_tokens": 1}, (1000, 0, 900, 1)),  # noqa: E501 - a row of the table is a line
    ],
)  # fmt: skip
def test_b076_every_shape_of_usage_counts_the_whole_prompt(usage: Any, counts: Any) -> None:
    found = read_usage(usage)
    assert found is not None
    assert (found.input_tokens, found.cached_input_tokens, found.cache_write_tokens, found.output_tokens) == counts


def test_a_usage_of_zeros_is_no_usage() -> None:
    assert read_usage({"prompt_tokens": 0, "completion_tokens": 0}) is None
