"""Where the demo's calls go: a provider on loopback that counts them, or the real one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType, TracebackType
from typing import Any, Self

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.pricing import Price
from llm_budget_hooks.testing import FakeProvider, Reply

FAKE_MODEL = "gpt-4o"
_LATENCY_S = 0.25
Script = Callable[[dict[str, Any]], Reply | None]


class Target:
    """A model at a provider.

    Attributes:
        model: its name, as LiteLLM knows it.
        provider: the fake one; None for a real one.
    """

    def __init__(self, model: str | None) -> None:
        self.model = model or FAKE_MODEL
        self.provider = None if model else FakeProvider(latency_s=_LATENCY_S, output_tokens=_all_of_it)

    def __enter__(self) -> Self:
        if self.provider is not None:
            self.provider.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.provider is not None:
            self.provider.__exit__(kind, error, trace)

    def play(self, script: Script | None, share: int = 100) -> None:
        """Let the fake provider follow a script and use a share, in percent, of each call's output bound."""
        if self.provider is not None:
            self.provider.reset()
            self.provider.reply = script
            self.provider.output_tokens = lambda request: _all_of_it(request) * share // 100

    def requests(self) -> int | None:
        """How many requests have reached the provider since `play`; None where nobody counts them."""
        return None if self.provider is None else self.provider.count

    def billed_nusd(self, price: Price) -> int | None:
        """What the provider bills for them by its own records."""
        if self.provider is None:
            return None
        return sum(price.estimate_nusd(r.input_tokens, r.output_tokens) for r in self.provider.requests)

    def for_litellm(self) -> dict[str, Any]:
        """The arguments of a LiteLLM call that lead here."""
        if self.provider is None:
            return {"model": self.model}
        return {"model": f"openai/{self.model}", "api_base": self.provider.base_url, "api_key": "demo"}

    def chat_model(self, max_tokens: int) -> Any:
        """A LangChain chat model that leads here.

        Raises:
            ConfigurationError: the package that it takes is not installed.
        """
        if self.provider is not None:
            made = needed("langchain_openai", "langchain-openai").ChatOpenAI
            return made(model=self.model, base_url=self.provider.base_url, api_key="demo", max_tokens=max_tokens)
        if "/" not in self.model or self.model.startswith("openai/"):
            made = needed("langchain_openai", "langchain-openai").ChatOpenAI
            return made(model=self.model.removeprefix("openai/"), max_tokens=max_tokens)
        made = needed("langchain_litellm", "langchain-litellm").ChatLiteLLM
        return made(model=self.model, max_tokens=max_tokens)


def needed(module: str, package: str) -> ModuleType:
    """An optional module.

    Raises:
        ConfigurationError: it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise
        raise ConfigurationError(
            f"The demo needs {package}, which is not installed: pip install 'llm_budget_hooks[demo]' {package}"
        ) from None


def check_key(model: str) -> None:
    """Make sure that the environment has what a real provider asks for.

    Raises:
        ConfigurationError: a variable is missing, or LiteLLM knows no such model.
    """
    import litellm

    found: Mapping[str, Any] = litellm.validate_environment(model)
    if not found["keys_in_environment"]:
        missing = " and ".join(found["missing_keys"]) or "a provider prefix, such as openai/ or anthropic/"
        raise ConfigurationError(f"--model {model} needs {missing}.")


def _all_of_it(request: dict[str, Any]) -> int:
    return int(request.get("max_completion_tokens") or request.get("max_tokens") or 40)
