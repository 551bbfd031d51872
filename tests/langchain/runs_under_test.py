"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from llm_budget_hooks import BudgetEngine, Call, Reservation
from llm_budget_hooks.langchain import BudgetCallbackHandler

CALLS = {"name": "calls", "scope": "user", "meter": "calls", "window": "day"}
UTTERANCES = {"name": "utterances", "scope": "user", "meter": "utterances", "window": "rolling:60s"}
OPEN = {"name": "open", "scope": "user", "meter": "in_flight", "limit": 1000}
ANSWER = {"name": "answer", "scope": "answer"}

Engines = Callable[..., BudgetEngine]
Models = Callable[..., ChatOpenAI]
WHO = {"tenant": "acme", "user": "u1"}
PRICE_IN, PRICE_OUT = Decimal("0.00000015"), Decimal("0.0000006")
"""Of gpt-4o-mini, in dollars per token."""


# LiteLLM's own: its types, its logging queue when an event loop ends, and the connections that it keeps.
LITELLM = [
    *(
        pytest.mark.filterwarnings(rule)
        for rule in (
            "ignore:Items? .* using the `ReadOnly` qualifier:UserWarning",
            "ignore:Accessing the 'model_(computed_)?fields' attribute:DeprecationWarning",
            "ignore:Pydantic serializer warnings:UserWarning",
            "ignore:coroutine .*(Logging|ServiceLogging|async_|close).* was never awaited:RuntimeWarning",
            "ignore:There is no current event loop:DeprecationWarning",
            "ignore:unclosed:ResourceWarning",
            "ignore:Exception ignored in.*(socket|Transport|coroutine):pytest.PytestUnraisableExceptionWarning",
        )
    ),
    pytest.mark.usefixtures("no_hooks_left"),
]


async def collected(stream: Any) -> list[Any]:
    """All that an awaited stream gives."""
    return [chunk async for chunk in stream]


def config(handler: BudgetCallbackHandler, **metadata: Any) -> Any:
    """A run's configuration: the handler, and whose run it is."""
    return {"callbacks": [handler], "metadata": {**WHO, **metadata}}


def budget(engine: BudgetEngine, name: str, tenant: str = "acme", user: str = "u1") -> Any:
    """One balance."""
    return next(status for status in engine.status(tenant, user) if status.budget == name)


def cost(input_tokens: int, output_tokens: int) -> Decimal:
    """The price of a call of gpt-4o-mini."""
    return input_tokens * PRICE_IN + output_tokens * PRICE_OUT


def spent(engine: BudgetEngine) -> BudgetEngine:
    """The engine, with one call of the user booked."""
    engine.charge(Call(model="gpt-4o-mini", tenant="acme", user="u1"), cost=0)
    return engine


def reserved_calls(engine: BudgetEngine, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """All that is reserved from now on, refused or not."""
    seen: list[Call] = []
    reserve = engine.reserve

    def record(call: Call) -> Reservation:
        seen.append(call)
        return reserve(call)

    monkeypatch.setattr(engine, "reserve", record)
    return seen
