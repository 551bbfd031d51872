"""What pricing a call costs: from an answer to a usage, from a usage to nano-dollars, from a prompt to a bound.

    python benchmarks/pricing.py

Directional: best of 20 rounds on whatever machine this is; the ratio to `json.loads` of the same answer says more.
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Callable

from llm_budget_hooks import tokens
from llm_budget_hooks.models import Usage
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.usage import usage_from

ANSWERS = {
    "OpenAI": {
        "model": "gpt-4o-2024-08-06",
        "usage": {
            "prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306,
            "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 20, "audio_tokens": 0},
        },
    },
    "OpenAI's Responses": {
        "output": [{"type": "reasoning"}, {"type": "message"}],
        "usage": {
            "input_tokens": 2006, "input_tokens_details": {"cached_tokens": 1920}, "output_tokens": 300,
            "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 2306,
        },
    },
    "Anthropic": {
        "usage": {
            "input_tokens": 10, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 5000,
            "output_tokens": 500, "server_tool_use": {"web_search_requests": 1},
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        }
    },
    "Anthropic through LiteLLM": {
        "usage": {
            "prompt_tokens": 5310, "completion_tokens": 500, "total_tokens": 5810, "cache_read_input_tokens": 5000,
            "cache_creation_input_tokens": 300, "completion_tokens_details": None,
            "prompt_tokens_details": {"cached_tokens": 5000, "cache_creation_tokens": 300, "audio_tokens": None},
        }
    },
    "Gemini": {
        "modelVersion": "gemini-2.5-pro",
        "usageMetadata": {
            "promptTokenCount": 900, "candidatesTokenCount": 90, "thoughtsTokenCount": 400, "totalTokenCount": 1390,
            "cachedContentTokenCount": 600, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 900}],
        },
    },
    "Bedrock": {
        "usage": {"inputTokens": 10, "outputTokens": 90, "cacheReadInputTokens": 600, "cacheWriteInputTokens": 20},
    },
    "LangChain": {
        "usage_metadata": {
            "input_tokens": 100, "output_tokens": 40, "input_token_details": {"cache_read": 30},
            "output_token_details": {"reasoning": 10},
        },
        "response_metadata": {"model_name": "gpt-4o"},
    },
}  # fmt: skip


def best(work: Callable[..., object], number: int = 1000) -> float:
    """The best of 20 rounds, in microseconds for one."""
    return min(timeit.repeat(work, number=number, repeat=20)) / number * 1e6


def main() -> None:
    """Print the table."""
    began = timeit.default_timer()
    book = PriceBook()
    held = book.price("gpt-4o")
    first = timeit.default_timer() - began
    plain = Usage(input_tokens=2006, cached_input_tokens=1920, output_tokens=300)
    rare = Usage(input_tokens=5310, cached_input_tokens=5000, cache_write_tokens=100, output_tokens=500, searches=1)
    prompt = "The quick brown fox jumps over the lazy dog. " * 800
    rows = {
        "the name of a model to its price": best(lambda: book.price("gpt-4o")),
        "the model that served": best(lambda: book.served(held, "gpt-4o-2024-08-06")),
        "a usage to nano-dollars": best(lambda: held.cost_nusd(plain)),
        "the same with cache writes and searches": best(lambda: held.cost_nusd(rare)),
        "a bound": best(lambda: held.bound_nusd(2000, 500)),
        "a prompt of 36 kB, measured": best(lambda: tokens.input_bound("claude", [prompt]), 100),
    }
    tokens.warm()
    rows["a prompt of 36 kB, counted"] = best(lambda: tokens.input_bound("gpt-4o", [prompt]), 5)
    print(f"{first * 1e3:9.1f} ms  the first price, with LiteLLM's list read")
    for what, cost in rows.items():
        print(f"{cost:9.2f} µs  {what}")
    for who, answer in ANSWERS.items():
        text, read = json.dumps(answer), usage_from(answer)
        parsed = best(lambda text=text: json.loads(text))
        priced = best(lambda answer=answer: held.cost_nusd(usage_from(answer)))
        assert read is not None
        print(
            f"{priced:9.2f} µs  an answer of {who} to nano-dollars, {priced / parsed:.1f} times what json.loads takes"
        )


if __name__ == "__main__":
    main()
