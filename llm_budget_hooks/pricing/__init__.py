"""Exact prices: the policy's own, else LiteLLM's list, read without importing litellm."""

from __future__ import annotations

from llm_budget_hooks.pricing.book import PriceBook
from llm_budget_hooks.pricing.names import masked
from llm_budget_hooks.pricing.price import Price, UsageCounts

__all__ = ["Price", "PriceBook", "UsageCounts", "masked"]
