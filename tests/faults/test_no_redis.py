"""Servers that are no Redis, or one that answers a byte at a time: one deadline for an operation, and no raw error."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call, ConfigurationError, StoreUnavailable

TIMEOUT_S = 0.3
POLICY: dict[str, Any] = {
    "budgets": [{"scope": "global", "limit": "$900", "window": "day"}],
    "store_timeout": f"{int(TIMEOUT_S * 1000)}ms",
    "on_store_error": "deny",
}
CALL = Call(model="m", amount="0.10")
Script = Callable[[bytes], bytes]


@contextmanager
def server_that_says(answer: Script, pause_s: float = 0.0) -> Iterator[str]:
    """A server on loopback; what it answers to a read, at once or a byte after each pause."""
    over = threading.Event()

    def serve(peer: socket.socket) -> None:
        peer.settimeout(10)
        with suppress(OSError), peer:
            while not over.is_set() and (asked := peer.recv(65_536)):
                reply = answer(asked)
                for piece in [reply] if not pause_s else [reply[at : at + 1] for at in range(len(reply))]:
                    peer.sendall(piece)
                    if over.wait(pause_s):
                        return

    def accept() -> None:
        while not over.is_set():
            with suppress(OSError):
                peer = listening.accept()[0]
                threads.append(threading.Thread(target=serve, args=(peer,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        finally:
            over.set()
            for thread in threads:
                thread.join()


async def awaited(engine: BudgetEngine) -> None:
    try:
        await engine.areserve(CALL)
    finally:
        await engine._store.aclose()


def greets(then: bytes) -> Script:
    """Says +OK to what a client introduces itself with, and something else to a script."""
    return lambda asked: then if b"EVAL" in asked else b"+OK\r\n" * asked.count(b"*")


@pytest.mark.parametrize("answer", [b"$250\r\n" + b"x" * 250, b"+" + b"x" * 250], ids=["value", "line"])
@pytest.mark.parametrize("from_the_first_byte", [True, False])
def test_a_peer_that_drips_is_left_at_the_deadline(answer: bytes, from_the_first_byte: bool) -> None:
    script = (lambda _: answer) if from_the_first_byte else greets(answer)
    with server_that_says(script, 0.05) as url:
        engine = BudgetEngine.open(f"{url}?protocol=2", POLICY)
        for reserve in (lambda: engine.reserve(CALL), lambda: asyncio.run(awaited(engine))):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="did not answer within"):
                reserve()
            assert time.monotonic() - began < 10 * TIMEOUT_S
            engine._store.ask_again()
        began = time.monotonic()
        engine.close()
        assert time.monotonic() - began < 10 * TIMEOUT_S


@pytest.mark.parametrize("answer", [b"+OK\r\n", b":x\r\n", b"$-7\r\n", b"*2\r\n$2\r\nab\r\n$1\r\nc\r\n", b"hello\r\n"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_server_that_answers_no_script_is_no_redis(answer: bytes, protocol: int) -> None:
    for script in (lambda _: answer, greets(answer)):
        with server_that_says(script) as url:
            engine = BudgetEngine.open(f"{url}?protocol={protocol}", POLICY)
            with pytest.raises(StoreUnavailable):
                engine.reserve(CALL)
            with pytest.raises(StoreUnavailable):
                asyncio.run(awaited(engine))
            engine.close()


def test_a_sentinel_that_is_none_knows_no_server() -> None:
    with server_that_says(lambda asked: b"+OK\r\n" * asked.count(b"*")) as url:
        engine = BudgetEngine.open(f"{url.replace('redis:', 'redis+sentinel:')[:-1]}service/0", POLICY)
        with pytest.raises(StoreUnavailable, match="sentinel"):
            engine.reserve(CALL)
        with pytest.raises(StoreUnavailable, match="sentinel"):
            asyncio.run(awaited(engine))
        engine.close()


@pytest.mark.parametrize(
    "query", ["bogus=1", "socket_timeout=abc", "protocol=9", "ssl_cert_reqs=none", "retry=1", "max_connections=no"]
)
def test_a_bad_query_of_a_redis_url_is_named_at_open(query: str) -> None:
    with pytest.raises(ConfigurationError, match=r"after the \?"):
        BudgetEngine.open(f"redis://:s3cret@127.0.0.1:6379/0?{query}", POLICY)


def test_options_of_the_client_are_taken_from_a_redis_url() -> None:
    for url in ("redis://127.0.0.1/0?protocol=2&client_name=budgets", "rediss://127.0.0.1/0?ssl_cert_reqs=required"):
        with BudgetEngine.open(url, POLICY) as engine:
            assert engine.shared
