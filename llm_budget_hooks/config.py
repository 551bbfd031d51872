"""The composition root: from URLs and files to an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models import Policy
from llm_budget_hooks.stores.base import Store

if TYPE_CHECKING:
    from llm_budget_hooks.engine import BudgetEngine
    from llm_budget_hooks.engine.planning import Clock

_ACCEPTED = "memory://, sqlite:///path/to/file.db, redis://host:6379/0 or rediss://"


def open_engine(
    made: type[BudgetEngine],
    url: str,
    policy: str | os.PathLike[str] | Mapping[str, Any] | Policy | None,
    clock: Clock | None,
    require_shared: bool,
    unsupported: Mapping[str, Any],
) -> BudgetEngine:
    """See `BudgetEngine.open`."""
    for name, value in unsupported.items():
        if value is not None:
            raise ConfigurationError(f"BudgetEngine.open does not support {name}= yet; leave it out.")
    rules = Policy.load({} if policy is None else policy)
    store = open_store(url, rules)
    if require_shared and not store.shared:
        store.close()
        raise ConfigurationError(
            f"{urlsplit(url).scheme}:// is private to this process, and require_shared is set. Use sqlite:///path or redis://."
        )
    return made(store, rules, clock=clock, origin=(url, rules))


def engine_from_env(made: type[BudgetEngine]) -> BudgetEngine:
    """See `BudgetEngine.from_env`."""
    policy = os.environ.get("LLM_BUDGET_POLICY")
    if not policy:
        raise ConfigurationError("LLM_BUDGET_POLICY is not set; it is the path of a policy file, such as budgets.toml.")
    ledger = os.environ.get("LLM_BUDGET_LEDGER") or None
    return made.open(os.environ.get("LLM_BUDGET_STORE") or "sqlite:///llm-budget.db", policy, ledger=ledger)


def open_store(url: str, policy: Policy) -> Store:
    """The store that a URL names. Nothing is connected yet.

    Raises:
        ConfigurationError: the URL names no store, or its parts are wrong.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"a store is named by a URL: {_ACCEPTED}")
    scheme = urlsplit(url).scheme
    if url == "memory://":
        from llm_budget_hooks.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        from llm_budget_hooks.stores.sqlite import SqliteStore

        return SqliteStore.from_url(url, policy)
    if scheme in ("redis", "rediss"):
        from llm_budget_hooks.stores.redis import RedisStore

        return RedisStore.from_url(url, policy)
    raise ConfigurationError(f"no store is named {scheme or url[:20]!r}: a store's URL is {_ACCEPTED}")
