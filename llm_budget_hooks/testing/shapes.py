"""The OpenAI API's JSON: one pure function per kind of answer, whole or as the events of a stream.

Shapes as in the API reference at https://platform.openai.com/docs/api-reference, as far as its official
client and those built on it read them.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llm_budget_hooks.testing.replies import Answer, ToolCall, count_inputs

Json = dict[str, Any]


class Event(NamedTuple):
    """One server-sent event.

    Attributes:
        payload: its bytes, with the blank line that ends it.
        output_tokens: what has been generated, and is billed, once it is sent.
    """

    payload: bytes
    output_tokens: int


def chat_body(answer: Answer) -> Json:
    """The answer of /v1/chat/completions."""
    message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None}
    if answer.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
    choice = {"message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    return _completion(answer, "chat.completion", choice)


def chat_events(answer: Answer) -> Iterator[Event]:
    """The stream of /v1/chat/completions, with usage only where the request asks for it."""
    deltas: list[Json] = [{"content": piece} for piece in answer.pieces]
    deltas += [{"tool_calls": [{"index": n, **_tool_call(call)}]} for n, call in enumerate(answer.tool_calls)]
    deltas = deltas or [{"content": ""}]
    deltas[0] = {"role": "assistant", **deltas[0]}
    choices = [{"delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    last: Json = {"delta": {}, "logprobs": None, "finish_reason": _finish_reason(answer)}
    return _completion_events(answer, "chat.completion.chunk", choices, last)


def text_body(answer: Answer) -> Json:
    """The answer of /v1/completions."""
    choice = {"text": answer.text, "logprobs": None, "finish_reason": _finish_reason(answer)}
    return _completion(answer, "text_completion", choice)


def text_events(answer: Answer) -> Iterator[Event]:
    """The stream of /v1/completions, with usage only where the request asks for it."""
    choices = [{"text": piece, "logprobs": None, "finish_reason": None} for piece in answer.pieces or ("",)]
    last = {"text": "", "logprobs": None, "finish_reason": _finish_reason(answer)}
    return _completion_events(answer, "text_completion", choices, last)


def embeddings_body(answer: Answer) -> Json:
    """The answer of /v1/embeddings: as many vectors as inputs, 8 numbers each if nothing else is asked."""
    count = count_inputs(answer.request.get("input"))
    vector: list[float] | str = [0.5] * int(answer.request.get("dimensions") or 8)
    if answer.request.get("encoding_format") == "base64":
        vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    body: Json = {
        "object": "list",
        "model": answer.model,
        "data": [{"object": "embedding", "index": n, "embedding": vector} for n in range(count)],
    }
    if answer.usage:
        body["usage"] = {"prompt_tokens": answer.input_tokens, "total_tokens": answer.input_tokens}
    return body


def responses_body(answer: Answer) -> Json:
    """The answer of /v1/responses."""
    return _response(answer, "incomplete" if answer.clipped else "completed")


def responses_events(answer: Answer) -> Iterator[Event]:
    """The stream of /v1/responses."""
    started = {**_response(answer, "in_progress"), "output": [], "usage": None}
    ended = responses_body(answer)
    numbers = itertools.count()

    def event(kind: str, tokens: int, **fields: Any) -> Event:
        payload = {"type": kind, "sequence_number": next(numbers), **fields}
        return Event(b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps(payload).encode()), tokens)

    yield event("response.created", 0, response=started)
    yield event("response.in_progress", 0, response=started)
    tokens = 0
    for index, item in enumerate(ended["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress", **({"content": []} if "content" in item else {"arguments": ""})}
        yield event("response.output_item.added", tokens, output_index=index, item=empty)
        for kind, tokens, fields in _item_events(answer, item):
            yield event(kind, tokens, **place, **fields)
        yield event("response.output_item.done", tokens, output_index=index, item=item)
    yield event(f"response.{ended['status']}", answer.output_tokens, response=ended)


def models_body(names: list[str]) -> Json:
    """The answer of /v1/models."""
    return {"object": "list", "data": [{"id": n, "object": "model", "created": 0, "owned_by": "fake"} for n in names]}


def error_body(message: str, kind: str = "invalid_request_error") -> Json:
    """An error that the fake provider itself has found."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _completion(answer: Answer, kind: str, choice: Mapping[str, Any]) -> Json:
    choices = [{"index": index, **choice} for index in range(answer.choices)]
    body = {**_envelope(answer, kind), "choices": choices}
    if answer.usage:
        body["usage"] = _usage(answer)
    return body


