"""The router's verbs. `ragbandit.workers.cli` is the command's root and adds the verbs that need arms."""

import contextlib
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from sqlalchemy.engine import make_url

from ragbandit.router.api.client import Client
from ragbandit.router.api.responses import arms_json
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.errors import InvalidInput, RagBanditError, StoreError
from ragbandit.router.jobs.redis_server import die_with_parent
from ragbandit.router.learning import status as insights
from ragbandit.router.learning.audit import verify
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.arm_health import Watch
from ragbandit.router.serving.bootstrap import check_policy, open_database
from ragbandit.router.serving.circuit_breaker import ArmHealth
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.database import Database, migrate
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.types import IMPORTED, ArmName, PolicyLabel

__all__ = ["ConfigOption", "JsonOption", "add_verbs", "failing_well", "ledger_of", "print_json", "printable"]

ConfigOption = Annotated[str | None, typer.Option("--config", "-c", help="the YAML file; default ./config.yaml")]
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
UrlOption = Annotated[str, typer.Option("--url", envvar="RAGBANDIT_URL", help="of a running service")]
LabelOption = Annotated[str | None, typer.Option(help="the ledger; default: the configured one")]
IdOption = Annotated[str | None, typer.Option("--id", help="your own id: makes the call idempotent")]
DEFAULT_URL = "http://127.0.0.1:8100"

log = logging.getLogger("ragbandit.cli")

# Without emoji: rich would turn the line number in file.jsonl:100: into a picture.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)
#: settings -> None, raises ConfigError: what the root knows to check and the router does not (arms, prompts)
Check = Callable[[Settings], None]


