"""One hold however many see a call: several handlers, several engines on one store, LiteLLM's callbacks beside."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litellm
import openai
import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_litellm import ChatLiteLLM, LiteLLMEmbeddings
from langgraph.graph import START, MessagesState, StateGraph
from runs_under_test import CALLS, LITELLM, OPEN, UTTERANCES, WHO, Engines, Models, budget, collected, config, cost

from llm_budget_hooks import BudgetEngine, Call, ConfigurationError, Usage
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetedEmbeddings, BudgetRefused, install, uninstall
from llm_budget_hooks.langchain.bounded import Bounded
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider

pytestmark = LITELLM


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": lambda model, run: model.invoke("hi", run),
    "ainvoke": lambda model, run: asyncio.run(model.ainvoke("hi", run)),
    "stream": lambda model, run: list(model.stream("hi", run)),
    "astream": lambda model, run: asyncio.run(collected(model.astream("hi", run))),
    "batch": lambda model, run: model.batch(["hi"], run),
    "abatch": lambda model, run: asyncio.run(model.abatch(["hi"], run)),
    "chain": lambda model, run: (RunnableLambda(lambda x: x) | model).invoke("hi", run),
    "async_lambda": lambda model, run: asyncio.run(RunnableLambda(lambda x: model.invoke(x)).ainvoke("hi", run)),
}


@pytest.fixture
def lite(provider: FakeProvider) -> ChatLiteLLM:
    """A model that goes through LiteLLM."""
    return ChatLiteLLM(model="openai/gpt-4o-mini", api_base=provider.base_url, api_key="test", max_tokens=50)


@pytest.mark.parametrize("form", FORMS)
def test_b119_litellm_under_the_handler_is_held_and_billed_once(
    form: str, engines: Engines, lite: ChatLiteLLM, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 2}, OPEN)
    litellm.callbacks = [BudgetCallback(engine)]
    run = config(BudgetCallbackHandler(engine))
    FORMS[form](lite, run)
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "calls").spent == 1
    assert budget(engine, "spend", "default", "").spent == 0
    assert not budget(engine, "open").reserved
    FORMS[form](lite, run)
    with pytest.raises(BudgetRefused):
        FORMS[form](lite, run)
    assert provider.count == 2


def test_direct_litellm_calls_beside_a_stream_are_billed_too(
    engines: Engines, lite: ChatLiteLLM, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    litellm.callbacks = [BudgetCallback(engine)]

    def direct() -> None:
        litellm.completion(
            "openai/gpt-4o-mini",
            messages=[{"role": "user", "content": "hi"}],
            api_base=provider.base_url,
            api_key="test",
            max_tokens=50,
        )

    with engine.utterance(**WHO):
        direct()
        stream = lite.stream("hi")
        next(stream)
        direct()
        list(stream)
        direct()
    engine.flush()
    assert provider.count == 4
    assert budget(engine, "spend").spent == 4 * cost(100, 20)
    assert not budget(engine, "open").reserved


def test_litellms_lost_connections_are_charged_and_its_errors_are_not(
    engines: Engines, lite: ChatLiteLLM, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    lite = lite.model_copy(update={"max_retries": 0})
    provider.fail_next(status=400)
    with pytest.raises(litellm.BadRequestError):
        lite.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == 0
    provider.cut_next(20)
    with pytest.raises(Exception, match="onnection"):
        lite.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent > 0
    assert not budget(engine, "open").reserved


def _time_out() -> None:
    raise TimeoutError


@pytest.mark.parametrize("form", ["invoke", "stream", "ainvoke", "astream"])
@pytest.mark.parametrize("through", ["openai", "litellm"])
def test_what_the_caller_was_handling_says_nothing_about_the_call(
    through: str, form: str, engines: Engines, models: Models, lite: ChatLiteLLM, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    model = models(stream_usage=True) if through == "openai" else lite.model_copy(update={"max_retries": 0})
    run = config(BudgetCallbackHandler(engine))

    async def awaited() -> None:
        try:
            _time_out()
        except TimeoutError:
            if form == "ainvoke":
                await model.ainvoke("hi", run)
            async for _ in model.astream("hi", run):
                pass

    def blocking() -> None:
        try:
            _time_out()
        except TimeoutError:
            _ = model.invoke("hi", run) if form == "invoke" else list(model.stream("hi", run))

    provider.fail_next(status=400)
    with pytest.raises(openai.BadRequestError):
        asyncio.run(awaited()) if form.startswith("a") else blocking()
    assert provider.count == 1
    assert budget(engine, "spend").spent == 0
    assert not budget(engine, "open").reserved


def test_what_the_caller_was_handling_says_nothing_about_embeddings(engines: Engines, provider: FakeProvider) -> None:
    engine = engines(OPEN)
    inner = LiteLLMEmbeddings(model="openai/text-embedding-3-small", api_base=provider.base_url, api_key="test")

    def handling() -> None:
        try:
            _time_out()
        except TimeoutError:
            BudgetedEmbeddings(inner, engine).embed_query("hi")

    provider.fail_next(status=400)
    with engine.utterance(**WHO), pytest.raises(openai.BadRequestError):
        handling()
    assert provider.count == 1
    assert budget(engine, "spend").spent == 0
    assert not budget(engine, "open").reserved


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream", "chain"])
def test_two_handlers_of_one_engine_bill_once(form: str, engines: Engines, models: Models) -> None:
    engine = engines({**CALLS, "limit": 1}, OPEN)
    run = config(BudgetCallbackHandler(engine))
    run["callbacks"].append(BudgetCallbackHandler(engine))
    model = models(stream_usage=True, callbacks=[BudgetCallbackHandler(engine)])
    FORMS[form](model, run)
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "calls").spent == 1
    assert not budget(engine, "open").reserved


def test_two_engines_on_one_store_bill_once(models: Models, tmp_path: Path) -> None:
    policy = {
        "budgets": [{**CALLS, "limit": 9}, OPEN, {"name": "spend", "scope": "user", "limit": "$1", "window": "day"}]
    }
    with (
        BudgetEngine.open(f"sqlite:///{tmp_path}/b.db", policy) as one,
        BudgetEngine.open(f"sqlite:///{tmp_path}/b.db", policy) as two,
    ):
        run = config(BudgetCallbackHandler(one))
        run["callbacks"].append(BudgetCallbackHandler(two))
        models().invoke("hi", run)
        assert budget(one, "spend").spent == cost(100, 20)
        assert budget(one, "calls").spent == 1


def test_b133_copies_work_against_the_same_budgets(models: Models, tmp_path: Path) -> None:
    policy = {"budgets": [{**CALLS, "limit": 3}]}
    with BudgetEngine.open(f"sqlite:///{tmp_path}/b.db", policy) as engine:
        handler = BudgetCallbackHandler(engine)
        copies = [handler, copy.copy(handler), copy.deepcopy(handler), pickle.loads(pickle.dumps(handler))]
        for each in copies[:3]:
            models().invoke("hi", config(each))
        with pytest.raises(BudgetRefused):
            models().invoke("hi", config(copies[3]))
        copies[3].engine.close()


def test_b133_a_handler_that_cannot_travel_says_so(engines: Engines) -> None:
    engine = BudgetEngine.open("memory://", {"budgets": []})
    with pytest.raises(ConfigurationError):
        pickle.dumps(BudgetCallbackHandler(engine))


@pytest.mark.parametrize("form", FORMS)
def test_b127_install_caps_without_callbacks_and_once(
    form: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 1}, {**UTTERANCES, "limit": 9}, OPEN)
    for _ in range(3):
        install(engine)
    model = models(stream_usage=True)
    FORMS[form](model, {"metadata": WHO})
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "utterances").spent == 1
    with pytest.raises(BudgetRefused):
        FORMS[form](model, {"metadata": WHO})
    uninstall()
    FORMS[form](model, {"metadata": WHO})
    assert provider.count == 2
    assert budget(engine, "calls").spent == 1


def test_install_reaches_raw_threads(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine, model = engines({**CALLS, "limit": 1}), models()
    install(engine)
    outcomes: list[Any] = []

    def work() -> None:
        try:
            outcomes.append(model.invoke("hi", {"metadata": WHO}).content)
        except BudgetRefused as error:
            outcomes.append(error)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [isinstance(outcome, BudgetRefused) for outcome in outcomes] == [False, True]
    assert provider.count == 1


def test_install_and_a_handler_of_ones_own_bill_once(engines: Engines, models: Models) -> None:
    engine = engines({**CALLS, "limit": 9})
    install(engine)
    with engine.utterance(**WHO):
        (RunnableLambda(lambda x: x) | models()).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "calls").spent == 1


def test_a_second_engine_cannot_be_installed(engines: Engines) -> None:
    install(engines())
    with pytest.raises(ConfigurationError, match="uninstall"):
        install(engines())


@pytest.mark.parametrize("form", FORMS)
def test_an_utterance_caps_what_is_in_it_without_callbacks(
    form: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines({**CALLS, "limit": 2}, {**UTTERANCES, "limit": 1}), models(stream_usage=True)
    with engine.utterance(**WHO) as scope:
        FORMS[form](model, {})
        FORMS[form](model, {})
    assert scope.spent == budget(engine, "spend").spent == 2 * cost(100, 20)
    assert budget(engine, "utterances").spent == 1
    with engine.utterance(**WHO), pytest.raises(BudgetRefused):
        FORMS[form](model, {})
    FORMS[form](model, {})
    assert provider.count == 3


def test_engines_are_not_kept_alive_by_their_runs(models: Models) -> None:
    engine = BudgetEngine.open("memory://", {"budgets": [{**CALLS, "limit": 9}]})
    install(engine)
    contextvars.copy_context().run(models().invoke, "hi", {"metadata": WHO})
    uninstall()
    seen = weakref.ref(engine)
    del engine
    gc.collect()
    assert seen() is None


def test_answers_are_not_kept_by_their_runs(engines: Engines, models: Models) -> None:
    handler = BudgetCallbackHandler(engines({**CALLS, "limit": 9}))
    seen = weakref.ref(models().invoke("hi", config(handler)))
    gc.collect()
    assert seen() is None


def test_what_is_known_of_runs_is_bounded_and_what_is_used_stays() -> None:
    known: Bounded[int, str] = Bounded(10)
    for number in range(100):
        known.put(number, "x")
        assert known.get(0) == "x"
        assert known.get(number) == "x"
        assert len(known) <= 10
    assert 0 in known
    assert 1 not in known
    assert known.pop(0) == "x"
    assert known.pop(0) is None
    assert 0 not in known


def test_what_is_known_of_runs_survives_many_threads() -> None:
    known: Bounded[int, int] = Bounded(1000)
    lost: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 5000):
            known.put(number, number)
            if known.get(number) != number or known.pop(number) != number:
                lost.append(number)

    threads = [threading.Thread(target=work, args=(10_000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost


def test_b128_loops_in_threads_share_a_handler(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines(OPEN)
    handler = BudgetCallbackHandler(engine)

    def work() -> None:
        async def main() -> None:
            model = models()
            await asyncio.gather(*(model.ainvoke("hi", config(handler)) for _ in range(8)))

        asyncio.run(main())

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert provider.count == 40
    assert budget(engine, "spend").spent == 40 * cost(100, 20)
    assert not budget(engine, "open").reserved


def test_b130_a_running_loop_does_not_mind_either_form(engines: Engines, models: Models) -> None:
    engine = engines()
    handler, model = BudgetCallbackHandler(engine), models()

    async def cell() -> None:
        model.invoke("hi", config(handler))
        await model.ainvoke("hi", config(handler))

    asyncio.run(cell())
    assert budget(engine, "spend").spent == 2 * cost(100, 20)


def _reserve(engine: BudgetEngine, provider: FakeProvider) -> None:
    engine.settle(engine.reserve(Call(model="gpt-4o-mini", tenant="victim")), usage=Usage(output_tokens=20))


def _scoped(engine: BudgetEngine, provider: FakeProvider) -> None:
    with engine.utterance(tenant="victim", user="victim"):
        _reserve(engine, provider)


def _litellm(engine: BudgetEngine, provider: FakeProvider) -> None:
    litellm.completion(
        "openai/gpt-4o-mini",
        messages=[{"role": "user", "content": "hi"}],
        api_base=provider.base_url,
        api_key="test",
        max_tokens=50,
        metadata={"tenant": "victim", "user": "victim"},
    )


@pytest.mark.parametrize("direct", [_reserve, _scoped, _litellm])
@pytest.mark.parametrize("way", ["lambda", "batch", "node", "anode", "tool"])
def test_calls_past_langchain_inside_a_run_are_those_of_its_utterance(
    way: str, direct: Callable[..., None], engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines({**UTTERANCES, "limit": 9}, {**CALLS, "limit": 99}), models()
    litellm.callbacks = [BudgetCallback(engine)]
    handler = BudgetCallbackHandler(engine)

    def work(inputs: Any) -> Any:
        model.invoke("hi")
        direct(engine, provider)
        return {}

    @tool
    def look_up(what: str) -> str:
        """Look something up."""
        return str(work(what))

    graph = StateGraph(MessagesState)
    graph.add_node("node", work)
    graph.add_edge(START, "node")
    ways: dict[str, Callable[[Any], Any]] = {
        "lambda": lambda run: RunnableLambda(work).invoke("hi", run),
        "batch": lambda run: RunnableLambda(work).batch(["hi"], [run]),
        "node": lambda run: graph.compile().invoke({"messages": ["hi"]}, run),
        "anode": lambda run: asyncio.run(graph.compile().ainvoke({"messages": ["hi"]}, run)),
        "tool": lambda run: look_up.invoke("x", run),
    }
    for user in ("u1", "u2"):
        ways[way](config(handler, user=user))
        engine.flush()
        assert budget(engine, "calls", user=user).spent == 2
        assert budget(engine, "utterances", user=user).spent == 1
        assert budget(engine, "spend", user=user).spent > cost(100, 20)
    assert budget(engine, "calls", "victim", "victim").spent == 0
    assert budget(engine, "calls", "victim", "").spent == 0
    engine.settle(engine.reserve(Call(model="gpt-4o-mini", tenant="acme", user="u3")), cost=0)
    assert budget(engine, "calls", user="u3").spent == 1
