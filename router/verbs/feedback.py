"""Verbs of `feedback` that read the database: quarantined decisions, and excluded sources."""

import time
from dataclasses import asdict
from functools import partial
from typing import Annotated, Final

import typer

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import actor, open_store, parse_time
from ragbandit.router.cli.tables import show, show_list
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.exclusions import checked_source, count_feedback, relearn_without_source
from ragbandit.router.learning.sources import exclusions_of
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.shared.errors import InvalidInput

SOURCE_HELP: Final = "key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"


def quarantined(
    limit: Annotated[int, typer.Option(min=1, help="maximum number of decisions, newest first")] = 100,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the decisions that could not be learned, with the reason."""
    with open_store(config, label=label) as (_, ledger):
        rows = ledger_status.quarantined_decisions(ledger, limit=limit)
    show_list([dict(row) for row in rows], none="every decision could be learned", as_json=as_json)


def exclude(
    source: Annotated[str | None, typer.Option(help=f"{SOURCE_HELP}; default: list all exclusions")] = None,
    since: Annotated[str | None, typer.Option(help="only feedback since a date, a time, or an age (7d)")] = None,
    until: Annotated[str | None, typer.Option(help="only feedback before a date, time or age; all UTC")] = None,
    reason: Annotated[str, typer.Option(help="reason, for the audit log")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print how much feedback would be excluded; change nothing")
    ] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a ledger without the feedback of a source, or list all exclusions (no option).

    Services use the old ledger while the new one is learned. Afterwards set policy.label to the new ledger and restart
    the services, one after the other. To end the exclusion, set policy.label to the old ledger again.
    """
    if source is None:
        if since or until or dry_run:
            raise InvalidInput("name the source to exclude", field="source", remedy=SOURCE_HELP)
        with open_store(config) as (_, ledger):
            rows = exclusions_of(ledger.database)
        show_list([asdict(row) for row in rows], none="no source is excluded", as_json=as_json)
        return
    now = time.time()
    period = {
        name: None if text is None else parse_time(text, now=now, field=name)
        for name, text in (("since", since), ("until", until))
    }
    with open_store(config, label=label) as (settings, ledger), show_progress(errors) as progress:
        if dry_run:
            count = count_feedback(ledger, source=checked_source(source), **period)
            show({"source": source, "feedback": count, "label": ledger.label}, as_json=as_json)
            return
        done = relearn_without_source(
            ledger,
            make_learner=partial(make_learner, settings),
            source=source,
            reason=reason,
            actor=actor(),
            now=now,
            progress=lambda closed: progress("decisions", closed, 0),
            **period,
        )
    show(done, as_json=as_json)
    if not as_json:
        errors.say(f"services go on with {ledger.label}: set policy.label to {done['label']} and restart them in turn")
