"""Books that are read over HTTP: OpenAI's and Anthropic's for organizations, and the spend logs of a LiteLLM proxy.

Keys come from the environment, go to the named host alone (no redirect is followed) and are in no message.
Formats: platform.openai.com/docs/api-reference/usage and docs.anthropic.com, "Usage and Cost API", and the route
``/spend/logs/v2`` of a LiteLLM proxy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.pricing.book import providers
from llm_budget_hooks.pricing.names import masked, provider_of
from llm_budget_hooks.reconcile.books import Billed, Books, BooksUnavailable
from llm_budget_hooks.reconcile.exported import ExportedBooks
from llm_budget_hooks.reconcile.values import (
    Unreadable,
    begin_of,
    check_currency,
    count_of,
    day_of,
    dollars,
    instant_of,
    model_of,
    model_of_item,
    tool_of,
)

_TIMEOUT_S: Final = 30
_MOST_PAGES: Final = 10_000
_DAYS_AT_ONCE: Final = 31
_ROWS_AT_ONCE: Final = 1000
_SECOND: Final = timedelta(seconds=1)
_SPEND_LOGS: Final = "/spend/logs/v2"
_NO_MODEL: Final = "not by model"
Query = list[tuple[str, object]]
_Made = TypeVar("_Made")


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would take the key along to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Remote:
    """Books at a host, with a key.

    Attributes:
        provider: LiteLLM's name of the provider; None: of any.
    """

    provider: str | None = None

    def __init__(self, key: str, url: str) -> None:
        if not _is_address(url):
            raise ConfigurationError("the address of the books is no URL; it begins with https://")
        self._key = key
        self._url = url.rstrip("/")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({urlsplit(self._url).hostname!r})"

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._key}"}

    def _get(self, path: str, query: Query) -> dict[str, Any]:
        request = Request(f"{self._url}{path}?{urlencode(query)}", headers=dict(self._headers()))  # noqa: S310 - checked above
        where = f"{urlsplit(self._url).hostname}{path}"
        try:
            with build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
                found = json.loads(answer.read(), parse_float=Decimal)
        except HTTPError as error:
            error.close()
            raise BooksUnavailable(f"{where} answered with HTTP {error.code}{_hint(error.code)}.") from None
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise BooksUnavailable(f"{where} could not be read ({type(error).__name__}).") from None
        if not isinstance(found, dict):
            raise BooksUnavailable(f"{where} has answered in a form that is not known.")
        return found

    def _buckets(self, path: str, query: Query) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Each result of each bucket, page after page."""
        page: Query = []
        for _ in range(_MOST_PAGES):
            found = self._get(path, query + page)
            for bucket in _tables(path, found, "data"):
                for result in _tables(path, bucket, "results"):
                    yield bucket, result
            following: Query = [("page", found.get("next_page"))]
            if not found.get("has_more"):
                return
            if not following[0][1]:
                raise BooksUnavailable(f"{path} has answered that a page follows, and does not name it.")
            if following == page:
                raise BooksUnavailable(f"{path} has answered with the same page again.")
            page = following
        raise BooksUnavailable(f"{path} has more pages than anybody reads.")


class OpenAIBooks(_Remote):
    """OpenAI's organization usage and costs, with an admin key."""

    provider: str | None = "openai"

    def __init__(self, key: str, url: str = "https://api.openai.com") -> None:
        super().__init__(key, url)

    def lines(self, since: date, until: date) -> Iterator[Billed]:
        """See `Books.lines`. Costs come by line item: ``gpt-4o-2024-08-06, input``, or a tool without a model."""
        span: Query = [("start_time", _seconds(since)), ("end_time", _seconds(until)), ("bucket_width", "1d")]
        span.append(("limit", _DAYS_AT_ONCE))
        for bucket, result in self._buckets("/v1/organization/costs", [*span, ("group_by", "line_item")]):
            yield _read(_openai_cost, bucket, result)
        for kind in ("completions", "embeddings"):
            query = [*span, ("group_by", "model"), *([("group_by", "batch")] if kind == "completions" else [])]
            for bucket, result in self._buckets(f"/v1/organization/usage/{kind}", query):
                yield _read(_openai_usage, bucket, result)


