"""The engine as it is used: the public methods, blocking and awaited, over the operations."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

from llm_budget_hooks.engine.administration import Administration
from llm_budget_hooks.engine.outage import OnDegraded
from llm_budget_hooks.engine.planning import Clock
from llm_budget_hooks.engine.rebuilding import rebuild_now
from llm_budget_hooks.engine.reservation import Reservation
from llm_budget_hooks.engine.trail import OnAlert
from llm_budget_hooks.engine.utterance import Utterance
from llm_budget_hooks.errors import (
    ConfigurationError,
    StoreUnavailable,
)
from llm_budget_hooks.models import (
    BudgetStatus,
    Call,
    Orphan,
    Outcome,
    Policy,
    Settlement,
    Usage,
)
from llm_budget_hooks.models.events import Observer
from llm_budget_hooks.transitions import Ended

T = TypeVar("T")
_log = logging.getLogger("llm_budget_hooks")

BEFORE_FLUSH: list[Callable[[], object]] = []
"""What integrations wait for before an engine is flushed: ends of calls that they have put off."""


class BudgetEngine(Administration):
    """Decides before a call whether it may be paid for, and books its cost after.

    One engine serves threads and any number of event loops. It can be pickled and forked, unless its store is
    ``memory://``: the configuration travels, connections do not. Every blocking method has an awaited twin
    with the prefix ``a``.

    Attributes:
        policy: the rules.
        prices: the price book.
    """

    @classmethod
    def open(
        cls,
        url: str = "sqlite:///llm-budget.db",
        policy: str | os.PathLike[str] | Mapping[str, Any] | Policy | None = None,
        *,
        ledger: str | None = None,
        clock: Clock | None = None,
        on_degraded: OnDegraded | None = None,
        on_alert: OnAlert | None = None,
        observers: tuple[Observer, ...] = (),
        journal: str | os.PathLike[str] | None = None,
        require_shared: bool = False,
    ) -> BudgetEngine:
        """An engine on a store.

        Args:
            url: ``memory://``, ``sqlite:///path``, ``redis://``, ``rediss://``,
                ``redis+cluster://``, ``redis+sentinel://``.
            policy: a path of a TOML file, a dict with the same keys, or a `Policy`.
            clock: gives the time as an aware datetime, for tests; None: the store's own clock.
            require_shared: refuse a store that other processes cannot see.
            ledger: an SQLAlchemy URL, ``sqlite:///path`` or ``postgresql://``, of the database that keeps every run,
                refusal and event; None: none is kept.
            on_alert: is told once of each threshold that an account reaches, with a mapping; a `Webhook` is one.
            observers: are told of every event, in the way of the call: they must be quick.
            on_degraded: is told once of each outage of the store that this process sees, with a mapping.
            journal: the file that keeps what is let through while the store is away; None: one for each store and
                namespace in the user's state directory.

        Raises:
            ConfigurationError: the URL or the policy is wrong, or the store is not shared but has to be.
        """
        from llm_budget_hooks import config

        more = (tuple(observers), require_shared, on_degraded, journal)
        return config.open_engine(cls, config.Asked(url, policy, ledger, clock, on_alert, *more))

    @classmethod
    def from_env(
        cls,
        *,
        store: str | None = None,
        policy: str | os.PathLike[str] | Mapping[str, Any] | Policy | None = None,
        ledger: str | None = None,
    ) -> BudgetEngine:
        """An engine from LLM_BUDGET_STORE, LLM_BUDGET_POLICY and, if it is to have a ledger, LLM_BUDGET_LEDGER.

        Args:
            store: a URL that goes before LLM_BUDGET_STORE; without both it is ``sqlite:///llm-budget.db``.
            policy: rules that go before LLM_BUDGET_POLICY, in each form that `open` takes.
            ledger: a URL that goes before LLM_BUDGET_LEDGER; without both, or if it is empty, there is no ledger.

        Raises:
            ConfigurationError: something is missing or wrong; the message names the variable that it comes from.
        """
        from llm_budget_hooks import config

        return config.engine_from_env(cls, store, policy, ledger)

    @property
    def ledger(self) -> Any:
        """The `llm_budget_hooks.ledger.Ledger` that was opened with the engine, None without one."""
        return self._trail.ledger

    @property
    def shared(self) -> bool:
        """Whether other processes see the same balances."""
        return self._store.shared

    def shares(self, other: BudgetEngine) -> bool:
        """Whether another engine works against the same balances: those of one URL and one namespace do."""
        if self is other:
            return True
        if not self._store.shared or self._origin is None or other._origin is None:
            return False
        return self._origin[0] == other._origin[0] and self.policy.namespace == other.policy.namespace

    @property
    def degraded(self) -> bool:
        """Whether the store was away when this process last asked it."""
        return self._outage.active

    def reserve(self, call: Call) -> Reservation:
        """Hold the call's estimate against every matching budget, or refuse.

        Raises:
            BudgetExceeded: a budget said no; nothing is held. `StoreUnavailable` and `PriceUnknown` are kinds of it.
            AlreadyResolved: the call's id was reserved before and has ended.
            ReservationConflict: the call's id was reserved before with other content.
        """
        planned = self._at_once(call)
        if planned is None:
            return self.run(self._reserve(call))
        plan = planned[2]
        try:
            answer: Any = self._ask(plan.command)
        except BaseException as error:  # noqa: BLE001 - what it means is decided there
            return self.run(self._undecided(planned, error))
        return self._held(*planned, answer) if not answer.verdict else self.run(self._decided(*planned, answer))

    async def areserve(self, call: Call) -> Reservation:
        """Same as `reserve`, awaited."""
        planned = self._at_once(call)
        if planned is None:
            return await self.arun(self._reserve(call))
        plan = planned[2]
        try:
            answer: Any = await self._aask(plan.command)
        except BaseException as error:  # noqa: BLE001 - what it means is decided there
            return await self.arun(self._undecided(planned, error))
        return self._held(*planned, answer) if not answer.verdict else await self.arun(self._decided(*planned, answer))

    def settle(
        self,
        reservation: Reservation | str,
        *,
        usage: Usage | None = None,
        cost: Decimal | int | str | None = None,
        model: str | None = None,
    ) -> Settlement:
        """Replace a hold by what was used.

        Args:
            reservation: the reservation or its id.
            usage: what the provider says was used.
            cost: a known cost in dollars; it goes before the price of `usage`.
            model: the model that served, if it is another than the one asked for.

        Without `usage` and `cost` the outcome is unknown: what was held is spent, provisionally. Never raises for
        a hold that has ended or a store that cannot be reached.

        Raises:
            ConfigurationError: a cost that cannot be; nothing is changed.
        """
        if type(reservation) is not Reservation:
            return self.run(self._settle_by_id(reservation, usage, cost, model))
        finish = self._settling(reservation, usage, cost, model)
        if self._outage.waiting:
            return self.run(self._settle_behind(reservation, finish, usage))
        try:
            answer: Any = self._ask(finish)
        except BaseException as error:  # noqa: BLE001 - what it means is decided there
            return self._unanswered(finish, reservation, error)
        if answer.ended != Ended.SETTLED:
            return self.run(self._ended(finish, reservation, answer, usage))
        if self._near(reservation, answer):
            self.run(self._alert_of(reservation, answer))
        return self._settled(finish, reservation, answer, usage)

    async def asettle(
        self,
        reservation: Reservation | str,
        *,
        usage: Usage | None = None,
        cost: Decimal | int | str | None = None,
        model: str | None = None,
    ) -> Settlement:
        """Same as `settle`, awaited."""
        if type(reservation) is not Reservation:
            return await self.arun(self._settle_by_id(reservation, usage, cost, model))
        finish = self._settling(reservation, usage, cost, model)
        if self._outage.waiting:
            return await self.arun(self._settle_behind(reservation, finish, usage))
        try:
            answer: Any = await self._aask(finish)
        except BaseException as error:  # noqa: BLE001 - what it means is decided there
            return self._unanswered(finish, reservation, error)
        if answer.ended != Ended.SETTLED:
            return await self.arun(self._ended(finish, reservation, answer, usage))
        if self._near(reservation, answer):
            await self.arun(self._alert_of(reservation, answer))
        return self._settled(finish, reservation, answer, usage)

    def release(self, reservation: Reservation | str) -> Settlement:
        """Give a hold back: nothing was or will be billed. Corrects a provisional end to zero."""
        return self.run(self._release(reservation))

    async def arelease(self, reservation: Reservation | str) -> Settlement:
        """Same as `release`, awaited."""
        return await self.arun(self._release(reservation))

    def extend(self, reservation: Reservation | str) -> datetime:
        """Let a hold live for another `reservation_timeout` from now.

        Returns:
            when it expires.

        Raises:
            AlreadyResolved: the hold has ended, or is not known.
            StoreUnavailable: the store did not answer.
        """
        return self.run(self._extend(reservation))

    async def aextend(self, reservation: Reservation | str) -> datetime:
        """Same as `extend`, awaited."""
        return await self.arun(self._extend(reservation))

    def charge(
        self,
        call: Call,
        *,
        cost: Decimal | int | str | None = None,
        usage: Usage | None = None,
        force: bool = False,
    ) -> Settlement:
        """Admit and book in one trip, for a cost that is known beforehand.

        Args:
            call: what was or will be done.
            cost: in dollars.
            usage: what was used, priced as the call's model.
            force: book even above a limit.

        Raises:
            BudgetExceeded: a budget said no; nothing is booked.
            PriceUnknown: `usage` of a model without a price.
            ConfigurationError: neither `cost` nor `usage`, or a bad one.
        """
        return self.run(self._charge(call, cost, usage, force))

    async def acharge(
        self,
        call: Call,
        *,
        cost: Decimal | int | str | None = None,
        usage: Usage | None = None,
        force: bool = False,
    ) -> Settlement:
        """Same as `charge`, awaited."""
        return await self.arun(self._charge(call, cost, usage, force))

    def check(self, call: Call) -> Outcome:
        """Would the call be let in now? Takes nothing."""
        return self.run(self._check(call))

    async def acheck(self, call: Call) -> Outcome:
        """Same as `check`, awaited."""
        return await self.arun(self._check(call))

    def status(self, tenant: str | None = None, user: str | None = None) -> list[BudgetStatus]:
        """The balances of all budgets that are about a tenant and a user, in policy order.

        Args:
            tenant: None: only the budgets of scope ``global``.
            user: None: without the budgets of scope ``user``.
        """
        return self.run(self._status(tenant, user))

    async def astatus(self, tenant: str | None = None, user: str | None = None) -> list[BudgetStatus]:
        """Same as `status`, awaited."""
        return await self.arun(self._status(tenant, user))

    def orphans(self) -> list[Orphan]:
        """The holds that nobody has settled: open ones, and expired ones that were charged what they held."""
        return self.run(self._orphans())

    async def aorphans(self) -> list[Orphan]:
        """Same as `orphans`, awaited."""
        return await self.arun(self._orphans())

    def rebuild(self) -> int:
        """Raise balances that were lost or set back to what the ledger says; none goes down.

        Without a ledger, what the store has now is taken as it is, and calls are let in again.

        Returns:
            how many accounts were raised.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        self._drained()
        raised = rebuild_now(self._store, self.ledger, self._planner, self._given_ms())
        self._book_again()
        self.run(self._resend())
        return raised

    async def arebuild(self) -> int:
        """Same as `rebuild`, awaited."""
        import asyncio

        return await asyncio.to_thread(self.rebuild)

    def flush(self) -> None:
        """Send what could not be sent before, and what integrations still have to settle.

        Raises:
            StoreUnavailable: the store still does not answer; nothing is lost.
        """
        for wait in BEFORE_FLUSH:
            wait()
        self._store.ask_again()
        self._outage.look()
        self.run(self._resend())
        self._written()

    async def aflush(self) -> None:
        """Same as `flush`, awaited."""
        for wait in BEFORE_FLUSH:
            await _in_thread(wait)
        self._store.ask_again()
        self._outage.look()
        await self.arun(self._resend())
        await _in_thread(self._written)

    def _written(self) -> None:
        """Drain what waits for the ledger, once the store answers and what it had lost is back: a drain cannot wait."""
        if self._trail.drain is None:
            return
        try:
            self.run(self._refresh())
        except StoreUnavailable as error:
            _log.warning("The ledger is behind, and its rows wait: %s", error)
        else:
            self._drained()

    def _drained(self) -> None:
        if self._trail.drain is not None and not self._trail.drain.flush():
            _log.warning("The ledger is behind: its rows wait in the store's outbox.")

    def close(self) -> None:
        """Flush, and close this process's connections. The balances stay; the engine may be used again."""
        try:
            self.flush()
        except StoreUnavailable as error:
            self._left_behind(error)
        self._end_trail()
        self._store.close()

    async def aclose(self) -> None:
        """Same as `close`, awaited. It closes the running event loop's connections: call it before that ends."""
        try:
            await self.aflush()
        except StoreUnavailable as error:
            self._left_behind(error)
        await _in_thread(self._end_trail)
        await self._store.aclose()

    def _left_behind(self, error: StoreUnavailable) -> None:
        if self._pending:
            _log.warning("%d settles were not sent before closing: %s", len(self._pending), error)

    def _end_trail(self) -> None:
        self._outage.close()
        if self._trail.drain is not None:
            self._trail.drain.close(0.0 if self.degraded else 2.0)
            self._trail.ledger.close()
        if self._trail.webhook is not None:
            self._trail.webhook.close()

    def utterance(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        id: str | None = None,
        plan: tuple[str, ...] | None = None,
    ) -> Utterance:
        """A scope for one request of one user: all calls in it are one utterance and one answer.

        Args:
            tenant, user: whose request it is; code inside cannot override it.
            feature: the part of the product that asked.
            id: names the utterance; None: made up, or the surrounding one.
            plan: the steps of the answer; its estimate is checked against the answer's ceiling at the start.

        Use it with ``with`` or ``async with``.
        """
        return Utterance(self, tenant, user, feature, id, plan)

    def __enter__(self) -> BudgetEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> BudgetEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __deepcopy__(self, _: dict[int, Any]) -> BudgetEngine:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._store.shared:
            return type(self), (self._store, self.policy)
        if self._origin is None:
            raise ConfigurationError("An engine that was not made by BudgetEngine.open cannot be pickled.")
        url, policy, ledger = self._origin
        more: dict[str, Any] = {
            "ledger": ledger,
            "on_alert": self._trail.on_alert,
            "observers": self._trail.observers,
            "on_degraded": self._outage.on_degraded,
            "journal": self._outage.path,
        }
        return partial(type(self).open, clock=self._clock, **more), (url, policy)

    def __repr__(self) -> str:
        return f"BudgetEngine({type(self._store).__name__}, namespace={self.policy.namespace!r})"

    def _repr_html_(self) -> str:
        from llm_budget_hooks import html

        return html.balances(self.status(), repr(self))


async def _in_thread(work: Callable[[], object]) -> None:
    import asyncio  # a tenth of the time that importing this package takes, for those who never await

    await asyncio.to_thread(work)
