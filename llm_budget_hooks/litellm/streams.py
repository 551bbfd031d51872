"""Streams that settle: at their end, and wherever else a caller leaves them.

A stream keeps its class but for a subclass made here, so that what LiteLLM and callers ask of it stays true.
"""

from __future__ import annotations

import json
import logging
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from typing import Any, Final

from llm_budget_hooks.errors import BudgetError
from llm_budget_hooks.litellm.attempts import Attempt, Ending, ended_by
from llm_budget_hooks.litellm.later import settle_at_exit
from llm_budget_hooks.litellm.requests import PROXY_REQUEST
from llm_budget_hooks.litellm.tokens import counted
from llm_budget_hooks.litellm.usage import field, read_usage, served_model, usage_of
from llm_budget_hooks.models import Usage

_log = logging.getLogger("llm_budget_hooks")
_DELTAS: Final = ("content", "reasoning_content", "refusal", "text", "partial_json", "thinking", "arguments", "delta")
_COUNTS: Final = tuple(
    name for name in Usage.__slots__ if name.endswith(("_tokens", "searches")) or name == "containers"
)
_RENEW_SHARE: Final = 0.3
_OPEN: weakref.WeakSet[Meter] = weakref.WeakSet()
_CLASSES: dict[type, type] = {}


class Meter:
    """What a stream has delivered so far, and the hold that pays for it.

    Attributes:
        attempt: the hold.
        stream: the stream, as long as there is one.
    """

    def __init__(self, attempt: Attempt, stream: Any) -> None:
        self.attempt = attempt
        attempt.waiting = False
        self.stream = weakref.ref(stream)
        self._texts: list[str] = []
        self._reported: Usage | None = None
        self._model: str | None = None
        self._renew_s = attempt.engine.policy.reservation_timeout.total_seconds() * _RENEW_SHARE
        self._renewed = time.monotonic()
        _OPEN.add(self)

    def shows(self, chunk: Any) -> bool:
        """Take note of a chunk; False if the caller should not see it."""
        self._model = served_model(chunk) or self._model
        for event in _events(chunk):
            self._read(event)
        if field(chunk, "usage") is None or not self.attempt.hides_usage:
            return True
        return not _is_bare(chunk)

    def due(self) -> bool:
        """Whether it is time to renew the hold of a long stream."""
        if not self.attempt.open or self.attempt.reservation is None:
            return False
        now = time.monotonic()
        if now - self._renewed < self._renew_s:
            return False
        self._renewed = now
        return True

    def renew(self) -> None:
        """Renew the hold."""
        if self.attempt.reservation is not None:
            try:
                self.attempt.engine.extend(self.attempt.reservation)
            except BudgetError as error:
                _log.warning("The hold of a long stream could not be renewed: %s", type(error).__name__)

    async def arenew(self) -> None:
        """Same as `renew`, awaited."""
        if self.attempt.reservation is not None:
            try:
                await self.attempt.engine.aextend(self.attempt.reservation)
            except BudgetError as error:
                _log.warning("The hold of a long stream could not be renewed: %s", type(error).__name__)

    def leave(self) -> None:
        """End it where nobody reads on."""
        if self.attempt.open and not self.attempt.waiting:
            self.attempt.end_later(self.ending(self.stream(), None))

    def ending(self, stream: Any, error: BaseException | None) -> Ending:
        """How it ends: with `error`, with StopIteration when it was read to its end, or with None when it was left.

        Args:
            stream: the stream itself, which may be about to be collected; None if it is gone.
            error: what it ends with.
        """
        for one in (stream, *self.attempt.inner):
            for usage in _recorded(one):
                self._report(usage)
        complete = isinstance(error, (StopIteration, StopAsyncIteration))
        if error is not None and not complete and not self._texts and self._reported is None:
            return ended_by(error, self.attempt.number)
        if complete and self._reported is not None and self._was_reported(stream):
            return Ending(usage=self._reported, model=self._model)
        return Ending(failed=not complete and isinstance(error, Exception), usage=self._guessed(), model=self._model)

    def _read(self, event: Any) -> None:
        usage = usage_of(event) or _nested_usage(event)
        if usage is not None:
            self._report(usage)
        self._texts.extend(_delivered(event))

    def _report(self, usage: Usage) -> None:
        self._reported = usage if self._reported is None else _larger(self._reported, usage)

    def _was_reported(self, stream: Any) -> bool:
        """Whether the provider has reported a usage; LiteLLM makes one up where it has not."""
        kept = [chunks for one in (stream, *self.attempt.inner) if (chunks := _chunks_of(one)) is not None]
        return not kept or any(field(chunk, "usage") is not None for chunks in kept for chunk in chunks)

    def _guessed(self) -> Usage:
        """The better of what was counted and what was reported so far, at least the prompt."""
        output = counted("".join(self._texts)) if self._texts else 0
        floor = self._reported or Usage()
        inputs = floor.input_tokens or self.attempt.call.input_tokens or 0
        counts = {name: getattr(floor, name) for name in _COUNTS}
        counts.update(input_tokens=inputs, output_tokens=max(floor.output_tokens, output))
        return Usage(**counts, service_tier=floor.service_tier, exact=False)


