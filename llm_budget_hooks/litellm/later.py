"""A thread for settles that must not run where they are found.

A stream that is dropped is found by the garbage collector, which may run while its own thread is inside the
store; to settle there could wait for itself. So a thread does it, and whoever found it waits a moment, but
never for ever.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from llm_budget_hooks.engine.engine import BEFORE_FLUSH

_log = logging.getLogger("llm_budget_hooks")
_MOMENT_S: Final = 0.05
_Job = tuple[Callable[[], object], threading.Event]


class _Later:
    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False

    def submit(self, job: Callable[[], object]) -> None:
        done = threading.Event()
        self._jobs.put((job, done))
        if self._ending or not self._running():
            self._drain()
        elif threading.current_thread() is not self._thread:
            done.wait(_MOMENT_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        if threading.current_thread() is self._thread:
            return self._jobs.empty()
        done = threading.Event()
        self._jobs.put((lambda: None, done))
        if self._ending or not self._running():
            self._drain()
        return done.wait(timeout_s)

    def end(self) -> None:
        self._ending = True
        self._drain()

    def _running(self) -> bool:
        if self._thread is not None:
            return True
        if not self._starting.acquire(blocking=False):
            return True
        try:
            thread = threading.Thread(target=self._work, name="llm-budget-later", daemon=True)
            thread.start()
            self._thread = thread
        except RuntimeError:
            return False
        finally:
            self._starting.release()
        return True

    def _work(self) -> None:
        while True:
            self._do(*self._jobs.get())

    def _drain(self) -> None:
        while not self._jobs.empty():
            self._do(*self._jobs.get())

    def _do(self, job: Callable[[], object], done: threading.Event) -> None:
        try:
            job()
        except Exception:  # noqa: BLE001 - the thread goes on for the others
            _log.exception("A call that nobody waited for could not be settled; its hold expires and is charged.")
        finally:
            done.set()


_LATER = _Later()
os.register_at_fork(after_in_child=_LATER._renew)


def settle_later(job: Callable[[], object]) -> None:
    """Run a settle on the settling thread, and wait for it up to 50 ms."""
    _LATER.submit(job)


def wait_settled(timeout_s: float | None = None) -> bool:
    """Wait until all settles so far have run; False if they have not within the time."""
    return _LATER.wait(timeout_s)


def settle_at_exit(job: Callable[[], None]) -> None:
    """Run a job at the interpreter's exit, before the settling thread ends."""
    atexit.register(job)


atexit.register(_LATER.end)
BEFORE_FLUSH.append(wait_settled)
