"""``llm-budget kill``, ``revive``, ``set`` and ``unset``: what an operator changes for all processes at once."""

from __future__ import annotations

import getpass

from llm_budget_hooks.admin.limits import ends_at, limit_of
from llm_budget_hooks.cli.opened import print_json, say
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import ConfigurationError


def check_whose(tenant: str | None, everybody: bool) -> None:
    """See that a switch is for one tenant or, in so many words, for everybody.

    Raises:
        ConfigurationError: it is for neither, or both.
    """
    if (tenant is None) != everybody:
        raise ConfigurationError("Whose? Name a --tenant, or say --everybody.")


def kill(engine: BudgetEngine, tenant: str | None, reason: str, by: str | None, as_json: bool) -> None:
    """Engage the kill switch, of one tenant or for everybody."""
    changed = engine.kill(tenant, reason=reason, by=_who(by))
    _told(changed, tenant, "Stopped: every call of {} is refused from now on.", "The switch of {} was on.", as_json)


def revive(engine: BudgetEngine, tenant: str | None, by: str | None, as_json: bool) -> None:
    """Take the kill switch back."""
    changed = engine.revive(tenant, by=_who(by))
    _told(changed, tenant, "Calls of {} are let in again.", "The switch of {} was not on.", as_json)


def set_limit(
    engine: BudgetEngine, budget: str, limit: str, tenant: str | None, lasts: str | None, by: str | None, reason: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Override a limit, for one tenant or of a global budget.

    Args:
        engine: whose store.
        budget: the budget's name.
        limit: as in a policy, or ``off``.
        tenant: whose; None for a budget of scope ``global``.
        lasts: how long, such as ``24h``; None: until it is taken back.
        by, reason: who changes it and why.
        as_json: print JSON.

    Raises:
        ConfigurationError: there is no such budget, or the limit or the duration is none.
    """
    ends = None if lasts is None else ends_at(engine, lasts)
    engine.override(budget, limit_of(limit), tenant=tenant, expires_at=ends, by=_who(by), reason=reason)
    whose = "everybody" if tenant is None else f"tenant {tenant}"
    until = "" if ends is None else f", until {ends:%Y-%m-%d %H:%M} UTC"
    if as_json:
        expires = None if ends is None else ends.isoformat()
        print_json({"budget": budget, "tenant": tenant, "limit": limit, "expires_at": expires, "changed": True})
    else:
        say(f"The limit of {budget} is {limit} for {whose} from the next call on{until}.")


def unset(engine: BudgetEngine, budget: str, tenant: str | None, by: str | None, as_json: bool) -> None:
    """Let the policy's own limit hold again."""
    changed = engine.override(budget, None, tenant=tenant, by=_who(by))
    whose = "everybody" if tenant is None else f"tenant {tenant}"
    if as_json:
        print_json({"budget": budget, "tenant": tenant, "changed": changed})
    else:
        done = "The policy's own limit of {} holds again for {}." if changed else "No limit of {} was set for {}."
        say(done.format(budget, whose))


def _told(changed: bool, tenant: str | None, done: str, already: str, as_json: bool) -> None:
    if as_json:
        print_json({"tenant": tenant, "changed": changed})
    else:
        say((done if changed else already).format("everybody" if tenant is None else f"tenant {tenant}"))


def _who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError):
        return ""
