"""Entry points that are not priced by tokens, and answers that cost nothing."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import litellm
import pytest
from routes import at, balance, in_tasks, in_threads

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


@pytest.fixture
def cached() -> Iterator[None]:
    litellm.cache = litellm.Cache(type="local")
    yield
    litellm.cache = None


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
