from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import PriceBook, source

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
BOOK = PriceBook()


@pytest.mark.parametrize(
    ("model", "provider", "listed_as"),
    [
        ("gpt-4o", None, "gpt-4o"),
        ("openai/gpt-4o", None, "gpt-4o"),
        ("gpt-4o", "openai", "gpt-4o"),
        ("openai/responses/gpt-5", None, "gpt-5"),
        ("GPT-4o", None, "gpt-4o"),
        (" gpt-4o ", None, "gpt-4o"),
        ("openai:gpt-4o-mini", None, "gpt-4o-mini"),
        ("openai:ft:gpt-4o-mini-2024-07-18:org::id", None, "ft:gpt-4o-mini-2024-07-18"),
        ("anthropic:claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("azure_openai:gpt-4o", None, "azure/gpt-4o"),
        ("google_genai:gemini-2.5-pro", None, "gemini/gemini-2.5-pro"),
        (f"bedrock_converse:us.{SONNET}", None, f"us.{SONNET}"),
        ("gpt-4o", "azure", "azure/gpt-4o"),
        ("azure/gpt-4o-2024-08-06", None, "azure/gpt-4o-2024-08-06"),
        ("azure/eu/gpt-4o-2024-08-06", None, "azure/eu/gpt-4o-2024-08-06"),
        ("eu/gpt-4o-2024-08-06", "azure", "azure/eu/gpt-4o-2024-08-06"),
        ("claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5", None, "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "google_vertexai", "vertex_ai/claude-sonnet-4-5@20250929"),
        ("vertex_ai/claude-sonnet-4-5@20250929", None, "vertex_ai/claude-sonnet-4-5@20250929"),
        ("models/gemini-2.5-pro", "google_genai", "gemini/gemini-2.5-pro"),
        ("projects/p/locations/l/publishers/google/models/gemini-2.5-pro", "vertex_ai", "gemini-2.5-pro"),
        ("mistral-large-latest", "mistralai", "mistral/mistral-large-latest"),
        ("openai/gpt-oss-120b", "groq", "groq/openai/gpt-oss-120b"),
        ("openrouter/openai/gpt-4o", None, "gpt-4o"),
        (SONNET, None, SONNET),
        (f"us.{SONNET}", "amazon_bedrock", f"us.{SONNET}"),
        (f"bedrock/converse/us.{SONNET}", None, f"us.{SONNET}"),
        (f"bedrock/us-gov-west-1/{SONNET}", None, f"bedrock/us-gov-west-1/{SONNET}"),
        (f"arn:aws:bedrock:us-west-2:123456789012:inference-profile/us.{SONNET}", None, f"us.{SONNET}"),
        (f"bedrock/arn:aws-us-gov:bedrock:us-gov-west-1::foundation-model/{SONNET}", None,
         f"bedrock/us-gov-west-1/{SONNET}"),
        ("claude-opus-latest", None, source.entries()["claude-opus-latest"]["alias_of"]),
    ],
)  # fmt: skip
def test_a_name_finds_its_listed_model(model: str, provider: str | None, listed_as: str) -> None:
    found = BOOK.price(model, provider)
    assert (found.model, found.priced_as) == (listed_as, None)


@pytest.mark.parametrize(
    ("model", "provider", "listed_as"),
    [
        ("gpt-5-2099-01-01", None, "gpt-5"),
        ("gpt-5-20990101", "openai", "gpt-5"),
        ("azure/gpt-5-2099-01-01", None, "azure/gpt-5"),
        ("vertex_ai/claude-sonnet-4-5@20990101", None, "vertex_ai/claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "anthropic", "claude-sonnet-4-5-20250929"),
        (f"ca.{SONNET}", "bedrock", SONNET),
        (f"bedrock/eu-west-3/{SONNET}:200k", None, SONNET),
        ("litellm_proxy/claude-sonnet-4-5", None, "claude-sonnet-4-5"),
        ("claude-sonnet-4-5", "openai", "claude-sonnet-4-5"),
    ],
)
def test_a_freer_reading_says_what_it_was_priced_as(model: str, provider: str | None, listed_as: str) -> None:
    found = BOOK.price(model, provider)
    assert found.model == found.priced_as == listed_as


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("", None),
        ("/", None),
        ("gpt-4o", "groq"),
        ("together_ai/gpt-4o", None),
        ("groq/claude-sonnet-4-5", None),
        ("gpt-4o-nano", None),
        ("gpt", None),
        ("sample_spec", None),
        ("azure_ai/model_router", None),
        ("us.gpt-4o", None),
        ("a/" * 10_000 + "gpt-4o", None),
        ("gpt-4o" * 10_000, None),
        ("\x00{}\n🙂", None),
    ],
    ids=lambda value: str(value)[:20].encode("unicode_escape").decode(),
)
def test_what_is_not_known_is_refused_with_a_short_message(model: str, provider: str | None) -> None:
    for _ in range(2):
        with pytest.raises(PriceUnknown) as refusal:
            BOOK.price(model, provider)
        assert len(str(refusal.value)) < 700


def test_the_owner_s_price_comes_before_the_list() -> None:
    book = PriceBook({"gpt-4o": {"input": "1", "output": "2"}})
    for model in ("gpt-4o", "openai/gpt-4o", "azure/gpt-4o", "GPT-4O"):
        assert book.price(model).source == "policy"
    assert book.price("gpt-4o-2024-05-13").source == "litellm"
    assert book.price("gpt-4o-2099-01-01").source == "policy"
    assert (book.price("gpt-4o").max_input_tokens, book.price("gpt-4o").max_output_tokens) == (128_000, 16_384)


def test_the_served_model_does_not_replace_the_owner_s_price() -> None:
    book = PriceBook({"prod": {"input": "1", "output": "2"}, "other": {"input": "9", "output": "9"}})
    held = book.price("prod")
    assert book.served(held, "gpt-4o-2024-05-13") is held
    assert book.served(held, "other").model == "other"


def test_an_alias_may_lead_to_an_alias_or_an_own_price() -> None:
    book = PriceBook({"mine": {"input": 1, "output": 1}}, aliases={"a": "b", "b": "mine", "c": "openai/gpt-4o"})
    assert book.price("a").model == book.price("openai/b").model == "mine"
    assert book.price("c").model == "gpt-4o"


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"input": "3"}, "needs output"),
        ({"output": "3"}, "needs input"),
        ({}, "needs input"),
        ({"input": 0.1, "output": 15}, r'\."x"\.input: 0\.1 \(float\) is no amount; .*; write it as text, "0\.1"'),
        ({"input": -3, "output": 15}, r"\.input: .*negative"),
        ({"input": "three", "output": 15}, r"\.input: 'three'"),
        ({"input": True, "output": 15}, r"\.input: True"),
        ({"input": 3, "output": 15, "inputs": 3}, r"\.inputs is unknown; accepted: .*cached_input"),
        ({"input": 3, "output": 15, "turbo": {"input": 3}}, r"\.turbo is unknown; accepted: .*priority"),
        ({"input": 3, "output": 15, "per_call": 100_001}, r"\.per_call: .*at most"),
        ({"input": 3, "output": 15, "max_input_tokens": 0}, r"\.max_input_tokens is a number of tokens"),
        ({"input": 3, "output": 15, "max_output_tokens": "8k"}, r"\.max_output_tokens is a number of tokens"),
        ({"input": 3, "output": 15, "above": {"tokens": 1}}, r"\.above is a list"),
        ({"input": 3, "output": 15, "above": [{"input": 6}]}, r"\.above\[0\]\.tokens is a number"),
        ({"input": 3, "output": 15, "above": [{"tokens": 9, "per_call": 6}]}, r"\.above\[0\]\.per_call is unknown"),
        ({"input": 3, "output": 15, "above": [{"tokens": 9, "input": 6}, {"tokens": 9, "output": 6}]},
         r"\.above\[1\]\.tokens is 9 once more"),
        ({"input": 3, "output": 15, "flex": {"above": [{"tokens": 9}, {"tokens": 8}, {"tokens": 9}]}},
         r"\.flex\.above\[2\]\.tokens is 9 once more"),
        ({"input": 3, "output": 15, "flex": 1}, r"\.flex is a table"),
        ({"input": 3, "output": 15, "flex": {"flex": {}}}, r"\.flex\.flex is unknown"),
        (3, r'prices\."x" is a table'),
    ],
)  # fmt: skip
def test_a_price_that_cannot_be_meant_is_refused_by_its_place(table: Any, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        PriceBook({"x": table})


def test_a_model_that_is_priced_or_named_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r'prices\."M" and prices\."m" are one model; keep one'):
        PriceBook({"M": {"input": 1, "output": 1}, "m": {"input": 2, "output": 2}})
    with pytest.raises(ConfigurationError, match=r'aliases\."A" and aliases\."a" are one model'):
        PriceBook(aliases={"A": "gpt-4o", "a": "gpt-4o-mini"})