class _Metered:
    """Mixed into the class of a stream; `_meter` is put on the instance."""

    _meter: Meter

    def __next__(self) -> Any:
        meter = self._meter
        while True:
            meter.attempt.waiting = True
            try:
                chunk = super().__next__()  # type: ignore[misc]  # of the stream's own class
            except BaseException as error:
                meter.attempt.end(meter.ending(self, error))
                raise
            finally:
                meter.attempt.waiting = False
            if meter.due():
                meter.renew()
            if meter.shows(chunk):
                return chunk

    async def __anext__(self) -> Any:
        meter = self._meter
        while True:
            meter.attempt.waiting = True
            try:
                chunk = await super().__anext__()  # type: ignore[misc]  # of the stream's own class
            except GeneratorExit as error:
                meter.attempt.end_later(meter.ending(self, error))
                raise
            except BaseException as error:
                await meter.attempt.aend(meter.ending(self, error))
                raise
            finally:
                meter.attempt.waiting = False
            if meter.due():
                await meter.arenew()
            if meter.shows(chunk):
                return chunk

    def close(self) -> Any:
        try:
            closing = getattr(super(), "close", None)
            return closing() if closing is not None else None
        finally:
            if not self._meter.attempt.waiting:
                self._meter.attempt.end(self._meter.ending(self, None))

    async def aclose(self) -> Any:
        try:
            closing = getattr(super(), "aclose", None)
            return await closing() if closing is not None else None
        finally:
            if not self._meter.attempt.waiting:
                await self._meter.attempt.aend(self._meter.ending(self, None))

    def __del__(self) -> None:
        meter = self.__dict__.get("_meter")
        if meter is not None and meter.attempt.open:
            meter.attempt.end_later(meter.ending(self, None))
        deleting = getattr(super(), "__del__", None)
        if deleting is not None:
            deleting()


