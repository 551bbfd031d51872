"""What is changed at run time and holds for all processes at once: the kill switch and overrides of limits. Pure.

The texts are kept in the store beside the balances under one number, which every reserve carries: a store that is
further says so, and the call is planned again with the texts of now.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.models import Policy
from llm_budget_hooks.models.results import LAST_MS
from llm_budget_hooks.money import MAX_EXACT
from llm_budget_hooks.transitions import SettingsNow
from llm_budget_hooks.transitions.records import HISTORY_MS

MAX_SETTINGS: Final = 10_000
"""How many overrides and kills a namespace keeps at most; they have no end of their own."""

INJECTIONS: Final = 3
INJECTION_MS: Final = 300_000
INJECTED: Final = f"{INJECTIONS} injections were reported within 5 minutes"
_PART: Final = "\x1f"
_ESCAPED: Final = re.compile("[%\0\x1f\ud800-\udfff]")

Changes = tuple[tuple[str, str | None], ...]
Role = Literal["operator", "admin"]


@dataclass(frozen=True, slots=True)
class Killed:
    """The kill switch of one tenant, or of all.

    Attributes:
        tenant: whose, empty for everybody.
        reason, by: why and who.
        at_ms: since when.
        automatic: it engaged itself after reported injections.
        by_admin: the tenant's own administrator engaged it, not an operator.
    """

    tenant: str
    reason: str
    by: str
    at_ms: int
    automatic: bool = False
    by_admin: bool = False

    @property
    def of_operator(self) -> bool:
        """Whether an operator engaged it, so that only an operator takes it back."""
        return not (self.automatic or self.by_admin)


@dataclass(frozen=True, slots=True)
class Override:
    """A limit that an administrator changed.

    Attributes:
        tenant: whose, empty for budgets of scope ``global``.
        budget: the budget's name.
        limit: in the meter's unit, nano-dollars for ``usd``; None if it is ignored: what is stored is no limit, or the
            policy's budget has another scope, meter or window by now.
        until_ms: when it ends by itself, 0 if it does not.
        by, reason: who changed it and why.
        at_ms: when.
    """

    tenant: str
    budget: str
    limit: int | None
    until_ms: int
    by: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """The settings of a namespace as they were when their number was `revision`."""

    revision: int = 0
    kills: Mapping[str, Killed] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, Override]] = field(default_factory=dict)
    forgotten: Mapping[str, int] = field(default_factory=dict)
    injections: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    count: int = 0

    def killed(self, tenant: str) -> Killed | None:
        """The kill switch that is in a tenant's way."""
        return self.kills.get("") or self.kills.get(tenant)


def live(answer: SettingsNow, policy: Policy) -> LiveSettings:
    """The settings of a store's answer. What cannot be read is left out, an override's limit that is none is None.

    So is one that was set for a budget which is another one in the policy now, or is not there any more.
    """
    subjects: dict[str, dict[str, str]] = {}
    kills: dict[str, Killed] = {}
    overrides: dict[str, dict[str, Override]] = {}
    forgotten: dict[str, int] = {}
    injections: dict[str, tuple[int, ...]] = {}
    for name, text in answer.texts.items():
        kind, rest, budget, *_ = (*_parts(name), "", "")
        facts = _facts(text)
        if kind == "kill":
            kills[rest] = Killed(
                rest, str(facts.get("reason", "")), str(facts.get("by", "")), _whole(facts.get("at")),
                facts.get("automatic") is True, facts.get("by_admin") is True,
            )  # fmt: skip
        elif kind == "limit":
            if rest not in subjects:
                subjects[rest] = {b.name: b.subject for b in policy.budgets_of(rest, switched_off=True)}
            meant = facts.get("of") == subjects[rest].get(budget, "")
            limit = _limit(facts.get("limit")) if meant else None
            overrides.setdefault(rest, {})[budget] = Override(
                rest, budget, limit, _whole(facts.get("until")), str(facts.get("by", "")),
                str(facts.get("reason", "")), _whole(facts.get("at")),
            )  # fmt: skip
        elif kind == "forget":
            forgotten[rest] = _whole(facts.get("at"))
        elif kind == "injections":
            reports = facts.get("at")
            injections[rest] = tuple(map(_whole, reports)) if isinstance(reports, list) else ()
    return LiveSettings(answer.revision, kills, overrides, forgotten, injections, len(answer.texts))


