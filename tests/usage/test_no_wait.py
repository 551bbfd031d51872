"""Whoever does not use LiteLLM does not wait for its import: not for usage, prices, tokens or LangChain's hooks."""

from __future__ import annotations

import subprocess
import sys


def test_a_langchain_user_never_imports_litellm() -> None:
    code = """
import sys
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.langchain import BudgetCallbackHandler
budget = {"scope": "global", "limit": "$1", "window": "day"}
engine = BudgetEngine.open("memory://", {"budgets": [budget]})
said = {"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010}
answer = AIMessage("hello", usage_metadata=said, response_metadata={"model_name": "gpt-4o"})
model = GenericFakeChatModel(messages=iter([answer]), metadata={"ls_model_name": "gpt-4o"})
model.invoke("hi", {"callbacks": [BudgetCallbackHandler(engine)], "metadata": {"tenant": "acme", "user": "u1"}})
print(engine.status()[0].spent, "litellm" in sys.modules, "genai_prices" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["0.0026", "False", "False"]


def test_usage_prices_and_tokens_import_no_framework() -> None:
    code = """
import sys
from llm_budget_hooks import pricing, tokens, usage
assert pricing.PriceBook().price("gpt-4o").cost_nusd(usage.usage_from({"prompt_tokens": 1, "completion_tokens": 1}))
assert tokens.input_bound("gpt-4o", ["hi"])
heavy = ("litellm", "langchain_core", "openai", "tiktoken", "genai_prices", "redis", "sqlalchemy", "httpx")
print(*(name for name in heavy if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == []
