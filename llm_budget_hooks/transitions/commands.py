"""What can be asked of a store, and what it answers. All amounts are whole numbers in the meter's unit.

A command is planned without any I/O, is carried out in one atomic step, and its answer is interpreted
without any I/O. Times are milliseconds since the epoch, in UTC, on the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

MAX_AMOUNT: Final = 2**53
"""Sums stop here; every limit is below, so a sum that reaches it denies."""

NO_LIMIT: Final = MAX_AMOUNT - 1
"""The limit of a rule that lets everything pass and only tells of it."""

SWEEP_LIMIT: Final = 64
"""How many due holds one operation ends at most."""

EXACT_ENTRIES: Final = 10_000
"""How many live entries of a rolling window are kept singly."""

CLOCK_STEP_MS: Final = 60_000
"""How far a clock may step back: so much longer than it can be asked for a record is kept."""


class Meter(IntEnum):
    """What a rule counts, and so what becomes of its amount when the hold ends."""

    USD = 1
    """Held, and replaced by the cost, in nano-dollars."""
    TOKENS = 2
    """Held, and replaced by input plus output tokens."""
    CALLS = 3
    """Spent at reserve, never given back."""
    UTTERANCES = 4
    """Spent by the first admitted call of an utterance, never given back."""
    IN_FLIGHT = 5
    """Held while the hold is open, then gone."""


class Kind(IntEnum):
    """How an account's window runs."""

    CALENDAR = 1
    """The start of the window is part of the account's key."""
    FIXED = 2
    """Starts at the first admitted use; the account keeps its start."""
    ROLLING = 3
    """Each amount counts for `length_ms` from its reserve instant."""
    ANSWER = 4
    """As long as the utterance, whose start the account keeps."""
    GAUGE = 5
    """No window: only what is open counts."""


class State(IntEnum):
    """Where a hold is in its life."""

    OPEN = 0
    EXPIRED = 1
    """Provisional: it outlived its timeout and was charged what it held."""
    RELEASED = 2
    """Provisional: given back."""
    CHARGED = 3
    """Provisional: settled without usage and cost, charged what it held."""
    SETTLED = 4
    """Final."""


class Mode(IntEnum):
    """What a reserve does when every rule agrees."""

    REPLAY = -1
    """Holds what was let through while the store was away, whatever the limits say; once, by its place in a journal.

    Without an id it counts an utterance, as `ENTER` does.
    """
    HOLD = 0
    CHECK = 1
    """Takes nothing."""
    CHARGE = 2
    """Books the amounts at once as final."""
    FORCE = 3
    """Books the amounts at once, even above a limit."""
    ENTER = 4
    """Counts an utterance before any call of it; there is no hold."""


class Ending(IntEnum):
    """What is asked of a hold that was taken before."""

    SETTLE = 0
    RELEASE = 1
    EXTEND = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """One budget as one call meets it.

    Attributes:
        budget: the budget's name.
        scope: the budget's scope.
        meter, kind: what it counts and how its window runs.
        limit: what this call may fill the account up to.
        ends_ms: the end of a calendar window, else 0.
        length_ms: the length of the window, nominal for a calendar one, else 0.
        base: the budget's own limit, where a share of it alerts; else 0.
        kept: what it counts is spent at reserve and never given back.
        until_ms: until when the account of a calendar window is kept, else 0.
    """

    budget: str
    scope: str
    meter: int
    kind: int
    limit: int
    ends_ms: int
    length_ms: int
    base: int = field(default=0, compare=False)
    kept: bool = field(init=False, compare=False)
    until_ms: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept", self.meter in (Meter.CALLS, Meter.UTTERANCES))
        object.__setattr__(self, "until_ms", self.ends_ms + self.length_ms if self.kind == Kind.CALENDAR else 0)


class Shape:
    """The rules of one kind of call, shared by all calls of that kind until a window ends.

    Attributes:
        rules: in the order in which refusals are reported.
        watched: place and own limit of those where a share of it alerts.
        encoded: room for a store to keep its own form of the rules.
    """

    __slots__ = ("encoded", "rules", "watched")

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules = rules
        self.watched = tuple([(at, rule.base) for at, rule in enumerate(rules) if rule.base])
        self.encoded: Any = None

    def __reduce__(self) -> tuple[type[Shape], tuple[tuple[Rule, ...]]]:
        return Shape, (self.rules,)


def for_ledger(note: str) -> bool:
    """Whether a hold's note has what a ledger wants, and each of its ends leaves a row: it is a JSON array then."""
    return note[:1] == "["


