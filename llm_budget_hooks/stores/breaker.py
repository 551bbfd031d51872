"""What lets an outage cost one timeout, and not one for each call."""

from __future__ import annotations

import time
from typing import Final

from llm_budget_hooks.errors import StoreUnavailable

_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0


class Breaker:
    """Remembers that a store was away, and lets one caller try again after each pause.

    It opens when a command has failed after half of the store's timeout or more: what fails at once costs nothing.
    Commands that were under way together and fail together are one trouble, and make no pause longer.

    Args:
        place: names the store in messages.
        timeout_s: the store's timeout.

    Attributes:
        open: whether the store was away when it was last asked.
    """

    def __init__(self, place: str, timeout_s: float) -> None:
        self.open = False
        self._place = place
        self._timeout_s = timeout_s
        self._pause_s = _FIRST_PAUSE_S
        self._failed_s = 0.0
        self._again_s = 0.0

    def check(self) -> None:
        """Return if the store may be asked now; others may not until this is answered, or could have been.

        Raises:
            StoreUnavailable: it was away a moment ago; nothing was sent to it.
        """
        now = time.monotonic()
        if now < self._again_s:
            raise self.error(sent=False)
        self._again_s = now + self._timeout_s + self._pause_s

    def failed(self, began_s: float) -> None:
        """Take note of a command that was sent at an instant of `time.monotonic` and failed now."""
        now = time.monotonic()
        if began_s < self._failed_s:
            return
        if now - began_s < self._timeout_s / 2:
            self._again_s = now
            return
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if self.open else _FIRST_PAUSE_S
        self._failed_s, self._again_s = now, now + self._pause_s
        self.open = True

    def close(self) -> None:
        """The store has answered, or is to be asked whatever was before."""
        self.open = False
        self._again_s = 0.0

    def error(self, *, sent: bool) -> StoreUnavailable:
        """What callers are told while the store is away; `sent`: whether it may have got their command."""
        error = StoreUnavailable(
            f"The store at {self._place} did not answer within {self._timeout_s:g} s a moment ago, "
            "and is asked again in a moment. Nothing is held.",
            retry_after=self._pause_s,
        )
        error.sent = sent
        return error
