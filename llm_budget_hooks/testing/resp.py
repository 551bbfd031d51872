"""The Redis protocol, RESP2, as far as a test needs it to speak to a server without a client library."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self, TypeAlias

from llm_budget_hooks.testing.loops import LOOPBACK

Value: TypeAlias = "bytes | int | list[Value] | None"


class RespError(Exception):
    """An error that the server answered with; its text is the server's."""


class RespConnection:
    """One blocking connection to a server on loopback, to be used as a context manager.

    Args:
        port: the server's port.
        password: sent with AUTH when given.
        timeout_s: longest wait for the connection and for each read.

    Raises:
        OSError: nothing answers there.
        RespError: the password is wrong.
    """

    def __init__(self, port: int, *, password: str | None = None, timeout_s: float = 5.0) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout_s)
        self._file = self._socket.makefile("rb")
        try:
            if password is not None:
                self.command("AUTH", password)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()

    def command(self, *parts: str | bytes | int) -> Value:
        """Sends one command and returns the answer: bytes, a number, None or a list of these.

        Raises:
            RespError: the server answered with an error.
            OSError: the connection broke or timed out.
        """
        encoded = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
        lines = [b"*%d" % len(encoded)]
        for part in encoded:
            lines += [b"$%d" % len(part), part]
        self._socket.sendall(b"\r\n".join([*lines, b""]))
        return self._read()

    def _read(self) -> Value:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"-":
                raise RespError(rest.decode())
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"$":
                return self._read_bulk(int(rest))
            case b"*":
                return [self._read() for _ in range(int(rest))] if int(rest) >= 0 else None
        raise ConnectionError(f"not RESP: {line!r}")

    def _read_bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        payload = self._file.read(size + 2)
        if len(payload) < size + 2:
            raise ConnectionError("the server closed the connection")
        return payload[:-2]
