"""The webhook, against a real HTTP server."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.alerts import Webhook, signature, webhook
from llm_budget_hooks.errors import ConfigurationError

SECRET = "not a real secret"  # noqa: S105 - it is not


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses it was given, then with 204."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses: list[int] = []
        self.delay_s = 0.0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/alerts?team=a"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), body))
        time.sleep(self.server.delay_s)
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", self.server.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_BUDGET_WEBHOOK_SECRET", SECRET)
    monkeypatch.setattr(webhook, "_FIRST_PAUSE_S", 0.01)


@pytest.fixture
def sender(receiver: Receiver) -> Iterator[Webhook]:
    made = Webhook(receiver.url, allow_private=True, attempts=3)
    yield made
    made.close()


def test_a_message_arrives_signed(sender: Webhook, receiver: Receiver) -> None:
    sender({"event": "alert", "share": 0.8, "user": "ž"})
    assert sender.flush()
    ((path, headers, body),) = receiver.requests
    assert (path, json.loads(body)) == ("/alerts?team=a", {"event": "alert", "share": 0.8, "user": "ž"})
    sent_s = int(headers["X-LLM-Budget-Signature"].split(",")[0].removeprefix("t="))
    assert headers["X-LLM-Budget-Signature"] == signature(SECRET, sent_s, body)
    assert headers["X-LLM-Budget-Signature"] != signature("another", sent_s, body)
    assert abs(sent_s - time.time()) < 60
    assert headers["Content-Type"] == "application/json"


def test_a_signature_is_hmac_sha256_of_time_and_body() -> None:
    made = signature("k", 1, b"{}")
    assert made == "t=1,v1=3dd49b2593d0f9a349e9e71c4bde3e2b862c2be4003fe9b4ba81332029310158"
    assert made != signature("k", 2, b"{}")
    assert made != signature("k", 1, b"[]")


@pytest.mark.parametrize(
    ("statuses", "sent", "dropped"), [((500, 503), 3, 0), ((429,), 2, 0), ((408,), 2, 0), ((500,) * 9, 3, 1)]
)
def test_trouble_that_may_pass_is_tried_again_under_the_same_id(
    sender: Webhook, receiver: Receiver, statuses: tuple[int, ...], sent: int, dropped: int
) -> None:
    receiver.statuses = list(statuses)
    sender({"event": "alert"})
    assert sender.flush()
    assert len(receiver.requests) == sent
    assert len({headers["X-LLM-Budget-Delivery"] for _, headers, _ in receiver.requests}) == 1
    assert sender.dropped == dropped


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 404, 410])
def test_a_redirect_is_not_followed_and_a_refusal_is_not_repeated(
    sender: Webhook, receiver: Receiver, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [status]
    sender({"event": "alert", "user": "someone"})
    assert sender.flush()
    assert (len(receiver.requests), sender.dropped) == (1, 1)
    assert str(status) in caplog.text
    assert "someone" not in caplog.text
    assert SECRET not in caplog.text


def test_messages_come_in_order_and_one_that_fails_does_not_stop_the_rest(sender: Webhook, receiver: Receiver) -> None:
    receiver.statuses = [204, 400]
    for number in range(4):
        sender({"number": number})
    assert sender.flush()
    assert [json.loads(body)["number"] for *_, body in receiver.requests] == [0, 1, 2, 3]
    assert sender.dropped == 1


def test_a_call_never_waits_for_the_receiver(sender: Webhook, receiver: Receiver) -> None:
    receiver.delay_s = 1.0
    began = time.monotonic()
    for _ in range(20):
        sender({"event": "alert"})
    assert time.monotonic() - began < 0.5
    receiver.delay_s = 0.0
    assert sender.flush(20)


def test_too_many_messages_are_dropped_and_counted(receiver: Receiver) -> None:
    receiver.delay_s = 0.3
    sender = Webhook(receiver.url, allow_private=True, most=3)
    for _ in range(10):
        sender({"event": "alert"})
    assert sender.dropped == 7
    assert sender.close(10)


def test_what_is_no_json_never_reaches_the_caller(sender: Webhook, receiver: Receiver) -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    sender(circle)
    sender({"when": object})
    assert sender.flush()
    assert (len(receiver.requests), sender.dropped) == (1, 1)


def test_nobody_there_is_given_up_after_the_attempts(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    sender = Webhook(f"http://127.0.0.1:{port}/", allow_private=True, attempts=3, timeout_s=0.5)
    sender({"event": "alert"})
    assert sender.close(10)
    assert sender.dropped == 1
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "10.1.2.3", "169.254.169.254", "[::1]", "0.0.0.0"])  # noqa: S104 - what is refused
def test_private_addresses_are_not_connected_to(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda *args, **_: made.append(args))
    sender = Webhook(f"https://{host}/")
    sender({"event": "alert"})
    assert sender.close()
    assert (made, sender.dropped) == ([], 1)


def test_a_name_that_leads_inside_is_found_out_when_it_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["93.184.215.14", "10.0.0.1"], ["10.0.0.1"], ["93.184.215.14"]]
    made: list[Any] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers[0]]

    def connect(address: Any, timeout: float) -> Any:
        made.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    sender = Webhook("https://example.com/", attempts=1)
    while answers:
        sender({"event": "alert"})
        assert sender.flush()
        answers.pop(0)
    assert made == [("93.184.215.14", 443)]
    sender.close()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("172.16.0.1", False),
        ("100.64.0.1", False), ("169.254.1.1", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::", False),
        ("fe80::1%eth0", False), ("fd00::1", False), ("::ffff:10.0.0.1", False), ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False), ("::ffff:93.184.215.14", True), ("ff0e::1", False), ("240.0.0.1", False),
    ],
)  # fmt: skip
def test_what_is_a_public_address(address: str, public: bool) -> None:
    assert webhook.is_public(address) is public


@pytest.mark.parametrize(
    "url",
    ["", "http://example.com", "ftp://example.com", "https://", "https://u:p@example.com", "https://a b", None, 3],
)
def test_a_url_that_is_no_webhook_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError):
        Webhook(url)


def test_without_a_secret_there_is_no_webhook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLM_BUDGET_WEBHOOK_SECRET")
    with pytest.raises(ConfigurationError, match="LLM_BUDGET_WEBHOOK_SECRET"):
        Webhook("https://example.com")


def test_the_secret_is_not_shown() -> None:
    assert SECRET not in repr(Webhook("https://example.com"))


def test_a_forked_child_sends_only_its_own(sender: Webhook, receiver: Receiver) -> None:
    receiver.delay_s = 0.3
    sender({"from": "parent"})
    child = os.fork()
    if not child:
        sender({"from": "child"})
        os._exit(0 if sender.flush(10) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sender.flush(10)
    assert sorted(json.loads(body)["from"] for *_, body in receiver.requests) == ["child", "parent"]


def hooked(receiver: Receiver, **more: Any) -> dict[str, Any]:
    budget = {"name": "user-day", "scope": "user", "limit": "$1", "window": "day"}
    return {"budgets": [budget], "webhook": {"url": receiver.url, "allow_private": True, **more}}


def test_an_engine_posts_its_alerts_where_the_policy_says(receiver: Receiver) -> None:
    called: list[Any] = []
    receiver.delay_s = 0.5
    with BudgetEngine.open("memory://", hooked(receiver), on_alert=called.append) as engine:
        began = time.monotonic()
        for _ in range(2):
            engine.charge(Call(model="any", tenant="acme", user="u1"), cost="0.45")
        assert time.monotonic() - began < 0.5
    ((_, headers, body),) = receiver.requests
    posted = json.loads(body)
    assert posted == called[0]
    assert posted["text"] == "Budget user-day has reached 80 % of its limit ($0.90 of $1.00)."
    assert (posted["kind"], posted["budget"], posted["threshold"], posted["spent"]) == (
        "alert", "user-day", 0.8, 900_000_000,
    )  # fmt: skip
    sent_s = int(headers["X-LLM-Budget-Signature"].split(",")[0].removeprefix("t="))
    assert headers["X-LLM-Budget-Signature"] == signature(SECRET, sent_s, body)


def test_a_webhook_in_the_policy_that_cannot_work_is_a_mistake(receiver: Receiver) -> None:
    for more in ({"allow_private": False}, {"url": "ftp://example.com"}, {"secret_variable": "UNSET_HERE"}, {"key": 1}):
        with pytest.raises(ConfigurationError):
            BudgetEngine.open("memory://", hooked(receiver, **more))
