"""One request to a provider, and the hold that pays for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Self

import httpx
from litellm.exceptions import APIConnectionError, APIError, Timeout

from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.engine.causes import begun, causes
from llm_budget_hooks.engine.tickets import Ticket, claim, unclaim
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.litellm.clamped import clamped, refuse_below_minimum
from llm_budget_hooks.litellm.deployments import covers
from llm_budget_hooks.litellm.later import settle_later
from llm_budget_hooks.litellm.media import cost_of
from llm_budget_hooks.litellm.refusal import refused
from llm_budget_hooks.litellm.renewal import forget, watch
from llm_budget_hooks.litellm.usage import served_model, usage_of
from llm_budget_hooks.models import Call, Usage
from llm_budget_hooks.models.slots import quick_init

_log = logging.getLogger("llm_budget_hooks")
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_HANDED_OVER: Final = "api_call_start_time"
_UNSENT: Final = "_llm_budget_unsent"


@quick_init
@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended.

    Attributes:
        release: nothing was or will be billed.
        failed: the request failed, so that another attempt may follow.
        usage: what was used, None if that is not known.
        cost: a known cost in dollars.
        model: the model that served.
    """

    release: bool = False
    failed: bool = False
    usage: Usage | None = None
    cost: Decimal | None = None
    model: str | None = None


