"""What tests of budgets need: a provider that counts its calls, real stores, and a network that can fail."""

from __future__ import annotations

from llm_budget_hooks.testing.provider import FakeProvider, RequestRecord
from llm_budget_hooks.testing.replies import Reply, ToolCall

__all__ = ["FakeProvider", "Reply", "RequestRecord", "ToolCall"]
