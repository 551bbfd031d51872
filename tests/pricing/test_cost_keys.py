"""Every cost key that LiteLLM's list uses is read into prices, or named here with what it is and why it is not."""

from __future__ import annotations

import re
from collections import defaultdict
from decimal import Decimal
from typing import Any

from llm_budget_hooks.pricing import source
from llm_budget_hooks.pricing.listed import listed_price

UNREAD = {
    # Charged by what no usage of a call counts; a hook of LiteLLM books the cost that LiteLLM itself gives for these.
    r"(ocr|annotation)_cost_per_(page|credit)(_batches)?": "documents, by the page",
    r"(input|output)_cost_per_pixel": "images by their size; the answer does not say it",
    r"input_cost_per_image(_above_128k_tokens)?": "images sent, by the piece: a usage counts their tokens",
    r"output_cost_per_image_(0\.5K|[124]K|512|1024|1536)": "images made, by their size; the plain key is read",
    r"output_cost_per_second_(480p|720p|768p|1080p|2k|4k)": "film made, by its size; the plain key is read",
    r"(input|output)_cost_per_video_(token|per_second)\w*": "film: charged as text; mostly embedding models",
    r"input_cost_per_audio_per_second(_above_128k_tokens)?": "sound sent to embeddings, by the second",
    r"(input|output)_cost_per_character(_above_128k_tokens)?": "letters of models that charge tokens now",
    r"input_cost_per_text_message": "xAI's realtime messages: a websocket that no hook sees",
    r"google_maps_grounding_cost_per_query": "an answer does not tell it from a search, and costs no more than one",
    r"guardrail_cost_per_unit": "no model",
    # Another way to say what is read.
    r"code_interpreter_cost_per_session": "containers, under a name of their own: read with the provider's models",
    r"input_cost_per_token_cache_hit": "the cached rate, read where cache_read_input_token_cost lacks",
    r"citation_cost_per_token": "Perplexity's citations, which are read as input and cost as much",
    r"(input|output)_dbu_cost_per_token": "Databricks' units, beside the dollars",
    # What no usage says happened.
    r"\w+_decisions": "OpenAI's decisions: a usage does not say that it was one",
    r"cache_creation_input_token_cost_above_12hr\w*": "no usage says that a cache is kept for longer than an hour",
    r"cache_creation_input_audio_token_cost": "no usage counts sound written to a cache; LiteLLM reads it nowhere",
    r"explicit_cache_read_input_token_cost": "Qwen's explicit caches, cheaper than the cached rate, which is charged",
    r"cost_per_second": "Bedrock's committed throughput: hours, not calls",
}


def keys() -> dict[str, list[str]]:
    """The models that have each cost key."""
    found = defaultdict(list)
    for name, entry in source.entries().items():
        for key in entry:
            if "cost" in key or key.endswith("_pricing"):
                found[key].append(name)
    return found


def is_read(key: str, names: list[str]) -> bool:
    """Whether a model has another price when the value of its key is another."""
    for name in names:
        entry = source.entries()[name]
        other: Any = entry[key] * 3 + Decimal("1e-7") if isinstance(entry[key], int | Decimal) else None
        if listed_price(name, entry, Decimal(1)) != listed_price(name, {**entry, key: other}, Decimal(1)):
            return True
    return False


def test_every_cost_key_of_the_list_is_read_or_named() -> None:
    unread = {key for key, names in keys().items() if not is_read(key, names)}
    named = {key for key in unread if any(re.fullmatch(pattern, key) for pattern in UNREAD)}
    assert sorted(unread - named) == []
    assert [pattern for pattern in UNREAD if not any(re.fullmatch(pattern, key) for key in keys())] == []
    assert len(keys()) - len(unread) > 100


def test_what_is_named_as_another_way_to_say_a_price_says_the_same_price() -> None:
    entries = source.entries().items()
    hits = [(entry, entry["input_cost_per_token_cache_hit"]) for _, entry in entries if hit_of(entry)]
    assert [entry for entry, hit in hits if hit < entry.get("cache_read_input_token_cost", hit)] == []
    cited = [entry for _, entry in entries if "citation_cost_per_token" in entry]
    assert [entry for entry in cited if entry["citation_cost_per_token"] != entry["input_cost_per_token"]] == []
    explicit = [entry for _, entry in entries if "explicit_cache_read_input_token_cost" in entry]
    dearer = [e for e in explicit if e["explicit_cache_read_input_token_cost"] > e["cache_read_input_token_cost"]]
    assert dearer == []
    by_maps = [entry for _, entry in entries if "google_maps_grounding_cost_per_query" in entry]
    searched = [e["search_context_cost_per_query"]["search_context_size_medium"] for e in by_maps]
    assert all(e["google_maps_grounding_cost_per_query"] <= cost for e, cost in zip(by_maps, searched, strict=True))


def hit_of(entry: source.Entry) -> Any:
    return entry.get("input_cost_per_token_cache_hit")
