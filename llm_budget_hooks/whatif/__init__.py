"""What another policy would have done: `whatif` replays the calls of a ledger under it.

Not imported by the core; it needs a ledger.
"""

from llm_budget_hooks.whatif.replay import whatif
from llm_budget_hooks.whatif.results import Day, Refused, Share, WhatIf

__all__ = ["Day", "Refused", "Share", "WhatIf", "whatif"]
