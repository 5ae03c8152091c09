"""Verbs `audit verify` and `audit export`: who did what, and whether the log of it is whole."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ragbandit.router.cli.console import CommandLine, ConfigOption, JsonOption, failing_well, show
from ragbandit.router.errors import InvalidInput

if TYPE_CHECKING:
    from ragbandit.router.storage.sql.database import Database

__all__ = ["add_audit"]


def add_audit(app: typer.Typer) -> None:
    """Put the verbs on the command."""
    audit = CommandLine(name="audit", no_args_is_help=True, help="Check and export the log of who did what.")
    audit.command(name="verify")(_verify)
    audit.command(name="export")(_export)
    app.add_typer(audit, name="audit")


def _verify(
    known: Annotated[
        str | None, typer.Option("--known", help="NUMBER:SHA256 that a former verify printed: that entry must be there")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that no entry was changed or removed; exit code 1 if one was. Keep the last number and sha256 elsewhere."""
    from ragbandit.router.storage.access.audit_log import check_entries

    with failing_well(), _database(config) as database:
        verdict = check_entries(database, known=_entry(known))
        show({"whole": verdict.fault is None, **asdict(verdict)}, as_json=as_json)
    if verdict.fault is not None:
        raise typer.Exit(1)


def _export(
    after: Annotated[int, typer.Option(help="only entries with a larger number")] = 0, config: ConfigOption = None
) -> None:
    """Print the entries as JSON lines, the oldest first, for a system that keeps them elsewhere."""
    from ragbandit.router.storage.access.audit_log import entries

    with failing_well(), _database(config) as database:
        for entry in entries(database, after=after):
            sys.stdout.write(json.dumps(asdict(entry)) + "\n")


def _entry(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    number, _, sha256 = text.partition(":")
    if not number.isdecimal() or len(sha256) != 64:
        raise InvalidInput(f"{text!r:.80} is not NUMBER:SHA256", field="known", remedy="as `audit verify` printed it")
    return int(number), sha256


@contextmanager
def _database(config: str | None) -> "Iterator[Database]":
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.serving.setup.bootstrap import ledger_of

    settings = configuration.load(config).settings
    with ledger_of(settings, label=settings.policy.label) as ledger:
        yield ledger.database
