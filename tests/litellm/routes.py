"""Every way of calling a model through LiteLLM, by name."""

from __future__ import annotations

import asyncio
import io
import threading
import wave
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import litellm
from litellm import acompletion as early_acompletion
from litellm import completion as early_completion

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.testing import FakeProvider

MESSAGES = [{"role": "user", "content": "hello world"}]
CHAT = "openai/gpt-4o-mini"
Asked = dict[str, Any]


def at(provider: FakeProvider, **more: Any) -> Asked:
    """The arguments of a chat with the fake provider."""
    return {"model": CHAT, "messages": MESSAGES, "api_base": provider.base_url, "api_key": "test", **more}


def _other(provider: FakeProvider, model: str, **more: Any) -> Asked:
    return {"model": model, "api_base": provider.base_url, "api_key": "test", **more}


def router_of(provider: FakeProvider, **more: Any) -> litellm.Router:
    """Two groups of one deployment each, the second the fallback of the first."""
    where = {"api_base": provider.base_url, "api_key": "test", "max_retries": 0}
    groups = [
        {"model_name": name, "litellm_params": {"model": model, **where}}
        for name, model in (("first", CHAT), ("second", "openai/gpt-4o"))
    ]
    return litellm.Router(model_list=groups, fallbacks=[{"first": ["second"]}], **{"num_retries": 2, **more})


async def _read(asked: Asked) -> list[Any]:
    return [chunk async for chunk in await litellm.acompletion(**asked, stream=True)]


async def _read_responses(asked: Asked) -> list[Any]:
    return [event async for event in await litellm.aresponses(**asked, stream=True)]


def async_routes(provider: FakeProvider) -> dict[str, Callable[[], Awaitable[Any]]]:
    chat = at(provider)
    responses = _other(provider, CHAT, input="hi")
    router = router_of(provider)
    return {
        "acompletion": lambda: litellm.acompletion(**chat),
        "acompletion early import": lambda: early_acompletion(**chat),
        "acompletion num_retries": lambda: litellm.acompletion(**chat, num_retries=2),
        "acompletion fallbacks": lambda: litellm.acompletion(**chat, fallbacks=["openai/gpt-4o"]),
        "acompletion stream": lambda: _read(chat),
        "Router.acompletion": lambda: router.acompletion(model="first", messages=MESSAGES),
        "atext_completion": lambda: litellm.atext_completion(
            **_other(provider, "openai/gpt-3.5-turbo-instruct", prompt="hi")
        ),
        "aembedding": lambda: litellm.aembedding(**_other(provider, "openai/text-embedding-3-small", input=["hi"])),
        "aresponses": lambda: litellm.aresponses(**responses),
        "aresponses num_retries": lambda: litellm.aresponses(**responses, num_retries=2),
        "aresponses stream": lambda: _read_responses(responses),
        "anthropic.messages": lambda: litellm.anthropic.messages.acreate(**chat, max_tokens=50),
    }


def sync_routes(provider: FakeProvider) -> dict[str, Callable[[], Any]]:
    chat = at(provider)
    responses = _other(provider, CHAT, input="hi")
    router = router_of(provider)
    return {
        "completion": lambda: litellm.completion(**chat),
        "completion early import": lambda: early_completion(**chat),
        "completion num_retries": lambda: litellm.completion(**chat, num_retries=2),
        "completion fallbacks": lambda: litellm.completion(**chat, fallbacks=["openai/gpt-4o"]),
        "completion stream": lambda: list(litellm.completion(**chat, stream=True)),
        "Router.completion": lambda: router.completion(model="first", messages=MESSAGES),
        "text_completion": lambda: litellm.text_completion(
            **_other(provider, "openai/gpt-3.5-turbo-instruct", prompt="hi")
        ),
        "embedding": lambda: litellm.embedding(**_other(provider, "openai/text-embedding-3-small", input=["hi"])),
        "responses": lambda: litellm.responses(**responses),
        "responses stream": lambda: list(litellm.responses(**responses, stream=True)),
    }


ASYNC = (
    "acompletion", "acompletion early import", "acompletion num_retries", "acompletion fallbacks",
    "acompletion stream", "Router.acompletion", "atext_completion", "aembedding", "aresponses",
    "aresponses num_retries", "aresponses stream", "anthropic.messages",
)  # fmt: skip
SYNC = (
    "completion", "completion early import", "completion num_retries", "completion fallbacks", "completion stream",
    "Router.completion", "text_completion", "embedding", "responses", "responses stream",
)  # fmt: skip


def in_tasks(call: Callable[[], Awaitable[Any]], count: int) -> list[Any]:
    """What `count` concurrent calls give, exceptions included."""

    async def run() -> list[Any]:
        return await asyncio.gather(*(call() for _ in range(count)), return_exceptions=True)

    return asyncio.run(run())


def in_threads(call: Callable[[], Any], count: int) -> list[Any]:
    """Same as `in_tasks`, in as many threads."""
    outcomes: list[Any] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except Exception as error:  # noqa: BLE001 - handed to the test
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def balance(engine: BudgetEngine, budget: str = "dollars", **whose: str) -> tuple[Decimal | int | None, Any]:
    """What is spent and reserved in a budget."""
    found = next(status for status in engine.status(**whose) if status.budget == budget)
    return found.spent, found.reserved


def wav(seconds: float) -> tuple[str, bytes]:
    """A file of silence."""
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(int(16_000 * seconds)))
    return "a.wav", sound.getvalue()
