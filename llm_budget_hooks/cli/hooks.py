"""Whether the hooks stop calls: each is made to refuse one and to let one through, at a provider that counts."""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

from llm_budget_hooks.cli.doctor import Result
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.testing import FakeProvider

_MODEL = "gpt-4o-mini"
_WHOSE = {"tenant": "doctor", "user": "doctor"}
Way = Callable[[str], Any]


def litellm_stops() -> Result:
    """LiteLLM: blocking, awaited and streamed calls."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    warnings.simplefilter("ignore")
    import litellm

    from llm_budget_hooks.litellm import BudgetCallback

    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    litellm.suppress_debug_info = True

    def asked(url: str, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "Hello!"}]
        to = {"model": f"openai/{_MODEL}", "api_base": url, "api_key": "doctor", "num_retries": 0}
        return {**to, "messages": messages, "max_tokens": 20, "metadata": _WHOSE, **more}

    ways: dict[str, Way] = {
        "blocking": lambda url: litellm.completion(**asked(url)),
        "awaited": lambda url: asyncio.run(litellm.acompletion(**asked(url))),
        "streamed": lambda url: [*litellm.completion(**asked(url, stream=True))],
    }

    def through(engine: BudgetEngine, way: Way, url: str) -> Any:
        litellm.callbacks = [BudgetCallback(engine)]
        try:
            return way(url)
        finally:
            litellm.callbacks = []

    return _judged("LiteLLM", ways, through)


def langchain_stops() -> Result:
    """LangChain: invoked, awaited and streamed runs of a chat model."""
    if find_spec("langchain_openai") is None:
        return Result("LangChain", "left out", "it takes langchain-openai: pip install 'llm_budget_hooks[demo]'")
    from langchain_openai import ChatOpenAI

    from llm_budget_hooks.langchain import BudgetCallbackHandler

    logging.getLogger("langchain_core").setLevel(logging.CRITICAL)

    def model(url: str) -> Any:
        to: dict[str, Any] = {"model": _MODEL, "base_url": url, "api_key": "doctor"}
        return ChatOpenAI(**to, max_tokens=20, max_retries=0, stream_usage=True)

    def config(engine: BudgetEngine) -> dict[str, Any]:
        return {"callbacks": [BudgetCallbackHandler(engine)], "metadata": _WHOSE}

    ways: dict[str, Any] = {
        "invoked": lambda engine, url: model(url).invoke("Hello!", config(engine)),
        "awaited": lambda engine, url: asyncio.run(model(url).ainvoke("Hello!", config(engine))),
        "streamed": lambda engine, url: [*model(url).stream("Hello!", config(engine))],
    }
    return _judged("LangChain", ways, lambda engine, way, url: way(engine, url))


def _judged(what: str, ways: dict[str, Any], through: Callable[[BudgetEngine, Any, str], Any]) -> Result:
    with FakeProvider(output_tokens=10) as provider:
        wrong = {name: found for name, way in ways.items() if (found := _fault(provider, way, through))}
    if wrong:
        return Result(what, "failed", "; ".join(f"{name} calls {found}" for name, found in wrong.items()))
    return Result(what, "ok", f"{', '.join(ways)} calls are stopped before the provider, and booked when let in")


def _fault(provider: FakeProvider, way: Any, through: Callable[[BudgetEngine, Any, str], Any]) -> str:
    """What is wrong with one way to call; empty if nothing is."""
    provider.reset()
    with _engine("$0.000001") as tight:
        try:
            through(tight, way, provider.base_url)
        except BudgetExceeded:
            pass
        else:
            return "are not stopped"
    if provider.count:
        return "reach the provider although they are refused"
    with _engine("$1") as wide:
        through(wide, way, provider.base_url)
        wide.flush()
        (line,) = wide.status()
    booked = line.spent is not None and 0 < line.spent < Decimal(1)
    return "" if booked and len(provider.requests) == 1 else "are let in and not booked"


def _engine(limit: str) -> BudgetEngine:
    return BudgetEngine.open("memory://", {"budgets": [{"scope": "global", "limit": limit, "window": "day"}]})
