"""Verbs `held` and `quarantine`: feedback that is not learned, and sources that a ledger is learned without."""

import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ragbandit.router.cli.console import (
    CommandLine,
    ConfigOption,
    JsonOption,
    LabelOption,
    console,
    errors,
    failing_well,
    print_json,
    show,
)
from ragbandit.router.cli.inspect import opened_ledger
from ragbandit.router.cli.keys import actor
from ragbandit.router.errors import InvalidInput
from ragbandit.router.formats import moment, seconds_of

__all__ = ["add_sources"]

SourceOption = Annotated[str | None, typer.Option(help="key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME")]


def add_sources(app: typer.Typer) -> None:
    """Put the verbs on the command."""
    held = CommandLine(help="Feedback that is held back, since its source has more than its share; release it.")
    held.command(name="list")(_held_list)
    held.command(name="release")(_held_release)
    app.add_typer(held, name="held")
    quarantine = CommandLine(invoke_without_command=True)
    quarantine.callback()(_quarantine)
    quarantine.command(name="list")(_quarantine_list)
    quarantine.command(name="lift")(_quarantine_lift)
    app.add_typer(quarantine, name="quarantine")


def _held_list(
    source: SourceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="most feedback to list, the newest first")] = 100,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is held, by source, and the newest of it."""
    from ragbandit.router.storage.ledgers.held_feedback import held, sources_held

    with failing_well(), opened_ledger(config, label=label) as (_, ledger):
        sources, rows = sources_held(ledger), held(ledger, source=source, limit=limit)
        if as_json:
            print_json({"sources": sources, "feedback": [asdict(row) for row in rows]})
            return
        if not rows:
            console.print("nothing is held")
            return
        console.print(f"held: {', '.join(f'{escape(name)} {count}' for name, count in sources.items())}")
        table = Table("feedback", "decision", "source", "reason", "held at")
        for row in rows:
            cells = (row.feedback_id, row.decision_id, row.source, row.reason, moment(row.held_at))
            table.add_row(*map(escape, cells))
        console.print(table)


def _held_release(
    source: SourceOption = None,
    feedback: Annotated[str | None, typer.Option(help="one feedback, by its id")] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the learner learn what is held of a source, or one feedback."""
    from ragbandit.router.storage.ledgers.held_feedback import release

    with failing_well(), opened_ledger(config, label=label) as (_, ledger):
        if (source is None) == (feedback is None):
            remedy = "`ragbandit held list` shows both"
            raise InvalidInput("give --source or --feedback", field="source", remedy=remedy)
        done = release(ledger, source=source, feedback_id=feedback, actor=actor(), now=time.time())
        show(asdict(done), as_json=as_json)


def _quarantine(
    context: typer.Context,
    source: SourceOption = None,
    since: Annotated[
        str | None, typer.Option(help="of feedback from then on, as 2026-11-20 or 2026-11-20T14:00")
    ] = None,
    until: Annotated[str | None, typer.Option(help="of feedback before then; times are UTC")] = None,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say how much it is, and change nothing")] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    limit: Annotated[int, typer.Option(min=1, help="most decisions to list, the newest first")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Decisions that could not be learned, and why. With --source: learn a new ledger without its feedback.

    The new ledger is learned beside the one in use, which goes on serving. When it is done, set policy.label to it and
    restart the services, one after the other.
    """
    if context.invoked_subcommand is not None:
        return
    with failing_well():
        if source is None:
            if since or until or reason or dry_run:
                raise InvalidInput("nothing says whose feedback", field="source", remedy="give --source")
            _unlearnable(config, label=label, limit=limit, as_json=as_json)
        else:
            times = {"since": _seconds(since, field="since"), "until": _seconds(until, field="until")}
            _relearn(config, label=label, source=source, times=times, reason=reason, dry_run=dry_run, as_json=as_json)


def _unlearnable(config: str | None, *, label: str | None, limit: int, as_json: bool) -> None:
    from ragbandit.router.learning import status as ledger_status

    with opened_ledger(config, label=label) as (_, ledger):
        rows = ledger_status.quarantined(ledger, limit=limit)
        if as_json:
            print_json([dict(row) for row in rows])
            return
        table = Table("decision", "field", "reason")
        for row in rows:
            table.add_row(row["decision_id"], escape(row["field"] or ""), escape(row["reason"]))
        console.print(table if rows else "nothing is quarantined")


def _relearn(
    config: str | None,
    *,
    label: str | None,
    source: str,
    times: dict[str, float | None],
    reason: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    from ragbandit.router.cli.progress import bars
    from ragbandit.router.learning.relearning import checked_source, relearn, selected

    with opened_ledger(config, label=label) as (settings, ledger), bars(errors) as progress:
        if dry_run:
            count = selected(ledger, source=checked_source(source), **times)
            show({"source": source, "feedback": count, "label": ledger.label}, as_json=as_json)
            return
        done = relearn(
            ledger,
            settings=settings,
            source=source,
            reason=reason,
            actor=actor(),
            now=time.time(),
            progress=lambda closed: progress("decisions", closed, closed),
            **times,
        )
        new_label = done.quarantine.new_label
        facts = {
            "quarantine": done.quarantine.number,
            "source": source,
            "feedback": done.feedback,
            "label": new_label,
            "updates": done.updates,
            "snapshot": done.snapshot,
        }
        show(facts, as_json=as_json)
        if not as_json:
            errors.print(
                f"services go on with {ledger.label}: set policy.label to {new_label} and restart them in turn"
            )


def _quarantine_list(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Sources that ledgers are learned without."""
    from ragbandit.router.storage.ledgers.quarantines import quarantines_of

    with failing_well(), opened_ledger(config) as (_, ledger):
        rows = quarantines_of(ledger.database, lifted=True)
        if as_json:
            print_json([asdict(row) for row in rows])
            return
        table = Table("number", "source", "since", "until", "ledger", "learned without", "reason", "state")
        for row in rows:
            bounds = ["" if one is None else moment(one) for one in (row.since, row.until)]
            state = "in force" if row.lifted_at is None else f"lifted {moment(row.lifted_at)}"
            cells = (str(row.number), row.source, *bounds, row.label, row.new_label, row.reason, state)
            table.add_row(*map(escape, cells))
        console.print(table if rows else "no source is quarantined")


def _quarantine_lift(
    number: Annotated[int, typer.Argument(help="of the quarantine, as `quarantine list` shows it")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a ledger learn again from a source: new feedback, and of the former what still waits."""
    from ragbandit.router.learning.relearning import lifted

    with failing_well(), opened_ledger(config) as (_, ledger):
        count = lifted(ledger, number, actor=actor(), now=time.time())
        show({"lifted": number, "feedback": count}, as_json=as_json)


def _seconds(text: str | None, *, field: str) -> float | None:
    """A time in ISO 8601 as seconds since 1970; UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        return seconds_of(text)
    except ValueError as error:
        remedy = "write it as 2026-11-20 or 2026-11-20T14:00"
        raise InvalidInput(f"{text!r:.40} is no time", field=field, remedy=remedy) from error
