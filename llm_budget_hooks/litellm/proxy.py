"""The LiteLLM proxy, capped by one line of its config.yaml.

.. code-block:: yaml

    litellm_settings:
      callbacks: llm_budget_hooks.litellm.proxy.budget_callback

The engine comes from the environment (`BudgetEngine.from_env`) and connects in each worker when it is first asked.
Who pays is what the proxy authenticated, never what the request says. The hold is taken before routing, where a 429
cools no deployment down, and handed to the first attempt; further attempts take holds of their own.
"""

# ruff: noqa: ARG002 - LiteLLM passes all of a hook's arguments by keyword

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, Self

from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.errors import BudgetError, BudgetExceeded
from llm_budget_hooks.litellm.attempts import Attempt, Ending
from llm_budget_hooks.litellm.callback import BudgetCallback
from llm_budget_hooks.litellm.calls import call_of
from llm_budget_hooks.litellm.media import cost_of_hit, dollars
from llm_budget_hooks.litellm.requests import PROXY_REQUEST, ProxyRequest, new_utterance
from llm_budget_hooks.litellm.usage import served_model, usage_of
from llm_budget_hooks.models import Call

_log = logging.getLogger("llm_budget_hooks")
_KEY: Final = "llm_budget_request"
_ROUTED: Final = frozenset({
    "completion", "acompletion", "text_completion", "atext_completion", "embeddings", "embedding", "aembedding",
    "responses", "aresponses", "image_generation", "aimage_generation", "speech", "aspeech", "transcription",
    "atranscription", "audio_transcription", "rerank", "arerank", "anthropic_messages",
})  # fmt: skip
_PASSED: Final = frozenset({"pass_through_endpoint", "allm_passthrough_route"})
_SYNONYMS: Final = {"embeddings": "embedding", "audio_transcription": "transcription"}
_OWN_SCOPES: Final = ("user", "tenant", "answer")


class ProxyRefused(BudgetExceeded):
    """A refusal as the proxy answers it: HTTP 429 or 503, not to be retried by the client.

    Attributes:
        status_code: the HTTP status.
        type: ``budget_exceeded``, the error's type in the body.
        headers: Retry-After and x-should-retry.
        provider_specific_fields: which budget, how much and when again, for the body.
    """

    type = "budget_exceeded"
    param = None
    status_code: int
    headers: dict[str, str]
    provider_specific_fields: dict[str, Any]
    message: str

    @classmethod
    def _rebuild(cls, message: str, facts: Mapping[str, Any]) -> Self:
        made = super()._rebuild(message, facts)
        made.status_code = made.http_status
        made.headers = headers_of(made)
        made.provider_specific_fields = told(made)
        made.message = message if made.scope in _OWN_SCOPES else made.public_message
        return made

    @property
    def openai_code(self) -> str:
        """The refusal's code, in the body."""
        return self.code


def headers_of(refusal: BudgetExceeded) -> dict[str, str]:
    """What a client needs to wait as long as it has to, and not to ask thrice."""
    headers = {"x-should-retry": "false"}
    if refusal.retry_after is not None:
        headers["retry-after"] = str(math.ceil(refusal.retry_after))
    return headers


def told(refusal: BudgetExceeded) -> dict[str, Any]:
    """What the body says of a refusal: figures only of budgets that are the client's own."""
    facts = {
        "code": refusal.code,
        "budget": refusal.budget,
        "scope": refusal.scope,
        "retry_after": refusal.retry_after,
        "resets_at": refusal.resets_at.isoformat() if refusal.resets_at else None,
    }
    if refusal.scope in _OWN_SCOPES:
        figures = ("limit", "spent", "reserved", "requested", "available")
        facts.update((name, _shown(getattr(refusal, name))) for name in figures)
    return facts


def _shown(amount: Decimal | int | None) -> str | int | None:
    return f"{amount:f}" if isinstance(amount, Decimal) else amount


