"""Which models may send their requests through LiteLLM, by the provider that a run's metadata names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OWN_CLIENT: Final = frozenset({
    "amazon_bedrock", "anthropic", "azure", "azure_ai", "azure_openai", "baseten", "bedrock", "bedrock_converse",
    "cerebras", "cohere", "deepseek", "fireworks", "google_genai", "google_vertexai", "groq", "huggingface", "ibm",
    "meta", "mistral", "mistralai", "nvidia", "ollama", "openai", "openai-codex", "openrouter", "perplexity",
    "together", "upstage", "vertexai", "xai",
})  # fmt: skip
"""The providers whose packages bring a client of their own."""


def is_litellm(metadata: Mapping[str, Any]) -> bool:
    """Whether a model says that it is LiteLLM's."""
    return metadata.get("ls_provider") == "litellm"


def may_use_litellm(metadata: Mapping[str, Any]) -> bool:
    """Whether a model may reach its provider through LiteLLM: all but those that are known not to."""
    return str(metadata.get("ls_provider")) not in _OWN_CLIENT
