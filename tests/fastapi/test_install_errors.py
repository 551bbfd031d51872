"""Refusals as answers of HTTP, before whatever else an app does about errors."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call
from llm_budget_hooks.fastapi import install_errors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

BUDGETS = [
    {"name": "everybodys-purse", "scope": "global", "limit": "$50", "window": "day"},
    {"name": "user-day", "scope": "user", "limit": "$2", "window": "day"},
]


def app_of(engine: BudgetEngine) -> Any:
    app = FastAPI()

    @app.exception_handler(Exception)
    async def general(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"general": str(error)}, 500)

    install_errors(app)

    @app.get("/blocking")
    def blocking(amount: str) -> str:
        return engine.reserve(Call(model="any", user="u1", amount=amount)).id

    @app.get("/awaited")
    async def awaited(amount: str) -> str:
        return (await engine.areserve(Call(model="any", user="u1", amount=amount))).id

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("something else")

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["/blocking", "/awaited"])
def test_a_refusal_is_429_with_retry_after_and_problem_json(engine_url: str, path: str) -> None:
    with BudgetEngine.open(engine_url, {"budgets": BUDGETS, "store_timeout": "10s"}) as engine:
        client = app_of(engine)
        assert client.get(path, params={"amount": "1.5"}).status_code == 200
        with pytest.raises(BudgetExceeded) as caught:
            engine.reserve(Call(model="any", user="u1", amount="1"))
        answer = client.get(path, params={"amount": "1"})
    assert (answer.status_code, answer.headers["content-type"]) == (429, "application/problem+json")
    body = answer.json()
    assert (body["status"], body["code"], body["type"]) == (429, "spend", "urn:llm_budget_hooks:spend")
    assert (body["busy"], body["detail"]) == (True, caught.value.public_message)
    assert int(answer.headers["retry-after"]) == body["retry_after"] >= 1
    assert "$" not in answer.text


def test_a_call_that_never_fits_has_no_retry_after(engine_url: str) -> None:
    with BudgetEngine.open(engine_url, {"budgets": BUDGETS, "store_timeout": "10s"}) as engine:
        answer = app_of(engine).get("/blocking", params={"amount": "60"})
    assert (answer.status_code, answer.json()["retry_after"], "retry-after" in answer.headers) == (429, None, False)
    assert "everybodys-purse" not in answer.text


def test_a_store_that_is_away_is_503() -> None:
    policy = {"budgets": BUDGETS, "on_store_error": "deny"}
    with BudgetEngine.open("redis://127.0.0.1:1/0", policy) as engine:
        answer = app_of(engine).get("/awaited", params={"amount": "1"})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert "127.0.0.1" not in answer.text


def test_other_errors_are_left_to_the_app() -> None:
    with BudgetEngine.open("memory://", {}) as engine:
        answer = app_of(engine).get("/broken")
    assert (answer.status_code, answer.json()) == (500, {"general": "something else"})