class AnthropicBooks(_Remote):
    """Anthropic's usage and cost reports, with an admin key.

    Costs of the priority tier are in none of them: a day on which a model was used in it is `Billed.partial`.
    """

    provider: str | None = "anthropic"

    def __init__(self, key: str, url: str = "https://api.anthropic.com") -> None:
        super().__init__(key, url)

    def _headers(self) -> Mapping[str, str]:
        return {"x-api-key": self._key, "anthropic-version": "2023-06-01"}

    def lines(self, since: date, until: date) -> Iterator[Billed]:
        """See `Books.lines`. Amounts in the reports are cents; tools have a ``cost_type`` and no model."""
        span: Query = [("starting_at", f"{since}T00:00:00Z"), ("ending_at", f"{until}T00:00:00Z")]
        span += [("bucket_width", "1d"), ("limit", _DAYS_AT_ONCE)]
        for bucket, result in self._buckets("/v1/organizations/cost_report", [*span, ("group_by[]", "description")]):
            yield _read(_anthropic_cost, bucket, result)
        by: Query = [("group_by[]", "model"), ("group_by[]", "service_tier")]
        for bucket, result in self._buckets("/v1/organizations/usage_report/messages", span + by):
            yield _read(_anthropic_usage, bucket, result)


class LiteLLMBooks(_Remote):
    """The spend logs of a LiteLLM proxy, with its master key or an admin's.

    They know nothing of calls that did not go through the proxy, and the ledger does not tell which did: each line is
    `Billed.partial`.
    """

    def lines(self, since: date, until: date) -> Iterator[Billed]:
        """See `Books.lines`. Each logged call is a line; what the proxy served from its cache costs nothing."""
        for number in range((until - since).days):
            begins = begin_of(since) + timedelta(days=number)
            for row in self._rows(begins, begins + timedelta(days=1)):
                if row.get("status") != "failure" or row.get("spend"):
                    yield _read(_litellm, row)

    def _rows(self, begins: datetime, ends: datetime) -> Iterator[dict[str, Any]]:
        """All rows from an instant to before another, both of whole seconds.

        The proxy's count of rows ends at 10,000, and rows that began at the same instant are in no order, so that they
        can be missed between pages. A span with more rows than a page has is read in halves, down to a second.
        """
        found = self._page(begins, ends, 1)
        many = _read(count_of, found.get("total_pages") or 0) > 1
        if many and ends - begins > _SECOND:
            of_page = [_read(instant_of, row.get("startTime")) for row in _tables(_SPEND_LOGS, found, "data")]
            if not of_page or not begins <= min(of_page) <= max(of_page) <= ends:
                raise BooksUnavailable(f"{_SPEND_LOGS} has answered with other rows than those that were asked for.")
            middle = begins + (ends - begins) // 2
            middle = middle.replace(microsecond=0)
            yield from self._rows(begins, middle)
            yield from self._rows(middle, ends)
            return
        rows = self._second(begins, found) if many else _tables(_SPEND_LOGS, found, "data")
        yield from (row for row in rows if begins <= _read(instant_of, row.get("startTime")) < ends)

    def _second(self, begins: datetime, found: dict[str, Any]) -> list[dict[str, Any]]:
        """All rows of a second that has more of them than a page."""
        rows: dict[str, dict[str, Any]] = {}
        total = _read(count_of, found.get("total") or 0)
        for number in range(2, _MOST_PAGES):
            page = _tables(_SPEND_LOGS, found, "data")
            rows |= {str(row.get("request_id")): row for row in page}
            if not page:
                break
            found = self._page(begins, begins + _SECOND, number)
        if len(rows) < total:
            raise BooksUnavailable(f"{_SPEND_LOGS}: too many calls began at {begins:%H:%M:%S} to be read; try again.")
        return list(rows.values())

    def _page(self, begins: datetime, ends: datetime, number: int) -> dict[str, Any]:
        query: Query = [(name, f"{at:%Y-%m-%d %H:%M:%S}") for name, at in (("start_date", begins), ("end_date", ends))]
        query += [("page_size", _ROWS_AT_ONCE), ("sort_by", "startTime"), ("sort_order", "asc"), ("page", number)]
        return self._get(_SPEND_LOGS, query)