class Attempt:
    """A hold, or the ticket of an outer integration that has one, from the request to its end. It ends once.

    Attributes:
        engine: the engine that holds, and in which it is settled.
        kind: the sync name of the entry point.
        call: what was asked.
        reservation: the hold; None where an outer integration has it.
        offer: a hold that was taken for this request before; it is used if it pays for this attempt.
        logged_by: tells which object of LiteLLM logs it.
        hides_usage: the usage of the stream was not asked for by the caller.
        number: the place of its start among all starts.
        inner: the streams that LiteLLM makes this attempt's stream of.
        waiting: a provider is being waited for, so that the hold is renewed.
        renewed_s: when the hold was taken or renewed, by `time.monotonic`.
    """

    __slots__ = (
        "__weakref__",
        "_lock",
        "_logged",
        "_name",
        "_open",
        "call",
        "engine",
        "hides_usage",
        "inner",
        "kind",
        "logged_by",
        "number",
        "offer",
        "renewed_s",
        "reservation",
        "waiting",
    )

    def __init__(self, engine: BudgetEngine, kind: str, call: Call) -> None:
        self.engine = engine
        self.kind = kind
        self.call = call
        self.reservation: Reservation | None = None
        self.offer: Reservation | None = None
        self.logged_by: int | None = None
        self.hides_usage = False
        self.inner: list[Any] = []
        self.waiting = True
        self.renewed_s = time.monotonic()
        self.number = begun()
        self._name = f"litellm-{self.number}"
        self._lock = threading.Lock()
        self._logged: list[tuple[Any, Any]] = []
        self._open = True

    def covered(self) -> Ticket | None:
        """The ticket of an outer integration that has reserved this request already."""
        return claim(self.engine, self._name)

    def begin(self) -> Self:
        """Take the hold.

        Raises:
            BudgetRefused: a budget said no; nothing is held.
        """
        if self._accepts():
            return self
        if self.offer is not None:
            self.engine.release(self.offer)
        if self.covered() is None:
            try:
                if self.engine.policy.clamp:
                    refuse_below_minimum(self.engine, self.call, self.engine.check(self.call))
                self.reservation = self.engine.reserve(self.call)
                watch(self)
            except BudgetExceeded as refusal:
                raise refused(refusal) from None
            finally:
                self._open = self.reservation is not None
        return self

    async def abegin(self) -> Self:
        """Same as `begin`, awaited."""
        if self._accepts():
            return self
        if self.offer is not None:
            await self.engine.arelease(self.offer)
        if self.covered() is None:
            try:
                if self.engine.policy.clamp:
                    refuse_below_minimum(self.engine, self.call, await self.engine.acheck(self.call))
                self.reservation = await self.engine.areserve(self.call)
                watch(self)
            except BudgetExceeded as refusal:
                raise refused(refusal) from None
            finally:
                self._open = self.reservation is not None
        return self

    def _accepts(self) -> bool:
        """Whether the hold that was taken before is for this request as it is now."""
        if self.offer is None or not covers(self.engine, self.offer.call, self.call):
            return False
        self.reservation = self.offer
        watch(self)
        return True

    def lowered(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What the call's arguments are changed by where the policy clamps.

        Raises:
            BudgetExceeded: the hold, which is still open, pays for too little output.
        """
        changes: dict[str, Any] = {}
        if self.reservation is not None:
            clamped(self.engine, self.kind, self.reservation, asked, changes)
        return changes

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self._open

    def end(self, ending: Ending) -> None:
        """End the hold; never raises, and does nothing the second time."""
        if not self._ends(ending) or self.reservation is None:
            return
        try:
            if ending.release:
                self.engine.release(self.reservation)
            else:
                self.engine.settle(self.reservation, usage=ending.usage, cost=ending.cost, model=ending.model)
        except Exception:  # noqa: BLE001 - the answer is here already, and the caller must get it
            _log.exception("A call could not be settled; its hold expires and is charged.")

    async def aend(self, ending: Ending) -> None:
        """Same as `end`, awaited."""
        if not self._ends(ending) or self.reservation is None:
            return
        try:
            if ending.release:
                await self.engine.arelease(self.reservation)
            else:
                await self.engine.asettle(self.reservation, usage=ending.usage, cost=ending.cost, model=ending.model)
        except Exception:  # noqa: BLE001 - the answer is here already, and the caller must get it
            _log.exception("A call could not be settled; its hold expires and is charged.")

    def end_later(self, ending: Ending) -> None:
        """Same as `end`, from where nothing may be waited for, such as the garbage collector."""
        settle_later(lambda: self.end(ending))

    def _ends(self, ending: Ending) -> bool:
        with self._lock:
            was, self._open = self._open, False
        self.inner.clear()
        self._logged.clear()
        forget(self)
        if was and ending.failed:
            unclaim(self.engine, self._name)
        return was

    def logs(self, logged: Any) -> None:
        """Look at what LiteLLM logs this attempt by, to see whether it is handed over to be sent."""
        if hasattr(logged, "model_call_details"):
            self._logged.append((logged, logged.model_call_details.get(_HANDED_OVER)))

    def failed(self, error: BaseException) -> Ending:
        """How it ended with this error, which from now on says if nothing was sent, for whoever held around it."""
        logged = self._logged
        unsent = bool(logged) and all(one.model_call_details.get(_HANDED_OVER) is since for one, since in logged)
        if unsent:
            with suppress(AttributeError, TypeError):
                setattr(error, _UNSENT, True)
        return ended_by(error, self.number, unsent=unsent)

    def answered(self, response: Any) -> Ending:
        """How it ended with this answer."""
        usage = usage_of(response)
        cost = cost_of(self.kind, self.call, response, self.engine.prices)
        return Ending(usage=usage, cost=cost, model=served_model(response))


def ended_by(error: BaseException, number: int, *, unsent: bool = False) -> Ending:
    """How an attempt ended that failed: a provider's error bills nothing, a cut or a timeout may have.

    Nobody makes another attempt after a cancellation, or where a stream is left.

    Args:
        error: what it failed with.
        number: the attempt's.
        unsent: it was not handed over to be sent, for all that is known.
    """
    if not isinstance(error, Exception):
        return Ending()
    return Ending(release=was_not_billed(error, number, unsent=unsent), failed=True)


def was_not_billed(error: Exception, number: int, *, unsent: bool = False) -> bool:
    """Whether an error says that the provider has billed nothing: an HTTP 4xx or 5xx but 408, or never sent.

    LiteLLM makes an APIConnectionError of its own mistakes with the arguments too, before there is a connection, and
    a status of 500 of an answer that it cannot read, which the provider has billed.
    """
    chain = causes(error, number)
    if any(isinstance(cause, _NEVER_SENT) for cause in chain):
        return True
    if isinstance(error, (asyncio.TimeoutError, Timeout)) or _cut(chain):
        return False
    if unsent or getattr(error, _UNSENT, False):
        return True
    status = getattr(error, "status_code", None)
    is_answer = isinstance(status, int) and 400 <= status < 600 and status != 408
    return is_answer and not isinstance(error, APIConnectionError) and not _is_unreadable(chain)


def _is_unreadable(chain: list[BaseException]) -> bool:
    return any(type(cause) is APIError for cause in chain[1:])


def _cut(chain: list[BaseException]) -> bool:
    return any(isinstance(cause, (httpx.TransportError, ConnectionError, TimeoutError)) for cause in chain)
