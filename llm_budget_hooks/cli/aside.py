"""The demo's second part, in a process of its own: importing LangGraph takes as long as importing LiteLLM."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from llm_budget_hooks.errors import BudgetError

Work = Callable[[Connection], Any]


class Aside:
    """Runs work in another process while this one goes on; to be used as a context manager.

    Args:
        work: is given a connection on which it may send texts, to show what it does, and None for each step.
        told: is called with what it sends, in a thread.
    """

    def __init__(self, work: Work, told: Callable[[str | None], None]) -> None:
        fresh = multiprocessing.get_context("spawn")
        self._here, there = fresh.Pipe(duplex=False)
        self._told = told
        self._outcome: Any = None
        self._process = fresh.Process(target=_run, args=(work, there), daemon=True)
        self._process.start()
        there.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def result(self) -> Any:
        """What the work returned, once it is done.

        Raises:
            BudgetError: the work raised it.
            RuntimeError: the process ended without a result.
        """
        self._listener.join()
        self._process.join()
        if isinstance(self._outcome, BudgetError):
            raise self._outcome
        if self._outcome is None:
            raise RuntimeError(f"the demo's second process ended with exit code {self._process.exitcode}")
        return self._outcome[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        self._process.join()
        self._listener.join()
        self._here.close()

    def _listen(self) -> None:
        try:
            while True:
                message = self._here.recv()
                if message is None or isinstance(message, str):
                    self._told(message)
                else:
                    self._outcome = message
        except (EOFError, OSError):
            return


def _run(work: Work, there: Connection) -> None:
    try:
        outcome: Any = (work(there),)
    except BudgetError as error:
        outcome = error
    there.send(outcome)
    there.close()
