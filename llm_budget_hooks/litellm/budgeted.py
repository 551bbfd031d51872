"""`budgeted`: the entry points of LiteLLM under one engine, for those who register no callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import litellm

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.engine.tickets import open_ticket
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.litellm.entry import ENTRIES, EXPLICIT, around
from llm_budget_hooks.litellm.renewal import expect


class Budgeted:
    """LiteLLM's entry points, each of whose calls an engine holds and settles: ``budgeted(engine).completion(...)``."""

    def __init__(self, engine: BudgetEngine) -> None:
        self._engine = engine
        expect(engine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The entry point of that name.

        Raises:
            AttributeError: LiteLLM has no such entry point, or it calls no model.
        """
        if name not in ENTRIES or not hasattr(litellm, name):
            raise AttributeError(f"budgeted() has no {name!r}; it has {', '.join(sorted(ENTRIES))}")
        return _under(self._engine, getattr(litellm, name))


def budgeted(engine: BudgetEngine) -> Budgeted:
    """LiteLLM's entry points under an engine, without a callback.

    Args:
        engine: decides and books.

    Raises:
        ConfigurationError: `engine` is no engine.
    """
    if not isinstance(engine, BudgetEngine):
        raise ConfigurationError(f"budgeted() takes a BudgetEngine, not {engine!r}")
    return Budgeted(engine)


def _under(engine: BudgetEngine, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        return _under_async(engine, function)
    surrounded = around(_covering(engine, function), whole=True)

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        token = EXPLICIT.set(engine)
        try:
            return surrounded(*args, **kwargs)
        finally:
            EXPLICIT.reset(token)

    return called


def _under_async(engine: BudgetEngine, function: Callable[..., Any]) -> Callable[..., Any]:
    surrounded = around(_covering_async(engine, function), whole=True)

    @wraps(function)
    async def called(*args: Any, **kwargs: Any) -> Any:
        token = EXPLICIT.set(engine)
        try:
            return await surrounded(*args, **kwargs)
        finally:
            EXPLICIT.reset(token)

    return called


def _covering(engine: BudgetEngine, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a callback that is registered as well see that the call is held."""

    @wraps(function)
    def covered(*args: Any, **kwargs: Any) -> Any:
        ticket = open_ticket(engine)
        try:
            return function(*args, **kwargs)
        finally:
            ticket.close()

    return covered


def _covering_async(engine: BudgetEngine, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def covered(*args: Any, **kwargs: Any) -> Any:
        ticket = open_ticket(engine)
        try:
            return await function(*args, **kwargs)
        finally:
            ticket.close()

    return covered
