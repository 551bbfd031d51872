"""What an engine leaves behind: entries for the ledger, words to observers, and alerts that fire once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

from llm_budget_hooks.engine.reservation import Reservation
from llm_budget_hooks.engine.waits import Waits
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.keys import digest, identity
from llm_budget_hooks.models import Call
from llm_budget_hooks.models.events import Event, EventKind, Observer
from llm_budget_hooks.models.trail import COUNTS, refusal_facts
from llm_budget_hooks.money import format_usd
from llm_budget_hooks.transitions import NO_LIMIT, Kind, Once, Rule

_log = logging.getLogger("llm_budget_hooks")
_TOLD_PER_MINUTE: Final = 10
_MOST: Final = 10_000
_FOR_EVER: Final = 2**52
_KEEP_MS: Final = 40 * 86_400_000
_RATES: Final = ("calls", "utterances", "in_flight")
_METERS: Final = {"spend": "usd", "answer_estimate": "usd", "answer_actual": "usd"}

BURST: Final = 20
"""So many rate refusals of one scope in a minute, as one process sees them, alert; they never stop anybody."""

WARNED: Final = -1.0
"""Stands for the threshold of a limit that only warns, apart from all that a policy's `alert_at` can name."""

OnAlert = Callable[[Mapping[str, Any]], object]


class Drain(Protocol):
    """What moves entries into a ledger; `llm_budget_hooks.ledger.Drain` is one."""

    def poke(self) -> None:
        """Say that there is something to drain."""

    def flush(self, timeout_s: float = ...) -> bool:
        """Drain everything now; False if that was not possible in time."""

    def close(self, timeout_s: float = ...) -> bool:
        """Flush, and end the thread."""


class Trail:
    """Where an engine's entries, words and alerts go.

    Attributes:
        drain: moves the outbox into a ledger, None without one.
        ledger: the ledger, None without one.
        observers: are told of every event.
        on_alert: is told of alerts, None if nobody is.
        webhook: is told of them too; closed with the engine.
        waits: how long the store took, where there are observers.
    """

    def __init__(
        self,
        drain: Drain | None = None,
        ledger: Any = None,
        observers: tuple[Observer, ...] = (),
        on_alert: OnAlert | None = None,
        webhook: Any = None,
    ) -> None:
        self.drain = drain
        self.ledger = ledger
        self.observers = observers
        self.on_alert = on_alert
        self.webhook = webhook
        self.waits = Waits()
        self._told: dict[tuple[Any, ...], list[int]] = {}
        self._fired: dict[tuple[str, float], int] = {}
        self._bursts: dict[tuple[str | None, str, str], tuple[int, int]] = {}

    def tell(self, event: Event) -> None:
        """Tell all observers; what they raise is logged and changes nothing."""
        for observer in self.observers:
            try:
                observer(event)
            except Exception:  # noqa: BLE001 - whatever it is, the call goes on
                _log.exception("An observer failed.")

    def refusals(self, call: Call, error: BudgetExceeded, now_ms: int) -> int:
        """How many refusals an entry about this one stands for; 0: enough were told this minute, it is only counted."""
        key = (error.code, error.budget, identity(call.tenant or "", call.user or ""))
        minute = now_ms // 60_000
        told = self._told.get(key)
        if told is None:
            if len(self._told) >= _MOST:
                self._told.clear()
            told = self._told[key] = [minute, 0, 0]
        if told[0] != minute:
            told[0], told[1] = minute, 0
        if told[1] >= _TOLD_PER_MINUTE:
            told[2] += 1
            return 0
        told[1] += 1
        count, told[2] = told[2] + 1, 0
        return count

    def due(
        self,
        rules: tuple[Rule, ...],
        keys: tuple[str, ...],
        spent: tuple[int, ...],
        shares: tuple[float, ...],
        now: int,
    ) -> Iterator[tuple[Rule, int, float, Once]]:
        """The thresholds that accounts have reached and that this process has not seen reached, with what to ask."""
        for rule, key, amount in zip(rules, keys, spent, strict=False):
            asked = (*shares, WARNED) if rule.limit == NO_LIMIT and amount > rule.base else shares
            for share in asked if rule.base and amount else ():
                if amount < rule.base * share or self._fired.get((key, share), 0) > now:
                    continue
                if len(self._fired) >= _MOST:
                    self._fired.clear()
                every = rule.length_ms if rule.kind in (Kind.ROLLING, Kind.FIXED) else _FOR_EVER
                self._fired[key, share] = now + every
                yield rule, amount, share, Once(digest("alert", key, str(share)), 0, every, _KEEP_MS)

    def burst(self, call: Call, error: BudgetExceeded, now_ms: int) -> tuple[Event, Once] | None:
        """What to alert of, and what to ask before, if this is the 20th rate refusal of one scope in a minute."""
        if error.code not in _RATES:
            return None
        tenant = call.tenant if error.scope != "global" else None
        user = call.user if error.scope == "user" else None
        key, minute = (error.budget, *identity(tenant or "", user or "")), now_ms // 60_000
        if len(self._bursts) >= _MOST:
            self._bursts.clear()
        since, count = self._bursts.get(key, (minute, 0))
        count = count + 1 if since == minute else 1
        self._bursts[key] = (minute, count)
        if count != BURST:
            return None
        event = Event(
            "alert", now_ms, tenant=tenant, user=user, budget=error.budget, scope=error.scope, meter=error.code,
            code=error.code, times=BURST,
        )  # fmt: skip
        names = [str(part) for part in (*key, minute)]
        return event, Once(digest("burst", *names), 0, _FOR_EVER, 120_000)

    def alert(self, event: Event) -> None:
        """Tell of one alert, or of one limit that only warns: the log, the observers, the webhook, `on_alert`."""
        text = _alert_text(event)
        _log.warning("%s", text)
        self.tell(event)
        message = {"text": text, **{name: value for name, value in event._asdict().items() if value is not None}}
        if self.webhook is not None:
            self.webhook(message)
        if self.on_alert is not None:
            try:
                self.on_alert(message)
            except Exception:  # noqa: BLE001 - whatever it is, the call goes on
                _log.exception("on_alert failed.")


