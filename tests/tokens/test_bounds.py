"""A bound is a bound: in ten scripts, never below what any tokenizer counts that is there without a network."""

# ruff: noqa: RUF001 - letters of other scripts that look like Latin ones are what a corpus of scripts has
from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
import unicodedata
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_budget_hooks import tokens
from llm_budget_hooks.tokens import encodings
from llm_budget_hooks.tokens.texts import EXACT_BYTES, byte_bound
from llm_budget_hooks.tokens.wave import seconds_of

FOLDER = Path(str(distribution("litellm").locate_file("litellm/litellm_core_utils/tokenizers")))
NAMES = ("o200k_base", "cl100k_base", "p50k_base", "anthropic", "deepseek")
SCRIPTS = {
    "Latin": "Der Preis für elf Anfragen beträgt 0,37 €; naïve façades cost más, příliš žluťoučký kůň.",
    "Cyrillic": "Стоимость одного ответа не должна превышать пяти центов, иначе он не выдаётся.",
    "Greek": "Το κόστος κάθε απάντησης δεν πρέπει να ξεπερνά τα πέντε λεπτά του δολαρίου.",
    "Arabic": "يجب ألا تتجاوز تكلفة كل إجابة خمسة سنتات ﷺ ﷽ وإلا فلن تُقدَّم.",
    "Hebrew": "עלות כל תשובה לא תעלה על חמישה סנטים, אחרת היא לא תינתן.",
    "Devanagari": "प्रत्येक उत्तर की लागत पाँच सेंट से अधिक नहीं होनी चाहिए। क़ख़ग़",
    "Thai": "ค่าใช้จ่ายของแต่ละคำตอบต้องไม่เกินห้าเซนต์ น้ำ",
    "Han": "每个答案的成本不得超过五美分，否则不予提供。繁體中文也一樣。",
    "Japanese": "一回答あたりの費用は５セントを超えてはならない。ｶﾀｶﾅ㍻㌀㎏",
    "Korean": "각 답변의 비용은 5센트를 초과할 수 없습니다. ㈜㉠ 뷁",
    "Tamil": "ஒவ்வொரு பதிலின் விலையும் ஐந்து சென்ட்டுக்கு மேல் இருக்கக்கூடாது.",
    "Amharic": "የእያንዳንዱ መልስ ዋጋ ከአምስት ሳንቲም መብለጥ የለበትም።",
    "signs": "👩‍👩‍👧‍👦🏳️‍🌈 ½ ⅷ … ™ ﬃ 𝔘𝔫𝔦 \x00\x7f <|endoftext|> <|im_start|> {}[]();\n\n\t\t  ====",
    "code": "def f(x):\n    return {k: v ** 2 for k, v in x.items() if k != '__init__'}  # noqa\n",
}


def count_of(name: str, text: str) -> int:
    """How many tokens a tokenizer makes of a text, without any that it adds."""
    tokenizer = tokenizer_of(name)
    if name in ("anthropic", "deepseek"):
        return len(tokenizer.encode(text, add_special_tokens=False).ids)
    return len(tokenizer.encode_ordinary(text))


@cache
def tokenizer_of(name: str) -> Any:
    if name in ("anthropic", "deepseek"):
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(FOLDER / f"{name}_tokenizer.json"))
    found = encodings._load(name)
    assert found is not None, f"litellm no longer brings {name}"
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_the_bytes_of_a_text_are_no_fewer_than_its_tokens(script: str, name: str, form: str) -> None:
    text = unicodedata.normalize(form, SCRIPTS[script])
    for piece in (text, text * 9, text[::-1], text[:7], text.upper(), text.replace(" ", "")):
        assert byte_bound(piece) >= count_of(name, piece)


@pytest.mark.parametrize("name", NAMES)
@given(st.text(max_size=40))
def test_no_text_has_more_tokens_than_its_bound(name: str, text: str) -> None:
    assert byte_bound(text) >= count_of(name, text)


