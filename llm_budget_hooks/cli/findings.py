"""What is amiss with a policy, or with the store that it is to be kept in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache, partial
from itertools import chain, islice
from typing import NamedTuple

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import PriceUnknown, StoreUnavailable
from llm_budget_hooks.models import Budget, Call, Policy
from llm_budget_hooks.models.policy import EstimateMode, Meter
from llm_budget_hooks.money import format_usd, parse_nusd
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.pricing.source import entries
from llm_budget_hooks.stores.sqlite import SqliteStore, path_of

_EXAMPLE = "gpt-4o-mini"
Needs = Callable[..., Decimal | int | None]


class Finding(NamedTuple):
    """Something to look at: where it is, and what is wrong there."""

    place: str
    text: str


def in_policy(policy: Policy, models: Iterable[str] = ()) -> list[Finding]:
    """Limits that no call can pass, under the policy's estimates.

    Args:
        policy: the rules.
        models: whose prices to estimate with; none: those that the policy prices, else a cheap one. A budget that is
            about none of these is tried with the cheapest model that it is about.
    """
    named, book = [*models] or [*policy.prices] or [_EXAMPLE], PriceBook.of(policy)
    written, needs = [*policy.written()], cache(partial(_needed, policy))
    found = [
        finding
        for tenant, budget in written
        if budget.limit_units and budget.meter in ("usd", "tokens")
        for finding in _impassable(budget, tenant, _tried(policy, book, budget, named), needs)
    ]
    return found if written else [Finding("budgets", "there are none, so nothing is ever refused")]


def _impassable(budget: Budget, tenant: str | None, models: list[str], needs: Needs) -> Iterator[Finding]:
    place = budget.name if tenant is None else f"{tenant}.{budget.name}"
    feature = budget.features[0] if budget.features else None
    if not models:
        like = " or ".join(budget.models)
        yield Finding(place, f"no model with a known price is like {like}, so it was not tried: name one with --model")
    for model in models:
        unbounded, bounded = (needs(budget.meter, budget.estimate, model, feature, bound) for bound in (None, 1))
        if unbounded is None or bounded is None:
            yield Finding(place, f"no price is known for {model}, so each of its calls is refused")
        elif bounded > budget.limit:
            yield Finding(place, f"no call of {model} can pass a limit of {_shown(budget.meter, budget.limit)}")
        elif unbounded > budget.limit:
            yield Finding(place, _too_low(budget, model, unbounded))


def _tried(policy: Policy, book: PriceBook, budget: Budget, named: list[str]) -> list[str]:
    """The models to try a budget with: of those that are named, else one that it is about."""
    feature = budget.features[0] if budget.features else None
    covered = [name for name in named if budget.covers(feature, name, book.is_one_of)]
    if covered:
        return covered
    if budget.meter == "tokens" or policy.unknown_price != "refuse":
        return [budget.models[0]]  # tokens need no price, and whatever has none costs the same
    own = [name for name in (*policy.prices, *policy.aliases) if budget.covers(feature, name, book.is_one_of)]
    costs = ((entry.get("input_cost_per_token"), name) for name, entry in entries().items())
    cheapest = sorted((cost, name.count("/"), name) for cost, name in costs if cost)
    listed = (name for _, _, name in cheapest if _is_like(name, budget.models) and _is_priced(book, name))
    return [*islice(chain(own, listed), 1)]


def _is_like(name: str, patterns: Iterable[str]) -> bool:
    """Whether a listed model, with its provider or without, matches one of some patterns."""
    ways = (name.lower(), name.lower().rpartition("/")[2])
    return any(fnmatchcase(way, pattern.lower()) for pattern in patterns for way in ways)


def _is_priced(book: PriceBook, model: str) -> bool:
    try:
        return bool(book.price(model))
    except PriceUnknown:
        return False


def _shown(meter: Meter, amount: Decimal | int) -> str:
    if meter == "usd":
        return format_usd(parse_nusd(amount))
    return f"{amount:,} token{'' if amount == 1 else 's'}"


def _too_low(budget: Budget, model: str, needed: Decimal | int) -> str:
    limit, held = _shown(budget.meter, budget.limit), _shown(budget.meter, needed)
    return (
        f"no call of {model} without an output bound (max_tokens) can pass a limit of {limit}: the smallest one is "
        f"held at {held}; see step_budget, step_tokens and [steps]"
    )


def _needed(
    policy: Policy, meter: Meter, estimate: EstimateMode | None, model: str, feature: str | None, bound: int | None
) -> Decimal | int | None:
    """What the smallest call there is is held at: what the lowest limit refuses it for. None: it has no price."""
    lowest = Budget(scope="global", meter=meter, limit=1, window="day", estimate=estimate).limited(1)
    alone = policy.model_copy(update={"budgets": (lowest,), "tenants": {}, "webhook": None})
    needed = []
    with BudgetEngine.open("memory://", alone) as engine:
        for step in (None, *policy.steps):
            call = Call(model=model, feature=feature, step=step, input_tokens=1, max_output_tokens=bound)
            refusal = engine.check(call).refusal
            if isinstance(refusal, PriceUnknown):
                return None
            needed.append(0 if refusal is None or refusal.requested is None else refusal.requested)
    return min(needed)


def in_store(url: str, policy: Policy) -> list[Finding]:
    """What is amiss with a store, and whether it answers.

    Args:
        url: of the store.
        policy: the rules that it is to be used with.

    Raises:
        ConfigurationError: the URL names no store.
    """
    if url.startswith("sqlite:") and not path_of(url).exists():
        SqliteStore.from_url(url, policy)  # looks at the folder; the file is for the first call to make
        return []
    strict = policy.model_copy(update={"on_store_error": "deny", "allow_eviction": True, "webhook": None})
    with BudgetEngine.open(url, strict) as engine:
        refusal = engine.check(Call(model="any", tenant="any", user="any", amount=0)).refusal
    if isinstance(refusal, StoreUnavailable):
        return [Finding("store", str(refusal))]
    if url == "memory://":
        return [Finding("store", _private())]
    if is_redis(url) and not policy.allow_eviction:
        return _evicting(url, strict)
    return []


def is_redis(url: str) -> bool:
    """Whether a store is a Redis: one server, a cluster or behind sentinels."""
    return url.startswith("redis")


def _private() -> str:
    workers = os.environ.get("WEB_CONCURRENCY", "")
    many = f"WEB_CONCURRENCY={workers}" if workers.isdigit() and int(workers) > 1 else "with several workers"
    return f"memory:// is private to each process: {many}, each has balances of its own, and limits hold for each alone"


def _evicting(url: str, policy: Policy) -> list[Finding]:
    from llm_budget_hooks.cli.servers import Server

    with Server(url, policy) as server:
        kept = server.eviction
    if kept in ("noeviction", None):
        return []
    text = (
        f"maxmemory-policy is {kept}: a balance that is evicted starts again at 0. "
        "Set it to noeviction, or write allow_eviction = true into the policy"
    )
    return [Finding("store", text)]
