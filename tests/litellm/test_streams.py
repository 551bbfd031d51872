"""Streams settle wherever they end, with what was really used where the provider said it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import litellm
import pytest
from routes import CHAT, at, balance

from llm_budget_hooks import BudgetExceeded, Usage
from llm_budget_hooks.litellm.later import wait_settled
from llm_budget_hooks.litellm.streams import Meter, _events, metered
from llm_budget_hooks.testing import FakeProvider, Reply

MakeEngine = Callable[..., Any]
USED = Decimal("0.0000243")  # 2 tokens in at $0.15 and 40 out at $0.60 a million
ONE_AT_A_TIME = {"scope": "global", "meter": "in_flight", "limit": 1, "name": "open"}
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}


async def _break(asked: dict[str, Any]) -> None:
    stream = await litellm.acompletion(**asked)
    async for _ in stream:
        break


async def _aclose(asked: dict[str, Any]) -> None:
    stream = await litellm.acompletion(**asked)
    await anext(stream)
    await stream.aclose()


async def _never_read(asked: dict[str, Any]) -> None:
    await litellm.acompletion(**asked)


async def _raise_inside(asked: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop is what is left by the error
        async for _ in await litellm.acompletion(**asked):
            _ = 1 / 0


async def _cancel_between(asked: dict[str, Any]) -> None:
    reading = asyncio.Event()

    async def read() -> None:
        async for _ in await litellm.acompletion(**asked):
            reading.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [_break, _aclose, _never_read, _raise_inside, _cancel_between])
def test_b013_b106_a_stream_that_is_left_is_billed_for_what_came(
    leave: Callable[[dict[str, Any]], Awaitable[None]], provider: FakeProvider, capped: MakeEngine
) -> None:
    """And the next call is let in at once."""
    engine = capped(ONE_AT_A_TIME, DOLLARS)

    async def run() -> None:
        await leave(at(provider, stream=True))
        gc.collect()

    asyncio.run(run())
    assert wait_settled(5)
    spent, reserved = balance(engine)
    assert 0 < spent < USED
    assert reserved == 0
    litellm.completion(**at(provider))
    assert provider.count == 2


def test_b106_a_sync_stream_that_is_closed_is_billed_for_what_came(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(ONE_AT_A_TIME, DOLLARS)
    stream = litellm.completion(**at(provider, stream=True))
    next(stream)
    stream.close()
    assert 0 < balance(engine)[0] < USED
    litellm.completion(**at(provider))


def test_b106_a_dropped_stream_counts_the_prompt_and_what_was_delivered(
    provider: FakeProvider, capped: MakeEngine
) -> None:
    provider.text = "alpha beta gamma delta " * 50
    provider.output_tokens = 300
    engine = capped()
    stream = litellm.completion(**at(provider, stream=True))
    next(stream)
    next(stream)
    held = stream._meter.attempt
    stream.close()
    ending = stream._meter.ending(stream, None)
    assert (ending.usage.input_tokens, ending.usage.exact) == (held.call.input_tokens, False)
    assert 75 <= ending.usage.output_tokens <= 90
    assert balance(engine)[1] == 0


def test_b010_a_stream_that_fails_before_its_first_chunk_leaves_no_hold(
    provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(ONE_AT_A_TIME, DOLLARS)
    provider.next_replies(*[Reply(status=500)] * 10)
    for _ in range(10):
        with pytest.raises(litellm.InternalServerError):
            litellm.completion(**at(provider, stream=True, max_retries=0))
    assert balance(engine) == (0, 0)
    assert len(list(litellm.completion(**at(provider, stream=True)))) > 1


@pytest.mark.parametrize("asked_for", [False, True])
def test_usage_is_asked_for_and_shown_only_to_who_asked(
    asked_for: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped()
    more = {"stream_options": {"include_usage": True}} if asked_for else {}

    async def read() -> list[Any]:
        return [chunk async for chunk in await litellm.acompletion(**at(provider, stream=True, **more))]

    for chunks in (list(litellm.completion(**at(provider, stream=True, **more))), asyncio.run(read())):
        assert [chunk for chunk in chunks if getattr(chunk, "usage", None)] == (chunks[-1:] if asked_for else [])
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == " ".join(
            ["ok"] * 40
        )
    assert [request.json["stream_options"]["include_usage"] for request in provider.requests] == [True, True]
    assert balance(engine) == (2 * USED, 0)


CLAUDE = "anthropic/claude-sonnet-4-5"
# 10 tokens in at $3 and 400 out, most of them thinking that is not delivered, at $15 a million
THOUGHT = Decimal("0.00603")


@pytest.fixture
def thinking(provider: FakeProvider) -> FakeProvider:
    """Reports its usage unasked, as LiteLLM keeps it from a caller who has not asked."""
    provider.text, provider.input_tokens, provider.output_tokens = "ok " * 20, 10, 400
    return provider


async def _to_its_end(asked: dict[str, Any]) -> None:
    async for _ in await litellm.acompletion(**asked):
        pass


async def _text_to_its_end(asked: dict[str, Any]) -> None:
    messages = asked.pop("messages")
    async for _ in await litellm.atext_completion(**asked, prompt=messages[0]["content"]):
        pass


def _at_claude(provider: FakeProvider, **more: Any) -> dict[str, Any]:
    where = {"model": CLAUDE, "api_base": provider.base_url.removesuffix("/v1"), "max_tokens": 1000}
    return {**at(provider, stream=True), **where, **more}


@pytest.mark.parametrize("read", [_to_its_end, _text_to_its_end])
def test_what_the_provider_reports_unasked_is_booked(
    read: Callable[[dict[str, Any]], Awaitable[None]], thinking: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped()
    asyncio.run(read(_at_claude(thinking)))
    assert wait_settled(5)
    assert balance(engine) == (THOUGHT, 0)


def test_a_sync_stream_books_what_the_provider_reports_unasked(thinking: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    assert not any(getattr(chunk, "usage", None) for chunk in litellm.completion(**_at_claude(thinking)))
    assert balance(engine) == (THOUGHT, 0)


@pytest.mark.parametrize("read", [0, 3, 1000], ids=["unread", "left", "whole"])
@pytest.mark.parametrize("entry", ["acompletion", "aresponses", "anthropic.messages"])
def test_an_answer_that_litellm_has_whole_and_streams_falsely_is_booked_whole(
    entry: str, read: int, thinking: FakeProvider, capped: MakeEngine
) -> None:
    """The provider is asked without a stream, so it has made all of it: 10 in at $150, 400 out at $600 a million."""
    engine = capped()
    asked = at(thinking, model="openai/o1-pro", stream=True, **{} if entry == "aresponses" else {"max_tokens": 1000})
    if entry == "aresponses":
        asked["input"] = asked.pop("messages")
    ask = litellm.anthropic.messages.acreate if entry == "anthropic.messages" else getattr(litellm, entry)

    async def leave() -> None:
        stream = await ask(**asked)
        for _ in range(read):
            if await anext(stream, None) is None:
                break

    asyncio.run(leave())
    gc.collect()
    assert wait_settled(5)
    assert [request.stream for request in thinking.requests] == [False]
    assert balance(engine) == (Decimal("0.2415"), 0)


def test_streams_of_thinking_models_do_not_pass_a_limit(thinking: FakeProvider, capped: MakeEngine) -> None:
    engine = capped({**DOLLARS, "limit": "$0.05"}, estimate="bound")

    def twenty() -> None:
        for _ in range(20):
            list(litellm.completion(**_at_claude(thinking)))

    with pytest.raises(BudgetExceeded):
        twenty()
    spent, reserved = balance(engine)
    assert (spent, reserved) == (thinking.count * THOUGHT, 0)
    assert spent <= Decimal("0.05")


def test_a_stream_that_is_left_is_billed_for_at_least_what_was_reported_so_far(
    thinking: FakeProvider, capped: MakeEngine
) -> None:
    """Claude reports the prompt first: 10 tokens here, which no caller can count so well."""
    capped()
    stream = litellm.completion(**_at_claude(thinking))
    next(stream)
    stream.close()
    assert stream._meter.ending(stream, None).usage.input_tokens == 10


def test_b111_a_provider_without_usage_is_counted_locally(provider: FakeProvider, capped: MakeEngine) -> None:
    provider.usage = False
    engine = capped()
    list(litellm.completion(**at(provider, stream=True)))
    spent, reserved = balance(engine)
    assert reserved == 0
    assert USED / 2 < spent < USED * 2


def test_a_stream_cut_in_the_middle_bills_what_came(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.cut_next(1, after=3)

    async def read() -> None:
        async for _ in await litellm.acompletion(**at(provider, stream=True, max_retries=0)):
            pass

    with pytest.raises(litellm.exceptions.MidStreamFallbackError):
        asyncio.run(read())
    spent, reserved = balance(engine)
    assert 0 < spent < USED
    assert reserved == 0


def test_a_stream_keeps_its_class(provider: FakeProvider, capped: MakeEngine) -> None:
    capped()
    stream = litellm.completion(**at(provider, stream=True))
    assert isinstance(stream, litellm.CustomStreamWrapper)
    assert type(stream).__name__ == "CustomStreamWrapper"
    assert len(list(stream)) == 6


def test_a_long_stream_renews_its_hold(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    provider.next_replies(Reply(chunk_latency_s=0.01))
    stream = litellm.completion(**at(provider, stream=True))
    hold = stream._meter.attempt.reservation
    first = hold.expires_at
    stream._meter._renewed -= 200
    next(stream)
    assert hold.expires_at > first
    list(stream)
    assert balance(engine) == (USED, 0)


def test_a_generator_is_metered_too(provider: FakeProvider, capped: MakeEngine) -> None:
    """Anthropic's messages come as a generator of raw events."""
    engine = capped()

    async def read() -> list[Any]:
        asked = at(provider, max_tokens=100, stream=True)
        return [event async for event in await litellm.anthropic.messages.acreate(**asked)]

    assert len(asyncio.run(read())) > 3
    assert wait_settled(5)
    assert balance(engine) == (USED, 0)


