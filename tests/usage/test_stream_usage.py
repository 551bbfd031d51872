"""B109: a stream's usage from its events, whether they count up, are deltas, or only the last one has it."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_budget_hooks.models import Usage
from llm_budget_hooks.usage import StreamUsage

PIECES = st.lists(st.integers(1, 1000), min_size=1, max_size=8)


def read(events: list[Any], **how: Any) -> Usage | None:
    stream = StreamUsage(**how)
    for event in events:
        stream.add(event)
    return stream.usage


def test_b109_the_input_of_the_first_event_and_the_output_of_the_last() -> None:
    start = {"type": "message_start", "message": {"model": "claude", "usage": {"input_tokens": 10, "output_tokens": 1}}}
    end = {"type": "message_delta", "usage": {"output_tokens": 29}}
    assert read([start, {"type": "ping"}, end]) == Usage(input_tokens=10, output_tokens=29)
    nothing_new = {"type": "message_delta", "usage": {"input_tokens": 0, "output_tokens": 29}}
    assert read([start, nothing_new]) == Usage(input_tokens=10, output_tokens=29)


@given(st.integers(1, 10**6), PIECES)
def test_b109_the_three_shapes_say_the_same(prompt: int, pieces: list[int]) -> None:
    expected = Usage(input_tokens=prompt, output_tokens=sum(pieces))
    totals = [{"usage": {"prompt_tokens": prompt, "completion_tokens": n}} for n in accumulate(pieces)]
    deltas = [
        {"usage": {"prompt_tokens": prompt if i == 0 else 0, "completion_tokens": n}} for i, n in enumerate(pieces)
    ]
    final = [{"choices": []}] * 3 + totals[-1:]
    assert read(totals) == read(deltas, deltas=True) == read(final) == expected


def test_b109_deltas_that_nobody_announced_are_added_up_as_soon_as_they_fall() -> None:
    events = [{"usage": {"prompt_tokens": 10, "completion_tokens": n}} for n in (5, 3, 4)]
    assert read(events) == Usage(input_tokens=10, output_tokens=12, exact=False)


def test_gemini_counts_up_and_ends_with_its_thoughts() -> None:
    events = [
        {"usageMetadata": {"promptTokenCount": 10, "thoughtsTokenCount": 7, "totalTokenCount": 17}},
        {"usageMetadata": {"promptTokenCount": 10, "thoughtsTokenCount": 7, "candidatesTokenCount": 5,
                           "totalTokenCount": 22}},
    ]  # fmt: skip
    assert read(events) == Usage(input_tokens=10, output_tokens=12, reasoning_tokens=7)


def test_the_last_event_of_responses_names_model_and_tier() -> None:
    stream = StreamUsage()
    stream.add({"type": "response.created", "response": {"model": "gpt-5", "usage": None}})
    counted = {"input_tokens": 3, "output_tokens": 4}
    stream.add({"response": {"model": "gpt-5-2025-08-07", "service_tier": "flex", "usage": counted}})
    assert stream.usage == Usage(input_tokens=3, output_tokens=4, service_tier="flex")
    assert stream.model == "gpt-5-2025-08-07"


def test_a_stream_that_says_nothing_has_no_usage() -> None:
    assert read([{"choices": [{"delta": {"content": "x"}}]}, None, "data: x"]) is None


@pytest.mark.parametrize("deltas", [False, True])
@given(st.lists(st.integers(-(10**6), 10**13), max_size=6))
def test_no_events_make_an_exception(deltas: bool, counts: list[int]) -> None:
    events = [{"usage": {"prompt_tokens": n, "completion_tokens": n, "cached_tokens": n * 2}} for n in counts]
    usage = read(events, deltas=deltas)
    assert usage is None or usage.output_tokens >= 0