def test_an_alias_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="both in prices and in aliases"):
        PriceBook({"x": {"input": 1, "output": 1}}, aliases={"X": "gpt-4o"})
    with pytest.raises(ConfigurationError, match="name of a model, not 3"):
        PriceBook(aliases={"x": 3})  # type: ignore[dict-item]  # what a policy file may hold


def test_rates_are_written_as_money_is() -> None:
    usage = Usage(input_tokens=10**6, output_tokens=10**6)
    costs = {
        PriceBook({"x": {"input": rate, "output": 0}}).price("x").cost_nusd(usage)
        for rate in ("$3", "3", "300¢", 3, Decimal(3), Decimal("3.00"))
    }
    assert costs == {3 * 10**9}


def test_a_price_per_call_or_image_needs_no_tokens() -> None:
    book = PriceBook({"x": {"per_call": "0.001"}, "y": {"per_image": "0.04"}})
    assert book.price("x").cost_nusd(Usage(input_tokens=10**6)) == 1_000_000
    assert book.price("x").bound_nusd(0, 0) == 1_000_000
    assert book.price("y").cost_nusd(Usage(images=3)) == 120_000_000


def test_names_that_come_by_the_million_are_not_all_kept() -> None:
    book = PriceBook()
    for i in range(9000):
        assert book.price(f"ft:gpt-4o-mini-2024-07-18:org::{i}").model == "ft:gpt-4o-mini-2024-07-18"
    assert len(book._found) <= 4096