class _Attempt:
    """As much of an attempt as a meter asks of one."""

    hides_usage = False
    inner = ()
    open = True
    reservation = None
    endings: list[Any]

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.call = type("Call", (), {"input_tokens": 25, "model": CHAT})
        self.endings = []

    def end(self, ending: Any) -> None:
        self.open = False
        self.endings.append(ending)

    def end_later(self, ending: Any) -> None:
        self.end(ending)


def _read_all(pieces: list[Any], engine: Any) -> Usage:
    attempt: Any = _Attempt(engine)
    list(metered(iter(pieces), attempt))
    return attempt.endings[0].usage


@pytest.mark.parametrize(
    ("first", "last", "used"),
    [
        ({"input_tokens": 10, "output_tokens": 1}, {"output_tokens": 29}, (10, 29)),
        ({"input_tokens": 10, "output_tokens": 1}, {"input_tokens": 10, "output_tokens": 29}, (10, 29)),
        (None, {"input_tokens": 10, "output_tokens": 29}, (10, 29)),
    ],
    ids=["input first", "cumulative", "final only"],
)
def test_b109_usage_in_several_events_is_joined(first: Any, last: Any, used: Any, capped: MakeEngine) -> None:
    start = {"type": "message_start", "message": {"usage": first} if first else {}}
    usage = _read_all([start, {"type": "message_delta", "delta": {}, "usage": last}], capped())
    assert (usage.input_tokens, usage.output_tokens, usage.exact) == (*used, True)


def test_b107_a_partial_usage_is_a_floor(capped: MakeEngine) -> None:
    """Usage 25 in and 1 out in the first event, 400 tokens delivered, then the caller leaves."""
    attempt: Any = _Attempt(capped())
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}
    deltas = [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "alpha "}}] * 400
    stream = metered(iter([start, *deltas, start]), attempt)
    for _ in range(401):
        next(stream)
    stream.close()
    [ending] = attempt.endings
    assert ending.usage.input_tokens == 25
    assert ending.usage.output_tokens >= 400
    assert not ending.usage.exact


def test_raw_server_sent_events_are_read() -> None:
    raw = b'event: message_start\ndata: {"type": "message_start"}\n\ndata: [DONE]\n\n'
    assert _events(raw) == [{"type": "message_start"}]


def test_meters_of_ended_streams_are_not_kept(provider: FakeProvider, capped: MakeEngine) -> None:
    capped()
    gc.collect()
    for _ in range(10):
        list(litellm.completion(**at(provider, stream=True)))
    gc.collect()
    assert sum(isinstance(thing, Meter) and thing.attempt.open for thing in gc.get_objects()) == 0
