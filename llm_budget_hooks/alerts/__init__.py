"""Where alerts go outside of the process."""

from llm_budget_hooks.alerts.webhook import Webhook, signature

__all__ = ["Webhook", "signature"]
