"""The admin API against its own OpenAPI description, with made-up requests, right ones and wrong ones."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import schemathesis
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.security import APIKeyHeader
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Usage
from llm_budget_hooks.fastapi import Administrator, admin_router

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

BUDGETS = [
    {"name": "all", "scope": "global", "limit": "$4", "window": "day"},
    {"name": "user-day", "scope": "user", "limit": "$2", "window": "day"},
]
ROLES = {"operator": Administrator("olga", None, "operator"), "admin": Administrator("ann", "acme", "admin")}
KEY = APIKeyHeader(name="x-key")
ROUTES = [
    *((path, "get") for path in ("", "/refusals", "/runs", "/answers", "/events")),
    ("", "put"),
    ("/kill", "post"),
    ("/revive", "post"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BudgetEngine]:
    folder: Path = tmp_path_factory.mktemp("api")
    policy: dict[str, Any] = {"budgets": BUDGETS, "prices": {"made-up": {"input": "1", "output": "10"}}}
    with BudgetEngine.open(f"sqlite:///{folder / 'b.db'}", policy, ledger=f"sqlite:///{folder / 'l.db'}") as made:
        call = Call(model="made-up", tenant="acme", user="u1", amount="0.1", feature="chat")
        made.settle(made.reserve(call), usage=Usage(input_tokens=1000, output_tokens=100))
        with pytest.raises(BudgetExceeded):
            made.reserve(Call(model="made-up", tenant="acme", user="u1", amount="5"))
        made.flush()
        yield made


def app_of(engine: BudgetEngine, authorize: Callable[..., Any]) -> FastAPI:
    app = FastAPI()
    app.include_router(admin_router(engine, authorize=authorize))
    return app


@pytest.mark.parametrize(
    ("role", "mode"),
    [("operator", GenerationMode.POSITIVE), ("operator", GenerationMode.NEGATIVE), ("admin", GenerationMode.POSITIVE)],
)
@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_nothing_is_found_against_the_description(
    engine: BudgetEngine, route: tuple[str, str], role: str, mode: GenerationMode
) -> None:
    app = app_of(engine, lambda: ROLES[role])
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[f"/ai-budget{route[0]}"][route[1]]

    @settings(max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def found(case: Any) -> None:
        case.call_and_validate()

    found()


@pytest.mark.parametrize("role", ["operator", "admin"])
def test_nothing_is_found_by_the_command_with_each_kind_of_request(
    engine: BudgetEngine, role: str, tmp_path: Path
) -> None:
    app = app_of(engine, lambda: ROLES[role])
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/openapi.json"
        start = "from schemathesis.cli import schemathesis; schemathesis()"
        run = [sys.executable, "-c", start, "run", url, "--phases", "examples,coverage", "--wait-for-schema", "20"]
        done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=150, cwd=tmp_path)
        server.should_exit = True
        thread.join()
    assert (done.returncode, "No issues found" in done.stdout) == (0, True), done.stdout[-3000:] + done.stderr[-1000:]


def test_every_route_is_described_with_all_that_it_answers(engine: BudgetEngine) -> None:
    def authorize(_: Annotated[str, Depends(KEY)]) -> Administrator:
        return ROLES["operator"]

    paths = app_of(engine, authorize).openapi()["paths"]
    routes = {(path.removeprefix("/ai-budget"), method) for path, found in paths.items() for method in found}
    assert routes == set(ROUTES)
    for (path, method), found in ((key, paths[f"/ai-budget{key[0]}"][key[1]]) for key in routes):
        assert {"200", "401", "403", "422", "503"} <= set(found["responses"]), (path, method)
        assert found["summary"]
        assert len(found["description"]) > 20
        assert found["security"] == [{"APIKeyHeader": []}]
        problems = {status: answer["content"] for status, answer in found["responses"].items() if status != "200"}
        assert all(set(content) == {"application/problem+json"} for content in problems.values())


def test_other_methods_are_told_all_that_a_path_knows(engine: BudgetEngine) -> None:
    client = TestClient(app_of(engine, lambda: ROLES["operator"]))
    known: dict[str, set[str]] = {}
    for path, method in ROUTES:
        known.setdefault(path, set()).add(method.upper())
    for path, methods in known.items():
        for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE"} - methods:
            answer = client.request(method, f"/ai-budget{path}", params={"tenant": "acme", "limit": 5})
            assert (answer.status_code, answer.headers["allow"]) == (405, ", ".join(sorted(methods))), (path, method)
            assert answer.headers["content-type"] == "application/problem+json"
