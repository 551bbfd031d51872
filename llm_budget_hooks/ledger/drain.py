"""From the outbox of a store into the ledger: in the background, in order, each entry once.

Rows are committed first and acknowledged after, so a crash in between repeats rows, which the ledger knows by
their id, and loses none. A ledger that is down leaves the entries where they are. Nothing here is ever waited for
by a call: `Drain.poke` sets a flag.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from llm_budget_hooks.models.trail import Entry, event_facts

LEASE_S: Final = 10.0
"""How long an owner has an outbox for itself after it has last asked."""

_PACE_S: Final = 0.2
_RETRY_LEASE_S: Final = 2.0
_END_S: Final = 2.0
_FORK_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_log = logging.getLogger("llm_budget_hooks")
_all: Final[weakref.WeakSet[Drain]] = weakref.WeakSet()
_stopped: Final[list[Drain]] = []


@dataclass(frozen=True, slots=True)
class Batch:
    """The next entries of an outbox.

    Attributes:
        entries: in order, not acknowledged yet; empty if there are none, or if another owner has the lease.
        leased: whether the asking owner has the lease.
        dropped: how many entries this outbox has ever dropped because it was full.
    """

    entries: Sequence[Entry]
    leased: bool = True
    dropped: int = 0


class Outbox(Protocol):
    """Where a store keeps what the ledger does not have yet."""

    def take(self, owner: str, done: str, limit: int) -> Batch:
        """Acknowledge, take or renew the lease, and read on, in one atomic step.

        Entries up to and including `done` are removed, whoever has the lease: they are in the ledger. Then, unless
        another owner's lease still runs, the lease is the owner's for `LEASE_S` seconds of the store's clock, or
        until it finds the outbox empty.

        Args:
            owner: names the drain that asks.
            done: the `seq` of the last entry that is in the ledger, or empty.
            limit: how many entries to return at most.

        Raises:
            StoreUnavailable: the store did not answer.
        """


class EntryWriter(Protocol):
    """Where entries go; a `Ledger`."""

    def write(self, entries: Sequence[Entry]) -> None:
        """Write all entries that are not there yet, or none; raises if it cannot."""


class Drain:
    """Moves entries from an outbox to a ledger, on a daemon thread that starts when it is first needed.

    Any number of processes may drain one outbox; a lease lets one of them work. What a process leaves behind at its
    end stays in the outbox for the next.

    Args:
        outbox: a store.
        ledger: where the rows go.
        limit: entries per transaction; small ones hold an SQLite file for a few milliseconds.
        name: tells the outbox from others on the same ledger, such as the store's namespace.
    """

    _thread: threading.Thread | None
    _poked: bool
    _asked: int
    _waiting: int
    _emptied: int

    def __init__(self, outbox: Outbox, ledger: EntryWriter, *, limit: int = 100, name: str = "default") -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._limit = limit
        self._name = name
        self._renew()
        _all.add(self)

    def poke(self) -> None:
        """Say that there is something to drain. Takes a microsecond and never waits."""
        if not self._poked or self._thread is None:
            self._poked = True
            if self._thread is None:
                self._start()
            self._wake.set()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Drain everything now.

        Returns:
            True if all that was in the outbox when this was called is in the ledger; False if that did not happen
            in time, because the ledger or the store is down or another process has the lease. Nothing is lost then.
        """
        with self._passed:
            wanted = self._asked = self._asked + 1
            self._waiting += 1
        self._start()
        self._urgent.set()
        self._wake.set()
        with self._passed:
            try:
                return self._passed.wait_for(lambda: self._emptied >= wanted, timeout_s)
            finally:
                self._waiting -= 1

    def close(self, timeout_s: float = 2.0) -> bool:
        """Flush for `timeout_s` and end the thread; a later `poke` starts it again. The ledger stays open.

        Returns:
            True if the outbox was emptied; what is left stays in it.
        """
        emptied = self.flush(timeout_s)
        with self._starting:
            thread, self._thread = self._thread, None
            self._stop.set()
            self._urgent.set()
            self._wake.set()
        if thread is not None:
            thread.join(_END_S)
        return emptied

    def _renew(self) -> None:
        self._owner = os.urandom(8).hex()
        self._wake, self._urgent, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._passed = threading.Condition()
        self._starting, self._working = threading.Lock(), threading.Lock()
        self._thread = None
        self._poked = False
        self._asked = self._emptied = self._waiting = 0
        self._done = ""
        self._dropped = 0
        self._pause_s = 0.0

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None:
                return
            self._stop = threading.Event()
            thread = threading.Thread(target=self._work, args=(self._stop,), name="llm-budget-drain", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending: the outbox keeps what is in it
                return
            self._thread = thread

    def _work(self, stop: threading.Event) -> None:
        again_s: float | None = None
        while True:
            if again_s is None:
                self._wake.wait()
            if stop.is_set():
                return
            self._wake.clear()
            self._urgent.clear()
            self._poked = False
            with self._working:
                again_s = self._pass()
            self._urgent.wait(_PACE_S if again_s is None or self._waiting else again_s)

    def _pass(self) -> float | None:
        """Drain until the outbox is empty; seconds after which to try again by itself, None: when poked."""
        with self._passed:
            wanted = self._asked
        try:
            while (batch := self._next()).leased:
                if not batch.entries:
                    self._all_written(wanted)
                    return None
        except Exception as error:  # noqa: BLE001 - a drain that died would leave the outbox to grow
            return self._backed_off(error)
        return _RETRY_LEASE_S

    def _next(self) -> Batch:
        batch = self._outbox.take(self._owner, self._done, self._limit)
        self._done = ""
        entries = list(batch.entries)
        if batch.leased and batch.dropped != self._dropped:
            self._ledger.write([self._loss(batch.dropped, entries)])
            self._dropped = batch.dropped
        if batch.leased and entries:
            self._ledger.write(entries)
            self._done = entries[-1].seq
        return batch

    def _loss(self, dropped: int, entries: list[Entry]) -> Entry:
        at_ms = entries[0].at_ms if entries else time.time_ns() // 1_000_000
        facts = event_facts("outbox_dropped", text=f"{dropped} entries so far, because the outbox was full")
        return Entry("", at_ms, "event", f"dropped-{self._name}-{dropped}", "", facts)

    def _all_written(self, wanted: int) -> None:
        if self._pause_s:
            _log.info("The ledger is written again.")
        self._pause_s = 0.0
        with self._passed:
            self._emptied = wanted
            self._passed.notify_all()

    def _backed_off(self, error: Exception) -> float:
        level = logging.DEBUG if self._pause_s else logging.WARNING
        _log.log(level, "The ledger is not written for now, the outbox keeps its rows: %s", error)
        self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return self._pause_s


def _before_fork() -> None:
    """Let no drain be inside its database while a fork copies the locks of that."""
    _stopped.extend(drain for drain in list(_all) if drain._working.acquire(timeout=_FORK_S))


def _after_fork_in_parent() -> None:
    while _stopped:
        _stopped.pop()._working.release()


def _after_fork_in_child() -> None:
    _stopped.clear()
    for drain in list(_all):
        drain._renew()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
