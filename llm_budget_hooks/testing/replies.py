"""What a fake provider answers: its settings, the replies that override them, and the numbers that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

_TYPE_OF_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the fake model asks for.

    Attributes:
        name: the tool's name.
        arguments: its arguments, sent as JSON; a string is sent as it is, valid or not.
        id: the call's id; None makes one up.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one request gets; every field left at None is taken from the provider's settings.

    Attributes:
        text: the model's words.
        tool_calls: tools that the model asks for, instead of words.
        input_tokens: size of the prompt, cached part included.
        output_tokens: size of the output of one choice, reasoning included, before the request's own bound.
        cached_tokens: the cached part of the prompt.
        reasoning_tokens: the reasoning part of the output.
        model: the model that says it served.
        usage: False leaves all token numbers out of the answer.
        latency_s: wait before the first byte.
        chunk_latency_s: wait between the events of a stream.
        status: an HTTP status; from 400 on the answer is an error and nothing is billed.
        error: the body of such an answer, as it is.
        retry_after_s: value of the header Retry-After.
        hang: no answer until `FakeProvider.answer_hung` or the end.
        cut_after: close the connection after this many events of a stream; 0 is before the first byte. An
            answer that is no stream is cut in the middle of its body from 1 on.
    """

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    model: str | None = None
    usage: bool | None = None
    latency_s: float | None = None
    chunk_latency_s: float | None = None
    status: int = 200
    error: Mapping[str, Any] | None = None
    retry_after_s: float | None = None
    hang: bool = False
    cut_after: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that this reply adds."""
        return {} if self.retry_after_s is None else {"retry-after": f"{self.retry_after_s:g}"}

    @property
    def error_body(self) -> Mapping[str, Any]:
        """The body of an error answer, in the shape of the OpenAI API."""
        if self.error is not None:
            return self.error
        kind = _TYPE_OF_STATUS.get(self.status, "server_error")
        return {
            "error": {"message": f"fake provider says {self.status}", "type": kind, "param": None, "code": self.status}
        }


@dataclass(kw_only=True, eq=False)
class Settings:
    """What a fake provider answers when nothing else is said; can be changed while it runs.

    Attributes:
        latency_s: wait before the first byte of every answer, errors included.
        chunk_latency_s: wait between the events of a stream.
        input_tokens: size of a prompt; None counts it: a quarter of the characters of all message contents, at least 1.
        output_tokens: size of the output of one choice, reasoning included, or a function of the request's JSON.
        cached_tokens: the cached part of the prompt, never more than the prompt.
        reasoning_tokens: the reasoning part of the output, never more than the output.
        text: the model's words; None makes up one word per output token that is no reasoning.
        chunks: pieces that a streamed text is sent in.
        model: the model that says it served; None echoes the one that was asked for.
        usage: False leaves all token numbers out, everywhere.
        reply: a Reply, or a function from the request's JSON to a Reply or None; the way to script an agent. The
            function runs on the provider's thread and must not block.
    """

    latency_s: float = 0.0
    chunk_latency_s: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | Callable[[dict[str, Any]], int] = 40
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    text: str | None = None
    chunks: int = 5
    model: str | None = None
    usage: bool = True
    reply: Reply | Callable[[dict[str, Any]], Reply | None] | None = None

    def reply_to(self, request: dict[str, Any]) -> Reply:
        """The reply that the settings choose for this request."""
        chosen = self.reply(request) if callable(self.reply) else self.reply
        return chosen or Reply()


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply with every number decided.

    Attributes:
        request: the JSON that is answered.
        id: a short unique text.
        model: the model that says it served.
        text: the words of each choice.
        pieces: the same words as a stream sends them.
        tool_calls: tools asked for, each with an id.
        choices: how many choices there are.
        input_tokens: size of the prompt.
        output_tokens: size of all choices together.
        cached_tokens: the cached part of the prompt.
        reasoning_tokens: the reasoning part of the output of all choices.
        clipped: the request's own bound ended the output.
        usage: whether the answer carries its numbers.
    """

    request: dict[str, Any]
    id: str
    model: str
    text: str
    pieces: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    choices: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    clipped: bool
    usage: bool


