"""The one place where LiteLLM is entered: inside its ``client`` decorator, around the function that calls the provider.

No callback of LiteLLM can stop a sync call, and an exception from one is retried past all hooks. But each entry
point is the decorator around a function that it keeps in a closure, and this function alone makes one attempt:
after LiteLLM's cache, once for each retry, in the caller's task or thread, whichever way the entry point was
imported. `install` puts a function around it that holds, calls and settles. It does nothing for as long as no
BudgetCallback is in ``litellm.callbacks``.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from types import CellType, FunctionType
from typing import Any, Final

import litellm
import litellm.utils

from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetExceeded, ConfigurationError
from llm_budget_hooks.litellm.attempts import Attempt
from llm_budget_hooks.litellm.calls import call_of, streams_usage
from llm_budget_hooks.litellm.refusal import BudgetRefused, TwoEngines, log_without_tracebacks, refused
from llm_budget_hooks.litellm.requests import PROXY_REQUEST, refusal_behind, remember, request_of
from llm_budget_hooks.litellm.streams import is_stream, metered
from llm_budget_hooks.pricing.asked import priced_name

_SYNC: Final = (
    "completion", "text_completion", "embedding", "responses", "image_generation", "image_edit", "speech",
    "transcription", "rerank",
)  # fmt: skip
_ASYNC: Final = (*(f"a{name}" for name in _SYNC), "anthropic_messages", "agenerate_content")
_REQUIRED: Final = frozenset((*_SYNC, *_ASYNC))
ENTRIES: Final = _REQUIRED | {
    "generate_content", "generate_content_stream", "agenerate_content_stream", "acompact_responses",
    "compact_responses", "image_variation", "aimage_variation", "amoderation",
}  # fmt: skip
_KEPT: Final = "original_function"
_MARK: Final = "_llm_budget_attempt"
_CHATS: Final = frozenset({"completion", "acompletion"})
_TEXTS: Final = frozenset({"text_completion", "atext_completion"})
_STREAMED: Final = _CHATS | _TEXTS
_LEFT_OUT: Final = "_litellm_strip_stream_usage"

_GOOGLES: Final = frozenset({
    "generate_content", "agenerate_content", "generate_content_stream", "agenerate_content_stream"
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry point: its name, that of the sync one, those of its arguments, and whether all in it is one hold."""

    name: str
    kind: str
    names: tuple[str, ...]
    whole: bool

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by their names."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}


def _no_attempt() -> None:
    """Stands for the reference to an attempt where there is none."""


_AROUND: ContextVar[Callable[[], Attempt | None]] = ContextVar("llm_budget_hooks_attempt", default=_no_attempt)
EXPLICIT: ContextVar[BudgetEngine | None] = ContextVar("llm_budget_hooks_explicit_engine", default=None)
_installing = threading.Lock()
_installed = False


def install() -> None:
    """Put the hold around all entry points, those that are imported later included. Harmless when done before.

    Raises:
        ConfigurationError: this LiteLLM keeps its functions elsewhere, so calls could not be stopped.
    """
    global _installed
    with _installing:
        if _installed:
            return
        for function in list(_decorated()):
            _surround(function)
        decorator = litellm.utils.client
        log_without_tracebacks()
        litellm.utils.client = litellm.client = _surrounding(decorator)  # type: ignore[attr-defined]  # re-exported there
        _installed = True
    self_test()


def self_test() -> None:
    """See that every entry point leads through here.

    Raises:
        ConfigurationError: naming those that do not.
    """
    missing = sorted(name for name in _REQUIRED if not _is_surrounded(getattr(litellm, name, None)))
    if missing:
        raise ConfigurationError(
            f"LiteLLM {_version()} has moved what BudgetCallback stands around, so these calls could not be stopped: "
            f"{', '.join(missing)}. Use a LiteLLM that this version of llm_budget_hooks supports."
        )


def engine_in_charge() -> BudgetEngine | None:
    """The engine whose BudgetCallback is registered now; None if there is none.

    Raises:
        TwoEngines: callbacks of several engines are registered.
    """
    explicit = EXPLICIT.get()
    if explicit is not None:
        return explicit
    found: BudgetEngine | None = None
    for callback in litellm.callbacks:
        engine = getattr(callback, "budget_engine", None)
        if engine is None or engine is found:
            continue
        if found is not None:
            raise TwoEngines(
                "litellm.callbacks holds BudgetCallbacks of two engines, so a call would have two payers. "
                "Keep one: litellm.callbacks = [BudgetCallback(engine)]. Tenants and budgets go into one policy."
            )
        found = engine
    return found


