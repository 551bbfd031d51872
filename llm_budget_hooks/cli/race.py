"""Many calls at once against a limit worth a few, by check-then-charge and by this package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from llm_budget_hooks.cli.target import Target
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.models import Call, Usage
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import Price

OFFERED = 50
WORTH = 10
TENANT, USER = "acme", "ada"
_MESSAGES = [{"role": "user", "content": "Count from 1 to 1000, in words."}]
_MAX_TOKENS = 471
_INPUT_TOKENS = 20


@dataclass
class Race:
    """What came of one race.

    Attributes:
        how: the way in which the limit was watched.
        limit: in dollars.
        offered: how many calls were made at once.
        let_through: how many of them were answered.
        spent: what the answered ones cost, in dollars.
        requests: how many reached the provider, by its own count; None where nobody counts.
        refusal: of one call more, after all have ended.
    """

    how: str
    limit: Decimal
    offered: int = OFFERED
    let_through: int = 0
    spent: Decimal = Decimal(0)
    requests: int | None = None
    refusal: BudgetExceeded | None = field(default=None, repr=False)

    @property
    def overshoot(self) -> Decimal:
        """How far the spending went above the limit, in dollars."""
        return max(self.spent - self.limit, Decimal(0))


def limit_for(price: Price) -> Decimal:
    """A limit that ten of the race's calls fit into and an eleventh does not, in dollars."""
    one = to_decimal(price.bound_nusd(_INPUT_TOKENS, _MAX_TOKENS))
    exact = one * (2 * WORTH + 1) / 2
    return Context(prec=3, rounding=ROUND_HALF_UP).create_decimal(exact)


class CheckThenCharge:
    """How a limit is often watched: look at the total, make the call, add what it cost."""

    def __init__(self, limit: Decimal, price: Price) -> None:
        self.limit = limit
        self.spent = Decimal(0)
        self._price = price

    async def call(self, make: Callable[[], Awaitable[Any]]) -> bool:
        """Make a call if the total is below the limit; whether it was."""
        if self.spent >= self.limit:
            return False
        answer = await make()
        used = Usage(input_tokens=answer.usage.prompt_tokens, output_tokens=answer.usage.completion_tokens)
        self.spent += to_decimal(self._price.cost_nusd(used))
        return True


async def naive(target: Target, price: Price, limit: Decimal, done: Callable[[], None]) -> Race:
    """The race by check-then-charge.

    Args:
        target: where the calls go.
        price: of its model.
        limit: in dollars.
        done: called after each call.
    """
    import litellm

    race = Race("check-then-charge", limit)
    total = CheckThenCharge(limit, price)

    async def one() -> None:
        if await total.call(lambda: litellm.acompletion(**_arguments(target))):
            race.let_through += 1
        done()

    await asyncio.gather(*(one() for _ in range(OFFERED)))
    race.spent, race.requests = total.spent, target.requests()
    return race


async def hooked(target: Target, engine: BudgetEngine, limit: Decimal, done: Callable[[], None]) -> Race:
    """The race with `BudgetCallback`.

    Args:
        target: where the calls go.
        engine: whose one budget is the limit.
        limit: in dollars, for the record.
        done: called after each call.
    """
    import litellm

    from llm_budget_hooks.litellm import BudgetCallback

    race = Race("llm_budget_hooks", limit)

    async def one() -> None:
        try:
            await litellm.acompletion(**_arguments(target), metadata={"tenant": TENANT, "user": USER})
            race.let_through += 1
        except BudgetExceeded:
            pass
        finally:
            done()

    litellm.callbacks = [BudgetCallback(engine)]
    try:
        await asyncio.gather(*(one() for _ in range(OFFERED)))
    finally:
        litellm.callbacks = []
    race.requests = target.requests()
    await _read(race, target.model, engine)
    return race


async def _read(race: Race, model: str, engine: BudgetEngine) -> None:
    """Read what was spent and whether one call more would be let in, and close the engine."""
    await engine.aflush()
    (status,) = await engine.astatus(tenant=TENANT, user=USER)
    race.spent = Decimal(status.spent or 0)
    one_more = Call(model=model, tenant=TENANT, user=USER, input_tokens=_INPUT_TOKENS, max_output_tokens=_MAX_TOKENS)
    race.refusal = (await engine.acheck(one_more)).refusal
    await engine.aclose()


def _arguments(target: Target) -> dict[str, Any]:
    return {**target.for_litellm(), "messages": _MESSAGES, "max_tokens": _MAX_TOKENS, "num_retries": 0}
