"""One request of one user, and its answer: `Utterance`, the scope that joins the calls it fans out into."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from llm_budget_hooks.engine.refusals import answer_refusal
from llm_budget_hooks.errors import ConfigurationError, StoreUnavailable
from llm_budget_hooks.keys import normalised
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.transitions import Meter

if TYPE_CHECKING:
    from llm_budget_hooks.engine.engine import BudgetEngine

_NUMBERS = itertools.count()
_MOST_AROUND = 50
_CURRENT: ContextVar[Utterance | None] = ContextVar("llm_budget_hooks_utterance", default=None)


def surrounding_utterance() -> Utterance | None:
    """The utterance that the running code is in, of whichever engine."""
    return _CURRENT.get()


_FINDERS: list[Callable[[Any], Utterance | None]] = []


def find_utterances(find: Callable[[Any], Utterance | None]) -> None:
    """Let an integration say which utterance of an engine the running code is in, where no block says it."""
    _FINDERS.append(find)


def current_utterance(engine: object) -> Utterance | None:
    """The utterance of this engine that the running code is in: by a block around it, else as integrations say."""
    scope = _CURRENT.get()
    if scope is None:
        return next((found for find in _FINDERS if (found := find(engine)) is not None), None) if _FINDERS else None
    return scope if scope.engine is engine else None


class _Block:
    """A block in which an utterance is the surrounding one."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Utterance) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = _CURRENT.set(self._scope)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._token)


def _checked_plan(plan: object) -> tuple[str, ...] | None:
    if plan is None:
        return None
    if not isinstance(plan, list | tuple) or not all(isinstance(step, str) for step in plan):
        raise ConfigurationError(f"utterance.plan is a tuple of the names of steps, not {plan!r:.60}")
    return tuple(plan)


