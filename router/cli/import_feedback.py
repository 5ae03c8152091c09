"""Verb `import-feedback`: judgements that were given in another system become feedback of ours."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    console,
    errors,
    failing_well,
    print_json,
)
from ragbandit.router.errors import InvalidInput, NotReady, StoreError

if TYPE_CHECKING:
    from ragbandit.router.config.settings import Settings
    from ragbandit.router.importers.importing import Importer
    from ragbandit.router.importers.report import ImportReport

__all__ = ["add_import_feedback"]

#: least seconds between two imports
LEAST_EVERY_S = 1.0


def add_import_feedback(app: typer.Typer) -> None:
    """Put the verb on the command."""
    app.command(name="import-feedback")(_import_feedback)


def _import_feedback(
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
    from ragbandit.router.cli.arguments import parse_time
    from ragbandit.router.config import loading as configuration

    with failing_well():
        if once and every is not None:
            raise InvalidInput("--once and --every exclude each other", field="every", remedy="give one of them")
        if every is not None and not every >= LEAST_EVERY_S:
            remedy = f"give at least {LEAST_EVERY_S:g} seconds"
            raise InvalidInput(f"{every:g} is too short", field="every", remedy=remedy)
        settings = configuration.load(config).settings
        begin = None if since is None else parse_time(since, now=time.time())
        with _until_told() as ending, _importer(source, settings=settings, ending=ending) as importer:
            while True:
                _run(importer, since=begin, dry_run=dry_run, as_json=as_json, patient=every is not None)
                begin = None  # later imports go on from there
                if every is None or ending.wait(every):
                    return


def _run(importer: "Importer", *, since: float | None, dry_run: bool, as_json: bool, patient: bool) -> None:
    """One import, and its report. patient: a server or a database that fails is tried again later."""
    from ragbandit.router.cli.progress import bars

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
def _until_told() -> Iterator[threading.Event]:
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
def _importer(source: str, *, settings: "Settings", ending: threading.Event) -> "Iterator[Importer]":
    from ragbandit.router.importers.importing import Importer
    from ragbandit.router.importers.registry import make_source
    from ragbandit.router.serving.setup.bootstrap import ledger_of
    from ragbandit.router.storage.decisions import DecisionStore

    with ledger_of(settings, label=settings.policy.label) as ledger:
        store = DecisionStore(
            ledger.database, label=ledger.label, text=settings.log.text, context=frozenset(settings.context)
        )
        opened = make_source(source, settings=settings.importers, database=ledger.database, ending=ending)
        try:
            yield Importer(
                opened, store=store, settings=settings, clock=time.time, ending=ending, on_new=_bell(settings)
            )
        finally:
            opened.close()


def _bell(settings: "Settings") -> "Callable[[], None]":
    """What tells the learner that there is something to learn; without Redis it finds out by itself."""
    from ragbandit.router.jobs.notifier import Notifier
    from ragbandit.router.serving.setup.bootstrap import make_jobs
    from ragbandit.router.types import PolicyLabel

    label = PolicyLabel(settings.policy.label)
    return Notifier(make_jobs(settings), label=label, answer_s=1.0).notify_learner


def _show(report: "ImportReport") -> None:
    """A table of names and results, and a few examples of what was not taken."""
    from ragbandit.router.importers.report import OUTCOMES

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
        told = f"{result}: {OUTCOMES[result]}" + (f", for example {some}" if some else "")
        console.print(escape(told), highlight=False, soft_wrap=True)
    if report.unreadable:
        told = f"{report.unreadable} entries had not the shape of a judgement, and were passed over"
        console.print(told, highlight=False)
