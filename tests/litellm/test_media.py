"""Entry points that are not priced by tokens, and answers that cost nothing."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import litellm
import pytest
from routes import at, balance, in_tasks, in_threads, wav

from llm_budget_hooks import BudgetExceeded
from llm_budget_hooks.litellm.media import amount_of
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
CALLS = {"scope": "global", "meter": "calls", "limit": 1, "window": "day", "name": "calls"}
SOUND = ("a.wav", io.BytesIO(b"RIFF....WAVE"))
ASKED: dict[str, dict[str, Any]] = {
    "image_generation": {"model": "openai/dall-e-3", "prompt": "a cat"},
    "speech": {"model": "openai/tts-1", "input": "hello", "voice": "alloy"},
    "transcription": {"model": "openai/whisper-1", "file": SOUND},
    "rerank": {"model": "cohere/rerank-english-v3.0", "query": "a", "documents": ["b"]},
}


@pytest.mark.parametrize("entry", ASKED)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_every_other_entry_point_is_refused_before_the_provider(
    entry: str, awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(CALLS)
    litellm.completion(**at(provider))
    asked = {**ASKED[entry], "api_base": provider.base_url, "api_key": "test"}
    [refusal] = (
        in_tasks(lambda: getattr(litellm, f"a{entry}")(**asked), 1)
        if awaited
        else in_threads(lambda: getattr(litellm, entry)(**asked), 1)
    )
    assert isinstance(refusal, BudgetExceeded)
    assert provider.count == 1
    assert balance(engine, "calls") == (1, 0)


@pytest.mark.parametrize(
    ("kind", "model", "asked", "amount"),
    [
        ("speech", "openai/tts-1", {"input": "a" * 1000}, "0.015"),
        ("transcription", "openai/whisper-1", {"file": SOUND}, "0.36"),
        ("rerank", "cohere/rerank-english-v3.0", {"documents": ["b"] * 101}, "0.004"),
        ("completion", "openai/gpt-4o-mini", {}, None),
    ],
)
def test_what_is_priced_by_other_units_is_held_by_them(
    kind: str, model: str, asked: dict[str, Any], amount: str | None
) -> None:
    assert amount_of(kind, model, asked) == (None if amount is None else Decimal(amount))


REAL: dict[str, tuple[dict[str, Any], str]] = {
    # 1 text token in at $5 and 40 image tokens out at $40 a million
    "image_generation": ({"model": "openai/gpt-image-1", "prompt": "cat"}, "0.001605"),
    "image_edit": ({"model": "openai/gpt-image-1", "prompt": "cat", "image": b"\x89PNG\r\n\x1a\n"}, "0.001605"),
    "speech": ({"model": "openai/tts-1", "input": "hello" * 100, "voice": "alloy"}, "0.0075"),
    "transcription": ({"model": "openai/whisper-1", "file": wav(4.5)}, "0.00045"),
    "rerank": ({"model": "cohere/rerank-english-v3.0", "query": "a", "documents": ["b"] * 250}, "0.006"),
    "text_completion": ({"model": "openai/gpt-3.5-turbo-instruct", "prompt": "hi"}, "0.0000815"),
    "embedding": ({"model": "openai/text-embedding-3-small", "input": ["hi"]}, "0.00000002"),
}
OWN: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "image_generation": ({"model": "openai/ours", "prompt": "cat", "n": 3}, {"per_image": "$0.02"}, "0.06"),
    "speech": ({"model": "openai/ours", "input": "a" * 50, "voice": "alloy"}, {"per_character": "$0.0001"}, "0.005"),
    "transcription": (
        {"model": "openai/ours", "file": wav(4.5), "response_format": "verbose_json"},
        {"per_input_second": "$0.002"},
        "0.009",
    ),
    "rerank": ({"model": "cohere/ours", "query": "a", "documents": ["b"] * 101}, {"per_search": "$0.001"}, "0.002"),
}


def _ask(entry: str, asked: dict[str, Any], awaited: bool, provider: FakeProvider) -> Any:
    base = provider.base_url.removesuffix("/v1") if entry == "rerank" else provider.base_url
    asked = {**asked, "api_base": base, "api_key": "test"}
    if awaited:
        return asyncio.run(getattr(litellm, f"a{entry}")(**asked))
    return getattr(litellm, entry)(**asked)


@pytest.mark.parametrize("entry", REAL)
@pytest.mark.parametrize("awaited", [False, True], ids=["sync", "async"])
def test_every_entry_point_books_what_the_answer_cost(
    entry: str, awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(CALLS, {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"})
    asked, cost = REAL[entry]
    _ask(entry, asked, awaited, provider)
    assert provider.count == 1
    assert balance(engine) == (Decimal(cost), 0)
    assert balance(engine, "calls") == (1, 0)


@pytest.mark.parametrize("entry", OWN)
def test_the_policys_own_price_of_a_unit_goes_first(entry: str, provider: FakeProvider, capped: MakeEngine) -> None:
    asked, price, cost = OWN[entry]
    dollars = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}
    engine = capped(dollars, prices={asked["model"]: {"input": "0", "output": "0", **price}})
    _ask(entry, asked, False, provider)
    assert balance(engine) == (Decimal(cost), 0)


def test_an_image_that_is_billed_by_tokens_is_held_at_its_dearest_quality() -> None:
    """At high quality a square image of gpt-image-1 is 16.7 cents, as LiteLLM's list has it."""
    assert amount_of("image_generation", "openai/gpt-image-1", {"n": 2}) == Decimal("0.334")
    low = amount_of("image_generation", "openai/gpt-image-1", {"quality": "low"})
    assert low is not None
    assert low == Decimal("0.011")


