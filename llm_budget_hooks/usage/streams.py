"""Usage of a stream: put together from its events."""

from __future__ import annotations

from typing import Any, Final

from llm_budget_hooks.models import Usage
from llm_budget_hooks.models.calls import MAX_TOKENS
from llm_budget_hooks.usage.answers import served_model, usage_from

_COUNTS: Final = tuple(name for name in Usage.__slots__ if name not in ("service_tier", "exact"))
_GENERATED: Final = ("output_tokens", "reasoning_tokens", "output_audio_tokens", "output_image_tokens", "output_ms")


class StreamUsage:
    """What a stream has said so far about its usage.

    Most providers say it once at the end, or the input in the first event and the output in the last, or running
    totals in each event: then each count is the largest that was said, and a 0 after a count says nothing. A stream
    of deltas is added up, if the caller says that it is one. Where the counts of generated tokens fall, it must be
    one: they are added up, and the usage is inexact.

    Attributes:
        model: the model that served, as far as the events name it.
    """

    __slots__ = ("_deltas", "_fell", "_largest", "_latest", "_provider", "_sums", "_tier", "exact", "model")

    def __init__(self, provider: str | None = None, *, deltas: bool = False) -> None:
        """Begin with nothing.

        Args:
            provider: who answers, where the caller knows it.
            deltas: each event counts only what is new in it.
        """
        self._provider = provider
        self._deltas = deltas
        self._largest = dict.fromkeys(_COUNTS, 0)
        self._latest = dict.fromkeys(_COUNTS, 0)
        self._sums = dict.fromkeys(_COUNTS, 0)
        self._fell = False
        self._tier: str | None = None
        self.exact = True
        self.model: str | None = None

    def add(self, event: Any) -> None:
        """Take note of an event. Never raises."""
        self.model = served_model(event) or self.model
        found = usage_from(event, self._provider, partial=True)
        if found is None:
            return
        self._tier = found.service_tier or self._tier
        self.exact = self.exact and found.exact
        for name in _COUNTS:
            count = getattr(found, name)
            if not count:
                continue
            self._fell = self._fell or (name in _GENERATED and count < self._latest[name])
            self._latest[name] = count
            self._sums[name] += count
            self._largest[name] = max(self._largest[name], count)

    @property
    def usage(self) -> Usage | None:
        """All that was said, None if nothing was."""
        if not any(self._largest.values()):
            return None
        counts = dict(self._sums if self._deltas else self._largest)
        if self._fell and not self._deltas:
            counts |= {name: self._sums[name] for name in _GENERATED}
        counts = {name: min(count, MAX_TOKENS) for name, count in counts.items()}
        exact = self.exact and (self._deltas or not self._fell)
        return Usage(**counts, service_tier=self._tier, exact=exact)