@contextlib.contextmanager
def failing_well() -> Iterator[None]:
    """An error of ours ends the command with one line and exit code 2, not with a traceback."""
    try:
        yield
    except RagBanditError as error:
        errors.print(f"[red]{error.code}[/red] {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(2) from None


def printable(text: str) -> str:
    """The text with a question mark for half a surrogate pair, which JSON may bring and no terminal takes."""
    return text.encode("utf-8", "replace").decode()


def print_json(value: object) -> None:
    """JSON on standard output, for pipes."""
    said = json.dumps(value, indent=2, ensure_ascii=False)
    # Half a surrogate pair cannot be written, and what "backslashreplace" makes of it is its escape in JSON.
    sys.stdout.write(said.encode("utf-8", "backslashreplace").decode() + "\n")


def add_verbs(app: typer.Typer, *, check: Check, check_more: Check = lambda _: None) -> None:
    """Put the router's verbs on the command. `check_more` is for `validate` alone: what no service needs."""
    _add_service(app, check=check, check_more=check_more)
    _add_calls(app)
    _add_facts(app)


def _add_service(app: typer.Typer, *, check: Check, check_more: Check) -> None:
    @app.command()
    def serve(config: ConfigOption = None) -> None:
        """Run the HTTP service alone (Redis, workers and the learner run elsewhere). SIGHUP reads the arms again."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # too early is no reason to die
        with failing_well():
            loaded = configuration.load(config)
            settings = loaded.settings
            check(settings)
            check_policy(settings)
            die_with_parent()
            import uvicorn

            from ragbandit.router.api.app import create_app

            # A failure to open must end the process with our one line, not with a server's traceback.
            router = Router.open(settings)
            # The file that was read, so that one that has gone since is missed; in a thread, since a signal's handler
            # would hold up every request.
            take_over = partial(_take_over_arms, router, config=loaded.file, check=check)
            signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=take_over, daemon=True).start())
            server = settings.server
            uvicorn.run(
                create_app(lambda: router), host=server.host, port=server.port, log_level="warning", access_log=False
            )

    @app.command(name="migrate")
    def migrate_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
        """Bring the database to this version's schema."""
        with failing_well():
            database = Database(configuration.load(config).settings.database)
            revision, url = migrate(database), database.url.render_as_string(hide_password=True)
            database.close()
            if as_json:
                print_json({"database": url, "revision": revision})
            else:
                console.print(f"{url} is at {revision}", soft_wrap=True)

    @app.command()
    def validate(config: ConfigOption = None, as_json: JsonOption = False) -> None:
        """Check the configuration; print every setting with where it came from."""
        with failing_well():
            loaded = configuration.load(config)
            check(loaded.settings)
            check_more(loaded.settings)
            check_policy(loaded.settings)
            rows = configuration.effective(loaded)
            if as_json:
                print_json([{"key": k, "value": v, "source": s} for k, v, s in rows])
                return
            table = Table("setting", "value", "source")
            for key, value, source in rows:
                table.add_row(key, escape(json.dumps(value)), escape(source))
            console.print(table)


def _take_over_arms(router: Router, *, config: Path | None, check: Check) -> None:
    """Read the arms again and offer them; a configuration that cannot be used changes nothing."""
    try:
        settings = configuration.load(config).settings
        check(settings)
        router.offer(settings.arms)
    except RagBanditError as error:
        log.error("arms not taken over", extra={"action": "offer", "reason": str(error)})


def _add_calls(app: typer.Typer) -> None:
    @app.command()
    def route(
        question: str,
        url: UrlOption = DEFAULT_URL,
        decision_id: IdOption = None,
        arms: Annotated[list[str] | None, typer.Option("--arm", help="an arm that may be drawn; repeat it")] = None,
        as_json: JsonOption = False,
    ) -> None:
        """Draw an arm for a question (nobody runs it)."""
        with failing_well(), Client(url) as client:
            _show(client.route(question, decision_id=decision_id, arms=arms or None), as_json=as_json)

    @app.command()
    def answer(
        question: str,
        url: UrlOption = DEFAULT_URL,
        decision_id: IdOption = None,
        wait: Annotated[float, typer.Option(help="seconds to wait for the answer")] = 60.0,
        as_json: JsonOption = False,
    ) -> None:
        """Draw an arm and have a worker run it."""
        with failing_well(), Client(url) as client:
            _show(client.answer(question, decision_id=decision_id, wait_s=wait), as_json=as_json)

    @app.command()
    def cancel(decision_id: str, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
        """Have no worker answer a decision; one that is at it stops."""
        with failing_well(), Client(url) as client:
            _show(client.cancel(decision_id), as_json=as_json)

    @app.command()
    def feedback(
        decision_id: str,
        url: UrlOption = DEFAULT_URL,
        feedback_id: IdOption = None,
        label: Annotated[list[str] | None, typer.Option(help="a gold answer; repeat it for several")] = None,
        rating: Annotated[str | None, typer.Option(help="true, false, or a number in [0, 1] or 1-5")] = None,
        scale: Annotated[str, typer.Option(help="of a numeric rating: 0-1 or 1-5")] = "0-1",
        reward: Annotated[float | None, typer.Option(help="the reward itself")] = None,
        source: Annotated[str, typer.Option(help="human, judge or code")] = "human",
        as_json: JsonOption = False,
    ) -> None:
        """Judge a decision: a label, a rating or a reward."""
        with failing_well(), Client(url) as client:
            reply = client.feedback(
                decision_id,
                feedback_id=feedback_id,
                label=label or None,
                rating=_rating(rating),
                scale=scale,
                reward=reward,
                source=source,
            )
            _show(reply, as_json=as_json)


def _add_facts(app: typer.Typer) -> None:
    @app.command()
    def status(label: LabelOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
        """Counters that balance, lag, snapshot, how the arms are; read from the database."""
        with failing_well(), _ledger(config, label=label) as (settings, ledger):
            serving = _serving(ledger, settings=settings)
            found = insights.status(ledger, serving=serving, wait_s=settings.learning.wait_s, now=time.time())
            facts = asdict(found) | {"balanced": found.counters.balanced}
            watch = Watch(ledger.database, settings=settings.health, seconds=settings.budget.seconds)
            healths = watch.read([ArmName(arm) for arm in settings.arms], now=time.time())
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
            rows = insights.quarantined(ledger, limit=limit)
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
        insights.check_registered(ledger)
        yield settings, ledger


@contextlib.contextmanager
def ledger_of(settings: Settings, *, label: str) -> Iterator[Ledger]:
    """A ledger of the store of these settings. Raises StoreError if there is no store, or of another version."""
    url = make_url(settings.database)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        # Opening would make an empty one here and call it fine.
        raise StoreError(
            f"there is no database at {url.database}", field="data_dir", remedy="is this the right folder?"
        )
    database = open_database(settings)
    try:
        yield Ledger(database, label=PolicyLabel(label))
    finally:
        database.close()


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


def _rating(text: str | None) -> bool | float | None:
    if text is None or text.lower() in ("true", "false"):
        return None if text is None else text.lower() == "true"
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is no rating", field="rating", remedy="use true, false or a number") from error
