"""What a store keeps beside balances: settings, histories, marks, and the outbox to the ledger. Commands and rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llm_budget_hooks.transitions.cells import Cells

FEWEST: Final = 5
"""How many runs there have to be to estimate by."""

SAMPLES: Final = 20
"""How many runs a history keeps."""

HISTORY_MS: Final = 30 * 86_400_000
"""For how long."""

JOURNAL_MS: Final = 40 * 86_400_000
"""How long a store knows how far a journal was replayed."""

LEASE_MS: Final = 10_000
"""How long one owner may drain the outbox without asking again."""


@dataclass(slots=True)
class Settings:
    """What was changed at run time (overrides, kills), or a change to it.

    Attributes:
        changes: names and texts to write, None to take one away; empty: only read.
        was: the text of each name that the change was made for, None for none; if one is another now, nothing is
            written. What others change under other names is in nobody's way.
        now_ms: the time, where the caller's clock rules; else None.
    """

    changes: tuple[tuple[str, str | None], ...] = ()
    was: tuple[str | None, ...] = ()
    now_ms: int | None = None


@dataclass(slots=True)
class SettingsNow:
    """The answer to `Settings`: their number, their texts by name, and whether the change was written."""

    now_ms: int
    revision: int
    texts: dict[str, str]
    changed: bool = False


@dataclass(slots=True)
class Samples:
    """The last runs of some histories, after new ones were added.

    Attributes:
        keys: of the histories to read.
        add: histories and a value for each.
        now_ms: the time, where the caller's clock rules; else None.
    """

    keys: tuple[str, ...]
    add: tuple[tuple[str, int], ...] = ()
    now_ms: int | None = None


@dataclass(slots=True)
class Sampled:
    """The answer to `Samples`: for each key when each run ended and its value, the oldest first."""

    now_ms: int
    runs: tuple[tuple[tuple[int, int], ...], ...]


@dataclass(slots=True)
class Once:
    """May this happen now? Counts how often it was asked.

    Attributes:
        key: of the mark.
        after: how many times the answer is no at first.
        every_ms: after a yes, for how long it is no.
        keep_ms: how long the mark is kept after it was last asked.
        reset: forget the mark instead.
        now_ms: the time, where the caller's clock rules; else None.
    """

    key: str
    after: int
    every_ms: int
    keep_ms: int
    reset: bool = False
    now_ms: int | None = None


@dataclass(slots=True)
class OnceAnswer:
    """The answer to `Once`."""

    now_ms: int
    yes: bool


@dataclass(slots=True)
class Post:
    """Append rows to the outbox that are no end of a hold: kind, id and text of each.

    Attributes:
        rows: what to append.
        outbox_max: how many rows wait at most; those above are counted and dropped.
        now_ms: the time, where the caller's clock rules; else None.
    """

    rows: tuple[tuple[str, str, str], ...]
    outbox_max: int
    now_ms: int | None = None


@dataclass(slots=True)
class Take:
    """Take the lease of the outbox, remove what is in the ledger, and read on. An empty outbox ends the lease.

    Attributes:
        owner: who asks.
        done: the number of the last row that is in the ledger, empty for none.
        limit: how many rows to read.
        now_ms: the time, where the caller's clock rules; else None.
    """

    owner: str
    done: str
    limit: int
    now_ms: int | None = None


@dataclass(slots=True)
class Taken:
    """The answer to `Post` and `Take`.

    Attributes:
        leased: whether the owner has the lease.
        rows: number, kind, id, was, at_ms, facts and actual of each.
        dropped: how many rows were dropped for want of room, ever.
    """

    now_ms: int
    leased: bool = True
    rows: tuple[tuple[str, str, str, str, int, str, str], ...] = ()
    dropped: int = 0


@dataclass(slots=True)
class Epoch:
    """Which balances these are, and let them be others from now on.

    Attributes:
        known: the epoch that is to be replaced, empty for none.
        made: by which; empty: only ask.
        now_ms: as everywhere.
    """

    known: str = ""
    made: str = ""
    now_ms: int | None = None


@dataclass(slots=True)
class EpochNow:
    """The answer to `Epoch`.

    Attributes:
        now_ms: the time.
        stamp: the epoch and until when it is known to have been whole; empty if there is none.
        evicts: whether the store may drop keys for want of memory.
    """

    now_ms: int
    stamp: str
    evicts: bool = False


def epoch(_: Cells, command: Epoch, now: int) -> EpochNow:
    """What a store says that cannot lose balances without losing everything."""
    return EpochNow(now, f"{command.made or 'one'} 0")


def settings(cells: Cells, command: Settings, now: int) -> SettingsNow:
    """Read the settings, or change them if nobody else has changed the same ones."""
    revision, texts = cells.revision(), cells.settings()
    pairs = zip(command.changes, command.was, strict=True)
    changed = bool(command.changes) and all(texts.get(name) == was for (name, _), was in pairs)
    if changed:
        revision += 1
        cells.change_settings(revision, command.changes)
        texts = cells.settings()
    return SettingsNow(now, revision, texts, changed)


def add_sample(cells: Cells, key: str, value: int, now: int) -> None:
    """Add a run to a history."""
    put_sample(cells, key, cells.load((f"y:{key}",))[0], value, now)


def put_sample(cells: Cells, key: str, cell: History | None, value: int, now: int) -> None:
    """Add a run to a history whose cell is at hand."""
    runs = cell.runs[-(SAMPLES - 1) :] if cell is not None else []
    runs.append((now, value))
    cells.save(f"y:{key}", History(runs), now + HISTORY_MS)


def advance(cells: Cells, place: str, now: int) -> bool:
    """Whether a number of a journal comes for the first time; from now on it and those before it do not."""
    journal, _, number = place.rpartition(" ")
    name, serial = f"j:{journal}", int(number)
    cell = cells.load((name,))[0]
    if cell is not None and cell[0] >= serial:
        return False
    cells.save(name, [serial, 0, 0], now + JOURNAL_MS)
    return True


@dataclass(slots=True)
class History:
    """The cell of a history: when each run ended and its value."""

    runs: list[tuple[int, int]]


def samples(cells: Cells, command: Samples, now: int) -> Sampled:
    """Add to histories, then read some."""
    for key, value in command.add:
        add_sample(cells, key, value, now)
    found = [cell.runs if cell is not None else () for cell in cells.load([f"y:{key}" for key in command.keys])]
    return Sampled(now, tuple(tuple(run for run in runs if run[0] > now - HISTORY_MS) for runs in found))


def once(cells: Cells, command: Once, now: int) -> OnceAnswer:
    """Count, and say yes if it is time."""
    name = f"m:{command.key}"
    cell = cells.load((name,))[0]
    if command.reset:
        if cell is not None:
            cells.save(name, [0, 0, cell[2]], now + command.keep_ms)
        return OnceAnswer(now, False)
    count, _, last = cell if cell is not None else (0, 0, 0)
    yes = count >= command.after and (not last or now - last >= command.every_ms)
    cells.save(name, [count + 1, 0, now if yes else last], now + command.keep_ms)
    return OnceAnswer(now, yes)


def post(cells: Cells, command: Post, now: int) -> Taken:
    """Append rows to the outbox."""
    for kind, id, text in command.rows:
        cells.post((kind, id, "", now, text, ""), command.outbox_max)
    return Taken(now, dropped=cells.dropped())


def take(cells: Cells, command: Take, now: int) -> Taken:
    """Acknowledge, then read on, unless somebody else drains."""
    if command.done:
        cells.acknowledge(command.done)
    owner, until = cells.lease()
    if owner and owner != command.owner and now < until:
        return Taken(now, leased=False, dropped=cells.dropped())
    rows = cells.posted(command.limit)
    cells.save_lease(command.owner, now + LEASE_MS if rows else now)
    return Taken(now, rows=tuple((number, *row) for number, row in rows), dropped=cells.dropped())
