"""`ragbandit status`, `verify`, `decision` and `quarantine`: facts read from the store."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from ragbandit.router.api.responses import arms_json
from ragbandit.router.cli.console import (
    ConfigOption,
    JsonOption,
    LabelOption,
    console,
    errors,
    failing_well,
    print_json,
)
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning import status as ledger_status
from ragbandit.router.learning.audit import verify
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.arm_health import OutcomePoller
from ragbandit.router.serving.bootstrap import ledger_of
from ragbandit.router.serving.circuit_breaker import ArmHealth
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import IMPORTED, ArmName

__all__ = []


def add_facts(app: typer.Typer) -> None:
    @app.command()
    def status(label: LabelOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
        """Counters that balance, lag, snapshot, how the arms are; read from the database."""
        with failing_well(), _ledger(config, label=label) as (settings, ledger):
            serving = _serving(ledger, settings=settings)
            found = ledger_status.status(ledger, serving=serving, rule=closing_rule(settings.learning), now=time.time())
            facts = asdict(found) | {"balanced": found.counters.balanced}
            poller = OutcomePoller(ledger.database, settings=settings.health, seconds=settings.budget.seconds)
            healths = poller.read([ArmName(arm) for arm in settings.arms], now=time.time())
            facts["arms"] = arms_json(healths) if as_json else "\n".join(_health(one) for one in healths)
            _show(facts.pop("counters") | facts, as_json=as_json)
            if not found.counters.balanced:
                raise typer.Exit(1)

    @app.command(name="verify")
    def verify_(
        label: LabelOption = None,
        config: ConfigOption = None,
        deep: Annotated[bool, typer.Option(help="also make every pmf again")] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Recompute every draw, replay the ledger from nothing; exit 1 on any difference."""
        with failing_well(), _ledger(config, label=label) as (settings, ledger):
            files = SnapshotFiles(settings.snapshot_root)
            with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
                bar = progress.add_task("rows", total=None)
                verdict = verify(
                    ledger,
                    files=files,
                    serving=_serving(ledger, settings=settings),
                    deep=deep,
                    progress=lambda done, total: progress.update(bar, completed=done, total=total),
                )
            _show(asdict(verdict) | {"ok": verdict.ok}, as_json=as_json)
            if not verdict.ok:
                raise typer.Exit(1)

    @app.command()
    def quarantine(
        config: ConfigOption = None, limit: Annotated[int, typer.Option(min=1)] = 100, as_json: JsonOption = False
    ) -> None:
        """The decisions that were poisoned, with the field and the reason."""
        with failing_well(), _ledger(config) as (_, ledger):
            rows = ledger_status.quarantined(ledger, limit=limit)
            if as_json:
                print_json([dict(row) for row in rows])
                return
            table = Table("decision", "field", "reason")
            for row in rows:
                table.add_row(row["decision_id"], escape(row["field"] or ""), escape(row["reason"]))
            console.print(table if rows else "nothing is quarantined")


@contextlib.contextmanager
def _ledger(config: str | None, *, label: str | None = None) -> Iterator[tuple[Settings, Ledger]]:
    settings = configuration.load(config).settings
    with ledger_of(settings, label=label or settings.policy.label) as ledger:
        ledger_status.check_registered(ledger)
        yield settings, ledger


def _serving(ledger: Ledger, *, settings: Settings) -> Policy | None:
    """The policy of the ledger: the configured one's as configured, another's as it was last opened."""
    if ledger.label == settings.policy.label:
        return make_policy(settings.policy.name, params=settings.policy.params)
    opened = ledger.registered()
    if opened is None or opened["algorithm"] == IMPORTED:
        return None
    return make_policy(opened["algorithm"], params=json.loads(opened["params"]))


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(key, escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    console.print(table)


def _health(health: ArmHealth) -> str:
    """One line on an arm."""
    if health.since is None:
        return f"{health.arm}: {health.state}"
    since = datetime.fromtimestamp(health.since, UTC).isoformat(sep=" ", timespec="seconds")
    return f"{health.arm}: {health.state}, {health.failures} failed since {since}"
