"""A call that can hear or speak is held at the model's rates for sound, however it reaches the engine."""

from __future__ import annotations

import base64
import io
import wave
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage

from llm_budget_hooks import BudgetEngine, Call, Usage
from llm_budget_hooks.clamp import affordable_output
from llm_budget_hooks.pricing import PriceBook

SPEAKER = {"input": "2.50", "output": "10", "input_audio": "40", "output_audio": "80"}
POLICY = {"prices": {"speaker": SPEAKER}, "budgets": [{"scope": "global", "limit": "$10", "window": "day"}]}


def sound() -> str:
    """A second of silence."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(bytes(8000))
    return base64.b64encode(written.getvalue()).decode()


def spoken() -> list[dict[str, Any]]:
    part = {"type": "input_audio", "input_audio": {"data": sound(), "format": "wav"}}
    return [{"role": "user", "content": [{"type": "text", "text": "What is said here?"}, part]}]


@pytest.mark.parametrize("estimate", ["auto", "bound"])
def test_b082_sound_is_held_at_its_own_rates_and_never_below_what_it_costs(estimate: str) -> None:
    with BudgetEngine.open("memory://", {**POLICY, "estimate": estimate}) as engine:
        held = engine.reserve(Call(model="speaker", input_tokens=1000, max_output_tokens=500, audio=True))
        assert held.estimate == Decimal("0.08")
        used = Usage(input_tokens=1000, input_audio_tokens=1000, output_tokens=500, output_audio_tokens=500)
        assert engine.settle(held, usage=used).overage == 0
        text = engine.reserve(Call(model="speaker", input_tokens=1000, max_output_tokens=500))
        assert text.estimate == Decimal("0.0075")


def test_without_an_output_bound_the_prompt_is_held_as_sound() -> None:
    with BudgetEngine.open("memory://", {**POLICY, "step_budget": "$0.01"}) as engine:
        assert engine.reserve(Call(model="speaker", input_tokens=1000, audio=True)).estimate == Decimal("0.05")


def test_an_output_that_is_clamped_fits_as_speech() -> None:
    price = PriceBook({"speaker": {**SPEAKER, "max_output_tokens": 1000}}).price("speaker")
    call = Call(model="speaker", input_tokens=0, audio=True)
    assert affordable_output(price, call, [8_000_000]) == 100


def test_the_same_id_with_sound_is_another_attempt() -> None:
    from llm_budget_hooks import ReservationConflict

    with BudgetEngine.open("memory://", POLICY) as engine:
        engine.reserve(Call(model="speaker", id="x", input_tokens=1, max_output_tokens=1))
        with pytest.raises(ReservationConflict):
            engine.reserve(Call(model="speaker", id="x", input_tokens=1, max_output_tokens=1, audio=True))


@pytest.mark.parametrize(
    ("asked", "audio"),
    [
        ({"messages": spoken()}, True),
        ({"messages": [{"role": "user", "content": "Say it."}], "modalities": ["text", "audio"]}, True),
        ({"messages": [{"role": "user", "content": "Say it."}], "modalities": ["text"]}, False),
        ({"messages": [{"role": "user", "content": "Write it."}]}, False),
    ],
)
def test_a_request_through_litellm_says_whether_it_has_sound(asked: dict[str, Any], audio: bool) -> None:
    from llm_budget_hooks.litellm.calls import call_of

    with BudgetEngine.open("memory://", POLICY) as engine:
        call = call_of(engine, "completion", {"model": "speaker", "max_tokens": 10, **asked})
    assert (call.audio, call.input_tokens is not None) == (audio, True)


def test_a_run_of_langchain_says_whether_it_has_sound() -> None:
    from llm_budget_hooks.langchain.calls import Start, call_of
    from llm_budget_hooks.langchain.runs import Root

    with BudgetEngine.open("memory://", POLICY) as engine, engine.utterance() as scope:
        root = Root(1, scope, None, None, None)
        for content, audio in ((spoken()[0]["content"], True), ("What is it?", False)):
            start = Start(uuid4(), None, [HumanMessage(content)], {}, None, {"model": "speaker"})
            assert call_of(start, root).audio is audio
