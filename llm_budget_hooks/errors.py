"""The errors of this package: one tree, typed, carrying the numbers.

`BudgetExceeded` is every refusal. It has no ``status_code``: below LiteLLM's Router a 429 would cool
deployments down for everybody, so the status for HTTP is `http_status`, and the edges apply it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Self

Code = Literal[
    "spend",
    "tokens",
    "calls",
    "utterances",
    "in_flight",
    "answer_estimate",
    "answer_actual",
    "killed",
    "store_unavailable",
    "price_unknown",
    "identity_missing",
]
Stage = Literal["call", "start", "end"]
Amount = Decimal | int | None


class BudgetError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(BudgetError, ValueError):
    """A policy, a URL, a call or a usage that cannot be what was meant; nothing was changed."""


class AlreadyResolved(BudgetError):
    """The hold has ended, so it can be neither extended nor reserved again.

    Attributes:
        id: the hold's id.
        status: how it ended (``settled``, ``released``, ``expired``), or ``unknown``.
    """

    def __init__(self, id: str, status: str) -> None:
        super().__init__(f"Reservation {id} has ended ({status}). Reserve the next attempt under an id of its own.")
        self.id = id
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.status)


class ReservationConflict(BudgetError, ValueError):
    """The id was reserved before with other content. `Call.id` names one attempt.

    Attributes:
        id: the id that was used twice.
    """

    def __init__(self, id: str) -> None:
        super().__init__(
            f"Reservation {id} exists with other content. Call.id names one attempt: "
            "give each attempt an id of its own, or leave it out."
        )
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id,)


class BudgetExceeded(BudgetError):
    """A call or an answer was refused.

    Amounts are `Decimal` dollars for the meter ``usd`` and ints for all others; None where there is none.

    Attributes:
        code: which kind of limit said no.
        budget: the name of the first budget that said no, in the order of the rules.
        scope: that budget's scope.
        limit, spent, reserved, requested, available: that account's numbers.
        failed: the names of all budgets that said no.
        stage: ``call``, or the ``start`` or ``end`` of an answer.
        busy: True if holds of other calls are in the way and may come back, False if it is spent.
        resets_at: when that budget's window ends.
        retry_after: seconds to the instant at which a call of this size is let in; None if it never fits.
        http_status: what to answer over HTTP.
        public_message: a text for the end user, with no figure or name wider than their own.
        output: the answer that was produced, where it was refused at its end.
    """

    def __init__(
        self,
        message: str,
        *,
        code: Code,
        budget: str | None = None,
        scope: str | None = None,
        limit: Amount = None,
        spent: Amount = None,
        reserved: Amount = None,
        requested: Amount = None,
        available: Amount = None,
        failed: tuple[str, ...] = (),
        stage: Stage = "call",
        busy: bool = False,
        resets_at: datetime | None = None,
        retry_after: float | None = None,
        http_status: int = 429,
        public_message: str = "Limit reached.",
        output: Any = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.budget = budget
        self.scope = scope
        self.limit = limit
        self.spent = spent
        self.reserved = reserved
        self.requested = requested
        self.available = available
        self.failed = failed
        self.stage = stage
        self.busy = busy
        self.resets_at = resets_at
        self.retry_after = retry_after
        self.http_status = http_status
        self.public_message = public_message
        self.output = output

    @classmethod
    def of(cls, refusal: BudgetExceeded) -> Self:
        """A fresh instance of this class with the facts of another refusal.

        Integrations raise subclasses that survive their framework's retries; this is how they make them.
        """
        return cls._rebuild(str(refusal), vars(refusal))

    @classmethod
    def _rebuild(cls, message: str, facts: Mapping[str, Any]) -> Self:
        made = cls.__new__(cls)
        Exception.__init__(made, message)
        made.__dict__.update(facts)
        made.__dict__.pop("__notes__", None)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._rebuild, (str(self), dict(vars(self)))


class StoreUnavailable(BudgetExceeded):
    """The store could not decide within `store_timeout`, so the call was refused. Nothing is held.

    Attributes:
        sent: whether the store may have got the command.
        lost: whether its balances were lost or set back.
        unwritten: whether it answers, and only takes nothing that is to be written.
    """

    sent = True
    lost = False
    unwritten = False

    def __init__(self, message: str, **facts: Any) -> None:
        facts.setdefault("public_message", "Service is busy. Try again in a moment.")
        super().__init__(message, **{"code": "store_unavailable", "http_status": 503, **facts})


class PriceUnknown(BudgetExceeded, LookupError):
    """No price is known for the model, and the policy does not name a flat amount for such calls."""

    def __init__(self, message: str, **facts: Any) -> None:
        facts.setdefault("public_message", "This model is not available.")
        super().__init__(message, **{"code": "price_unknown", **facts})
