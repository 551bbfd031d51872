"""What the doctor finds on real stores, and that hooks which stop nothing are found out."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from commands import llm_budget, used_store
from several_servers import Cluster, sentinel

from llm_budget_hooks import BudgetEngine, Call, Policy, __version__
from llm_budget_hooks.testing import RedisServer

START = "from llm_budget_hooks.cli import app; app()"
NOTHING_IS_STOPPED = """
import llm_budget_hooks.litellm
from litellm.integrations.custom_logger import CustomLogger
llm_budget_hooks.litellm.BudgetCallback = lambda engine: CustomLogger()
"""


def results(done: Any) -> dict[str, tuple[str, str]]:
    return {one["what"]: (one["verdict"], one["text"]) for one in done["results"]}


def whole(*args: str, before: str = "") -> tuple[int, dict[str, tuple[str, str]], str]:
    run = [sys.executable, "-c", f"{before}\n{START}", "doctor", "--json", "--preset", "pact", *args]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, results(json.loads(done.stdout)), done.stderr


@pytest.mark.timeout(330)
def test_hooks_that_stop_calls_are_seen_to_do_so(tmp_path: Path) -> None:
    code, found, errors = whole("--store", used_store(tmp_path))
    assert {what: verdict for what, (verdict, _) in found.items()} == dict.fromkeys(
        ("versions", "policy", "balances", "journal", "LiteLLM", "LangChain"), "ok"
    ) | {"ledger": "left out"}
    assert "blocking, awaited, streamed calls are stopped" in found["LiteLLM"][1]
    assert "invoked, awaited, streamed calls are stopped" in found["LangChain"][1]
    assert (code, errors) == (0, "")


@pytest.mark.timeout(330)
def test_b116_hooks_that_stop_nothing_are_found(tmp_path: Path) -> None:
    code, found, _ = whole("--store", f"sqlite:///{tmp_path / 'b.db'}", before=NOTHING_IS_STOPPED)
    assert found["LiteLLM"][0] == "failed"
    assert all(f"{way} calls are not stopped" in found["LiteLLM"][1] for way in ("blocking", "awaited", "streamed"))
    assert found["LangChain"][0] == "ok"
    assert code == 1


def test_each_store_is_tried_without_a_trace_among_the_balances(shared_url: str) -> None:
    with BudgetEngine.open(shared_url, Policy.preset("zeno")) as engine:
        engine.status()
    done = llm_budget("doctor", "--store", shared_url, "--preset", "zeno", "--no-hooks", "--json")
    verdict, text = results(done.json)["balances"]
    assert (done.code, verdict) == (0, "ok"), done.out
    assert "refused above the limit" in text
    status = llm_budget("status", "--store", shared_url, "--preset", "zeno", "--json")
    assert status.json["budgets"][0]["spent"] == "0"


def test_what_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    asked = ("doctor", "--preset", "zeno", "--no-hooks", "--json")
    places = [f"sqlite:///{tmp_path / name}" for name in ("b.db", "l.db")]
    done = llm_budget(*asked, "--store", places[0], "--ledger", places[1])
    found = results(done.json)
    assert (done.code, found["balances"][0]) == (0, "ok")
    for what in ("store", "ledger"):
        assert (found[what][0], "the first call makes it" in found[what][1]) == ("left out", True)
    assert [*tmp_path.iterdir()] == []
    done = llm_budget(*asked, "--store", places[0], "--ledger", f"sqlite:///{tmp_path / 'no' / 'l.db'}")
    assert (done.code, results(done.json)["ledger"][0]) == (1, "failed")


def test_a_journal_that_cannot_be_written_is_told_with_what_follows(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    store, rules = used_store(tmp_path), tmp_path / "budgets.toml"
    for mode, said in (("bounded", "nothing is let through"), ("allow", "nothing of it is booked later"), ("deny", "")):
        rules.write_text(f'on_store_error = "{mode}"\n[[budgets]]\nscope = "global"\nlimit = "$9"\nwindow = "day"\n')
        asked = ("doctor", "--store", store, "--policy", rules, "--no-hooks", "--json")
        done = llm_budget(*asked, XDG_STATE_HOME=str(tmp_path / "a-file"))
        assert said in results(done.json).get("journal", ("", ""))[1]
        assert (done.code, "journal" in results(done.json)) == ((0, False) if mode == "deny" else (1, True))
    asked = ("doctor", "--store", store, "--preset", "pact", "--no-hooks", "--json")
    verdict, text = results(llm_budget(*asked, XDG_STATE_HOME=str(tmp_path)).json)["journal"]
    assert (verdict, f"is kept in {tmp_path}" in text) == ("ok", True)


def looked_at(url: str, *more: str) -> dict[str, tuple[str, str]]:
    return results(llm_budget("doctor", "--store", url, "--preset", "zeno", "--no-hooks", "--json", *more).json)


def test_a_redis_shows_its_version_and_its_clock(redis_server: RedisServer) -> None:
    found = looked_at(redis_server.url)
    assert found["server"] == ("ok", f"Redis {redis_server.version}; 6.2 or newer is needed")
    assert found["clock"][0] == "ok"
    assert __version__ in found["versions"][1]


def test_the_node_of_a_cluster_and_the_server_that_sentinels_name_are_looked_at(tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        alone = stack.enter_context(RedisServer())
        port = stack.enter_context(sentinel(alone, tmp_path))
        owner = cluster.nodes[cluster.owner(Policy.preset("zeno").namespace)]
        for url, server in ((cluster.url, owner), (f"redis+sentinel://127.0.0.1:{port}/budgets", alone)):
            found = looked_at(url)
            assert [found[what][0] for what in ("balances", "server", "clock")] == ["ok"] * 3
            assert llm_budget("check", "--preset", "zeno", "--store", url).code == 0
            server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            assert "allkeys-lru" in looked_at(url)["store"][1]
            done = llm_budget("check", "--preset", "zeno", "--store", url)
            assert (done.code, "allkeys-lru" in done.out) == (1, True)


def test_a_server_that_evicts_already_and_a_login_that_may_not_ask_are_told(redis_server: RedisServer) -> None:
    redis_server.command("ACL", "SETUSER", "app", "on", ">secret", "~lbh:*", "+@all", "-info")
    found = looked_at(redis_server.url.replace("redis://", "redis://app:secret@"))
    assert (found["balances"][0], found["server"][0], found["clock"][0]) == ("ok", "left out", "ok")
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    redis_server.command("CONFIG", "SET", "maxmemory", "100mb")
    try:
        found = looked_at(redis_server.url)
        done = llm_budget("check", "--preset", "zeno", "--store", redis_server.url)
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
        redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        redis_server.command("ACL", "DELUSER", "app")
    assert (found["store"][0], found["balances"][0], done.code) == ("failed", "ok", 1)
    assert "allkeys-lru" in done.out


def test_b030_a_redis_that_evicts_and_a_store_that_is_away_fail(redis_server: RedisServer) -> None:
    redis_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        done = llm_budget("doctor", "--store", redis_server.url, "--preset", "zeno", "--no-hooks", "--json")
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert done.code == 1
    assert "allkeys-lru" in results(done.json)["store"][1]
    away = llm_budget("doctor", "--store", "redis://127.0.0.1:1/0", "--preset", "zeno", "--no-hooks", "--json")
    assert (away.code, results(away.json)["store"][0]) == (1, "failed")
    assert "balances" not in results(away.json)


def test_people_read_a_line_for_each(tmp_path: Path) -> None:
    policy = tmp_path / "budgets.toml"
    policy.write_text('[[budgets]]\nscope = "user"\nlimit = "$0.001"\nwindow = "day"\n', encoding="utf-8")
    done = llm_budget("doctor", "--store", "memory://", "--policy", policy, "--no-hooks")
    lines = {line[9:24].strip(): line[:9].strip() for line in done.out.splitlines()}
    assert lines == {"versions": "ok", "policy": "warning", "store": "warning", "balances": "ok", "ledger": "left out"}
    assert done.code == 1


def test_a_ledger_is_written_and_read(tmp_path: Path, postgres: Any) -> None:
    store, ledger = f"sqlite:///{tmp_path / 'b.db'}", f"sqlite:///{tmp_path / 'l.db'}"
    asked = ("doctor", "--store", store, "--preset", "zeno", "--no-hooks", "--json")
    with BudgetEngine.open(store, Policy.preset("zeno"), ledger=ledger) as engine:
        engine.kill("acme")
    assert results(llm_budget(*asked, LLM_BUDGET_LEDGER=ledger).json)["ledger"][1].endswith("there is no run yet")
    with BudgetEngine.open(store, Policy.preset("zeno"), ledger=ledger) as engine:
        engine.charge(Call(model="any"), cost="0.1")
    done = llm_budget(*asked, "--ledger", ledger)
    assert (done.code, results(done.json)["ledger"][0]) == (0, "ok")
    assert f"the last run is of {datetime.now(UTC):%Y-%m-}" in results(done.json)["ledger"][1]
    assert results(llm_budget(*asked, "--ledger", postgres.new_database()).json)["ledger"] == (
        "ok", "can be written and read; there is no run yet",
    )  # fmt: skip
    away = llm_budget(*asked, "--ledger", "postgresql://nobody@127.0.0.1:1/none")
    assert (away.code, results(away.json)["ledger"][0]) == (1, "failed")


def test_wrong_use_is_one_sentence_and_exit_code_2() -> None:
    done = llm_budget("doctor", "--store", "nope://", "--preset", "zeno")
    assert (done.code, "no store is named" in done.err) == (2, True)


def test_help_names_every_command_and_what_to_do_first() -> None:
    shown = llm_budget("--help").out
    assert all(word in shown for word in ("demo", "check", "status", "doctor", "New here?", "Exit codes"))
    for command in ("check", "status", "doctor"):
        assert "--json" in llm_budget(command, "--help").out
