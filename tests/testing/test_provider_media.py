"""The fake provider's images, sounds, rankings and Anthropic messages, asked for by the clients that know them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from llm_budget_hooks.testing import FakeProvider


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(text="some words") as provider:
        yield provider


@pytest.fixture
def client(provider: FakeProvider) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.base_url, api_key="test", max_retries=0) as client:
        yield client


def test_images_are_as_many_as_asked_for(client: openai.OpenAI, provider: FakeProvider) -> None:
    answer = client.images.generate(model="dall-e-3", prompt="a cat", n=3)
    assert [bool(image.url) for image in answer.data or ()] == [True] * 3
    assert answer.usage is None


def test_images_by_token_say_how_many(client: openai.OpenAI, provider: FakeProvider) -> None:
    provider.output_tokens = 4160
    usage = client.images.edit(model="gpt-image-1", prompt="a cat", image=b"\x89PNG").usage
    assert usage is not None
    assert (usage.output_tokens, usage.total_tokens) == (4160, 4160 + usage.input_tokens)
    assert provider.requests[0].json["prompt"] == "a cat"
    assert provider.requests[0].json["image"] == 4


def test_speech_is_sound(client: openai.OpenAI, provider: FakeProvider) -> None:
    answer = client.audio.speech.create(model="tts-1", voice="alloy", input="hello")
    assert answer.content.startswith(b"ID3")
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert provider.billed_output_tokens == 0


def test_a_transcription_has_its_length_where_it_is_asked_for(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "whisper-1", "file": ("a.wav", b"RIFF")}
    assert client.audio.transcriptions.create(**asked).text == "some words"
    assert client.audio.transcriptions.create(**asked, response_format="verbose_json").duration == 4.5


def test_a_ranking_bills_a_unit_for_each_hundred_documents(provider: FakeProvider) -> None:
    for version in ("v1", "v2"):
        url = provider.base_url.replace("v1", version) + "/rerank"
        answer = httpx.post(url, json={"model": "r", "query": "q", "documents": ["d"] * 101}).json()
        assert answer["meta"]["billed_units"]["search_units"] == 2
        assert len(answer["results"]) == 101


def test_messages_count_cached_tokens_beside_the_prompt(provider: FakeProvider) -> None:
    provider.input_tokens, provider.cached_tokens, provider.output_tokens = 100, 80, 7
    asked = {"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{provider.base_url}/messages", json=asked).json()
    assert answer["content"][0]["text"] == "some words"
    assert answer["usage"]["input_tokens"] == 20
    assert (answer["usage"]["cache_read_input_tokens"], answer["usage"]["output_tokens"]) == (80, 7)


def test_messages_stream_their_usage_in_two_events(provider: FakeProvider) -> None:
    provider.input_tokens = 100
    asked = {"model": "claude", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    text = httpx.post(f"{provider.base_url}/messages", json=asked).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert events[0]["message"]["usage"] == {
        "input_tokens": 100, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 1,
    }  # fmt: skip
    assert events[-2]["usage"] == {"output_tokens": 40}
    assert "".join(event["delta"].get("text", "") for event in events if "delta" in event) == "some words"
