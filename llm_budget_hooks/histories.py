"""What the last runs of a step took: their nearest-rank 90th percentile, and what this process knows of them.

The runs are kept in the store, where the settle that ends a run adds it. A process keeps what it has read for
half a minute, and adds the runs that it settles itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from llm_budget_hooks.keys import digest
from llm_budget_hooks.transitions.records import HISTORY_MS, SAMPLES

FEWEST: Final = 5
"""How many runs there have to be."""

KNOWN_S: Final = 30.0
"""How long what was read is used."""

YOUNG_S: Final = 1.0
"""How long it is used while there are fewer runs than that."""

_MOST: Final = 4096
Runs = tuple[tuple[int, int], ...]


def p90(values: Sequence[int]) -> int | None:
    """The nearest-rank 90th percentile, at rank ceil(0.9 n); None of fewer than five values."""
    count = len(values)
    return sorted(values)[(9 * count + 9) // 10 - 1] if count >= FEWEST else None


@lru_cache(maxsize=8192)
def output_key(tenant: str, feature: str, step: str, model: str) -> str:
    """The history of the output tokens of one step on one model."""
    return digest("y", tenant, feature, step, model)


@lru_cache(maxsize=8192)
def step_key(tenant: str, feature: str, step: str) -> str:
    """The history of what one step cost, in nano-dollars."""
    return digest("c", tenant, feature, step)


@lru_cache(maxsize=8192)
def answer_key(tenant: str, feature: str) -> str:
    """The history of what the answers of a feature cost, in nano-dollars."""
    return digest("a", tenant, feature)


@dataclass(slots=True)
class _Known:
    """One history: when it was read, its runs, and their percentile, which is right until `until_ms`."""

    read_s: float
    runs: Runs
    p90: int | None = None
    until_ms: int = -1


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
            known.runs = (*known.runs[-(SAMPLES - 1) :], (at_ms, value))
            known.until_ms = -1

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
        known = self._known.get(key)
        if known is None:
            return None
        if now_ms >= known.until_ms:
            since = max(now_ms - HISTORY_MS, self._forgotten.get(step, 0))
            runs: Sequence[tuple[int, int]] = known.runs
            if runs and min(runs)[0] <= since:
                runs = [run for run in runs if run[0] > since]
            known.p90 = p90([value for _, value in runs])
            known.until_ms = min(runs)[0] + HISTORY_MS if runs else 2**53
        return known.p90


def _is_old(known: _Known, now_s: float) -> bool:
    return now_s - known.read_s > (KNOWN_S if len(known.runs) >= FEWEST else YOUNG_S)
