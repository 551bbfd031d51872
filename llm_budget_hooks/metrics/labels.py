"""What is common to the observers: the labels of a series and how many values each may take, buckets, overage."""

from __future__ import annotations

from typing import Final, Literal

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models.events import Event

Label = Literal["tenant", "user", "feature", "step", "model"]
USUAL: Final[tuple[Label, ...]] = ("tenant", "feature", "step", "model")
OTHER: Final = "other"
LATENCY_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""The buckets of waits for the store, in seconds."""
AGE_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""The buckets of ages of holds, in seconds."""
_KNOWN: Final = (*USUAL, "user")
_LONGEST: Final = 100


class Labels:
    """Picks the labels of events, and calls ``other`` what is above `most` different values of a label.

    Args:
        names: the labels, of ``tenant``, ``user``, ``feature``, ``step`` and ``model``.
        most: how many values each label may take.

    Raises:
        ConfigurationError: there is no such label.
    """

    def __init__(self, names: tuple[Label, ...] = USUAL, most: int = 200) -> None:
        unknown = [name for name in names if name not in _KNOWN]
        if unknown:
            raise ConfigurationError(f"no label is named {unknown[0]!r}: there are {', '.join(_KNOWN)}")
        self.names = names
        self._most = most
        self._seen: dict[str, set[str]] = {name: set() for name in names}

    def of(self, event: Event) -> tuple[str, ...]:
        """The values for an event, in the order of `names`; empty texts for what it does not say."""
        return tuple([self._bounded(name, getattr(event, name)) for name in self.names])

    def _bounded(self, name: str, value: str | None) -> str:
        if not value:
            return ""
        seen, shown = self._seen[name], value[:_LONGEST].encode("utf-8", "replace").decode()
        if shown not in seen:
            if len(seen) >= self._most:
                return OTHER
            seen.add(shown)
        return shown


def overage_nusd(event: Event) -> int:
    """What the end of a hold cost above what was held."""
    return max((event.cost_nusd or 0) - (event.estimate_nusd or event.cost_nusd or 0), 0)
