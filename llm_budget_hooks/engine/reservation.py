"""A hold, as its owner carries it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from llm_budget_hooks.models import Basis, Call, instant
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.plan import Plan
from llm_budget_hooks.transitions import Hold, Meter, Reserved, State


class Reservation:
    """A hold. It can be pickled, and settles even where the store has forgotten it.

    Attributes:
        id: names the hold; settle, release and extend take it as well as the reservation.
        call: what was asked.
        basis: where the estimate came from: ``amount``, ``bound``, ``p90``, ``step`` or ``flat``.
    """

    __slots__ = (
        "_content", "_created_ms", "_deadline_ms", "_ended", "_estimate_nusd", "_held", "_histories", "_key", "_keys",
        "_note", "_price", "_scopes", "_shape", "_starts", "_told_nusd", "basis", "call", "id",
    )  # fmt: skip

    def __init__(self, call: Call, plan: Plan, answer: Reserved) -> None:
        command = plan.command
        self.id = plan.id
        self.call = call
        self.basis: Basis = plan.basis
        self._estimate_nusd = plan.estimate_nusd
        self._key = command.id
        self._content = command.content
        self._note = command.note
        self._price = plan.price
        self._histories = plan.histories
        self._shape = command.shape
        self._keys = command.keys
        self._scopes = command.scopes
        self._held = answer.held
        self._starts = answer.starts
        self._created_ms = answer.created_ms
        self._deadline_ms = answer.deadline_ms
        self._ended: int | None = None
        self._told_nusd = 0

    @property
    def estimate(self) -> Decimal:
        """What the call is expected to cost, in dollars."""
        return to_decimal(self._estimate_nusd)

    @property
    def holds(self) -> Mapping[str, Decimal | int]:
        """What each budget holds or has counted for this call: dollars for ``usd``, else a whole number."""
        return {
            rule.budget: to_decimal(held) if rule.meter == Meter.USD else held
            for rule, held in zip(self._shape.rules, self._held, strict=True)
        }

    @property
    def created_at(self) -> datetime:
        """When it was reserved, on the store's clock."""
        return instant(self._created_ms)

    @property
    def expires_at(self) -> datetime:
        """When it expires and is charged, unless it is settled, released or extended before."""
        return instant(self._deadline_ms)

    def __repr__(self) -> str:
        return f"Reservation(id={self.id!r}, estimate={self.estimate}, basis={self.basis!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def hold(self, now_ms: int, timeout_ms: int) -> Hold:
        """The store's record of this hold, made again from what the owner carries.

        A hold that the store has forgotten after its deadline has expired there, as far as its owner knows.
        """
        state = self._ended
        if state is None:
            state = State.OPEN if now_ms < self._deadline_ms else State.EXPIRED
        return Hold(
            self._content, state, self._created_ms, self._deadline_ms, timeout_ms,
            self._shape, self._keys, self._scopes, self._held, self._starts, self._note,
        )  # fmt: skip