def _alert_text(event: Event) -> str:
    """An alert for people, with no name of a tenant or user."""
    if event.kind != "warned" and event.threshold is None:
        return f"Budget {event.budget} has refused {event.times} times within a minute."
    show = format_usd if event.meter == "usd" else str
    spent = f"{show(event.spent or 0)} of {show(event.limit or 0)}" + ("" if event.meter == "usd" else " tokens")
    if event.kind == "warned":
        return f"Budget {event.budget} has passed its limit, and its cutoff lets calls pass ({spent})."
    return f"Budget {event.budget} has reached {round((event.threshold or 0) * 100)} % of its limit ({spent})."


def unique() -> str:
    """An id for an entry that is no hold."""
    return os.urandom(10).hex()


class Note(NamedTuple):
    """What a hold's note tells: the model, the name its price was found under, the tier asked for, the estimate."""

    model: str
    priced_as: str
    tier: str | None = None
    estimate_nusd: int | None = None


def note_of(note: str) -> Note:
    """A hold's note, read."""
    if note.startswith("["):
        facts = json.loads(note)
        key, tier = (*facts[8:10], None, None)[:2]
        return Note(str(facts[5]), str(key or facts[5]), tier, int(facts[6]))
    model, key, tier = (*note.split("\n"), "", "")[:3]
    return Note(model, key or model, tier or None)


def refusal_text(call: Call, error: BudgetExceeded, count: int) -> str:
    """The entry of a refusal."""
    numbers = {name: _units(getattr(error, name)) for name in ("limit", "spent", "reserved", "requested")}
    meter = _METERS.get(error.code, error.code if error.budget else None)
    return refusal_facts(
        code=error.code, stage=error.stage, budget=error.budget, scope=error.scope, meter=meter,
        failed=",".join(error.failed), tenant=call.tenant, user=call.user, utterance=call.utterance,
        feature=call.feature, step=call.step, model=call.model, count=count, **numbers,
    )  # fmt: skip


def held_event(
    kind: EventKind, held: Reservation, now_ms: int, wait_s: float | None, cost_nusd: int | None, actual: str
) -> Event:
    """What observers are told of a hold: that it is taken, or, with what it cost and `run_actual`, its end."""
    call, price = held.call, held._price
    served, known, exact, _, *counts = json.loads(actual) if actual else (None, None, True, ())
    used = dict(zip(COUNTS, counts, strict=False))
    booked = None if cost_nusd is None else cost_nusd - held._told_nusd
    held._told_nusd = cost_nusd or 0
    return Event(
        kind, now_ms, id=held.id, tenant=call.tenant, user=call.user, feature=call.feature, step=call.step,
        utterance=call.utterance, model=call.model, served=served, provider=(price and price.provider) or None,
        estimate_nusd=held._estimate_nusd, cost_nusd=cost_nusd, booked_nusd=booked, basis=held.basis,
        exact=None if cost_nusd is None else kind == "released" or (exact and known is not None),
        input_tokens=used.get("input_tokens"), cached_input_tokens=used.get("cached_input_tokens"),
        output_tokens=used.get("output_tokens"), reasoning_tokens=used.get("reasoning_tokens"), latency_s=wait_s,
        held_s=None if cost_nusd is None else (now_ms - held._created_ms) / 1000,
    )  # fmt: skip


def refused_event(call: Call, error: BudgetExceeded, now_ms: int, wait_s: float | None) -> Event:
    """What observers are told of a refusal."""
    numbers: dict[str, Any] = {
        name: _units(getattr(error, name)) for name in ("limit", "spent", "reserved", "requested")
    }
    return Event(
        "refused", now_ms, tenant=call.tenant, user=call.user, feature=call.feature, step=call.step,
        utterance=call.utterance, model=call.model, budget=error.budget, scope=error.scope, code=error.code,
        stage=error.stage, busy=error.busy, latency_s=wait_s, **numbers,
    )  # fmt: skip


def _units(amount: Decimal | int | None) -> int | None:
    return int(amount.scaleb(9)) if isinstance(amount, Decimal) else amount
