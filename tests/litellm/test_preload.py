"""A server that loads the application, and with it the engine, before it forks its workers."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.testing import DelayProxy, RedisServer

POLICY = {
    "budgets": [{"scope": "global", "limit": "$5", "window": "day"}],
    "store_timeout": "300ms",
    "degraded_allowance": "$2",
}
APP = f"""
import os
from llm_budget_hooks import BudgetEngine, Call

call = Call(model="m", tenant="acme", amount="0.10")
engine = BudgetEngine.open(os.environ["URL"], {POLICY!r}, ledger=os.environ["LEDGER"], journal=os.environ["JOURNAL"])
if os.environ["USED"]:
    engine.settle(engine.reserve(call), cost="0.07")


def app(environ, start_response):
    engine.settle(engine.reserve(call), cost="0.07")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folder: Path, url: str, used: str) -> Iterator[int]:
    (folder / "budgeted.py").write_text(APP)
    port = free_port()
    told = {"URL": url, "LEDGER": f"sqlite:///{folder / 'l.db'}", "JOURNAL": str(folder / "j"), "USED": used}
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "3", "-b", f"127.0.0.1:{port}", "budgeted:app"]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **told}, stderr=subprocess.PIPE)
    try:
        wait_for(port)
        yield port
    finally:
        process.terminate()
        said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 0, said
    assert "Traceback" not in said, said


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("gunicorn does not listen")


def ask(port: int, times: int) -> None:
    for _ in range(times):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()


def booked_nusd(engine: BudgetEngine) -> int:
    return sum(run.booked_nusd for run in engine.ledger.runs(limit=100).items)


@pytest.mark.parametrize("used", ["", "before the fork"])
@pytest.mark.parametrize("away", ["before the fork", "after the fork"])
def test_b129_workers_that_are_forked_from_a_loaded_engine_book_each_call_once(
    redis_server: RedisServer, tmp_path: Path, used: str, away: str
) -> None:
    with DelayProxy(redis_server.port) as proxy:
        proxy.stall = away == "before the fork"
        with serving(tmp_path, proxy.url, used) as port:
            ask(port, 4)
            proxy.stall = True
            ask(port, 8)
            proxy.stall = False
            ask(port, 8)
    opened = {"ledger": f"sqlite:///{tmp_path / 'l.db'}", "journal": tmp_path / "j"}
    with BudgetEngine.open(redis_server.url, POLICY, **opened) as engine:
        engine.flush()
        total = Decimal("0.07") * (20 + bool(used))
        assert [(s.spent, s.reserved) for s in engine.status()] == [(total, 0)]
        deadline = time.monotonic() + 20
        while (booked := booked_nusd(engine)) < total * 10**9 and time.monotonic() < deadline:
            engine.flush()  # a worker that has ended may have had the outbox for itself until now
        assert booked == total * 10**9
