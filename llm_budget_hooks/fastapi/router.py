"""The admin API: what is in force, what was spent, who was refused, and the switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from llm_budget_hooks.admin.limits import limit_of
from llm_budget_hooks.admin.overview import Overview, overview
from llm_budget_hooks.admin.rows import AnswerRow, EventRow, RefusalRow, RunRow
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.fastapi.access import Access, access_of, admitting
from llm_budget_hooks.fastapi.problems import ProblemRoute, described
from llm_budget_hooks.keys import tenant_name
from llm_budget_hooks.ledger import Ledger

T = TypeVar("T")


def _written(value: object) -> object:
    """Only what is written as a date; Pydantic would take a number for seconds."""
    if not isinstance(value, str) or "-" not in value[1:]:
        raise ValueError("a time is written as 2026-11-30T12:00:00Z")
    return value


def _counted(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a count is no truth value")  # noqa: TRY004 - pydantic reports ValueErrors with their place
    return value


_METHODS = frozenset(("GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"))
Granted = Annotated[Access, Depends(access_of)]
_Word = Annotated[str, Field(min_length=1, max_length=200)]
Tenant = Annotated[
    _Word | None, Query(description="Whose; only an operator may name another tenant. Left out: one's own.")
]
Wanted = Annotated[_Word | None, Query(description="Only of this one.")]
User = Annotated[
    Annotated[str, Field(max_length=200)] | None,
    Query(description="Only of this user of the tenant; empty: of the one who gave no name."),
]
_Time = Annotated[AwareDatetime, BeforeValidator(_written)]
Instant = Annotated[_Time | None, Query(description="From `since` to before `until`.")]
After = Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$", description="`after` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=500, description="Rows of a page.")]


class Rows(BaseModel, Generic[T]):
    """A page, the newest first; `after` leads to the next, null on the last. New rows do not shift it."""

    items: list[T]
    after: str | None


class Change(BaseModel):
    """A limit to set, or with `null` to take back."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"budget": "user-day", "limit": "5", "reason": "a launch"}]}
    )

    budget: Annotated[str, Field(min_length=1, max_length=100)]
    limit: (
        Literal["off"]
        | Annotated[str, Field(pattern=r"^\$?[0-9]{1,7}(\.[0-9]{1,9})?$")]
        | Annotated[int, Field(ge=1, lt=2**53), BeforeValidator(_counted)]
        | None
    ) = Field(description='Dollars as a text, such as "5", or a count; "off" switches the budget off.')
    expires_at: _Time | None = Field(None, description="When the policy's own limit holds again.")
    reason: Annotated[str, Field(max_length=1000)] = ""


