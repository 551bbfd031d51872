"""A page that an owner keeps open: balances, spend, refusals, answers, the kill switch, and limits to edit.

`dashboard_app` is an app of its own for ``llm-budget serve``. It is rendered here, with one small script that keeps
it up to date, and asks no other host for anything.
"""

from llm_budget_hooks.dashboard.app import dashboard_app, is_loopback

__all__ = ["dashboard_app", "is_loopback"]