def kill(settings: LiveSettings, tenant: str, reason: str, by: str, role: Role, now_ms: int) -> Changes:
    """Engage the kill switch; nothing changes where it is engaged, but an operator takes over that of anybody else."""
    engaged = settings.kills.get(tenant)
    if engaged is not None and (role == "admin" or engaged.of_operator):
        return ()
    whose = {"by_admin": True} if role == "admin" else {}
    return ((_name("kill", tenant), _text(reason=reason, by=by, at=now_ms, **whose)),)


def revive(settings: LiveSettings, tenant: str, role: Role) -> Changes:
    """Take the kill switch back, and forget the injections that engaged it.

    Raises:
        ConfigurationError: an administrator of a tenant would take back what an operator has engaged.
    """
    engaged = settings.kills.get(tenant)
    if engaged is not None and engaged.of_operator and role == "admin":
        raise ConfigurationError("an operator engaged this kill switch: only an operator may take it back")
    names = [_name("kill", tenant)] if tenant in settings.kills else []
    if names and tenant in settings.injections:
        names.append(_name("injections", tenant))
    return tuple((name, None) for name in names)


def report_injection(settings: LiveSettings, tenant: str, now_ms: int) -> tuple[Changes, bool]:
    """Note a reported injection; the third within five minutes engages the kill switch.

    Returns:
        what to write, and whether this report engages the switch.
    """
    if tenant in settings.kills:
        return (), False
    recent = [at for at in settings.injections.get(tenant, ()) if now_ms - at < INJECTION_MS]
    recent.append(now_ms)
    name = _name("injections", tenant)
    old = [(one, None) for one in _over(settings, now_ms) if one != name]
    noted = (*old, (name, _text(at=recent[-INJECTIONS:])))
    if len(recent) < INJECTIONS:
        return noted, False
    return (*noted, (_name("kill", tenant), _text(reason=INJECTED, by="", at=now_ms, automatic=True))), True


def override(
    settings: LiveSettings,
    tenant: str,
    budget: str,
    subject: str,
    limit: int | None,
    until_ms: int,
    by: str,
    reason: str,
    now_ms: int,
) -> Changes:
    """Change a limit for one tenant, or for budgets of scope global; None takes the change back.

    Args:
        subject: the budget's `Budget.subject`.

    Raises:
        ConfigurationError: there are too many overrides.
    """
    name = _name("limit", tenant, budget)
    if limit is None:
        return ((name, None),) if budget in settings.overrides.get(tenant, {}) else ()
    old = _over(settings, now_ms)
    count = settings.count - len(old)
    if count >= MAX_SETTINGS and budget not in settings.overrides.get(tenant, {}):
        raise ConfigurationError(f"{count} limits and kill switches are set already; take some back first")
    made = (name, _text(limit=limit, of=subject, until=until_ms, by=by, reason=reason, at=now_ms))
    return (*[(one, None) for one in old if one != name], made)


def forget(settings: LiveSettings, step: str, now_ms: int) -> Changes:
    """Let the history of a step begin now."""
    name = _name("forget", step)
    return (*[(one, None) for one in _over(settings, now_ms) if one != name], (name, _text(at=now_ms)))


def _over(settings: LiveSettings, now_ms: int) -> list[str]:
    """The names of what has ended by itself: overrides with an end, old reports, marks older than any history."""
    ended = [
        _name("limit", one.tenant, one.budget)
        for of_tenant in settings.overrides.values()
        for one in of_tenant.values()
        if 0 < one.until_ms <= now_ms
    ]
    ended += [
        _name("injections", tenant)
        for tenant, reports in settings.injections.items()
        if tenant not in settings.kills and now_ms - max(reports, default=0) >= INJECTION_MS
    ]
    return ended + [_name("forget", step) for step, at_ms in settings.forgotten.items() if now_ms - at_ms > HISTORY_MS]


def _name(*parts: str) -> str:
    """A name that every store takes and that `_parts` reads back, whatever is in an id."""
    return _PART.join(_ESCAPED.sub(lambda found: quote(found[0], safe="", errors="surrogatepass"), p) for p in parts)


def _parts(name: str) -> list[str]:
    return [unquote(part, errors="surrogatepass") for part in name.split(_PART)]


def _text(**facts: Any) -> str:
    return json.dumps(facts, separators=(",", ":"))


def _facts(text: str) -> Mapping[str, Any]:
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _whole(value: object) -> int:
    return min(value, LAST_MS) if type(value) is int and value > 0 else 0


def _limit(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_EXACT else None