def _version() -> str:
    from importlib.metadata import version

    return version("litellm")


def _decorated() -> Iterator[FunctionType]:
    """The entry points of all modules of LiteLLM that are imported, without what is wrapped around them."""
    for name in _REQUIRED:
        getattr(litellm, name, None)
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if module is not None and (name == "litellm" or name.startswith("litellm.")):
            for value in list(vars(module).values()):
                function = _decorator_of(value) if isinstance(value, FunctionType) else None
                if function is not None and id(function) not in seen:
                    seen.add(id(function))
                    yield function


def _decorator_of(function: Any) -> FunctionType | None:
    """The function that ``client`` made, at or below this one."""
    while isinstance(function, FunctionType):
        if _KEPT in function.__code__.co_freevars:
            return function
        function = getattr(function, "__wrapped__", None)
    return None


def _cell(function: FunctionType) -> CellType:
    return (function.__closure__ or ())[function.__code__.co_freevars.index(_KEPT)]


def _surround(function: FunctionType) -> None:
    cell = _cell(function)
    original = cell.cell_contents
    if getattr(original, "__name__", "") in ENTRIES and not hasattr(original, _MARK):
        cell.cell_contents = around(original)


def _is_surrounded(function: Any) -> bool:
    made = _decorator_of(function)
    return made is not None and hasattr(_cell(made).cell_contents, _MARK)


