"""How two integrations that see the same call agree on one hold.

The outer one (LangChain) opens a ticket for a call that it has reserved. The inner one (LiteLLM), which sees
the request that this call makes, claims the ticket instead of reserving again. A ticket is changed in place,
since the context that opened it is often a copy of the one that closes it.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_budget_hooks.engine.engine import BudgetEngine


class Ticket:
    """One call that has a hold already.

    Attributes:
        engine: the engine that holds.
        hold: the name of its hold, if it has one yet.
        open: False once the call has ended.
        claimed_by: the inner call that this ticket covers, None while there is none.
    """

    __slots__ = ("claimed_by", "engine", "hold", "open")

    def __init__(self, engine: BudgetEngine, hold: str | None = None) -> None:
        self.engine = engine
        self.hold = hold
        self.open = True
        self.claimed_by: str | None = None

    def close(self) -> None:
        """The call has ended; requests made from now on are calls of their own."""
        self.open = False


_MOST = 100
"""How many calls of one context can be open; the tickets of those that never end are forgotten beyond that."""

_TICKETS: ContextVar[tuple[Ticket, ...]] = ContextVar("llm_budget_hooks_tickets", default=())


def open_ticket(engine: BudgetEngine, hold: str | None = None) -> Ticket:
    """Cover the next request that this context makes.

    Args:
        engine: the engine that holds.
        hold: the name of its hold; who opens a ticket for the same one, through an engine that shares its balances,
            is given the same ticket.
    """
    others = [other for other in _TICKETS.get() if other.open]
    for other in others:
        if hold is not None and other.hold == hold and other.engine.shares(engine):
            return other
    ticket = Ticket(engine, hold)
    _TICKETS.set((*others[-_MOST:], ticket))
    return ticket


def claim(engine: BudgetEngine, id: str) -> Ticket | None:
    """The ticket that covers a request: one that it claimed before, else the first that is free.

    Args:
        engine: the engine that would reserve.
        id: names the request, the same for all that is seen of it.
    """
    others = _TICKETS.get()
    if not others:
        return None
    tickets = [ticket for ticket in others if ticket.open and ticket.engine.shares(engine)]
    for ticket in tickets:
        if ticket.claimed_by == id:
            return ticket
    for ticket in tickets:
        if ticket.claimed_by is None:
            ticket.claimed_by = id
            return ticket
    return None


def unclaim(engine: BudgetEngine, id: str) -> None:
    """The request failed: its ticket covers the next attempt."""
    for ticket in _TICKETS.get():
        if ticket.claimed_by == id and ticket.engine.shares(engine):
            ticket.claimed_by = None
