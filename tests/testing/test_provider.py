"""The fake provider, driven by the real OpenAI client over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from llm_budget_hooks.testing import FakeProvider, Reply, ToolCall

HELLO: list[Any] = [{"role": "user", "content": "twelve chars"}]
CHAT = "/v1/chat/completions"


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(output_tokens=40) as provider:
        yield provider


@pytest.fixture
def client(provider: FakeProvider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.base_url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


def ask(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="gpt-4o-mini", messages=HELLO, **more)


def test_chat_answer_carries_the_tokens_that_were_set(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.input_tokens, provider.cached_tokens, provider.reasoning_tokens = 100, 60, 8
    usage = ask(client).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 40, 140)
    assert usage.prompt_tokens_details.cached_tokens == 60
    assert usage.completion_tokens_details.reasoning_tokens == 8


def test_made_up_text_has_one_word_per_token_that_is_not_reasoning(
    provider: FakeProvider, client: openai.OpenAI
) -> None:
    provider.reasoning_tokens = 8
    assert len(ask(client).choices[0].message.content.split()) == 32


def test_prompt_is_counted_as_a_quarter_of_its_characters(client: openai.OpenAI) -> None:
    assert ask(client).usage.prompt_tokens == 3


def test_text_parts_of_a_message_are_counted_and_images_are_not(client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
    content = [{"type": "text", "text": "x" * 40}, image]
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])  # type: ignore[list-item, misc]  # a plain dict is what is sent
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 10


@pytest.mark.parametrize("bound", ["max_tokens", "max_completion_tokens"])
def test_output_never_passes_the_bound_of_the_request(client: openai.OpenAI, bound: str) -> None:
    answer = ask(client, **{bound: 6})
    assert answer.usage.completion_tokens == 6
    assert answer.choices[0].finish_reason == "length"


def test_output_below_the_bound_stops_by_itself(client: openai.OpenAI) -> None:
    answer = ask(client, max_tokens=41)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (40, "stop")


def test_output_tokens_can_follow_from_the_request(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.output_tokens = lambda request: request["seed"]
    assert ask(client, seed=17).usage.completion_tokens == 17


def test_every_choice_is_billed(provider: FakeProvider, client: openai.OpenAI) -> None:
    answer = ask(client, n=3)
    assert len(answer.choices) == 3
    assert answer.usage.completion_tokens == provider.billed_output_tokens == 120


def test_stream_has_usage_only_where_it_is_asked_for(provider: FakeProvider, client: openai.OpenAI) -> None:
    silent = list(ask(client, stream=True))
    spoken = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.usage is None for chunk in silent)
    assert [chunk.usage.completion_tokens for chunk in spoken if chunk.usage] == [40]
    assert spoken[-1].choices == []
    assert provider.billed_output_tokens == 80


def test_stream_says_the_same_words_as_the_whole_answer(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.text = "one two three four five six seven"
    words = [chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True)]
    assert "".join(words) == ask(client).choices[0].message.content == provider.text
    assert len(words) == provider.chunks + 1


def test_usage_can_be_withheld_everywhere(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.usage = False
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert ask(client).usage is None
    assert [chunk.usage for chunk in chunks if chunk.usage] == []
    assert provider.billed_output_tokens == 80


def test_another_model_can_say_that_it_served(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.model = "gpt-4o-mini-2024-07-18"
    assert ask(client).model == "gpt-4o-mini-2024-07-18"
    assert provider.requests[0].model == "gpt-4o-mini"


def test_text_completion_answers_each_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="m", prompt=["a", "b"], max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["ok ok ok ok ok"] * 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10


def test_text_completion_streams(client: openai.OpenAI) -> None:
    chunks = client.completions.create(model="m", prompt="a", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "ok ok ok ok ok"


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_return_one_vector_per_input(provider: FakeProvider, client: openai.OpenAI, encoding: Any) -> None:
    answer = client.embeddings.create(model="e", input=["abcd", "efgh"], dimensions=3, encoding_format=encoding)
    assert len(answer.data) == 2
    assert (answer.usage.prompt_tokens, provider.billed_output_tokens) == (2, 0)


def test_embeddings_are_what_the_client_decodes_by_default(client: openai.OpenAI) -> None:
    assert client.embeddings.create(model="e", input="abcd", dimensions=3).data[0].embedding == [0.5] * 3


def test_responses_answer_in_their_own_shape(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.cached_tokens, provider.reasoning_tokens = 2, 4
    answer = client.responses.create(model="m", input="twelve chars", max_output_tokens=6)
    assert (answer.output_text, answer.status) == ("ok ok", "incomplete")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3, 6)
    assert answer.usage.input_tokens_details.cached_tokens == 2
    assert answer.usage.output_tokens_details.reasoning_tokens == 4


def test_responses_stream_is_accumulated_by_the_client(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="twelve chars") as stream:
        words = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert words == final.output_text == " ".join(["ok"] * 40)
    assert final.usage is not None
    assert final.usage.output_tokens == 40


def test_responses_stream_carries_tool_calls(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.reply = Reply(tool_calls=(ToolCall("search", {"q": "x"}),))
    with client.responses.stream(model="m", input="hi") as stream:
        call = stream.get_final_response().output[0]
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("search", '{"q": "x"}')


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model"]


def test_reply_function_scripts_tool_calls(provider: FakeProvider, client: openai.OpenAI) -> None:
    def reply(request: dict[str, Any]) -> Reply | None:
        if request["messages"][-1]["role"] == "tool":
            return Reply(text="done", output_tokens=2)
        return Reply(tool_calls=(ToolCall("add", {"a": 1}), ToolCall("raw", "{broken")), output_tokens=9)

    provider.reply = reply
    first = ask(client).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in first.message.tool_calls]
    assert calls == [("add", '{"a": 1}'), ("raw", "{broken")]
    assert first.finish_reason == "tool_calls"
    follow_up: list[Any] = [*HELLO, {"role": "tool", "content": "2", "tool_call_id": first.message.tool_calls[0].id}]
    answer = client.chat.completions.create(model="m", messages=follow_up)
    assert answer.choices[0].message.content == "done"
    assert provider.billed_output_tokens == 11


def test_streamed_tool_calls_are_accumulated_by_the_client(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.reply = Reply(tool_calls=(ToolCall("a", {"n": 1}), ToolCall("b", {"n": 2})))
    with client.chat.completions.stream(model="m", messages=HELLO) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls or []] == [
        ("a", '{"n": 1}'),
        ("b", '{"n": 2}'),
    ]


def test_reply_function_may_leave_a_request_to_the_settings(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.reply = lambda request: None
    assert ask(client).usage.completion_tokens == 40


def test_next_replies_come_once_each_and_in_order(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.next_replies(Reply(text="first"), Reply(text="second"))
    provider.text = "then"
    assert [ask(client).choices[0].message.content for _ in range(3)] == ["first", "second", "then"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
def test_failures_are_counted_and_not_billed(
    provider: FakeProvider, client: openai.OpenAI, status: int, error: type[openai.APIStatusError]
) -> None:
    provider.fail_next(1, status=status, retry_after_s=7)
    with pytest.raises(error) as caught:
        ask(client)
    assert caught.value.response.headers["retry-after"] == "7"
    assert (provider.requests[0].status, provider.billed_output_tokens, provider.billed_input_tokens) == (status, 0, 0)
    assert ask(client).usage.completion_tokens == 40


def test_failure_of_a_stream_is_a_plain_error(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.fail_next(status=400, body={"error": {"message": "too long", "code": "context_length_exceeded"}})
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_retries_of_the_client_are_requests_of_their_own(provider: FakeProvider) -> None:
    provider.fail_next(2, status=500, retry_after_s=0.001)
    with openai.OpenAI(base_url=provider.base_url, api_key="any", max_retries=2) as client:
        ask(client)
    assert [record.status for record in provider.requests] == [500, 500, 200]


def test_reply_lost_before_its_first_byte_is_billed_in_full(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.cut_next()
    with pytest.raises(openai.APIConnectionError):
        ask(client)
    record = provider.requests[0]
    assert (record.status, record.disconnected, record.output_tokens) == (None, False, 40)


def test_body_cut_in_the_middle_is_an_error_for_the_client(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.cut_next(after=1)
    with pytest.raises(openai.APIConnectionError):
        ask(client)
    assert (provider.requests[0].status, provider.billed_output_tokens) == (200, 40)


def test_stream_cut_after_two_chunks_bills_what_was_sent(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.cut_next(after=2)
    received = []
    with pytest.raises(openai.APIConnectionError):  # noqa: PT012 - the stream is opened and read in vain
        for chunk in ask(client, stream=True):
            received.append(chunk)  # noqa: PERF402 - extend would keep nothing of a stream that breaks
    record = provider.requests[0]
    assert (len(received), record.output_tokens, record.input_tokens) == (2, 16, 3)


def test_client_that_leaves_a_stream_is_seen_and_billed_in_part(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.next_replies(Reply(chunk_latency_s=30))
    with ask(client, stream=True) as stream:
        next(stream)
    provider.wait_idle()
    record = provider.requests[0]
    assert (record.disconnected, record.status, record.output_tokens) == (True, 200, 8)


def test_client_that_gives_up_on_a_hang_is_seen_and_not_billed(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.hang_next()
    with pytest.raises(openai.APITimeoutError):
        ask(client, timeout=0.2)
    provider.wait_idle()
    record = provider.requests[0]
    assert (record.disconnected, record.status, record.output_tokens) == (True, None, 0)


def test_client_that_gives_up_on_a_slow_answer_is_billed_in_full(provider: FakeProvider, client: openai.OpenAI) -> None:
    provider.latency_s = 30
    with pytest.raises(openai.APITimeoutError):
        ask(client, timeout=0.2)
    provider.wait_idle()
    record = provider.requests[0]
    assert (record.disconnected, record.status, record.output_tokens) == (True, None, 40)


def ask_in_vain(provider: FakeProvider) -> None:
    client = openai.OpenAI(base_url=provider.base_url, api_key="any", max_retries=0)
    with client, pytest.raises(openai.InternalServerError, match="no such line"):
        ask(client)


async def ask_many(provider: FakeProvider, n: int) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="any", max_retries=0, timeout=60) as client:
        asked = [client.chat.completions.create(model="m", messages=HELLO) for _ in range(n)]
        tasks = [asyncio.ensure_future(one) for one in asked]
        await asyncio.to_thread(provider.wait_for, n, timeout_s=60)
        assert provider.in_flight == n
        provider.answer_hung()
        return await asyncio.gather(*tasks)


def test_hundreds_of_requests_are_in_flight_at_once(provider: FakeProvider) -> None:
    provider.hang_next(300)
    answers = asyncio.run(ask_many(provider, 300))
    assert len({answer.id for answer in answers}) == 300
    assert (provider.in_flight, provider.billed_output_tokens) == (0, 12_000)


def test_connection_is_kept_alive(provider: FakeProvider) -> None:
    with socket.create_connection(("127.0.0.1", provider.port), 10) as raw:
        for _ in range(3):
            raw.sendall(http_post(b'{"model": "m", "messages": []}'))
            assert read_answer(raw)["model"] == "m"
    assert provider.count == 3


def test_pipelined_requests_are_answered_in_order(provider: FakeProvider) -> None:
    with socket.create_connection(("127.0.0.1", provider.port), 10) as raw, raw.makefile("rb") as file:
        raw.sendall(http_post(b'{"model": "a"}') + http_post(b'{"model": "b"}'))
        assert [read_one(file)["model"] for _ in range(2)] == ["a", "b"]


def test_chunked_body_that_arrives_byte_by_byte_is_understood(provider: FakeProvider) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", provider.port), 10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head + b'9\r\n{"model":\r\n5\r\n "x"}\r\n0\r\n\r\n':
            raw.sendall(bytes([byte]))
        assert read_answer(raw)["model"] == "x"


def test_close_is_honoured_when_the_client_asks_for_it(provider: FakeProvider) -> None:
    with socket.create_connection(("127.0.0.1", provider.port), 10) as raw, raw.makefile("rb") as file:
        raw.sendall(http_post(b'{"model": "m"}', "Connection: close\r\n"))
        assert read_one(file)["model"] == "m"
        assert file.read() == b""


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"stream": true, "stream_options": "x"}'],
    ids=["cut", "list", "bytes", "deep", "options"],
)
def test_body_that_cannot_be_read_is_refused(provider: FakeProvider, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", provider.port), 10) as raw:
        raw.sendall(http_post(body))
        assert read_answer(raw)["error"]["type"] == "invalid_request_error"
    assert [(record.path, record.status) for record in provider.requests] == [(CHAT, 400)]


def test_bytes_that_are_no_http_end_the_connection_and_count_as_nothing(provider: FakeProvider) -> None:
    with socket.create_connection(("127.0.0.1", provider.port), 10) as raw, raw.makefile("rb") as file:
        raw.sendall(b"*1\r\n$4\r\nPING\r\n\r\n")
        assert file.readline().startswith(b"HTTP/1.1 400")
        file.read()
    assert provider.count == 0


def test_unknown_path_is_counted_and_not_found(provider: FakeProvider, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="x")
    assert (provider.count, provider.count_for("/v1/moderations"), provider.count_for(CHAT)) == (1, 1, 0)


def test_records_say_what_was_asked_and_when(provider: FakeProvider, client: openai.OpenAI) -> None:
    list(ask(client, stream=True, seed=3))
    record = provider.requests[0]
    assert (record.path, record.model, record.stream, record.json["seed"]) == (CHAT, "gpt-4o-mini", True, 3)
    assert record.ended_s is not None
    assert record.started_s <= record.ended_s


def test_reset_forgets_requests_and_scripted_replies_and_keeps_settings(
    provider: FakeProvider, client: openai.OpenAI
) -> None:
    ask(client)
    provider.output_tokens = 3
    provider.fail_next(5)
    provider.reset()
    assert (provider.count, provider.requests, provider.billed_output_tokens) == (0, [], 0)
    assert ask(client).usage.completion_tokens == 3


def test_error_in_a_reply_function_reaches_the_test() -> None:
    def reply(request: dict[str, Any]) -> Reply:
        raise KeyError("no such line in the script")

    with pytest.raises(ExceptionGroup) as caught, FakeProvider(reply=reply) as provider:
        ask_in_vain(provider)
    assert caught.group_contains(KeyError)


def test_error_in_a_reply_function_does_not_hide_the_failure_of_the_test() -> None:
    provider = FakeProvider()
    provider.errors.append(KeyError("script"))
    with pytest.raises(ValueError, match="the test's own") as caught, provider:
        raise ValueError("the test's own")
    assert "script" in caught.value.__notes__[0]


def test_end_closes_hanging_connections_and_the_thread() -> None:
    before = set(threading.enumerate())
    with FakeProvider() as provider:
        provider.hang_next()
        raw = socket.create_connection(("127.0.0.1", provider.port), 10)
        raw.sendall(http_post(b'{"model": "m"}'))
        provider.wait_for(1)
        port = provider.port
    with raw:
        assert raw.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)
    assert not [thread for thread in threading.enumerate() if thread.name == "fake-provider" and thread not in before]
    assert not provider.requests[0].disconnected


def test_provider_can_be_entered_again(provider: FakeProvider, client: openai.OpenAI) -> None:
    ask(client)
    provider.close()
    with pytest.raises(RuntimeError, match="with"):
        _ = provider.base_url
    with provider, openai.OpenAI(base_url=provider.base_url, api_key="any") as again:
        ask(again)
    assert provider.count == 2


def test_waiting_for_requests_that_do_not_come_says_how_many_did(provider: FakeProvider, client: openai.OpenAI) -> None:
    ask(client)
    with pytest.raises(TimeoutError, match="1 requests, 0 in flight"):
        provider.wait_for(2, timeout_s=0.01)


def test_importing_the_fakes_imports_no_framework_and_no_client() -> None:
    heavy = ["litellm", "langchain_core", "langchain", "redis", "sqlalchemy", "openai", "httpx", "pytest"]
    script = f"import sys, llm_budget_hooks.testing; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def http_post(body: bytes, headers: str = "") -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_answer(raw: socket.socket) -> Any:
    with raw.makefile("rb") as file:
        return read_one(file)


def read_one(file: Any) -> Any:
    size = 0
    while line := file.readline().strip():
        name, _, value = line.lower().partition(b":")
        size = int(value) if name == b"content-length" else size
    return json.loads(file.read(size))
