"""Embeddings under budgets. LangChain tells its callbacks nothing about embeddings, so they are wrapped.

What retrievers and rerankers cost beyond that cannot be seen: a retriever says that it ran, not what it used, and
rerankers fire no events at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.embeddings import Embeddings
from typing_extensions import override

from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.engine.causes import begun
from llm_budget_hooks.engine.tickets import open_ticket
from llm_budget_hooks.errors import BudgetExceeded, ConfigurationError
from llm_budget_hooks.langchain.opened import http_status
from llm_budget_hooks.langchain.refusal import refused
from llm_budget_hooks.langchain.runs import Root, root_here
from llm_budget_hooks.langchain.tokens import input_bound, likely_output
from llm_budget_hooks.models import Call, Usage

_NAMES = ("model", "model_name", "model_id")


class BudgetedEmbeddings(Embeddings):
    """Embeddings that reserve before and settle after each request. Everything else is the inner ones'.

    They belong to the surrounding `engine.utterance()`, or to the run of a `BudgetCallbackHandler` that they are in.
    Providers' counts do not reach LangChain here, so what is booked is counted from the texts, and marked as a guess.

    Attributes:
        inner: what embeds.
        engine: whose budgets count.
        model: what is priced.

    Args:
        inner: what embeds.
        engine: whose budgets count.
        model: the model's name; None: what the inner embeddings call their model.

    Raises:
        ConfigurationError: the inner embeddings name no model.
    """

    def __init__(self, inner: Embeddings, engine: BudgetEngine, *, model: str | None = None) -> None:
        named = [getattr(inner, name, None) for name in _NAMES]
        found = model or next((name for name in named if isinstance(name, str) and name), None)
        if found is None:
            raise ConfigurationError("The embeddings name no model; say BudgetedEmbeddings(..., model=...).")
        self.inner = inner
        self.engine = engine
        self.model = found

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts.

        Raises:
            BudgetExceeded: a budget said no; nothing was sent.
        """
        with self._held(texts):
            return self.inner.embed_documents(texts)

    @override
    def embed_query(self, text: str) -> list[float]:
        """Embed one text; raises as `embed_documents` does."""
        with self._held([text]):
            return self.inner.embed_query(text)

    @override
    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Same as `embed_documents`, awaited; the store is asked inline, as by the handler."""
        with self._held(texts):
            return await self.inner.aembed_documents(texts)

    @override
    async def aembed_query(self, text: str) -> list[float]:
        """Same as `embed_query`, awaited."""
        with self._held([text]):
            return await self.inner.aembed_query(text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "engine", "model"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @contextmanager
    def _held(self, texts: Sequence[str]) -> Iterator[None]:
        held, number = self._reserve(texts), begun()
        ticket = open_ticket(self.engine)
        try:
            yield
        except BaseException as error:
            if http_status(error, number) is None:
                self.engine.settle(held)
            else:
                self.engine.release(held)
            raise
        finally:
            ticket.close()
        self.engine.settle(held, usage=Usage(input_tokens=likely_output(texts), exact=False))

    def _reserve(self, texts: Sequence[str]) -> Reservation:
        root = root_here(self.engine)
        call = self._call(texts, root)
        try:
            return root.reserve(self.engine, call) if root is not None else self.engine.reserve(call)
        except BudgetExceeded as error:
            raise refused(error) from None

    def _call(self, texts: Sequence[str], root: Root | None) -> Call:
        return Call(
            model=self.model,
            tenant=root.tenant if root is not None else None,
            user=root.user if root is not None else None,
            feature=root.feature if root is not None else None,
            input_tokens=input_bound(texts, {}, self.model),
            max_output_tokens=0,
        )