def test_no_character_grows_past_its_bound() -> None:
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            character = chr(code)
            grown = max(len(unicodedata.normalize(form, character).encode()) for form in ("NFC", "NFKC"))
            assert byte_bound(character) >= grown, hex(code)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_no_text_grows_past_its_bound(text: str) -> None:
    assert byte_bound(text) >= max(len(unicodedata.normalize("NFKC", text).encode()), len(text.encode()))


def test_lone_surrogates_are_counted() -> None:
    assert byte_bound("\ud800x") == 4
    assert tokens.input_bound("gpt-4o", ["\ud800x", {"content": [{"type": "text", "text": "\udfff"}]}]) is not None


def look_up(name: str, words: str) -> dict[str, Any]:
    """A tool as it is declared."""
    properties = {f"field_{i}": {"type": kind, "description": words} for i, kind in enumerate(("string", "integer"))}
    parameters = {"type": "object", "properties": properties, "required": ["field_0"]}
    return {"type": "function", "function": {"name": name, "description": words, "parameters": parameters}}


WORDS = st.one_of(st.text(max_size=60), st.sampled_from(list(SCRIPTS.values())))
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), WORDS),
        WORDS.map(lambda text: {"role": "user", "content": [{"type": "text", "text": text}] * 3, "name": "ada"}),
        WORDS.map(
            lambda text: {
                "role": "assistant", "content": None,
                "tool_calls": [{"id": "c1", "type": "function",
                                "function": {"name": "f", "arguments": json.dumps({"x": text})}}],
            }
        ),
        WORDS.map(lambda text: {"role": "tool", "tool_call_id": "c1", "content": text}),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@pytest.mark.parametrize("exact", [True, False])
@settings(deadline=None, max_examples=80)  # the first one loads the tokenizer
@given(messages=MESSAGES, described=st.lists(WORDS, max_size=3))
def test_no_request_has_more_tokens_than_its_bound(exact: bool, messages: list[Any], described: list[str]) -> None:
    from litellm import token_counter

    tokens.warm()
    tools = [look_up(f"tool_{i}", words) for i, words in enumerate(described)]
    bound = tokens.input_bound("gpt-4o-mini", messages, {"tools": tools}, exact=exact)
    assert bound is not None
    assert bound >= token_counter(model="gpt-4o-mini", messages=messages, tools=tools or None)


def test_a_short_prompt_is_counted_and_a_long_one_measured() -> None:
    assert tokens.warm()
    words = "budget " * 1000
    counted = tokens.input_bound("openai/gpt-4o", [words])
    assert counted is not None
    assert len(tokenizer_of("o200k_base").encode_ordinary(words)) <= counted < 1200
    assert tokens.input_bound("ft:gpt-4o-mini-2024-07-18:org::id", [words]) == counted
    assert tokens.input_bound("claude-sonnet-4-5", [words]) == tokens.input_bound("gpt-4o", [words], exact=False)
    long = "budget " * EXACT_BYTES
    assert (tokens.input_bound("gpt-4o", [long]) or 0) >= len(long)


def test_tokens_count_one_each() -> None:
    bounds = [tokens.input_bound("text-embedding-3-small", [list(range(n))], exact=False) for n in (0, 1000)]
    assert bounds[0] is not None
    assert bounds[1] == bounds[0] + 1000


PICTURES: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 10**6},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 10**6}},
    {"image": {"format": "png", "source": {"bytes": b"A" * 10**6}}},
    {"inlineData": {"mimeType": "image/png", "data": "A" * 10**6}},
]


