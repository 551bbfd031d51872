"""What a model of langchain-litellm asks LiteLLM for: it announces a few of its fields, and sends more.

The model itself is found among the callers, since LangChain hands no handler the model that a run is of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.pricing.asked import deployed, priced_name, sample_nusd

_MODELS: Final = "langchain_core.language_models.chat_models"
_MAX_FRAMES: Final = 40
_FIELDS: Final = ("max_tokens", "n", "custom_llm_provider", "base_model")
_BOUNDS: Final = ("max_tokens", "max_completion_tokens")


@dataclass(slots=True)
class Route:
    """What LiteLLM is asked for, and where it may send that.

    Attributes:
        prices: know the names of models.
        asked: the parameters of the request, by name.
        model: what is priced: of a Router's group the dearest deployment, since any of them may serve.
        router: of the model, if it has one.
    """

    prices: PriceBook
    asked: Mapping[str, Any]
    model: str
    router: Any = None

    @classmethod
    def of(cls, params: Mapping[str, Any], prices: PriceBook) -> Route:
        """The route of the call that is announced by one of the callers.

        Args:
            params: the invocation parameters that are announced.
            prices: know the names of models.
        """
        model, said = _announced_by()
        fields = _fields(model)
        asked = {**params, **fields, **(getattr(model, "model_kwargs", None) or {}), **said}
        for name in ("model", "custom_llm_provider"):
            if name in said and said[name] is None:
                asked[name] = fields.get(name)
        router = getattr(model, "router", None)
        routed = max(
            _deployed(router, asked), key=lambda one: sample_nusd(prices, priced_name(prices, one)) or 0, default=asked
        )
        return cls(prices, routed, priced_name(prices, routed), router)

    def served(self, deployment: str | None) -> str | None:
        """The model of a Router's deployment; None if that is not known.

        The name that an answer gives is the one that the model was made with, whatever was asked for and served.
        """
        found = _deployment(self.router, deployment) if self.router is not None and deployment else None
        return None if found is None else priced_name(self.prices, deployed(found, {}, ()))


def _announced_by() -> tuple[Any, Mapping[str, Any]]:
    """The model that announces a run here, and the arguments of the call beside its messages."""
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame.f_globals.get("__name__") == _MODELS and "self" in frame.f_code.co_varnames:
            found = frame.f_locals
            return found.get("self"), found.get("kwargs") or {}
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None, {}


def _fields(model: Any) -> dict[str, Any]:
    found = {name: getattr(model, name, None) for name in _FIELDS}
    name = getattr(model, "model_name", None) or getattr(model, "model", None)
    return {**found, "model": name} if name else found


def _deployed(router: Any, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What the request is at each deployment that may serve it."""
    group = asked.get("model")
    if router is None or not isinstance(group, str):
        return
    given = {name: value for name, value in asked.items() if value is not None}
    for found in _group(router, group) or ():
        yield deployed(found, given, _BOUNDS)


def _group(router: Any, name: str) -> Any:
    # Versions of LiteLLM that have a registry warn of the Router's own methods.
    if hasattr(router, "registry"):
        return router.registry().deployments(name)
    return router.get_model_list(model_name=name)


def _deployment(router: Any, id: str) -> Any:
    if hasattr(router, "registry"):
        return router.registry().deployment_dict(id)
    return router.get_model_info(id=id)
