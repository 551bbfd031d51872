"""What the last runs of a step took: their nearest-rank 90th percentile, and what this process knows of them.

The runs are kept in the store, where the settle that ends a run adds it. A process keeps what it has read for
half a minute, and adds the runs that it settles itself.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from llm_budget_hooks.keys import digest, kept_if_short
from llm_budget_hooks.transitions.records import FEWEST, HISTORY_MS, SAMPLES

KNOWN_S: Final = 30.0
"""How long what was read is used."""

YOUNG_S: Final = 1.0
"""How long it is used while there are fewer runs than that."""

_MOST: Final = 4096
Runs = tuple[tuple[int, int], ...]


def p90(values: Sequence[int]) -> int | None:
    """The nearest-rank 90th percentile, at rank ceil(0.9 n); None of fewer than five values."""
    return _ranked(sorted(values))


def _ranked(values: Sequence[int]) -> int | None:
    count = len(values)
    return values[(9 * count + 9) // 10 - 1] if count >= FEWEST else None


@kept_if_short
def output_key(tenant: str, feature: str, step: str, model: str) -> str:
    """The history of the output tokens of one step on one model."""
    return digest("y", tenant, feature, step, model)


@kept_if_short
def step_key(tenant: str, feature: str, step: str) -> str:
    """The history of what one step cost, in nano-dollars."""
    return digest("c", tenant, feature, step)


@kept_if_short
def answer_key(tenant: str, feature: str) -> str:
    """The history of what the answers of a feature cost, in nano-dollars."""
    return digest("a", tenant, feature)


class _Known:
    """One history: when it was read, its runs in order with their values by size, and their percentile.

    The percentile is right until `until_ms`, when the oldest run leaves it. Runs and values are put in place as one
    pair, so that threads that add at once may lose a run but never disagree.
    """

    __slots__ = ("p90", "read_s", "state", "until_ms")

    def __init__(self, read_s: float, runs: Runs) -> None:
        self.read_s = read_s
        self.state: tuple[Runs, list[int]] = (runs, [])
        self.p90: int | None = None
        self.until_ms = -1

    @property
    def count(self) -> int:
        """How many runs are known."""
        return len(self.state[0])

    def add(self, run: tuple[int, int]) -> None:
        """Add a run, in place of the first one if there are enough."""
        runs, values = self.state
        if len(values) != len(runs):  # they were never sorted
            self.state = ((*runs, run), values)
            self.until_ms = -1
            return
        values = values.copy()
        insort(values, run[1])
        if len(runs) >= SAMPLES:
            del values[bisect_left(values, runs[0][1])]
            runs = runs[1:]
        self.state = ((*runs, run), values)
        self.p90 = _ranked(values)
        self.until_ms = min(self.until_ms, run[0] + HISTORY_MS)

    def renew(self, since_ms: int) -> None:
        """Leave out the runs that ended at an instant or before it."""
        runs = tuple([run for run in self.state[0][-SAMPLES:] if run[0] > since_ms])
        values = sorted([value for _, value in runs])
        self.state = (runs, values)
        self.p90 = _ranked(values)
        self.until_ms = min(runs)[0] + HISTORY_MS if runs else 2**53


class Histories:
    """The histories that one process knows."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._known: dict[str, _Known] = {}
        self._forgotten: Mapping[str, int] = {}

    def unread(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Which of some histories have to be read from the store first."""
        now = self._clock_s()
        return tuple([key for key in keys if (known := self._known.get(key)) is None or _is_old(known, now)])

    def put(self, keys: Iterable[str], runs: Iterable[Runs]) -> None:
        """Keep what was read."""
        now = self._clock_s()
        if len(self._known) >= _MOST:
            self._known.clear()
        for key, found in zip(keys, runs, strict=True):
            self._known[key] = _Known(now, found)

    def add(self, key: str, at_ms: int, value: int) -> None:
        """Add a run that this process has settled to a history that it knows."""
        known = self._known.get(key)
        if known is not None:
            known.add((at_ms, value))

    def forget(self, marks: Mapping[str, int]) -> None:
        """Leave out, from now on, the runs of some steps that ended before an instant or at it."""
        if marks != self._forgotten:
            self._forgotten = marks
            for known in list(self._known.values()):
                known.until_ms = -1

    def p90(self, key: str, step: str, now_ms: int) -> int | None:
        """The percentile of a history within 30 days, as far as it is known; None of fewer than five runs.

        Args:
            key: of the history.
            step: the step whose history it is, empty for answers.
            now_ms: the store's time.
        """
        return self.known(key, step, now_ms)[0]

    def known(self, key: str, step: str, now_ms: int) -> tuple[int | None, bool]:
        """The percentile as `p90` gives it, and whether what is known of the history is old."""
        known = self._known.get(key)
        if known is None:
            return None, True
        if now_ms >= known.until_ms:
            known.renew(self.since_ms(step, now_ms))
        return known.p90, _is_old(known, self._clock_s())

    def since_ms(self, step: str, now_ms: int) -> int:
        """The instant after which a run counts."""
        return max(now_ms - HISTORY_MS, self._forgotten.get(step, 0))


def _is_old(known: _Known, now_s: float) -> bool:
    return now_s - known.read_s > (KNOWN_S if known.count >= FEWEST else YOUNG_S)
