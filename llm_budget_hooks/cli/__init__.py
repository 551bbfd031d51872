"""The command ``llm-budget``. Nothing heavy is imported before a subcommand runs; each has a module of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import llm_budget_hooks
from llm_budget_hooks.cli.opened import engine_of, mistakes_told, trail_of
from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.presets import PRESETS

if TYPE_CHECKING:
    from llm_budget_hooks.cli.trail import Asked

app = typer.Typer(
    name="llm-budget",
    epilog="Exit codes: 0 all is well, 1 something was found or refused, 2 wrong use.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Demoed = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="sqlite:///path, redis://host:6379/0 or memory://; left out: a temporary SQLite file.",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="sqlite:///path, redis://host:6379/0 or memory://; left out: LLM_BUDGET_STORE, else sqlite:///llm-budget.db.",
    ),
]
Policy = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The rules, such as budgets.toml; left out: LLM_BUDGET_POLICY.")
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Rules that come with it: zeno, llm-budget-cap, pact or daily-tokens.",
        autocompletion=lambda: list(PRESETS),
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Pay for some 70 short calls of this model at its real provider."),
]
Ledger = Annotated[
    str | None,
    typer.Option(metavar="URL", help="sqlite:///path or postgresql://user@host/name; left out: LLM_BUDGET_LEDGER."),
]
_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
Since = Annotated[datetime | None, typer.Option(metavar="DATE", formats=_FORMATS, help="From this day or instant on.")]
Until = Annotated[datetime | None, typer.Option(metavar="DATE", formats=_FORMATS, help="Before this day or instant.")]


def _named(value: str | None) -> str | None:
    """An id that was given; an empty one, such as of a variable that is not set, is a mistake."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty; leave the option out, or name somebody")
    return value


def _id(text: str) -> Any:
    return typer.Option(metavar="ID", callback=_named, help=text)