def test_a_book_and_its_prices_travel() -> None:
    book = PriceBook({"x": {"input": 1, "output": 2}}, aliases={"y": "x"})
    usage = Usage(input_tokens=1000, output_tokens=10)
    for twin in (pickle.loads(pickle.dumps(book)), copy.deepcopy(book)):
        assert twin.price("y").cost_nusd(usage) == book.price("y").cost_nusd(usage)
    assert pickle.loads(pickle.dumps(book.price("y"))) == book.price("y")


def test_without_the_list_own_prices_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "entries", dict)
    monkeypatch.setattr(source, "find", lambda name: None)
    book = PriceBook({"x": {"input": 1, "output": 2}})
    assert book.price("x").source == "policy"
    with pytest.raises(PriceUnknown, match="price list was not found"):
        book.price("no-such-model")


def test_pricing_imports_no_framework() -> None:
    code = (
        "import sys; from llm_budget_hooks.pricing import PriceBook; PriceBook().price('gpt-4o'); "
        "print([m for m in ('litellm', 'langchain_core', 'redis', 'sqlalchemy', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_call_is_priced_in_a_few_microseconds() -> None:
    usage = Usage(input_tokens=1000, cached_input_tokens=500, output_tokens=100)
    BOOK.price("gpt-4o")
    rounds = []
    for _ in range(50):
        began = time.perf_counter()
        for _ in range(100):
            BOOK.price("gpt-4o").cost_nusd(usage)
        rounds.append((time.perf_counter() - began) / 100)
    assert min(rounds) < 20e-6


@pytest.mark.parametrize(
    ("name", "provider", "key"),
    [
        ("projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929", None,
         "vertex_ai/claude-sonnet-4-5@20250929"),
        ("publishers/anthropic/models/claude-opus-4-5", None, "vertex_ai/claude-opus-4-5"),
        ("claude-sonnet-4-5@20250929", None, "vertex_ai/claude-sonnet-4-5@20250929"),
        ("claude-haiku-4-5@default", None, "vertex_ai/claude-haiku-4-5"),
        ("claude-sonnet-4-5@20250929", "anthropic", "claude-sonnet-4-5-20250929"),
        ("publishers/google/models/gemini-2.5-flash", None, "gemini-2.5-flash"),
        ("claude-sonnet-4-5", None, "claude-sonnet-4-5"),
        ("gpt-4o@eu", None, "gpt-4o"),
        ("publishers/deepseek-ai/models/deepseek-v3.1-maas", None, "vertex_ai/deepseek-ai/deepseek-v3.1-maas"),
        ("publishers/deepseek-ai/models/deepseek-v3.1-maas", "google_vertexai",
         "vertex_ai/deepseek-ai/deepseek-v3.1-maas"),
    ],
)  # fmt: skip
def test_a_path_and_a_version_of_vertex_are_priced_as_vertex_sells_them(
    name: str, provider: str | None, key: str
) -> None:
    price = PriceBook().price(name, provider)
    assert price.model == key
    assert PriceBook().price(price.model) == replace(price, priced_as=None), "what the hold keeps names the same price"
