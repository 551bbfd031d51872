"""A real LiteLLM proxy in processes of its own, with the budgets of a policy file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.testing import FakeProvider

START_S = 300  # each process imports for some 17 s of CPU time, and other tests may run beside it
README = Path(__file__).parents[2] / "README.md"
MIXED = ("openai/gpt-4o-mini", "openai/gpt-4o")
# Stands for the proxy's database of keys: "sk-red-alice" is alice of the team red.
AUTH = """
from litellm.proxy._types import UserAPIKeyAuth

async def authenticate(request, api_key):
    _, team, user = api_key.split("-")
    return UserAPIKeyAuth(api_key=api_key, team_id=team, user_id=user)
"""


@dataclass
class Proxy:
    """A proxy that starts, or runs once `ready` has returned.

    Attributes:
        url: where it listens.
        engine: reads the balances that it writes.
        process: the parent of all its workers.
        log: the file that it writes to.
        closing: closes its clients.
    """

    url: str
    engine: BudgetEngine
    process: subprocess.Popen[bytes]
    log: Path
    closing: contextlib.ExitStack

    def ready(self) -> Proxy:
        """This proxy, once it answers."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health/liveliness", timeout=5).status_code == 200:
                    return self
            time.sleep(0.1)
        raise RuntimeError(f"the proxy did not start:\n{self.log.read_text()[-2000:]}")

    def client(self, key: str, **more: Any) -> openai.OpenAI:
        """A client with a key such as ``sk-red-alice``; it is closed with the proxy."""
        return self.closing.enter_context(openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **more))

    def async_client(self, key: str, **more: Any) -> openai.AsyncOpenAI:
        """Same as `client`, awaited; whoever makes it closes it."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **more)


@contextlib.contextmanager
def starting(
    provider: FakeProvider,
    place: Path,
    policy: str,
    store: str | None = None,
    workers: int = 1,
    settings: dict[str, Any] | None = None,
) -> Iterator[Proxy]:
    """A proxy on a free port, from a generated config.yaml; several may start at once."""
    store = store or f"sqlite:///{place}/budget.db"
    (place / "budgets.toml").write_text(policy)
    (place / "keys.py").write_text(AUTH)
    (place / "config.yaml").write_text(json.dumps(_config(provider, settings or {})))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {
        "LLM_BUDGET_STORE": store,
        "LLM_BUDGET_POLICY": str(place / "budgets.toml"),
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "ANTHROPIC_API_BASE": provider.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "test",
    }
    command = [
        sys.executable, "-m", "litellm.proxy.proxy_cli", "--config", str(place / "config.yaml"),
        "--host", "127.0.0.1", "--port", str(port), "--num_workers", str(workers),
        "--timeout_worker_healthcheck", str(START_S),  # a worker that imports on a busy machine is not taken for dead
    ]  # fmt: skip
    with (place / "proxy.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **told}, cwd=place, stdout=log, stderr=log)
    try:
        with BudgetEngine.open(store, place / "budgets.toml") as engine, contextlib.ExitStack() as closing:
            yield Proxy(f"http://127.0.0.1:{port}", engine, process, place / "proxy.log", closing)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _config(provider: FakeProvider, settings: dict[str, Any]) -> dict[str, Any]:
    where = {"api_base": provider.base_url, "api_key": "test"}
    models = {
        "chat": "openai/gpt-4o-mini",
        "embed": "openai/text-embedding-3-small",
        "image": "openai/gpt-image-1",
        "speech": "openai/tts-1",
        "listen": "openai/whisper-1",
        "text": "text-completion-openai/gpt-3.5-turbo-instruct",
    }
    rank = {**where, "model": "cohere/rerank-english-v3.0", "api_base": provider.base_url.removesuffix("/v1")}
    (callback,) = re.findall(r"^  callbacks: (\S+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        "model_list": [
            *({"model_name": name, "litellm_params": {"model": model, **where}} for name, model in models.items()),
            {"model_name": "rank", "litellm_params": rank},
            *({"model_name": "mixed", "litellm_params": {"model": model, **where}} for model in MIXED),
        ],
        "litellm_settings": {"callbacks": callback, **settings},
        "general_settings": {
            "custom_auth": "keys.authenticate",
            "pass_through_endpoints": [
                {"path": "/ours", "target": f"{provider.base_url}/chat/completions"},
                {"path": "/list", "target": f"{provider.base_url}/models"},
            ],
        },
    }
