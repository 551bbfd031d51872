"""The tree of runs as far as it is needed: which root a run belongs to, whose it is, and which calls are open.

There is one `Runs` per engine and process, so that several handlers of one engine see the same runs. All maps are
bounded. A run that has ended stays known until it is pushed out, since work that it began may go on after it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import ref

from langchain_core.runnables.config import var_child_runnable_config

from llm_budget_hooks.engine import BudgetEngine, Reservation, Utterance
from llm_budget_hooks.engine.utterance import current_utterance, find_utterances, surrounding_utterance
from llm_budget_hooks.errors import BudgetExceeded, ConfigurationError
from llm_budget_hooks.langchain.bounded import Bounded
from llm_budget_hooks.langchain.refusal import sticks
from llm_budget_hooks.models import Call

if TYPE_CHECKING:
    from llm_budget_hooks.langchain.opened import Opened

_log = logging.getLogger("llm_budget_hooks")
_MAX_RUNS = 20_000
_MAX_CALLS = 20_000
_MAX_ENDED = 10_000
_FRAMEWORKS = ("langchain", "langgraph")
_WHOLE = frozenset({"invoke", "ainvoke", "batch", "abatch", "generate", "agenerate"})
_MAX_FRAMES = 60
_MAX_ALIKE = 100


@dataclass(slots=True, eq=False)
class Root:
    """The outermost run there is to see: one utterance, and one answer.

    Attributes:
        id: of the run, as a number.
        scope: the utterance; it joins a surrounding `engine.utterance()` if there is one.
        tenant, user, feature: whose it is, pinned when it began.
        streamed: the answer reaches the caller in pieces or beside others, so its end cannot hold it back.
        refused: what refused it, where that sticks.
        calls: its calls that are open.
        ended: whether its end was seen.
        warned: it was said that its identity is not what a run inside it names.
    """

    id: int
    scope: Utterance
    tenant: str | None
    user: str | None
    feature: str | None
    streamed: bool = False
    refused: BudgetExceeded | None = None
    calls: dict[int, Opened] = field(default_factory=dict)
    ended: bool = False
    warned: bool = False

    def reserve(self, engine: BudgetEngine, call: Call) -> Reservation:
        """Reserve as this root's, whatever scope the code that calls the model is in.

        Raises:
            BudgetExceeded: a budget said no, now or before where that sticks to this root.
        """
        if self.refused is not None and not engine.is_cheap(call.model):
            raise self.refused
        try:
            with self.scope.current():
                return engine.reserve(call)
        except BudgetExceeded as error:
            if sticks(error):
                self.refused = error
            raise

    def cancelled(self, engine: BudgetEngine, task: asyncio.Task[Any] | None) -> None:
        """A task that runs calls of this root was cancelled: what they hold is spent, as far as anybody knows."""
        for opened in list(self.calls.values()):
            if opened.task is task and opened.claim(final=False):
                engine.settle(opened.reservation)


_ROOT: ContextVar[Root | None] = ContextVar("llm_budget_hooks_langchain_root", default=None)
_KEPT = "_langchain_runs"


class Runs:
    """What one engine knows of the runs of this process.

    Attributes:
        calls: the open calls by run, and those that were ended provisionally and may still report.
        ended: the runs of calls whose end was seen.
        opening: the runs of calls that are being reserved, with what announced them.
        gone: the runs that nothing refers to any more, and whose calls may be open.
    """

    def __init__(self) -> None:
        self.calls: Bounded[int, Opened] = Bounded(_MAX_CALLS)
        self.ended: Bounded[int, bool] = Bounded(_MAX_ENDED)
        self.opening: dict[int, object] = {}
        self.gone: deque[int] = deque(maxlen=_MAX_CALLS)
        self._roots: Bounded[int, Root] = Bounded(_MAX_RUNS)
        self._replacing = threading.Lock()

    @classmethod
    def of(cls, engine: BudgetEngine) -> Runs:
        """The runs that an engine's handlers share."""
        # Kept on the engine, since runs hold the engine: a weak map of engines would keep them all alive.
        kept = vars(engine)
        found: Runs | None = kept.get(_KEPT)
        return found if found is not None else kept.setdefault(_KEPT, cls())

    def known(self, run: int | None) -> Root | None:
        """The root of a run that was seen to begin."""
        return None if run is None else self._roots.get(run)

    def root(self, engine: BudgetEngine, run: int, parent: UUID | None, metadata: Mapping[str, Any]) -> Root:
        """The root that a run belongs to; a new one if it is, or hangs below, a run that nobody saw begin.

        Raises:
            BudgetExceeded: a new root announces steps that are expected to cost more than an answer may.
            ConfigurationError: its metadata cannot be what was meant.
        """
        above = None if parent is None else parent.int
        found = self._roots.get(run)
        again = found is not None and found.ended and found.id == run
        if again or found is None:
            found = self._above(engine, above)
            if found is not None and _is_apart(found):
                found, above = None, None
        if found is None:
            found = _new_root(engine, run if above is None else above, metadata, again=again)
            if above is not None:
                self._roots.put(above, found)
            found.scope.start()
        elif parent is None and found.id != run:
            _warn_of_others(found, metadata)
        self._roots.put(run, found)
        return found

    def replace(self, opened: Opened) -> Opened | None:
        """Put a call in as the one of its run; the one that was there, if any, waits below it for an end of its own."""
        with self._replacing:
            before = self.calls.get(opened.run)
            if before is not None and before.depth < _MAX_ALIKE:
                opened.before, opened.depth, opened.passed = before, before.depth + 1, before.passed
            self.calls.put(opened.run, opened)
        return before

    def take(self, run: int, event: object) -> Opened | None:
        """Take out the call that an end is about.

        Args:
            run: of which the end says that it is.
            event: what the end brings, the same object for all handlers. Where a run has several calls, that tells the
                end of the next one from an end that another handler has seen.
        """
        with self._replacing:
            opened = self.calls.pop(run)
            if opened is not None and opened.has_passed(event):
                self.calls.put(run, opened)
                return None
            if opened is not None and opened.before is not None:
                opened.before.passed = (*opened.passed, event)
                self.calls.put(run, opened.before)
        return opened

    def follow(self, run_id: UUID, opened: Opened, collect: Callable[[], None]) -> None:
        """Take note when nothing refers to a run any more, since then nobody can report its end.

        That may be found out anywhere, even below the store's lock, so it is only put down here. An event loop
        collects at its next turn; without one, the next call does.
        """
        gone, run = self.gone, opened.run
        loop = opened.task.get_loop() if opened.task is not None else None

        def lost(_: object) -> None:
            gone.append(run)
            if loop is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(collect)

        opened.life = ref(run_id, lost)

    def _above(self, engine: BudgetEngine, parent: int | None) -> Root | None:
        """By the parent; else by LangSmith's trace; else the root of this context, if it has not ended.

        Some wrappers, `with_fallbacks` among them, give what they run the outer configuration and so no parent; what
        LangChain has put in the context says then where it hangs.
        """
        if parent is None:
            return self._roots.get(here) if (here := _parent_here()) is not None else None
        found = self._roots.get(parent)
        if found is None:
            traced = _traced()
            found = None if traced is None else self._roots.get(traced)
        if found is None:
            found = _root_of_context(engine)
        return found