class Why(BaseModel):
    """Why a switch is turned."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=1000)] = ""


class Changed(BaseModel):
    """Whether anything was changed."""

    changed: bool
    tenant: str | None


def admin_router(
    engine: BudgetEngine, *, authorize: Callable[..., Any] | None = None, prefix: str = "/ai-budget"
) -> APIRouter:
    """The admin API of an engine, to include in an app.

    Args:
        engine: whose budgets.
        authorize: a dependency that returns who asks, an `Administrator` or the same as a tuple, and that raises
            `HTTPException` for all others. The tenant is taken from it; only an operator may name another one.
        prefix: of the routes.

    Raises:
        ConfigurationError: there is no `authorize`; the API would be open to everybody.
    """
    if authorize is None:
        raise ConfigurationError("admin_router needs authorize=, a dependency that returns an Administrator.")
    router = APIRouter(
        prefix=prefix,
        tags=["budgets"],
        route_class=ProblemRoute,
        dependencies=[Depends(admitting(engine, authorize))],
        responses=described(401, 403, 422, 503),
    )
    router.get("", summary="Rules, balances, the month", responses=described(404))(read_overview)
    router.put("", summary="Set or take back a limit", responses=described(400, 404, 409))(change_limit)
    router.post("/kill", summary="Refuse every call from now on", responses=described(400))(kill)
    router.post("/revive", summary="Let calls in again", responses=described(400))(revive)
    for path, read in (("/refusals", refusals), ("/runs", runs), ("/answers", answers), ("/events", events)):
        router.get(path, summary=f"A page of {path[1:]}", responses=described(404))(read)
        _only(router, path, "GET")
    _only(router, "", "GET", "PUT")
    _only(router, "/kill", "POST")
    _only(router, "/revive", "POST")
    return router


def _only(router: APIRouter, path: str, *allowed: str) -> None:
    """Answer other methods with all that a path knows; Starlette names those of its first route alone."""

    def refused() -> None:
        raise HTTPException(405, headers={"Allow": ", ".join(allowed)})

    others = sorted(_METHODS.difference(allowed))
    router.add_api_route(path, refused, methods=others, include_in_schema=False)


def read_overview(access: Granted, tenant: Tenant = None, user: User = None) -> Overview:
    """The rules in force, balances, kill switches, overrides, this month's cost and where it is heading.

    Without a tenant, which only an operator can leave out, it is about everybody together. What could not be read is
    null. With `user`, that user's balances are read too.
    """
    whose = access.tenant(tenant)
    if user is not None and whose is None:
        raise HTTPException(404, "A user is always a user of a tenant: name it.")
    return overview(access.engine, whose, user, wide=access.wide)


def change_limit(access: Granted, change: Change, tenant: Tenant = None) -> Changed:
    """Override a limit of a tenant, or of a global budget, from the next call on in every process.

    Budgets that the policy marks as managed, and global ones, are for an operator alone. What this budget cannot take,
    such as a fraction of a call or an end in the past, is a conflict.
    """
    whose = access.tenant(tenant)
    engine, who = access.engine, access.who
    found = {b.name: b for b in engine.policy.budgets_of(_named(whose), switched_off=True)}.get(change.budget)
    if found is None or (found.scope == "global" and not access.wide):
        raise HTTPException(404, "There is no such budget.")
    if found.scope != "global" and whose is None:
        raise HTTPException(404, "This budget is about single tenants: name one.")
    if found.managed and not access.wide:
        raise HTTPException(403, "This budget is managed: only an operator may change it.")
    try:
        changed = engine.override(
            change.budget,
            None if change.limit is None else limit_of(change.limit),
            tenant=None if found.scope == "global" else whose,
            expires_at=change.expires_at,
            by=who.name,
            reason=change.reason,
            role=who.role,
        )
    except ConfigurationError as error:
        raise HTTPException(409, str(error)) from None
    return Changed(changed=changed, tenant=None if found.scope == "global" else whose)


def kill(access: Granted, why: Why | None = None, tenant: Tenant = None) -> Changed:
    """Refuse every call of a tenant from the next one on, in every process. An operator who names none stops all."""
    whose, who = access.tenant(tenant), access.who
    reason = "" if why is None else why.reason
    return Changed(changed=access.engine.kill(whose, reason=reason, by=who.name, role=who.role), tenant=whose)


def revive(access: Granted, why: Why | None = None, tenant: Tenant = None) -> Changed:  # noqa: ARG001 - as for kill
    """Let a tenant's calls in again; of an operator who names none, take the switch for everybody back.

    What an operator has stopped, only an operator lets in again.
    """
    whose = access.tenant(tenant)
    engine, who, name = access.engine, access.who, _named(whose)
    if not access.wide and any(switch.of_operator for switch in engine.kills() if switch.tenant == name):
        raise HTTPException(403, "An operator has stopped this tenant: only an operator may let it in again.")
    return Changed(changed=engine.revive(whose, by=who.name, role=who.role), tenant=whose)


def refusals(
    access: Granted,
    tenant: Tenant = None,
    user: User = None,
    feature: Wanted = None,
    code: Wanted = None,
    since: Instant = None,
    until: Instant = None,
    after: After = None,
    limit: Limit = 100,
) -> Rows[RefusalRow]:
    """Calls and answers that were turned away. Figures of everybody together are an operator's alone."""
    page = _ledger(access).refusals(
        tenant=_filter(access, tenant), user=user, feature=feature, code=code, since=since, until=until, after=after,
        limit=limit,
    )  # fmt: skip
    rows = [RefusalRow.of(item) for item in page.items]
    return Rows(items=rows if access.wide else [row.narrowed() for row in rows], after=page.after)


def runs(
    access: Granted,
    tenant: Tenant = None,
    user: User = None,
    feature: Wanted = None,
    step: Wanted = None,
    model: Wanted = None,
    utterance: Wanted = None,
    since: Instant = None,
    until: Instant = None,
    after: After = None,
    limit: Limit = 100,
) -> Rows[RunRow]:
    """What calls cost: a row for each end of each hold."""
    page = _ledger(access).runs(
        tenant=_filter(access, tenant), user=user, feature=feature, step=step, model=model, utterance=utterance,
        since=since, until=until, after=after, limit=limit,
    )  # fmt: skip
    return Rows(items=[RunRow.of(item) for item in page.items], after=page.after)


def answers(
    access: Granted,
    tenant: Tenant = None,
    user: User = None,
    feature: Wanted = None,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Answers of a page.")] = 50,
) -> Rows[AnswerRow]:
    """Answers, each with its fan-out."""
    page = _ledger(access).answers(tenant=_filter(access, tenant), user=user, feature=feature, after=after, limit=limit)
    return Rows(items=[AnswerRow.of(item) for item in page.items], after=page.after)


def events(
    access: Granted,
    tenant: Tenant = None,
    name: Wanted = None,
    since: Instant = None,
    until: Instant = None,
    after: After = None,
    limit: Limit = 100,
) -> Rows[EventRow]:
    """What happened that is no call: the kill switch, alerts, changed limits."""
    page = _ledger(access).events(
        tenant=_filter(access, tenant), name=name, since=since, until=until, after=after, limit=limit
    )
    return Rows(items=[EventRow.of(item) for item in page.items], after=page.after)


def _ledger(access: Access) -> Ledger:
    found: Ledger | None = access.engine.ledger
    if found is None:
        raise HTTPException(404, "The engine has no ledger.")
    return found


def _filter(access: Access, tenant: str | None) -> str | None:
    whose = access.tenant(tenant)
    return None if whose is None else _named(whose)


def _named(tenant: str | None) -> str:
    return "" if tenant is None else tenant_name(tenant)
