"""LiteLLM without its network, one fake provider for all tests, and no callback left behind."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import gc
import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import litellm
import pytest

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider

HERE = Path(__file__).parent
# The extra `proxy` pins an older LiteLLM, so its tests have an environment of their own, which .ci/run makes.
collect_ignore = [] if find_spec("apscheduler") else ["test_proxy.py", "test_preload.py"]
MakeEngine = Callable[..., BudgetEngine]
# LiteLLM's own: its logging queue is dropped when an event loop ends, and pydantic is asked to show mixed unions.
FOREIGN = (
    "ignore:coroutine .*(Logging|ServiceLogging|async_|close).* was never awaited:RuntimeWarning",
    "ignore:Pydantic serializer warnings:UserWarning",
    "ignore:Items? .* using the `ReadOnly` qualifier:UserWarning",
    "ignore:Accessing the 'model_(computed_)?fields' attribute:DeprecationWarning",
    "ignore:There is no current event loop:DeprecationWarning",
    "ignore:unclosed:ResourceWarning",
)
CALLS_10 = {"scope": "global", "meter": "calls", "limit": 10, "window": "day", "name": "calls"}
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for rule in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(rule))


def pytest_collection_finish() -> None:
    """Let no collection of garbage go through what the imports made: LiteLLM's own takes half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def running_provider() -> Iterator[FakeProvider]:
    with FakeProvider() as provider:
        yield provider


@pytest.fixture
def provider(running_provider: FakeProvider) -> Iterator[FakeProvider]:
    """The provider as it is by default, with nothing asked of it yet."""
    settings = {name: getattr(running_provider, name) for name in ("text", "usage", "output_tokens", "input_tokens")}
    running_provider.reset()
    yield running_provider
    running_provider.answer_hung()
    for name, value in settings.items():
        setattr(running_provider, name, value)


@pytest.fixture(autouse=True)
def _only_ours(litellm_clients: None) -> Iterator[None]:
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    logging.getLogger("LiteLLM Router").setLevel(logging.CRITICAL)
    litellm.num_retries = None
    yield
    for callback in list(litellm.callbacks):
        if isinstance(callback, BudgetCallback):
            callback.uninstall()
    litellm.callbacks = []


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/budget.db"


@pytest.fixture
def capped() -> Iterator[MakeEngine]:
    """Makes an engine that is registered with LiteLLM: ten calls a day if nothing else is asked."""
    made: list[BudgetEngine] = []

    def make(*budgets: dict[str, Any], url: str = "memory://", **policy: Any) -> BudgetEngine:
        rules = {"budgets": list(budgets or (CALLS_10, DOLLARS)), "store_timeout": "30s", **policy}
        engine = BudgetEngine.open(url, rules)
        made.append(engine)
        litellm.callbacks = [BudgetCallback(engine)]
        return engine

    yield make
    for engine in made:
        engine.close()
