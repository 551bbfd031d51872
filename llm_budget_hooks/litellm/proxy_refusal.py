"""A refusal as the LiteLLM proxy answers it, on every route."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Final

from litellm.proxy._types import ProxyException

from llm_budget_hooks.errors import BudgetExceeded

_OWN_SCOPES: Final = ("user", "tenant", "answer")


class ProxyRefused(ProxyException):
    """A refusal above the Router: HTTP 429 or 503, not to be retried by the client.

    Its body has the type ``budget_exceeded``, and figures only of budgets that are the client's own. Why somebody was
    switched off is the operator's to know.

    Args:
        refusal: what the engine said.
        left: what the client has left, in dollars, as it stands in ``x-budget-remaining``.

    Attributes:
        refusal: what the engine said.
        status_code: the HTTP status.
    """

    def __init__(self, refusal: BudgetExceeded, left: dict[str, str]) -> None:
        own = refusal.scope in _OWN_SCOPES and refusal.code != "killed"
        super().__init__(
            message=str(refusal) if own else refusal.public_message,
            type="budget_exceeded",
            param=None,
            code=refusal.http_status,
            headers={**headers_of(refusal), **left},
            openai_code=refusal.code,
            provider_specific_fields=told(refusal),
        )
        self.refusal = refusal
        self.status_code = refusal.http_status


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


def answer_as_refused(app: Any) -> None:
    """Let a proxy answer with the refusal itself where a route makes an error of its own of it.

    The routes for images, rerank and moderation keep the message and lose the headers and the body.

    Args:
        app: the proxy's FastAPI app, before its first request.
    """
    theirs: Callable[[Any, ProxyException], Awaitable[Any]] = app.exception_handlers[ProxyException]

    async def answer(request: Any, error: ProxyException) -> Any:
        refusal = _refusal_behind(error)
        if refusal is not None:
            refusal.headers = {**error.headers, **refusal.headers}
        return await theirs(request, refusal or error)

    app.exception_handlers[ProxyException] = answer
    app.middleware_stack = None  # it has been built for the start, and is built again for the first request


def _refusal_behind(error: ProxyException) -> ProxyRefused | None:
    """The refusal that a route handled when it made this error."""
    handled = None if isinstance(error, ProxyRefused) else error.__context__
    if isinstance(handled, BudgetExceeded):
        return ProxyRefused(handled, {})
    return handled if isinstance(handled, ProxyRefused) else None