class Utterance:
    """A scope in which all calls are one utterance and one answer; ``with`` and ``async with`` both work.

    A nested one without an id joins the outer one. At its end the answer's actual cost is held against its
    ceiling: above it, `served` is False and `BudgetExceeded` is raised with the `output`, unless another
    exception is on its way.

    Attributes:
        engine: whose budgets count.
        id: names the utterance.
        tenant, user, feature: whose request it is.
        plan: the steps that were announced.
        served: False once the answer cost more than its ceiling.
        output: the answer, if the application puts it here; the refusal at the end carries it.
    """

    def __init__(
        self,
        engine: BudgetEngine,
        tenant: str | None,
        user: str | None,
        feature: str | None,
        id: str | None,
        plan: tuple[str, ...] | None,
    ) -> None:
        outer = current_utterance(engine)
        self._outer = outer if id is None else None
        self._number = next(_NUMBERS)
        # Numbers, and not scopes: a job that begins the next one inside its own would keep all before it alive.
        self._around: tuple[int, ...] = () if outer is None else (outer._number, *outer._around[:_MOST_AROUND])
        self.engine = engine
        joined = self._outer is not None
        self.id: str = id if id is not None else outer.id if outer is not None else f"ut-{os.urandom(10).hex()}"
        self.tenant: str | None = outer.tenant if outer is not None and (joined or tenant is None) else tenant
        self.user: str | None = outer.user if outer is not None and (joined or user is None) else user
        self.feature: str | None = outer.feature if outer is not None and feature is None else feature
        self.plan = _checked_plan(plan)
        self.served = True
        self.output: Any = None
        self._token: Token[Utterance | None] | None = None
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        self._costs: dict[str, int] = {}
        self._guesses: set[str] = set()

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells this utterance from all others of the engine."""
        return normalised(self.tenant), normalised(self.user), self.id

    def is_apart_from(self, other: Utterance) -> bool:
        """Whether it was begun inside another, or inside what surrounds that, as one of its own: with an id."""
        own = self
        while own._outer is not None:
            own = own._outer
        around = (other._number, *other._around)
        return own._number not in around and not set(own._around).isdisjoint(around)

    @property
    def estimate(self) -> Decimal | None:
        """What it is expected to cost, in dollars, as far as this process knows.

        With a plan the sum over its steps, else what nine of ten answers of the feature cost; None without a plan and
        a history.
        """
        expected = self.engine.planned_nusd(self)
        return None if expected is None else to_decimal(expected)

    @property
    def spent(self) -> Decimal:
        """What its settled calls cost so far, in dollars, as far as this process knows."""
        return self._outer.spent if self._outer is not None else to_decimal(self._total(self._costs))

    @property
    def reserved(self) -> Decimal:
        """What its open calls hold, in dollars, as far as this process knows."""
        return self._outer.reserved if self._outer is not None else to_decimal(self._total(self._open))

    @property
    def calls(self) -> int:
        """How many of its calls were let in, as far as this process knows."""
        return self._outer.calls if self._outer is not None else len(self._open) + len(self._costs)

    def _total(self, amounts: dict[str, int]) -> int:
        with self._lock:
            return sum(amounts.values())

    def begin(self, id: str, estimate_nusd: int) -> None:
        """Take note of an admitted call."""
        with self._lock:
            self._open[id] = estimate_nusd

    def end(self, id: str, cost_nusd: int, *, exact: bool = True) -> None:
        """Take note of what a call cost; a later word on the same call replaces an earlier one."""
        with self._lock:
            self._open.pop(id, None)
            self._costs[id] = cost_nusd
            if exact:
                self._guesses.discard(id)
            else:
                self._guesses.add(id)

    def start(self) -> None:
        """Begin it without a ``with`` block: `current` then joins calls to it, and `finish` ends it.

        Raises:
            BudgetExceeded: the announced steps are expected to cost more than the ceiling, or a budget that counts
                utterances when they begin said no.
        """
        if not self._joins_at_once():
            self.engine.run(self._start())

    async def astart(self) -> None:
        """Same as `start`, awaited."""
        if not self._joins_at_once():
            await self.engine.arun(self._start())

    def _joins_at_once(self) -> bool:
        """Begin it where nothing has to be planned or asked for that; False: `_start` does."""
        if self.plan or self.engine.counts_entries:
            return False
        if self._outer is None:
            self.engine.join(self)
        return True

    def _start(self) -> Generator[Any, Any, None]:
        yield from self.engine.expect(self)
        if self._outer is None:
            yield from self.engine.enter(self)
            self.engine.join(self)

    def current(self) -> AbstractContextManager[None]:
        """All that is reserved in this block belongs to it, whatever surrounds the block."""
        return _Block(self)

    def finish(self, error: BaseException | None = None) -> None:
        """End it without a ``with`` block, with the exception that ended it if there is one.

        Raises:
            BudgetExceeded: the answer cost more than its ceiling, and `error` is None.
        """
        if self._outer is None and self.engine.limits_answers(self.tenant, self.feature):
            self.engine.run(self._finish(error))

    def _repr_html_(self) -> str:
        from llm_budget_hooks import html

        names = ("tenant", "feature", "calls", "spent", "reserved", "served")
        return html.facts(f"Utterance {self.id}", [(name, getattr(self, name)) for name in names])

    def __enter__(self) -> Self:
        self.start()
        self._token = _CURRENT.set(self)
        return self

    async def __aenter__(self) -> Self:
        await self.astart()
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._leave()
        self.engine.run(self._finish(error))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._leave()
        await self.engine.arun(self._finish(error))

    def _leave(self) -> None:
        if self._token is not None:
            _CURRENT.reset(self._token)
            self._token = None

    def _finish(self, error: BaseException | None) -> Generator[Any, Any, None]:
        """Hold the actual cost against the ceiling."""
        if self._outer is not None:
            return
        try:
            lines, accounts = yield from self.engine.answer_balances(self)
        except StoreUnavailable:
            return
        ceilings = [(line, account) for line, account in zip(lines, accounts, strict=True) if line.meter == Meter.USD]
        if ceilings and error is None and self._costs and not self._guesses and not self._open:
            yield from self.engine.learn_answer(self, max(account.spent for _, account in ceilings))
        for line, account in ceilings:
            if account.spent + account.reserved > line.limit:
                self.served = False
                refused = answer_refusal(line.budget.name, line.limit, account.spent, account.reserved, self.output)
                yield from self.engine.not_served(self, refused)
                if error is None:
                    raise refused
                return
