"""What an engine does while its store is away: which calls pass, and where they are written down meanwhile.

``deny`` lets none pass. ``bounded`` lets them pass for as long as the allowance lasts, and only if they could be
written to the journal before; ``allow`` lets them pass in any case. Rates and ceilings of answers then hold for this
process alone. Nothing here asks the store.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.journal import Journal, JournalError
from llm_budget_hooks.journal.texts import Kept, command_of
from llm_budget_hooks.money import format_usd
from llm_budget_hooks.plan import Plan
from llm_budget_hooks.stores.memory import MemoryStore
from llm_budget_hooks.transitions import (
    Ending,
    Finish,
    Meter,
    Mode,
    Post,
    Reserve,
    Reserved,
    Terms,
    Verdict,
)

_log = logging.getLogger("llm_budget_hooks")
_BATCH: Final = 64
_SAY_EVERY: Final = 1_000
_BOOKED: Final = (Mode.CHARGE, Mode.FORCE)
_RATES: Final = (Meter.CALLS, Meter.UTTERANCES, Meter.IN_FLIGHT)

OnDegraded = Callable[[Mapping[str, Any]], object]
StoreErrorMode = Literal["allow", "bounded", "deny"]


class Unsent(deque[Finish]):
    """Settles and releases that wait in memory for the store; the oldest give way when there are too many.

    Args:
        most: how many wait.

    Attributes:
        dropped: how many gave way; their holds expire, and stay charged what they held.
    """

    def __init__(self, most: int) -> None:
        super().__init__(maxlen=most)
        self.dropped = 0

    def append(self, command: Finish) -> None:
        """Let one more wait."""
        if len(self) == self.maxlen:
            self.dropped += 1
            if self.dropped % _SAY_EVERY == 1:
                _log.error(
                    "More than %d settles wait for the store, and the oldest are dropped, %d so far: "
                    "their holds will be charged what they held.", self.maxlen, self.dropped,
                )  # fmt: skip
        super().append(command)


class Outage:
    """The state of one process's store trouble.

    Args:
        mode: what the policy says; ``bounded`` without a journal is ``deny``.
        allowance_nusd: up to how much ``bounded`` lets through.
        journal: where it is written down, None for nowhere.
        on_degraded: is told once of each outage that this process sees.

    Attributes:
        active: whether the store was away when it was last asked.
        unwritten: whether it answered and took nothing that was to be written, so that an answer alone is no end.
        waiting: whether something has to be done before the store is asked as usual.
    """

    def __init__(
        self,
        mode: StoreErrorMode = "deny",
        allowance_nusd: int = 0,
        journal: Journal | None = None,
        on_degraded: OnDegraded | None = None,
    ) -> None:
        self._mode = "deny" if mode == "bounded" and journal is None else mode
        self._allowance = allowance_nusd if mode == "bounded" else None
        self._journal = journal if mode != "deny" else None
        self.on_degraded = on_degraded
        self._alone: tuple[int, MemoryStore] | None = None
        self.active = self.unwritten = False
        self.waiting = self._journal is not None and self._journal.waiting()

    @property
    def path(self) -> str | None:
        """The journal's path."""
        return None if self._journal is None else str(self._journal.path)

    def admit(self, plan: Plan, error: StoreUnavailable, now_ms: int) -> Reserved:
        """What becomes of a call that the store could not decide on.

        Args:
            plan: the call's.
            error: why the store did not decide.
            now_ms: the time.

        Raises:
            StoreUnavailable: it does not pass; `error` itself, or one that says why.
        """
        if error.busy or self._mode == "deny":
            raise error
        command = self._own(plan.command, now_ms)
        store = self._store()
        asked: Any = store.execute(replace(command, mode=Mode.CHECK) if command.mode != Mode.ENTER else command)
        if command.mode == Mode.ENTER and asked.verdict == Verdict.ADMITTED:
            self._write_down(plan, error, now_ms)
        if asked.verdict not in (Verdict.ADMITTED, Verdict.DUPLICATE) or command.mode in (Mode.CHECK, Mode.ENTER):
            return self._checked(plan, asked, error, now_ms)
        if asked.verdict == Verdict.ADMITTED:
            self._write_down(plan, error, now_ms)
            asked = store.execute(command)
        deadline, starts = now_ms + command.terms.timeout_ms, asked.starts or (0,) * len(command.keys)
        return Reserved(Verdict.ADMITTED, now_ms, asked.created_ms, deadline, plan.command.amounts, starts)

    def begin(self, error: StoreUnavailable, now_ms: int) -> bool:
        """Take note that the store is away; True if it was not before."""
        self.waiting, self.unwritten = True, error.unwritten
        if self._journal is not None:
            try:
                self._journal.trouble(now_ms)
            except JournalError as problem:
                _log.debug("%s", problem)
        if self.active:
            return False
        self.active = True
        _log.warning("The store is away, and on_store_error is %r now: %s", self._mode, error)
        if self.on_degraded is not None:
            try:
                self.on_degraded({"kind": "degraded", "mode": self._mode, "at_ms": now_ms, "reason": str(error)})
            except Exception:  # noqa: BLE001 - whatever it is, the call goes on
                _log.exception("on_degraded failed.")
        return True

    def look(self) -> None:
        """See whether other processes have left something in the journal."""
        if self._journal is not None and not self.waiting:
            self.waiting = self._journal.waiting()

    def end(self) -> bool:
        """Take note that the store has answered; True if it was away before."""
        self.waiting = self._journal is not None and self._journal.waiting()
        was, self.active = self.active, False
        self._alone = None
        if was:
            _log.info("The store answers again.")
        return was

    def keep(self, command: Finish, now_ms: int) -> bool:
        """Write down the end of a hold that the store could not be told; False if there is no journal for it."""
        if self._alone is not None and command.ending != Ending.EXTEND:
            self._store().execute(replace(command, hold=None, now_ms=now_ms, samples=()))
        if self._journal is None:
            return False
        try:
            self._journal.finish(command, now_ms)
        except JournalError as error:
            _log.warning("A settle is kept in memory: %s", error)
            return False
        self.waiting = True
        return True

    def keep_post(self, command: Post) -> bool:
        """Write down entries of the trail that the store could not be given; False if there is no journal for them."""
        try:
            if self._journal is not None:
                self._journal.post(command)
        except JournalError as error:
            _log.debug("%s", error)
            return False
        return self._journal is not None

    def close(self) -> None:
        """Close the journal's file; it is opened again when it is needed."""
        if self._journal is not None:
            self._journal.close()

    def next(self, terms: Terms, now_ms: int | None) -> list[tuple[int, Kept]]:
        """The first commands to send to the store, with their numbers; none if all were sent, or cannot be read."""
        if self._journal is None:
            return []
        try:
            name, rows = self._journal.next(_BATCH)
            return [(number, command_of(text, f"{name} {number}", terms, now_ms)) for number, text in rows]
        except (JournalError, ValueError, TypeError) as error:
            _log.error("The journal is not booked: %s", error)
            return []

    def done(self, number: int, now_ms: int) -> None:
        """The store has answered all commands up to a number."""
        assert self._journal is not None  # noqa: S101 - the numbers are its own
        try:
            self._journal.done(number, now_ms)
        except JournalError as error:
            _log.warning("What was booked is asked again: %s", error)

    def _checked(self, plan: Plan, asked: Reserved, error: StoreUnavailable, now_ms: int) -> Reserved:
        if plan.command.mode == Mode.CHECK and self._allowance is not None and self._journal is not None:
            try:
                fits = plan.estimate_nusd <= self._journal.left(self._allowance, now_ms)
            except JournalError:
                fits = False
            if not fits:
                raise self._used_up(error)
        return asked

    def _write_down(self, plan: Plan, error: StoreUnavailable, now_ms: int) -> None:
        """Write a call down before its provider is called, or raise if it may not pass."""
        command, problem = plan.command, None
        booked = command.mode in _BOOKED
        allowance = None if command.mode == Mode.FORCE else self._allowance
        try:
            if self._journal is not None:
                if not self._journal.hold(command, plan.estimate_nusd, allowance, now_ms):
                    raise self._used_up(error)
                if booked:
                    self._journal.finish(_booked(command, plan.estimate_nusd), now_ms)
        except JournalError as found:
            problem = found
        if problem is None:
            return
        if self._mode == "bounded":
            raise StoreUnavailable(f"{error} The call may not pass, as {problem}.") from error
        _log.warning("A call passes that is booked nowhere: %s", problem)

    def _used_up(self, error: StoreUnavailable) -> StoreUnavailable:
        return StoreUnavailable(
            f"{error} The allowance of {format_usd(self._allowance or 0)} for this outage is used up.",
            retry_after=error.retry_after,
        )

    def _own(self, command: Reserve, now_ms: int) -> Reserve:
        """What this process alone can hold a call against: rates, and the ceiling of its answer."""
        amounts = tuple(
            amount if rule.meter in _RATES or rule.scope == "answer" else 0
            for rule, amount in zip(command.shape.rules, command.amounts, strict=True)
        )
        mode = Mode.HOLD if command.mode in _BOOKED else command.mode
        terms = replace(command.terms, outbox_max=0)
        return replace(command, amounts=amounts, mode=mode, terms=terms, now_ms=now_ms, revision=0)

    def _store(self) -> MemoryStore:
        pid = os.getpid()
        if self._alone is None or self._alone[0] != pid:
            self._alone = (pid, MemoryStore())
        return self._alone[1]


def _booked(command: Reserve, nusd: int) -> Finish:
    """The end of a call that is charged at once."""
    tokens = [a for a, rule in zip(command.amounts, command.shape.rules, strict=True) if rule.meter == Meter.TOKENS]
    return Finish(command.id, Ending.SETTLE, command.terms, nusd, max(tokens, default=0), True, actual=command.actual)
