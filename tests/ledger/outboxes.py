"""An outbox in memory that keeps the protocol's promises, and entries to fill it with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.ledger.drain import LEASE_S, Batch
from llm_budget_hooks.models import Usage
from llm_budget_hooks.models.trail import Entry, run_actual, run_facts

AT_MS = 1_780_000_000_000


def settled(number: int, cost_nusd: int = 1_000, at_ms: int = AT_MS, **facts: str) -> Entry:
    """A settled run: of tenant acme and user u1, unless said otherwise."""
    names = {"tenant": "acme", "user": "u1", "utterance": "", "feature": "chat", "step": "answer"}
    text = run_facts(**{**names, "model": "gpt-4o-mini", **facts}, estimate_nusd=2_000, basis="p90")
    actual = run_actual(None, cost_nusd, Usage(input_tokens=10, output_tokens=3))
    return Entry("", at_ms, "settled", f"r-{number}", "open", text, actual)


class MemoryOutbox:
    """Entries in a list, with a lease on a clock of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.entries: list[Entry] = []
        self.takes = 0
        self.dropped = 0
        self.down = False
        self.lose_answers = 0
        self._clock = clock
        self._count = 0
        self._owner, self._until = "", 0.0
        self._lock = threading.Lock()

    def append(self, *entries: Entry) -> None:
        with self._lock:
            for entry in entries:
                self._count += 1
                self.entries.append(replace(entry, seq=f"{self._count:09d}"))

    def take(self, owner: str, done: str, limit: int) -> Batch:
        with self._lock:
            self.takes += 1
            if self.down:
                raise StoreUnavailable("The store is down.")
            self.entries = [entry for entry in self.entries if entry.seq > done]
            now = self._clock()
            if self._owner not in ("", owner) and now < self._until:
                return Batch((), leased=False)
            self._owner, self._until = owner, now + LEASE_S
            if self.lose_answers:
                self.lose_answers -= 1
                raise StoreUnavailable("The answer was lost.")
            return Batch(tuple(self.entries[:limit]), True, self.dropped)
