"""Verbs `data reprice` and `data credit`: take back a wrong price, and dollars that no outcome has."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import actor, open_store, parse_time
from ragbandit.router.cli.tables import show
from ragbandit.router.learning.exclusions import learn_new_ledger
from ragbandit.router.learning.repricing import reprice as reprice_outcomes
from ragbandit.router.serving.checks.questions import plain_decision_id
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.access.corrections import Correction, credit as take_back
from ragbandit.router.storage.access.spending import MOST_DOLLARS, Spender, read_spending
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Json
from ragbandit.workers.setup.generators import prices_by_arm


def reprice(
    arm: Annotated[str | None, typer.Option(help="only outcomes of this arm")] = None,
    *,
    generator: Annotated[
        str | None, typer.Option(help="only outcomes of this generator: its name in the settings, or its model")
    ] = None,
    decision: Annotated[str | None, typer.Option(help="only the outcome of this decision")] = None,
    since: Annotated[str | None, typer.Option(help="only outcomes since a date, a time, or an age (7d)")] = None,
    until: Annotated[str | None, typer.Option(help="only outcomes before then; times are UTC (default: now)")] = None,
    factor: Annotated[
        float | None, typer.Option(min=0.0, help="the right dollars are this multiple of the booked ones")
    ] = None,
    dollars: Annotated[
        float | None, typer.Option(min=0.0, max=MOST_DOLLARS, help="the right dollars of --decision")
    ] = None,
    relearn: Annotated[
        bool, typer.Option("--relearn/--no-relearn", help="learn a ledger with the right dollars")
    ] = True,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print what would change; change nothing")] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back a wrong price: correct budgets, and learn a ledger with the right dollars.

    First set the right token_prices. Without --factor and --dollars, the tokens of each outcome get these prices. The
    sums of spending change on the days of the outcomes, and so do those of sessions and tasks; stored outcomes keep
    their dollars, and the correction is an entry of the audit log. Services use the old ledger until policy.label names
    the new one and they are restarted.
    """
    if not (arm or generator or decision):
        raise InvalidInput("no outcome is named", remedy="give --arm, --generator or --decision")
    if dollars is not None and (decision is None or factor is not None):
        raise InvalidInput("--dollars needs --decision, and no --factor", field="dollars", remedy="give --factor")
    now = time.time()
    with open_store(config, label=label) as (settings, ledger), show_progress(errors) as progress:

        def learn(new_label: str) -> Mapping[str, Json]:
            common: dict[str, Any] = {"make_learner": partial(make_learner, settings), "now": now}
            return learn_new_ledger(
                ledger, label=new_label, progress=lambda closed: progress("decisions", closed, 0), **common
            )

        done = reprice_outcomes(
            ledger,
            Correction(
                decision=None if decision is None else plain_decision_id(decision),
                arm=arm,
                generator=generator,
                since=None if since is None else parse_time(since, now=now, field="since"),
                until=now if until is None else min(now, parse_time(until, now=now, field="until")),
                dollars=dollars,
                factor=factor,
                prices={} if factor is not None or dollars is not None else prices_by_arm(settings),
            ),
            learn=learn if relearn and settings.reward.cost.get("dollars") else None,
            dry_run=dry_run,
            reason=reason,
            actor=actor(),
            now=now,
        )
    show(done, as_json=as_json)
    if done["label"] is not None and not as_json:
        errors.say(f"set policy.label to {done['label']} and restart the services in turn")


def credit(
    dollars: Annotated[float, typer.Argument(min=0.0, max=MOST_DOLLARS, help="dollars to take back")],
    *,
    tenant: Annotated[str | None, typer.Option(help="tenant whose sum is wrong")] = None,
    key: Annotated[str | None, typer.Option(help="public id of the API key whose sum is wrong")] = None,
    day: Annotated[str | None, typer.Option(help="day (UTC) on which they were booked (default: today)")] = None,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back dollars that were booked without an outcome: of embeddings, rewrites and scores.

    Most calls are booked on a tenant and on a key: give both. For answers use `ragbandit data reprice --arm ARM`.
    """
    spenders = [] if tenant is None else [Spender("tenant", tenant)]
    spenders += [] if key is None else [Spender("key", key)]
    if not spenders:
        raise InvalidInput("nobody is named", remedy="give --tenant, --key or both")
    now = time.time()
    at = now if day is None else parse_time(day, now=now, field="day")
    with open_store(config, must_exist=False) as (_, ledger):
        number = take_back(ledger.database, spenders, dollars=dollars, time=at, actor=actor(), reason=reason, now=now)
        with ledger.database.read() as connection:
            sums = read_spending(connection, spenders, now=at)
    left: Mapping[str, Json] = {f"{spender.kind}_day": sums[spender].day for spender in spenders}
    show({"number": number, "dollars": dollars, **left}, as_json=as_json)
