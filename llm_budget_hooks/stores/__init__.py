"""The stores. What a store must keep is written at `llm_budget_hooks.stores.base.Store`."""