class _PROXY_BudgetCallback(BudgetCallback):  # noqa: N801 - LiteLLM spares classes of this name from a client's "no-log"
    """`BudgetCallback` for a proxy. LiteLLM calls the hooks of a proxy only where this very class defines them."""

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> None:
        """Take the hold before routing.

        Raises:
            ProxyRefused: a budget said no.
        """
        request = self._request(user_api_key_dict, data)
        PROXY_REQUEST.set(request)
        if call_type not in _ROUTED and call_type not in _PASSED:
            return
        try:
            request.hold = await self.budget_engine.areserve(self._call(call_type, data))
        except BudgetExceeded as refusal:
            raise ProxyRefused.of(refusal) from None
        logged = data.get("litellm_logging_obj")
        if logged is not None:
            logged.model_call_details[_KEY] = request

    async def async_post_call_failure_hook(
        self,
        request_data: dict[str, Any],
        original_exception: Exception,
        user_api_key_dict: Any,
        traceback_str: str | None = None,
    ) -> Any:
        """Give back a hold that no attempt has taken, and answer a refusal of a later attempt with 429."""
        request = PROXY_REQUEST.get()
        hold = request.take() if request is not None else None
        if hold is not None:
            await self.budget_engine.arelease(hold)
        if isinstance(original_exception, BudgetExceeded) and not isinstance(original_exception, ProxyRefused):
            from fastapi import HTTPException

            refusal = ProxyRefused.of(original_exception)
            detail = {"error": {"message": refusal.message, "type": refusal.type, **told(refusal)}}
            return HTTPException(refusal.http_status, detail, headers_of(refusal))
        return None

    async def async_post_call_success_hook(self, data: dict[str, Any], user_api_key_dict: Any, response: Any) -> Any:
        """Book an answer from the cache, for which no attempt was made."""
        request = PROXY_REQUEST.get()
        hold = request.take() if request is not None else None
        if hold is not None:
            await self.budget_engine.asettle(hold, cost=0)
        return response

    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: Any,
        response: Any,
        request_headers: dict[str, str] | None = None,
        litellm_call_info: dict[str, object] | None = None,
    ) -> dict[str, str] | None:
        """Tell the client what is left of its own budgets, in dollars."""
        request = PROXY_REQUEST.get() or self._request(user_api_key_dict, data)
        try:
            found = await self.budget_engine.astatus(tenant=request.tenant or "", user=request.user or "")
        except BudgetError as error:
            _log.warning("What is left could not be read: %s", type(error).__name__)
            return None
        left = [s.available for s in found if s.scope != "global" and s.meter == "usd" and s.available is not None]
        return {"x-budget-remaining": f"{min(left):f}"} if left else None

    async def async_log_success_event(
        self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Settle what runs past all entry points: pass-through, and streams from the cache."""
        request = kwargs.get(_KEY)
        hold = request.take() if isinstance(request, ProxyRequest) else None
        if hold is None:
            return
        await _attempt_of(self.budget_engine, hold).aend(_passed_ending(kwargs, response_obj))

    async def async_log_failure_event(
        self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Nothing: a later attempt may succeed, and `async_post_call_failure_hook` comes at the end."""

    def log_success_event(self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Nothing: a proxy's calls are async."""

    def _request(self, authenticated: Any, data: Mapping[str, Any]) -> ProxyRequest:
        mapping = self.budget_engine.policy.identity
        stated = data.get("metadata")
        stated = stated if isinstance(stated, Mapping) else {}
        named = {name: _text(stated.get(name)) for name in ("feature", "step", "utterance")}
        return ProxyRequest(
            tenant=_first(authenticated, mapping.tenant),
            user=_first(authenticated, mapping.user),
            utterance=named["utterance"] or new_utterance(),
            feature=named["feature"],
            step=named["step"],
        )

    def _call(self, call_type: str, data: Mapping[str, Any]) -> Call:
        entry = _SYNONYMS.get(call_type, call_type)
        return call_of(self.budget_engine, entry, {**data, **_deployed(data.get("model"))})


def _attempt_of(engine: BudgetEngine, hold: Reservation) -> Attempt:
    attempt = Attempt(engine, "completion", hold.call)
    attempt.reservation = hold
    return attempt


def _passed_ending(kwargs: Mapping[str, Any], response: Any) -> Ending:
    if kwargs.get("cache_hit") is True:
        return Ending(cost=cost_of_hit(kwargs))
    usage = usage_of(response)
    return Ending(usage=usage, cost=dollars(kwargs.get("response_cost")), model=served_model(response))


def _deployed(model: Any) -> dict[str, Any]:
    """The name and the bounds of the deployment behind a model's name on the proxy."""
    from litellm.proxy import proxy_server

    router = getattr(proxy_server, "llm_router", None)
    found = router.get_model_list(model_name=model) if router is not None and isinstance(model, str) else None
    if not found:
        return {}
    params = found[0]["litellm_params"]
    kept = {name: params[name] for name in ("model", "custom_llm_provider", "base_model") if params.get(name)}
    return {**kept, "model_info": found[0].get("model_info") or {}}


def _first(authenticated: Any, names: tuple[str, ...]) -> str | None:
    for name in names:
        place, _, inner = name.partition(".")
        found = getattr(authenticated, place, None)
        if inner:
            found = found.get(inner) if isinstance(found, Mapping) else None
        if found:
            return str(found)
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


@lru_cache(maxsize=1)
def _from_env() -> _PROXY_BudgetCallback:
    return _PROXY_BudgetCallback(BudgetEngine.from_env())


def __getattr__(name: str) -> Any:
    if name == "budget_callback":
        return _from_env()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
