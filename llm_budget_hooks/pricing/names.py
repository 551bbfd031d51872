"""From the names under which models are called to the names under which prices are listed.

A name is read as *readings*: pairs of a provider (or none) and what stands after it. `relaxed` gives the names that a
snapshot, a version or a region of a model may be listed under. What tells models apart, such as ``-mini`` and
``-pro``, is never dropped, and a fine-tuned model is never read as the model it was tuned from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_PROVIDERS: Final[Mapping[str, str]] = {
    "amazon_bedrock": "bedrock",
    "aws_bedrock": "bedrock",
    "bedrock_converse": "bedrock",
    "azure_openai": "azure",
    "azure_text": "azure",
    "azure-openai": "azure",
    "cohere_chat": "cohere",
    "fireworks": "fireworks_ai",
    "google": "gemini",
    "anthropic_bedrock": "bedrock",
    "google-gla": "gemini",
    "google-vertex": "vertex_ai",
    "google_genai": "gemini",
    "google_vertexai": "vertex_ai",
    "google_anthropic_vertex": "vertex_ai",
    "mistralai": "mistral",
    "together": "together_ai",
}
"""Other names of LiteLLM's providers, LangChain's among them."""

_GATEWAYS: Final = frozenset({"openai", "custom_openai", "openai_like", "litellm_proxy", "openrouter"})
"""Providers that pass calls on to others at the others' prices, or speak OpenAI's protocol for them."""

_BEFORE_COLON: Final = frozenset(
    {
        "anthropic", "azure", "azure_ai", "baseten", "bedrock", "cohere", "deepseek", "fireworks_ai", "gemini", "groq",
        "huggingface", "litellm", "mistral", "nvidia", "ollama", "openai", "openrouter", "perplexity", "together_ai",
        "upstage", "vertex_ai", "xai",
    }
)  # fmt: skip
"""Providers that stand before a colon, as in ``openai:gpt-4o``: LangChain's `init_chat_model` and Pydantic AI."""

_ROUTES: Final = frozenset({"converse", "converse_like", "invoke", "responses", "chat", "async_invoke"})
_AREAS: Final = frozenset({"us", "eu", "apac", "global", "us-gov", "au", "jp", "ca", "in"})
_REGION: Final = re.compile(r"(?:[a-z]{2}|us-gov)-[a-z]+-[0-9]")
_AREA: Final = re.compile(r"(?:us|eu|apac|global|us-gov|au|jp|ca|in)\.(?=[a-z0-9-]+\.)")
_DATE: Final = re.compile(r"-20[0-9]{2}(-?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12][0-9]|3[01])$")
_VERSION: Final = re.compile(r"@[^@/]+$")
_CONTEXT: Final = re.compile(r"(?<=:[0-9]):[0-9]+k$")
_ARN: Final = re.compile(r"arn:aws[a-z-]*:bedrock:([a-z0-9-]*):[0-9]*:(foundation-model|inference-profile)/(.+)$")
_ANY_ARN: Final = re.compile(r"(arn:aws[a-z-]*:[a-z-]+:[a-z0-9-]*:)[0-9]+")
_MAX_LENGTH: Final = 500
_MAX_SEGMENTS: Final = 8
_VERTEX: Final = re.compile(r"(?:projects/[^/]+/locations/[^/]+/)?publishers/([^/]+)/models/")
_AT_VERTEX: Final = re.compile(r"[^@/:]+@[^@/:]+")


class Reading(NamedTuple):
    """One way to read a name: what a provider calls a model. Without a provider, anybody's."""

    provider: str | None
    name: str


def provider_of(name: str) -> str:
    """LiteLLM's short name of a provider, from one of the names it goes by."""
    name = name.lower().removeprefix("text-completion-")
    for family in ("vertex_ai", "fireworks_ai"):
        if name.startswith(f"{family}-"):
            return family
    return _PROVIDERS.get(name, name)


def masked(name: str) -> str:
    """A name that can be shown: short, with the account number of an ARN blotted out."""
    shown = _ANY_ARN.sub(r"\1************", name)
    return shown if len(shown) <= 200 else f"{shown[:197]}..."


def readings(model: str, provider: str | None = None) -> Iterator[Reading]:
    """How a model's name can be read exactly, from the fullest reading to the barest.

    Args:
        model: the name that the call uses, with or without provider, route and region in front.
        provider: the provider, where the caller knows it.
    """
    if len(model) > _MAX_LENGTH or model.count("/") > _MAX_SEGMENTS:
        return
    served_by = provider_of(provider) if provider else None
    rest = model.strip().removeprefix("models/")
    path = _VERTEX.match(rest)
    if path is not None:
        rest = rest[path.end() :]
    if path is not None and served_by in (None, "vertex_ai"):
        yield Reading("vertex_ai", f"{path[1]}/{rest}")
    if served_by is None and path is not None:
        yield Reading("vertex_ai", rest)
    arn = _ARN.search(rest)
    if arn is not None:
        yield Reading("bedrock", f"{arn[1]}/{arn[3]}")
        served_by, rest = "bedrock", arn[3]
    yield Reading(served_by, rest)
    if served_by is None and _AT_VERTEX.fullmatch(rest):
        yield Reading("vertex_ai", rest)
    rest = _slashed(rest)
    while "/" in rest and not rest.startswith("arn:"):
        head, rest = rest.split("/", 1)
        if head in _ROUTES or head in _AREAS or _REGION.fullmatch(head):
            pass
        elif served_by is None or served_by in _GATEWAYS or served_by == provider_of(head):
            served_by = provider_of(head)
        yield Reading(served_by, _tuned(rest))
    if rest.startswith("ft:"):
        yield Reading(served_by, _tuned(rest))


def opened(reading: Reading) -> Iterator[Reading]:
    """Whose price a reading may have instead: anybody's behind a gateway, OpenAI's on Azure."""
    if reading.provider in _GATEWAYS:
        yield Reading(None, reading.name)
    elif reading.provider == "azure":
        yield Reading("openai", reading.name)


def relaxed(name: str) -> Iterator[str]:
    """Names that a model may be listed under, from the closest: without version, date or region."""
    seen = {name}
    queue = [name]
    while queue:
        current = queue.pop(0)
        for closer in _one_off(current):
            if closer and closer not in seen:
                seen.add(closer)
                queue.append(closer)
                yield closer


def _one_off(name: str) -> Iterator[str]:
    if (version := _VERSION.search(name)) and not name.startswith("@"):
        yield f"{name[: version.start()]}-{version[0][1:]}"
        yield name[: version.start()]
    yield _CONTEXT.sub("", name)
    yield _DATE.sub("", name)
    yield _AREA.sub("", name, count=1)


def _slashed(name: str) -> str:
    """``openai:gpt-4o`` as ``openai/gpt-4o``."""
    head, _, model = name.partition(":")
    return f"{head}/{model}" if provider_of(head) in _BEFORE_COLON else name


def _tuned(name: str) -> str:
    """``ft:BASE:org:name:id`` as ``ft:BASE``, under which its rates are listed."""
    return ":".join(name.split(":")[:2]) if name.startswith("ft:") else name
