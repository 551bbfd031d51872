"""Which names mean the same model, and whose bill a call is on: its provider's, whoever made the model."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from llm_budget_hooks.errors import PriceUnknown
from llm_budget_hooks.models.trail import Run
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.pricing.book import providers
from llm_budget_hooks.pricing.names import provider_of, readings, relaxed

_PASSED_ON: Final = frozenset({"custom_openai", "openai_like", "litellm", "litellm_proxy"})
"""What stands before a model's name where some server passes the call on, to whom is not said."""


@dataclass
class Owners:
    """The names of models, and LiteLLM's names of the providers that bill them, empty where nobody knows.

    Attributes:
        prices: knows the aliases of models.
    """

    prices: PriceBook
    _known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of(self, model: str) -> tuple[str, str]:
        """A model without provider and date, and whose it is as far as its name says."""
        found = self._known.get(model)
        if found is None:
            found = self._known[model] = self._bare(model), self._named(model) or self._listed(model)
        return found

    def of_run(self, run: Run, books: Container[str]) -> tuple[str, str]:
        """Same as `of`, for a call: the model that served it, and the provider that was asked.

        Args:
            run: the call.
            books: the models that the books name. Some bill a deployment by its own name, which is then the model.
        """
        asked = self.of(run.model)[0]
        name = self.of(run.served)[0] if run.served else asked
        if name not in books and asked in books:
            name = asked
        named = self._named(run.model)
        if named is None and run.served:
            named = self._named(run.served)
        return name, self._listed(run.model) or self.of(run.served)[1] if named is None else named

    def searched(self, run: Run) -> int:
        """What the web searches of a run cost, in nano-dollars, as far as its price is known."""
        try:
            fee = self.prices.price(run.served or run.model).at(run.at_ms).searches_nusd(run.searches)
        except PriceUnknown:
            return 0
        return min(fee, max(run.booked_nusd, 0))

    def _bare(self, model: str) -> str:
        try:
            price = self.prices.price(model)
            name = model if price.source == "genai-prices" else price.model
        except PriceUnknown:
            name = model
        bare = " ".join(name.rpartition("/")[2].lower().replace(": ", ":").split())
        return min((bare, *relaxed(bare)), key=len)

    def _named(self, model: str) -> str | None:
        """The provider that a name or what it is an alias of begins with; empty if it says that nobody knows.

        A model that the list has of another maker, asked for in OpenAI's protocol, is behind a server of somebody.
        """
        for name in (model, self._canonical(model)):
            for reading in readings(name):
                if reading.provider in _PASSED_ON:
                    return ""
                if reading.provider in self._providers:
                    made_by = self._listed(reading.name) if reading.provider == "openai" else ""
                    return reading.provider if made_by in ("", "openai") else ""
        return None

    def _listed(self, model: str) -> str:
        """Whose model a name without a provider is by the lists alone, as a policy's price names no provider."""
        try:
            return provider_of(self._lists.price(self._canonical(model)).provider)
        except PriceUnknown:
            return ""

    def _canonical(self, model: str) -> str:
        try:
            return self.prices.price(model).model
        except PriceUnknown:
            return model

    @cached_property
    def _lists(self) -> PriceBook:
        return PriceBook()

    @cached_property
    def _providers(self) -> frozenset[str]:
        return providers()
