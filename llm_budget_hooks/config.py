"""The composition root: from URLs and files to an engine."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llm_budget_hooks.engine.outage import Outage
from llm_budget_hooks.engine.rebuilding import entries_of
from llm_budget_hooks.engine.trail import Trail
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models import Policy
from llm_budget_hooks.money import parse_nusd
from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.transitions import Take, Taken

if TYPE_CHECKING:
    from llm_budget_hooks.alerts import Webhook
    from llm_budget_hooks.engine import BudgetEngine
    from llm_budget_hooks.engine.outage import OnDegraded
    from llm_budget_hooks.engine.planning import Clock
    from llm_budget_hooks.engine.trail import OnAlert
    from llm_budget_hooks.ledger import Batch
    from llm_budget_hooks.models.events import Observer

_log = logging.getLogger("llm_budget_hooks")
Rules = str | os.PathLike[str] | Mapping[str, Any] | Policy
DEFAULT_STORE = "sqlite:///llm-budget.db"
_ACCEPTED = (
    "memory://, sqlite:///path/to/file.db, redis://host:6379/0, rediss://, redis+cluster:// or redis+sentinel://"
)


@dataclass(frozen=True)
class Asked:
    """What `BudgetEngine.open` was given."""

    url: str
    policy: Rules | None
    ledger: str | None
    clock: Clock | None
    on_alert: OnAlert | None
    observers: tuple[Observer, ...]
    require_shared: bool
    on_degraded: OnDegraded | None
    journal: str | os.PathLike[str] | None


def open_engine(made: type[BudgetEngine], asked: Asked) -> BudgetEngine:
    """See `BudgetEngine.open`."""
    rules = Policy.load({} if asked.policy is None else asked.policy)
    store = open_store(asked.url, rules)
    if asked.require_shared and not store.shared:
        store.close()
        raise ConfigurationError(
            f"{urlsplit(asked.url).scheme}:// is private to this process, and require_shared is set. "
            "Use sqlite:///path or redis://."
        )
    store.kept_elsewhere = asked.ledger is not None
    store.probe()
    origin = (asked.url, rules, asked.ledger)
    trail, outage = open_trail(asked, store, rules), open_outage(asked, rules)
    return made(store, rules, clock=asked.clock, origin=origin, trail=trail, outage=outage)


def open_outage(asked: Asked, policy: Policy) -> Outage:
    """What the engine does while its store is away; a balance in this process's own memory never is."""
    mode, allowance = policy.on_store_error, parse_nusd(policy.degraded_allowance)
    if mode == "deny" or asked.url == "memory://":
        return Outage("deny", on_degraded=asked.on_degraded)
    from llm_budget_hooks.journal import Journal, JournalError, default_path

    path = default_path(asked.url, policy.namespace) if asked.journal is None else asked.journal
    journal = Journal(path, policy.outbox_max, policy.store_timeout.total_seconds())
    try:
        journal.check()
    except JournalError as error:
        what = "bounded acts as deny" if mode == "bounded" else "what it lets through is booked nowhere"
        _log.warning("on_store_error = %r: %s, as %s.", mode, what, error)
        return Outage(mode, allowance, None, asked.on_degraded)
    return Outage(mode, allowance, journal, asked.on_degraded)


def open_trail(asked: Asked, store: Store, policy: Policy) -> Trail:
    """Where the engine's entries, words and alerts go. Nothing is connected yet."""
    told = (asked.observers, asked.on_alert, _webhook(policy))
    if asked.ledger is None:
        return Trail(None, None, *told)
    from llm_budget_hooks.ledger import Drain, Ledger

    ledger = Ledger.open(asked.ledger, zone=policy.timezone)
    drain = Drain(StoreOutbox(store, asked.clock), ledger, name=policy.namespace)
    return Trail(drain, ledger, *told)


def _webhook(policy: Policy) -> Webhook | None:
    if policy.webhook is None:
        return None
    from llm_budget_hooks.alerts import Webhook

    rule = policy.webhook
    return Webhook(rule.url, secret_variable=rule.secret_variable, allow_private=rule.allow_private)


class StoreOutbox:
    """The outbox of a store, as a drain reads it; by the engine's clock, where that has one of its own."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock

    def take(self, owner: str, done: str, limit: int) -> Batch:
        """See `llm_budget_hooks.ledger.Outbox`."""
        from llm_budget_hooks.ledger import Batch

        now_ms = None if self._clock is None else round(self._clock().timestamp() * 1000)
        answer = self._store.execute(Take(owner, done, limit, now_ms))
        assert isinstance(answer, Taken)  # noqa: S101 - what a store answers to this command
        return Batch(entries_of(answer), answer.leased, answer.dropped)


def engine_from_env(
    made: type[BudgetEngine], store: str | None, policy: Rules | None, ledger: str | None
) -> BudgetEngine:
    """See `BudgetEngine.from_env`."""
    rules = policy_from_env(policy)
    url = _chosen(store, "LLM_BUDGET_STORE") or DEFAULT_STORE
    trail = _chosen(ledger, "LLM_BUDGET_LEDGER") or None
    with _blaming(store, "LLM_BUDGET_STORE"):
        open_store(url, rules).close()
    with _blaming(ledger, "LLM_BUDGET_LEDGER"):
        if trail is not None:
            from llm_budget_hooks.ledger import Ledger

            Ledger.open(trail)
    return made.open(url, rules, ledger=trail)


def policy_from_env(policy: Rules | None = None) -> Policy:
    """The rules that are given, else those that LLM_BUDGET_POLICY names.

    Raises:
        ConfigurationError: there are none, or they are wrong.
    """
    chosen = _chosen(policy, "LLM_BUDGET_POLICY")
    if chosen in (None, ""):
        raise ConfigurationError("LLM_BUDGET_POLICY is not set; it is the path of a policy file, such as budgets.toml.")
    with _blaming(policy, "LLM_BUDGET_POLICY"):
        return Policy.load(chosen)


def _chosen(given: Any, variable: str) -> Any:
    return os.environ.get(variable) if given is None else given


@contextmanager
def _blaming(given: object, variable: str) -> Iterator[None]:
    """Names the variable in errors, if what is wrong comes from there."""
    try:
        yield
    except ConfigurationError as error:
        raise error if given is not None else ConfigurationError(f"{variable}: {error}") from None


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
    if scheme.partition("+")[0] in ("redis", "rediss"):
        from llm_budget_hooks.stores.redis import RedisStore

        return RedisStore.from_url(url, policy)
    raise ConfigurationError(f"no store is named {scheme or url[:20]!r}: a store's URL is {_ACCEPTED}")
