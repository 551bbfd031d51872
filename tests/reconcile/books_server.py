"""A server on loopback that speaks as OpenAI's and Anthropic's organization routes and LiteLLM's spend logs do."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Route = Callable[[dict[str, list[str]]], Any]


class BooksServer:
    """Answers each path with what a function makes of the query, and keeps the requests."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.requests: list[tuple[str, dict[str, list[str]], dict[str, str]]] = []
        self.status = 200
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                owner.requests.append((url.path, query, dict(self.headers)))
                known = url.path in owner.routes or isinstance(owner.routes, defaultdict)
                made = owner.routes[url.path](query) if known else None
                status = owner.status if known else 404
                body = made if isinstance(made, bytes) else json.dumps(made).encode()
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{owner.url}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def paged(buckets: list[dict[str, Any]], at_once: int = 1) -> Route:
    """A route that gives some buckets at a time, as both providers do."""

    def answer(query: dict[str, list[str]]) -> dict[str, Any]:
        start = int(query.get("page", ["page_0"])[0].removeprefix("page_"))
        more = start + at_once < len(buckets)
        following = f"page_{start + at_once}" if more else None
        return {"data": buckets[start : start + at_once], "has_more": more, "next_page": following}

    return answer


def openai_bucket(start: int, *results: dict[str, Any]) -> dict[str, Any]:
    return {"object": "bucket", "start_time": start, "end_time": start + 86400, "results": list(results)}


def openai_cost(item: str | None, value: float) -> dict[str, Any]:
    amount = {"value": value, "currency": "usd"}
    return {"object": "organization.costs.result", "amount": amount, "line_item": item, "project_id": None}


def openai_usage(model: str, requests: int, inputs: int, outputs: int, cached: int = 0, batch: bool = False) -> Any:
    return {
        "object": "organization.usage.completions.result", "input_tokens": inputs, "output_tokens": outputs,
        "input_cached_tokens": cached, "input_audio_tokens": 0, "output_audio_tokens": 0,
        "num_model_requests": requests, "project_id": None, "user_id": None, "api_key_id": None, "model": model,
        "batch": batch,
    }  # fmt: skip


def anthropic_bucket(day: str, *results: dict[str, Any]) -> dict[str, Any]:
    return {"starting_at": f"{day}T00:00:00Z", "ending_at": f"{day}T23:59:59Z", "results": list(results)}


def anthropic_cost(model: str, cents: str, tier: str = "standard") -> dict[str, Any]:
    return {
        "currency": "USD", "amount": cents, "workspace_id": None, "description": f"{model} Usage",
        "cost_type": "tokens", "context_window": "0-200k", "model": model, "service_tier": tier,
        "token_type": "output_tokens",
    }  # fmt: skip


def anthropic_tool(kind: str, cents: str) -> dict[str, Any]:
    """A cost that is none of tokens: the reference has null for the model and all that is about tokens."""
    return {
        "currency": "USD", "amount": cents, "workspace_id": None, "description": f"{kind} usage", "cost_type": kind,
        "context_window": None, "model": None, "service_tier": None, "token_type": None,
    }  # fmt: skip


def anthropic_usage(model: str, fresh: int, read: int, written: int, outputs: int, tier: str = "standard") -> Any:
    return {
        "uncached_input_tokens": fresh, "cache_read_input_tokens": read, "output_tokens": outputs,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
        "server_tool_use": {"web_search_requests": 0}, "api_key_id": None, "workspace_id": None, "model": model,
        "service_tier": tier, "context_window": "0-200k",
    }  # fmt: skip


def spend_row(number: int, at: str, spend: float, **more: Any) -> dict[str, Any]:
    """A row of LiteLLM's spend logs, as ``/spend/logs/v2`` gives it."""
    return {
        "request_id": f"chatcmpl-{number}", "call_type": "acompletion", "api_key": "hash", "spend": spend,
        "total_tokens": 1100, "prompt_tokens": 1000, "completion_tokens": 100, "startTime": at, "endTime": at,
        "completionStartTime": at, "model": "gpt-4o", "model_id": "", "model_group": "prod", "user": "",
        "custom_llm_provider": "openai", "metadata": {}, "cache_hit": "False", "team_id": None, "status": "success",
        **more,
    }  # fmt: skip


def spend_logs(rows: list[dict[str, Any]], *, most: int = 10_000, page_size: int | None = None) -> Route:
    """LiteLLM's route: rows that began between two instants, both included; the count of them ends at `most`."""

    def answer(query: dict[str, list[str]]) -> dict[str, Any]:
        begins, ends = (f"{query[name][0]}+00:00".replace(" ", "T") for name in ("start_date", "end_date"))
        size, number = page_size or int(query["page_size"][0]), int(query["page"][0])
        found = sorted((row for row in rows if begins <= row["startTime"] <= ends), key=lambda row: row["startTime"])
        total = min(len(found), most)
        return {
            "data": found[(number - 1) * size : number * size], "total": total, "page": number, "page_size": size,
            "total_pages": -(-total // size), "total_is_capped": len(found) > most,
        }  # fmt: skip

    return answer