@dataclass(frozen=True, slots=True)
class Terms:
    """The intervals of a policy that a store needs, in milliseconds, and a few numbers.

    Attributes:
        timeout_ms, remember_ms, utterance_timeout_ms: the policy's intervals.
        utterance_max_calls: the calls of one utterance.
        exact_entries: how many live entries of a rolling window are kept singly.
        outbox_max: how many rows wait for the ledger at most; 0: none are written. Whether a hold has rows is said by
            its note, see `for_ledger`: whoever ends it need not have a ledger.
    """

    timeout_ms: int = 600_000
    remember_ms: int = 3_600_000
    utterance_timeout_ms: int = 600_000
    utterance_max_calls: int = 200
    exact_entries: int = EXACT_ENTRIES
    outbox_max: int = 0


@dataclass(slots=True)
class Reserve:
    """Hold (or check, or charge) amounts against all rules of a shape, all or nothing.

    Attributes:
        id: key of the hold.
        content: fingerprint of what is asked, empty where the id was made up.
        shape, keys, amounts: the rules, and for each the account's key and the amount.
        scopes: keys of the indexes of open holds that this one enters, the narrowest first, the global one last.
        utterance: key of the utterance, empty for a call outside any.
        terms: the policy's intervals.
        from_ms, until_ms: the time for which the keys are right; outside it the answer is ``CLOCK``.
        mode: what to do if all agree.
        note: a short text that `Orphans` gives back, and that goes into the outbox when the hold ends.
        now_ms: the time, where the caller's clock rules; else None.
        revision: the number of the settings that it was planned with; the answer is ``STALE`` if it is another now.
        history: one that is to be read along, empty for none.
        since_ms: where it is believed to have under `FEWEST` runs after this instant; if it has so many, the answer is
            ``LEARN``.
        actual: for a charge, what goes into the outbox beside the note; for a replay, its journal and its number in it.
    """

    id: str
    content: str
    shape: Shape
    keys: tuple[str, ...]
    amounts: tuple[int, ...]
    scopes: tuple[str, ...]
    utterance: str
    terms: Terms
    from_ms: int = 0
    until_ms: int = MAX_AMOUNT
    mode: int = 0
    note: str = ""
    now_ms: int | None = None
    revision: int = 0
    actual: str = ""
    history: str = ""
    since_ms: int = MAX_AMOUNT


class Verdict(IntEnum):
    """What became of a reserve."""

    ADMITTED = 0
    REFUSED = 1
    DUPLICATE = 2
    """The same attempt is open; ask for the hold, which another policy may have taken."""
    CONFLICT = 3
    """The id was used with other content."""
    ENDED = 4
    """The same attempt has ended."""
    CLOCK = 5
    """The store's time is outside the time planned for: plan again with `now_ms`."""
    STALE = 6
    """The store's settings are others: ask for them and plan again."""
    LEARN = 7
    """The history has runs enough to estimate by: plan again with `runs`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One rule that said no.

    Attributes:
        index: its place in the shape.
        spent, reserved, requested: the account's numbers and what this call asked of it.
        busy: holds are in the way, and without them there would be room.
        resets_ms: when the window ends, 0 if it has none.
        retry_ms: the instant at which a call of this size has room, 0 if never.
    """

    index: int
    spent: int
    reserved: int
    requested: int
    busy: bool
    resets_ms: int
    retry_ms: int


@dataclass(slots=True)
class Reserved:
    """The answer to a `Reserve`.

    Attributes:
        verdict: what became of it.
        now_ms: the store's time.
        created_ms, deadline_ms: of the hold, where there is one.
        held: what each account holds or has counted.
        starts: the start of each account's window where the account keeps it, else 0.
        failures: the rules that said no, in order.
        state: how the hold ended, for ``ENDED``.
        spent: for a charge, what is spent in each account now.
        runs: of the history that was to be read, when each ended and its value; None where it was not.
    """

    verdict: int
    now_ms: int
    created_ms: int = 0
    deadline_ms: int = 0
    held: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    failures: tuple[Failure, ...] = ()
    state: int = 0
    spent: tuple[int, ...] = ()
    runs: tuple[tuple[int, int], ...] | None = None


