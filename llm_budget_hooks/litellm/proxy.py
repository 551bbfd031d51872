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

import asyncio
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.errors import BudgetError, BudgetExceeded
from llm_budget_hooks.litellm.attempts import Attempt, Ending
from llm_budget_hooks.litellm.callback import BudgetCallback
from llm_budget_hooks.litellm.deployments import call_before_routing
from llm_budget_hooks.litellm.media import cost_of_hit, dollars
from llm_budget_hooks.litellm.passed import passed_usage
from llm_budget_hooks.litellm.proxy_refusal import ProxyRefused, answer_as_refused, told
from llm_budget_hooks.litellm.requests import PROXY_REQUEST, ProxyRequest, new_utterance
from llm_budget_hooks.litellm.usage import served_model
from llm_budget_hooks.models import Call

_log = logging.getLogger("llm_budget_hooks")
_KEY: Final = "llm_budget_request"
_HELD: Final = frozenset({
    "completion", "acompletion", "text_completion", "atext_completion", "embeddings", "embedding", "aembedding",
    "responses", "aresponses", "image_generation", "aimage_generation", "speech", "aspeech", "transcription",
    "atranscription", "audio_transcription", "rerank", "arerank", "anthropic_messages", "moderation", "amoderation",
    "agenerate_content", "agenerate_content_stream", "image_edit", "aimage_edit",
    "pass_through_endpoint", "allm_passthrough_route",
})  # fmt: skip


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
        request.end_with(asyncio.current_task())
        path = str(getattr(user_api_key_dict, "request_route", None) or "")
        call = call_before_routing(self.budget_engine, call_type, data, path) if call_type in _HELD else None
        if call is None:
            return
        try:
            request.hold = await self.budget_engine.areserve(call)
        except BudgetExceeded as refusal:
            raise ProxyRefused(refusal, await self._left(request)) from refusal
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
        if isinstance(original_exception, BudgetExceeded):
            from fastapi import HTTPException

            refusal = ProxyRefused(original_exception, {})
            detail = {"error": {"message": refusal.message, "type": refusal.type, **told(refusal.refusal)}}
            return HTTPException(refusal.status_code, detail, refusal.headers)
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
        return await self._left(PROXY_REQUEST.get() or self._request(user_api_key_dict, data)) or None

    async def _left(self, request: ProxyRequest) -> dict[str, str]:
        try:
            found = await self.budget_engine.astatus(tenant=request.tenant or "", user=request.user or "")
        except BudgetError as error:
            _log.warning("What is left could not be read: %s", type(error).__name__)
            return {}
        left = [s.available for s in found if s.scope != "global" and s.meter == "usd" and s.available is not None]
        return {"x-budget-remaining": f"{min(left):f}"} if left else {}

    async def async_log_success_event(
        self, kwargs: Mapping[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Settle what runs past all entry points: pass-through, and streams from the cache."""
        request = kwargs.get(_KEY)
        hold = request.take() if isinstance(request, ProxyRequest) else None
        if hold is None:
            return
        await _attempt_of(self.budget_engine, hold).aend(_passed_ending(kwargs, response_obj, hold.call))

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


def _attempt_of(engine: BudgetEngine, hold: Reservation) -> Attempt:
    attempt = Attempt(engine, "completion", hold.call)
    attempt.reservation = hold
    return attempt


def _passed_ending(kwargs: Mapping[str, Any], response: Any, call: Call) -> Ending:
    if kwargs.get("cache_hit") is True:
        return Ending(cost=cost_of_hit(kwargs))
    usage = passed_usage(kwargs, response, call)
    return Ending(usage=usage, cost=dollars(kwargs.get("response_cost")), model=served_model(response))


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
    from litellm.proxy.proxy_server import app

    callback = _PROXY_BudgetCallback(BudgetEngine.from_env())
    answer_as_refused(app)
    return callback


def __getattr__(name: str) -> Any:
    if name == "budget_callback":
        return _from_env()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
