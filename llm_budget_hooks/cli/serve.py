"""``llm-budget serve``: the dashboard, on loopback or behind a token."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from llm_budget_hooks.cli.opened import print_json, say
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import ConfigurationError


def run(engine: BudgetEngine, host: str, port: int, as_json: bool) -> None:
    """Serve the dashboard until it is interrupted or terminated.

    Args:
        engine: whose budgets.
        host: what to listen on; beside loopback it takes a token in LLM_BUDGET_TOKEN.
        port: the port.
        as_json: print where it is as JSON.

    Raises:
        ConfigurationError: the host is no loopback and there is no token, it cannot be listened on, or a package is
            missing.
    """
    try:
        import uvicorn

        from llm_budget_hooks.dashboard import dashboard_app, is_loopback
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"The dashboard needs {error.name}: pip install 'llm_budget_hooks[fastapi]'") from None
    token = os.environ.get("LLM_BUDGET_TOKEN") or None
    if token is None and not is_loopback(host):
        raise ConfigurationError(
            f"{host} is reached from elsewhere: set LLM_BUDGET_TOKEN to a secret of 16 letters or more that visitors "
            "have to know, or serve on 127.0.0.1."
        )
    config = uvicorn.Config(dashboard_app(engine, token), log_level="warning", server_header=False, proxy_headers=False)
    with _listening(host, port) as bound:
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        if as_json:
            print_json({"url": url, "token": token is not None})
        else:
            say(f"The dashboard is at {url} until Ctrl-C.")
        with suppress(KeyboardInterrupt), _terminated_as_interrupted():
            uvicorn.Server(config).run(sockets=[bound])


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end what is inside as Ctrl-C does, so that the engine is closed: the server raises it once more."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on ({error.strerror}): choose another --port or --host."
        ) from None
