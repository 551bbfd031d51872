"""Images, sounds and rankings: one pure function per kind of answer, and the forms that some of them are asked with.

Shapes as in the API references at https://platform.openai.com/docs/api-reference and, for rankings,
https://docs.cohere.com/reference/rerank, as far as their clients read them.
"""

from __future__ import annotations

import base64
import re
import time
from typing import Any, Final

from llm_budget_hooks.testing.replies import Answer

Json = dict[str, Any]
SOUND: Final = b"ID3\x04" + bytes(60)
"""What is said: the head of an MP3 file, and silence."""

_PICTURE: Final = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
_NAME: Final = re.compile(rb'name="([^"]*)"')


def images_body(answer: Answer) -> Json:
    """The answer of /v1/images/generations and /v1/images/edits; with token counts from models that bill by them."""
    by_token = answer.usage and answer.model.startswith("gpt-image")
    picture = {"b64_json": _PICTURE} if by_token else {"url": "https://images.invalid/1.png"}
    body: Json = {"created": int(time.time()), "data": [picture] * int(answer.request.get("n") or 1)}
    if by_token:
        body["usage"] = {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"text_tokens": answer.input_tokens, "image_tokens": 0},
            "output_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
        }
    return body


def transcription_body(answer: Answer) -> Json:
    """The answer of /v1/audio/transcriptions, with the length of 4.5 seconds where ``verbose_json`` asks for it."""
    if answer.request.get("response_format") != "verbose_json":
        return {"text": answer.text}
    return {"text": answer.text, "task": "transcribe", "language": "english", "duration": 4.5, "segments": []}


def rerank_body(answer: Answer) -> Json:
    """The answer of /v1/rerank and /v2/rerank: one search unit for each 100 documents that are begun."""
    count = len(answer.request.get("documents") or ())
    units = {"search_units": max(1, -(-count // 100))}
    return {
        "id": f"rerank-{answer.id}",
        "results": [{"index": n, "relevance_score": 1 / (n + 1)} for n in range(count)],
        "meta": {"api_version": {"version": "2"}, "billed_units": units},
    }


def form_fields(body: bytes) -> Json:
    """The fields of a multipart form by name; of a file, only its size in bytes."""
    boundary = body.partition(b"\r\n")[0]
    fields: Json = {}
    for part in body.split(boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        named = _NAME.search(head)
        if named is not None:
            value = content.removesuffix(b"\r\n")
            fields[named[1].decode()] = len(value) if b"filename=" in head else value.decode("utf-8", "replace")
    return fields
