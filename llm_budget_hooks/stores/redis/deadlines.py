"""One deadline for all that a blocking connection does.

A socket's timeout begins anew with each piece that arrives, so a peer that sends a byte now and then could keep a
call for as long as it likes.
"""

from __future__ import annotations

import time
from typing import Any


class Deadlined:
    """Mixed into redis-py's blocking connections.

    Attributes:
        deadline: an instant of `time.monotonic` at which connecting, sending and receiving end with a TimeoutError.
    """

    deadline = 0.0

    @property
    def socket_timeout(self) -> float:
        """Seconds that are left, for what goes by a timeout: connecting, and the handshake of TLS."""
        return max(self.deadline - time.monotonic(), 0.001)

    @socket_timeout.setter
    def socket_timeout(self, value: object) -> None:
        """Redis-py sets its own, which has no meaning here."""

    socket_connect_timeout = socket_timeout

    def _connect(self) -> Any:
        return _Socket(self, super()._connect())  # type: ignore[misc]  # of redis-py's own class


class _Socket:
    """A socket that ends at the deadline of its connection; one that is only polled does not wait at all."""

    def __init__(self, connection: Deadlined, made: Any) -> None:
        self._connection, self._socket, self._polled = connection, made, False

    def recv(self, *where: Any) -> Any:
        self._hurry()
        return self._socket.recv(*where)

    def recv_into(self, *where: Any) -> Any:
        self._hurry()
        return self._socket.recv_into(*where)

    def sendall(self, sent: Any) -> None:
        self._hurry()
        self._socket.sendall(sent)

    def settimeout(self, timeout: float | None) -> None:
        self._polled = timeout == 0
        self._socket.settimeout(timeout)

    def _hurry(self) -> None:
        if self._polled:
            return
        left = self._connection.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
