"""Without callbacks: `install` for the whole process, and ``with engine.utterance(...)`` for what is in the block.

Both go through LangChain's configure hooks, which are asked whenever a run is configured. What starts models
outside of LangChain's context is seen by `install` alone: raw threads, and executors that do not copy the context.
A third hook gives the handler of a run to all that runs inside it, whatever ``callbacks`` that is given.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import RunnableConfig, var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.engine.utterance import surrounding_utterance
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.langchain.handler import BudgetCallbackHandler

_KEPT = "_langchain_handler"


class _Installed:
    """What `install` was given; asked like a context variable, but the same in every thread."""

    def __init__(self) -> None:
        self.handler: BudgetCallbackHandler | None = None

    def get(self) -> BaseCallbackHandler | None:
        return self.handler


class _Surrounding:
    """The handler of the engine whose utterance the running code is in."""

    def get(self) -> BaseCallbackHandler | None:
        scope = surrounding_utterance()
        return None if scope is None else shared_handler(scope.engine)


class _Inside:
    """The handler of the run that the running code is in: ``callbacks=[]`` below it does not shake it off."""

    def get(self) -> BaseCallbackHandler | None:
        callbacks = (var_child_runnable_config.get() or _NOTHING).get("callbacks")
        handlers = getattr(callbacks, "inheritable_handlers", ())
        return next((handler for handler in handlers if isinstance(handler, BudgetCallbackHandler)), None)


_NOTHING: RunnableConfig = {}
_INSTALLED = _Installed()


def shared_handler(engine: BudgetEngine) -> BudgetCallbackHandler:
    """One handler per engine, so that LangChain, which tells handlers apart by identity, calls it once."""
    # Kept on the engine, as the runs are.
    kept = vars(engine)
    found: BudgetCallbackHandler | None = kept.get(_KEPT)
    return found if found is not None else kept.setdefault(_KEPT, BudgetCallbackHandler(engine))


def install(engine: BudgetEngine) -> BudgetCallbackHandler:
    """Cap every LangChain model call of this process, without callbacks anywhere.

    Installing the same engine again changes nothing.

    Args:
        engine: whose budgets count.

    Returns:
        the handler that is called, for who wants to pass it on.

    Raises:
        ConfigurationError: another engine is installed.
    """
    here = _INSTALLED.handler
    if here is not None and here.engine is not engine:
        raise ConfigurationError("Another engine is installed in this process; call uninstall() before.")
    _INSTALLED.handler = shared_handler(engine)
    return _INSTALLED.handler


def uninstall() -> None:
    """Take back `install`. Runs that have begun keep their handler."""
    _INSTALLED.handler = None


def installed_handler(engine: BudgetEngine) -> BudgetCallbackHandler | None:
    """The handler that `install` put into this process for an engine."""
    here = _INSTALLED.handler
    return here if here is not None and here.engine is engine else None


def _register() -> None:
    for hook in (_INSTALLED, _Surrounding(), _Inside()):
        register_configure_hook(cast("ContextVar[BaseCallbackHandler | None]", hook), inheritable=True)


_register()