Tenant = Annotated[str | None, _id("Whose.")]
Everybody = Annotated[bool, typer.Option("--everybody", help="All tenants.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who says so; left out: who is logged in.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept with the change.")]
Name = Annotated[str, typer.Argument(metavar="BUDGET", help="The budget's name, as llm-budget check shows it.")]
User = Annotated[str | None, typer.Option(metavar="ID", help="Only of this user.")]
Feature = Annotated[str | None, typer.Option(metavar="NAME", help="Only of this feature.")]
After = Annotated[str | None, typer.Option(metavar="PLACE", help="Go on after a page; it says where.")]
Rows = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llm-budget {llm_budget_hooks.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")]


@app.callback()
def main(version: Version = False) -> None:
    """Budgets for LLM calls: decided before the provider is called, booked after.

    New here? In this order:

    - `llm-budget demo` shows what it does, without a key
    - `llm-budget check --preset zeno --print > budgets.toml` writes rules to start from
    - `llm-budget check budgets.toml` reads them back in sentences
    - `llm-budget status --policy budgets.toml` shows the balances, once there were calls
    """


@app.command()
def demo(store: Demoed = None, model: Model = None, as_json: AsJson = False) -> None:
    """Race 50 calls against a limit worth 10, without and with this package; then cap an agent.

    Everything is real but the provider, which runs on loopback and answers without costing anything; with --model it
    is the real one.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.demo import run

        run(store, model, as_json)


@app.command()
def check(
    policy: Annotated[Path | None, typer.Argument(metavar="POLICY.toml", help="The rules to explain.")] = None,
    preset: Preset = None,
    printed: Annotated[bool, typer.Option("--print", help="Print the preset as a file to start from.")] = False,
    per: Annotated[
        str | None, typer.Option(metavar="SCOPE", help="llm-budget-cap for each user or tenant, or global.")
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="URL", help="Look at the store as well.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Estimate with this model's price; may be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain each budget in a sentence, and warn about what cannot work.

    Looked for are limits that no call can pass, and with --store a Redis that evicts balances and a store that other
    processes cannot see. The exit code is 1 if something is found.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.check import run

        if printed and preset is None:
            raise ConfigurationError("--print shows a preset: name it with --preset.")
        run(policy, preset, per, printed, store, model or [], as_json)


@app.command()
def status(
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    tenant: Annotated[str | None, _id("Show this tenant's budgets too.")] = None,
    user: Annotated[str | None, typer.Option(help="Show those of this user of the tenant too.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table up to date until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often --watch reads.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show what is spent, held and free of each budget, with a bar; and kill switches and limits that were set.

    A balance that could not be read is shown as "unread", and the exit code is 1. Without --tenant only the budgets
    of scope global are shown.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.status import run

        if user is not None and tenant is None:
            raise ConfigurationError("--user is always a user of a tenant: name it with --tenant.")
        with engine_of(store, policy, preset) as engine:
            run(engine, tenant, user, as_json, every if watch else None)


@app.command()
def doctor(
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    hooks: Annotated[
        bool, typer.Option(help="Make LiteLLM and LangChain refuse a call, at a provider on loopback.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """See whether this installation really stops calls: versions, policy, store, clock, ledger, hooks.

    The store is tried in a namespace of its own. The hooks are made to refuse calls and to let some in, at a provider
    on loopback that counts what reaches it. The exit code is 1 if something warns or fails.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.doctor import run
        from llm_budget_hooks.cli.opened import ledger_url, policy_of, store_of

        run(store_of(store), policy_of(policy, preset), ledger_url(ledger), hooks, as_json)


@app.command()
def whatif(
    policy: Annotated[Path | None, typer.Argument(metavar="POLICY.toml", help="The rules to try.")] = None,
    preset: Preset = None,
    ledger: Ledger = None,
    since: Since = None,
    until: Until = None,
    tenant: Annotated[str | None, _id("Only this tenant's calls.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay the ledger under other rules: what would have been refused, when, for whom, and what it would have saved.

    An answer ends with its first refusal, and nobody comes again later, so what is saved is the most that it can be.
    Nothing is changed. The exit code is 1 if something would have been refused.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.opened import ledger_of, policy_of
        from llm_budget_hooks.cli.whatif import run

        rules = policy_of(policy, preset)
        run(ledger_of(ledger), rules, since, until, tenant, as_json)


@app.command()
def kill(
    tenant: Tenant = None,
    everybody: Everybody = False,
    reason: Reason = "",
    by: By = None,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Refuse every call of a tenant, or of everybody, from the next one on, in every process.

    Calls that are under way are settled as usual. It stays on until llm-budget revive.
    """
    with mistakes_told():
        from llm_budget_hooks.cli import switches

        switches.check_whose(tenant, everybody)
        with engine_of(store, policy, preset, ledger, changing=True) as engine:
            switches.kill(engine, tenant, reason, by, as_json)


@app.command()
def revive(
    tenant: Tenant = None,
    everybody: Everybody = False,
    by: By = None,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Let the calls in again that llm-budget kill, or the switch itself, has stopped."""
    with mistakes_told():
        from llm_budget_hooks.cli import switches

        switches.check_whose(tenant, everybody)
        with engine_of(store, policy, preset, ledger, changing=True) as engine:
            switches.revive(engine, tenant, by, as_json)


@app.command("set")
def set_limit(
    budget: Name,
    limit: Annotated[str, typer.Argument(metavar="LIMIT", help="Such as $5, 500, or off.")],
    tenant: Tenant = None,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Such as 24h; left out: until llm-budget unset.")
    ] = None,
    reason: Reason = "",
    by: By = None,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Change a limit for one tenant, or that of a global budget, from the next call on, in every process.

    The policy file stays as it is. A limit below what is spent refuses, and takes nothing back.
    """
    with mistakes_told():
        from llm_budget_hooks.cli import switches

        with engine_of(store, policy, preset, ledger, changing=True) as engine:
            switches.set_limit(engine, budget, limit, tenant, lasts, by, reason, as_json)


@app.command()
def unset(
    budget: Name,
    tenant: Tenant = None,
    by: By = None,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Let the policy's own limit hold again, which llm-budget set has changed."""
    with mistakes_told():
        from llm_budget_hooks.cli import switches

        with engine_of(store, policy, preset, ledger, changing=True) as engine:
            switches.unset(engine, budget, tenant, by, as_json)


@app.command()
def refusals(
    tenant: Tenant = None,
    user: User = None,
    feature: Feature = None,
    code: Annotated[str | None, typer.Option(help="Only of this kind, such as spend or killed.")] = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Rows = 20,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Show the calls and answers that were turned away, the latest first."""
    with mistakes_told():
        from llm_budget_hooks.cli import trail

        names = {"tenant": tenant, "user": user, "feature": feature, "code": code}
        with trail_of(store, policy, preset, ledger) as kept:
            trail.refusals(kept, _asked(names, since, until, after, limit, as_json))


@app.command()
def events(
    tenant: Tenant = None,
    name: Annotated[str | None, typer.Option(help="Only of this kind, such as killed or alert.")] = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Rows = 20,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Show the kill switch, alerts and the like as they happened, the latest first."""
    with mistakes_told():
        from llm_budget_hooks.cli import trail

        with trail_of(store, policy, preset, ledger) as kept:
            trail.events(kept, _asked({"tenant": tenant, "name": name}, since, until, after, limit, as_json))


@app.command()
def runs(
    tenant: Tenant = None,
    user: User = None,
    feature: Feature = None,
    step: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this step.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this model.")] = None,
    utterance: Annotated[str | None, typer.Option(metavar="ID", help="Only of this request.")] = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Rows = 20,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Show what calls cost, the latest first.

    The ledger is enough. With a policy, what the store has not given to the ledger yet is brought there first.
    """
    with mistakes_told():
        from llm_budget_hooks.cli import trail

        names = {"tenant": tenant, "user": user, "feature": feature}
        names |= {"step": step, "model": model, "utterance": utterance}
        with trail_of(store, policy, preset, ledger) as kept:
            trail.runs(kept, _asked(names, since, until, after, limit, as_json))


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="What to listen on; beside loopback, set LLM_BUDGET_TOKEN.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port.")] = 8383,
    store: Store = None,
    policy: Policy = None,
    preset: Preset = None,
    ledger: Ledger = None,
    as_json: AsJson = False,
) -> None:
    """Show a page with balances, spend, refusals and answers; limits and the kill switch can be changed on it.

    With --ledger it shows spend, refusals and answers too. Elsewhere than on loopback it asks visitors for the token
    in LLM_BUDGET_TOKEN.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.serve import run

        with engine_of(store, policy, preset, ledger) as engine:
            run(engine, host, port, as_json)


def _asked(
    names: dict[str, str | None],
    since: datetime | None,
    until: datetime | None,
    after: str | None,
    limit: int,
    as_json: bool,
) -> Asked:
    from llm_budget_hooks.cli.trail import Asked

    zoned = [at.replace(tzinfo=at.tzinfo or UTC) if at is not None else None for at in (since, until)]
    return Asked(names, zoned[0], zoned[1], after, limit, as_json)


@app.command()
def reconcile(
    books: Annotated[
        str,
        typer.Argument(metavar="BOOKS", help="openai, anthropic, litellm, or an exported CSV or JSON file."),
    ],
    ledger: Ledger = None,
    since: Since = None,
    until: Until = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Their address, if it is another.")] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="Of a file: whose models it has.")] = None,
    booking: Annotated[bool, typer.Option("--book", help="Book what is flagged, in today's windows.")] = False,
    tenant: Annotated[str | None, _id("Of --book: correct its budgets too.")] = None,
    store: Store = None,
    policy: Policy = None,
    as_json: AsJson = False,
) -> None:
    """Compare the ledger with the provider's own books, per model and UTC day.

    Left out, the span is the seven days before today. What differs by more than 5 % is flagged with its likely cause,
    and the exit code is 1, for cron. With --book it is booked as well, as corrections that limits see: of the global
    budgets, and of a --tenant's. They are in the windows of today, whatever day the difference is of.
    Keys are in OPENAI_ADMIN_KEY, ANTHROPIC_ADMIN_KEY or LITELLM_PROXY_API_KEY.
    """
    with mistakes_told():
        from llm_budget_hooks.cli.opened import ledger_of, rules_of
        from llm_budget_hooks.cli.reconcile import run
        from llm_budget_hooks.reconcile import book, open_books

        provided = open_books(books, url=url, provider=provider)
        if booking:
            kept = ledger_of(ledger)
            with engine_of(store, policy, None, ledger, changing=True) as engine:
                engine.flush()  # an earlier correction may be booked and not written yet
                by = "llm-budget reconcile"
                run(
                    kept, provided, engine.policy, since, until, as_json,
                    lambda found: book(engine, found, tenant=tenant, by=by),
                )  # fmt: skip
        else:
            with trail_of(store, policy, None, ledger) as kept:
                run(kept, provided, rules_of(policy), since, until, as_json)
