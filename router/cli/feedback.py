"""Verbs of `feedback`: what is held back, sources that a ledger is learned without, judgements of other systems."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table

from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    LabelOption,
    bars,
    console,
    errors,
    print_json,
    show,
    show_rows,
)
from ragbandit.router.cli.data import actor
from ragbandit.router.cli.store import opened, parse_time
from ragbandit.router.config.settings import Settings
from ragbandit.router.importers.importing import Importer
from ragbandit.router.importers.registry import make_source
from ragbandit.router.importers.report import OUTCOMES, ImportReport
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.relearning import checked_source, lifted, relearn, selected
from ragbandit.router.queue.notifier import Notifier
from ragbandit.router.serving.setup.bootstrap import make_jobs
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers import held_feedback
from ragbandit.router.storage.ledgers.quarantines import Quarantine, quarantines_of
from ragbandit.shared.errors import InvalidInput, NotReady, StoreError
from ragbandit.shared.formats import moment
from ragbandit.shared.types import PolicyLabel

SOURCE_HELP: Final = "key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"
SourceOption = Annotated[str | None, typer.Option(help=SOURCE_HELP)]


def held(
    source: SourceOption = None,
    limit: Annotated[int, typer.Option(min=1, help="most feedback to list, the newest first")] = 100,
    release: Annotated[bool, typer.Option("--release", help="let the learner learn it: that of --source")] = False,
    feedback: Annotated[str | None, typer.Option(help="of --release: one feedback instead, by its id")] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List feedback of sources over their limit, which is not learned: by source, the newest of it; or release it."""
    with opened(config, label=label) as (_, ledger):
        if release:
            if (source is None) == (feedback is None):
                raise InvalidInput("give --source or --feedback", field="source", remedy="the list shows both")
            done = held_feedback.release(ledger, source=source, feedback_id=feedback, actor=actor(), now=time.time())
            show(asdict(done), as_json=as_json)
            return
        sources, rows = held_feedback.sources_held(ledger), held_feedback.held(ledger, source=source, limit=limit)
        if as_json:
            print_json({"sources": sources, "feedback": [asdict(row) for row in rows]})
            return
        if rows:
            console.print(f"held: {', '.join(f'{escape(name)} {count}' for name, count in sources.items())}")
        cells = ((row.feedback_id, row.decision_id, row.source, row.reason, moment(row.held_at)) for row in rows)
        show_rows(("feedback", "decision", "source", "reason", "held at"), cells, none="nothing is held")


