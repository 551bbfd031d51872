"""`BudgetCallback`: what makes LiteLLM ask an engine before it calls a provider."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import litellm
from litellm.integrations.custom_logger import CustomLogger

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetError, ConfigurationError
from llm_budget_hooks.litellm.calls import call_of
from llm_budget_hooks.litellm.entry import engine_in_charge, install
from llm_budget_hooks.litellm.media import cost_of_hit
from llm_budget_hooks.litellm.renewal import expect
from llm_budget_hooks.litellm.tokens import warm

_log = logging.getLogger("llm_budget_hooks")
_LISTS: Final = (
    "callbacks", "input_callback", "success_callback", "failure_callback", "_async_success_callback",
    "_async_failure_callback", "_async_input_callback",
)  # fmt: skip


class BudgetCallback(CustomLogger):
    """Caps every call through LiteLLM while it is in ``litellm.callbacks``: SDK and Router, async and sync.

    Constructing it puts a function around the one that each entry point of LiteLLM keeps to call the provider, once
    per process (see `llm_budget_hooks.litellm.entry`), and sees that it is there. That function does nothing while no
    BudgetCallback is registered. The hold is taken after LiteLLM's cache and before the provider is contacted; the
    cost is booked before the caller sees the answer, that of a stream at its end or where it is left.

    Args:
        engine: decides and books.

    Attributes:
        budget_engine: the engine.
        budget_engine_name: tells callbacks of different engines apart where LiteLLM drops one that looks alike.

    Raises:
        ConfigurationError: `engine` is no engine, or this version of LiteLLM cannot be capped.
    """

    def __init__(self, engine: BudgetEngine) -> None:
        if not isinstance(engine, BudgetEngine):
            raise ConfigurationError(f"BudgetCallback takes a BudgetEngine, not {engine!r}")
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]  # untyped in some versions of LiteLLM
        self.budget_engine = engine
        self.budget_engine_name = f"{engine!r} {id(engine):x}"
        install()
        expect(engine)
        warm()

    def uninstall(self) -> None:
        """Take it out of every list of LiteLLM. Calls that run are still settled."""
        for name in _LISTS:
            found = getattr(litellm, name, None)
            if isinstance(found, list):
                found[:] = [callback for callback in found if callback is not self]

    def log_success_event(
        self,
        kwargs: Mapping[str, Any],
        response_obj: Any,  # noqa: ARG002 - passed by keyword
        start_time: Any,  # noqa: ARG002 - passed by keyword
        end_time: Any,  # noqa: ARG002 - passed by keyword
    ) -> None:
        """Record an answer from LiteLLM's cache, which costs nothing but what guardrails cost."""
        if not self._is_hit(kwargs):
            return
        try:
            self.budget_engine.charge(
                call_of(self.budget_engine, *_asked(kwargs)), cost=cost_of_hit(kwargs), force=True
            )
        except BudgetError as error:
            _log.warning("An answer from the cache was not recorded: %s", type(error).__name__)

    async def async_log_success_event(
        self,
        kwargs: Mapping[str, Any],
        response_obj: Any,  # noqa: ARG002 - passed by keyword
        start_time: Any,  # noqa: ARG002 - passed by keyword
        end_time: Any,  # noqa: ARG002 - passed by keyword
    ) -> None:
        """Same as `log_success_event`, awaited."""
        if not self._is_hit(kwargs):
            return
        try:
            await self.budget_engine.acharge(
                call_of(self.budget_engine, *_asked(kwargs)), cost=cost_of_hit(kwargs), force=True
            )
        except BudgetError as error:
            _log.warning("An answer from the cache was not recorded: %s", type(error).__name__)

    def _is_hit(self, kwargs: Mapping[str, Any]) -> bool:
        return kwargs.get("cache_hit") is True and engine_in_charge() is self.budget_engine

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.budget_engine,)


def _asked(kwargs: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The entry point and the arguments of a call, from what its event tells."""
    params = kwargs.get("litellm_params") or {}
    given = {"metadata": params.get("metadata"), "litellm_metadata": params.get("litellm_metadata")}
    return str(kwargs.get("call_type") or "completion"), {**kwargs, **given}
