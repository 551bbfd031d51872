"""The trail: what a store notes in its outbox, as compact texts, and the rows of the ledger that are made of it.

The texts are made on the way of a call and cost a few microseconds; the rows are made later, by the drain. Ids of
tenants, users and utterances are kept as they were given; prompts and outputs never come here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal

from llm_budget_hooks.keys import DEFAULT_TENANT, normalised
from llm_budget_hooks.models.calls import Usage
from llm_budget_hooks.money import MAX_EXACT

RunStatus = Literal["settled", "late", "charged", "expired", "released"]
RUN_KINDS: Final = frozenset({"settled", "charged", "expired", "released"})
COUNTS: Final = (
    "input_tokens", "cached_input_tokens", "cache_write_tokens", "cache_write_1h_tokens", "output_tokens",
    "reasoning_tokens", "input_audio_tokens", "output_audio_tokens", "images", "searches",
)  # fmt: skip
_PROVISIONAL_CHARGE: Final = ("expired", "charged")
_LONGEST: Final = 200
_LONGEST_PROSE: Final = 4000
_NO_COUNTS: Final = (0,) * len(COUNTS)
_MAX_STORED: Final = 2**63 - 1
_encode: Final[Callable[[Any], str]] = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Entry:
    """One note in a store's outbox, written in the same atomic step as what it tells of.

    Attributes:
        seq: its id in the outbox; later entries have later ids, and an id is never used again.
        at_ms: when it happened, on the store's clock.
        kind: for a hold the state it came into: ``settled`` (final), ``charged`` (settled without usage and cost),
            ``expired`` or ``released``; else ``refusal``, ``event``, ``override`` or ``adjust``.
        id: the hold's key, or another id that is unique within its kind.
        was: the hold's state before: ``open``, ``expired``, ``charged``, ``released``; empty if it was booked at once.
        facts: the text of `run_facts` for a hold, else of `refusal_facts`, `event_facts`, `override_facts` or
            `adjustment_facts`.
        actual: the text of `run_actual`, empty where nothing is known of the outcome.
    """

    seq: str
    at_ms: int
    kind: str
    id: str
    was: str = ""
    facts: str = ""
    actual: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One end of one hold. A hold that ends twice, such as expired and then settled, has a row for each end.

    Attributes:
        id: the hold's key.
        kind: the state that the hold came into.
        status: the same, or ``late`` for a final settle after a provisional end.
        at_ms: when it ended.
        tenant, user: who pays and who asked; user is empty for the tenant's anonymous user.
        utterance: the request that it served; the hold's key for a call outside any.
        feature: the part of the product, empty if it was not named.
        step: the named call site, else the model.
        model: what was asked for.
        served: the model that served, empty if nobody said.
        estimate_nusd, basis: what was held and where the estimate came from.
        cost_nusd: what the call cost as far as is known now: 0 if released, the estimate where the outcome is unknown.
        booked_nusd: the difference that this row makes to what is spent; all rows add up to the balances.
        exact: False if the cost is a guess.
        flags: words such as ``unpriced``, joined by commas.
        input_tokens to searches: as in `Usage`.
    """

    id: str
    kind: str
    status: RunStatus
    at_ms: int
    tenant: str
    user: str
    utterance: str
    feature: str
    step: str
    model: str
    served: str
    estimate_nusd: int
    basis: str
    cost_nusd: int
    booked_nusd: int
    exact: bool
    flags: str
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    images: int = 0
    searches: int = 0

    @property
    def is_again(self) -> bool:
        """Whether it is another end of a call that had ended before."""
        return self.status == "late" or (self.kind == "released" and self.booked_nusd != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One call or answer that was turned away, or a number of them.

    Amounts are nano-dollars for the meter ``usd``, counts for all others, None where there is none.

    Attributes:
        id: unique among refusals.
        at_ms: when.
        code, stage, budget, scope, meter: as in `BudgetExceeded`; empty where it has none.
        failed: the names of all budgets that said no, joined by commas.
        tenant, user, utterance, feature, step, model: of the call.
        limit, spent, reserved, requested: that account's numbers.
        count: how many refusals this row stands for.
    """

    id: str
    at_ms: int
    code: str
    stage: str = "call"
    budget: str = ""
    scope: str = ""
    meter: str = ""
    failed: str = ""
    tenant: str = DEFAULT_TENANT
    user: str = ""
    utterance: str = ""
    feature: str = ""
    step: str = ""
    model: str = ""
    limit: int | None = None
    spent: int | None = None
    reserved: int | None = None
    requested: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened and is no call.

    Attributes:
        id: unique among events.
        at_ms: when.
        name: what, such as ``killed``, ``auto_engaged``, ``alert``; ``asked`` is an utterance that was counted when
            it began.
        tenant, user, feature, utterance: whom it is about; empty where it is about nobody in particular.
        by: who did it.
        text: what else is to be said.
    """

    id: str
    at_ms: int
    name: str
    tenant: str = ""
    user: str = ""
    feature: str = ""
    utterance: str = ""
    by: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A limit that an administrator changed for one tenant, or took back.

    Attributes:
        id: unique among overrides.
        at_ms: when.
        tenant, budget: whose limit of which budget.
        limit: the new limit as it was written; empty if the override was taken back.
        expires_ms: when it ends by itself, None if it does not.
        by, reason: who did it, and why.
    """

    id: str
    at_ms: int
    tenant: str
    budget: str
    limit: str = ""
    expires_ms: int | None = None
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """An administrator's correction of what is spent.

    Attributes:
        id: unique among adjustments.
        at_ms: when.
        tenant, user: whose spend; user is empty for the tenant as a whole.
        budget: the one budget that it corrects; empty: the spend itself, in every budget.
        booked_nusd: the difference it makes, negative to give back.
        by, reason: who did it, and why.
    """

    id: str
    at_ms: int
    tenant: str
    user: str = ""
    budget: str = ""
    booked_nusd: int
    by: str = ""
    reason: str = ""


Row = Run | Refusal | Event | Override | Adjustment


def run_facts(
    tenant: str | None,
    user: str | None,
    utterance: str | None,
    feature: str | None,
    step: str | None,
    model: str,
    estimate_nusd: int,
    basis: str,
    priced_as: str | None = None,
    tier: str | None = None,
) -> str:
    """The facts of a hold, made when it is planned: who, for what, how much, and from where the estimate came.

    Last, where it is another than the model's, is the name under which its price was found, and the service tier that
    was asked for.
    """
    facts = (tenant, user, utterance, feature, step, model, estimate_nusd, basis)
    if tier is not None:
        return _encode((*facts, priced_as or model, tier))
    if priced_as is None or priced_as == model:
        return _encode(facts)
    return _encode((*facts, priced_as))


def run_actual(
    served: str | None = None,
    cost_nusd: int | None = None,
    usage: Usage | None = None,
    *,
    exact: bool = True,
    flags: tuple[str, ...] = (),
) -> str:
    """What is known of a call after it, made when it is settled.

    Args:
        served: the model that served, if the provider named one.
        cost_nusd: what it cost; None: no price is known, the estimate is booked.
        usage: what was used, if the provider said.
        exact: False if the cost is a guess; one that was cut to what is counted is.
        flags: words for the row, such as ``unpriced``.
    """
    exact = exact and cost_nusd != MAX_EXACT
    if usage is None:
        return _encode((served, cost_nusd, exact, flags))
    return _encode((
        served, cost_nusd, exact and usage.exact, flags,
        usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens, usage.cache_write_1h_tokens,
        usage.output_tokens, usage.reasoning_tokens, usage.input_audio_tokens, usage.output_audio_tokens,
        usage.images, usage.searches,
    ))  # fmt: skip


def refusal_facts(*, code: str, **facts: str | int | None) -> str:
    """The facts of a refusal: the fields of `Refusal` by name, without `id` and `at_ms`; None is left out."""
    return _named_facts(Refusal, {"code": code, **facts})


def event_facts(name: str, **facts: str | None) -> str:
    """The facts of an event: the fields of `Event` by name, without `id` and `at_ms`; None is left out."""
    return _named_facts(Event, {"name": name, **facts})


def override_facts(*, tenant: str, budget: str, **facts: str | int | None) -> str:
    """The facts of an override: the fields of `Override` by name, without `id` and `at_ms`; None is left out."""
    return _named_facts(Override, {"tenant": tenant, "budget": budget, **facts})


def adjustment_facts(*, tenant: str, booked_nusd: int, **facts: str | None) -> str:
    """The facts of a correction: the fields of `Adjustment` by name, without `id` and `at_ms`; None is left out."""
    return _named_facts(Adjustment, {"tenant": tenant, "booked_nusd": booked_nusd, **facts})


def row_of(entry: Entry) -> Row:
    """The row of the ledger that an entry stands for.

    Raises:
        ValueError: the entry's kind or its texts are not of this version.
    """
    try:
        return _run(entry) if entry.kind in RUN_KINDS else _other(entry)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"an entry of kind {entry.kind[:40]!r} is of another make ({error})") from None


def stored_text(text: str | None, longest: int = _LONGEST) -> str:
    """A text as the ledger keeps it: NFC and stripped, as accounts know it, and short enough for an index.

    What no database takes (NUL, half a surrogate pair) becomes U+FFFD. A text that was changed so, or cut, ends with
    the fingerprint of the whole, so that two ids stay two.
    """
    if not text:
        return ""
    whole = normalised(text)
    encoded = whole.encode("utf-8", "surrogatepass")
    kept = encoded.decode("utf-8", "replace").replace("\0", "\ufffd")
    if kept == whole and len(kept) <= longest:
        return kept
    return f"{kept[: longest - 17]}~{blake2b(encoded, digest_size=8).hexdigest()}"


def _other(entry: Entry) -> Row:
    made = _ROWS.get(entry.kind)
    if made is None:
        raise ValueError(f"an entry of the unknown kind {entry.kind[:40]!r}")
    facts = json.loads(entry.facts)
    _check_names(made, facts)
    row: Row = made(id=stored_text(entry.id), at_ms=entry.at_ms, **{k: _stored(k, v) for k, v in facts.items()})
    return row


def _run(entry: Entry) -> Run:
    facts, actual = json.loads(entry.facts), json.loads(entry.actual) if entry.actual else (None, None, True, ())
    tenant, user, utterance, feature, step, model, estimate, basis = facts[:8]
    served, known, exact, flags, *counts = actual
    cost = _cost(entry.kind, estimate, known)
    before = estimate if entry.was in _PROVISIONAL_CHARGE else 0
    late = entry.kind == "settled" and entry.was not in ("", "open")
    id = stored_text(entry.id)
    return Run(
        id=id, kind=entry.kind, status="late" if late else entry.kind,  # type: ignore[arg-type]  # checked by `row_of`
        at_ms=entry.at_ms, tenant=stored_text(tenant) or DEFAULT_TENANT, user=stored_text(user),
        utterance=stored_text(utterance) or id, feature=stored_text(feature), model=stored_text(model),
        step=stored_text(step) or stored_text(model), served=stored_text(served), estimate_nusd=_whole(estimate),
        basis=stored_text(basis), cost_nusd=_whole(cost), booked_nusd=_whole(cost - before),
        exact=_is_exact(entry.kind, known, exact), flags=stored_text(",".join(flags)),
        **dict(zip(COUNTS, map(_whole, counts or _NO_COUNTS), strict=True)),
    )  # fmt: skip


def _cost(kind: str, estimate: int, known: int | None) -> int:
    if kind == "released":
        return 0
    return known if kind == "settled" and known is not None else estimate


def _is_exact(kind: str, known: int | None, exact: bool) -> bool:
    return kind == "released" or (kind == "settled" and known is not None and bool(exact))


def _named_facts(made: type[Any], facts: Mapping[str, Any]) -> str:
    _check_names(made, facts)
    return _encode({name: value for name, value in facts.items() if value is not None})


def _check_names(made: type[Any], facts: Mapping[str, Any]) -> None:
    unknown = [name for name in facts if name not in made.__slots__ or name in ("id", "at_ms")]
    if unknown:
        raise ValueError(f"{made.__name__} has no {', '.join(sorted(unknown))[:80]}")


def _stored(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return _whole(value)
    return stored_text(value, _LONGEST_PROSE if name in ("text", "reason", "failed") else _LONGEST)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > _MAX_STORED:
        raise ValueError("an amount in the trail is a whole number of up to 63 bits")
    return value


_ROWS: Final[Mapping[str, type[Any]]] = {
    "refusal": Refusal,
    "event": Event,
    "override": Override,
    "adjust": Adjustment,
}
