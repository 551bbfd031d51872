"""Balances in this process alone: for tests, notebooks and single-process programs.

Nothing is written anywhere: what a process forgets when it ends is everything.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.transitions import CLOCK_STEP_MS, MAX_AMOUNT, Answer, Command, Hold, State, apply
from llm_budget_hooks.transitions.rolling import NEVER, Entry

_OPEN = int(State.OPEN)

_PURGE = 4
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class MemoryCells:
    """The records of a namespace as plain Python objects, changed in place."""

    def __init__(self) -> None:
        self._cells: dict[str, Any] = {}
        self._until: dict[str, int] = {}
        self._old: list[tuple[int, str]] = []
        self.purge_ms = NEVER
        self._holds: dict[str, Hold] = {}
        self._ended: tuple[deque[tuple[int, str]], ...] = (deque(), deque())
        self._scopes: dict[str, dict[str, int]] = {"": {}}
        self._due = self._mixed_until = 0
        self._latest = 0
        self._orphans: dict[str, int] = {}
        self._entries: dict[str, list[tuple[int, int, int]]] = {}
        self._revision = 0
        self._settings: dict[str, str] = {}
        self._outbox: deque[tuple[str, tuple[str, str, str, int, str, str]]] = deque()
        self._posted = self._dropped = 0
        self._lease = ("", 0)
        self.get = self._cells.get
        self.hold: Callable[[str], Hold | None] = self._holds.get

    def load(self, keys: Sequence[str]) -> list[Any]:
        """See `Cells.load`."""
        return [*map(self.get, keys)]

    def save(self, key: str, cell: Any, until_ms: int) -> None:
        """See `Cells.save`."""
        if key not in self._cells:
            heapq.heappush(self._old, (until_ms, key))
            if until_ms < self.purge_ms:
                self.purge_ms = until_ms
        self._cells[key] = cell
        self._until[key] = until_ms

    def change(self, key: str, cell: Any) -> None:
        """Nothing to do: cells are changed in place."""

    def append(self, key: str, entry: tuple[int, int, int], until_ms: int) -> None:  # noqa: ARG002 - as the account
        """See `Cells.append`."""
        entries = self._entries.get(key)
        if entries is None:
            self._entries[key] = [entry]
        elif entry >= entries[-1]:
            entries.append(entry)
        else:
            insort(entries, entry)

    def drop(self, key: str, at_ms: int) -> tuple[int, int, int]:
        """See `Cells.drop`."""
        entries = self._entries.get(key, [])
        count = bisect_right(entries, (at_ms, NEVER))
        total = sum([entry[2] for entry in entries[:count]])
        del entries[:count]
        if entries:
            return total, count, entries[0][0]
        self._entries.pop(key, None)
        return total, count, NEVER

    def entries(self, key: str) -> Iterable[Entry]:
        """See `Cells.entries`."""
        return ((at_ms, amount) for at_ms, _, amount in self._entries.get(key, ()))

    def save_hold(self, id: str, hold: Hold) -> None:
        """See `Cells.save_hold`."""
        self._holds[id] = hold
        if hold.state != _OPEN:
            until_ms = hold.kept_until_ms
            self._ended[until_ms > hold.until_ms].append((until_ms, id))
            if until_ms < self.purge_ms:
                self.purge_ms = until_ms

    def enter(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:
        """See `Cells.enter`."""
        if deadline_ms >= self._latest:
            self._latest = deadline_ms
        else:
            self._mixed_until = self._latest
        if deadline_ms < self._due:
            self._due = deadline_ms
        known = self._scopes
        for scope in scopes:
            if scope in known:
                known[scope][id] = deadline_ms
            else:
                known[scope] = {id: deadline_ms}

    def leave(self, id: str, scopes: Sequence[str], deadline_ms: int) -> None:  # noqa: ARG002 - the contract's
        """See `Cells.leave`."""
        known = self._scopes
        for scope in scopes:
            index = known.get(scope)
            if index is not None:
                index.pop(id, None)
                if scope and not index:
                    del known[scope]

    def first(self, scope: str, limit: int) -> list[tuple[int, str]]:
        """See `Cells.first`."""
        index = self._scopes.get(scope, {})
        if self._mixed_until:
            found = heapq.nsmallest(limit, zip(index.values(), index, strict=True))
        else:
            found = sorted(_leading(index, limit))[:limit]
        if not scope:
            self._due = found[0][0] if found else MAX_AMOUNT
            if self._due > self._mixed_until:
                self._mixed_until = 0
        return found

    def due_at(self) -> int:
        """See `Cells.due_at`; a deadline of a hold that has ended since may be taken for it once more."""
        return self._due

    def expired(self, id: str, until_ms: int) -> None:
        """See `Cells.expired`."""
        if until_ms:
            self._orphans[id] = until_ms
        else:
            self._orphans.pop(id, None)

    def orphans(self, now_ms: int, limit: int) -> list[str]:
        """See `Cells.orphans`."""
        kept_ms = now_ms - CLOCK_STEP_MS
        self._orphans = {id: until for id, until in self._orphans.items() if until > kept_ms}
        return [id for id, until in self._orphans.items() if until > now_ms][:limit]

    def revision(self) -> int:
        """See `Cells.revision`."""
        return self._revision

    def settings(self) -> dict[str, str]:
        """See `Cells.settings`."""
        return dict(self._settings)

    def change_settings(self, revision: int, changes: Sequence[tuple[str, str | None]]) -> None:
        """See `Cells.change_settings`."""
        self._revision = revision
        for name, text in changes:
            if text is None:
                self._settings.pop(name, None)
            else:
                self._settings[name] = text

    def post(self, entry: tuple[str, str, str, int, str, str], most: int) -> None:
        """See `Cells.post`."""
        if len(self._outbox) >= most:
            self._dropped += 1
            return
        self._posted += 1
        self._outbox.append((str(self._posted), entry))

    def acknowledge(self, number: str) -> None:
        """See `Cells.acknowledge`."""
        while self._outbox and int(self._outbox[0][0]) <= int(number):
            self._outbox.popleft()

    def posted(self, limit: int) -> list[tuple[str, tuple[str, str, str, int, str, str]]]:
        """See `Cells.posted`."""
        return list(islice(self._outbox, limit))

    def dropped(self) -> int:
        """See `Cells.dropped`."""
        return self._dropped

    def lease(self) -> tuple[str, int]:
        """See `Cells.lease`."""
        return self._lease

    def save_lease(self, owner: str, until_ms: int) -> None:
        """See `Cells.save_lease`."""
        self._lease = (owner, until_ms)

    def purge(self, now_ms: int) -> None:
        """Forget a few records that nothing can ask for any more; there is none before `purge_ms`."""
        for _ in range(_PURGE):
            if not self._old or self._old[0][0] > now_ms:
                break
            key = heapq.heappop(self._old)[1]
            if self._until[key] > now_ms:
                heapq.heappush(self._old, (self._until[key], key))
            else:
                del self._cells[key], self._until[key]
                self._entries.pop(key, None)
        for ended in self._ended:
            for _ in range(_PURGE):
                if not ended or ended[0][0] > now_ms:
                    break
                id = ended.popleft()[1]
                hold = self._holds.get(id)
                if hold is not None and hold.state != State.OPEN and hold.kept_until_ms <= now_ms:
                    del self._holds[id]
                    self._orphans.pop(id, None)
        self.purge_ms = min([first[0][0] for first in (self._old, *self._ended) if first], default=NEVER)


def _leading(index: dict[str, int], limit: int) -> Iterator[tuple[int, str]]:
    """The first holds of an index that is in the order of deadlines, with all that are due when the last of them is."""
    last = -1
    for at, (id, deadline) in enumerate(index.items()):
        if at >= limit and deadline != last:
            return
        last = deadline
        yield deadline, id


class MemoryStore:
    """A store within one process; a command is carried out under one lock."""

    shared = False
    forgets = False
    kept_elsewhere = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells = MemoryCells()
        self._forks = _forks

    def execute(self, command: Command) -> Answer:
        """See `Store.execute`."""
        if self._forks != _forks:
            self._refuse()
        with self._lock:
            now = self.now_ms() if command.now_ms is None else command.now_ms
            if now - CLOCK_STEP_MS >= self._cells.purge_ms:
                self._cells.purge(now - CLOCK_STEP_MS)
            return apply(self._cells, command, now)

    async def aexecute(self, command: Command) -> Answer:
        """See `Store.aexecute`."""
        return self.execute(command)

    def now_ms(self) -> int:
        """See `Store.now_ms`."""
        return time.time_ns() // 1_000_000

    def probe(self) -> None:
        """Nothing to look at."""

    def ask_again(self) -> None:
        """Nothing to do: every command asks."""

    def close(self) -> None:
        """Nothing to close."""

    async def aclose(self) -> None:
        """Nothing to close."""

    def __reduce__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            "An engine on memory:// cannot be pickled, forked or sent to another process: "
            "its balances live in this one. Use sqlite:///path or redis:// to share them."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryStore:
        return self
