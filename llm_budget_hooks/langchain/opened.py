"""One model call that holds money, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID
from weakref import ref

from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.engine.causes import begun, causes
from llm_budget_hooks.engine.tickets import Ticket
from llm_budget_hooks.errors import PriceUnknown
from llm_budget_hooks.langchain.batches import Batch
from llm_budget_hooks.langchain.runs import Root
from llm_budget_hooks.langchain.through_litellm import Route
from llm_budget_hooks.langchain.tokens import likely
from llm_budget_hooks.langchain.usage import Outcome
from llm_budget_hooks.models import Usage
from llm_budget_hooks.money import to_decimal

_log = logging.getLogger("llm_budget_hooks")
_TIMEOUT = 408
_ENDING = threading.Lock()
_UNANSWERED = ("Timeout", "ConnectionError", "TransportError")


class Opened:
    """A call that was let in. It has one final end; a provisional one may come before.

    Attributes:
        run: the model run, as a number.
        reservation: its hold.
        root: the root run it belongs to.
        ticket: covers the request that it makes from being held twice; None where LiteLLM cannot see that.
        task: that runs it, if it is awaited and has not ended.
        life: ends when nothing refers to the run any more.
        batch: the prompts of the same `generate`; None if it is the only one.
        announced: what LangChain hands to each handler at the start, the same object for all of them. While the call
            is open, that tells a second handler from a second call which uses the same run id.
        before, depth: the call that used the same run id before and has not ended, and how many there are.
        passed: the ends that the calls above this one have taken.
        route: what LiteLLM was asked for, where the model is LiteLLM's.
        number: the place of its start among all starts; says of what an error was raised from whether it came before.
    """

    __slots__ = (
        "_ended",
        "_on_done",
        "_provisional",
        "announced",
        "batch",
        "before",
        "depth",
        "life",
        "number",
        "passed",
        "reservation",
        "root",
        "route",
        "run",
        "task",
        "ticket",
    )

    def __init__(
        self, run: int, reservation: Reservation, root: Root, ticket: Ticket | None, announced: object
    ) -> None:
        self.run = run
        self.reservation = reservation
        self.root = root
        self.ticket = ticket
        self.announced: object = announced
        self.batch: Batch | None = None
        self.before: Opened | None = None
        self.depth = 0
        self.passed: tuple[object, ...] = ()
        self.task: asyncio.Task[Any] | None = None
        self.life: ref[UUID] | None = None
        self.number = begun()
        self.route: Route | None = None
        self._on_done: Callable[[Any], None] | None = None
        self._provisional = False
        self._ended = False

    def was_announced(self, announced: object) -> bool:
        """Whether this, or a call of the same run before it, is the one that is announced here."""
        at: Opened | None = self
        while at is not None and at.announced is not announced:
            at = at.before
        return at is not None

    def has_passed(self, event: object) -> bool:
        """Whether a call above this one has taken that end."""
        return bool(self.passed) and any(event is one for one in self.passed)

    def watch(self, lost: Callable[[Opened], None]) -> None:
        """Call `lost` when the task that runs the call ends and the call has not."""
        loop = asyncio._get_running_loop()
        task = asyncio.current_task(loop) if loop is not None else None
        if task is not None:
            self.task, self._on_done = task, lambda _: lost(self)
            task.add_done_callback(self._on_done)

    def claim(self, *, final: bool, starting: bool = False) -> bool:
        """Whether the caller is the one to end it.

        Args:
            final: nothing can come after this end.
            starting: other handlers may still have to be told that it starts.
        """
        with _ENDING:
            if self._ended or (self._provisional and not final):
                return False
            self._provisional = True
            self._ended = final
        if not starting:
            self.announced = None
            if self.ticket is not None:
                self.ticket.close()
        if self.task is not None and self._on_done is not None:
            self.task.remove_done_callback(self._on_done)
            self.task = None
        return True

    def settle(self, engine: BudgetEngine, outcome: Outcome) -> None:
        """Book what an end says: nothing for a cached response, else what was reported, else what was counted."""
        if outcome.cached:
            engine.settle(self.reservation, usage=Usage(), cost=0)
            return
        usage = outcome.usage
        if usage is None:
            usage = self._counted(outcome)
            _hint_once()
        elif not usage.input_tokens and usage.output_tokens:
            usage = replace(usage, input_tokens=self._likely_input(), exact=False)
        engine.settle(self.reservation, usage=usage, model=self._served(outcome))

    def fail(self, engine: BudgetEngine, error: BaseException, outcome: Outcome) -> bool:
        """Book an error: the provider's own is not billed; after any other, the outcome is unknown.

        Returns:
            whether that was its final end; False if nothing is known but that what it holds may be spent.
        """
        if http_status(error, self.number) is not None and not outcome.output_tokens:
            if self.claim(final=True):
                engine.release(self.reservation)
            return True
        floor = outcome.usage or self._counted(outcome)
        if outcome.output_tokens and self._costs_more(engine, floor):
            if self.claim(final=True):
                engine.settle(self.reservation, usage=floor, model=self._served(outcome))
            return True
        if self.claim(final=False):
            engine.settle(self.reservation)
        return False

    def _served(self, outcome: Outcome) -> str | None:
        return outcome.model if self.route is None else self.route.served(outcome.deployment)

    def _counted(self, outcome: Outcome) -> Usage:
        return Usage(input_tokens=self._likely_input(), output_tokens=outcome.output_tokens, exact=False)

    def _likely_input(self) -> int:
        return likely(self.reservation.call.input_tokens or 0)

    def _costs_more(self, engine: BudgetEngine, usage: Usage) -> bool:
        try:
            price = engine.prices.price(self.reservation.call.model)
        except PriceUnknown:
            return False
        return to_decimal(price.cost_nusd(usage)) > self.reservation.estimate


def http_status(error: BaseException, number: int) -> int | None:
    """The provider's HTTP status of 400 and above; None if it did not answer, or says that it timed out.

    LiteLLM gives lost connections a status of its own making, so what was raised below decides.

    Args:
        error: what the call failed with.
        number: what `begun` gave the call.
    """
    if any(word in kind.__name__ for at in causes(error, number) for kind in type(at).__mro__ for word in _UNANSWERED):
        return None
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) and 400 <= status < 600 and status != _TIMEOUT else None


class _Hint:
    """A hint that is given once per process."""

    given = False


def _hint_once() -> None:
    if not _Hint.given:
        _Hint.given = True
        _log.warning(
            "A model call ended without usage, so its tokens were counted from its words. Streams report usage "
            "where the model is made with stream_usage=True."
        )
