"""A thread with an event loop of its own that serves one loopback port, for the fakes of this package."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

LOOPBACK = "127.0.0.1"


class ServerThread:
    """Serves one free loopback port from a thread of its own until `stop` is called.

    Args:
        name: the thread's name.
        listen: opens the asyncio server on the bound socket that it is given; runs inside the loop.
        close: ends what is still open when the server stops; runs inside the loop.
        errors: where exceptions that reach the loop are collected.
    """

    def __init__(
        self,
        name: str,
        listen: Callable[[socket.socket], Awaitable[asyncio.Server]],
        close: Callable[[], Awaitable[None]],
        errors: list[BaseException],
    ) -> None:
        self._listen = listen
        self._close = close
        self._errors = errors
        self._started = threading.Event()
        self._stopping = asyncio.Event()
        self._serves = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = socket.create_server((LOOPBACK, 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._started.wait()
        if not self._serves:
            self._thread.join()
            self._socket.close()
            raise errors.pop()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Runs `function` inside the loop, soon; does nothing once the loop has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        """Closes the port and all connections, and waits until the thread has ended."""
        self.call(self._stopping.set)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - a thread has nobody above it; the owner raises what is collected
            self._errors.append(error)
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._collect)
        server = await self._listen(self._socket)
        self._serves = True
        self._started.set()
        await self._stopping.wait()
        server.close()
        # A connection that was accepted a moment ago reaches its protocol within the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        await self._close()
        await server.wait_closed()

    def _collect(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(context.get("exception") or RuntimeError(context["message"]))


def raise_collected(errors: list[BaseException], in_flight: BaseException | None, owner: str) -> None:
    """Raises what a server collected, or notes it on the exception that is in flight already.

    Raises:
        BaseExceptionGroup: `errors` is not empty and no other exception is in flight.
    """
    if not errors:
        return
    if in_flight is None:
        raise BaseExceptionGroup(f"{owner} failed inside", list(errors))
    in_flight.add_note(f"{owner} failed inside as well: {errors!r}")
