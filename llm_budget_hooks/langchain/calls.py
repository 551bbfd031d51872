"""From the start of a model run, as LangChain announces it, to a `Call`.

The step is the first there is of: ``step`` in the metadata, the agent's name, the graph's node, the run's name
(``with_config(run_name="classifier")``), the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard
from uuid import UUID

from langchain_core.messages import BaseMessage

from llm_budget_hooks.langchain.runs import Root
from llm_budget_hooks.langchain.through_litellm import Route
from llm_budget_hooks.langchain.tokens import has_cache_marks, hears, input_bound
from llm_budget_hooks.models import Call
from llm_budget_hooks.pricing.asked import number

_STEP_KEYS = ("step", "lc_agent_name", "langgraph_node")
# langchain-openai sends a `max_tokens` of the call in place of the `max_completion_tokens` of the model.
_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens_to_sample")
_LS_BOUND = ("ls_max_tokens",)
_CHOICES = ("n", "best_of", "candidate_count")
_MODELS = ("model", "model_name", "_type")
_TIERS = frozenset({"priority", "flex", "batch"})
Places = tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class Start:
    """A model run about to begin.

    Attributes:
        run_id, parent_run_id: its place in the tree of runs.
        inputs: the messages, or the prompts of a text model.
        metadata: of the run, inherited parts included.
        name: of the run, if somebody gave it one.
        params: the invocation parameters.
        prompts: how many prompts its request to LangChain has.
        route: what LiteLLM is asked for, where the model is LiteLLM's.
    """

    run_id: UUID
    parent_run_id: UUID | None
    inputs: Sequence[BaseMessage] | Sequence[str]
    metadata: Mapping[str, Any]
    name: str | None
    params: Mapping[str, Any]
    prompts: int = 1
    route: Route | None = None

    def sent(self) -> Places:
        """The places whose parameters reach the provider: the parameters, and what is put into the body as it is."""
        params = self.params if self.route is None else self.route.asked
        extra = params.get("extra_body")
        return (params, extra) if isinstance(extra, Mapping) else (params,)


def model_of(start: Start, places: Places) -> str:
    """The model asked for; where nothing names it, the kind of model, so that a price can be written for it.

    Args:
        start: says it.
        places: whose parameters reach the provider.
    """
    if start.route is not None:
        return start.route.model
    if len(places) > 1 and _is_name(extra := places[1].get("model")):
        return extra
    value = start.metadata.get("ls_model_name")
    if _is_name(value):
        return value
    for name in _MODELS:
        value = start.params.get(name)
        if _is_name(value):
            return value
    return "unnamed-model"


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def hold_id(run_id: UUID) -> str:
    """The name of a run's hold: the same from every handler, so that two of them hold once."""
    return f"r-{run_id.int:032x}"


def step_of(metadata: Mapping[str, Any], name: str | None, model: str) -> str:
    """The named call site: see the module."""
    for key in _STEP_KEYS:
        value = metadata.get(key)
        if isinstance(value, str) and value:
            return value
    return name or model


def output_bound(start: Start, places: Places) -> int | None:
    """The most output tokens that the provider was told, for all choices together; None if there is no bound.

    Args:
        start: says it.
        places: whose parameters reach the provider.
    """
    bound = _first_count(places[0], _BOUNDS)
    if bound is None and start.route is None:
        bound = _first_count(start.metadata, _LS_BOUND)
    if len(places) > 1:
        bound = max(bound or 0, _first_count(places[1], _BOUNDS) or 0) or None
    if bound is None:
        return None
    choices = (place[name] for place in places for name in _CHOICES if name in place)
    return bound * max(map(number, choices), default=1)


def _first_count(source: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = source.get(name)
        if type(value) is int and value > 0:
            return value
    return None


def call_of(start: Start, root: Root) -> Call:
    """The call that a start announces, named by its run, as its root's."""
    params, places = start.params, start.sent()
    model = model_of(start, places)
    tiers = [tier for place in places if (tier := place.get("service_tier")) in _TIERS]
    parts = [each for each in start.inputs if not isinstance(each, str) and type(each.content) is not str]
    return Call(
        model=model,
        tenant=root.tenant,
        user=root.user,
        feature=root.feature,
        input_tokens=input_bound(start.inputs, params, model),
        max_output_tokens=output_bound(start, places),
        step=step_of(start.metadata, start.name, model),
        utterance=root.scope.id,
        id=hold_id(start.run_id),
        service_tier=tiers[-1] if tiers else None,
        writes_cache="cache_control" in params or (bool(parts) and has_cache_marks(parts)),
        audio="audio" in (params.get("modalities") or ()) or (bool(parts) and hears(parts)),
    )