@dataclass(slots=True)
class Finish:
    """End a hold, or extend it.

    Attributes:
        id: key of the hold.
        ending: what is asked.
        cost_nusd, tokens: the actual amounts; None: not known, so what was held stays charged.
        final: whether the actual is known; a settle that is not final is provisional.
        terms: the policy's intervals; `timeout_ms` is how long an extended hold lives from now.
        hold: what the owner carries, for a store that no longer knows the hold.
        bury: a release of an unknown id leaves a mark, so that a reserve which arrives later is refused.
        now_ms: the time, where the caller's clock rules; else None.
        samples: histories that a final settle adds to, and the value for each.
        actual: what goes into the outbox beside the hold's note.
        place: for a replay, its journal and its number in it; what comes a second time changes nothing.
    """

    id: str
    ending: int
    terms: Terms
    cost_nusd: int | None = None
    tokens: int | None = None
    final: bool = False
    hold: Hold | None = None
    bury: bool = False
    now_ms: int | None = None
    samples: tuple[tuple[str, int], ...] = ()
    actual: str = ""
    place: str = ""


class Ended(IntEnum):
    """What became of a `Finish`."""

    SETTLED = 0
    RELEASED = 1
    LATE = 2
    ALREADY_SETTLED = 3
    ALREADY_RELEASED = 4
    UNKNOWN = 5
    EXTENDED = 6


@dataclass(slots=True)
class Finished:
    """The answer to a `Finish`.

    Attributes:
        ended: what became of it.
        now_ms: the store's time.
        deadline_ms: the new deadline of an extended hold.
        differs: a second final settle named another amount.
        state: the hold's state now.
        spent: what is spent in each account now, 0 where nothing was changed.
    """

    ended: int
    now_ms: int
    deadline_ms: int = 0
    differs: bool = False
    state: int = 0
    spent: tuple[int, ...] = ()


@dataclass(slots=True)
class Read:
    """The balances of accounts, after due holds have been ended. Takes nothing.

    Attributes:
        shape, keys, scopes, terms, from_ms, until_ms, now_ms: as in `Reserve`.
        utterance: key of the utterance whose answer accounts are read.
    """

    shape: Shape
    keys: tuple[str, ...]
    scopes: tuple[str, ...]
    terms: Terms
    utterance: str = ""
    from_ms: int = 0
    until_ms: int = MAX_AMOUNT
    now_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """One account: what is spent and reserved, and when its window ends (0: it has no end)."""

    spent: int
    reserved: int
    resets_ms: int


@dataclass(slots=True)
class Balances:
    """The answer to a `Read`.

    Attributes:
        verdict: ``ADMITTED`` or ``CLOCK``.
        now_ms: the store's time.
        accounts: the balances, in the order of the keys.
        calls: the calls of the utterance.
        revision: the number of the settings, so that a reader sees whether it goes by those of now.
    """

    verdict: int
    now_ms: int
    accounts: tuple[Balance, ...] = ()
    calls: int = 0
    revision: int = 0


@dataclass(slots=True)
class Orphans:
    """The open holds by deadline, then those that expired and were not settled since; or one hold by its id."""

    terms: Terms
    limit: int = 1000
    id: str | None = None
    now_ms: int | None = None


PROVISIONAL_MS: Final = 2 * 86_400_000
"""How much longer than others a hold is kept that was charged what it held, for an owner who brings the truth late."""


@dataclass(slots=True)
class Hold:
    """A hold as a store keeps it and as its owner carries it.

    Attributes:
        content: see `Reserve`.
        state: where it is in its life.
        created_ms, deadline_ms, timeout_ms: its times.
        shape, keys, scopes: see `Reserve`.
        held: what each account holds or has counted.
        starts: the start of each account's window where the account keeps it, else 0.
        cost_nusd, tokens: what a final settle booked.
        note: see `Reserve`.
        until_ms: until when an ended hold is known.
    """

    content: str
    state: int
    created_ms: int
    deadline_ms: int
    timeout_ms: int
    shape: Shape
    keys: tuple[str, ...]
    scopes: tuple[str, ...]
    held: tuple[int, ...]
    starts: tuple[int, ...]
    note: str = ""
    cost_nusd: int | None = None
    tokens: int | None = None
    until_ms: int = 0

    @property
    def kept_until_ms(self) -> int:
        """Until when a store keeps an ended hold; past `until_ms` it tells only that nothing final was booked."""
        return self.until_ms + (PROVISIONAL_MS if self.state in (State.EXPIRED, State.CHARGED) else 0)


@dataclass(slots=True)
class OrphanList:
    """The answer to `Orphans`: id and record of each."""

    now_ms: int
    holds: tuple[tuple[str, Hold], ...] = ()