@pytest.mark.parametrize("entry", ["image_generation", "speech", "transcription", "rerank"])
def test_an_error_of_the_provider_bills_nothing(entry: str, provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped({"scope": "global", "limit": "$50", "window": "day", "name": "dollars"})
    provider.fail_next(9, status=400)
    for awaited in (False, True):
        with pytest.raises(Exception, match="fake provider says 400"):
            _ask(entry, REAL[entry][0], awaited, provider)
    assert balance(engine) == (0, 0)


@pytest.fixture
def cached() -> Iterator[None]:
    litellm.cache = litellm.Cache(type="local")
    yield
    litellm.cache = None


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("awaited", [False, True])
def test_b087_what_a_guardrail_cost_is_booked_for_an_answer_from_the_cache_too(
    provider: FakeProvider, capped: MakeEngine, awaited: bool
) -> None:
    engine = capped({"scope": "global", "limit": "$50", "window": "day", "name": "dollars"})
    checked = {"standard_logging_guardrail_information": [{"guardrail_name": "pii", "guardrail_cost": 0.0001}]}
    wanted = (Decimal("0.0000243") + Decimal("0.0001"), 0)

    async def booked() -> None:
        """LiteLLM tells of a hit when it is answered already."""
        for _ in range(200):
            if balance(engine) == wanted:
                break
            await asyncio.sleep(0.05)

    async def ask() -> None:
        await litellm.acompletion(**at(provider), metadata=checked)
        await booked()

    litellm.completion(**at(provider))
    if awaited:
        asyncio.run(ask())
    else:
        litellm.completion(**at(provider), metadata=checked)
        asyncio.run(booked())
    assert (balance(engine), provider.count) == (wanted, 1)


@pytest.mark.usefixtures("cached")
def test_an_answer_from_the_cache_costs_nothing(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped({"scope": "global", "limit": "$50", "window": "day", "name": "dollars"})

    async def run() -> None:
        for _ in range(3):
            await litellm.acompletion(**at(provider))

    litellm.completion(**at(provider))
    asyncio.run(run())
    litellm.completion(**at(provider))
    assert provider.count == 1
    assert balance(engine) == (Decimal("0.0000243"), 0)
