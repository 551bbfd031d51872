"""The drain: each entry once, in the background, whoever dies and whatever is down."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from outboxes import MemoryOutbox, settled
from postgres_server import PostgresServer

from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.ledger import Batch, Drain, Ledger, LedgerUnavailable, tables
from llm_budget_hooks.ledger.drain import LEASE_S
from llm_budget_hooks.models.trail import Entry


def totals(ledger: Ledger) -> tuple[int, int]:
    with ledger._database.reading() as connection:
        run = tables.runs.c
        count, booked = connection.execute(sa.select(sa.func.count(), sa.func.sum(run.booked_nusd))).one()
    return count, int(booked or 0)


def eventually(holds: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Writer:
    """A ledger in memory that can be down, slow, or die after it has committed."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.down = False
        self.dies_after = False
        self.delay_s = 0.0
        self.writes = 0

    def write(self, entries: Sequence[Entry]) -> None:
        self.writes += 1
        time.sleep(self.delay_s)
        if self.down:
            raise LedgerUnavailable("The ledger is down.")
        self.ids += [entry.id for entry in entries if entry.id not in self.ids]
        if self.dies_after:
            raise LedgerUnavailable("The connection was cut after the commit.")


@pytest.fixture
def outbox() -> MemoryOutbox:
    return MemoryOutbox()


@pytest.fixture
def writer() -> Writer:
    return Writer()


@pytest.fixture
def drain(outbox: MemoryOutbox, writer: Writer) -> Iterator[Drain]:
    made = Drain(outbox, writer, limit=10)
    yield made
    writer.down = writer.dies_after = outbox.down = False
    made.close()


def test_a_poke_brings_all_entries_into_the_ledger_in_order(ledger: Ledger, outbox: MemoryOutbox) -> None:
    drain = Drain(outbox, ledger, limit=7)
    outbox.append(*(settled(n) for n in range(100)))
    drain.poke()
    assert eventually(lambda: not outbox.entries)
    assert totals(ledger) == (100, 100_000)
    with ledger._database.reading() as connection:
        ids = connection.execute(sa.select(tables.runs.c.id).order_by(tables.runs.c.no)).scalars().all()
    assert ids == [f"r-{n}" for n in range(100)]
    assert drain.close()


def test_no_thread_runs_before_it_is_needed_and_none_after_closing(outbox: MemoryOutbox, writer: Writer) -> None:
    before = set(threading.enumerate())
    drain = Drain(outbox, writer)
    assert set(threading.enumerate()) == before
    drain.poke()
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    assert drain.close()
    assert not thread.is_alive()
    outbox.append(settled(1))
    drain.poke()
    assert eventually(lambda: writer.ids == ["r-1"])
    assert drain.close()


def test_a_poke_takes_no_time_even_when_the_ledger_hangs(drain: Drain, outbox: MemoryOutbox, writer: Writer) -> None:
    writer.delay_s = 0.5
    outbox.append(settled(1))
    drain.poke()
    assert eventually(lambda: writer.writes > 0)
    began = time.thread_time()
    for _ in range(1_000):
        drain.poke()
    assert time.thread_time() - began < 0.1


def test_pokes_are_gathered(drain: Drain, outbox: MemoryOutbox, writer: Writer) -> None:
    began = time.monotonic()
    for number in range(60):
        outbox.append(settled(number))
        drain.poke()
        time.sleep(0.01)
    assert eventually(lambda: len(writer.ids) == 60)
    rounds = (time.monotonic() - began) / 0.2 + 2
    assert writer.writes <= rounds + 60 / 10


def test_flush_answers_when_all_is_written(drain: Drain, outbox: MemoryOutbox, writer: Writer) -> None:
    outbox.append(*(settled(n) for n in range(35)))
    assert drain.flush()
    assert len(writer.ids) == 35
    assert outbox.entries == []


