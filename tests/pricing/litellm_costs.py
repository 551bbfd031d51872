"""What `litellm.completion_cost` says: reads questions as JSON from stdin and writes costs in dollars to stdout.

A process of its own, so that the suite imports litellm without its network and its messages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def main() -> None:
    questions = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        answers = [_cost(*question) for question in questions]
    json.dump(answers, sys.stdout)


def _cost(name: str, provider: str | None, counts: dict[str, Any]) -> float | None:
    from litellm import completion_cost

    answer, more = _answer(name, counts)
    try:
        return completion_cost(answer, model=name, custom_llm_provider=provider, **more)
    except Exception:  # noqa: BLE001 - any failure of theirs is the answer "none"
        return None


def _answer(name: str, counts: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An answer as LiteLLM has it when it asks what it cost, and what else it says then."""
    from litellm.types.utils import ModelResponse, PromptTokensDetailsWrapper, ServerToolUse, TranscriptionResponse
    from litellm.types.videos.main import VideoObject

    if counts.get("input_ms"):
        heard = TranscriptionResponse(text="x")
        heard.duration = counts["input_ms"] / 1000  # type: ignore[attr-defined]  # as LiteLLM sets it
        return heard, {"call_type": "transcription"}
    if counts.get("input_characters"):
        return None, {"prompt": "x" * counts["input_characters"], "call_type": "speech"}
    if counts.get("output_ms"):
        film = {"duration_seconds": counts["output_ms"] / 1000}
        return VideoObject(id="x", object="video", status="completed", usage=film), {"call_type": "create_video"}
    usage = _usage(counts)
    if counts.get("searches"):
        usage.prompt_tokens_details = PromptTokensDetailsWrapper(web_search_requests=counts["searches"])
        usage.server_tool_use = ServerToolUse(web_search_requests=counts["searches"])
    tier = counts.get("service_tier")
    more = {"call_type": "aretrieve_batch"} if tier == "batch" else {"service_tier": tier}
    return ModelResponse(model=name, usage=usage), more


def _usage(counts: dict[str, Any]) -> Any:
    from litellm.types.llms.base import CachedTokensDetails
    from litellm.types.utils import (
        CacheCreationTokenDetails,
        CompletionTokensDetailsWrapper,
        PromptTokensDetailsWrapper,
        Usage,
    )

    kept_sound, kept_images = counts.get("cached_audio_tokens", 0), counts.get("cached_image_tokens", 0)
    kept = CachedTokensDetails(audio_tokens=kept_sound, image_tokens=kept_images) if kept_sound or kept_images else None
    write, write_1h = counts.get("cache_write_tokens", 0), counts.get("cache_write_1h_tokens", 0)
    written = CacheCreationTokenDetails(ephemeral_5m_input_tokens=write, ephemeral_1h_input_tokens=write_1h)
    return Usage(
        prompt_tokens=counts["input_tokens"],
        completion_tokens=counts["output_tokens"],
        total_tokens=counts["input_tokens"] + counts["output_tokens"],
        prompt_tokens_details=PromptTokensDetailsWrapper(
            cached_tokens=counts.get("cached_input_tokens", 0),
            cache_creation_tokens=write + write_1h,
            cache_creation_token_details=written if write or write_1h else None,
            cached_tokens_details=kept,
            audio_tokens=counts.get("input_audio_tokens", 0) + kept_sound,
            image_tokens=counts.get("input_image_tokens", 0) + kept_images,
        ),
        completion_tokens_details=CompletionTokensDetailsWrapper(
            reasoning_tokens=counts.get("reasoning_tokens", 0),
            audio_tokens=counts.get("output_audio_tokens", 0),
            image_tokens=counts.get("output_image_tokens", 0),
        ),
    )


if __name__ == "__main__":
    main()