class _Pieces:
    """A generator as an object, which unlike a generator can be given a mixin."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._source)

    async def __anext__(self) -> Any:
        return await self._source.__anext__()

    def close(self) -> Any:
        closing = getattr(self._source, "close", None)
        return closing() if closing is not None else None

    async def aclose(self) -> Any:
        closing = getattr(self._source, "aclose", None)
        return await closing() if closing is not None else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_source"], name)


def is_stream(result: Any) -> bool:
    """Whether an answer is read piece by piece."""
    kind: Any = type(result)
    return _is_iterator(kind)


@lru_cache(maxsize=256)
def _is_iterator(kind: type) -> bool:
    return hasattr(kind, "__anext__") or hasattr(kind, "__next__")


def metered(stream: Any, attempt: Attempt) -> Any:
    """The stream, from now on settling the attempt."""
    made = stream
    try:
        made.__class__ = _metered_class(type(stream))
    except TypeError:
        made = _Pieces(stream)
        made.__class__ = _metered_class(_Pieces)
    made._meter = meter = Meter(attempt, made)
    proxied = PROXY_REQUEST.get()
    if proxied is not None:
        proxied.leaving.append(meter.leave)
    return made


def _metered_class(kind: type) -> type:
    if issubclass(kind, _Metered):
        return kind
    made = _CLASSES.get(kind)
    if made is None:
        made = type(kind.__name__, (_Metered, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
        _CLASSES[kind] = made
    return made


def _recorded(stream: Any) -> Iterator[Usage]:
    """What the provider has reported and LiteLLM keeps from the caller, who has not asked for it or not come so far.

    A stream may be made of an answer that LiteLLM has whole.
    """
    whole = _nested_usage(getattr(stream, "completed_response", None))
    whole = whole or usage_of(getattr(getattr(stream, "completion_stream", None), "model_response", None))
    if whole is not None:
        yield whole
    for chunk in _chunks_of(stream) or ():
        usage = usage_of(chunk) if field(chunk, "usage") is not None else None
        if usage is not None:
            yield usage


def _chunks_of(stream: Any) -> list[Any] | None:
    chunks = getattr(stream, "chunks", None)
    return chunks if isinstance(chunks, list) else None


def _larger(one: Usage, other: Usage) -> Usage:
    """Both at their largest: streams count up, or report a part of the counts in each event."""
    counts = {name: max(getattr(one, name), getattr(other, name)) for name in _COUNTS}
    return Usage(**counts, service_tier=other.service_tier or one.service_tier)


def _nested_usage(event: Any) -> Usage | None:
    """The usage inside Anthropic's first event, or a Responses event that ends the stream."""
    for name in ("message", "response"):
        inner = field(event, name)
        usage = field(inner, "usage") if inner is not None else None
        if usage is not None:
            return read_usage(usage, tier=field(inner, "service_tier"))
    return None


def _events(chunk: Any) -> list[Any]:
    """What a chunk holds: itself, or the events of raw server-sent lines."""
    if not isinstance(chunk, (bytes, str)):
        return [chunk]
    text = chunk.decode("utf-8", "replace") if isinstance(chunk, bytes) else chunk
    found = []
    for line in text.splitlines():
        if line.startswith("data:"):
            try:
                found.append(json.loads(line[5:]))
            except ValueError:
                continue
    return found


def _delivered(event: Any) -> list[str]:
    """The texts that an event delivers."""
    choices = field(event, "choices")
    if isinstance(choices, list):
        return [text for choice in choices for text in _of_choice(choice)]
    delta = field(event, "delta")
    if isinstance(delta, str):
        return [delta]
    return _texts_of(delta) if delta is not None else []


def _of_choice(choice: Any) -> list[str]:
    delta = field(choice, "delta")
    found = _texts_of(choice if delta is None else delta)
    calls = field(delta, "tool_calls") if delta is not None else None
    for call in calls or ():
        function = field(call, "function")
        found += [text for name in ("name", "arguments") if isinstance(text := field(function, name), str)]
    return found


def _texts_of(delta: Any) -> list[str]:
    return [text for name in _DELTAS if isinstance(text := field(delta, name), str) and text]


def _is_bare(chunk: Any) -> bool:
    """Whether a chunk has nothing but the usage."""
    choices = field(chunk, "choices") or ()
    return all(not _of_choice(choice) and field(choice, "finish_reason") is None for choice in choices)


def _end_all() -> None:
    for meter in list(_OPEN):
        if meter.attempt.open:
            meter.attempt.end(meter.ending(meter.stream(), None))


settle_at_exit(_end_all)