def rejected(
    limit: Annotated[int, typer.Option(min=1, help="most decisions to list, the newest first")] = 100,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decisions that could not be learned, and why."""
    with opened(config, label=label) as (_, ledger):
        rows = ledger_status.quarantined(ledger, limit=limit)
        if as_json:
            print_json([dict(row) for row in rows])
            return
        cells = ((row["decision_id"], row["field"] or "", row["reason"]) for row in rows)
        show_rows(("decision", "field", "reason"), cells, none="every decision could be learned")


def exclude(
    source: Annotated[str | None, typer.Option(help=f"{SOURCE_HELP}; default: list what is excluded")] = None,
    since: Annotated[str | None, typer.Option(help="of feedback from then on: a date, a time, or an age (7d)")] = None,
    until: Annotated[str | None, typer.Option(help="of feedback before then; times are UTC")] = None,
    reason: Annotated[str, typer.Option(help="for the audit log")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say how much it is, and change nothing")] = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a new ledger without the feedback of a source; without --source list those that are excluded.

    The new ledger is learned beside the one in use, which goes on serving. When it is done, set policy.label to it and
    restart the services, one after the other.
    """
    if source is None:
        if since or until or dry_run:
            raise InvalidInput("whose feedback is to be excluded is not said", field="source", remedy=SOURCE_HELP)
        _list_excluded(config, as_json=as_json)
        return
    now = time.time()
    period = {
        name: None if text is None else parse_time(text, now=now, field=name)
        for name, text in (("since", since), ("until", until))
    }
    with opened(config, label=label) as (settings, ledger), bars(errors) as progress:
        if dry_run:
            count = selected(ledger, source=checked_source(source), **period)
            show({"source": source, "feedback": count, "label": ledger.label}, as_json=as_json)
            return
        done = relearn(
            ledger,
            settings=settings,
            source=source,
            reason=reason,
            actor=actor(),
            now=now,
            progress=lambda closed: progress("decisions", closed, closed),
            **period,
        )
    new_label = done.quarantine.new_label
    facts = {
        "number": done.quarantine.number,
        "source": source,
        "feedback": done.feedback,
        "label": new_label,
        "updates": done.updates,
        "snapshot": done.snapshot,
    }
    show(facts, as_json=as_json)
    if not as_json:
        errors.print(f"services go on with {ledger.label}: set policy.label to {new_label} and restart them in turn")


def _list_excluded(config: str | None, *, as_json: bool) -> None:
    with opened(config) as (_, ledger):
        rows = quarantines_of(ledger.database, lifted=True)
        if as_json:
            print_json([asdict(row) for row in rows])
            return
        titles = ("number", "source", "since", "until", "ledger", "learned without", "reason", "state")
        show_rows(titles, map(_excluded_cells, rows), none="no source is excluded")


def _excluded_cells(row: Quarantine) -> list[str]:
    bounds = ["" if one is None else moment(one) for one in (row.since, row.until)]
    state = "in force" if row.lifted_at is None else f"included again {moment(row.lifted_at)}"
    return [str(row.number), row.source, *bounds, row.label, row.new_label, row.reason, state]


def include(
    number: Annotated[int, typer.Argument(help="of the exclusion, as `feedback exclude` shows it")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a ledger learn again from a source: new feedback, and of the former what still waits."""
    with opened(config) as (_, ledger):
        count = lifted(ledger, number, actor=actor(), now=time.time())
        show({"included": number, "feedback": count}, as_json=as_json)


#: least seconds between two imports
LEAST_EVERY_S = 1.0


def import_(
    source: Annotated[str, typer.Argument(help="openwebui, langfuse, langsmith or phoenix")],
    once: Annotated[bool, typer.Option("--once", help="import what has come, then end (the default)")] = False,
    every: Annotated[float | None, typer.Option(help="import again after so many seconds, until SIGTERM")] = None,
    since: Annotated[
        str | None,
        typer.Option(help="read from then on, whatever was read before: a date (2026-08-01), a time, or an age (7d)"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be imported")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring ratings and scores from Open WebUI, Langfuse, LangSmith or Phoenix, and say what became of them.

    What was imported before is not counted twice, and an import that was cut off goes on where it was. The section
    importers of the configuration says where from, and what the scores there mean.
    """
    if once and every is not None:
        raise InvalidInput("--once and --every exclude each other", field="every", remedy="give one of them")
    if every is not None and not every >= LEAST_EVERY_S:
        remedy = f"give at least {LEAST_EVERY_S:g} seconds"
        raise InvalidInput(f"{every:g} is too short", field="every", remedy=remedy)
    begin = None if since is None else parse_time(since, now=time.time())
    with _until_signal() as ending, _importer(source, config=config, ending=ending) as importer:
        while True:
            _run(importer, since=begin, dry_run=dry_run, as_json=as_json, patient=every is not None)
            begin = None  # later imports go on from there
            if every is None or ending.wait(every):
                return


def _run(importer: Importer, *, since: float | None, dry_run: bool, as_json: bool, patient: bool) -> None:
    """One import, and its report. patient: a server or a database that fails is tried again later."""
    try:
        with bars(errors) as progress:
            report = importer.run(
                since=since, dry_run=dry_run, progress=lambda so_far: progress("judgements", so_far.seen, 0)
            )
    except (NotReady, StoreError) as error:
        if not patient:
            raise
        errors.print(f"[yellow]{error.code}[/yellow] {escape(str(error))}", soft_wrap=True, highlight=False)
        return
    if as_json:
        print_json(report.facts())
    else:
        _show(report)


@contextlib.contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set: what is being kept is kept, and no further page is read."""
    ending = threading.Event()

    def end(_number: int, _frame: object) -> None:
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _importer(source: str, *, config: str | None, ending: threading.Event) -> Iterator[Importer]:
    with opened(config, registered=False) as (settings, ledger):
        store = DecisionStore(
            ledger.database, label=ledger.label, text=settings.log.text, context=frozenset(settings.context)
        )
        judgements = make_source(source, settings=settings.importers, database=ledger.database, ending=ending)
        try:
            yield Importer(
                judgements, store=store, settings=settings, clock=time.time, ending=ending, on_new=_bell(settings)
            )
        finally:
            judgements.close()


def _bell(settings: Settings) -> Callable[[], None]:
    """What tells the learner that there is something to learn; without Redis it finds out by itself."""
    label = PolicyLabel(settings.policy.label)
    return Notifier(make_jobs(settings), label=label).notify_learner


def _show(report: ImportReport) -> None:
    """A table of names and results, and a few examples of what was not taken."""
    there = [result for result in OUTCOMES if report.total(result)]
    title = f"{report.source}: {report.seen} judgements on {report.pages} pages"
    console.print(escape(title + (", nothing was kept (--dry-run)" if report.dry_run else "")), highlight=False)
    if there:
        table = Table(box=None)
        table.add_column("name")
        for result in there:
            table.add_column(result, justify="right")
        for name, counts in sorted(report.by_name.items()):
            table.add_row(escape(name), *(str(counts[result]) for result in there))
        console.print(table)
    for result in there:
        some = "; ".join(report.examples[result])
        line = f"{result}: {OUTCOMES[result]}" + (f", for example {some}" if some else "")
        console.print(escape(line), highlight=False, soft_wrap=True)
    if report.unreadable:
        line = f"{report.unreadable} entries had not the shape of a judgement, and were passed over"
        console.print(line, highlight=False)
