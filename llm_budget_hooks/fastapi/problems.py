"""Errors in the problem+json form of RFC 9457: those of calls for the whole app, and those of the admin API."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from llm_budget_hooks.errors import BudgetExceeded, ConfigurationError, StoreUnavailable
from llm_budget_hooks.ledger import LedgerUnavailable

MEDIA_TYPE: Final = "application/problem+json"
_TYPE: Final = "urn:llm_budget_hooks:"


class Problem(BaseModel):
    """What went wrong, for programs and people."""

    type: str
    title: str
    status: int
    detail: str


class Refused(Problem):
    """A refusal: what the end user may know of it."""

    code: str
    busy: bool
    retry_after: int | None
    resets_at: datetime | None


def install_errors(app: FastAPI) -> None:
    """Answer `BudgetExceeded` with 429 (503 where the store did not answer), Retry-After and problem+json.

    It goes before the app's handler for `Exception`. The body says what the end user may know: `public_message`, the
    code and the time to come again; figures and names of budgets are for the operator's log alone.
    """
    app.add_exception_handler(BudgetExceeded, _refused)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route other than its own, for OpenAPI."""
    content = {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


class ProblemRoute(APIRoute):
    """A route whose errors are problems, whatever handlers the app has; and whose answers nobody keeps."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with its errors turned into answers."""
        handler = super().get_route_handler()
        known = _query_names(self.dependant) if self.include_in_schema else None

        async def handled(request: Request) -> Response:
            try:
                if known is not None:
                    _check_named_once(request, known)
                response = await handler(request)
            except (HTTPException, RequestValidationError, ConfigurationError, StoreUnavailable) as error:
                response = _problem_of(error)
            except LedgerUnavailable as error:
                response = _problem_of(error)
            response.headers["Cache-Control"] = "no-store"
            return response

        return handled


def _query_names(found: Dependant) -> set[str]:
    """The query parameters of a route and of all that it depends on."""
    own = {field.alias for field in found.query_params}
    return own.union(*map(_query_names, found.dependencies))


def _check_named_once(request: Request, known: Collection[str]) -> None:
    """A mistyped or repeated parameter is told: without its tenant, a request would be about everybody."""
    names = [name for name, _ in request.query_params.multi_items()]
    if any(name not in known for name in names) or len(set(names)) < len(names):
        raise HTTPException(422, f"The parameters are {', '.join(sorted(known))}, each at most once.")


def _problem_of(error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _answer(error.status_code, str(error.detail), error.headers)
    if isinstance(error, RequestValidationError):
        found = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return _answer(422, "; ".join(found))
    if isinstance(error, ConfigurationError):
        return _answer(422, str(error))
    return _answer(503, str(error), {"Retry-After": "1"})


def _answer(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    shown = detail.encode("utf-8", "replace").decode()
    problem = Problem(type="about:blank", title=HTTPStatus(status).phrase, status=status, detail=shown)
    return JSONResponse(problem.model_dump(mode="json"), status, headers, MEDIA_TYPE)


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, BudgetExceeded)  # noqa: S101 - what it is installed for
    wait_s = None if error.retry_after is None else max(math.ceil(error.retry_after), 1)
    body = Refused(
        type=f"{_TYPE}{error.code}",
        title="Budget exceeded" if error.http_status == HTTPStatus.TOO_MANY_REQUESTS else "Budget not readable",
        status=error.http_status,
        detail=error.public_message,
        code=error.code,
        busy=error.busy,
        retry_after=wait_s,
        resets_at=error.resets_at,
    )
    headers = {"Cache-Control": "no-store"} | ({} if wait_s is None else {"Retry-After": str(wait_s)})
    return JSONResponse(body.model_dump(mode="json"), error.http_status, headers, MEDIA_TYPE)
