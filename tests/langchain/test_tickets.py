"""Which LiteLLM request the hold of a LangChain run pays for: the one it makes, and no other."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import litellm
import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_litellm import ChatLiteLLM
from runs_under_test import CALLS, LITELLM, OPEN, WHO, Engines, Models, budget, config, cost
from typing_extensions import override

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.langchain import BudgetCallbackHandler
from llm_budget_hooks.litellm import BudgetCallback, BudgetRefused
from llm_budget_hooks.testing import FakeProvider

pytestmark = LITELLM


def _asked(provider: FakeProvider) -> dict[str, Any]:
    return {
        "model": "openai/gpt-4o-mini",
        "messages": [{"role": "user", "content": "hi"}],
        "api_base": provider.base_url,
        "api_key": "test",
        "max_tokens": 50,
    }


def test_a_stream_of_another_client_pays_for_no_litellm_call_beside_it(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 99}, OPEN)
    litellm.callbacks = [BudgetCallback(engine)]

    async def main() -> None:
        stream = models(stream_usage=True).astream("hi", config(BudgetCallbackHandler(engine)))
        await anext(stream)
        await litellm.acompletion(**_asked(provider), metadata={**WHO})
        async for _ in stream:
            pass

    asyncio.run(main())
    engine.flush()
    assert provider.count == 2
    assert budget(engine, "calls").spent == 2
    assert budget(engine, "spend").spent == 2 * cost(100, 20)
    assert not budget(engine, "open").reserved


def test_the_kill_switch_stops_a_litellm_call_beside_a_stream(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    litellm.callbacks = [BudgetCallback(engine)]
    stream = models(stream_usage=True).stream("hi", config(BudgetCallbackHandler(engine)))
    next(stream)
    engine.kill(tenant="acme", reason="stop", by="test")
    with pytest.raises(BudgetRefused):
        litellm.completion(**_asked(provider), metadata={**WHO})
    list(stream)
    assert provider.count == 1


@pytest.mark.parametrize("through", ["openai", "litellm"])
def test_a_call_that_timed_out_pays_for_no_later_litellm_call(
    through: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 99})
    litellm.callbacks = [BudgetCallback(engine)]
    lite = ChatLiteLLM(model="openai/gpt-4o-mini", api_base=provider.base_url, api_key="test", max_tokens=50)
    model = models() if through == "openai" else lite
    provider.hang_next()

    async def main() -> None:
        try:
            async with asyncio.timeout(None) as deadline:
                run = asyncio.ensure_future(asyncio.to_thread(provider.wait_for, 1))
                run.add_done_callback(lambda _: deadline.reschedule(0))
                await model.ainvoke("hi", config(BudgetCallbackHandler(engine)))
        except TimeoutError:
            pass
        await litellm.acompletion(**_asked(provider), metadata={**WHO})

    asyncio.run(main())
    engine.flush()
    assert provider.count == 2
    assert budget(engine, "calls").spent == 2


class _Unknown(BaseChatModel):
    """A model of nobody's package, which reaches its provider through LiteLLM."""

    asked: dict[str, Any]

    @property
    @override
    def _llm_type(self) -> str:
        return "unknown"

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer: Any = litellm.completion(**self.asked)
        text, used = answer.choices[0].message.content, answer.usage
        counts: Any = {"input_tokens": used.prompt_tokens, "output_tokens": used.completion_tokens}
        message = AIMessage(text, usage_metadata={**counts, "total_tokens": used.total_tokens})
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_a_model_of_an_unknown_package_may_go_through_litellm_and_is_billed_once(
    engines: Engines, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 99}, prices={"unknown": {"input": "$0.15", "output": "$0.60"}})
    litellm.callbacks = [BudgetCallback(engine)]
    _Unknown(asked=_asked(provider)).invoke("hi", config(BudgetCallbackHandler(engine)))
    engine.flush()
    assert provider.count == 1
    assert budget(engine, "calls").spent == 1
    assert budget(engine, "calls", "default", "").spent == 0


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Callable[[], BudgetEngine]]:
    """Engines on one store and namespace."""
    made: list[BudgetEngine] = []
    spend = {"name": "spend", "scope": "user", "limit": "$100", "window": "month"}
    rules = {"budgets": [{**CALLS, "limit": 99}, OPEN, spend], "store_timeout": "30s"}

    def make() -> BudgetEngine:
        made.append(BudgetEngine.open(f"sqlite:///{tmp_path}/b.db", rules))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": lambda model, run: model.invoke("hi", run),
    "ainvoke": lambda model, run: asyncio.run(model.ainvoke("hi", run)),
    "stream": lambda model, run: list(model.stream("hi", run)),
}


@pytest.mark.parametrize("copied", [False, True], ids=["a second engine", "a copy"])
@pytest.mark.parametrize("form", FORMS)
def test_a_call_is_billed_once_where_the_handlers_engine_shares_the_callbacks_balances(
    form: str, copied: bool, shared: Callable[[], BudgetEngine], provider: FakeProvider
) -> None:
    engine = shared()
    litellm.callbacks = [BudgetCallback(engine)]
    handler = pickle.loads(pickle.dumps(BudgetCallbackHandler(engine))) if copied else BudgetCallbackHandler(shared())
    lite = ChatLiteLLM(model="openai/gpt-4o-mini", api_base=provider.base_url, api_key="test", max_tokens=50)
    FORMS[form](lite, config(handler))
    engine.flush()
    handler.engine.close()
    assert provider.count == 1
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "calls").spent == 1
    assert budget(engine, "calls", "default", "").spent == 0
    assert not budget(engine, "open").reserved


def test_two_handlers_of_engines_that_share_balances_pay_for_one_request(
    shared: Callable[[], BudgetEngine], provider: FakeProvider
) -> None:
    engine, other = shared(), shared()
    litellm.callbacks = [BudgetCallback(engine)]
    run = config(BudgetCallbackHandler(engine))
    run["callbacks"].append(BudgetCallbackHandler(other))
    lite = ChatLiteLLM(model="openai/gpt-4o-mini", api_base=provider.base_url, api_key="test", max_tokens=50)
    stream = lite.stream("hi", run)
    next(stream)
    litellm.completion(**_asked(provider), metadata={**WHO})
    list(stream)
    engine.flush()
    assert provider.count == 2
    assert budget(engine, "calls").spent == 2
    assert budget(engine, "spend").spent == 2 * cost(100, 20)


def test_engines_of_other_namespaces_and_stores_share_nothing(
    shared: Callable[[], BudgetEngine], tmp_path: Path
) -> None:
    engine, url = shared(), f"sqlite:///{tmp_path}/b.db"
    with (
        BudgetEngine.open(url, {"budgets": [], "namespace": "other"}) as other,
        BudgetEngine.open("memory://", {"budgets": []}) as one,
        BudgetEngine.open("memory://", {"budgets": []}) as two,
    ):
        assert engine.shares(shared())
        assert not engine.shares(other)
        assert not engine.shares(one)
        assert not one.shares(two)
        assert one.shares(one)