def _surrounding(decorator: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(decorator)
    def client(original_function: Any) -> Any:
        function = decorator(original_function)
        made = _decorator_of(function)
        if made is not None:
            _surround(made)
        return function

    return client


def around(original: Callable[..., Any], *, whole: bool = False) -> Callable[..., Any]:
    """A function that holds, calls this one, and settles.

    Args:
        original: makes the request.
        whole: one hold for all that it does, its fallbacks included.
    """
    made = (_around_async if inspect.iscoroutinefunction(original) else _around_sync)(original, _entry(original, whole))
    setattr(made, _MARK, True)
    return made


def _around_sync(original: Callable[..., Any], entry: _Entry) -> Callable[..., Any]:
    @wraps(original)
    def entered(*args: Any, **kwargs: Any) -> Any:
        attempt, held = _attempt(entry, args, kwargs)
        if attempt is None:
            try:
                return _within(held, original(*args, **kwargs))
            except Exception as error:
                behind = refusal_behind(kwargs, error)
                if behind is None:
                    raise
                raise behind from None
        try:
            attempt.begin()
        except BudgetRefused as refusal:
            remember(kwargs, refusal)
            raise
        try:
            args, kwargs = _prepared(attempt, entry, args, kwargs)
            with _Inside(attempt):
                result = original(*args, **kwargs)
        except BaseException as error:
            attempt.end(attempt.failed(error))
            raise
        if inspect.isawaitable(result):
            return _awaited(attempt, result)
        if is_stream(result):
            return metered(result, attempt)
        attempt.end(attempt.answered(result))
        return result

    return entered


def _around_async(original: Callable[..., Any], entry: _Entry) -> Callable[..., Any]:
    @wraps(original)
    async def entered(*args: Any, **kwargs: Any) -> Any:
        attempt, held = _attempt(entry, args, kwargs)
        if attempt is None:
            try:
                return _within(held, await original(*args, **kwargs))
            except Exception as error:
                behind = refusal_behind(kwargs, error)
                if behind is None:
                    raise
                raise behind from None
        try:
            await attempt.abegin()
        except BudgetRefused as refusal:
            remember(kwargs, refusal)
            raise
        try:
            args, kwargs = _prepared(attempt, entry, args, kwargs)
            answer = original(*args, **kwargs)
        except BaseException as error:
            await attempt.aend(attempt.failed(error))
            raise
        with _Inside(attempt):
            return await _awaited(attempt, answer)

    return entered


async def _awaited(attempt: Attempt, answer: Awaitable[Any]) -> Any:
    try:
        result = await answer
    except GeneratorExit as error:
        attempt.end_later(attempt.failed(error))
        raise
    except BaseException as error:
        await attempt.aend(attempt.failed(error))
        raise
    if is_stream(result):
        return metered(result, attempt)
    await attempt.aend(attempt.answered(result))
    return result


def _within(held: Attempt | None, result: Any) -> Any:
    """What a part of a held call gives; a stream is remembered, as it knows what those around it leave out."""
    if held is not None and inspect.isawaitable(result):
        return _awaited_within(held, result)
    if held is not None and is_stream(result):
        held.inner.append(result)
    return result


async def _awaited_within(held: Attempt | None, answer: Awaitable[Any]) -> Any:
    return _within(held, await answer)


def _entry(original: Callable[..., Any], whole: bool) -> _Entry:
    name, named = original.__name__, (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(name for name, one in inspect.signature(original).parameters.items() if one.kind in named)
    return _Entry(name, name.removeprefix("a") if name in _ASYNC else name, names, whole)


def _attempt(entry: _Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Attempt | None, Attempt | None]:
    """The attempt that begins here, and the one that this call is a part of.

    None begins without a callback, and inside a call that is held already. A call with ``fallbacks`` is made of
    attempts that come through here one by one.

    Raises:
        BudgetRefused: an earlier attempt of the request was refused, and the policy lets no cheaper model pass.
    """
    engine, held, logged = engine_in_charge(), _held(kwargs), kwargs.get("litellm_logging_obj")
    if held is not None:
        held.logs(logged)
    if engine is None or held is not None:
        return None, held
    asked = entry.named(args, kwargs) if args else kwargs
    request = request_of(asked)
    if kwargs.get("fallbacks") and entry.name in _CHATS and not entry.whole:
        return None, None
    refusal = request.refusal if request is not None else None
    if refusal is not None and not (_lets_cheaper_pass(engine) and engine.is_cheap(priced_name(engine.prices, asked))):
        raise type(refusal).of(refusal)
    attempt = Attempt(engine, entry.kind, call_of(engine, entry.name, asked, request))
    proxied = PROXY_REQUEST.get()
    if proxied is not None:
        attempt.offer = proxied.take()
    attempt.logs(logged)
    if logged is not None:
        # LiteLLM's queues may keep what it logs by long after the call.
        setattr(logged, _MARK, weakref.ref(attempt))
        attempt.logged_by = id(logged)
    return attempt, None


def _lets_cheaper_pass(engine: BudgetEngine) -> bool:
    policy = engine.policy
    return policy.cutoff == "soft" or any(tenant.cutoff == "soft" for tenant in policy.tenants.values())


class _Inside:
    """Around what an attempt does: entry points that are reached from here are parts of it."""

    __slots__ = ("_before", "_own")

    def __init__(self, attempt: Attempt) -> None:
        self._own = weakref.ref(attempt)

    def __enter__(self) -> None:
        self._before = _AROUND.get()
        _AROUND.set(self._own)

    def __exit__(self, *raised: object) -> None:
        # A token would keep the context, and so what never ends; whoever collects that does it in another context.
        if _AROUND.get() is self._own:
            _AROUND.set(self._before)


def _held(kwargs: Mapping[str, Any]) -> Attempt | None:
    """The attempt that a call with these arguments is a part of.

    Entry points that lead to others log by one object, but for Google's, which make a new one. A proxy logs by one
    object for all the models that are asked at once, too; these are no parts of each other.
    """
    logged = kwargs.get("litellm_logging_obj")
    around = _AROUND.get()()
    if around is not None and around.open and (around.kind in _GOOGLES or around.logged_by == id(logged)):
        return around
    last: Attempt | None = getattr(logged, _MARK, _no_attempt)()
    return last if last is not None and last.open and PROXY_REQUEST.get() is None else None


def _prepared(
    attempt: Attempt, entry: _Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, asking for usage, and with the output's bound lowered to what is held where the policy clamps.

    Raises:
        BudgetRefused: the hold pays for too little.
    """
    if attempt.engine.policy.clamp:
        asked = entry.named(args, kwargs)
        try:
            changes = attempt.lowered(asked)
        except BudgetExceeded as found:
            refusal = refused(found)
            remember(kwargs, refusal)
            raise refusal from None
        if changes:
            args, kwargs = (), {**asked, **changes}
    return args, _asking_for_usage(attempt, entry.name, kwargs)


def _asking_for_usage(attempt: Attempt, entry: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with the usage asked for where a stream can give it and the caller has not.

    A proxy asks for it itself, and lets streams of text leave it out before it comes here.
    """
    if entry in _TEXTS and kwargs.get(_LEFT_OUT):
        attempt.hides_usage = True
        return {**kwargs, _LEFT_OUT: False}
    if kwargs.get("stream") is not True or entry not in _STREAMED:
        return kwargs
    options = kwargs.get("stream_options") or {}
    if not isinstance(options, Mapping) or options.get("include_usage") is not None:
        return kwargs
    if not streams_usage(str(kwargs.get("model")), kwargs.get("custom_llm_provider")):
        return kwargs
    attempt.hides_usage = True
    return {**kwargs, "stream_options": {**options, "include_usage": True}}
