"""The operations of the engine: each is a generator that yields commands and is sent their answers.

Planned without I/O, one trip to the store, interpreted without I/O; the blocking and the awaited form of a
method differ in one line. Settle and release never raise for a store that cannot be reached: what they had to
say is kept and sent with a later operation. A reserve whose reply was lost is released the same way, so that a
call that was not made is not charged.
"""

from __future__ import annotations

import logging
from datetime import datetime
from decimal import Decimal
from typing import Any

from llm_budget_hooks.engine.answers import Answers, call_of
from llm_budget_hooks.engine.planning import Steps
from llm_budget_hooks.engine.readings import money_of
from llm_budget_hooks.engine.reservation import Reservation
from llm_budget_hooks.engine.trail import Note, held_event, note_of
from llm_budget_hooks.engine.utterance import Utterance
from llm_budget_hooks.errors import (
    AlreadyResolved,
    BudgetExceeded,
    ConfigurationError,
    PriceUnknown,
    ReservationConflict,
    StoreUnavailable,
)
from llm_budget_hooks.keys import hold_key
from llm_budget_hooks.models import (
    Call,
    Settlement,
    SettlementStatus,
    Usage,
    instant,
)
from llm_budget_hooks.models.calls import checked_cost
from llm_budget_hooks.models.events import EventKind
from llm_budget_hooks.models.trail import event_facts, run_actual
from llm_budget_hooks.money import MAX_CALL_NUSD, MAX_EXACT
from llm_budget_hooks.plan import Plan
from llm_budget_hooks.pricing import Price
from llm_budget_hooks.transitions import (
    Ended,
    Ending,
    Finish,
    Finished,
    Hold,
    Mode,
    OrphanList,
    Orphans,
    Reserved,
    State,
    Verdict,
    for_ledger,
)

_log = logging.getLogger("llm_budget_hooks")
_STATUS: dict[int, SettlementStatus] = {
    Ended.SETTLED: "settled",
    Ended.RELEASED: "released",
    Ended.LATE: "late",
    Ended.ALREADY_SETTLED: "already_settled",
    Ended.ALREADY_RELEASED: "already_released",
    Ended.UNKNOWN: "unknown",
}
_NO_REMARKS: tuple[str, ...] = ()
_UNCHANGED = (Ended.ALREADY_SETTLED, Ended.ALREADY_RELEASED, Ended.UNKNOWN)
_STATE = {State.EXPIRED: "expired", State.RELEASED: "released", State.CHARGED: "settled", State.SETTLED: "settled"}


