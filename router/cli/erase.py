"""Verb `erase`: texts about decisions become blank, on request."""

import time
from dataclasses import asdict
from typing import Annotated

import typer

from ragbandit.router.cli.console import ConfigOption, JsonOption, errors, failing_well, show
from ragbandit.router.errors import InvalidInput

__all__ = ["add_erase"]


def add_erase(app: typer.Typer) -> None:
    """Put the verb on the command."""
    app.command(name="erase")(_erase)


def _erase(
    decision: Annotated[str | None, typer.Option(help="the decision with this id")] = None,
    tenant: Annotated[str | None, typer.Option(help="the decisions of this tenant")] = None,
    before: Annotated[
        str | None, typer.Option(help="made before: a date (2026-08-01), a time, or an age (90d)")
    ] = None,
    features: Annotated[bool, typer.Option("--features", help="also the features that policies learned from")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count what would be erased")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="erase; without it nothing is done")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Blank the texts of decisions, in the database and in the archive: questions, answers, traces, labels.

    Probabilities, rewards and the order of the ledger stay, and so does what was learned. A decision that still waits
    is closed. The same call again goes on with one that was interrupted. Backups are yours to erase.
    """
    from ragbandit.router.cli.archive import alone
    from ragbandit.router.cli.arguments import parse_time
    from ragbandit.router.cli.progress import bars
    from ragbandit.router.config import loading as configuration
    from ragbandit.router.serving.setup.bootstrap import ledger_of
    from ragbandit.router.storage.erasure import Selection, erasable, erase

    with failing_well():
        settings = configuration.load(config).settings
        limit = None if before is None else parse_time(before, now=time.time(), field="before")
        selection = Selection(decision=decision, tenant=tenant, before=limit)
        with ledger_of(settings, label=settings.policy.label) as ledger:
            if dry_run:
                found = erasable(ledger.database, selection)
            elif not yes:
                raise InvalidInput(
                    "nothing was erased: erasing cannot be undone, so it must be confirmed",
                    field="yes",
                    remedy="see with --dry-run what would be erased, then add --yes",
                )
            else:
                with alone(ledger.database) as prolong, bars(errors) as progress:

                    def report(done: int) -> None:
                        prolong()
                        progress("decisions", done, done)

                    found = erase(ledger.database, selection, features=features, now=time.time(), progress=report)
        show({"erased": not dry_run, **asdict(found)}, as_json=as_json)