def enter(root: Root) -> None:
    """Make a root that of this context."""
    _ROOT.set(root)


def root_here(engine: BudgetEngine) -> Root | None:
    """The root that the running code is in: by LangChain's own configuration, else by this context."""
    return Runs.of(engine).known(_parent_here()) or _root_of_context(engine)


def _scope_here(engine: BudgetEngine) -> Utterance | None:
    """The utterance of the run that LangChain says the running code is in."""
    here = _parent_here()
    runs: Runs | None = vars(engine).get(_KEPT) if here is not None else None
    root = runs.known(here) if runs is not None else None
    return root.scope if root is not None else None


# Calls that code inside a run makes past LangChain are those of the run's utterance too.
find_utterances(_scope_here)


def _parent_here() -> int | None:
    config = var_child_runnable_config.get()
    if config is None:
        return None
    parent = getattr(config.get("callbacks"), "parent_run_id", None)
    return parent.int if isinstance(parent, UUID) else None


def _root_of_context(engine: BudgetEngine) -> Root | None:
    here = _ROOT.get()
    return here if here is not None and here.scope.engine is engine and not here.ended else None


def _is_apart(root: Root) -> bool:
    """Whether the running code is in a scope that is one of its own, though it was begun inside this root."""
    scope = surrounding_utterance()
    return scope is not None and scope.engine is root.scope.engine and scope.is_apart_from(root.scope)


def _warn_of_others(root: Root, metadata: Mapping[str, Any]) -> None:
    if root.warned or all(metadata.get(name) in (None, getattr(root, name)) for name in ("tenant", "user")):
        return
    root.warned = True
    _log.warning(
        "A run inside another says in its metadata whose it is, which counts at the outermost run only. What is done "
        "for somebody else belongs in `with engine.utterance(tenant=..., user=..., id=...)`."
    )


def _new_root(engine: BudgetEngine, id: int, metadata: Mapping[str, Any], *, again: bool = False) -> Root:
    outer = current_utterance(engine)
    named = text_in(metadata, "utterance") or None
    tenant, user, feature = text_in(metadata, "tenant"), text_in(metadata, "user"), text_in(metadata, "feature")
    if outer is not None:
        tenant = outer.tenant if outer.tenant is not None else tenant
        user = outer.user if outer.user is not None else user
        feature = outer.feature if outer.feature is not None else feature
        if named is None and (tenant, user, feature) != (outer.tenant, outer.user, outer.feature):
            named = outer.id
    elif named is None and not again:
        named = f"lc-{id:032x}"
    scope = Utterance(engine, tenant, user, feature, named, plan_in(metadata))
    streamed = engine.limits_answers(tenant, feature) and _streams()
    return Root(id, scope, tenant, user, feature, streamed)


def text_in(metadata: Mapping[str, Any], key: str) -> str | None:
    """A name in a root's metadata.

    Raises:
        ConfigurationError: it is no text.
    """
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"metadata[{key!r}] is text, not {type(value).__name__}")
    return value


def plan_in(metadata: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The steps that a root's metadata announces.

    Raises:
        ConfigurationError: they are no list of names.
    """
    value = metadata.get("plan")
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(step, str) for step in value):
        raise ConfigurationError("metadata['plan'] is a list of the names of steps")
    return tuple(value)


def _traced() -> int | None:
    """The id of the root run in LangSmith's trace, which wraps some middleware in runs of its own."""
    helpers = sys.modules.get("langsmith.run_helpers")
    tree = helpers.get_current_run_tree() if helpers is not None else None
    return None if tree is None else tree.trace_id.int


def _streams() -> bool:
    """Whether the run that begins here was asked for as a stream: no framework frame below is a whole call."""
    frame = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name in _WHOLE and frame.f_globals.get("__name__", "").startswith(_FRAMEWORKS):
            return False
        if frame.f_back is None:
            break
        frame = frame.f_back
    return True
