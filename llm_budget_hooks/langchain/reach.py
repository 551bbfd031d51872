"""A check for the start of a program: which models of a runnable or a graph no budget handler is bound to."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable, RunnableConfig

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.langchain.embeddings import BudgetedEmbeddings
from llm_budget_hooks.langchain.handler import BudgetCallbackHandler
from llm_budget_hooks.langchain.hooks import installed_handler

_MOST = 20_000
_NAMES = ("model_name", "model", "model_id")
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, BudgetEngine, BudgetedEmbeddings)


def unseen_models(
    app: Runnable[Any, Any], engine: BudgetEngine, config: RunnableConfig | None = None
) -> tuple[str, ...]:
    """The models in a runnable or graph that no handler of an engine is bound to.

    It follows steps, branches, nodes, tools, middleware, and what functions close over; so it may name a model that
    never runs, and cannot find one that is made while the graph runs. It does not see where code leaves LangChain's
    context, as raw threads do: `install` reaches those.

    Args:
        app: what will be invoked.
        engine: whose handlers count.
        config: what it will be invoked with.

    Returns:
        the kind and name of each such model, with the node of the graph that it is in; embeddings that are not
        `BudgetedEmbeddings` among them, whatever is bound, since no handler sees those.
    """
    covered = installed_handler(engine) is not None or _binds((config or {}).get("callbacks"), engine)
    return tuple(dict.fromkeys(_Walk(engine).found(app, covered)))


class _Walk:
    """One walk over what an application is made of."""

    def __init__(self, engine: BudgetEngine) -> None:
        self._engine = engine
        self._seen: dict[tuple[int, bool], Any] = {}

    def found(self, app: object, covered: bool) -> Iterator[str]:
        todo = [(app, covered, "")]
        while todo and len(self._seen) < _MOST:
            thing, covered, node = todo.pop()
            if isinstance(thing, _LEAVES) or (id(thing), covered) in self._seen:
                continue
            self._seen[id(thing), covered] = thing
            covered = covered or self._bound_here(thing)
            if isinstance(thing, BaseLanguageModel | Embeddings) or _decides(thing):
                if isinstance(thing, Embeddings) or not covered:
                    yield _described(thing, node)
                continue
            todo += [(part, covered, name or node) for name, part in _parts(thing)]

    def _bound_here(self, thing: object) -> bool:
        config = getattr(thing, "config", None)
        bound = config.get("callbacks") if isinstance(config, Mapping) else None
        return _binds(bound, self._engine) or _binds(getattr(thing, "callbacks", None), self._engine)


def _binds(callbacks: object, engine: BudgetEngine) -> bool:
    handlers = callbacks if isinstance(callbacks, list | tuple) else getattr(callbacks, "handlers", ())
    return isinstance(handlers, Iterable) and any(
        isinstance(each, BudgetCallbackHandler) and each.engine is engine for each in handlers
    )


def _decides(thing: object) -> bool:
    return any(kind.__name__ == "BaseDecisionModel" for kind in type(thing).__mro__)


def _parts(thing: object) -> Iterator[tuple[str, object]]:
    """What a thing is made of, with the names of a graph's nodes."""
    if isinstance(thing, Mapping):
        yield from (("", part) for part in [*thing.values()])
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from (("", part) for part in [*thing])
    elif isinstance(thing, MethodType):
        yield from (("", part) for part in (thing.__self__, thing.__func__))
    elif isinstance(thing, partial):
        yield from (("", part) for part in (thing.func, thing.args, thing.keywords))
    elif isinstance(thing, FunctionType):
        yield from (("", part) for part in _reached(thing))
    else:
        nodes = getattr(thing, "nodes", None)
        if isinstance(nodes, Mapping):
            yield from ((str(name), part) for name, part in nodes.items())
        yield from (("", part) for name, part in _attributes(thing) if name not in ("nodes", "builder"))


def _reached(function: FunctionType) -> list[object]:
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return [inner]
    try:
        around = inspect.getclosurevars(inner)
    except ValueError:  # a cell that is not filled yet
        return []
    return [*around.nonlocals.values(), *around.globals.values()]


def _attributes(thing: object) -> list[tuple[str, object]]:
    try:
        return [*vars(thing).items()]
    except TypeError:
        return []


def _described(model: object, node: str) -> str:
    names = (getattr(model, name, None) for name in _NAMES)
    name = next((name for name in names if isinstance(name, str) and name), "")
    return " ".join(part for part in (type(model).__name__, name, f"in {node}" if node else "") if part)
