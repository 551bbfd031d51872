"""Anthropic's JSON: the answer of /v1/messages, whole or as the events of a stream.

Shapes as in the API reference at https://docs.anthropic.com/en/api/messages; cached tokens are counted beside
``input_tokens``, not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from llm_budget_hooks.testing.replies import Answer
from llm_budget_hooks.testing.shapes import Event

Json = dict[str, Any]


def messages_body(answer: Answer) -> Json:
    """The answer of /v1/messages."""
    body = {**_envelope(answer), "content": [{"type": "text", "text": answer.text}], "stop_reason": _reason(answer)}
    if answer.usage:
        body["usage"] = {**_read(answer), "output_tokens": answer.output_tokens}
    return body


def messages_events(answer: Answer) -> Iterator[Event]:
    """The stream of /v1/messages: the prompt's tokens in the first event, those of the output in the last but one."""
    usage = {"usage": {**_read(answer), "output_tokens": 1}} if answer.usage else {}
    yield _event("message_start", 0, message={**_envelope(answer), "content": [], "stop_reason": None, **usage})
    yield _event("content_block_start", 0, index=0, content_block={"type": "text", "text": ""})
    for n, piece in enumerate(answer.pieces, start=1):
        sent = answer.output_tokens * n // len(answer.pieces)
        yield _event("content_block_delta", sent, index=0, delta={"type": "text_delta", "text": piece})
    yield _event("content_block_stop", answer.output_tokens, index=0)
    made = {"usage": {"output_tokens": answer.output_tokens}} if answer.usage else {}
    delta = {"stop_reason": _reason(answer), "stop_sequence": None}
    yield _event("message_delta", answer.output_tokens, delta=delta, **made)
    yield _event("message_stop", answer.output_tokens)


def _envelope(answer: Answer) -> Json:
    return {
        "id": f"msg_{answer.id}", "type": "message", "role": "assistant", "model": answer.model, "stop_sequence": None,
    }  # fmt: skip


def _read(answer: Answer) -> Json:
    return {
        "input_tokens": answer.input_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def _reason(answer: Answer) -> str:
    return "max_tokens" if answer.clipped else "end_turn"


def _event(kind: str, tokens: int, **fields: Any) -> Event:
    return Event(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode()), tokens)