def decide(
    settings: Settings, request: dict[str, Any], reply: Reply, answer_id: str, *, generates: bool = True
) -> Answer:
    """Works out what a reply says and what it bills.

    Args:
        settings: the provider's settings, for what the reply leaves open.
        request: the request's JSON; its token bound and number of choices are honoured.
        reply: what this request gets.
        answer_id: a short unique text.
        generates: False for embeddings, which have no output tokens.
    """
    wanted = _wanted_tokens(settings, request, reply) if generates else 0
    output = min(wanted, _output_bound(request, wanted))
    reasoning = min(output, _either(reply.reasoning_tokens, settings.reasoning_tokens))
    cached = _either(reply.cached_tokens, settings.cached_tokens)
    input_tokens = _input_tokens(settings, request, reply)
    text = "" if reply.tool_calls else _text(settings, reply, output, wanted, reasoning)
    choices = _choices(request)
    return Answer(
        request=request,
        id=answer_id,
        model=_either(reply.model, _either(settings.model, str(request.get("model", "")))),
        text=text,
        pieces=_pieces(text, settings.chunks),
        tool_calls=_with_ids(reply.tool_calls, answer_id),
        choices=choices,
        input_tokens=input_tokens,
        output_tokens=output * choices,
        cached_tokens=min(input_tokens, cached),
        reasoning_tokens=reasoning * choices,
        clipped=output < wanted,
        usage=_either(reply.usage, settings.usage),
    )


def count_tokens(request: Mapping[str, Any]) -> int:
    """The size of a prompt by the rule of this fake: a quarter of the characters of all contents, at least 1.

    Contents are the texts of ``messages``, ``prompt``, ``input`` and ``instructions``; a number there is one token.
    """
    parts = (request.get(key) for key in ("messages", "prompt", "input", "instructions"))
    return max(1, sum(map(_characters, parts)) // 4)


def _characters(content: object) -> int:
    match content:
        case str():
            return len(content)
        case int():
            return 4
        case list():
            return sum(map(_characters, content))
        case dict():
            return sum(_characters(content.get(key)) for key in ("content", "text", "output"))
    return 0


def _input_tokens(settings: Settings, request: Mapping[str, Any], reply: Reply) -> int:
    stated = reply.input_tokens if reply.input_tokens is not None else settings.input_tokens
    return count_tokens(request) if stated is None else stated


def _wanted_tokens(settings: Settings, request: dict[str, Any], reply: Reply) -> int:
    if reply.output_tokens is not None:
        return reply.output_tokens
    stated = settings.output_tokens
    return stated(request) if callable(stated) else stated


def _output_bound(request: Mapping[str, Any], unbounded: int) -> int:
    bounds = (request.get(key) for key in ("max_completion_tokens", "max_tokens", "max_output_tokens"))
    return min((bound for bound in bounds if isinstance(bound, int)), default=unbounded)


def _choices(request: Mapping[str, Any]) -> int:
    return count_inputs(request.get("prompt")) * int(request.get("n") or 1)


def count_inputs(value: object) -> int:
    """How many inputs a ``prompt`` or ``input`` holds: a list of texts or of token lists is several."""
    return len(value) if isinstance(value, list) and value and not isinstance(value[0], int) else 1


def _text(settings: Settings, reply: Reply, output: int, wanted: int, reasoning: int) -> str:
    stated = reply.text if reply.text is not None else settings.text
    if stated is None:
        return " ".join(["ok"] * (output - reasoning))
    return stated if output == wanted else stated[: len(stated) * output // wanted]


def _pieces(text: str, count: int) -> tuple[str, ...]:
    size = max(1, -(-len(text) // max(1, count)))
    return tuple(text[at : at + size] for at in range(0, len(text), size))


def _with_ids(calls: tuple[ToolCall, ...], answer_id: str) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(call.name, call.arguments, call.id or f"call_{answer_id}_{n}") for n, call in enumerate(calls)
    )


def _either(given: T | None, otherwise: T) -> T:
    return otherwise if given is None else given
