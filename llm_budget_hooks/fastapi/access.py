"""Who asks, and which tenant they are asking about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from fastapi import Depends, HTTPException, Request

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.keys import tenant_name


class Administrator(NamedTuple):
    """Who asks, as the app's `authorize` says.

    Attributes:
        name: of the person, for the trail.
        tenant: whose administrator; None for an operator of everything.
        role: ``admin`` sees and changes one tenant; ``operator`` all, and budgets that are ``managed``.
    """

    name: str
    tenant: str | None
    role: Literal["admin", "operator"]


class Access(NamedTuple):
    """What a request may reach.

    Attributes:
        engine: the budgets.
        who: who asks.
    """

    engine: BudgetEngine
    who: Administrator

    @property
    def wide(self) -> bool:
        """Whether who asks may see the figures of everybody together."""
        return self.who.role == "operator"

    def tenant(self, named: str | None) -> str | None:
        """The tenant that a request is about: one's own, or the one that an operator names.

        Raises:
            HTTPException: an administrator names another tenant than their own.
        """
        own = self.who.tenant
        if self.wide:
            return own if named is None else named
        if named is not None and _tenant(named) != _tenant(own):
            raise HTTPException(403, "Only an operator may name another tenant.")
        return own


def admitting(engine: BudgetEngine, authorize: Callable[..., Any]) -> Callable[..., None]:
    """A dependency that lets a request in if the app's own says who asks."""

    def admit(request: Request, answer: Any = Depends(authorize)) -> None:  # noqa: B008 - how FastAPI takes it
        request.state.llm_budget = Access(engine, _checked(answer))

    return admit


def access_of(request: Request) -> Access:
    """What `admitting` has found out about a request."""
    found: Access = request.state.llm_budget
    return found


def _checked(answer: Any) -> Administrator:
    """Who asks, in whichever tuple the app says it.

    Raises:
        HTTPException: it says nobody, a role that there is not, or an administrator of no tenant.
    """
    try:
        who = Administrator(*answer)
    except TypeError:
        raise HTTPException(403, "authorize returned no administrator.") from None
    if who.role not in ("admin", "operator") or (who.role == "admin" and not (who.tenant or "").strip()):
        raise HTTPException(403, "authorize returned no administrator.")
    return who


def _tenant(name: str | None) -> str:
    return tenant_name(name)
