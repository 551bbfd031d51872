"""The operations of the engine: each is a generator that yields commands and is sent their answers.

Planned without I/O, one trip to the store, interpreted without I/O; the blocking and the awaited form of a
method differ in one line. Settle and release never raise for a store that cannot be reached: what they had to
say is kept and sent with a later operation. A reserve whose reply was lost is released the same way, so that a
call that was not made is not charged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from llm_budget_hooks.engine.refusals import Stage, answer_estimate, in_units, killed, refusal
from llm_budget_hooks.engine.reservation import Reservation
from llm_budget_hooks.engine.settings import Changes, LiveSettings, live
from llm_budget_hooks.engine.utterance import Utterance, current_utterance
from llm_budget_hooks.errors import (
    AlreadyResolved,
    BudgetExceeded,
    ConfigurationError,
    PriceUnknown,
    ReservationConflict,
    StoreUnavailable,
)
from llm_budget_hooks.models import (
    BudgetStatus,
    Call,
    Orphan,
    Outcome,
    Policy,
    Settlement,
    SettlementStatus,
    Usage,
    instant,
)
from llm_budget_hooks.models.calls import checked_cost
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.plan import DEFAULT_TENANT, Plan, Planner, hold_key, normalised
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.transitions import (
    Balances,
    Command,
    Ended,
    Ending,
    Finish,
    Finished,
    Hold,
    Meter,
    Mode,
    OrphanList,
    Orphans,
    Read,
    Reserved,
    Settings,
    SettingsNow,
    State,
    Verdict,
)

T = TypeVar("T")
Steps = Generator[Command, Any, T]
Clock = Callable[[], datetime]

_log = logging.getLogger("llm_budget_hooks")
_REPLANS = 8
_PENDING = 10_000
_STATUS: dict[int, SettlementStatus] = {
    Ended.SETTLED: "settled",
    Ended.RELEASED: "released",
    Ended.LATE: "late",
    Ended.ALREADY_SETTLED: "already_settled",
    Ended.ALREADY_RELEASED: "already_released",
    Ended.UNKNOWN: "unknown",
}
_UNCHANGED = (Ended.ALREADY_SETTLED, Ended.ALREADY_RELEASED, Ended.UNKNOWN)
_STATE = {State.EXPIRED: "expired", State.RELEASED: "released", State.CHARGED: "settled", State.SETTLED: "settled"}


class Operations:
    """What the engine does, as steps without I/O, and the state that they share.

    Attributes:
        policy: the rules.
        prices: the price book.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        *,
        clock: Clock | None = None,
        origin: tuple[str, Policy] | None = None,
    ) -> None:
        self.policy = policy
        self.prices = PriceBook(prices=policy.prices, aliases=policy.aliases, cached_discount=policy.cached_discount)
        self._store = store
        self._clock = clock
        self._origin = origin
        self._planner = Planner(policy, self.prices)
        self._pending: deque[Finish] = deque(maxlen=_PENDING)
        self._settings = LiveSettings()
        self._utterances: WeakValueDictionary[tuple[str, str, str], Utterance] = WeakValueDictionary()

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation of this engine's parts, blocking."""
        try:
            command = next(steps)
            while True:
                try:
                    answer = self._store.execute(command)
                except BaseException as error:  # noqa: BLE001 - the operation decides what a failure means
                    command = steps.throw(error)
                else:
                    command = steps.send(answer)
        except StopIteration as stop:
            return cast("T", stop.value)

    async def arun(self, steps: Steps[T]) -> T:
        """Same as `run`, awaited."""
        try:
            command = next(steps)
            while True:
                try:
                    answer = await self._store.aexecute(command)
                except BaseException as error:  # noqa: BLE001 - the operation decides what a failure means
                    command = steps.throw(error)
                else:
                    command = steps.send(answer)
        except StopIteration as stop:
            return cast("T", stop.value)

    def join(self, scope: Utterance) -> None:
        """Let an utterance know what its calls cost, for as long as somebody holds it."""
        self._utterances[scope.key] = scope

    def planned_nusd(self, plan: tuple[str, ...]) -> int:
        """What an answer of these steps is expected to cost."""
        return self._planner.planned_nusd(plan)

    def answer_ceiling(self, scope: Utterance) -> BudgetExceeded | None:
        """The refusal of an answer whose announced steps are expected to cost more than its ceiling."""
        if not scope.plan:
            return None
        estimate = self.planned_nusd(scope.plan)
        for line in self._planner.answer_lines(scope.tenant, scope.feature):
            if line.meter == Meter.USD and estimate > line.limit:
                return answer_estimate(line.budget.name, line.limit, estimate)
        return None

    def limits_answers(self, tenant: str | None, feature: str | None) -> bool:
        """Whether any budget is about single answers of a tenant and a feature."""
        return bool(self._planner.answer_lines(tenant, feature))

    def answer_balances(self, scope: Utterance) -> Steps[tuple[Any, Any]]:
        """The answer budgets of an utterance, and what is spent and reserved in each."""
        if not self._planner.answer_lines(scope.tenant, scope.feature):
            return (), ()
        command, lines = self._planner.read_answer(scope.tenant, scope.user, scope.feature, scope.id)
        command.now_ms = self._given_ms()
        answer: Balances = yield command
        return lines, answer.accounts

    def now_ms(self) -> int:
        """About what the deciding clock shows, in ms since the epoch; to plan with."""
        given = self._given_ms()
        return self._store.now_ms() if given is None else given

    def _given_ms(self) -> int | None:
        if self._clock is None:
            return None
        now = self._clock()
        if now.tzinfo is None:
            raise ConfigurationError("the clock gives a datetime without a time zone; use an aware one")
        return round(now.timestamp() * 1000)

    def _joined(self, call: Call) -> tuple[Call, Utterance | None]:
        """The call with the identity that the surrounding utterance pinned."""
        scope = current_utterance(self)
        if scope is not None:
            tenant = scope.tenant if scope.tenant is not None else call.tenant
            user = scope.user if scope.user is not None else call.user
            feature = call.feature if call.feature is not None else scope.feature
            id = call.utterance if call.utterance is not None else scope.id
            if (tenant, user, feature, id) != (call.tenant, call.user, call.feature, call.utterance):
                call = replace(call, tenant=tenant, user=user, feature=feature, utterance=id)
        return call, self._live(call)

    def _live(self, call: Call) -> Utterance | None:
        """The utterance of this process that a call belongs to."""
        if call.utterance is None or not self._utterances:
            return None
        return self._utterances.get((normalised(call.tenant), normalised(call.user), call.utterance))

    def _planned(self, call: Call, mode: int, actual: tuple[int, int] | None = None) -> Steps[tuple[Plan, Reserved]]:
        """Plan and ask, again for as long as the store says that its clock is further.

        A hold that may have been taken though its answer never came is released with a later operation.
        """
        now = given = self._given_ms()
        if now is None:
            now = self._store.now_ms()
        for _ in range(_REPLANS):
            if self._settings.kills:
                yield from self._refuse_killed(call)
            plan = self._plan(call, now, mode, actual)
            if mode == Mode.CHECK:
                plan.command.id = ""
            plan.command.now_ms = given
            try:
                answer: Reserved = yield plan.command
            except BaseException:
                if mode == Mode.HOLD:
                    self._bury(plan)
                raise
            if answer.verdict == Verdict.STALE:
                yield from self._refresh()
            elif answer.verdict != Verdict.CLOCK:
                return plan, answer
            now = answer.now_ms
        raise StoreUnavailable("The store's clock moves faster than a call can be planned. Nothing is held.")

    def _plan(self, call: Call, now: int, mode: int, actual: tuple[int, int] | None) -> Plan:
        entry = self._planner.entry(call, now) if mode == Mode.ENTER else None
        return entry if entry is not None else self._planner.plan(call, now, mode, actual)

    def enter(self, scope: Utterance) -> Steps[None]:
        """Count an utterance that begins in the budgets that count it then, whatever it will call.

        Raises:
            BudgetExceeded: a budget said no; nothing is counted.
        """
        call = Call(
            model="*", tenant=scope.tenant, user=scope.user, feature=scope.feature, utterance=scope.id, amount=0
        )
        if self._planner.entry(call, self.now_ms()) is None:
            return
        plan, answer = yield from self._planned(call, Mode.ENTER)
        if answer.verdict != Verdict.ADMITTED:
            raise self._refused(call, plan, answer, "start")

    def _bury(self, plan: Plan) -> None:
        """A hold may have been taken though its answer never came: it is released with a later operation."""
        command = plan.command
        lost = Finish(command.id, Ending.RELEASE, self._planner.terms, bury=True, now_ms=command.now_ms)
        self._pending.append(lost)

    def _refuse_killed(self, call: Call) -> Steps[None]:
        """Raise if the tenant is stopped, once the store says that this is still so."""
        tenant = normalised(call.tenant) or DEFAULT_TENANT
        if self._settings.killed(tenant) is not None:
            yield from self._refresh()
            switch = self._settings.killed(tenant)
            if switch is not None:
                raise killed(switch, call.tenant)

    def _refresh(self) -> Steps[None]:
        """Plan with the settings that the store has now."""
        answer: SettingsNow = yield Settings(now_ms=self._given_ms())
        self._apply(live(answer))

    def _apply(self, settings: LiveSettings) -> None:
        limits = {
            tenant: {name: (o.limit, o.until_ms) for name, o in overrides.items() if o.limit is not None}
            for tenant, overrides in settings.overrides.items()
        }
        self._planner.override(settings.revision, limits)
        self._settings = settings

    def _change(self, made: Callable[[LiveSettings, int], Changes]) -> Steps[bool]:
        """Change the settings as seen from what they are; again if somebody else changes them meanwhile.

        Returns:
            whether anything was changed.
        """
        given = self._given_ms()
        answer: SettingsNow = yield Settings(now_ms=given)
        for _ in range(_REPLANS):
            self._apply(live(answer))
            changes = made(self._settings, answer.now_ms)
            if not changes:
                return False
            answer = yield Settings(changes, answer.revision, given)
            if answer.changed:
                self._apply(live(answer))
                return True
        raise StoreUnavailable("Others keep changing the settings; nothing was changed. Try again.", busy=True)

    def _at_once(self, call: Call) -> tuple[Call, Utterance | None, Plan] | None:
        """The plan of a reserve that nothing has to come before; None: `_reserve` knows what."""
        if self._pending or self._settings.kills:
            return None
        call, scope = self._joined(call)
        given = self._given_ms()
        plan = self._planner.plan(call, self._store.now_ms() if given is None else given)
        plan.command.now_ms = given
        return call, scope, plan

    def _reserve(self, call: Call) -> Steps[Reservation]:
        if self._pending:
            yield from self._resend_quietly()
        call, scope = self._joined(call)
        plan, answer = yield from self._planned(call, Mode.HOLD)
        return (yield from self._decided(call, scope, plan, answer))

    def _decided(self, call: Call, scope: Utterance | None, plan: Plan, answer: Reserved) -> Steps[Reservation]:
        if answer.verdict in (Verdict.STALE, Verdict.CLOCK):
            return (yield from self._reserve(call))
        if answer.verdict == Verdict.DUPLICATE:
            yield from self._as_held(plan, answer)
        elif answer.verdict != Verdict.ADMITTED:
            raise self._refused(call, plan, answer)
        return self._held(call, scope, plan, answer)

    def _held(self, call: Call, scope: Utterance | None, plan: Plan, answer: Reserved) -> Reservation:
        reservation = Reservation(call, plan, answer)
        if scope is not None:
            scope.begin(reservation.id, plan.estimate_nusd)
        return reservation

    def _as_held(self, plan: Plan, answer: Reserved) -> Steps[None]:
        """Fill a plan and its answer with what the same attempt holds already, maybe under another policy."""
        found: OrphanList = yield Orphans(self._planner.terms, id=plan.command.id, now_ms=plan.command.now_ms)
        for _, hold in found.holds:
            answer.held, answer.starts = hold.held, hold.starts
            if plan.command.keys != hold.keys:
                plan.command.shape, plan.command.keys, plan.command.scopes = hold.shape, hold.keys, hold.scopes

    def _refused(self, call: Call, plan: Plan, answer: Reserved, stage: Stage = "call") -> Exception:
        if answer.verdict == Verdict.CONFLICT:
            return ReservationConflict(plan.id)
        if answer.verdict == Verdict.ENDED:
            return AlreadyResolved(plan.id, _STATE[State(answer.state)])
        rules = plan.command.shape.rules
        windows = self._planner.windows(call.tenant)
        return refusal(call, self.policy, rules, answer.failures, windows, answer.now_ms, stage)

    def _settle(
        self,
        reservation: Reservation | str,
        usage: Usage | None,
        cost: Decimal | int | str | None,
        model: str | None,
    ) -> Steps[Settlement]:
        known = None if cost is None else checked_cost("settle", "cost", cost)
        held = reservation if isinstance(reservation, Reservation) else None
        estimate = held._estimate_nusd if held else None
        if held is not None:
            finish = self._settling(held, usage, cost, model)
        else:
            if known is None and usage is not None:
                asked, estimate = yield from self._remembered(str(reservation))
                known = self._cost(usage, model, asked, None)
            finish = Finish(
                hold_key(str(reservation)), Ending.SETTLE, self._planner.terms,
                known, usage.total_tokens if usage else None, usage is not None or cost is not None,
            )  # fmt: skip
        answer = yield from self._finish(finish, held)
        return self._settlement(reservation, answer, finish.cost_nusd, estimate, finish.final)

    def _settling(
        self, held: Reservation, usage: Usage | None, cost: Decimal | int | str | None, model: str | None
    ) -> Finish:
        """The command that settles a hold which its owner carries."""
        known = None if cost is None else checked_cost("settle", "cost", cost)
        tokens = None
        if usage is not None:
            tokens = usage.input_tokens + usage.output_tokens
            if known is None:
                known = self._cost(usage, model, held.call.model, held.call.service_tier)
        final = usage is not None or cost is not None
        return Finish(
            held._key, Ending.SETTLE, self._planner.terms, known, tokens, final, None, False, self._given_ms()
        )

    def _unsent(self, finish: Finish, held: Reservation, error: StoreUnavailable) -> None:
        """Keep a settle that the store did not take, with what it needs to be booked later."""
        if finish.hold is None:
            finish.hold = held.hold(self.now_ms(), self._planner.terms.timeout_ms)
        self._pending.append(finish)
        _log.warning("A settle or release is kept until the store answers again: %s", error)

    def _remembered(self, id: str) -> Steps[tuple[str | None, int | None]]:
        """Model and estimate of a hold that is known by its id alone."""
        try:
            found: OrphanList = yield Orphans(self._planner.terms, id=hold_key(id), now_ms=self._given_ms())
        except StoreUnavailable:
            return None, None
        if not found.holds:
            return None, None
        hold = found.holds[0][1]
        return hold.note or None, _money_of(hold)

    def _cost(self, usage: Usage, served: str | None, asked: str | None, tier: str | None) -> int | None:
        """The price of a usage: as the model that served, else as the one asked for; None without a price."""
        if usage.service_tier is None and tier is not None:
            usage = replace(usage, service_tier=tier)
        for model in (served, asked):
            price = self._planner.price(model) if model else None
            if price is not None:
                return price.cost_nusd(usage)
        return None

    def _release(self, reservation: Reservation | str) -> Steps[Settlement]:
        held = reservation if isinstance(reservation, Reservation) else None
        key = held._key if held else hold_key(str(reservation))
        answer = yield from self._finish(Finish(key, Ending.RELEASE, self._planner.terms), held)
        return self._settlement(reservation, answer, 0, held._estimate_nusd if held else None, True)

    def _finish(self, command: Finish, held: Reservation | None) -> Steps[Finished | None]:
        """End a hold; None if the store could not be reached, and the command is kept for later."""
        command.now_ms = self._given_ms()
        try:
            answer: Finished = yield command
            if answer.ended == Ended.UNKNOWN and held is not None:
                command.hold = held.hold(answer.now_ms, self._planner.terms.timeout_ms)
                answer = yield command
        except StoreUnavailable as error:
            if held is not None:
                self._unsent(command, held, error)
            else:
                self._pending.append(command)
                _log.warning("A settle or release is kept until the store answers again: %s", error)
            return None
        except BaseException:
            self._pending.append(command)
            raise
        if held is not None and answer.state:
            held._ended = answer.state
        return answer

    def _unanswered(self, finish: Finish, held: Reservation, error: BaseException) -> Settlement:
        """What a settle returns that the store did not answer: it is kept, and sent again later."""
        if not isinstance(error, StoreUnavailable):
            self._pending.append(finish)
            raise error
        self._unsent(finish, held, error)
        return self._settlement(held, None, finish.cost_nusd, held._estimate_nusd, finish.final)

    def _ended(self, finish: Finish, held: Reservation, answer: Finished) -> Steps[Settlement]:
        """What a settle returns for a hold that was not open; one that the store has forgotten is sent along."""
        given: Finished | None = answer
        if answer.ended == Ended.UNKNOWN:
            finish.hold = held.hold(answer.now_ms, self._planner.terms.timeout_ms)
            given = yield from self._finish(finish, held)
        elif answer.state:
            held._ended = answer.state
        return self._settlement(held, given, finish.cost_nusd, held._estimate_nusd, finish.final)

    def _settled(self, finish: Finish, held: Reservation, answer: Finished) -> Settlement:
        """What a settle returns for a hold that was open."""
        held._ended = answer.state
        known, estimate = finish.cost_nusd, held._estimate_nusd
        final = finish.final and known is not None
        booked = known if final and known is not None else estimate
        if self._utterances:
            self._tell(held, booked)
        return Settlement(held.id, "settled", booked, estimate, final)

    def _settlement(
        self,
        reservation: Reservation | str,
        answer: Finished | None,
        cost: int | None,
        estimate: int | None,
        final: bool,
    ) -> Settlement:
        id = reservation.id if isinstance(reservation, Reservation) else reservation
        if answer is None:
            return Settlement(id, "unknown", None, estimate, exact=False, pending=True)
        status = _STATUS[answer.ended]
        if answer.ended in _UNCHANGED:
            return Settlement(id, status, None, estimate, differs=answer.differs)
        booked = cost if final and cost is not None else estimate
        self._tell(reservation, booked or 0)
        return Settlement(id, status, booked, estimate, final and cost is not None)

    def _tell(self, reservation: Reservation | str, nusd: int) -> None:
        """Let the utterance of this process know what one of its calls cost."""
        scope = self._live(reservation.call) if isinstance(reservation, Reservation) else None
        if scope is not None and isinstance(reservation, Reservation):
            scope.end(reservation.id, nusd)

    def _extend(self, reservation: Reservation | str) -> Steps[datetime]:
        held = reservation if isinstance(reservation, Reservation) else None
        key = held._key if held else hold_key(str(reservation))
        answer: Finished = yield Finish(key, Ending.EXTEND, self._planner.terms, now_ms=self._given_ms())
        if answer.ended != Ended.EXTENDED:
            id = held.id if held else str(reservation)
            raise AlreadyResolved(id, _STATE.get(State(answer.state), "unknown"))
        if held is not None:
            held._deadline_ms = answer.deadline_ms
        return instant(answer.deadline_ms)

    def _charge(
        self, call: Call, cost: Decimal | int | str | None, usage: Usage | None, force: bool
    ) -> Steps[Settlement]:
        if cost is None and usage is None:
            raise ConfigurationError("charge needs what to book: cost=... or usage=...")
        if self._pending:
            yield from self._resend_quietly()
        call, scope = self._joined(call)
        known = checked_cost("charge", "cost", cost) if cost is not None else None
        if known is None and usage is not None:
            known = self._cost(usage, None, call.model, call.service_tier)
            if known is None:
                raise PriceUnknown(f"No price is known for model {call.model!r}, so its usage cannot be charged.")
        tokens = usage.total_tokens if usage else (call.input_tokens or 0) + (call.max_output_tokens or 0)
        mode = Mode.FORCE if force else Mode.CHARGE
        plan, answer = yield from self._planned(call, mode, (known or 0, tokens))
        booked = known or 0
        if answer.verdict == Verdict.ENDED:
            return Settlement(plan.id, "already_settled")
        if answer.verdict == Verdict.DUPLICATE:
            raise ReservationConflict(plan.id)
        if answer.verdict != Verdict.ADMITTED:
            raise self._refused(call, plan, answer)
        if scope is not None:
            scope.end(plan.id, booked)
        return Settlement(plan.id, "settled", booked, booked)

    def _check(self, call: Call) -> Steps[Outcome]:
        call, _ = self._joined(call)
        try:
            plan, answer = yield from self._planned(call, Mode.CHECK)
        except BudgetExceeded as error:
            return Outcome(False, error)
        estimate = to_decimal(plan.estimate_nusd)
        if answer.verdict == Verdict.ADMITTED:
            return Outcome(True, None, estimate)
        return Outcome(False, cast("BudgetExceeded", self._refused(call, plan, answer)), estimate)

    def _read(self, plan: Callable[[int], tuple[Read, Any]]) -> Steps[tuple[Balances, Any]]:
        now = given = self._given_ms()
        if now is None:
            now = self._store.now_ms()
        for _ in range(_REPLANS):
            command, lines = plan(now)
            command.now_ms = given
            answer: Balances = yield command
            if answer.verdict != Verdict.CLOCK:
                return answer, lines
            now = answer.now_ms
        raise StoreUnavailable("The store's clock moves faster than a reading can be planned.")

    def _status(self, tenant: str | None, user: str | None) -> Steps[list[BudgetStatus]]:
        if self._pending:
            yield from self._resend_quietly()
        try:
            answer, lines = yield from self._read(lambda now: self._planner.read(tenant, user, now))
        except StoreUnavailable:
            _, lines = self._planner.read(tenant, user, self.now_ms())
            return [_unread(line.budget) for line in lines]
        return [_status(line, balance) for line, balance in zip(lines, answer.accounts, strict=True)]

    def _orphans(self) -> Steps[list[Orphan]]:
        answer: OrphanList = yield Orphans(self._planner.terms, now_ms=self._given_ms())
        return [_orphan(id, hold) for id, hold in answer.holds]

    def _resend(self) -> Steps[None]:
        while self._pending:
            command = self._pending.popleft()
            try:
                yield command
            except BaseException:
                self._pending.appendleft(command)
                raise

    def _resend_quietly(self) -> Steps[None]:
        try:
            yield from self._resend()
        except StoreUnavailable as error:
            _log.debug("The store still does not answer: %s", error)


def _money_of(hold: Hold) -> int | None:
    held = [held for rule, held in zip(hold.shape.rules, hold.held, strict=True) if rule.meter == Meter.USD]
    return max(held, default=None)


def _orphan(id: str, hold: Hold) -> Orphan:
    money = _money_of(hold)
    return Orphan(
        id,
        "open" if hold.state == State.OPEN else "expired",
        hold.note,
        None if money is None else to_decimal(money),
        instant(hold.created_ms),
        instant(hold.deadline_ms),
    )


def _status(line: Any, balance: Any) -> BudgetStatus:
    budget = line.budget
    free = max(line.limit - balance.spent - balance.reserved, 0)
    spent, reserved, available = (in_units(line.meter, n) for n in (balance.spent, balance.reserved, free))
    resets = instant(balance.resets_ms) if balance.resets_ms else None
    return BudgetStatus(
        budget.name, budget.scope, budget.meter, budget.window, budget.limit, spent, reserved, available, resets
    )


def _unread(budget: Any) -> BudgetStatus:
    return BudgetStatus(budget.name, budget.scope, budget.meter, budget.window, budget.limit, None, None, None, None)