@pytest.mark.parametrize("part", PICTURES, ids=lambda part: next(iter(part)) + str(part.get("type")))
@pytest.mark.parametrize(
    ("model", "least"), [("gpt-4o", 1445), ("gpt-4o-mini", 48_169), ("claude-opus-4-7", 4784), ("qwen3-vl", 16_384)]
)
def test_an_image_counts_as_the_largest_of_its_model(part: dict[str, Any], model: str, least: int) -> None:
    bound = tokens.input_bound(model, [{"role": "user", "content": [part]}])
    assert bound is not None
    assert least <= bound < 60_000
    nested = {"role": "tool", "content": [{"type": "tool_result", "content": [part, {"type": "text", "text": "x"}]}]}
    assert bound < (tokens.input_bound(model, [nested]) or 0) < 60_000


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_id": "f"}}, {"type": "document", "source": {}}, {"type": "video_url"},
        {"document": {"source": {}}}, {"inlineData": {"mimeType": "application/pdf", "data": ""}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"fileData": {"fileUri": "gs://x"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_measured_has_no_bound(part: dict[str, Any]) -> None:
    assert tokens.input_bound("gpt-4o", [{"content": [part]}]) is None


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "cachedContent"])
def test_what_continues_a_stored_conversation_has_no_bound(name: str) -> None:
    assert tokens.input_bound("gpt-5", ["hi"], {name: "resp_1"}) is None
    assert tokens.input_bound("gpt-5", ["hi"], {name: None}) is not None


def test_a_prompt_that_is_too_deep_has_no_bound() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert tokens.input_bound("gpt-4o", [deep]) is None


def wave(seconds: int, hertz: int = 8000) -> bytes:
    """Silence, uncompressed, one byte a sample."""
    size = seconds * hertz
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, hertz, hertz, 1, 8)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVE" + form + b"data" + struct.pack("<I", size) + bytes(size)


def test_sound_is_counted_where_that_is_asked_for() -> None:
    data = base64.b64encode(wave(60)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    bound = tokens.input_bound("gpt-4o-audio-preview", [{"content": [part]}], audio=True)
    assert bound is not None
    assert 60 * 32 <= bound < 63 * 32 + 100
    elsewhere = {"type": "input_audio", "input_audio": {"url": "https://example.org/a.wav"}}
    assert tokens.input_bound("gpt-4o-audio-preview", [{"content": [elsewhere]}], audio=True) is None


@given(st.integers(1, 30), st.sampled_from([8000, 16_000, 44_100]), st.booleans())
def test_a_sound_lasts_no_longer_than_its_bound(seconds: int, hertz: int, written: bool) -> None:
    content = wave(seconds, hertz)
    given = base64.b64encode(content).decode() if written else content
    assert seconds <= seconds_of(given) <= seconds + 1
    assert seconds_of(content[60:]) >= seconds


def test_nothing_of_it_needs_litellm_or_the_network() -> None:
    code = """
import socket, sys
socket.socket.connect = None
from llm_budget_hooks import tokens
assert tokens.input_bound("gpt-4o", ["hi"]) and "tiktoken" not in sys.modules
assert tokens.warm() and tokens.warm("cl100k_base")
assert tokens.input_bound("gpt-4o", ["word " * 100]) < 200 > tokens.input_bound("gpt-4", ["word " * 100])
assert tokens.counted("word " * 100, "gpt-4o") <= 101
print(*(n for n in ("litellm", "langchain_core", "requests") if n in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_a_tokenizer_that_is_not_there_is_done_without() -> None:
    assert not tokens.warm("no_such_encoding")
    assert tokens.counted("one two three", "no-such-model") >= 3


@pytest.mark.parametrize("text", ["", "a question of some words", SCRIPTS["Thai"]])
def test_a_message_of_one_text_is_bounded_as_one_with_more_fields(text: str) -> None:
    """A field of None is not sent, and its message is read the long way."""
    short = {"role": "user", "content": text}
    assert tokens.input_bound("x", [short]) == tokens.input_bound("x", [{**short, "name": None}])


class Unreadable:
    """An object of somebody else's that cannot say what it is."""

    def model_dump(self) -> Any:
        raise RuntimeError("a secret")


def around() -> dict[str, Any]:
    message: dict[str, Any] = {"role": "user"}
    message["content"] = [{"type": "text", "text": "a"}, {"inside": message}]
    message["more"] = message
    return message


@pytest.mark.parametrize("message", [Unreadable(), {"role": "user", "parts": [{(1, 2): 3}]}, around()])
def test_what_cannot_be_read_has_no_bound_and_raises_nothing(message: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert tokens.input_bound("gpt-4o", [message]) is None
    assert tokens.input_bound("gpt-4o", ["a"], {"tools": [message]}) is None
    assert "a secret" not in caplog.text
