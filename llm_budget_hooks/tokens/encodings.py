"""The tokenizers that need no network: those whose files the installed litellm brings.

litellm is not imported for them, and tiktoken only when one is asked for. A tokenizer takes half a second to load, so
only `warm` loads one; no call waits for it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import tiktoken

_log = logging.getLogger("llm_budget_hooks")
_FOLDER: Final = "litellm/litellm_core_utils/tokenizers"
_LOADED: dict[str, tiktoken.Encoding] = {}
_SAME: Final = {"o200k_harmony": "o200k_base"}
_TUNED: Final = re.compile(r"^ft:([^:]+).*$")


def warm(name: str = "o200k_base") -> bool:
    """Load a tokenizer, so that prompts are counted with it from now on; says whether there is one.

    Args:
        name: as tiktoken calls it.
    """
    if name not in _LOADED:
        found = _load(name)
        if found is None:
            return False
        _LOADED[name] = found
    return True


def loaded(model: str) -> tiktoken.Encoding | None:
    """The tokenizer of a model, if it was loaded."""
    return _LOADED.get(_name_for(model) or "") if _LOADED else None


def any_loaded() -> tiktoken.Encoding | None:
    """Some tokenizer that was loaded, for models whose own is not known."""
    return next(iter(_LOADED.values()), None)


@lru_cache(maxsize=1024)
def _name_for(model: str) -> str | None:
    """The tokenizer of a model by tiktoken's own table, which knows OpenAI's models only."""
    from tiktoken.model import encoding_name_for_model

    bare = _TUNED.sub(r"\1", model.rpartition("/")[2])
    try:
        name = encoding_name_for_model(bare)
    except KeyError:
        return None
    return _SAME.get(name, name)


@cache
def _load(name: str) -> tiktoken.Encoding | None:
    try:
        import tiktoken
        from tiktoken import registry

        return registry.ENCODINGS.get(name) or tiktoken.Encoding(**_definition(name))
    except (ImportError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        _log.debug("The tokenizer %s is not there: %s", name, type(error).__name__)
        return None


def _definition(name: str) -> dict[str, Any]:
    """What tiktoken says that an encoding is, with its ranks read from where litellm keeps them."""
    from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # it has no types

    fetching = getattr(openai_public, name)
    reading = FunctionType(fetching.__code__, {**vars(openai_public), "load_tiktoken_bpe": _ranks})
    found: dict[str, Any] = reading()
    return found


def _ranks(url: str, expected_hash: str | None = None) -> dict[bytes, int]:
    content = (_folder() / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()).read_bytes()
    if expected_hash is not None and hashlib.sha256(content).hexdigest() != expected_hash:
        raise ValueError("the file of a tokenizer is not what it should be")
    pairs = (line.split() for line in content.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _folder() -> Path:
    try:
        return Path(str(distribution("litellm").locate_file(_FOLDER)))
    except PackageNotFoundError as error:
        raise LookupError("litellm is not installed") from error
