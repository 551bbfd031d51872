"""What tests of budgets need: a provider that counts its calls, real stores, and a network that can fail."""

from __future__ import annotations

from llm_budget_hooks.testing.delay_proxy import DelayProxy
from llm_budget_hooks.testing.provider import FakeProvider, RequestRecord
from llm_budget_hooks.testing.replies import Reply, ToolCall
from llm_budget_hooks.testing.servers import RedisServer, available_servers

__all__ = [
    "DelayProxy",
    "FakeProvider",
    "RedisServer",
    "Reply",
    "RequestRecord",
    "ToolCall",
    "available_servers",
]
