"""Times taken in small rounds that alternate, so that whatever else the machine does meets all subjects alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

Operation = Callable[[], object]


@dataclass(frozen=True)
class Timed:
    """One operation's times: the median round of each repeat, in microseconds per operation."""

    medians: tuple[float, ...]

    @property
    def us(self) -> float:
        return min(self.medians)


def alternate(operations: Sequence[tuple[Operation, int]], *, rounds: int, repeats: int) -> list[Timed]:
    """Time some operations.

    Args:
        operations: each with how often it is done in a round.
        rounds: of each operation in a repeat.
        repeats: how many medians are taken.
    """
    found: list[list[float]] = [[] for _ in operations]
    for operation, times in operations:
        _round(operation, times)
    for _ in range(repeats):
        taken: list[list[float]] = [[] for _ in operations]
        for _ in range(rounds):
            for (operation, times), mine in zip(operations, taken, strict=True):
                mine.append(_round(operation, times))
        for mine, all_mine in zip(taken, found, strict=True):
            all_mine.append(median(mine))
    return [Timed(tuple(each)) for each in found]


def ratio(one: Timed, other: Timed) -> float:
    """The quietest repeat of one over the quietest of the other; they alternate, so that is mostly the same one."""
    return one.us / other.us


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median and its 95 % confidence interval, by order statistics."""
    ordered = sorted(values)
    reach = 0.98 * len(ordered) ** 0.5
    low = max(int(len(ordered) / 2 - reach), 0)
    high = min(int(len(ordered) / 2 + reach), len(ordered) - 1)
    return median(ordered), ordered[low], ordered[high]


def _round(operation: Operation, times: int) -> float:
    started = time.perf_counter_ns()
    for _ in range(times):
        operation()
    return (time.perf_counter_ns() - started) / times / 1000
