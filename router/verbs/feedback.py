"""Verbs of `feedback`: quarantined decisions, excluded sources, and imports of judgements from a file."""

import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ConfigOption, JsonOption, LabelOption
from ragbandit.router.cli.progress import bars
from ragbandit.router.cli.store import actor, open_store, parse_time
from ragbandit.router.cli.tables import show, show_list
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.exclusions import checked_source, count_feedback, relearn
from ragbandit.router.learning.sources import exclusions_of
from ragbandit.router.offline.logs.records import records
from ragbandit.router.offline.traffic.feedback_rows import FeedbackImporter
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.setup.bootstrap import make_jobs
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import rereadable

#: lines that are stored in one transaction
_PAGE: Final = 500
SOURCE_HELP: Final = "key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"


def quarantined(
    limit: Annotated[int, typer.Option(min=1, help="most decisions to list, the newest first")] = 100,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the decisions that could not be learned, with the reason."""
    with open_store(config, label=label) as (_, ledger):
        rows = ledger_status.quarantined(ledger, limit=limit)
    show_list([dict(row) for row in rows], none="every decision could be learned", as_json=as_json)


def exclude(
    source: Annotated[str | None, typer.Option(help=f"{SOURCE_HELP}; default: list what is excluded")] = None,
    since: Annotated[str | None, typer.Option(help="only feedback since a date, a time, or an age (7d)")] = None,
    until: Annotated[str | None, typer.Option(help="only feedback before then; times are UTC")] = None,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
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
    with open_store(config, label=label) as (settings, ledger), bars(errors) as progress:
        if dry_run:
            count = count_feedback(ledger, source=checked_source(source), **period)
            show({"source": source, "feedback": count, "label": ledger.label}, as_json=as_json)
            return
        done = relearn(
            ledger,
            settings=settings,
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


def import_(
    file: Annotated[Path, typer.Argument(help="JSON Lines, a JSON list, CSV or Parquet: one judgement a row")],
    *,
    id_field: Annotated[
        str, typer.Option(help="the decision's id; a dot reads a part: user.id, scores.0.id")
    ] = "decision_id",
    rating_field: Annotated[str, typer.Option(help="true, false, or a number on the scale")] = "rating",
    label_field: Annotated[str, typer.Option(help="a gold answer, or a list of them")] = "label",
    reward_field: Annotated[str, typer.Option(help="the final reward, with the cost already subtracted")] = "reward",
    event_field: Annotated[str, typer.Option(help="a name of the setting feedback_events")] = "event",
    source_field: Annotated[str, typer.Option(help="who judged: human, label, judge or code")] = "source",
    rater_field: Annotated[str, typer.Option(help="id of the rater: a person, or a judge")] = "rater",
    key_field: Annotated[str, typer.Option(help="the judgement's id (default: a hash of the line)")] = ("feedback_id"),
    source: Annotated[str | None, typer.Option(help="source of every line; replaces the lines' own")] = None,
    scale: Annotated[str, typer.Option(help="WORST-BEST of numbers; default 0-1, or -1-1 if all are -1 or 1")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import feedback from a file of another tool or of your own logs.

    Each row judges one decision by a rating, label, reward or event. A file with a rating off the scale, or a reward
    out of its bounds, is refused before anything is stored. Unusable lines are counted and listed, the other lines are
    stored, and the exit code is then 1. A line that is imported twice is stored once. To correct a file, import it
    again: a later judgement of the same rater replaces the earlier one.
    """
    fields = {"decision_id": id_field, "rating": rating_field, "label": label_field, "reward": reward_field}
    fields |= {"event": event_field, "source": source_field, "rater": rater_field, "feedback_id": key_field}
    with rereadable(file) as readable, open_store(config, registered=False) as (settings, ledger):
        store = DecisionStore(
            ledger.database, label=ledger.label, text=settings.log.text, context=frozenset(settings.context)
        )
        importer = FeedbackImporter(store, settings=settings, fields=fields, source=source, scale=scale)
        importer.check(readable, file=file)
        try:
            with bars(errors) as progress:
                rows = records(readable, keys=importer.keys)
                for page in iter(lambda: list(islice(rows, _PAGE)), []):
                    importer.store_lines(page)
                    progress("lines", importer.read, 0)
        finally:
            if importer.counts["imported"]:
                Notifier(make_jobs(settings)).notify_learner()
    result = {**importer.counts, "bad": importer.bad}
    show(result | {"faults": importer.faults} if as_json else result, as_json=as_json)
    if not as_json:
        for fault in importer.faults:
            errors.say(f"{file}:{fault}")
        if importer.bad > len(importer.faults):
            errors.print(f"and {importer.bad - len(importer.faults)} more")
    if importer.bad:
        raise typer.Exit(1)
