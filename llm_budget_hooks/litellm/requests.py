"""What the attempts of one request have in common: one utterance, and a refusal that stays one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import litellm

from llm_budget_hooks.engine import Reservation
from llm_budget_hooks.litellm.refusal import BudgetRefused

_REQUEST: Final = "_llm_budget_request"
_FURTHER: Final = ("fallback_depth", "attempted_fallbacks", "attempted_retries")
_REPEATED: Final = ("num_retries", "fallbacks", "context_window_fallback_dict")
_REMEMBERED: Final = 4096
_by_trace: OrderedDict[str, Request] = OrderedDict()
_lock = threading.Lock()


@dataclass(slots=True, eq=False)
class Request:
    """One request of a caller, for which LiteLLM may make several attempts.

    Attributes:
        utterance: names it.
        refusal: what one of its attempts was refused with.
    """

    utterance: str
    refusal: BudgetRefused | None = None


@dataclass(slots=True, eq=False)
class ProxyRequest(Request):
    """One HTTP request to a proxy: who asks, as the proxy has authenticated it, and the hold taken before routing.

    Its utterance is what the client says it belongs to, within that client's identity, or its own.

    Attributes:
        tenant, user: who pays; they go before all that the request says.
        feature, step: as the client says; they choose no payer.
        hold: taken before routing, for the first attempt.
        leaving: what ends the streams of this request that the client has left.
    """

    tenant: str | None = None
    user: str | None = None
    feature: str | None = None
    step: str | None = None
    hold: Reservation | None = None
    leaving: list[Callable[[], None]] = field(default_factory=list)

    def end_with(self, task: asyncio.Task[Any] | None) -> None:
        """Leave all streams when the task that serves the request is done, and not when their garbage is collected."""
        if task is not None:
            task.add_done_callback(lambda _: [leave() for leave in self.leaving])

    def take(self) -> Reservation | None:
        """The hold, once."""
        taken, self.hold = self.hold, None
        return taken


PROXY_REQUEST: ContextVar[ProxyRequest | None] = ContextVar("llm_budget_hooks_proxy_request", default=None)


def new_utterance() -> str:
    """An id that no other request has."""
    return f"litellm-{os.urandom(10).hex()}"


def stated(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of a request, what LiteLLM's Router adds to it included."""
    first, last = asked.get("litellm_metadata"), asked.get("metadata")
    if first is None or not isinstance(first, Mapping):
        return last if isinstance(last, Mapping) else {}
    return {**first, **last} if isinstance(last, Mapping) else first


def sent(asked: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The places whose parameters reach the provider: the arguments, and what is put into the body as it is."""
    extra = asked.get("extra_body")
    return (asked,) if extra is None or not isinstance(extra, Mapping) else (asked, extra)


def request_of(asked: Mapping[str, Any]) -> Request | None:
    """What the attempts of this request share; None where there is only one.

    LiteLLM logs its own retries and fallbacks by one object. The Router makes a new one for each attempt, and tells
    the first from the further ones of a trace, which may have been named by the caller and used before.

    Args:
        asked: the arguments of an attempt, by name.
    """
    proxied = PROXY_REQUEST.get()
    if proxied is not None:
        return proxied
    logged = asked.get("litellm_logging_obj")
    if logged is None:
        return None
    found: Request | None = getattr(logged, _REQUEST, None)
    if found is None:
        found = _routed(asked) or _repeated(asked)
        if found is not None:
            setattr(logged, _REQUEST, found)
    return found


def _repeated(asked: Mapping[str, Any]) -> Request | None:
    several = litellm.num_retries
    for name in _REPEATED:
        several = several or asked.get(name)
    return Request(new_utterance()) if several else None


def _routed(asked: Mapping[str, Any]) -> Request | None:
    trace = asked.get("litellm_trace_id")
    if not isinstance(trace, str):
        return None
    metadata = stated(asked)
    if "model_group" not in metadata:
        return None
    further = any(asked.get(name) or metadata.get(name) for name in _FURTHER)
    with _lock:
        found = _by_trace.get(trace) if further else None
        if found is None:
            found = _by_trace[trace] = Request(new_utterance())
        _by_trace.move_to_end(trace)
        while len(_by_trace) > _REMEMBERED:
            _by_trace.popitem(last=False)
    return found


def remember(asked: Mapping[str, Any], refusal: BudgetRefused) -> None:
    """Keep a refusal for the further attempts of the same request."""
    request = request_of(asked)
    if request is not None:
        # A new one has no traceback, and so keeps none of the request's frames with its prompt alive.
        request.refusal = type(refusal).of(refusal)


def refusal_behind(asked: Mapping[str, Any], error: Exception) -> BudgetRefused | None:
    """The refusal that LiteLLM has made a plain Exception of, after ``fallbacks=``; None if it has not."""
    request = request_of(asked) if asked.get("fallbacks") else None
    if request is None or request.refusal is None or isinstance(error, BudgetRefused):
        return None
    return type(request.refusal).of(request.refusal)