def test_a_ledger_that_is_down_loses_nothing_and_is_left_in_peace(
    drain: Drain, outbox: MemoryOutbox, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    writer.down = True
    outbox.append(*(settled(n) for n in range(15)))
    drain.poke()
    assert eventually(lambda: writer.writes > 0)
    began = writer.writes
    for _ in range(100):
        drain.poke()
        time.sleep(0.01)
    assert writer.writes - began <= 3
    assert not drain.flush(0.1)
    assert len(outbox.entries) == 15
    writer.down = False
    assert drain.flush(10)
    assert (len(writer.ids), outbox.entries) == (15, [])
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_a_crash_between_commit_and_acknowledgement_doubles_nothing(ledger: Ledger, outbox: MemoryOutbox) -> None:
    class Dying:
        def write(self, entries: Sequence[Entry]) -> None:
            ledger.write(entries)
            raise LedgerUnavailable("The connection was cut after the commit.")

    outbox.append(*(settled(n) for n in range(30)))
    dying = Drain(outbox, Dying(), limit=10)
    assert not dying.close(0.3)
    assert (totals(ledger)[0], len(outbox.entries)) == (10, 30)
    outbox._until = 0
    drain = Drain(outbox, ledger, limit=10)
    assert drain.flush(10)
    assert (totals(ledger), outbox.entries) == ((30, 30_000), [])
    assert drain.close()


def test_an_acknowledgement_whose_answer_was_lost_is_sent_again(
    drain: Drain, outbox: MemoryOutbox, writer: Writer
) -> None:
    outbox.append(*(settled(n) for n in range(25)))
    outbox.lose_answers = 2
    assert drain.flush(10)
    assert (len(writer.ids), outbox.entries) == (25, [])


def test_a_store_that_is_down_is_asked_again(drain: Drain, outbox: MemoryOutbox, writer: Writer) -> None:
    outbox.append(settled(1))
    outbox.down = True
    drain.poke()
    assert eventually(lambda: outbox.takes > 0)
    outbox.down = False
    assert eventually(lambda: writer.ids == ["r-1"])


def test_an_error_of_any_kind_does_not_end_the_drain(outbox: MemoryOutbox, writer: Writer) -> None:
    class Odd(MemoryOutbox):
        def take(self, owner: str, done: str, limit: int) -> Batch:
            batch = super().take(owner, done, limit)
            if self.takes == 1:
                raise KeyError("something else")
            return batch

    odd = Odd()
    odd.append(settled(1))
    drain = Drain(odd, writer)
    assert drain.flush(10)
    assert writer.ids == ["r-1"]
    assert drain.close()


def test_one_of_two_drains_works_and_the_other_takes_over(writer: Writer) -> None:
    now = [0.0]
    outbox = MemoryOutbox(lambda: now[0])
    first, second = Drain(outbox, writer), Drain(outbox, writer)
    outbox.append(settled(1))
    assert first.flush()
    outbox.append(settled(2))
    assert not second.flush(0.3)
    assert writer.ids == ["r-1"]
    now[0] += LEASE_S
    assert eventually(lambda: writer.ids == ["r-1", "r-2"], 10)
    now[0] += LEASE_S
    assert first.close()
    now[0] += LEASE_S
    assert second.close()


def test_drains_that_race_write_each_entry_once(ledger: Ledger) -> None:
    class Careless(MemoryOutbox):
        """An outbox whose leases end at random, so that two drains work at a time."""

        def take(self, owner: str, done: str, limit: int) -> Batch:
            if random.random() < 0.5:  # noqa: S311 - no secret
                self._until = 0
            return super().take(owner, done, limit)

    outbox = Careless()
    drains = [Drain(outbox, ledger, limit=20) for _ in range(3)]
    for number in range(300):
        outbox.append(settled(number))
        drains[number % 3].poke()
    assert eventually(lambda: not outbox.entries)
    assert totals(ledger) == (300, 300_000)
    for drain in drains:
        drain.close()


def test_what_a_full_outbox_dropped_is_an_event_once_per_number(ledger: Ledger, outbox: MemoryOutbox) -> None:
    outbox.dropped = 3
    for number, name in enumerate(["a", "a", "b"]):
        drain = Drain(outbox, ledger, name=name)
        outbox.append(settled(number))
        assert drain.close()
        outbox._until = 0
    with ledger._database.reading() as connection:
        found = connection.execute(sa.select(tables.events.c.name, tables.events.c.text)).all()
    assert [(name, text.split()[0]) for name, text in found] == [("outbox_dropped", "3")] * 2


def test_a_forked_child_starts_nothing_and_drains_under_a_name_of_its_own(
    outbox: MemoryOutbox, writer: Writer, drain: Drain
) -> None:
    outbox.append(settled(1))
    assert drain.flush()
    child = os.fork()
    if not child:
        alone = threading.active_count() == 1
        outbox._until = 0
        outbox.append(settled(2))
        flushed = drain.flush(10)
        os._exit(0 if alone and flushed and writer.ids == ["r-1", "r-2"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert drain.flush()


def test_a_flush_in_a_store_outage_gives_up_in_time(drain: Drain, outbox: MemoryOutbox) -> None:
    outbox.down = True
    began = time.monotonic()
    assert not drain.flush(0.2)
    assert time.monotonic() - began < 2
    with pytest.raises(StoreUnavailable):
        outbox.take("x", "", 1)


WORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from file_outbox import FileOutbox
from llm_budget_hooks.ledger import Drain, Ledger
drain = Drain(FileOutbox(sys.argv[2]), Ledger.open(sys.argv[3]), limit=5)
print("up", flush=True)
while True:
    drain.poke()
    time.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_processes_lose_nothing_and_double_nothing(kind: str, tmp_path: Path, postgres: PostgresServer) -> None:
    from file_outbox import FileOutbox

    url = postgres.new_database() if kind == "postgres" else f"sqlite:///{tmp_path / 'ledger.db'}"
    outbox = FileOutbox(str(tmp_path / "outbox.db"))
    outbox.append(*(settled(n) for n in range(400)))
    for _ in range(3):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(Path(__file__).parent), str(tmp_path / "outbox.db"), url],
            stdout=subprocess.PIPE,
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"up\n"
        left = outbox.count()
        assert eventually(lambda left=left: outbox.count() < left)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        outbox.end_lease()
    ledger = Ledger.open(url)
    drain = Drain(outbox, ledger)
    assert outbox.count() > 0
    assert drain.flush(30)
    assert (totals(ledger), outbox.count()) == ((400, 400_000), 0)
    drain.close()
    ledger.close()


def test_a_process_that_ends_without_closing_ends_in_silence_and_keeps_its_entries(tmp_path: Path) -> None:
    from file_outbox import FileOutbox

    outbox = FileOutbox(str(tmp_path / "outbox.db"))
    outbox.append(settled(1))
    code = WORKER.partition("while True")[0] + "drain.poke()\n"
    args = [sys.executable, "-W", "error", "-c", code, str(Path(__file__).parent), str(tmp_path / "outbox.db")]
    done = subprocess.run([*args, f"sqlite:///{tmp_path}/none/x.db"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "up\n")
    assert "Traceback" not in done.stderr
    assert outbox.count() == 1
