"""The callback handler: reserves where a model run starts, settles where it ends.

One blocking handler serves the blocking and the awaited forms alike: LangChain swallows what an async handler
raises on a blocking path, and a graph has such paths inside its awaited ones. It runs inline, so it blocks the
event loop for one trip to the store at the start and one at the end of each call: microseconds in memory and on
SQLite, a network round trip on Redis, and never longer than the policy's ``store_timeout``. Where that is too long
for a loop, run the blocking form in threads.

Failure: what goes wrong inside the handler at a start refuses the call, or lets it through under
``on_store_error = "allow"``; what goes wrong at an end is logged, and the hold then ends by its own timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from typing_extensions import override

from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.engine.tickets import open_ticket
from llm_budget_hooks.errors import AlreadyResolved, BudgetExceeded, ConfigurationError, ReservationConflict
from llm_budget_hooks.langchain.batches import abandoned_batch, join_batch
from llm_budget_hooks.langchain.calls import Start, call_of, hold_id, step_of
from llm_budget_hooks.langchain.opened import Opened
from llm_budget_hooks.langchain.providers import is_litellm, may_use_litellm
from llm_budget_hooks.langchain.refusal import BudgetRefused, refused
from llm_budget_hooks.langchain.retries import stop_retries
from llm_budget_hooks.langchain.runs import Root, Runs, enter
from llm_budget_hooks.langchain.through_litellm import Route
from llm_budget_hooks.langchain.usage import Outcome, outcome_of, usage_of
from llm_budget_hooks.models import Call

_log = logging.getLogger("llm_budget_hooks")
_NONE: Mapping[str, Any] = {}
P = ParamSpec("P")


class BudgetCallbackHandler(BaseCallbackHandler):
    """Caps every model call under a run: ``config={"callbacks": [BudgetCallbackHandler(engine)]}``.

    The root run is the utterance: it is counted once, and all calls under it are one answer. Whose it is comes from a
    surrounding `engine.utterance()`, else from the root's ``metadata``: ``tenant``, ``user``, ``feature``,
    ``utterance`` (an id, for a graph that is resumed), ``plan`` (the names of the steps, checked before any model).
    It is pinned when the root begins; code inside cannot override it.

    A root that was refused by the kill switch, its answer's ceiling or a spent budget of its user is refused from
    then on, whatever retries or falls back around it; a model of the tier ``cheap`` is always asked for.

    Handlers of one engine share what they know, can be shared by threads and loops, copied and pickled.

    Attributes:
        engine: whose budgets count.

    Args:
        engine: whose budgets count.
    """

    raise_error = True
    run_inline = True

    def __init__(self, engine: BudgetEngine) -> None:
        self.engine = engine
        self._runs = Runs.of(engine)
        stop_retries()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.engine,)

    @override
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reserve for a chat model, or refuse."""
        inputs = messages[0] if len(messages) == 1 else [m for batch in messages for m in batch]
        self._start(run_id, parent_run_id, inputs, metadata, kwargs, messages[0] if messages else messages)

    @override
    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reserve for a text model, or refuse."""
        self._start(run_id, parent_run_id, prompts, metadata, kwargs, prompts)

    @override
    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin the utterance with the root; reserve for a decision model, which LangChain announces as a chain."""
        if kwargs.get("run_type") == "llm":
            self._start(run_id, parent_run_id, [str(inputs)], metadata, kwargs, inputs)
        else:
            self._enter(run_id, parent_run_id, metadata)

    @override
    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take note of where a tool hangs in the tree of runs."""
        self._enter(run_id, parent_run_id, metadata)

    @override
    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take note of where a retriever hangs in the tree of runs."""
        self._enter(run_id, parent_run_id, metadata)

    @override
    def on_llm_end(
        self, response: LLMResult, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Settle; the end of a model that is a root is the end of its answer."""
        run = run_id.int
        try:
            self._ended(run, parent_run_id, response)
        except Exception:  # noqa: BLE001 - an answer that was paid for is not lost over this
            _failed_at_end()
        root = self._runs.known(run)
        if root is not None and root.id == run:
            self._leave(root, _output(response))

    @override
    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """Release what the provider refused; settle what it may have begun."""
        self._quietly(self._failed, run_id.int, error, kwargs.get("response"))
        self._left(run_id.int, None, error)

    @override
    def on_chain_end(self, outputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """End the answer with its root: what is open is spent for now, and the actual is held against the ceiling."""
        if run_id.int in self._runs.calls:
            self._quietly(self._decided, run_id.int, outputs)
        self._left(run_id.int, outputs)

    @override
    def on_chain_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """End the answer with its root."""
        if run_id.int in self._runs.calls:
            self._quietly(self._failed, run_id.int, error, None)
        self._left(run_id.int, None, error)

    @override
    def on_tool_end(self, output: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """End the answer where a tool is the root."""
        self._left(run_id.int, output)

    @override
    def on_tool_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """End the answer where a tool is the root."""
        self._left(run_id.int, None, error)

    @override
    def on_retriever_end(
        self, documents: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """End the answer where a retriever is the root."""
        self._left(run_id.int, documents)

    @override
    def on_retriever_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any
    ) -> None:
        """End the answer where a retriever is the root."""
        self._left(run_id.int, None, error)

    def _enter(self, run_id: UUID, parent: UUID | None, metadata: dict[str, Any] | None) -> None:
        run = run_id.int
        try:
            root = self._runs.root(self.engine, run, parent, metadata or _NONE)
            if root.id == run:
                enter(root)
        except Exception as error:  # noqa: BLE001 - what it means is decided there
            self._stopped(error)

    def _start(
        self,
        run_id: UUID,
        parent: UUID | None,
        inputs: Sequence[BaseMessage] | Sequence[str],
        metadata: dict[str, Any] | None,
        more: dict[str, Any],
        announced: object,
    ) -> None:
        runs, run = self._runs, run_id.int
        before = runs.calls.get(run)
        if before is not None and before.was_announced(announced):
            return
        if runs.gone:
            self._collect()
        params = more.get("invocation_params") or _NONE
        start = Start(run_id, parent, inputs, metadata or _NONE, more.get("name"), params, more.get("batch_size") or 1)
        sole = before is None and runs.opening.setdefault(run, announced) is announced
        try:
            self._opened(start, announced, sole)
        except Exception as error:  # noqa: BLE001 - what it means is decided there
            self._stopped(error)
        finally:
            if sole:
                del runs.opening[run]

    def _stopped(self, error: Exception) -> None:
        """What becomes of a call whose start failed: only refusals and mistakes of configuration stop it as such."""
        if isinstance(error, BudgetExceeded):
            raise refused(error) from None
        if isinstance(error, ConfigurationError):
            raise error
        if self.engine.policy.on_store_error != "allow":
            raise _broken(error) from error
        _log.exception("The budget handler failed, and a call was let through without a hold.")

    def _opened(self, start: Start, announced: object, sole: bool) -> None:
        run = start.run_id.int
        if is_litellm(start.metadata):
            start.route = Route.of(start.params, self.engine.prices)
        root = self._runs.root(self.engine, run, start.parent_run_id, start.metadata)
        try:
            reservation = self._reserve(start, root, sole)
        except BudgetExceeded:
            self._abandon()
            raise
        ticket = open_ticket(self.engine, reservation.id) if may_use_litellm(start.metadata) else None
        opened = Opened(run, reservation, root, ticket, announced)
        opened.route = start.route
        if start.prompts > 1:
            opened.batch = join_batch(opened, start.prompts)
            # A refusal at the end of one prompt would lose the answers and the ends of the others.
            root.streamed |= root.id == run
        other = self._runs.replace(opened)
        if other is not None:
            self._sweep(other, starting=True)
        root.calls[run] = opened
        opened.watch(self._sweep)
        self._runs.follow(start.run_id, opened, self._collect)

    def _reserve(self, start: Start, root: Root, sole: bool) -> Reservation:
        """Reserve under the run's id, or without one where somebody uses that twice: each use is an attempt."""
        call = call_of(start, root)
        if sole:
            try:
                return root.reserve(self.engine, call)
            except (AlreadyResolved, ReservationConflict):
                pass
        return root.reserve(self.engine, replace(call, id=None))

    def _abandon(self) -> None:
        """One prompt of a `generate` is refused, so those before it are not sent either."""
        for opened in abandoned_batch():
            if self._taken(opened.run, opened) is not None:
                self._quietly(self.engine.release, opened.reservation)

    def _taken(self, run: int, event: object) -> Opened | None:
        """The call that this end is the first final one of."""
        opened = self._runs.take(run, event)
        if opened is None or not opened.claim(final=True):
            return None
        self._runs.ended.put(run, True)
        opened.root.calls.pop(run, None)
        return opened

    def _ended(self, run: int, parent: UUID | None, response: LLMResult) -> None:
        opened = self._taken(run, response)
        if opened is not None:
            opened.settle(self.engine, outcome_of(response, alone=opened.batch is None))
        elif run not in self._runs.ended:
            self._unheld(run, parent, outcome_of(response))

    def _unheld(self, run: int, parent: UUID | None, outcome: Outcome) -> None:
        """Book a call whose start was not seen; nothing can be refused any more."""
        self._runs.ended.put(run, True)
        if outcome.cached or outcome.usage is None or outcome.model is None:
            _log.warning("A model call ended that was not seen to start, and it has no usage to book.")
            return
        root = self._runs.known(None if parent is None else parent.int)
        whose = (root.tenant, root.user, root.feature) if root is not None else (None, None, None)
        tenant, user, feature = whose
        call = Call(
            model=outcome.model, tenant=tenant, user=user, feature=feature, id=hold_id(UUID(int=run)),
            step=step_of(_NONE, None, outcome.model), utterance=root.scope.id if root is not None else f"lc-{run:032x}",
        )  # fmt: skip
        self.engine.charge(call, usage=outcome.usage, force=True)

    def _failed(self, run: int, error: BaseException, response: LLMResult | None) -> None:
        opened = self._runs.calls.get(run)
        if opened is None or opened.has_passed(error):
            return
        opened.root.calls.pop(run, None)
        if opened.fail(self.engine, error, outcome_of(response)):
            self._runs.take(run, error)
            self._runs.ended.put(run, True)
        # The blocking form tells the prompts beside it nothing; what the awaited form tells them corrects this.
        for other in opened.batch.calls if opened.batch is not None else ():
            self._sweep(other)

    def _decided(self, run: int, outputs: Any) -> None:
        opened = self._taken(run, outputs)
        if opened is not None:
            usage = usage_of(getattr(outputs, "usage", None) or _NONE)
            opened.settle(self.engine, Outcome(usage, model=getattr(outputs, "model", None)))

    def _sweep(self, opened: Opened, *, starting: bool = False) -> None:
        """The call's task or root has ended without it: what it holds is spent, until it says otherwise."""
        if opened.claim(final=False, starting=starting):
            self._quietly(self.engine.settle, opened.reservation)

    def _collect(self) -> None:
        """End the calls that nothing refers to any more, so that no end can come."""
        gone = self._runs.gone
        while gone:
            opened = self._runs.calls.get(gone.popleft())
            if opened is not None:
                self._sweep(opened)

    def _left(self, run: int, output: Any, error: BaseException | None = None) -> None:
        root = self._runs.known(run)
        if root is not None and root.id == run:
            self._leave(root, output, error)

    def _leave(self, root: Root, output: Any, error: BaseException | None = None) -> None:
        if root.ended:
            return
        root.ended = True
        for opened in list(root.calls.values()):
            self._sweep(opened)
        root.calls.clear()
        root.scope.output = output
        try:
            root.scope.finish(error)
        except BudgetExceeded as over:
            if not root.streamed:
                raise refused(over) from None
            _log.info("A streamed answer cost more than its ceiling.")
        except Exception:  # noqa: BLE001 - an answer that was paid for is not lost over this
            _log.exception("The budget handler failed at the end of an answer.")
        finally:
            root.scope.output = None  # the root stays known for long, and answers are large

    def _quietly(self, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Carry out what must not disturb an answer that was paid for."""
        try:
            step(*args, **kwargs)
        except Exception:  # noqa: BLE001 - an answer that was paid for is not lost over this
            _failed_at_end()


def _failed_at_end() -> None:
    _log.exception("The budget handler failed at the end of a call; its hold ends by its timeout.")


def _broken(error: Exception) -> BudgetRefused:
    return BudgetRefused(
        f"The budget handler failed ({type(error).__name__}), so the call was refused.",
        code="store_unavailable",
        http_status=503,
        public_message="Service is busy. Try again in a moment.",
    )


def _output(response: LLMResult) -> Any:
    first = response.generations[0] if response.generations else []
    return getattr(first[0], "message", first[0].text) if first else None