def _completion_events(answer: Answer, kind: str, choices: list[Json], last: Json) -> Iterator[Event]:
    wants_usage = answer.usage and bool((answer.request.get("stream_options") or {}).get("include_usage"))
    envelope = {**_envelope(answer, kind), **({"usage": None} if wants_usage else {})}
    sent = 0
    for choice in choices:
        for index in range(answer.choices):
            sent += 1
            tokens = answer.output_tokens * sent // (len(choices) * answer.choices)
            yield Event(_sse({**envelope, "choices": [{"index": index, **choice}]}), tokens)
    for index in range(answer.choices):
        yield Event(_sse({**envelope, "choices": [{"index": index, **last}]}), answer.output_tokens)
    if wants_usage:
        yield Event(_sse({**envelope, "choices": [], "usage": _usage(answer)}), answer.output_tokens)
    yield Event(b"data: [DONE]\n\n", answer.output_tokens)


def _item_events(answer: Answer, item: Json) -> Iterator[tuple[str, int, Json]]:
    if item["type"] == "function_call":
        arguments = item["arguments"]
        yield "response.function_call_arguments.delta", answer.output_tokens, {"delta": arguments}
        done = {"arguments": arguments, "name": item["name"]}
        yield "response.function_call_arguments.done", answer.output_tokens, done
        return
    part = item["content"][0]
    yield "response.content_part.added", 0, {"content_index": 0, "part": {**part, "text": ""}}
    for n, piece in enumerate(answer.pieces, start=1):
        delta = {"content_index": 0, "delta": piece, "logprobs": []}
        yield "response.output_text.delta", answer.output_tokens * n // len(answer.pieces), delta
    text = {"content_index": 0, "text": answer.text, "logprobs": []}
    yield "response.output_text.done", answer.output_tokens, text
    yield "response.content_part.done", answer.output_tokens, {"content_index": 0, "part": part}


def _response(answer: Answer, status: str) -> Json:
    body = {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": answer.request.get("instructions"),
        "max_output_tokens": answer.request.get("max_output_tokens"),
        "model": answer.model,
        "output": _output_items(answer),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": answer.request.get("tools") or [],
        "top_p": 1.0,
        "metadata": {},
    }
    if answer.usage:
        body["usage"] = _response_usage(answer)
    return body


def _output_items(answer: Answer) -> list[Json]:
    if not answer.tool_calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": "completed"}
        return [{**message, "content": [part]}]
    return [
        {
            "type": "function_call",
            "id": f"fc_{answer.id}_{n}",
            "call_id": call.id,
            "name": call.name,
            "arguments": _arguments(call),
            "status": "completed",
        }
        for n, call in enumerate(answer.tool_calls)
    ]


def _response_usage(answer: Answer) -> Json:
    return {
        "input_tokens": answer.input_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }


def _usage(answer: Answer) -> Json:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
    }


def _envelope(answer: Answer, kind: str) -> Json:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": int(time.time()), "model": answer.model}


def _finish_reason(answer: Answer) -> str:
    if answer.clipped:
        return "length"
    return "tool_calls" if answer.tool_calls else "stop"


def _tool_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


def _sse(payload: Json) -> bytes:
    return b"data: %b\n\n" % json.dumps(payload).encode()
