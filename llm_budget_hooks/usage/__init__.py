"""What a provider says was used, from every shape it says it in, as one `Usage`.

The rule for counts that cannot be, so that no answer makes an exception or a negative cost:

- a negative count, text that is no number and NaN are 0, a fraction is rounded up, digits as text are the number;
- parts of the prompt that are more than the prompt are cut to it: first what was written to a cache for an hour, then
  for 5 minutes, stays, then what was read from one; sound and images, reasoning and spoken output are cut likewise.
  `Usage` does that, so that it holds for one made by hand too;
- reasoning above the output is beside it where the provider is known to count so, or its total says so;
- details that are no table are not read;
- every such change, and a prompt or output of None, makes the usage inexact (`Usage.exact`).
"""

from __future__ import annotations

from llm_budget_hooks.usage.answers import served_model, usage_from
from llm_budget_hooks.usage.fields import field
from llm_budget_hooks.usage.streams import StreamUsage

__all__ = ["StreamUsage", "field", "served_model", "usage_from"]
