"""The dashboard over HTTP: what it shows, who is let in, and what it changes, on every shared store."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError, Usage
from llm_budget_hooks.dashboard import dashboard_app

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

POLICY: dict[str, Any] = {
    "store_timeout": "10s",
    "prices": {"made-up": {"input": "1", "output": "10"}},
    "budgets": [
        {"name": "all", "scope": "global", "limit": "$50", "window": "day"},
        {"name": "user-day", "scope": "user", "limit": "$2", "window": "day"},
        {"name": "rate", "scope": "tenant", "meter": "calls", "limit": 100, "window": "day"},
    ],
}
HERE = "http://127.0.0.1:8383"
TOKEN = "a-secret-of-some-length"  # noqa: S105 - of these tests
HOSTILE = "<script>alert(1)</script>'\""


@pytest.fixture
def engine(shared_url: str, tmp_path: Path) -> Iterator[BudgetEngine]:
    with BudgetEngine.open(shared_url, POLICY, ledger=f"sqlite:///{tmp_path / 'ledger.db'}") as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[BudgetEngine]:
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'b.db'}", POLICY, ledger=f"sqlite:///{tmp_path / 'l.db'}") as made:
        yield made


def tomorrow() -> str:
    return f"{datetime.now(UTC) + timedelta(days=1):%m-%d} 00:00"


def visiting(engine: BudgetEngine, token: str | None = None, base: str = HERE) -> Any:
    return TestClient(dashboard_app(engine, token), base_url=base, follow_redirects=False)


def call(amount: str = "0.10", **more: Any) -> Call:
    return Call(**{"model": "made-up", "tenant": "acme", "user": "u1", "amount": amount, "feature": "chat", **more})


def text_of(html: str) -> str:
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_data = found.append  # type: ignore[method-assign]  # all that a reader sees
    parser.feed(html)
    return " ".join(" ".join(found).split())


def csrf_of(client: Any) -> str:
    (token,) = set(re.findall(r"name=csrf value='([^']+)'", client.get("/").text))
    return str(token)


def said(client: Any, answer: Any) -> str:
    """What the next page says of a change, after the time."""
    assert answer.status_code == 303
    (sentence,) = re.findall(r"<p class=said role=status>(.*?)</p>", client.get(answer.headers["location"]).text)
    return text_of(sentence).split(" ", 2)[2]


def test_what_is_not_zero_is_not_shown_as_zero(engine: BudgetEngine) -> None:
    engine.charge(call("0.0000331", utterance="ut-1"), cost="0.0000331")
    engine.reserve(call("0.00000004"))
    engine.flush()
    seen = text_of(visiting(engine).get("/?tenant=acme&user=u1").text)
    assert "spent $0.000033 held $0.00000004 free " in seen
    for said in ("this month $0.000033", "By feature calls cost chat 1 $0.000033", "1 call · $0.000033"):
        assert said in seen
    assert "$0.0000 " not in seen


def test_the_page_shows_balances_spend_refusals_and_answers(engine: BudgetEngine) -> None:
    for step in ("router", "answer"):
        used = Usage(input_tokens=1000, output_tokens=100)
        engine.settle(engine.reserve(call(step=step, utterance="ut-1")), usage=used)
    engine.reserve(call("0.5"))
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("3"))
    engine.flush()
    answer = visiting(engine).get("/?tenant=acme&user=u1")
    seen = text_of(answer.text)
    assert answer.status_code == 200
    assert "user-day user · day · limit $2.00" in seen
    assert "spent $0.0040 held $0.50 free $1.4960" in seen
    for said in ("this month $0.0040", "By feature calls cost chat 2 $0.0040", "By step", "By model", "u1 acme",
                 "spend user-day acme u1 $3.00 1", "2 calls · $0.0040", "router", "Kill switch Off."):  # fmt: skip
        assert said in seen, said
    everybody = text_of(visiting(engine).get("/").text)
    assert "all global · day" in everybody
    assert "By tenant calls cost acme 2 $0.0040" in everybody


def test_the_kill_switch_wants_a_confirmation_and_is_taken_back(engine: BudgetEngine) -> None:
    client = visiting(engine)
    csrf = csrf_of(client)
    done = client.post("/kill", data={"csrf": csrf, "tenant": "acme"})
    assert (done.status_code, engine.kills()) == (303, [])
    assert "tick the box" in text_of(client.get(done.headers["location"]).text)
    client.post("/kill", data={"csrf": csrf, "tenant": "acme", "sure": "yes", "reason": "a loop"})
    with pytest.raises(BudgetExceeded, match="a loop"):
        engine.reserve(call())
    assert "Stopped: acme. a loop" in text_of(client.get("/").text)
    client.post("/revive", data={"csrf": csrf, "of": "acme"})
    engine.release(engine.reserve(call()))
    client.post("/kill", data={"csrf": csrf, "sure": "yes"})
    with pytest.raises(BudgetExceeded):
        engine.reserve(call(tenant="other"))


def test_a_limit_is_edited_and_taken_back(engine: BudgetEngine) -> None:
    client = visiting(engine)
    csrf = csrf_of(client)

    def told(limit: str, budget: str = "user-day") -> str:
        change = {"csrf": csrf, "tenant": "acme", "budget": budget, "limit": limit}
        return said(client, client.post("/limit", data=change))

    assert told("5") == "The limit of user-day is 5 now."
    engine.release(engine.reserve(call("3")))
    shown = text_of(client.get("/?tenant=acme&user=u1").text)
    assert "limit $5.00" in shown
    assert "the policy says $2.00" in shown
    assert told("") == "The policy's own limit of user-day holds."
    with pytest.raises(BudgetExceeded):
        engine.reserve(call("3"))
    assert "much" in told("much")
    assert told("0.05", "all") == "The limit of all is 0.05 now."
    with pytest.raises(BudgetExceeded) as caught:
        engine.reserve(call())
    assert caught.value.budget == "all"


def test_a_budget_that_is_switched_off_is_listed_and_can_be_put_back(engine: BudgetEngine) -> None:
    client = visiting(engine)
    change = {"csrf": csrf_of(client), "budget": "all", "limit": "off"}
    client.post("/limit", data=change)
    shown = client.get("/").text
    assert "all everybody, switched off" in text_of(shown)
    assert "value='off'" in shown
    assert "user-day" not in text_of(shown)
    client.post("/limit", data={**change, "limit": ""})
    assert "all global · day · limit $50.00" in text_of(client.get("/").text)


def test_a_limit_is_set_for_a_while_and_shows_who_set_it_until_when(engine: BudgetEngine) -> None:
    client = visiting(engine)
    change = {"csrf": csrf_of(client), "tenant": "acme", "budget": "user-day", "limit": "5", "lasts": "24h"}
    assert said(client, client.post("/limit", data=change)) == "The limit of user-day is 5 now."
    (one,) = engine.overrides()
    assert abs(one.until_ms - engine.now_ms() - 86_400_000) < 60_000
    engine.override("rate", 7, tenant="acme", by="ann", reason="a launch")
    shown = text_of(client.get("/?tenant=acme&user=u1").text)
    assert re.search(r"Set \d\d-\d\d \d\d:\d\d by dashboard, until \d\d-\d\d \d\d:\d\d", shown)
    assert re.search(r"Set \d\d-\d\d \d\d:\d\d by ann: a launch", shown)
    assert "duration" in said(client, client.post("/limit", data={**change, "lasts": "soon"}))


def test_a_sentence_about_a_change_is_said_once_and_by_no_link(local: BudgetEngine) -> None:
    client = visiting(local)
    where = client.post("/kill", data={"csrf": csrf_of(client), "sure": "yes"}).headers["location"]
    assert "Stopped." in text_of(client.get(where).text)
    for again in (where, "/?said=Calls+are+let+in+again."):
        assert "role=status" not in client.get(again).text


def test_a_user_without_a_tenant_is_the_defaults_and_one_without_a_name_can_be_seen(engine: BudgetEngine) -> None:
    for user in ("u1", None):
        engine.settle(engine.reserve(call(tenant=None, user=user)), cost="0.125" if user else "0.25")
    engine.flush()
    client = visiting(engine)
    whole = client.get("/").text
    assert "<a href='/?tenant=default'>default</a>" in whole
    for user, spent in (("user=u1", "$0.1250"), ("user=&amp;anonymous=yes", "$0.25")):
        link = f"/?tenant=default&amp;{user}"
        assert f"<a href='{link}'>" in whole
        shown = text_of(client.get(link.replace("&amp;", "&")).text)
        assert f"user-day user · day · limit $2.00 · resets {tomorrow()} spent {spent}" in shown
    alone = text_of(client.get("/?user=u1").text)
    assert alone.startswith("default · u1 ")
    csrf = csrf_of(client)
    change = {"csrf": csrf, "tenant": "default", "anonymous": "yes", "budget": "user-day", "limit": "5"}
    assert "anonymous=yes" in client.post("/limit", data=change).headers["location"]


def test_what_could_not_be_read_is_unread_and_never_nothing(tmp_path: Path) -> None:
    with BudgetEngine.open("redis://127.0.0.1:1/0", POLICY, ledger=f"sqlite:///{tmp_path}") as away:
        seen = text_of(visiting(away).get("/?tenant=acme&user=u1").text)
    assert seen.count("unread") > 10
    assert "$0.00" not in seen
    assert "Off." not in seen


def test_days_without_spend_have_their_place_between_the_others(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    where = (f"sqlite:///{tmp_path / 'b.db'}", POLICY)
    with BudgetEngine.open(*where, ledger=f"sqlite:///{tmp_path / 'l.db'}", clock=lambda: now) as engine:
        engine.charge(call(), cost="0.1")
        now += timedelta(days=20)
        engine.charge(call(), cost="0.1")
        now += timedelta(seconds=1)
        engine.flush()
        shown = visiting(engine).get("/").text
    (days,) = re.findall(r"<svg class=days.*?</svg>", shown)
    heights = re.findall(r"rect class=spent .*? height=([0-9.]+) ", days)
    assert heights == ["100.0", *["0.0"] * 19, "100.0"]
    ahead = {float(height) for height in re.findall(r"rect class=ahead .*? height=([0-9.]+) ", days)}
    assert days.count("class=ahead") == 21  # until the month ends, each at the pace of the days that were
    assert all(5 < height < 15 for height in ahead)
    assert "acme u1 · 1 call · $0.10" in text_of(shown)


def test_without_a_ledger_it_says_so(tmp_path: Path) -> None:
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'b.db'}", POLICY) as engine:
        seen = text_of(visiting(engine).get("/").text)
    assert ("There is no ledger" in seen, "of one process" in seen) == (True, False)
    with BudgetEngine.open("memory://", POLICY) as alone:
        assert "of one process" in text_of(visiting(alone).get("/").text)


def test_texts_from_outside_are_texts(local: BudgetEngine) -> None:
    local.charge(call(tenant=HOSTILE, user=HOSTILE, feature=HOSTILE, step=HOSTILE, model=HOSTILE), cost="0.1")
    local.kill(HOSTILE, reason=HOSTILE, by=HOSTILE)
    local.flush()
    answer = visiting(local).get("/", params={"tenant": HOSTILE, "user": HOSTILE, "said": HOSTILE})
    assert "alert(1)" in text_of(answer.text)
    assert re.findall(r"<script[^>]*>", answer.text) == ["<script src=/live.js defer>"]
    assert re.findall(r"(?:src|href|action)=(?:'?https?:|'?//)", answer.text) == []


def test_every_answer_has_its_headers(local: BudgetEngine) -> None:
    client = visiting(local)
    answers = [client.get(path) for path in ("/", "/style.css", "/live.js", "/nowhere", "/kill")]
    broken: Any = None
    answers.append(TestClient(dashboard_app(broken), base_url=HERE, raise_server_exceptions=False).get("/"))
    assert [answer.status_code for answer in answers] == [200, 200, 200, 404, 405, 500]
    for headers in (answer.headers for answer in answers):
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ({}, {}),
        ({"csrf": "made-up"}, {}),
        ({"csrf": None}, {"origin": "http://evil.example"}),
        ({"csrf": None}, {"origin": "null"}),
        ({"csrf": None}, {"origin": "http://["}),
        ({"csrf": None}, {"sec-fetch-site": "cross-site"}),
        ({"csrf": None}, {"sec-fetch-site": "same-site", "origin": HERE}),
        ({"csrf": None, "reason": "x" * 20_000}, {}),
    ],
)
def test_another_site_changes_nothing(local: BudgetEngine, form: dict[str, Any], headers: dict[str, str]) -> None:
    client = visiting(local)
    sent = {name: csrf_of(client) if value is None else value for name, value in form.items()}
    assert client.post("/kill", data={"sure": "yes", **sent}, headers=headers).status_code == 403
    assert local.kills() == []


def test_without_a_token_only_the_names_of_loopback_are_answered(local: BudgetEngine) -> None:
    for base in ("http://localhost:8383", "http://[::1]:8383", "http://127.0.0.2:8383", HERE):
        assert visiting(local, base=base).get("/").status_code == 200
    for base in ("http://evil.example:8383", "http://127.0.0.1.evil.example"):
        assert visiting(local, base=base).get("/").status_code == 403


def test_a_token_is_asked_for_and_remembered(local: BudgetEngine) -> None:
    client = visiting(local, TOKEN, "http://budgets.example")
    assert client.get("/").headers["location"] == "/sign-in"
    assert client.post("/kill", data={"sure": "yes"}).status_code == 401
    assert client.get("/live.js").status_code == 303
    assert "Token" in text_of(client.get("/sign-in").text)
    assert client.post("/sign-in", data={"token": "wrong"}).status_code == 403
    entered = client.post("/sign-in", data={"token": TOKEN})
    cookie = entered.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=strict" in cookie, TOKEN in cookie) == (True, True, False)
    assert client.get("/").status_code == 200
    stranger = visiting(local, TOKEN, "http://budgets.example")
    assert stranger.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert stranger.get("/", headers={"authorization": "Bearer wrong"}).status_code == 303
    assert local.kills() == []


def test_behind_a_proxy_that_speaks_tls_the_browser_is_asked(local: BudgetEngine) -> None:
    client = visiting(local, TOKEN, "http://127.0.0.1:8383")
    headers = {"origin": "https://budgets.example", "sec-fetch-site": "same-origin"}
    entered = client.post("/sign-in", data={"token": TOKEN}, headers=headers)
    assert (entered.status_code, "; secure" in entered.headers["set-cookie"].lower()) == (303, True)


def test_a_short_token_is_no_token(local: BudgetEngine) -> None:
    with pytest.raises(ConfigurationError, match="16"):
        dashboard_app(local, "short")


def serve(folder: Path, *args: str, **environment: str) -> subprocess.Popen[str]:
    policy, store = folder / "budgets.toml", f"sqlite:///{folder / 'b.db'}"
    policy.write_text('[[budgets]]\nname = "all"\nscope = "global"\nlimit = "$50"\nwindow = "day"\n')
    with BudgetEngine.open(store, policy) as engine:
        engine.status()
    command = [sys.executable, "-c", "from llm_budget_hooks.cli import app; app()", "serve", "--json", *args]
    run = [*command, "--store", store, "--policy", str(policy)]
    return subprocess.Popen(
        run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize(("host", "end"), [("127.0.0.1", signal.SIGINT), ("127.0.0.2", signal.SIGTERM)])
def test_the_command_serves_the_page_on_loopback_until_it_is_ended(
    tmp_path: Path, host: str, end: signal.Signals
) -> None:
    port = free_port()
    running = serve(tmp_path, "--port", str(port), "--host", host)
    try:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        assert told == {"url": f"http://{host}:{port}/", "token": False}
        with urllib.request.urlopen(told["url"], timeout=30) as answer:  # noqa: S310 - the command's own
            assert "all" in text_of(answer.read().decode())
            assert "server" not in answer.headers
        running.send_signal(end)
        running.communicate(timeout=60)
        assert running.returncode == 0
        assert {path.name for path in tmp_path.iterdir()} == {"budgets.toml", "b.db"}  # closed, and not left open
    finally:
        running.kill()
        running.communicate()


def test_a_place_that_is_taken_is_told_before_anything_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        running = serve(tmp_path, "--port", str(taken.getsockname()[1]))
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, "choose another --port" in err) == (2, "", True), err


def test_elsewhere_than_on_loopback_it_does_not_start_without_a_token(tmp_path: Path) -> None:
    running = serve(tmp_path, "--host", "0.0.0.0", LLM_BUDGET_TOKEN="")  # noqa: S104 - what it must refuse
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, "LLM_BUDGET_TOKEN" in err) == (2, "", True)
