"""Jupyter: ``%load_ext llm_budget_hooks``, and then ``%%budget $0.50`` on top of a cell that may cost no more.

The cap is for calls through LiteLLM and LangChain, those in threads that the cell starts among them. Each cell has a
balance of its own, in this process. A cell with ``await`` runs on an event loop of its own, in a thread, as a magic
cannot wait on the notebook's; interrupting the cell cancels what it awaits.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from typing import Any, TypeVar, cast

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import HTML, display

from llm_budget_hooks import html
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.engine.planning import Steps
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models import BudgetStatus

T = TypeVar("T")
_EVERY_S = 0.25
_html: Any = HTML
_display: Any = display


def load(shell: InteractiveShell) -> None:
    """Register the magic, and show lists of balances as tables."""

    def budget(line: str, cell: str) -> None:
        """Cap what a cell may cost, and show what it cost: %%budget $0.50."""
        run_capped(shell, line, cell)

    register: Any = shell.register_magic_function
    register(budget, "cell")
    formatter = shell.display_formatter.formatters["text/html"] if shell.display_formatter else None
    if formatter is not None:
        formatter.for_type(list, _listed)


def _listed(value: list[Any]) -> str | None:
    all_balances = bool(value) and all(isinstance(one, BudgetStatus) for one in value)
    return html.balances(value) if all_balances else None


class _Shown(BudgetEngine):
    """An engine that calls back after its operations, at most a few times a second."""

    after: Callable[[], None] | None = None
    _last_s = 0.0

    def run(self, steps: Steps[T]) -> T:
        """See `BudgetEngine.run`."""
        try:
            return super().run(steps)
        finally:
            self._redraw()

    async def arun(self, steps: Steps[T]) -> T:
        """See `BudgetEngine.arun`."""
        try:
            return await super().arun(steps)
        finally:
            self._redraw()

    def _redraw(self) -> None:
        now = time.monotonic()
        if self.after is not None and now - self._last_s >= _EVERY_S:
            self._last_s = now
            self.after()


def run_capped(shell: InteractiveShell, limit: str, cell: str) -> None:
    """Run a cell that may cost no more than a limit.

    Args:
        shell: whose cell.
        limit: "$0.50", "5¢".
        cell: its source.

    Raises:
        UsageError: the limit is no amount, or the calls have another payer already.
        BudgetExceeded: from the cell, when a call does not fit any more.
    """
    try:
        engine = cast("_Shown", _Shown.open("memory://", {"budgets": [_rule(limit)]}))
    except ConfigurationError as error:
        raise UsageError(f"%%budget takes an amount, such as %%budget $0.50: {error}") from None
    if not engine.status():
        raise UsageError("%%budget takes an amount above 0, such as %%budget $0.50; without a cap, leave it out")
    shown = _display(_html(_picture(engine)), display_id=True)
    lock = threading.Lock()

    def draw() -> None:
        with lock:
            shown.update(_html(_picture(engine)))

    engine.after = draw
    try:
        with _hooks(engine, cell), engine.utterance():
            _execute(shell, cell)
    finally:
        engine.flush()
        engine.after = None
        draw()


def _rule(limit: str) -> dict[str, Any]:
    return {"name": "this cell", "scope": "global", "limit": limit.strip(), "window": "fixed:24h"}


def _picture(engine: _Shown) -> str:
    again, engine.after = engine.after, None
    try:
        (line,) = engine.status()
    finally:
        engine.after = again
    return html.balances([line], f"This cell cost {html.amount('usd', line.spent)} of {html.amount('usd', line.limit)}")


@contextmanager
def _hooks(engine: BudgetEngine, cell: str) -> Iterator[None]:
    """Stand between the cell and the frameworks that it uses, or that are loaded."""
    with ExitStack() as stack:
        if _uses("litellm", cell):
            stack.enter_context(_litellm(engine))
        if _uses("langchain_core", cell) or re.search(r"\blang(chain|graph)", cell):
            stack.enter_context(_langchain(engine))
        yield


def _uses(module: str, cell: str) -> bool:
    return module in sys.modules or re.search(rf"\b{module}\b", cell) is not None


@contextmanager
def _litellm(engine: BudgetEngine) -> Iterator[None]:
    import litellm

    from llm_budget_hooks.litellm import BudgetCallback

    if any(isinstance(callback, BudgetCallback) for callback in litellm.callbacks):
        raise UsageError("litellm.callbacks has a BudgetCallback already, so the calls of this cell have another payer")
    ours = BudgetCallback(engine)
    litellm.callbacks.append(ours)
    try:
        yield
    finally:
        ours.uninstall()


@contextmanager
def _langchain(engine: BudgetEngine) -> Iterator[None]:
    from llm_budget_hooks.langchain import install, uninstall

    try:
        install(engine)
    except ConfigurationError as error:
        raise UsageError(f"the calls of this cell have another payer: {error}") from None
    try:
        yield
    finally:
        uninstall()


def _execute(shell: InteractiveShell, cell: str) -> None:
    """Run the source as a cell: the value of its last line is shown, and it may await."""
    name = shell.compile.cache(cell, shell.execution_count)
    plain: Any = shell.transform_cell
    tree = ast.parse(plain(cell), name)
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    for part, mode in ((tree, "exec"), (ast.Interactive(last), "single")):
        code = compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, shell.user_ns)  # noqa: S307 - running the user's cell is the point
        if asyncio.iscoroutine(waiting):
            _wait(waiting)


def _wait(waiting: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine in a thread; an interrupt of the cell cancels it."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def cell() -> None:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        await waiting

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(copy_context().run, asyncio.run, cell())
        try:
            running.result()
        except KeyboardInterrupt:
            loop, task = begun.result()
            if task is not None and not running.done():
                loop.call_soon_threadsafe(task.cancel)
            raise
