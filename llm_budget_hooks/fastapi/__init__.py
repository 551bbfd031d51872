"""FastAPI: refusals as answers of HTTP, and an admin API to mount in an app. Takes the extra ``fastapi``.

`install_errors` turns `BudgetExceeded` into a 429 that tells the end user nothing but their own. `admin_router` shows
and changes the budgets of one engine; who may do that is for the app to say, and without that it is not made.
"""

from llm_budget_hooks.fastapi.access import Administrator
from llm_budget_hooks.fastapi.problems import install_errors
from llm_budget_hooks.fastapi.router import admin_router

__all__ = ["Administrator", "admin_router", "install_errors"]
