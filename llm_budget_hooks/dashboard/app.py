"""The routes of the dashboard, who is let in, and what each answer's headers say."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm_budget_hooks.admin.limits import ends_at, limit_of
from llm_budget_hooks.dashboard import page
from llm_budget_hooks.dashboard.seen import seen
from llm_budget_hooks.dashboard.spend import SpendReader
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import BudgetError, ConfigurationError
from llm_budget_hooks.keys import DEFAULT_TENANT

COOKIE: Final = "llm_budget_session"
_FILES: Final = Path(__file__).parent
_LONGEST_FORM: Final = 10_000
_MOST_SAID: Final = 100
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; img-src data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Form = Mapping[str, str]
Handler = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """The dashboard of one engine, for one operator.

    Args:
        engine: whose budgets.
        token: what a visitor has to know; None: whoever reaches it over loopback is let in.
    """

    def __init__(self, engine: BudgetEngine, token: str | None) -> None:
        self._engine = engine
        self._token = token
        self._session = secrets.token_urlsafe(32)
        self._csrf = secrets.token_urlsafe(32)
        self._spends = SpendReader(engine)
        self._said: dict[str, str] = {}

    async def guarded(self, request: Request, then: Handler) -> Response:
        """Let a request in, or not."""
        return self._turned_away(request) or await then(request)

    async def show(self, request: Request) -> Response:
        """The page; ``?tenant=`` and ``?user=`` choose whose, ``?anonymous=yes`` the user without a name."""
        asked = request.query_params
        user = "" if asked.get("anonymous") else asked.get("user") or None
        tenant = asked.get("tenant") or (None if user is None else DEFAULT_TENANT)
        found = await run_in_threadpool(seen, self._engine, tenant, user, self._spends)
        return HTMLResponse(page.dashboard(found, self._csrf, self._said.pop(asked.get("said", ""), "")))

    def kill(self, form: Form) -> str:
        """Engage the kill switch, once it is confirmed."""
        if form.get("sure") != "yes":
            raise ConfigurationError("Nothing was stopped: tick the box to confirm.")
        done = self._engine.kill(form.get("tenant") or None, reason=form.get("reason", ""), by="dashboard")
        return "Stopped." if done else "The switch was on."

    def revive(self, form: Form) -> str:
        """Take the kill switch back."""
        done = self._engine.revive(form.get("of") or None, by="dashboard")
        return "Calls are let in again." if done else "The switch was not on."

    def limit(self, form: Form) -> str:
        """Set a limit, or take it back where the field was emptied."""
        budget, written = form.get("budget", ""), form.get("limit", "").strip()
        rules = {b.name: b.scope for b in self._engine.policy.budgets_of(form.get("tenant", ""), switched_off=True)}
        self._engine.override(
            budget,
            limit_of(written) if written else None,
            tenant=None if rules.get(budget) == "global" else form.get("tenant") or None,
            expires_at=ends_at(self._engine, form["lasts"]) if written and form.get("lasts", "").strip() else None,
            by="dashboard",
            reason=form.get("reason", ""),
        )
        return f"The limit of {budget} is {written} now." if written else f"The policy's own limit of {budget} holds."

    async def act(self, change: Callable[[Form], str], request: Request) -> Response:
        """Carry out a change that the page itself asked for, and show the page again."""
        form = await _form(request)
        if form is None or not secrets.compare_digest(form.get("csrf", "").encode(), self._csrf.encode()):
            return PlainTextResponse("This did not come from the page. Load it again.", 403)
        try:
            said = await run_in_threadpool(change, form)
        except BudgetError as error:
            said = str(error)
        whose = {name: form[name] for name in ("tenant", "user", "anonymous") if form.get(name)}
        return RedirectResponse(f"/?{urlencode({**whose, 'said': self._kept(said)})}", 303)

    def _kept(self, said: str) -> str:
        """The name under which the next page finds a sentence, once; no link can make it say another."""
        name = secrets.token_urlsafe(8)
        self._said[name] = said
        if len(self._said) > _MOST_SAID:
            self._said.pop(next(iter(self._said)), None)
        return name

    async def sign_in(self, request: Request) -> Response:
        """Ask for the token, and remember who knew it until the browser is closed."""
        if request.method == "GET":
            return HTMLResponse(page.sign_in(""))
        form = await _form(request)
        if form is None or not self._knows(form.get("token", "")):
            return HTMLResponse(page.sign_in("This is not the token."), 403)
        response = RedirectResponse("/", 303)
        # Behind a proxy only the browser knows whether it speaks TLS.
        secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
        response.set_cookie(COOKIE, self._session, httponly=True, samesite="strict", secure=secure)
        return response

    def _turned_away(self, request: Request) -> Response | None:
        if request.method == "POST" and not _same_origin(request):
            return PlainTextResponse("Another site asked for this.", 403)
        if self._token is None:
            return None if is_loopback(_host(request)) else PlainTextResponse("Only for this machine.", 403)
        if request.url.path in ("/sign-in", "/style.css") or self._signed_in(request):
            return None
        return RedirectResponse("/sign-in", 303) if request.method == "GET" else PlainTextResponse("Sign in.", 401)

    def _signed_in(self, request: Request) -> bool:
        cookie = request.cookies.get(COOKIE, "")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        known = secrets.compare_digest(cookie.encode(), self._session.encode())
        return known or (scheme.lower() == "bearer" and self._knows(bearer.strip()))

    def _knows(self, token: str) -> bool:
        return self._token is not None and secrets.compare_digest(token.encode(), self._token.encode())


def dashboard_app(engine: BudgetEngine, token: str | None = None) -> ASGIApp:
    """The dashboard of an engine, as an app.

    Args:
        engine: whose budgets; with a ledger it shows spend, refusals and answers too.
        token: what a visitor has to know, at least 16 letters; None: it answers under the names of loopback only.

    Raises:
        ConfigurationError: the token is too short.
    """
    if token is not None and len(token) < page.SHORTEST_TOKEN:
        raise ConfigurationError(f"a token has at least {page.SHORTEST_TOKEN} letters")
    board = Dashboard(engine, token)

    def route(path: str, handler: Handler, *methods: str) -> Route:
        async def answer(request: Request) -> Response:
            return await board.guarded(request, handler)

        return Route(path, answer, methods=[*methods])

    changes = {"/kill": board.kill, "/revive": board.revive, "/limit": board.limit}
    app = Starlette(
        routes=[
            route("/", board.show, "GET"),
            route("/sign-in", board.sign_in, "GET", "POST"),
            route("/style.css", partial(_file, "style.css", "text/css"), "GET"),
            route("/live.js", partial(_file, "live.js", "text/javascript"), "GET"),
            *(route(path, partial(board.act, change), "POST") for path, change in changes.items()),
        ]
    )
    return _with_headers(app)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _with_headers(app: ASGIApp) -> ASGIApp:
    """An app whose answers all have the headers, those to wrong paths and those of faults too."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, sent)

    return answer


async def _file(name: str, kind: str, _: Request) -> Response:
    return FileResponse(_FILES / name, media_type=kind)


async def _form(request: Request) -> dict[str, str] | None:
    """The fields of a form; None if it is too long or none."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            return None
    try:
        return {name: values[-1] for name, values in parse_qs(body.decode(), max_num_fields=20).items()}
    except ValueError:
        return None


def _host(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:  # the browser's own word, whatever host a proxy has made of it
        return site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")
