"""Middleware for `create_agent`: a refusal ends the agent with words, and calls are made to fit what is left.

It needs no handler in the callbacks of the run, and goes well with one. Without one each invocation of the agent is
one utterance of whom the run's metadata names.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse, hook_config
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from typing_extensions import override

from llm_budget_hooks.engine import BudgetEngine, Utterance
from llm_budget_hooks.engine.utterance import current_utterance
from llm_budget_hooks.errors import BudgetExceeded
from llm_budget_hooks.langchain.calls import step_of
from llm_budget_hooks.langchain.clamp import clamped_output
from llm_budget_hooks.langchain.refusal import refused
from llm_budget_hooks.langchain.runs import plan_in, root_here, text_in
from llm_budget_hooks.langchain.tokens import has_cache_marks, hears, input_bound
from llm_budget_hooks.models import Call

_BOUNDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _latest(_: str, new: str) -> str:
    return new


class BudgetState(AgentState[Any]):
    """What the middleware remembers between the nodes of one invocation."""

    budget_utterance: NotRequired[Annotated[str, PrivateStateAttr, _latest]]
    budget_refused: NotRequired[Annotated[str, PrivateStateAttr, _latest]]


class BudgetMiddleware(AgentMiddleware[BudgetState, Any, Any]):
    """Ends an agent whose budget is spent with a message that its user can read.

    With ``clamp = true`` in the policy it lowers ``max_tokens`` to what the call's hold pays for and the budgets leave;
    on a soft cutoff it asks the cheaper model instead. A cancelled call is settled at once.

    Attributes:
        engine: whose budgets count.
        cheaper: the model for a soft cutoff.
        min_output_tokens: the least that ``max_tokens`` is lowered to.

    Args:
        engine: whose budgets count.
        cheaper: a model of the tier ``cheap`` for when a spend limit is reached under ``cutoff = "soft"``; None: none.
        min_output_tokens: below this an answer is of no use, and the call is refused if it does not fit.
    """

    state_schema = BudgetState

    def __init__(
        self, engine: BudgetEngine, *, cheaper: BaseChatModel | None = None, min_output_tokens: int = 64
    ) -> None:
        super().__init__()
        self.engine = engine
        self.cheaper = cheaper
        self.min_output_tokens = min_output_tokens

    @override
    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: BudgetState, runtime: Any) -> dict[str, Any] | None:
        """Begin the utterance where no handler does; an answer that is planned above its ceiling ends here."""
        begun = {"budget_utterance": f"lc-{os.urandom(10).hex()}", "budget_refused": ""}
        try:
            scope = self._own_scope({**state, **begun})
            if scope is not None:
                scope.start()
        except BudgetExceeded as error:
            return {**begun, "messages": [_farewell(error)], "jump_to": "end"}
        return begun

    @override
    @hook_config(can_jump_to=["end"])
    def before_model(self, state: BudgetState, runtime: Any) -> dict[str, Any] | None:
        """End the agent after a refusal inside a tool."""
        text = state.get("budget_refused")
        return {"messages": [AIMessage(text, response_metadata=_MARK)], "jump_to": "end"} if text else None

    @override
    def after_agent(self, state: BudgetState, runtime: Any) -> None:
        """Hold the actual cost against the answer's ceiling, where no handler does."""
        scope = self._own_scope(state)
        if scope is not None:
            scope.output = state["messages"][-1] if state["messages"] else None
            try:
                scope.finish()
            except BudgetExceeded as error:
                raise refused(error) from None

    @override
    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | AIMessage:
        """Make the call fit, make it, and turn a refusal into the agent's last words."""
        with self._scope(request.state):
            try:
                return handler(self._fitted(request))
            except BudgetExceeded as error:
                second = self._cheaper(request, error)
                if second is None:
                    return _farewell(error)
            try:
                return handler(self._fitted(second))
            except BudgetExceeded as error:
                return _farewell(error)

    @override
    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | AIMessage:
        """Same as `wrap_model_call`, awaited; a cancelled call is settled at once."""
        with self._scope(request.state):
            try:
                return await handler(self._fitted(request))
            except BudgetExceeded as error:
                second = self._cheaper(request, error)
                if second is None:
                    return _farewell(error)
            except asyncio.CancelledError:
                self._settle_cancelled()
                raise
            try:
                return await handler(self._fitted(second))
            except BudgetExceeded as error:
                return _farewell(error)
            except asyncio.CancelledError:
                self._settle_cancelled()
                raise

    @override
    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Let a tool's own model calls belong to the agent's utterance, and end the agent when one is refused."""
        with self._scope(request.state):
            try:
                return handler(request)
            except BudgetExceeded as error:
                return _tool_farewell(request, error)

    @override
    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Same as `wrap_tool_call`, awaited."""
        with self._scope(request.state):
            try:
                return await handler(request)
            except BudgetExceeded as error:
                return _tool_farewell(request, error)

    def _scope(self, state: Any) -> AbstractContextManager[None]:
        scope = self._own_scope(state)
        return nullcontext() if scope is None else scope.current()

    def _own_scope(self, state: Mapping[str, Any]) -> Utterance | None:
        """The utterance of an invocation that neither a handler nor the application has begun."""
        if root_here(self.engine) is not None or current_utterance(self.engine) is not None:
            return None
        metadata = _metadata()
        who = {name: text_in(metadata, name) for name in ("tenant", "user", "feature")}
        id = text_in(metadata, "utterance") or state.get("budget_utterance")
        return self.engine.utterance(**who, id=id, plan=plan_in(metadata))

    def _fitted(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """The request with ``max_tokens`` lowered, if the policy wants that and it is needed."""
        if not self.engine.policy.clamp:
            return request
        root = root_here(self.engine)
        scope = root.scope if root is not None else current_utterance(self.engine)
        call = self._call(request, scope)
        fits = clamped_output(self.engine, call, scope)
        if fits is None or (call.max_output_tokens is not None and call.max_output_tokens <= fits):
            return request
        settings = {name: value for name, value in request.model_settings.items() if name not in _BOUNDS}
        return request.override(model_settings={**settings, "max_tokens": max(fits, self.min_output_tokens)})

    def _call(self, request: ModelRequest[Any], scope: Utterance | None) -> Call:
        model = _model_name(request.model)
        messages = [*([request.system_message] if request.system_message else []), *request.messages]
        tools = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
        return Call(
            model=model,
            tenant=scope.tenant if scope is not None else None,
            user=scope.user if scope is not None else None,
            feature=scope.feature if scope is not None else None,
            utterance=scope.id if scope is not None else None,
            input_tokens=input_bound(messages, {"tools": tools}, model),
            max_output_tokens=_asked(request),
            step=step_of(_metadata(), None, model),
            writes_cache=has_cache_marks(messages),
            audio=hears(messages),
        )

    def _cheaper(self, request: ModelRequest[Any], error: BudgetExceeded) -> ModelRequest[Any] | None:
        """The request to the cheaper model, where a soft cutoff allows one."""
        if self.cheaper is None or request.model is self.cheaper or error.code not in ("spend", "tokens"):
            return None
        return request.override(model=self.cheaper) if self._cutoff(error) == "soft" else None

    def _cutoff(self, error: BudgetExceeded) -> str:
        policy = self.engine.policy
        root = root_here(self.engine)
        scope = root.scope if root is not None else current_utterance(self.engine)
        own = policy.tenants.get((scope.tenant if scope is not None else None) or "")
        return (own.cutoff if own is not None and error.scope != "global" else None) or policy.cutoff

    def _settle_cancelled(self) -> None:
        root = root_here(self.engine)
        if root is not None:
            root.cancelled(self.engine, asyncio.current_task())


_MARK = {"budget_refused": True}


def _farewell(error: BudgetExceeded) -> AIMessage:
    return AIMessage(error.public_message, response_metadata={**_MARK, "budget_code": error.code})


def _tool_farewell(request: ToolCallRequest, error: BudgetExceeded) -> Command[Any]:
    said = ToolMessage(error.public_message, tool_call_id=request.tool_call["id"], status="error")
    return Command(update={"messages": [said], "budget_refused": error.public_message})


def _metadata() -> Mapping[str, Any]:
    return (var_child_runnable_config.get() or {}).get("metadata") or {}


def _model_name(model: BaseChatModel) -> str:
    for name in ("model_name", "model"):
        value = getattr(model, name, None)
        if isinstance(value, str) and value:
            return value
    return model._llm_type


def _asked(request: ModelRequest[Any]) -> int | None:
    given = [request.model_settings.get(name) for name in _BOUNDS]
    given += [getattr(request.model, name, None) for name in _BOUNDS]
    return next((n for n in given if type(n) is int and n > 0), None)