def open_books(source: str, *, url: str | None = None, provider: str | None = None) -> Books:
    """Books by a word or a path.

    Args:
        source: ``openai``, ``anthropic``, ``litellm``, or the path of an exported CSV or JSON file. The keys are in
            OPENAI_ADMIN_KEY, ANTHROPIC_ADMIN_KEY and LITELLM_PROXY_API_KEY.
        url: where the books are, instead of the provider's own address; for ``litellm`` else LITELLM_PROXY_API_BASE.
        provider: of a file: whose models alone it is about.

    Raises:
        ConfigurationError: a variable is missing, there is no such file, or nobody knows the provider.
    """
    if provider is not None and source in ("openai", "anthropic", "litellm"):
        raise ConfigurationError(f"A provider is named for a file; these are the books of {source}.")
    if source == "openai":
        return OpenAIBooks(_variable("OPENAI_ADMIN_KEY"), url or "https://api.openai.com")
    if source == "anthropic":
        return AnthropicBooks(_variable("ANTHROPIC_ADMIN_KEY"), url or "https://api.anthropic.com")
    if source == "litellm":
        return LiteLLMBooks(_variable("LITELLM_PROXY_API_KEY"), url or _variable("LITELLM_PROXY_API_BASE"))
    if not Path(source).is_file():
        raise ConfigurationError(f"{source!r} is neither openai, anthropic or litellm nor a file.")
    return ExportedBooks(source, None if provider is None else _known(provider))


def _openai_cost(bucket: dict[str, Any], result: dict[str, Any]) -> Billed:
    item = _model(result.get("line_item"))
    tool = tool_of(item)
    check_currency(result["amount"].get("currency"))
    cost = dollars(result["amount"]["value"])
    return Billed(day_of(bucket["start_time"]), tool or model_of_item(item), cost, tool=tool is not None)


def _openai_usage(bucket: dict[str, Any], result: dict[str, Any]) -> Billed:
    return Billed(
        day_of(bucket["start_time"]), _model(result.get("model")), None,
        _count(result, "num_model_requests"), _count(result, "input_tokens"), _count(result, "input_cached_tokens"),
        _count(result, "output_tokens"), bool(result.get("batch")),
    )  # fmt: skip


def _anthropic_cost(bucket: dict[str, Any], result: dict[str, Any]) -> Billed:
    check_currency(result.get("currency"))
    kind = result.get("cost_type") or "tokens"
    tool = None if kind == "tokens" else _model(kind).replace("_", " ")
    model = tool or _model(result.get("model") or result.get("description"))
    cost, batch = dollars(result["amount"]) / 100, result.get("service_tier") == "batch"
    return Billed(day_of(bucket["starting_at"]), model, cost, batch=batch, tool=tool is not None)


def _anthropic_usage(bucket: dict[str, Any], result: dict[str, Any]) -> Billed:
    written = result.get("cache_creation") or {}
    cached = _count(result, "cache_read_input_tokens")
    tier = str(result.get("service_tier") or "")
    inputs = _count(result, "uncached_input_tokens") + cached + sum(_count(written, name) for name in written)
    return Billed(
        day_of(bucket["starting_at"]), _model(result.get("model")), None, None, inputs, cached,
        _count(result, "output_tokens"), tier == "batch", partial=tier.startswith("priority"),
    )  # fmt: skip


def _litellm(row: dict[str, Any]) -> Billed:
    asked = 0 if str(row.get("cache_hit")).lower() == "true" else 1
    return Billed(
        day_of(row["startTime"]), _model(row.get("model")), dollars(row.get("spend") or 0), asked,
        _count(row, "prompt_tokens"), None, _count(row, "completion_tokens"), partial=True,
    )  # fmt: skip


def _model(value: object) -> str:
    return model_of(value or _NO_MODEL) or _NO_MODEL


def _count(place: dict[str, Any], name: str) -> int:
    return count_of(place.get(name) or 0)


def _tables(path: str, found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of tables in an answer."""
    rows = found.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BooksUnavailable(f"{path} has answered in a form that is not known.")
    return rows


def _read(made: Callable[..., _Made], *parts: Any) -> _Made:
    try:
        return made(*parts)
    except Unreadable as error:
        raise BooksUnavailable(f"A line of the books is in a form that is not known: {error}.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        kind = type(error).__name__
        raise BooksUnavailable(f"A line of the books is in a form that is not known ({kind}).") from None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _known(provider: str) -> str:
    """LiteLLM's name of a provider, from one of the names it goes by."""
    known = providers()
    name = provider_of(provider)
    if known and name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ", such as openai, anthropic, gemini or bedrock"
        raise ConfigurationError(f"{masked(provider)!r} is no provider that prices are known of{hint}")
    return name


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigurationError(f"{name} is not set.")
    return value


def _seconds(day: date) -> int:
    return int(begin_of(day).timestamp())


def _hint(code: int) -> str:
    return ": it takes a key of an administrator" if code in (401, 403) else ""
