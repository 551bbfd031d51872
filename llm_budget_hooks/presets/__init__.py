"""Policies to start from, each a commented TOML file: `Policy.preset` reads them, the command line prints them."""

from __future__ import annotations

from importlib.resources import files

from llm_budget_hooks.errors import ConfigurationError

PRESETS = ("zeno", "llm-budget-cap", "pact", "daily-tokens")
_SCOPES = ("global", "tenant", "user")


def preset_text(name: str, per: str | None = None) -> str:
    """The TOML text of a preset.

    Args:
        name: one of `PRESETS`.
        per: whom the one counter of ``llm-budget-cap`` is for: ``global``, ``tenant`` or ``user``; None: as written.

    Raises:
        ConfigurationError: there is no such preset, or it has nothing that `per` could change.
    """
    if name not in PRESETS:
        raise ConfigurationError(f"no preset is named {name!r}: there are {', '.join(PRESETS)}")
    text = files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    if per is None:
        return text
    if name != "llm-budget-cap":
        raise ConfigurationError(f"per= is for llm-budget-cap and its one counter, not for {name}")
    if per not in _SCOPES:
        raise ConfigurationError(f"per= is one of {', '.join(_SCOPES)}, not {per!r}")
    return text.replace('scope = "global"', f'scope = "{per}"')
