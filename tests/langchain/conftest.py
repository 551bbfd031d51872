"""A fake provider, models that call it over HTTP, and engines on the stores that need no server."""

from __future__ import annotations

import gc
import os
import ssl

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import litellm
import openai
import pytest
from langchain_openai import ChatOpenAI
from runs_under_test import Engines, Models

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.langchain import uninstall
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider


def pytest_configure(config: pytest.Config) -> None:
    """Leave out warnings of langchain-core's own making."""
    # Its async managers make the coroutines of other handlers before an inline one, such as ours, refuses.
    config.addinivalue_line("filterwarnings", "ignore:coroutine 'ahandle_event' was never awaited:RuntimeWarning")
    # langchain-openai adds up the details of several prompts' usage, and some details are null in OpenAI's answers.
    config.addinivalue_line("filterwarnings", "ignore:Unexpected type for token usage:UserWarning")


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    """A provider that counts what reaches it."""
    with FakeProvider(input_tokens=100, output_tokens=20) as running:
        yield running


@pytest.fixture
def no_hooks_left(litellm_clients: None) -> Iterator[None]:
    """Leave no hooks behind in this process."""
    yield
    for callback in list(litellm.callbacks):
        if isinstance(callback, BudgetCallback):
            callback.uninstall()
    litellm.callbacks = []
    uninstall()


@pytest.fixture(scope="session", autouse=True)
def frozen() -> None:
    """What was imported is not looked through each time that a test collects garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tls() -> ssl.SSLContext:
    """One for all clients: none of them encrypts, and to make one takes longer than most of the tests."""
    return httpx.create_ssl_context()


@pytest.fixture
def clients(tls: ssl.SSLContext) -> Iterator[dict[str, Any]]:
    """HTTP clients that keep no connection, since the event loops of a test are gone before their connections are."""
    alone: dict[str, Any] = {"headers": {"Connection": "close"}, "verify": tls}
    with openai.DefaultHttpxClient(**alone) as blocking:
        yield {"http_client": blocking, "http_async_client": openai.DefaultAsyncHttpxClient(**alone)}


@pytest.fixture
def models(provider: FakeProvider, clients: dict[str, Any]) -> Models:
    """Chat models that call the provider; without retries of their own unless a test wants them."""

    def make(**options: Any) -> ChatOpenAI:
        given = {"model": "gpt-4o-mini", "max_tokens": 50, "max_retries": 0, "timeout": 10, **clients, **options}
        return ChatOpenAI(base_url=provider.base_url, api_key="test", **given)

    return make


@pytest.fixture(params=["memory", "sqlite"])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engines]:
    """Engines with the budgets given, on each embedded store; `spend` counts the user's money generously."""
    made: list[BudgetEngine] = []

    def make(*budgets: dict[str, Any], **policy: Any) -> BudgetEngine:
        spend = {"name": "spend", "scope": "user", "limit": "$100", "window": "month"}
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/{len(made)}.db"
        made.append(BudgetEngine.open(url, {"budgets": [*budgets, spend], "store_timeout": "30s", **policy}))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
