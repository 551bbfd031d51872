"""How an operation is planned and asked: steps without I/O, and the state that they share.

An operation is a generator that yields commands and is sent their answers. It is planned without I/O, makes one
trip to the store and is interpreted without I/O; it is planned again if the store's clock or its settings are further.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from llm_budget_hooks.engine.outage import Outage, Unsent
from llm_budget_hooks.engine.rebuilding import recover
from llm_budget_hooks.engine.refusals import Stage, killed, refusal, rules_to_come, with_ends
from llm_budget_hooks.engine.reservation import Reservation
from llm_budget_hooks.engine.settings import Changes, LiveSettings, live
from llm_budget_hooks.engine.trail import WARNED, Trail, refusal_text, refused_event, unique
from llm_budget_hooks.engine.utterance import Utterance, current_utterance
from llm_budget_hooks.engine.waits import timed
from llm_budget_hooks.errors import (
    AlreadyResolved,
    BudgetExceeded,
    ConfigurationError,
    ReservationConflict,
    StoreUnavailable,
)
from llm_budget_hooks.keys import normalised, tenant_name
from llm_budget_hooks.models import Call, Policy
from llm_budget_hooks.models.events import Event
from llm_budget_hooks.models.trail import event_facts
from llm_budget_hooks.plan import Plan, Planner
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.transitions import (
    MAX_AMOUNT,
    Command,
    Ending,
    Failure,
    Finish,
    Meter,
    Mode,
    Once,
    OnceAnswer,
    Post,
    Reserve,
    Reserved,
    Rule,
    Sampled,
    Samples,
    Settings,
    SettingsNow,
    Shape,
    State,
    Verdict,
)

T = TypeVar("T")
Steps = Generator[Command, Any, T]
Clock = Callable[[], datetime]

_log = logging.getLogger("llm_budget_hooks")
REPLANS = 8
_CHANGED_MEANWHILE = 64
_PENDING = 10_000
_KEPT_MS = 60_000
_STATE = {State.EXPIRED: "expired", State.RELEASED: "released", State.CHARGED: "settled", State.SETTLED: "settled"}


class Planning:
    """The state of an engine and the planning of its operations.

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
        origin: tuple[Any, ...] | None = None,
        trail: Trail | None = None,
        outage: Outage | None = None,
    ) -> None:
        self.policy = policy
        self.prices = PriceBook.of(policy)
        self._store = store
        self._clock = clock
        self._origin = origin
        self._trail = Trail() if trail is None else trail
        told = bool(self._trail.observers)
        self._ask, self._aask = timed(store, self._trail.waits) if told else (store.execute, store.aexecute)
        self._followed = told or self._trail.drain is not None
        self._planner = Planner(policy, self.prices, outbox=self._trail.drain is not None)
        self._outage = Outage() if outage is None else outage
        self._pending = Unsent(_PENDING)
        self._kept: deque[tuple[int, Finish, Reservation]] = deque(maxlen=2 * _PENDING)
        self._settings = LiveSettings()
        self._lowest_share = min((*policy.alert_at, 1.0))
        self._refusing: set[str] = set()
        self._utterances: WeakValueDictionary[tuple[str, str, str], Utterance] = WeakValueDictionary()

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation of this engine's parts, blocking."""
        try:
            command = next(steps)
            while True:
                try:
                    answer = self._ask(command)
                except BaseException as error:  # noqa: BLE001 - the operation decides what a failure means
                    if not self._recovered(error):
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
                    answer = await self._aask(command)
                except BaseException as error:  # noqa: BLE001 - the operation decides what a failure means
                    if not self._recovered(error):
                        command = steps.throw(error)
                else:
                    command = steps.send(answer)
        except StopIteration as stop:
            return cast("T", stop.value)

    def join(self, scope: Utterance) -> None:
        """Let an utterance know what its calls cost, for as long as somebody holds it."""
        self._utterances[scope.key] = scope

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

    def _planned(
        self, call: Call, mode: int, actual: tuple[int, int] | None = None, text: str = ""
    ) -> Steps[tuple[Plan, Reserved]]:
        """Plan and ask, again for as long as the store says that its clock is further.

        A hold that may have been taken though its answer never came is released with a later operation.
        """
        now = self.now_ms()
        for _ in range(REPLANS):
            if self._settings.kills:
                yield from self._refuse_killed(call)
            plan = self._plan(call, now, mode, actual, text)
            try:
                answer: Reserved = yield plan.command
            except BaseException as error:  # noqa: BLE001 - what it means is decided there
                return plan, self._unreached(plan, error)
            wrote = answer.verdict == Verdict.ADMITTED and mode != Mode.CHECK
            if self._outage.active and (wrote or not self._outage.unwritten):
                self._restored()
            if answer.verdict == Verdict.STALE:
                yield from self._refresh()
            elif answer.verdict == Verdict.LEARN:
                self._learnt(plan, answer)
            elif answer.verdict != Verdict.CLOCK:
                return plan, answer
            now = answer.now_ms
        raise StoreUnavailable("The store's clock moves faster than a call can be planned. Nothing is held.")

    def _plan(self, call: Call, now: int, mode: int, actual: tuple[int, int] | None, text: str) -> Plan:
        plan = self._planner.entry(call, now) if mode == Mode.ENTER else None
        if plan is None:
            plan = self._planner.plan(call, now, mode, actual)
        if mode == Mode.CHECK:
            plan.command.id = ""
        plan.command.now_ms = self._given_ms()
        plan.command.actual = text
        return plan

    def _unreached(self, plan: Plan, error: BaseException) -> Reserved:
        """What becomes of a call that the store did not decide on; raises where it does not pass."""
        admitted = False
        try:
            answer = self._alone(plan, error)
            admitted = answer.verdict == Verdict.ADMITTED
        finally:
            if not admitted and plan.command.mode == Mode.HOLD and getattr(error, "sent", True):
                self._bury(plan)
        return answer

    def _alone(self, plan: Plan, error: BaseException) -> Reserved:
        """What this process decides without its store."""
        if not isinstance(error, StoreUnavailable):
            raise error
        self._away(error)
        return self._outage.admit(plan, error, self.now_ms())

    def _recovered(self, error: BaseException) -> bool:
        """Whether balances that the store has lost are back, so that it can be asked again."""
        if not isinstance(error, StoreUnavailable) or not error.lost:
            return False
        try:
            recover(self._store, self._trail.ledger, self._planner, self._given_ms(), error)
        except Exception as problem:  # noqa: BLE001 - a ledger that is down too raises errors of its own
            level = logging.DEBUG if self._outage.active else logging.WARNING
            _log.log(level, "Lost balances are not back yet: %s", problem)
            return False
        self._book_again()
        return True

    def _book_again(self) -> None:
        """Send what this process has settled lately once more; what is known changes nothing."""
        oldest_ms = self.now_ms() - min(_KEPT_MS, self._planner.terms.remember_ms)
        while self._kept:
            at_ms, finish, held = self._kept.popleft()
            if at_ms >= oldest_ms:
                finish.hold = held.hold(at_ms, self._planner.terms.timeout_ms)
                finish.hold.state = State.RELEASED
                finish.final = finish.final or finish.ending == Ending.SETTLE
                self._pending.append(finish)

    def _keep_a_while(self, finish: Finish, held: Reservation, now_ms: int) -> None:
        """Remember the end of a hold until it is certain that the store does."""
        kept = self._kept
        while kept and kept[0][0] < now_ms - _KEPT_MS:
            kept.popleft()
        kept.append((now_ms, finish, held))

    def _away(self, error: StoreUnavailable) -> None:
        """Take note that the store is away, unless it is only busy."""
        now = self.now_ms()
        if not error.busy and self._outage.begin(error, now):
            self._trail.tell(Event("degraded", now, reason=str(error)))

    def _restored(self) -> None:
        """The store answers again."""
        if self._outage.end():
            self._trail.tell(Event("restored", self.now_ms()))

    def _learn(self, keys: tuple[str, ...]) -> Steps[None]:
        """Read histories that are not known."""
        answer: Sampled = yield Samples(keys, now_ms=self._given_ms())
        self._planner.histories.put(keys, answer.runs)

    def _learnt(self, plan: Plan, answer: Reserved) -> None:
        """Take note of the history that the store has read along."""
        if answer.runs is not None:
            self._planner.histories.put((plan.command.history,), (answer.runs,))

    def _bury(self, plan: Plan) -> None:
        """A hold may have been taken though its answer never came: it is released with a later operation."""
        command = plan.command
        lost = Finish(command.id, Ending.RELEASE, self._planner.terms, bury=True, now_ms=command.now_ms)
        self._pending.append(lost)

    def _refuse_killed(self, call: Call) -> Steps[None]:
        """Raise if the tenant is stopped, once the store says that this is still so."""
        tenant = tenant_name(call.tenant)
        if self._settings.killed(tenant) is not None:
            try:
                yield from self._refresh()
            except StoreUnavailable as error:
                _log.debug("What was killed when the store was last seen stays so: %s", error)
            switch = self._settings.killed(tenant)
            if switch is not None:
                raise killed(switch, call.tenant)

    def _refresh(self) -> Steps[None]:
        """Plan with the settings that the store has now."""
        answer: SettingsNow = yield Settings(now_ms=self._given_ms())
        self._apply(live(answer, self.policy))

    def _apply(self, settings: LiveSettings) -> None:
        limits = {
            tenant: {name: (o.limit, o.until_ms) for name, o in overrides.items() if o.limit is not None}
            for tenant, overrides in settings.overrides.items()
        }
        self._planner.override(settings.revision, limits)
        self._planner.histories.forget(settings.forgotten)
        self._settings = settings

    def _change(self, made: Callable[[LiveSettings, int], Changes]) -> Steps[bool]:
        """Change the settings as seen from what they are; again if somebody else changes the same ones meanwhile.

        Returns:
            whether anything was changed.
        """
        given = self._given_ms()
        answer: SettingsNow = yield Settings(now_ms=given)
        for _ in range(_CHANGED_MEANWHILE):
            self._apply(live(answer, self.policy))
            changes = made(self._settings, answer.now_ms)
            if not changes:
                return False
            answer = yield Settings(changes, tuple(answer.texts.get(name) for name, _ in changes), given)
            if answer.changed:
                self._apply(live(answer, self.policy))
                return True
        raise StoreUnavailable("Others keep changing the same setting; this change was not made. Try again.", busy=True)

    def _turned_away(self, call: Call, error: Exception) -> Steps[None]:
        """Leave a refusal in the trail, at most some a minute of one account, and tell observers."""
        trail = self._trail
        if not isinstance(error, BudgetExceeded):
            return
        now = self.now_ms()
        if (burst := trail.burst(call, error, now)) is not None and not self._outage.active:
            yield from self._tell_burst(*burst)
        if trail.drain is None and not trail.observers:
            return
        trail.tell(refused_event(call, error, now, trail.waits.take()))
        count = trail.refusals(call, error, now) if trail.drain is not None else 0
        if count:
            yield from self._post("refusal", refusal_text(call, error, count))

    def _post(self, kind: str, text: str, id: str | None = None, *, change: bool = False) -> Steps[None]:
        """Append an entry to the outbox, if there is a ledger; one that the store does not take goes to the journal.

        Entries of one kind and id become one row. An operator's change waits in a store that others see, for whichever
        process has a ledger.
        """
        drain = self._trail.drain
        if drain is None and not (change and self._store.shared):
            return
        entry = Post(((kind, id or unique(), text),), self._planner.terms.outbox_max, self.now_ms())
        if self._outage.active and self._outage.keep_post(entry):
            return
        try:
            yield entry
        except StoreUnavailable as error:
            if not self._outage.keep_post(entry):
                _log.warning("An entry of the trail was lost: %s", error)
            return
        if drain is not None:
            drain.poke()

    def _alert(self, shape: Shape, keys: tuple[str, ...], spent: tuple[int, ...], call: Call, now: int) -> Steps[None]:
        """Fire the alerts of thresholds that were reached, each once among all processes."""
        for rule, amount, share, asked in self._trail.due(shape.rules, keys, spent, self.policy.alert_at, now):
            first = yield from self._once(asked)
            if first is None:
                return
            if first:
                yield from self._tell_alert(rule, amount, share, call, now)

    def _once(self, asked: Once) -> Steps[bool | None]:
        """Whether an alert is this process's to give; None if the store does not answer."""
        asked.now_ms = self._given_ms()
        try:
            answer: OnceAnswer = yield asked
        except StoreUnavailable as error:
            _log.warning("An alert could not be checked: %s", error)
            return None
        return answer.yes

    def _tell_alert(self, rule: Rule, amount: int, share: float, call: Call, now: int) -> Steps[None]:
        tenant = call.tenant if rule.scope != "global" else None
        user = call.user if rule.scope == "user" else None
        warned = share == WARNED
        event = Event(
            "warned" if warned else "alert", now, budget=rule.budget, scope=rule.scope, limit=rule.base, spent=amount,
            meter="usd" if rule.meter == Meter.USD else "tokens", threshold=None if warned else share,
            tenant=tenant, user=user,
        )  # fmt: skip
        self._trail.alert(event)
        what = "passed its limit" if warned else f"reached {share:.0%} of its limit"
        text = f"{rule.budget} has {what}"
        yield from self._post("event", event_facts(event.kind, text=text, tenant=tenant, user=user))

    def _tell_burst(self, event: Event, asked: Once) -> Steps[None]:
        """Alert of a burst of refusals, once among all processes that see it."""
        if (yield from self._once(asked)):
            self._trail.alert(event)
            text = f"{event.budget} has refused {event.times} times within a minute"
            yield from self._post("event", event_facts("alert", text=text, tenant=event.tenant, user=event.user))

    def _turn_away(self, call: Call, plan: Plan, answer: Reserved, stage: Stage = "call") -> Steps[Exception]:
        """What to raise for a call that the store refused, after the trail and alerts.

        An account can have reached its limit by a hold that expired or a settle elsewhere, which nobody is told of.
        """
        error = yield from self._refused(call, plan, answer, stage)
        yield from self._turned_away(call, error)
        if answer.failures and not self._outage.active:
            reached = {failure.index: failure.spent for failure in answer.failures}
            shape, keys = plan.command.shape, plan.command.keys
            spent = tuple(reached.get(at, 0) for at in range(len(keys)))
            yield from self._alert(shape, keys, spent, call, answer.now_ms)
        return error

    def _refused(self, call: Call, plan: Plan, answer: Reserved, stage: Stage = "call") -> Steps[Exception]:
        if answer.verdict == Verdict.CONFLICT:
            return ReservationConflict(plan.id)
        if answer.verdict == Verdict.ENDED:
            return AlreadyResolved(plan.id, _STATE[State(answer.state)])
        rules = plan.command.shape.rules
        failures = yield from self._with_ends(call, plan.command, answer)
        windows = self._planner.windows(call.tenant)
        return refusal(call, self.policy, rules, failures, windows, answer.now_ms, stage)

    def _with_ends(self, call: Call, command: Reserve, answer: Reserved) -> Steps[tuple[Failure, ...]]:
        """The failures of a refusal; where a limit ends before there is room, the store is asked by the next one."""
        rules = command.shape.rules
        ends = self._planner.ends(call.tenant, answer.now_ms)
        if self._outage.active or not any(rules[failure.index].budget in ends for failure in answer.failures):
            return answer.failures
        later = Shape(rules_to_come(rules, ends))
        try:
            found: Reserved = yield replace(
                command, id="", mode=Mode.CHECK, shape=later, history="", since_ms=MAX_AMOUNT, actual=""
            )
        except StoreUnavailable as error:
            _log.debug("When a limit that ends leaves room was not found: %s", error)
            return answer.failures
        if found.verdict not in (Verdict.ADMITTED, Verdict.REFUSED):
            return answer.failures
        return with_ends(answer.failures, found.failures, rules, ends)

    def _resend(self, batches: int = 2**31) -> Steps[None]:
        sent = bool(self._pending)
        yield from self._resend_pending()
        if self._outage.waiting and ((yield from self._replay(batches)) or sent):
            self._restored()

    def _replay(self, batches: int) -> Steps[bool]:
        """Book in the store what the journal has, in order; whether it had something."""
        outage, done = self._outage, 0
        for _ in range(batches):
            commands = outage.next(self._planner.terms, self._given_ms())
            if not commands:
                break
            try:
                for number, command in commands:
                    yield from self._take_or_drop(command)
                    done = number
            finally:
                if done:
                    outage.done(done, self.now_ms())
        return bool(done)

    def _resend_pending(self) -> Steps[None]:
        while self._pending:
            command = self._pending.popleft()
            try:
                yield from self._take_or_drop(command)
            except BaseException:
                self._pending.appendleft(command)
                raise

    def _take_or_drop(self, command: Command) -> Steps[None]:
        """Send what is sent later; what no store could take would be in the way of all that comes after it."""
        try:
            yield command
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it will be the same the next time
            words = type(error).__name__, getattr(command, "id", "")
            _log.error("What the store was to be told later makes it fail (%s), and is dropped: %s", *words)

    def _resend_quietly(self) -> Steps[None]:
        try:
            yield from self._resend(1)
        except StoreUnavailable as error:
            self._away(error)
            _log.debug("The store still does not answer: %s", error)
