"""One thread that renews the holds of calls for which a provider is being waited for.

A call that takes longer than `reservation_timeout` would expire and be charged at its estimate, and its place given
away, while it still runs. Only whoever waits is renewed: a stream that is kept and not read is not.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetError

if TYPE_CHECKING:
    from llm_budget_hooks.litellm.attempts import Attempt

_log = logging.getLogger("llm_budget_hooks")
_SHARE: Final = 0.3
_LOOKS: Final = 4
"""How often a hold is looked at in the time after which it is renewed."""
_IDLE_S: Final = 30.0


class _Renewal:
    def __init__(self) -> None:
        self._every_s = _IDLE_S
        self._renew()

    def _renew(self) -> None:
        self._watched: dict[int, weakref.ref[Attempt]] = {}
        self._starting = threading.Lock()
        self._sooner = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, engine: BudgetEngine) -> None:
        every_s = _after_s(engine) / _LOOKS
        if every_s < self._every_s:
            self._every_s = every_s
            self._sooner.set()

    def watch(self, attempt: Attempt) -> None:
        self._watched[id(attempt)] = weakref.ref(attempt)
        if self._thread is None:
            self._start()

    def forget(self, attempt: Attempt) -> None:
        self._watched.pop(id(attempt), None)

    def count(self) -> int:
        return len(self._watched)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="llm-budget-renewal", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # at the interpreter's end no thread starts, and no call lasts
                    return
                self._thread = thread

    def _work(self) -> None:
        while True:
            self._sooner.wait(self._every_s)
            self._sooner.clear()
            for key, found in list(self._watched.items()):
                attempt = found()
                if attempt is None:
                    self._watched.pop(key, None)
                elif attempt.open and attempt.waiting:
                    _renew_if_due(attempt)
                del attempt


def _renew_if_due(attempt: Attempt) -> None:
    now_s = time.monotonic()
    if attempt.reservation is None or now_s - attempt.renewed_s < _after_s(attempt.engine):
        return
    attempt.renewed_s = now_s
    try:
        attempt.engine.extend(attempt.reservation)
    except BudgetError as error:
        _log.warning("The hold of a long call could not be renewed: %s", type(error).__name__)
    except Exception:  # noqa: BLE001 - the thread goes on for the others
        _log.exception("The hold of a long call could not be renewed.")


def _after_s(engine: BudgetEngine) -> float:
    return engine.policy.reservation_timeout.total_seconds() * _SHARE


_RENEWAL = _Renewal()
os.register_at_fork(after_in_child=_RENEWAL._renew)


def expect(engine: BudgetEngine) -> None:
    """Look often enough for the holds of this engine."""
    _RENEWAL.expect(engine)


def watch(attempt: Attempt) -> None:
    """Renew this attempt's hold for as long as it is open and a provider is waited for."""
    _RENEWAL.watch(attempt)


def forget(attempt: Attempt) -> None:
    """The attempt has ended."""
    _RENEWAL.forget(attempt)


def watched() -> int:
    """How many attempts are looked at."""
    return _RENEWAL.count()
