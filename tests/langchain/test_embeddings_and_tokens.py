"""Embeddings under budgets, and tokens counted without a tokenizer: a bound is a bound."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from runs_under_test import CALLS, OPEN, UTTERANCES, WHO, Engines, Models, budget, config

from llm_budget_hooks import BudgetEngine, ConfigurationError
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetedEmbeddings, BudgetRefused
from llm_budget_hooks.langchain.tokens import input_bound, likely_output
from llm_budget_hooks.testing import FakeProvider

PATH = "/v1/embeddings"


@pytest.fixture
def inner(provider: FakeProvider, clients: dict[str, Any]) -> OpenAIEmbeddings:
    """Embeddings over HTTP, without a tokenizer, which would be fetched."""
    return OpenAIEmbeddings(
        base_url=provider.base_url,
        api_key="test",
        model="text-embedding-3-small",
        check_embedding_ctx_length=False,
        max_retries=0,
        **clients,
    )


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("query", [False, True])
def test_embeddings_are_held_settled_and_refused(
    query: bool, awaited: bool, engines: Engines, inner: OpenAIEmbeddings, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 1}, OPEN)
    wrapped = BudgetedEmbeddings(inner, engine)

    def embed() -> Any:
        if query:
            return asyncio.run(wrapped.aembed_query("hello")) if awaited else wrapped.embed_query("hello")
        return asyncio.run(wrapped.aembed_documents(["hello"])) if awaited else wrapped.embed_documents(["hello"])

    with engine.utterance(**WHO):
        assert embed()
        assert 0 < budget(engine, "spend").spent < 0.0001
        assert not budget(engine, "open").reserved
        with pytest.raises(BudgetRefused):
            embed()
    assert provider.count_for(PATH) == 1


@pytest.mark.parametrize("failure", ["status", "cut"])
def test_embeddings_that_fail(failure: str, engines: Engines, inner: OpenAIEmbeddings, provider: FakeProvider) -> None:
    if failure == "status":
        provider.fail_next(status=429)
    else:
        provider.cut_next()
    engine = engines(OPEN)
    with engine.utterance(**WHO), pytest.raises(Exception, match=r"429|onnection"):
        BudgetedEmbeddings(inner, engine).embed_query("hello")
    assert (budget(engine, "spend").spent > 0) is (failure == "cut")
    assert not budget(engine, "open").reserved


def test_a_retriever_in_a_chain_belongs_to_its_root(
    engines: Engines, inner: OpenAIEmbeddings, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**UTTERANCES, "limit": 1}, {**CALLS, "limit": 9})
    store = InMemoryVectorStore(BudgetedEmbeddings(inner, engine))
    with engine.utterance(tenant="loader"):
        store.add_documents([Document("hello")])
    handler = BudgetCallbackHandler(engine)
    chain = store.as_retriever() | RunnableLambda(lambda found: found[0].page_content) | models()
    chain.invoke("hi", config(handler))
    assert budget(engine, "calls").spent == 2
    assert budget(engine, "utterances").spent == 1
    with pytest.raises(BudgetRefused):
        chain.invoke("hi", config(handler))


def test_a_root_that_was_refused_gets_no_embeddings(engines: Engines, inner: OpenAIEmbeddings, models: Models) -> None:
    engine = engines({**CALLS, "limit": 1, "models": ["gpt-4o"]})
    model, wrapped = models(model="gpt-4o"), BudgetedEmbeddings(inner, engine)

    def work(_: str) -> Any:
        model.invoke("hi")
        with pytest.raises(BudgetRefused):
            model.invoke("hi")
        return wrapped.embed_query("hi")

    with pytest.raises(BudgetRefused):
        RunnableLambda(work).invoke("hi", config(BudgetCallbackHandler(engine)))


def test_a_root_that_was_refused_may_ask_for_cheap_embeddings(
    engines: Engines, inner: OpenAIEmbeddings, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 1, "models": ["gpt-4o"]}, tiers={"cheap": ["text-embedding-3-small"]})
    model, wrapped = models(model="gpt-4o"), BudgetedEmbeddings(inner, engine)

    def work(_: str) -> Any:
        model.invoke("hi")
        with pytest.raises(BudgetRefused):
            model.invoke("hi")
        return wrapped.embed_query("hi")

    assert RunnableLambda(work).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert [request.model for request in provider.requests] == ["gpt-4o", "text-embedding-3-small"]


def test_a_root_whose_embeddings_were_refused_gets_no_model(
    engines: Engines, inner: OpenAIEmbeddings, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 1, "models": ["text-*"]})
    model, wrapped = models(model="gpt-4o"), BudgetedEmbeddings(inner, engine)

    def work(_: str) -> Any:
        wrapped.embed_query("hi")
        with pytest.raises(BudgetRefused):
            wrapped.embed_query("hi")
        return model.invoke("hi")

    with pytest.raises(BudgetRefused):
        RunnableLambda(work).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert provider.count == 1


def test_everything_else_is_the_inner_ones(engines: Engines, inner: OpenAIEmbeddings, tmp_path: Path) -> None:
    assert BudgetedEmbeddings(inner, engines()).chunk_size == inner.chunk_size
    with pytest.raises(ConfigurationError, match="model"):
        BudgetedEmbeddings(DeterministicFakeEmbedding(size=3), engines())
    with BudgetEngine.open(f"sqlite:///{tmp_path}/p.db", {}) as engine:
        wrapped = BudgetedEmbeddings(DeterministicFakeEmbedding(size=3), engine, model="text-embedding-3-small")
        assert pickle.loads(pickle.dumps(wrapped)).model == wrapped.model


TEXTS = st.text(max_size=60)
MESSAGES = st.lists(
    st.one_of(
        TEXTS.map(HumanMessage),
        TEXTS.map(SystemMessage),
        TEXTS.map(lambda text: HumanMessage([{"type": "text", "text": text}])),
        TEXTS.map(lambda text: AIMessage("", tool_calls=[{"name": "f", "args": {"x": text}, "id": "c1"}])),
        TEXTS.map(lambda text: ToolMessage(text, tool_call_id="c1")),
    ),
    max_size=4,
)


def look_up(what: str) -> str:
    """Look something up in a place that has it."""
    return what


@settings(deadline=None, max_examples=60)  # the first call loads the tokenizer
@given(messages=MESSAGES, tools=st.booleans())
def test_the_bound_is_never_below_a_tokenizers_count(messages: list[Any], tools: bool) -> None:
    from litellm import token_counter

    declared = [convert_to_openai_tool(look_up)] if tools else []
    counted = token_counter(model="gpt-4o-mini", messages=[as_openai(m) for m in messages], tools=declared or None)
    bound = input_bound(messages, {"tools": declared}, "gpt-4o-mini")
    assert bound is not None
    assert bound >= counted


def as_openai(message: Any) -> dict[str, Any]:
    """A message as it is sent."""
    from langchain_core.messages import convert_to_openai_messages

    found = convert_to_openai_messages(message)
    assert isinstance(found, dict)
    return found


def test_tools_images_and_other_parts_count() -> None:
    def bound(content: Any, model: str = "gpt-4o", **params: Any) -> int | None:
        return input_bound([HumanMessage(content)], params, model)

    plain = bound("hi")
    assert plain is not None
    tools = [{"name": "f", "description": "x" * 1000}]
    assert bound("hi", tools=tools) >= plain + len(json.dumps(tools))
    picture = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    assert bound(picture) >= 5000
    assert bound(picture, "gpt-4o-mini") >= 48_169
    assert bound([{"type": "file", "file": {"file_id": "f"}}]) is None
    assert bound("ü" * 100) >= plain + 198
    assert bound([{"type": "tool_result", "content": [{"type": "text", "text": "x" * 500}]}]) >= 500
    assert bound(["x" * 500]) >= 500


def test_words_that_came_are_counted_no_fewer_than_they_are() -> None:
    assert likely_output(["ok " * 400]) >= 400
    assert likely_output(["1 " * 400]) >= 400
    assert likely_output([]) == 0