class Operations(Answers):
    """What the engine does, as steps without I/O."""

    def enter(self, scope: Utterance) -> Steps[None]:
        """Count an utterance that begins in the budgets that count it then, whatever it will call.

        Raises:
            BudgetExceeded: a budget said no; nothing is counted.
        """
        self._trail.waits.take()
        call = call_of(scope)
        if self._planner.entry(call, self.now_ms()) is None:
            return
        plan, answer = yield from self._asked(call, Mode.ENTER)
        if answer.verdict != Verdict.ADMITTED:
            raise (yield from self._turn_away(call, plan, answer, "start"))
        facts = {"tenant": scope.tenant, "user": scope.user, "feature": scope.feature, "utterance": scope.id}
        yield from self._post("event", event_facts("asked", **facts))

    def _at_once(self, call: Call) -> tuple[Call, Utterance | None, Plan] | None:
        """The plan of a reserve that nothing has to come before; None: `_reserve` knows what."""
        if self._pending or self._settings.kills or self._outage.waiting:
            return None
        call, scope = self._joined(call)
        given = self._given_ms()
        try:
            plan = self._planner.plan(call, self._store.now_ms() if given is None else given)
        except BudgetExceeded:
            return None
        if plan.histories is not None and plan.histories[1] and self._begins(call, scope):
            return None
        plan.command.now_ms = given
        return call, scope, plan

    def _undecided(self, planned: tuple[Call, Utterance | None, Plan], error: BaseException) -> Steps[Reservation]:
        """What becomes of a reserve that was planned at once and that the store did not decide on."""
        call, scope, plan = planned
        if self._recovered(error):
            return (yield from self._reserve(call))
        try:
            answer = self._unreached(plan, error)
        except BudgetExceeded as refused:
            yield from self._turned_away(call, refused)
            raise
        return (yield from self._decided(call, scope, plan, answer))

    def _reserve(self, call: Call) -> Steps[Reservation]:
        self._trail.waits.take()
        if self._pending or self._outage.waiting:
            yield from self._resend_quietly()
        call, scope = self._joined(call)
        if (call.id is None or scope is not None) and self._begins(call, scope):
            yield from self._expect_first(call)
        plan, answer = yield from self._asked(call, Mode.HOLD)
        return (yield from self._decided(call, scope, plan, answer))

    def _asked(
        self, call: Call, mode: int, actual: tuple[int, int] | None = None, text: str = ""
    ) -> Steps[tuple[Plan, Reserved]]:
        """Same as `_planned`; a call that is turned away before the store decides on it is in the trail too."""
        try:
            return (yield from self._planned(call, mode, actual, text))
        except BudgetExceeded as error:
            if mode == Mode.ENTER:
                error.stage = "start"
            yield from self._turned_away(call, error)
            raise

    def _decided(self, call: Call, scope: Utterance | None, plan: Plan, answer: Reserved) -> Steps[Reservation]:
        if answer.verdict in (Verdict.STALE, Verdict.CLOCK, Verdict.LEARN):
            self._learnt(plan, answer)
            return (yield from self._reserve(call))
        if answer.verdict == Verdict.DUPLICATE:
            yield from self._as_held(plan, answer)
        elif answer.verdict != Verdict.ADMITTED:
            raise (yield from self._turn_away(call, plan, answer))
        return self._held(call, scope, plan, answer)

    def _held(self, call: Call, scope: Utterance | None, plan: Plan, answer: Reserved) -> Reservation:
        reservation = Reservation(call, plan, answer)
        if answer.runs is not None:
            self._learnt(plan, answer)
        if scope is not None:
            scope.begin(reservation.id, plan.estimate_nusd)
        if self._trail.observers:
            self._told("reserved", reservation, answer.now_ms)
        return reservation

    def _as_held(self, plan: Plan, answer: Reserved) -> Steps[None]:
        """Fill a plan and its answer with what the same attempt holds already, maybe under another policy."""
        found: OrphanList = yield Orphans(self._planner.terms, id=plan.command.id, now_ms=plan.command.now_ms)
        for _, hold in found.holds:
            answer.held, answer.starts = hold.held, hold.starts
            if plan.command.keys != hold.keys:
                plan.command.shape, plan.command.keys, plan.command.scopes = hold.shape, hold.keys, hold.scopes

    def _settle_behind(self, held: Reservation, finish: Finish, usage: Usage | None) -> Steps[Settlement]:
        """Settle a hold while there are others to be told of before."""
        answer = yield from self._finish(finish, held)
        return self._settlement(held, answer, finish.cost_nusd, held._estimate_nusd, finish.final, usage)

    def _settle_by_id(
        self, given: object, usage: Usage | None, cost: Decimal | int | str | None, model: str | None
    ) -> Steps[Settlement]:
        """Settle a hold that is known by its id alone."""
        id = _id_of(given)
        known = None if cost is None else checked_cost("settle", "cost", cost)
        estimate, terms, remarks = None, self._planner.terms, _NO_REMARKS
        if known is None and usage is not None:
            hold = yield from self._remembered(id)
            note = note_of(hold.note) if hold is not None else Note("", "")
            if hold is not None:
                estimate = note.estimate_nusd if note.estimate_nusd is not None else money_of(hold)
            price = self._planner.price(note.priced_as) or self._planner.price(note.model)
            at_ms = hold.created_ms if hold is not None else None
            known, remarks = self._cost_at(usage, model, price, note.tier, at_ms)
        final = usage is not None or cost is not None
        actual = run_actual(model, known, usage, flags=_flags(final, known, remarks))
        tokens = usage.total_tokens if usage else None
        finish = Finish(hold_key(id), Ending.SETTLE, terms, known, tokens, final, actual=actual)
        answer = yield from self._finish(finish, None)
        return self._settlement(id, answer, known, estimate, final, usage)

    def _settling(
        self, held: Reservation, usage: Usage | None, cost: Decimal | int | str | None, model: str | None
    ) -> Finish:
        """The command that settles a hold which its owner carries."""
        known = None if cost is None else checked_cost("settle", "cost", cost)
        tokens, remarks = None, _NO_REMARKS
        told = self._followed or for_ledger(held._note)
        if usage is not None:
            tokens = usage.input_tokens + usage.output_tokens
            if known is None:
                price, tier = held._price, held.call.service_tier
                known, remarks = self._cost_at(usage, model, price, tier, held._created_ms, told)
        final = usage is not None or cost is not None
        terms = self._planner.terms
        actual = run_actual(model, known, usage, flags=_flags(final, known, remarks)) if told else ""
        samples = self._samples(held, usage, known) if final and held._histories is not None else ()
        now = self._given_ms()
        return Finish(held._key, Ending.SETTLE, terms, known, tokens, final, None, False, now, samples, actual)

    def _samples(self, held: Reservation, usage: Usage | None, known: int | None) -> tuple[tuple[str, int], ...]:
        """What a run adds to its histories: nothing if it was a cache hit, or if its usage is a guess."""
        output, step, answer = held._histories or ("", "", "")
        if known is None or known > MAX_CALL_NUSD or not _is_exact(usage, known):
            return ()
        if not (known or (usage and usage.total_tokens)):
            return ()
        costs = [(key, known) for key in (step, answer) if key]
        return ((output, usage.output_tokens), *costs) if output and usage is not None else tuple(costs)

    def _cost_at(
        self,
        usage: Usage,
        served: str | None,
        price: Price | None,
        tier: str | None,
        at_ms: int | None,
        told: bool = True,
    ) -> tuple[int | None, tuple[str, ...]]:
        """The price of a usage at the instant of its reserve, as the model that served, and remarks on it."""
        if price is None:
            price, served = self._planner.price(served) if served else None, None
            if price is None:
                return None, _NO_REMARKS
        if served is not None or price.varies:
            price = self.prices.served(price, served, at_ms=at_ms)
        cost, remarks = price.cost_nusd(usage, asked_tier=tier), price.remarks(usage) if told else _NO_REMARKS
        return cost, remarks if cost < MAX_EXACT else (*remarks, "it cost more than is counted")

    def _unsent(self, finish: Finish, held: Reservation, error: StoreUnavailable) -> None:
        """Keep a settle that the store did not take, with what it needs to be booked later."""
        if finish.hold is None:
            finish.hold = held.hold(self.now_ms(), self._planner.terms.timeout_ms)
        self._keep(finish, error)
        self._told_kept(finish, held)

    def _keep(self, finish: Finish, error: StoreUnavailable) -> None:
        """Keep a settle or a release until the store answers again."""
        self._away(error)
        if not self._outage.keep(finish, self.now_ms()):
            self._pending.append(finish)
        _log.info("A settle or release is kept until the store answers again: %s", error)

    def _remembered(self, id: str) -> Steps[Hold | None]:
        """A hold that is known by its id alone, if the store still knows what it was for."""
        try:
            found: OrphanList = yield Orphans(self._planner.terms, id=hold_key(id), now_ms=self._given_ms())
        except StoreUnavailable:
            return None
        return found.holds[0][1] if found.holds else None

    def _release(self, reservation: Reservation | str) -> Steps[Settlement]:
        held = reservation if isinstance(reservation, Reservation) else None
        key = held._key if held else hold_key(_id_of(reservation))
        answer = yield from self._finish(Finish(key, Ending.RELEASE, self._planner.terms), held)
        return self._settlement(reservation, answer, 0, held._estimate_nusd if held else None, True)

    def _finish(self, command: Finish, held: Reservation | None) -> Steps[Finished | None]:
        """End a hold; None if the store could not be reached, and the command is kept for later."""
        command.now_ms = self._given_ms()
        try:
            if self._outage.waiting:
                yield from self._resend(1)
            if self._outage.waiting:
                if held is not None:
                    command.hold = held.hold(self.now_ms(), self._planner.terms.timeout_ms)
                if self._outage.keep(command, self.now_ms()):
                    if held is not None:
                        self._told_kept(command, held)
                    return None
            answer: Finished = yield command
            if self._outage.active:
                self._restored()
            if answer.ended == Ended.UNKNOWN and held is not None:
                self._restored()
                yield from self._resend(1)
                command.hold = held.hold(answer.now_ms, self._planner.terms.timeout_ms)
                answer = yield command
        except StoreUnavailable as error:
            if held is not None:
                self._unsent(command, held, error)
            else:
                self._keep(command, error)
            return None
        except BaseException as error:
            self._keep_unless_broken(command, error)
            raise
        if held is not None:
            if answer.state:
                held._ended = answer.state
            self._after(command, held, answer)
            if self._near(held, answer):
                yield from self._alert_of(held, answer)
        elif self._trail.drain is not None:
            self._trail.drain.poke()
        return answer

    def _unanswered(self, finish: Finish, held: Reservation, error: BaseException) -> Settlement:
        """What a settle returns that the store did not answer: it is kept, and sent again later."""
        if not isinstance(error, StoreUnavailable):
            self._keep_unless_broken(finish, error)
            raise error
        self._unsent(finish, held, error)
        return self._settlement(held, None, finish.cost_nusd, held._estimate_nusd, finish.final)

    def _keep_unless_broken(self, finish: Finish, error: BaseException) -> None:
        """Keep what was interrupted; what made the store fail would do so each time it is sent."""
        if not isinstance(error, Exception):
            self._pending.append(finish)

    def _ended(self, finish: Finish, held: Reservation, answer: Finished, usage: Usage | None) -> Steps[Settlement]:
        """What a settle returns for a hold that was not open; one that the store has forgotten is sent along."""
        given: Finished | None = answer
        if answer.ended == Ended.UNKNOWN:
            given = yield from self._finish(finish, held)
        else:
            if answer.state:
                held._ended = answer.state
            self._after(finish, held, answer)
            if self._near(held, answer):
                yield from self._alert_of(held, answer)
        return self._settlement(held, given, finish.cost_nusd, held._estimate_nusd, finish.final, usage)

    def _after(self, finish: Finish, held: Reservation, answer: Finished) -> None:
        """Let the histories, the drain and the observers know that a hold has ended."""
        if self._store.forgets:
            self._keep_a_while(finish, held, answer.now_ms)
        trail = self._trail
        if finish.samples and answer.ended in (Ended.SETTLED, Ended.LATE):
            for key, value in finish.samples:
                self._planner.histories.add(key, answer.now_ms, value)
        if trail.drain is not None:
            trail.drain.poke()
        if trail.observers and answer.ended not in _UNCHANGED:
            kind: Any = _STATUS[answer.ended]
            self._told_end(kind, finish, held, answer.now_ms)

    def _told_end(self, kind: EventKind, finish: Finish, held: Reservation, now_ms: int) -> None:
        """Tell observers that a hold has ended, or will have, once the store is back."""
        known = finish.cost_nusd if finish.final else None
        cost = 0 if kind == "released" else held._estimate_nusd if known is None else known
        self._told(kind, held, now_ms, cost, finish.actual)

    def _told_kept(self, finish: Finish, held: Reservation) -> None:
        if self._trail.observers:
            kind: EventKind = "released" if finish.ending == Ending.RELEASE else "settled"
            self._told_end(kind, finish, held, self.now_ms())

    def _told(
        self, kind: EventKind, held: Reservation, now_ms: int, cost_nusd: int | None = None, actual: str = ""
    ) -> None:
        """Tell observers of a hold."""
        trail = self._trail
        trail.tell(held_event(kind, held, now_ms, trail.waits.take(), cost_nusd, actual))

    def _near(self, held: Reservation, answer: Finished) -> bool:
        """Whether a settle has brought an account to a share of its limit that alerts."""
        spent, lowest = answer.spent, self._lowest_share
        near = [at for at, limit in held._shape.watched if spent[at] >= limit * lowest] if spent else None
        return bool(near)

    def _alert_of(self, held: Reservation, answer: Finished) -> Steps[None]:
        yield from self._alert(held._shape, held._keys, answer.spent, held.call, answer.now_ms)

    def _settled(self, finish: Finish, held: Reservation, answer: Finished, usage: Usage | None) -> Settlement:
        """What a settle returns for a hold that was open."""
        held._ended = answer.state
        self._after(finish, held, answer)
        known, estimate = finish.cost_nusd, held._estimate_nusd
        final = finish.final and known is not None
        booked = known if final and known is not None else estimate
        exact = final and _is_exact(usage, known)
        if self._utterances:
            self._tell(held, booked, exact)
        return Settlement(held.id, "settled", booked, estimate, exact)

    def _settlement(
        self,
        reservation: Reservation | str,
        answer: Finished | None,
        cost: int | None,
        estimate: int | None,
        final: bool,
        usage: Usage | None = None,
    ) -> Settlement:
        id = reservation.id if isinstance(reservation, Reservation) else reservation
        if answer is None:
            return Settlement(id, "unknown", None, estimate, exact=False, pending=True)
        status = _STATUS[answer.ended]
        if answer.ended in _UNCHANGED:
            return Settlement(id, status, None, estimate, differs=answer.differs)
        booked, exact = cost if final and cost is not None else estimate, final and _is_exact(usage, cost)
        self._tell(reservation, booked or 0, exact)
        return Settlement(id, status, booked, estimate, exact)

    def _tell(self, reservation: Reservation | str, nusd: int, exact: bool) -> None:
        """Let the utterance of this process know what one of its calls cost."""
        scope = self._live(reservation.call) if isinstance(reservation, Reservation) else None
        if scope is not None and isinstance(reservation, Reservation):
            scope.end(reservation.id, nusd, exact=exact)

    def _extend(self, reservation: Reservation | str) -> Steps[datetime]:
        held = reservation if isinstance(reservation, Reservation) else None
        key = held._key if held else hold_key(_id_of(reservation))
        answer: Finished = yield Finish(key, Ending.EXTEND, self._planner.terms, now_ms=self._given_ms())
        if answer.ended != Ended.EXTENDED:
            id = held.id if held else _id_of(reservation)
            raise AlreadyResolved(id, _STATE.get(State(answer.state), "unknown"))
        if held is not None:
            held._deadline_ms = answer.deadline_ms
        return instant(answer.deadline_ms)

    def _charge(
        self, call: Call, cost: Decimal | int | str | None, usage: Usage | None, force: bool
    ) -> Steps[Settlement]:
        if cost is None and usage is None:
            raise ConfigurationError("charge needs what to book: cost=... or usage=...")
        if self._pending or self._outage.waiting:
            yield from self._resend_quietly()
        call, scope = self._joined(call)
        known, remarks = checked_cost("charge", "cost", cost) if cost is not None else None, _NO_REMARKS
        if known is None and usage is not None:
            price = self._planner.price(call.model)
            known, remarks = self._cost_at(usage, None, price, call.service_tier, self.now_ms(), self._followed)
            if known is None:
                unknown = PriceUnknown(f"No price is known for model {call.model!r}, so its usage cannot be charged.")
                yield from self._turned_away(call, unknown)
                raise unknown
        tokens = usage.total_tokens if usage else (call.input_tokens or 0) + (call.max_output_tokens or 0)
        mode = Mode.FORCE if force else Mode.CHARGE
        text = run_actual(None, known or 0, usage, flags=remarks) if self._followed else ""
        plan, answer = yield from self._asked(call, mode, (known or 0, tokens), text)
        booked = known or 0
        if answer.verdict == Verdict.ENDED:
            return Settlement(plan.id, "already_settled")
        if answer.verdict == Verdict.DUPLICATE:
            raise ReservationConflict(plan.id)
        if answer.verdict != Verdict.ADMITTED:
            raise (yield from self._turn_away(call, plan, answer))
        if scope is not None:
            scope.end(plan.id, booked, exact=_is_exact(usage, booked))
        if self._trail.observers:
            self._told("settled", Reservation(call, plan, answer), answer.now_ms, booked, text)
        if self._trail.drain is not None:
            self._trail.drain.poke()
        yield from self._alert(plan.command.shape, plan.command.keys, answer.spent, call, answer.now_ms)
        return Settlement(plan.id, "settled", booked, booked, _is_exact(usage, booked))


def _id_of(reservation: object) -> str:
    if isinstance(reservation, str) and reservation.strip():
        return reservation
    raise ConfigurationError(f"pass the Reservation that reserve returned, or its id, not {reservation!r:.60}")


def _is_exact(usage: Usage | None, known: int | None) -> bool:
    """Whether a cost is the truth: neither from counts that are a guess nor cut to the most that is counted."""
    return known is not None and known < MAX_EXACT and (usage is None or usage.exact)


def _flags(final: bool, known: int | None, remarks: tuple[str, ...]) -> tuple[str, ...]:
    return ("unpriced",) if final and known is None else remarks
